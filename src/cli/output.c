#include "output.h"

#include <stdlib.h>
#include <string.h>

#include "parse.h"
#include "safetensors.h"

/* Dense copies, whatever the strides of the outputs are. */
static void gather(const input *in, unsigned char *o, float *lse)
{
    const problem_spec *s = &in->spec;
    const size_t size = dtype_size(s->o_dtype), row_bytes = (size_t)s->dv * size;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t i = 0; i < problem_length_q(s, b); i++)
            for (int64_t h = 0; h < s->heads_q; h++) {
                const int64_t from = input_offset(&in->problem.o_stride, in->tensors.cu_seqlens_q, b, i, h);
                const int64_t row = input_row(in, b, i);
                memcpy(o + (size_t)(row * s->heads_q + h) * row_bytes,
                       (const char *)in->tensors.o + (size_t)from * size, row_bytes);
                const int64_t lse_row = s->varlen ? h * in->rows + row : (b * s->heads_q + h) * s->lq + i;
                lse[lse_row] = in->tensors.lse[input_lse_offset(in, b, i, h)];
            }
}

static int write_tensors(const char *path, const subject *s, const measurement *m, const void *o, const float *lse,
                         fault *f)
{
    const problem_spec *p = &s->in.spec;
    static const st_dtype dtypes[] = {ST_F32, ST_F16, ST_BF16};
    st_output tensors[3] = {
        {"lse", ST_F32, 3, {p->batch, p->heads_q, p->lq}, lse},
        {"o", dtypes[p->o_dtype], 4, {p->batch, p->lq, p->heads_q, p->dv}, o},
        {"cu_seqlens_q", ST_I32, 1, {p->batch + 1}, s->in.tensors.cu_seqlens_q},
    };
    if (p->varlen) {
        tensors[0] = (st_output){"lse", ST_F32, 2, {p->heads_q, s->in.rows}, lse};
        tensors[1] = (st_output){"o", dtypes[p->o_dtype], 3, {s->in.rows, p->heads_q, p->dv}, o};
    }
    json_t *metadata = json_object();
    (void)json_object_set_new(metadata, "layout", json_string(p->varlen ? "thd" : "bshd"));
    (void)json_object_set_new(metadata, "policy", json_text(m->policy.text));
    (void)json_object_set_new(metadata, "problem", json_text(s->problem));
    const int code = st_write(path, tensors, p->varlen ? 3 : 2, metadata, f);
    json_decref(metadata);
    return code;
}

int output_write(const char *path, const subject *s, const measurement *m, fault *f)
{
    const problem_spec *p = &s->in.spec;
    const size_t rows = (size_t)s->in.rows * (size_t)p->heads_q;
    unsigned char *o = calloc(rows * (size_t)p->dv + 1, dtype_size(p->o_dtype));
    float *lse = calloc(rows + 1, sizeof *lse);
    int code = o && lse ? DONE : fault_no_memory(f);
    if (!code) {
        gather(&s->in, o, lse);
        code = write_tensors(path, s, m, o, lse, f);
    }
    free(o);
    free(lse);
    return code;
}
