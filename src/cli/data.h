/* Tensors of a problem: allocated, laid out and filled with reproducible data.
 *
 * Every random number is a function of the seed, the tensor and the element's place (sequence, row, head, column), so that
 * the same problem in another layout, dtype or batch holds the same values. */
#ifndef TL_CLI_DATA_H
#define TL_CLI_DATA_H

#include "fault.h"
#include "problem.h"
#include "tilelamp/tilelamp.h"

enum { INPUT_MAX_BUFFERS = 16 };

typedef struct input {
    problem_spec spec;
    tlamp_problem problem; /* without a policy */
    tlamp_tensors tensors; /* without routing words; o and lse are outputs, full of NaN at first */
    void *q, *k, *v;       /* tensors.q, k and v, to write to */
    int64_t rows;          /* batch * lq, or the packed total: R of tlamp_reference_outputs */
    void *buffers[INPUT_MAX_BUFFERS];
    int num_buffers;
} input;

/* Does this version do such a problem, and does it fit into this machine's memory? */
int input_check(const problem_spec *spec, fault *f);

/* Checks it, and allocates the tensors: inputs all NaN (the gaps of pad: stay so), masks, bias, slopes, sinks and lengths as the spec says.
 * On failure nothing is left to free. */
int input_create(input *in, const problem_spec *spec, fault *f);

/* Writes q, k and v as spec.data says. */
int input_fill(input *in, fault *f);

void input_free(input *in);

/* Places of elements, in elements from the tensor's start. The row of o or lse is the row of tlamp_reference_outputs. */
int64_t input_offset(const tlamp_strides *stride, const int32_t *cu_seqlens, int64_t b, int64_t i, int64_t h);
int64_t input_lse_offset(const input *in, int64_t b, int64_t i, int64_t h);
int64_t input_row(const input *in, int64_t b, int64_t i);

double tensor_get(const void *data, tlamp_dtype dtype, int64_t index);
void tensor_set(void *data, tlamp_dtype dtype, int64_t index, double value);

#endif
