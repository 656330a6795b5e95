/* B33: tlamp_merge works in place on a running state: every part of a sequence merged one after another gives the whole, with
 * any head dimension, and rows without keys are neutral. */
#include <math.h>
#include <string.h>

#include "support/conform.h"

enum { ROWS = 7, KEYS = 90, GAP = 3 };

/* Keys [first, end) of `whole` as a problem of their own. */
static void begin_part(trial *t, const setting *s, const trial *whole, int first, int end)
{
    const int64_t d = whole->in.spec.d, dv = whole->in.spec.dv;
    conform_begin(t, s, "q%d k%d d%d dv%d", (int)ROWS, end - first, (int)d, (int)dv);
    for (int64_t j = first; j < end; j++) {
        const int64_t k = input_offset(&whole->in.problem.k_stride, whole->in.tensors.cu_seqlens_k, 0, j, 0);
        const int64_t v = input_offset(&whole->in.problem.v_stride, whole->in.tensors.cu_seqlens_k, 0, j, 0);
        for (int64_t c = 0; c < d; c++) trial_set_k(t, 0, 0, j - first, c, tensor_get(whole->in.k, TLAMP_F32, k + c));
        for (int64_t c = 0; c < dv; c++) trial_set_v(t, 0, 0, j - first, c, tensor_get(whole->in.v, TLAMP_F32, v + c));
    }
}

/* A running state in guarded memory, its rows GAP apart. */
typedef struct state {
    guarded o, lse;
    int64_t stride, dv;
} state;

static float *rows_of(const state *a) { return (float *)(void *)a->o.data; }
static float *lse_of(const state *a) { return (float *)(void *)a->lse.data; }

static void state_begin(state *a, int64_t dv)
{
    *a = (state){.stride = dv + GAP, .dv = dv};
    guarded_resize(&a->o, (size_t)((ROWS - 1) * a->stride + dv) * 4);
    guarded_resize(&a->lse, ROWS * 4);
    memset(a->o.data, 0x5a, a->o.bytes);
    for (int i = 0; i < ROWS; i++) {
        lse_of(a)[i] = -INFINITY;
        for (int64_t c = 0; c < dv; c++) rows_of(a)[i * a->stride + c] = 0;
    }
}

static void state_end(state *a)
{
    for (int i = 0; i + 1 < ROWS; i++)
        for (int64_t c = a->dv * 4; c < a->stride * 4; c++)
            (void)expect(a->o.data[i * a->stride * 4 + c] == 0x5a, "wrote between the rows");
    (void)expect(guarded_is_intact(&a->o) && guarded_is_intact(&a->lse), "wrote before the state");
    guarded_free(&a->o);
    guarded_free(&a->lse);
}

static void merge_part(state *a, const trial *part)
{
    state b;
    state_begin(&b, a->dv);
    for (int i = 0; i < ROWS; i++) {
        lse_of(&b)[i] = (float)trial_lse(part, 0, 0, i);
        for (int64_t c = 0; c < a->dv; c++) rows_of(&b)[i * b.stride + c] = (float)trial_o(part, 0, 0, i, c);
    }
    (void)expect(tlamp_merge(ROWS, (int32_t)a->dv, rows_of(a), a->stride, lse_of(a), rows_of(&b), b.stride, lse_of(&b),
                             NULL) == TLAMP_OK,
                 "merge failed");
    state_end(&b);
}

static void parts(const setting *s, int d, int dv, const int *ends)
{
    trial whole;
    conform_begin(&whole, s, "q%d k%d d%d dv%d", (int)ROWS, (int)KEYS, d, dv);
    conform_verify(&whole);
    state a;
    state_begin(&a, dv);
    double lse_slack = 0, o_slack = 0;
    for (int i = 0, first = 0; first < KEYS; first = ends[i++]) {
        trial part;
        begin_part(&part, s, &whole, first, ends[i]);
        conform_verify(&part);
        merge_part(&a, &part);
        for (int row = 0; row < ROWS && ends[i] > first; row++) {
            lse_slack = fmax(lse_slack, trial_lse_bound(&part, 0, 0, row));
            for (int c = 0; c < dv; c++) o_slack = fmax(o_slack, trial_o_bound(&part, 0, 0, row, c));
        }
        conform_end(&part);
    }
    lse_slack += 4e-6;
    o_slack += 14 * lse_slack + 4e-6; /* a weight moves by at most the error of an LSE, and |v| < 7 */
    for (int i = 0; i < ROWS; i++) {
        expect_lse(&whole, 0, 0, i, (double)lse_of(&a)[i], lse_slack);
        for (int c = 0; c < dv; c++) expect_o(&whole, 0, 0, i, c, (double)rows_of(&a)[i * a.stride + c], o_slack);
    }
    state_end(&a);
    conform_end(&whole);
}

static void body(const setting *s)
{
    static const int halves[] = {45, 90}, thirds[] = {1, 64, 90}, with_empty[] = {0, 33, 33, 90};
    static const int dims[] = {1, 5, 8, 33, 72, 128};
    for (int i = 0; i < 6; i++) {
        parts(s, 16, dims[i], halves);
        parts(s, 16, dims[i], thirds);
        parts(s, dims[i], 7, with_empty);
    }
}

int main(void) { return conform(body); }
