/* Loops that do nothing but one kind of work, as fast as the machine can. One file per instruction set; a loop that was not
 * compiled has run = NULL. */
#ifndef TL_CLI_PEAK_H
#define TL_CLI_PEAK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "machine.h"

/* What is measured, and in which unit. A multiplication and an addition are two operations. */
typedef enum {
    PEAK_FMA,     /* f32 */
    PEAK_BF16,    /* products of bf16, sums in f32 */
    PEAK_INT8,    /* products of int8, sums in int32 */
    PEAK_SOFTMAX, /* elements: scores in the first cache, their maximum, exponentials (degree 3), sum and store */
    PEAK_READ,    /* bytes read from memory */
    PEAK_COPY,    /* bytes copied from memory to memory */
    NUM_PEAKS
} peak_kind;

extern const char *const peak_names[NUM_PEAKS], *const peak_units[NUM_PEAKS]; /* "fma", "GFLOP/s" */

typedef struct peak_loop {
    const char *name;
    const char *isa;   /* as --isa names it */
    const char *needs; /* flags of the processor, as machine.features has them; "" for none */
    int64_t steps;     /* some milliseconds' worth */
    double operations; /* of one step; elements for PEAK_SOFTMAX */
    float (*run)(int64_t steps);
    bool (*ready)(void); /* NULL, or does the system allow it? */
} peak_loop;

extern const peak_loop peak_fma_scalar, peak_fma_avx2, peak_fma_avx512;
extern const peak_loop peak_bf16_avx512bf16, peak_bf16_amx;
extern const peak_loop peak_int8_avx2, peak_int8_avxvnni, peak_int8_avx512vnni, peak_int8_amx;
extern const peak_loop peak_softmax_scalar, peak_softmax_avx2, peak_softmax_avx512;

/* The loop of that kind that the machine runs and --isa (or TLAMP_MAX_ISA) allows, the strongest first; NULL: none, and for
 * PEAK_READ and PEAK_COPY, which have no loop. */
const peak_loop *peak_find(peak_kind kind, const machine *m, const char *isa);

/* Does the processor have all these flags? */
bool machine_has(const machine *m, const char *flags);

/* Seconds that `threads` threads take for a loop's steps each. */
double peak_time(const peak_loop *loop, int threads);

/* Memory to read and to copy, a part for each thread, in its own neighbourhood. */
typedef struct peak_buffers {
    int threads;
    size_t bytes; /* of each, a multiple of 128 */
    unsigned char **data;
} peak_buffers;
/* total: bytes of all threads together. free is due in any case. */
bool peak_buffers_create(peak_buffers *b, int threads, size_t total);
void peak_buffers_free(peak_buffers *b);

/* Seconds for all threads to read their parts once, and to copy the first half of each to the second. */
double peak_read_time(const peak_buffers *b);
double peak_copy_time(const peak_buffers *b);

#endif
