/* What bench.py calls: one problem on tensors that PyTorch owns, in device memory: [batch, head, token, d], or of packed
 * sequences [token, head, d]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <omp.h>

#include "tilelamp/tilelamp.h"

/* As class Description in bench.py. */
typedef struct {
    int32_t batch, heads_q, heads_k, length, d, dv; /* length: of queries and keys; of the longest sequence if packed */
    int32_t queries;                                /* 0: as many as keys */
    int32_t codes;                                  /* k and v are INT8, with a scale per 64 tokens */
    int32_t bf16, causal, window_left, state_f16, bias; /* window_left -1: none; bias: f32, [1, 1, length, length] */
    int32_t percent; /* of INT8. 0 is HIGH, 100 is INT8, between them ROUTED by `layout` */
    float softcap;
    const char *layout;
    const int32_t *cu_seqlens; /* of queries and keys; NULL: dense */
} description;

typedef struct {
    tlamp_plan *plan;
    const int32_t *cu_seqlens;
    void *workspace, *words;
    size_t workspace_bytes;
} gpubench;

#define EXPORT __attribute__((visibility("default")))
EXPORT gpubench *gpubench_open(const description *is);
EXPORT int gpubench_run(const gpubench *b, const void *q, const void *k, const void *v, const float *k_scale,
                        const float *v_scale, const void *bias, void *o);
EXPORT void gpubench_close(gpubench *b);

static int report(const tlamp_error *err)
{
    fprintf(stderr, "gpubench: %s %s %s\n", tlamp_status_string(err->status), err->field, err->text);
    return 1;
}

static int64_t length_of(const description *is, int32_t b)
{
    return is->cu_seqlens ? is->cu_seqlens[b + 1] - is->cu_seqlens[b] : is->length;
}

static int64_t queries_of(const description *is, int32_t b) { return is->queries ? is->queries : length_of(is, b); }

static void set_geometry(tlamp_geometry *g, const description *is, int32_t b)
{
    tlamp_geometry_init(g, sizeof *g);
    g->seqlen_q = queries_of(is, b);
    g->seqlen_k = length_of(is, b);
    g->mask = is->causal ? TLAMP_MASK_CAUSAL : TLAMP_MASK_NONE;
}

/* The routing map of one head, shared by all; of each packed sequence, one after the other. NULL, and a line on stderr, if
 * that cannot be. */
static void *upload_words(const description *is)
{
    tlamp_error err = {.struct_size = sizeof err};
    tlamp_geometry geometry;
    tlamp_layout layout;
    tlamp_layout_init(&layout, sizeof layout);
    layout.kind = TLAMP_LAYOUT_ONE;
    while (layout.kind < TLAMP_LAYOUT_SPTRANS_SCALED && strcmp(tlamp_layout_name(layout.kind), is->layout) != 0)
        layout.kind++;
    layout.coverage = is->percent / 100.;
    const int32_t maps = is->cu_seqlens ? is->batch : 1;
    int64_t count = 0, at = 0;
    for (int32_t b = 0; b < maps; b++) {
        set_geometry(&geometry, is, b);
        count += tlamp_layout_words(&geometry);
    }
    uint64_t *words = malloc((size_t)count * 8);
    void *there = words ? omp_target_alloc((size_t)count * 8, 0) : NULL;
    int failed = !there;
    for (int32_t b = 0; b < maps && !failed; b++) {
        set_geometry(&geometry, is, b);
        const int64_t here = tlamp_layout_words(&geometry);
        failed = tlamp_layout_build(&layout, &geometry, words + at, here, NULL, &err) != TLAMP_OK;
        if (failed) (void)report(&err);
        at += here;
    }
    if (!failed) failed = omp_target_memcpy(there, words, (size_t)count * 8, 0, 0, 0, omp_get_initial_device());
    free(words);
    if (!failed) return there;
    if (there) omp_target_free(there, 0);
    return NULL;
}

/* NULL, and a line on stderr, if that cannot be. `is->cu_seqlens` must live as long. */
gpubench *gpubench_open(const description *is)
{
    tlamp_error err = {.struct_size = sizeof err};
    tlamp_policy policy;
    tlamp_policy_init(&policy, sizeof policy);
    policy.kind = is->percent == 0 ? TLAMP_POLICY_HIGH : is->percent == 100 ? TLAMP_POLICY_INT8 : TLAMP_POLICY_ROUTED;
    policy.state = is->state_f16 ? TLAMP_STATE_F16 : TLAMP_STATE_F32;
    tlamp_problem p;
    tlamp_problem_init(&p, sizeof p);
    p.batch = is->batch;
    p.max_seqlen_q = is->queries ? is->queries : is->length;
    p.max_seqlen_k = is->length;
    p.num_heads_q = is->heads_q;
    p.num_heads_k = is->heads_k;
    p.head_dim_qk = is->d;
    p.head_dim_v = is->dv;
    p.q_dtype = p.k_dtype = p.v_dtype = p.o_dtype = is->bf16 ? TLAMP_BF16 : TLAMP_F16;
    if (is->codes) p.k_dtype = p.v_dtype = TLAMP_INT8;
    p.mask = is->causal ? TLAMP_MASK_CAUSAL : TLAMP_MASK_NONE;
    p.window_left = is->window_left;
    p.softcap = is->softcap;
    p.has_bias = is->bias;
    p.bias_stride = (tlamp_score_strides){0, 0, is->length, 1};
    p.policy = &policy;
    if (is->cu_seqlens) {
        p.varlen = 1;
        p.total_q = p.total_k = is->cu_seqlens[is->batch];
    }
    gpubench *b = calloc(1, sizeof *b);
    if (!b) return NULL;
    if (tlamp_set_strides(&p, is->cu_seqlens ? TLAMP_TENSOR_THD : TLAMP_TENSOR_BHSD, &err) ||
        tlamp_plan_create(&b->plan, &p, NULL, &err)) {
        (void)report(&err);
        free(b);
        return NULL;
    }
    b->cu_seqlens = is->cu_seqlens;
    b->workspace_bytes = tlamp_plan_device_workspace_size(b->plan);
    b->workspace = omp_target_alloc(b->workspace_bytes, 0);
    if (policy.kind == TLAMP_POLICY_ROUTED && !(b->words = upload_words(is))) {
        gpubench_close(b);
        return NULL;
    }
    return b;
}

int gpubench_run(const gpubench *b, const void *q, const void *k, const void *v, const float *k_scale,
                 const float *v_scale, const void *bias, void *o)
{
    tlamp_error err = {.struct_size = sizeof err};
    tlamp_tensors t;
    tlamp_tensors_init(&t, sizeof t);
    t.q = q;
    t.k = k;
    t.v = v;
    t.o = o;
    t.k_scale = k_scale;
    t.v_scale = v_scale;
    t.bias = bias;
    t.cu_seqlens_q = t.cu_seqlens_k = b->cu_seqlens;
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
