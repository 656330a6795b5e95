/* Loops that do nothing but one kind of work, as fast as the machine can. One file per instruction set; a loop that was not
 * compiled has run = NULL. */
#ifndef TL_CLI_PEAK_H
#define TL_CLI_PEAK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "machine.h"

typedef struct peak_loop {
    const char *name;
    const char *isa;   /* as --isa names it */
    const char *needs; /* flags of the processor, as machine.features has them; "" for none */
    int64_t steps;     /* some milliseconds' worth */
    double operations; /* of one step; an addition and a multiplication are two */
    float (*run)(int64_t steps);
} peak_loop;

extern const peak_loop peak_fma_scalar, peak_fma_avx2, peak_fma_avx512; /* f32 */
extern const peak_loop peak_int8_avx512vnni;                            /* int8 products, int32 sums */

/* The best FMA loop that the machine runs and --isa (or TLAMP_MAX_ISA) allows; of INT8, or NULL. */
const peak_loop *peak_fma(const machine *m, const char *isa);
const peak_loop *peak_int8(const machine *m, const char *isa);

/* Does the processor have all these flags? */
bool machine_has(const machine *m, const char *flags);

/* Seconds that `threads` threads take for a loop's steps each. */
double peak_time(const peak_loop *loop, int threads);

/* Memory to read, a part for each thread. */
#define PEAK_READ_BYTES ((size_t)256 << 20)
typedef struct peak_buffers {
    int threads;
    size_t bytes; /* of each */
    unsigned char **data;
} peak_buffers;
/* free is due in any case. */
bool peak_buffers_create(peak_buffers *b, int threads);
void peak_buffers_free(peak_buffers *b);

/* Seconds for all threads to read their parts once. */
double peak_read_time(const peak_buffers *b);

#endif
