/* What bench.py calls: one problem on tensors that PyTorch owns, [batch, head, token, d] in device memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <omp.h>

#include "tilelamp/tilelamp.h"

typedef struct {
    tlamp_plan *plan;
    void *workspace, *words;
    size_t workspace_bytes;
} gpubench;

#define EXPORT __attribute__((visibility("default")))
EXPORT gpubench *gpubench_open(int batch, int heads_q, int heads_k, int lq, int lk, int d, int causal, int percent);
EXPORT gpubench *gpubench_open_layout(int batch, int heads_q, int heads_k, int lq, int lk, int d, int causal,
                                      const char *layout, int percent);
EXPORT int gpubench_run(const gpubench *b, const void *q, const void *k, const void *v, void *o);
EXPORT void gpubench_close(gpubench *b);

static int report(const tlamp_error *err)
{
    fprintf(stderr, "gpubench: %s %s %s\n", tlamp_status_string(err->status), err->field, err->text);
    return 1;
}

/* The routing map of one head, shared by all; NULL where there is none. */
static void *upload_words(const tlamp_problem *p, tlamp_layout_kind kind, int percent, tlamp_error *err)
{
    tlamp_geometry geometry;
    tlamp_geometry_init(&geometry, sizeof geometry);
    geometry.seqlen_q = p->max_seqlen_q;
    geometry.seqlen_k = p->max_seqlen_k;
    geometry.mask = p->mask;
    tlamp_layout layout;
    tlamp_layout_init(&layout, sizeof layout);
    layout.kind = kind;
    layout.coverage = percent / 100.;
    const int64_t count = tlamp_layout_words(&geometry);
    uint64_t *words = malloc((size_t)count * 8);
    void *there = NULL;
    if (words && !tlamp_layout_build(&layout, &geometry, words, count, NULL, err)) {
        there = omp_target_alloc((size_t)count * 8, 0);
        if (there) (void)omp_target_memcpy(there, words, (size_t)count * 8, 0, 0, 0, omp_get_initial_device());
    }
    free(words);
    return there;
}

/* percent: of INT8. 0 is HIGH, 100 is INT8, between them ROUTED by row_rand. NULL, and a line on stderr, if that cannot be. */
gpubench *gpubench_open(int batch, int heads_q, int heads_k, int lq, int lk, int d, int causal, int percent)
{
    return gpubench_open_layout(batch, heads_q, heads_k, lq, lk, d, causal, "row_rand", percent);
}

/* The same with words of the named layout. */
gpubench *gpubench_open_layout(int batch, int heads_q, int heads_k, int lq, int lk, int d, int causal,
                               const char *layout, int percent)
{
    tlamp_error err = {.struct_size = sizeof err};
    tlamp_layout_kind kind = TLAMP_LAYOUT_ONE;
    while (kind < TLAMP_LAYOUT_SPTRANS_SCALED && strcmp(tlamp_layout_name(kind), layout) != 0) kind++;
    tlamp_policy policy;
    tlamp_policy_init(&policy, sizeof policy);
    policy.kind = percent == 0 ? TLAMP_POLICY_HIGH : percent == 100 ? TLAMP_POLICY_INT8 : TLAMP_POLICY_ROUTED;
    tlamp_problem p;
    tlamp_problem_init(&p, sizeof p);
    p.batch = batch;
    p.max_seqlen_q = lq;
    p.max_seqlen_k = lk;
    p.num_heads_q = heads_q;
    p.num_heads_k = heads_k;
    p.head_dim_qk = p.head_dim_v = d;
    p.q_dtype = p.k_dtype = p.v_dtype = p.o_dtype = TLAMP_F16;
    p.mask = causal ? TLAMP_MASK_CAUSAL : TLAMP_MASK_NONE;
    p.policy = &policy;
    gpubench *b = calloc(1, sizeof *b);
    if (!b) return NULL;
    if (tlamp_set_strides(&p, TLAMP_TENSOR_BHSD, &err) || tlamp_plan_create(&b->plan, &p, NULL, &err)) {
        (void)report(&err);
        free(b);
        return NULL;
    }
    b->workspace_bytes = tlamp_plan_workspace_size(b->plan, 1);
    b->workspace = omp_target_alloc(b->workspace_bytes, 0);
    if (policy.kind == TLAMP_POLICY_ROUTED) b->words = upload_words(&p, kind, percent, &err);
    return b;
}

int gpubench_run(const gpubench *b, const void *q, const void *k, const void *v, void *o)
{
    tlamp_error err = {.struct_size = sizeof err};
    tlamp_tensors t;
    tlamp_tensors_init(&t, sizeof t);
    t.q = q;
    t.k = k;
    t.v = v;
    t.o = o;
    t.words = b->words;
    t.words_stride_row = 1;
    tlamp_exec exec;
    tlamp_exec_init(&exec, sizeof exec);
    exec.memory = TLAMP_MEMORY_DEVICE;
    exec.device = 0;
    return tlamp_execute(b->plan, &t, &exec, b->workspace, b->workspace_bytes, &err) ? report(&err) : 0;
}

void gpubench_close(gpubench *b)
{
    omp_target_free(b->workspace, 0);
    if (b->words) omp_target_free(b->words, 0);
    tlamp_plan_destroy(b->plan);
    free(b);
}
