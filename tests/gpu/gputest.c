/* The device path against the double reference, for many shapes: device memory twice and host memory once must give the
 * same bits, also with NaN in all that is hidden, and those must be within the policy's bound. A plain program for a machine that has nothing but a driver.
 *
 * Usage: gputest [random cases, default 240]
 *        gputest small     each kernel a few times on short sequences: for sanitizers, which take their time
 * Exit code 77: there is no device. */
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tilelamp/tilelamp.h"

enum { MOST_BATCH = 300 };
enum { POISON_NONE, POISON_Q, POISON_K, POISON_V, POISON_KINDS };

/* What a case asks for beyond shape, policy and mask. */
enum {
    WINDOW = 1 << 0,
    VARLEN = 1 << 1,
    SEQUSED = 1 << 2,
    BOOL_MASK = 1 << 3,
    BIAS = 1 << 4,
    SOFTCAP = 1 << 5,
    ALIBI = 1 << 6,
    SINKS = 1 << 7,
    SCALE = 1 << 8,
    O_TYPE = 1 << 9,  /* an output type other than the inputs' */
    TILES = 1 << 10,  /* routing tiles and scale blocks other than 128 x 64 */
    TOKENS = 1 << 11, /* scales per token, or in f16 */
    SMOOTH = 1 << 12,
    STATE16 = 1 << 13,
    GAPS = 1 << 14,   /* rows that are not aligned to 16 bytes */
    SPLITS = 1 << 15, /* parts of the keys; automatic otherwise */
    VAST = 1 << 16,   /* logits of 2^28 and more, whose rounding is a matter of many units */
    CODES = 1 << 17,  /* K and V in INT8, with scales of the caller's: per token with TOKENS */
    FEATURES = 18
};

typedef struct {
    int64_t batch, lq, lk;                    /* lengths: the longest of packed sequences */
    int32_t heads_q, heads_k, d, dv, percent; /* INT8: 0 is HIGH, 100 is INT8, else ROUTED */
    tlamp_mask_kind mask;
    tlamp_tensor_layout layout;
    int32_t poison; /* a NaN in Q, K or V */
    int32_t bf16;
    int32_t features;
    uint32_t seed;
} test_case;

/* One array on the host; its copy on the device while a call runs there. */
typedef struct {
    void *data, *there;
    size_t bytes;
} array;

enum { Q, K, V, O, LSE, WORDS, MASK, BIAS_DATA, SLOPES, SINK_DATA, K_SCALE, V_SCALE, ARRAYS };

typedef struct {
    tlamp_policy policy;
    tlamp_problem problem;
    tlamp_tensors tensors; /* of host memory */
    array arrays[ARRAYS];
    int32_t cu_q[MOST_BATCH + 1], cu_k[MOST_BATCH + 1], used[MOST_BATCH], groups[MOST_BATCH];
} test_data;

static uint32_t state;

static double uniform(void) /* (-1, 1) */
{
    state = state * 1664525u + 1013904223u;
    return (double)(state >> 8) * 0x1p-23 - 1. + 0x1p-24;
}

static int64_t below(int64_t n) { return (int64_t)((uniform() + 1.) / 2. * (double)n); }

static void *allocate(int64_t count, size_t size)
{
    void *p = calloc((size_t)count + 1, size);
    if (!p) abort();
    return p;
}

static uint16_t half_of(double x, int bf16) { return bf16 ? tlamp_f32_to_bf16((float)x) : tlamp_f32_to_f16((float)x); }

static void *new_array(test_data *t, int which, int64_t count, size_t size)
{
    t->arrays[which].bytes = (size_t)count * size;
    return t->arrays[which].data = allocate(count, size);
}

static void must(tlamp_status s, const tlamp_error *err)
{
    if (!s) return;
    printf("%s: %s %s\n", tlamp_status_string(s), err->field, err->text);
    exit(1);
}

/* ------------------------------------------------------------------------------------------------ one case */

static const char *name_of(const test_case *c)
{
    static char name[400];
    static const char *const masks[] = {"", " causal", " causal-tl"}, *const poisons[] = {"", " NaN in q", " NaN in k",
                                                                                          " NaN in v"};
    static const char *const features[FEATURES] = {"window", "varlen",  "sequsedk", "mask",   "bias",  "softcap",
                                                   "alibi",  "sinks",   "scale",    "otype",  "tiles", "tokens",
                                                   "smooth", "state16", "gaps",     "splits", "vast",  "codes"};
    int n = snprintf(name, sizeof name, "b%d hq%d hk%d q%d k%d d%d dv%d %s%s %s int8:%d%%%s seed:%u", (int)c->batch,
                     (int)c->heads_q, (int)c->heads_k, (int)c->lq, (int)c->lk, (int)c->d, (int)c->dv,
                     c->bf16 ? "bf16" : "f16", masks[c->mask], c->layout == TLAMP_TENSOR_BSHD ? "bshd" : "bhsd",
                     (int)c->percent, poisons[c->poison], c->seed);
    for (int i = 0; i < FEATURES; i++)
        if (c->features >> i & 1) n += snprintf(name + n, sizeof name - (size_t)n, " %s", features[i]);
    return name;
}

static int has(const test_case *c, int feature) { return (c->features & feature) != 0; }

static void set_lengths(test_data *t, const test_case *c)
{
    tlamp_problem *p = &t->problem;
    p->batch = c->batch;
    p->max_seqlen_q = c->lq;
    p->max_seqlen_k = c->lk;
    for (int64_t b = 0; b < c->batch; b++) {
        t->cu_q[b + 1] = t->cu_q[b] + (int32_t)(b == 0 ? c->lq : below(c->lq + 1));
        t->cu_k[b + 1] = t->cu_k[b] + (int32_t)(b == 0 ? c->lk : below(c->lk + 1));
        const int64_t keys = has(c, VARLEN) ? t->cu_k[b + 1] - t->cu_k[b] : c->lk;
        t->used[b] = (int32_t)below(keys + 1);
    }
    if (has(c, VARLEN)) {
        p->varlen = 1;
        p->total_q = t->cu_q[c->batch];
        p->total_k = t->cu_k[c->batch];
        t->tensors.cu_seqlens_q = t->cu_q;
        t->tensors.cu_seqlens_k = t->cu_k;
    }
    p->has_seqused_k = has(c, SEQUSED);
    if (p->has_seqused_k) t->tensors.seqused_k = t->used;
}

static int64_t lq_of(const test_data *t, int64_t b)
{
    return t->problem.varlen ? t->cu_q[b + 1] - t->cu_q[b] : t->problem.max_seqlen_q;
}

/* laid out; used: those that count */
static int64_t lk_of(const test_data *t, int64_t b, int used)
{
    if (used && t->problem.has_seqused_k) return t->used[b];
    return t->problem.varlen ? t->cu_k[b + 1] - t->cu_k[b] : t->problem.max_seqlen_k;
}

/* Strides of a tensor whose rows lie `pitch` elements apart; how many elements it spans. */
static int64_t set_stride(tlamp_strides *s, const test_case *c, int64_t batch, int64_t seq, int64_t heads,
                          int64_t pitch)
{
    const int head_first = c->layout == TLAMP_TENSOR_BHSD && !has(c, VARLEN);
    *s = (tlamp_strides){seq * heads * pitch, head_first ? pitch : heads * pitch, head_first ? seq * pitch : pitch, 1};
    return batch * seq * heads * pitch;
}

static int64_t at_of(const tlamp_strides *s, const test_data *t, int64_t b, int64_t i, int64_t h, const int32_t *cu)
{
    return (t->problem.varlen ? cu[b] * s->seq : b * s->batch) + i * s->seq + h * s->head;
}

/* Scales of the caller's before sequence b, and which of them token j of it has. */
static int64_t scale_of(const test_data *t, int64_t b, int64_t j)
{
    const int64_t each = t->policy.scales == TLAMP_SCALES_TOKEN ? 1 : t->policy.quant_block_k;
    int64_t before = 0;
    for (int64_t i = 0; i < b; i++) before += (lk_of(t, i, 0) + each - 1) / each;
    return before + j / each;
}

static void set_codes(test_data *t, const test_case *c, int64_t k, int64_t v)
{
    tlamp_problem *p = &t->problem;
    const int64_t scales = scale_of(t, c->batch, 0) * c->heads_k, counts[2] = {k, v};
    p->k_dtype = p->v_dtype = TLAMP_INT8;
    for (int x = 0; x < 2; x++) {
        int8_t *codes = new_array(t, K + x, counts[x], 1);
        for (int64_t i = 0; i < counts[x]; i++) codes[i] = (int8_t)(below(255) - 127);
        float *scale = new_array(t, K_SCALE + x, scales, 4);
        /* Values' may be far apart: rows that do not see the largest of a tile must not lose the others. */
        for (int64_t i = 0; i < scales; i++)
            scale[i] = (float)(0.012 + 0.01 * uniform()) * (x && c->seed % 3 == 0 ? exp2f((float)-below(31)) : 1.f);
        if (c->poison == POISON_K + x && scales) scale[below(scales)] = below(2) ? NAN : INFINITY;
    }
    t->tensors.k_scale = t->arrays[K_SCALE].data;
    t->tensors.v_scale = t->arrays[V_SCALE].data;
}

static void set_tensors(test_data *t, const test_case *c)
{
    tlamp_problem *p = &t->problem;
    const int64_t batch = has(c, VARLEN) ? 1 : c->batch, rows_q = has(c, VARLEN) ? p->total_q : c->lq;
    const int64_t rows_k = has(c, VARLEN) ? p->total_k : c->lk, gap = has(c, GAPS) ? 3 : 0;
    const tlamp_dtype half = c->bf16 ? TLAMP_BF16 : TLAMP_F16;
    p->num_heads_q = c->heads_q;
    p->num_heads_k = c->heads_k;
    p->head_dim_qk = c->d;
    p->head_dim_v = c->dv;
    p->q_dtype = p->k_dtype = p->v_dtype = half;
    p->o_dtype = !has(c, O_TYPE) ? half : below(2) ? TLAMP_F32 : c->bf16 ? TLAMP_F16 : TLAMP_BF16;
    const size_t o_size = p->o_dtype == TLAMP_F32 ? 4 : 2;
    const int64_t q = set_stride(&p->q_stride, c, batch, rows_q, c->heads_q, c->d + gap);
    const int64_t k = set_stride(&p->k_stride, c, batch, rows_k, c->heads_k, c->d + gap);
    const int64_t v = set_stride(&p->v_stride, c, batch, rows_k, c->heads_k, c->dv + gap);
    const int64_t o = set_stride(&p->o_stride, c, batch, rows_q, c->heads_q, c->dv + gap);
    p->lse_stride = (tlamp_lse_strides){c->heads_q * rows_q, rows_q, 1};
    const int64_t counts[3] = {q, k, v};
    for (int x = 0; x < (has(c, CODES) ? 1 : 3); x++) { /* gaps hold NaN */
        uint16_t *to = new_array(t, Q + x, counts[x], 2);
        const int64_t d = x < 2 ? c->d : c->dv;
        const double scale = x < 2 && has(c, VAST) ? 15000. : 1.2;
        for (int64_t i = 0; i < counts[x]; i++)
            to[i] = i % (d + gap) < d ? half_of((uniform() + uniform() + uniform()) * scale, c->bf16) : 0x7fff;
        if (c->poison == POISON_Q + x && counts[x]) to[below(counts[x] / (d + gap)) * (d + gap) + below(d)] = 0x7fff;
    }
    if (has(c, CODES)) set_codes(t, c, k, v);
    (void)new_array(t, O, o, o_size);
    (void)new_array(t, LSE, batch * c->heads_q * rows_q, 4);
    t->tensors.q = t->arrays[Q].data;
    t->tensors.k = t->arrays[K].data;
    t->tensors.v = t->arrays[V].data;
}

static void set_scores(test_data *t, const test_case *c)
{
    tlamp_problem *p = &t->problem;
    p->mask = c->mask;
    if (has(c, WINDOW)) {
        p->window_left = below(3) ? below(c->lk + 1) : -1;
        p->window_right = below(3) ? below(c->lk / 2 + 1) : -1;
    }
    if (has(c, SOFTCAP)) p->softcap = below(2) ? 3.f : 60.f;
    if (has(c, SCALE)) p->softmax_scale = 0.21f;
    /* Scores [batch, head, q, k], some dimensions broadcast; k may have a stride of 2. */
    const int64_t wide = 1 + below(2), hq = c->heads_q;
    tlamp_score_strides s = {hq * c->lq * c->lk * wide, c->lq * c->lk * wide, c->lk * wide, wide};
    const int64_t count = c->batch * s.batch;
    if (below(3) == 0) s.head = 0;
    if (below(3) == 0) s.batch = 0;
    if (below(4) == 0) s.q = 0;
    if (has(c, BOOL_MASK)) {
        uint8_t *m = new_array(t, MASK, count, 1);
        for (int64_t i = 0; i < count; i++) m[i] = below(3) ? (uint8_t)(1 + below(200)) : 0;
        p->has_bool_mask = 1;
        p->bool_mask_stride = s;
        t->tensors.bool_mask = m;
    }
    if (has(c, BIAS)) {
        p->has_bias = 1;
        p->bias_dtype = (tlamp_dtype)below(3);
        p->bias_stride = s;
        const size_t size = p->bias_dtype == TLAMP_F32 ? 4 : 2;
        unsigned char *m = new_array(t, BIAS_DATA, count, size);
        int low = 0; /* in some rows every finite bias is as low as may be: logits in log2 units would overflow */
        for (int64_t i = 0; i < count; i++) {
            if (i % (c->lk * wide) == 0) low = !has(c, STATE16) && below(6) == 0;
            const float x = !below(6) ? -INFINITY : low ? -0x1.f8p127f : (float)uniform();
            const uint16_t h = p->bias_dtype == TLAMP_BF16 ? tlamp_f32_to_bf16(x) : tlamp_f32_to_f16(x);
            memcpy(m + (size_t)i * size, size == 4 ? (const void *)&x : (const void *)&h, size);
        }
        t->tensors.bias = m;
    }
    if (has(c, ALIBI)) {
        float *m = new_array(t, SLOPES, c->batch * hq, 4);
        for (int64_t i = 0; i < c->batch * hq; i++) m[i] = (float)(0.02 + 0.02 * uniform());
        p->has_alibi = 1;
        p->alibi_batch_stride = below(2) ? hq : 0;
        t->tensors.alibi_slopes = m;
    }
    if (has(c, SINKS)) {
        float *m = new_array(t, SINK_DATA, hq, 4);
        for (int64_t i = 0; i < hq; i++) m[i] = (float)uniform();
        p->has_sinks = 1;
        t->tensors.sinks = m;
    }
}

/* The path that is plain C, which does not split keys. */
static int is_portable(void)
{
    const char *isa = getenv("TLAMP_MAX_ISA");
    return isa && strcmp(isa, "scalar") == 0;
}

static void set_policy(test_data *t, const test_case *c)
{
    tlamp_policy *y = &t->policy;
    tlamp_policy_init(y, sizeof *y);
    y->kind = c->percent == 0 ? TLAMP_POLICY_HIGH : c->percent == 100 ? TLAMP_POLICY_INT8 : TLAMP_POLICY_ROUTED;
    if (has(c, TILES)) {
        static const int32_t rows[] = {16, 32, 64, 128, 256}, keys[] = {16, 32, 64, 128, 192};
        y->block_m = rows[below(5)];
        y->block_n = keys[below(5)];
        y->quant_block_q = 128 * (1 + (int32_t)below(3));
        y->quant_block_k = 64 * (1 + (int32_t)below(3));
    }
    if (has(c, TOKENS)) y->scales = below(2) ? TLAMP_SCALES_TOKEN : TLAMP_SCALES_BLOCK_F16;
    y->smooth_k = has(c, SMOOTH);
    y->state = has(c, STATE16) ? TLAMP_STATE_F16 : TLAMP_STATE_F32;
    if (has(c, SPLITS) && !has(c, STATE16) && !is_portable()) t->problem.num_splits = 1 + (int32_t)below(9);
    t->problem.policy = y;
}

/* Random bits: a map for every KV head of every sequence, one group per tile or a few. */
static void set_words(test_data *t, const test_case *c)
{
    const int32_t block_m = t->policy.block_m, block_n = t->policy.block_n;
    int64_t rows = 0, each = 0, words = 1;
    if (t->policy.kind != TLAMP_POLICY_ROUTED) return;
    for (int64_t b = 0; b < c->batch; b++) {
        const int64_t lk = lk_of(t, b, 0), here = (lq_of(t, b) + block_m - 1) / block_m;
        t->groups[b] = tlamp_auto_group(lk, block_n);
        if (has(c, TILES)) t->groups[b] = 1 + (int32_t)below(2);
        const int64_t groups = (lk + (int64_t)block_n * t->groups[b] - 1) / ((int64_t)block_n * t->groups[b]);
        words = (groups + 63) / 64 > words ? (groups + 63) / 64 : words;
        rows += here;
        each = here > each ? here : each;
    }
    if (has(c, TILES)) t->tensors.groups = t->groups;
    t->problem.words_per_row = (int32_t)words;
    if (!has(c, VARLEN)) rows = each * c->batch;
    uint64_t *w = new_array(t, WORDS, rows * c->heads_k * words, 8);
    for (int64_t i = 0; i < rows * c->heads_k * words * 64; i++)
        w[i / 64] |= (uint64_t)(below(100) < c->percent) << (i % 64);
    t->tensors.words = w;
    t->tensors.words_stride_row = words;
    t->tensors.words_stride_head = (has(c, VARLEN) ? rows : each) * words;
    t->tensors.words_stride_batch = each * c->heads_k * words;
}

static void make_data(test_data *t, const test_case *c)
{
    *t = (test_data){.problem = {0}};
    tlamp_problem_init(&t->problem, sizeof t->problem);
    tlamp_tensors_init(&t->tensors, sizeof t->tensors);
    state = c->seed;
    set_policy(t, c);
    set_lengths(t, c);
    set_tensors(t, c);
    set_scores(t, c);
    set_words(t, c);
}

static void free_data(test_data *t)
{
    for (int i = 0; i < ARRAYS; i++) free(t->arrays[i].data);
}

static void to_device(array *a)
{
    if (!a->data) return;
    a->there = omp_target_alloc(a->bytes + 16, 0);
    if (!a->there || omp_target_memcpy(a->there, a->data, a->bytes, 0, 0, 0, omp_get_initial_device())) abort();
}

static void from_device(void *to, const array *a)
{
    if (omp_target_memcpy(to, a->there, a->bytes, 0, 0, omp_get_initial_device(), 0)) abort();
}

/* Through a plan, in a workspace of exactly its size, which holds NaN before; what lies behind it is nobody's. Was it left alone? */
static int execute_in_workspace(const tlamp_problem *p, const tlamp_tensors *x, const tlamp_exec *exec)
{
    enum { BEHIND = 4096 };
    tlamp_error err = {.struct_size = sizeof err};
    tlamp_plan *plan = NULL;
    must(tlamp_plan_create(&plan, p, NULL, &err), &err);
    const size_t bytes = tlamp_plan_device_workspace_size(plan);
    const int host = omp_get_initial_device();
    unsigned char *here = allocate((int64_t)bytes + BEHIND, 1);
    void *there = omp_target_alloc(bytes + BEHIND, 0);
    memset(here, 0xff, bytes + BEHIND);
    if (!there || omp_target_memcpy(there, here, bytes + BEHIND, 0, 0, 0, host)) abort();
    must(tlamp_execute(plan, x, exec, there, bytes, &err), &err);
    if (omp_target_memcpy(here, there, BEHIND, 0, bytes, host, 0)) abort();
    int left_alone = 1;
    for (int i = 0; i < BEHIND; i++) left_alone &= here[i] == 0xff;
    omp_target_free(there, 0);
    tlamp_plan_destroy(plan);
    free(here);
    return left_alone;
}

/* Into o and lse on the host, which hold garbage before; workspace: in one of exactly the size it should have, which the call
 * may allocate itself otherwise. 0: it wrote behind that. */
static int run_case(test_data *t, tlamp_memory memory, int workspace, void *o, void *lse)
{
    int ok = 1;
    tlamp_error err = {.struct_size = sizeof err};
    tlamp_tensors x = t->tensors;
    tlamp_exec exec;
    tlamp_exec_init(&exec, sizeof exec);
    exec.device = 0;
    exec.memory = memory;
    memset(o, 0xa5, t->arrays[O].bytes);
    memset(lse, 0xa5, t->arrays[LSE].bytes);
    x.o = o;
    x.lse = lse;
    if (memory == TLAMP_MEMORY_HOST) {
        must(tlamp_attention(&t->problem, &x, &exec, &err), &err);
        return ok;
    }
    memset(t->arrays[O].data, 0xa5, t->arrays[O].bytes);
    memset(t->arrays[LSE].data, 0xa5, t->arrays[LSE].bytes);
    for (int i = 0; i < ARRAYS; i++) to_device(&t->arrays[i]);
    x.q = t->arrays[Q].there;
    x.k = t->arrays[K].there;
    x.v = t->arrays[V].there;
    x.o = t->arrays[O].there;
    x.lse = t->arrays[LSE].there;
    x.words = t->arrays[WORDS].there;
    x.bool_mask = t->arrays[MASK].there;
    x.bias = t->arrays[BIAS_DATA].there;
    x.alibi_slopes = t->arrays[SLOPES].there;
    x.sinks = t->arrays[SINK_DATA].there;
    x.k_scale = t->arrays[K_SCALE].there;
    x.v_scale = t->arrays[V_SCALE].there;
    if (workspace)
        ok = execute_in_workspace(&t->problem, &x, &exec);
    else
        must(tlamp_attention(&t->problem, &x, &exec, &err), &err);
    from_device(o, &t->arrays[O]);
    from_device(lse, &t->arrays[LSE]);
    for (int i = 0; i < ARRAYS; i++) {
        if (t->arrays[i].there) omp_target_free(t->arrays[i].there, 0);
        t->arrays[i].there = NULL;
    }
    return ok;
}

/* ------------------------------------------------------------------------------------------------ what is hidden */

static float bias_of(const test_data *t, int64_t at)
{
    const void *m = t->arrays[BIAS_DATA].data;
    if (t->problem.bias_dtype == TLAMP_F32) return ((const float *)m)[at];
    const uint16_t h = ((const uint16_t *)m)[at];
    return t->problem.bias_dtype == TLAMP_F16 ? tlamp_f16_to_f32(h) : tlamp_bf16_to_f32(h);
}

static int sees(const test_data *t, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const tlamp_problem *p = &t->problem;
    const int64_t lk = lk_of(t, b, 1);
    const int64_t at = i + (p->mask == TLAMP_MASK_CAUSAL_TOP_LEFT ? 0 : lk - lq_of(t, b));
    if (j >= lk || (p->mask != TLAMP_MASK_NONE && j > at)) return 0;
    if ((p->window_left >= 0 && j < at - p->window_left) || (p->window_right >= 0 && j > at + p->window_right))
        return 0;
    const tlamp_score_strides *m = &p->bool_mask_stride, *a = &p->bias_stride;
    if (p->has_bool_mask && !t->tensors.bool_mask[b * m->batch + h * m->head + i * m->q + j * m->k]) return 0;
    return !p->has_bias || !isinf(bias_of(t, b * a->batch + h * a->head + i * a->q + j * a->k));
}

/* With NaN; or with Inf or a large number, where a NaN would be ignored. */
enum { WITH_NAN, WITH_INF, WITH_LARGE, SPOILS };

static void spoil(uint16_t *row, int64_t n, int with, int bf16)
{
    const uint16_t inf = bf16 ? 0x7f80 : 0x7c00;
    for (int64_t e = 0; e < n; e++) row[e] = with == WITH_NAN ? 0x7fff : (uint16_t)(with == WITH_INF ? inf : inf - 1);
}

/* `n` channels of key or value j from `first` on; of codes all, by their scale, if it is theirs alone. */
static void spoil_token(test_data *t, int which, int64_t b, int64_t j, int64_t hk, int64_t first, int64_t n, int with)
{
    const tlamp_problem *p = &t->problem;
    const tlamp_strides *s = which == K ? &p->k_stride : &p->v_stride;
    if (p->k_dtype != TLAMP_INT8)
        spoil((uint16_t *)t->arrays[which].data + at_of(s, t, b, j, hk, t->cu_k) + first, n, with,
              p->k_dtype == TLAMP_BF16);
    else if (t->policy.scales == TLAMP_SCALES_TOKEN)
        ((float *)t->arrays[which == K ? K_SCALE : V_SCALE].data)[scale_of(t, b, j) * p->num_heads_k + hk] =
            with == WITH_NAN   ? NAN
            : with == WITH_INF ? INFINITY
                               : 1e38f;
}

/* NaN into every query that sees nothing and every key and value that nothing sees. */
static void spoil_hidden(test_data *t)
{
    const tlamp_problem *p = &t->problem;
    const int64_t group = p->num_heads_q / p->num_heads_k;
    uint16_t *q = t->arrays[Q].data;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t hk = 0; hk < p->num_heads_k; hk++) {
            const int64_t lq = lq_of(t, b), lk = lk_of(t, b, 0);
            unsigned char *seen = allocate(lk, 1);
            for (int64_t h = hk * group; h < (hk + 1) * group; h++)
                for (int64_t i = 0; i < lq; i++) {
                    int any = 0;
                    for (int64_t j = 0; j < lk; j++)
                        if (sees(t, b, h, i, j)) any = seen[j] = 1;
                    if (!any) spoil(q + at_of(&p->q_stride, t, b, i, h, t->cu_q), p->head_dim_qk, WITH_NAN, 0);
                }
            for (int64_t j = 0; j < lk; j++) {
                if (seen[j]) continue;
                spoil_token(t, K, b, j, hk, 0, p->head_dim_qk, WITH_NAN);
                spoil_token(t, V, b, j, hk, 0, p->head_dim_v, WITH_NAN);
            }
            free(seen);
        }
}

/* ------------------------------------------------------------------------------------------------ against the reference */

typedef struct {
    double o, lse; /* error / bound */
} ratios;

/* What P in 16 bits adds to the bound of a policy with f32 P: half an ulp of every weight, or half the smallest subnormal.
 * The sum of weights is at least 1. And tensor cores truncate where f32 rounds, and decoding joins states of warps and parts
 * where the bound may count none: twice the bound. */
static double allowed(double bound, double abs_pv, const test_case *c)
{
    return 2. * bound + (c->bf16 ? 0x1p-8 : 0x1p-11) * abs_pv * 1.01 + (double)c->lk * 0x1p-25 * 4.;
}

static int is_worse(double *ratio, double x, double reference, double allowed)
{
    if (isnan(reference) || isinf(reference)) return isnan(reference) ? !isnan(x) : x != reference;
    const double r = fabs(x - reference) / (allowed > 0 ? allowed : 1e-30);
    if (r > *ratio) *ratio = r;
    return !(r <= 1.);
}

static double output_of(const test_data *t, const void *o, int64_t at)
{
    if (t->problem.o_dtype == TLAMP_F32) return (double)((const float *)o)[at];
    const uint16_t h = ((const uint16_t *)o)[at];
    return (double)(t->problem.o_dtype == TLAMP_F16 ? tlamp_f16_to_f32(h) : tlamp_bf16_to_f32(h));
}

static int64_t compare(const test_case *c, const test_data *t, const void *o, const float *lse, ratios *worst)
{
    const tlamp_problem *p = &t->problem;
    tlamp_error err = {.struct_size = sizeof err};
    tlamp_reference_outputs r = {.struct_size = sizeof r};
    const int64_t rows = p->varlen ? p->total_q : c->batch * c->lq, elements = rows * c->heads_q * c->dv;
    r.o = allocate(elements, 8);
    r.o_bound = allocate(elements, 8);
    r.abs_pv = allocate(elements, 8);
    r.lse = allocate(rows * c->heads_q, 8);
    r.lse_bound = allocate(rows * c->heads_q, 8);
    tlamp_exec exec;
    tlamp_exec_init(&exec, sizeof exec);
    must(tlamp_reference(p, &t->tensors, &r, &exec, &err), &err);
    int64_t bad = 0, bad_lse = 0, first = -1;
    double first_value = 0, first_truth = 0, first_allowed = 0;
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t h = 0; h < c->heads_q; h++)
            for (int64_t i = 0; i < lq_of(t, b); i++) {
                const int64_t row = (p->varlen ? t->cu_q[b] : b * c->lq) + i, l = h * rows + row;
                const int64_t lse_at = (p->varlen ? 0 : b * p->lse_stride.batch) + h * p->lse_stride.head +
                                       (p->varlen ? row : i) * p->lse_stride.seq;
                bad_lse += is_worse(&worst->lse, (double)lse[lse_at], r.lse[l],
                                    r.lse_bound[l] * 2. + 0x1p-20 * (1. + fabs(r.lse[l])));
                const int64_t o_at = at_of(&p->o_stride, t, b, i, h, t->cu_q);
                for (int64_t e = 0; e < c->dv; e++) {
                    const int64_t at = (row * c->heads_q + h) * c->dv + e;
                    const double limit = allowed(r.o_bound[at], r.abs_pv[at], c), value = output_of(t, o, o_at + e);
                    if (!is_worse(&worst->o, value, r.o[at], limit)) continue;
                    if (!bad++ || first < 0) {
                        first = at;
                        first_value = value;
                        first_truth = r.o[at];
                        first_allowed = limit;
                    }
                }
            }
    if (bad || bad_lse)
        printf("FAIL %s\n     %lld of %lld elements, %lld of %lld LSE out of bound; o[%lld] is %.6g, should be %.6g +- "
               "%.2g\n",
               name_of(c), (long long)bad, (long long)elements, (long long)bad_lse, (long long)(rows * c->heads_q),
               (long long)first, first_value, first_truth, first_allowed);
    free(r.o);
    free(r.o_bound);
    free(r.abs_pv);
    free(r.lse);
    free(r.lse_bound);
    return bad + bad_lse;
}

/* A NaN in one value, and under HIGH in one key: rows that do not see it keep their bits. o and lse: of the run without. */
static int leaks(const test_case *c, test_data *t, const unsigned char *o, const unsigned char *lse)
{
    const tlamp_problem *p = &t->problem;
    const int64_t b = below(c->batch), hk = below(c->heads_k), lk = lk_of(t, b, 0), j = below(lk),
                  size = p->o_dtype == TLAMP_F32 ? 4 : 2;
    const int64_t group = c->heads_q / c->heads_k, rows = lq_of(t, b);
    if (lk == 0 || rows == 0) return 0;
    const int with = (int)(c->seed % SPOILS);
    spoil_token(t, V, b, j, hk, below(c->dv), 1, with);
    if (c->percent == 0) spoil_token(t, K, b, j, hk, 0, 1, with);
    unsigned char *o_now = allocate((int64_t)t->arrays[O].bytes, 1),
                  *lse_now = allocate((int64_t)t->arrays[LSE].bytes, 1);
    (void)run_case(t, TLAMP_MEMORY_DEVICE, 0, o_now, lse_now);
    int bad = 0;
    for (int64_t h = hk * group; h < (hk + 1) * group; h++)
        for (int64_t i = 0; i < rows; i++) {
            const int64_t at = at_of(&p->o_stride, t, b, i, h, t->cu_q) * size;
            const int64_t l = ((p->varlen ? t->cu_q[b] + i : b * p->lse_stride.batch + i) + h * p->lse_stride.head) * 4;
            if (sees(t, b, h, i, j)) continue;
            bad |= memcmp(o + at, o_now + at, (size_t)(c->dv * size)) != 0 || memcmp(lse + l, lse_now + l, 4) != 0;
        }
    free(o_now);
    free(lse_now);
    if (bad)
        printf("FAIL %s\n     a NaN, Inf or large number in key or value %lld reaches rows that do not see it\n",
               name_of(c), (long long)j);
    return bad;
}

/* Does it go to a general kernel whatever the rest of the case says? */
static int is_general(const test_case *c)
{
    return (c->features & (O_TYPE | TOKENS | SMOOTH)) != 0 || c->d % 8 || c->dv % 8;
}

/* Quantised on the fly: the bits of once, where that runs in a general kernel, too. o and lse: of the run with codes made
 * once. */
static int test_fly(const test_case *c, test_data *t, const void *o, const void *lse, ratios *worst)
{
    void *o_fly = allocate((int64_t)t->arrays[O].bytes, 1), *lse_fly = allocate((int64_t)t->arrays[LSE].bytes, 1);
    t->policy.quantise = TLAMP_QUANTISE_FLY;
    (void)run_case(t, TLAMP_MEMORY_DEVICE, 0, o_fly, lse_fly);
    int bad = 0;
    if (!is_general(c))
        bad = compare(c, t, o_fly, lse_fly, worst) != 0;
    else if (memcmp(o, o_fly, t->arrays[O].bytes) != 0 || memcmp(lse, lse_fly, t->arrays[LSE].bytes) != 0)
        bad = 1;
    if (bad) printf("FAIL %s\n     quantising on the fly differs\n", name_of(c));
    t->policy.quantise = TLAMP_QUANTISE_ONCE;
    free(o_fly);
    free(lse_fly);
    return bad;
}

/* What a run on the device counted, against the host's own run. */
static int counts_differ(const test_case *c, const test_data *t, const tlamp_counters *got)
{
    tlamp_error err = {.struct_size = sizeof err};
    tlamp_counters want = {.struct_size = sizeof want};
    tlamp_tensors x = t->tensors;
    x.o = allocate((int64_t)t->arrays[O].bytes, 1);
    x.lse = allocate((int64_t)t->arrays[LSE].bytes, 1);
    x.counters = &want;
    must(tlamp_attention(&t->problem, &x, NULL, &err), &err);
    /* The host counts a query whose block of rows meets an INT8 tile, even if it sees no key itself. */
    const int blind = has(c, WINDOW) || has(c, SEQUSED) || has(c, VARLEN) || c->lk < c->lq;
    if (c->percent < 100 || has(c, BOOL_MASK) || has(c, BIAS) || (blind && c->poison == POISON_Q))
        want.nonfinite_tokens = got->nonfinite_tokens;
    const int differ = memcmp(got, &want, sizeof want) != 0;
    if (differ)
        printf("FAIL %s\n     counters: %lld tiles, %lld INT8, %lld tokens left out; the host's: %lld, %lld, %lld\n",
               name_of(c), (long long)got->tiles, (long long)got->tiles_int8, (long long)got->nonfinite_tokens,
               (long long)want.tiles, (long long)want.tiles_int8, (long long)want.nonfinite_tokens);
    free(x.o);
    free(x.lse);
    return differ;
}

enum { RUNS = 3 };

static int test(const test_case *c, ratios *worst)
{
    static const char *const runs[RUNS] = {"", "the run in the caller's workspace, with counters,",
                                           "the run from host memory, with NaN in what is hidden,"};
    test_data t;
    make_data(&t, c);
    void *o[RUNS], *lse[RUNS];
    int bad = 0;
    for (int i = 0; i < RUNS; i++) {
        o[i] = allocate((int64_t)t.arrays[O].bytes, 1);
        lse[i] = allocate((int64_t)t.arrays[LSE].bytes, 1);
        if (i == 2) {
            bad |= compare(c, &t, o[0], lse[0], worst) != 0;
            if (c->percent) bad |= test_fly(c, &t, o[0], lse[0], worst);
            spoil_hidden(&t);
        }
        tlamp_counters counters = {.struct_size = sizeof counters};
        t.tensors.counters = i == 0 ? NULL : &counters;
        /* The copies of tensors with gaps have none, and another kernel may run them; codes in host memory, too. */
        if (!run_case(&t, i < 2 || has(c, GAPS | CODES) ? TLAMP_MEMORY_DEVICE : TLAMP_MEMORY_HOST, i == 1, o[i],
                      lse[i])) {
            printf("FAIL %s\n     it writes behind its workspace\n", name_of(c));
            bad = 1;
        }
        if (memcmp(o[0], o[i], t.arrays[O].bytes) != 0 || memcmp(lse[0], lse[i], t.arrays[LSE].bytes) != 0) {
            printf("FAIL %s\n     %s differs\n", name_of(c), runs[i]);
            bad = 1;
        }
        if (i == 1) bad |= counts_differ(c, &t, &counters);
        t.tensors.counters = NULL;
    }
    if (c->poison == POISON_NONE && c->batch) bad |= leaks(c, &t, o[0], lse[0]);
    for (int i = 0; i < RUNS; i++) {
        free(o[i]);
        free(lse[i]);
    }
    free_data(&t);
    return bad;
}

/* ------------------------------------------------------------------------------------------------ all */

/* Few queries and heads that share keys: nearly all for the decoding kernels. */
static test_case few_queries(test_case c)
{
    static const int32_t groups[] = {1, 2, 3, 4, 8, 16};
    c.batch = 1 + below(4);
    c.lq = below(2) ? 1 : 1 + below(16);
    c.lk = below(3) ? 1 + below(600) : 1 + below(6000);
    c.heads_k = 1 + (int32_t)below(3);
    c.heads_q = c.heads_k * groups[below(c.lk < 600 ? 6 : 4)];
    c.percent = 0;
    if (below(4) == 0) c.features |= VARLEN;
    if (below(3) == 0) c.features |= SEQUSED;
    if (below(3) == 0) c.features |= SPLITS;
    if (below(10) == 0)
        c.features |= GAPS;
    else if (below(3) == 0)
        c.features |= CODES | (below(2) ? TOKENS : 0) | (below(3) ? 0 : TILES);
    return c;
}

static test_case random_case(uint32_t seed)
{
    static const int64_t lengths[] = {1, 2, 17, 63, 64, 65, 127, 128, 129, 200, 256, 300};
    static const int32_t percents[] = {0, 50, 75, 100}, groups[] = {1, 1, 2, 4};
    state = seed * 2654435761u;
    (void)uniform();
    test_case c = {.seed = seed};
    c.batch = 1 + below(2);
    c.lq = lengths[below(12)];
    c.lk = lengths[below(12)];
    c.heads_k = 1 + (int32_t)below(2);
    c.heads_q = c.heads_k * groups[below(4)];
    c.d = c.dv = below(2) ? 64 : 128;
    c.percent = percents[below(4)];
    c.mask = (tlamp_mask_kind)below(3);
    c.layout = below(2) ? TLAMP_TENSOR_BSHD : TLAMP_TENSOR_BHSD;
    c.poison = below(3) ? POISON_NONE : 1 + (int32_t)below(POISON_KINDS - 1);
    c.bf16 = (int32_t)below(2);
    if (below(16) == 0) c.features = VAST;
    if (seed % 4 == 0) return few_queries(c);
    if (below(3) == 0) return c; /* the plain kernel */
    static const int32_t dims[] = {1, 8, 20, 32, 40, 64, 72, 80, 96, 112, 128, 160, 192, 200, 256};
    c.d = dims[below(15)];
    c.dv = below(2) ? c.d : dims[below(15)];
    c.batch = 1 + below(3);
    /* Half of them with nothing that only the general kernels know. */
    const int32_t any = O_TYPE | TILES | TOKENS | SMOOTH | GAPS | SPLITS, shaped = (int32_t)below(2);
    for (int i = 0; 1 << i < VAST; i++)
        if (below(5) == 0 && !(shaped && any >> i & 1)) c.features |= 1 << i;
    if (shaped) c.d = (c.d + 7) / 8 * 8;
    if (shaped) c.dv = (c.dv + 7) / 8 * 8;
    if (has(&c, STATE16)) c.features &= ~VAST; /* beyond what f16 holds */
    return c;
}

enum { GENERAL_CASES = 30, SMALL_CASES = GENERAL_CASES + 16 };

/* Case i of the small sweep: the kernels by type, head dimension and policy; what only the general ones run, in turn. */
static test_case small_case(int i)
{
    static const int32_t dims[] = {64, 128, 40, 96, 200},
                         features[] = {BIAS | SMOOTH, BOOL_MASK | SINKS, VARLEN | TOKENS | SPLITS, STATE16 | GAPS,
                                       WINDOW | TILES};
    enum { DIMS = 5 };
    const int which = i / 2 % DIMS, round = i / (2 * DIMS);
    if (i >= GENERAL_CASES) { /* decoding: 4 and 8 warps a block, parts and none, keys in 16 bits and in codes */
        static const int32_t few[] = {0, SPLITS, SEQUSED, VARLEN};
        const int n = i - GENERAL_CASES, many = n / 2 % 2, codes = n / 4 % 2;
        return (test_case){many ? 50 : 2,
                           n % 3 ? 1 : 6,
                           many ? 70 : 400,
                           8,
                           4,
                           n % 2 ? 64 : 128,
                           n % 2 ? 64 : 128,
                           0,
                           TLAMP_MASK_CAUSAL,
                           TLAMP_TENSOR_BSHD,
                           n % 3 == 0 ? POISON_V : POISON_NONE,
                           n / 8 % 2,
                           few[n % 4] | (codes ? CODES : 0),
                           (uint32_t)(1000 + i)};
    }
    test_case c = {1,
                   130,
                   150,
                   2,
                   1,
                   dims[which],
                   dims[which],
                   round % 2 ? 50 : 0,
                   TLAMP_MASK_CAUSAL,
                   TLAMP_TENSOR_BSHD,
                   which == 0 ? POISON_V : POISON_NONE,
                   i % 2,
                   0,
                   (uint32_t)(1000 + i)};
    if (which < 2 && round < 2) return c; /* the plain ones */
    c.features = features[(which + round) % 5];
    if (round >= 2) c.percent = 100;
    return c;
}

int main(int argc, char **argv)
{
    static const test_case picked[] = {
        {1, 130, 5000, 2, 1, 128, 128, 50, TLAMP_MASK_NONE, TLAMP_TENSOR_BSHD, POISON_NONE, 0, 0, 1},
        {1, 130, 5000, 2, 1, 64, 64, 75, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BHSD, POISON_NONE, 0, 0, 2},
        {1, 300, 12400, 1, 1, 128, 128, 75, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BSHD, POISON_NONE, 0, 0, 3},
        {1, 1024, 1024, 2, 2, 128, 128, 100, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BHSD, POISON_NONE, 0, 0, 4},
        {1, 1024, 1024, 2, 2, 128, 128, 0, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BHSD, POISON_NONE, 0, 0, 5},
        {1, 130, 0, 1, 1, 64, 64, 100, TLAMP_MASK_NONE, TLAMP_TENSOR_BSHD, POISON_NONE, 0, 0, 6},
        {1, 0, 130, 1, 1, 64, 64, 50, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BSHD, POISON_NONE, 0, 0, 7},
        {0, 130, 130, 1, 1, 128, 128, 0, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BSHD, POISON_NONE, 0, 0, 8},
        {1, 300, 5000, 2, 1, 96, 80, 50, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BSHD, POISON_NONE, 1, TILES | SMOOTH, 9},
        {3, 400, 700, 4, 2, 128, 128, 75, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BSHD, POISON_NONE, 1, VARLEN, 10},
        {2, 300, 300, 2, 1, 256, 256, 50, TLAMP_MASK_NONE, TLAMP_TENSOR_BHSD, POISON_V, 0, BIAS | SEQUSED, 11},
        {2, 300, 900, 2, 2, 64, 64, 100, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BHSD, POISON_K, 0, STATE16 | WINDOW, 12},
        {1, 130, 300, 2, 2, 128, 128, 0, TLAMP_MASK_CAUSAL_TOP_LEFT, TLAMP_TENSOR_BSHD, POISON_V, 1, SINKS, 13},
        {2, 0, 300, 2, 2, 72, 40, 50, TLAMP_MASK_NONE, TLAMP_TENSOR_BSHD, POISON_NONE, 0, VARLEN | SINKS, 14},
        {2, 70, 0, 2, 1, 72, 40, 100, TLAMP_MASK_NONE, TLAMP_TENSOR_BSHD, POISON_NONE, 0, SINKS, 15},
        /* decoding: keys are split, automatically or as asked */
        {2, 1, 9000, 8, 2, 128, 128, 0, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BSHD, POISON_NONE, 0, 0, 16},
        {1, 1, 70000, 4, 1, 64, 64, 0, TLAMP_MASK_NONE, TLAMP_TENSOR_BHSD, POISON_NONE, 1, 0, 25},
        {4, 7, 9000, 6, 3, 128, 128, 0, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BSHD, POISON_V, 1, SEQUSED, 26},
        {50, 2, 500, 6, 3, 64, 64, 0, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BHSD, POISON_K, 0, 0, 27}, /* many blocks */
        {7, 5, 5000, 24, 24, 128, 128, 0, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BSHD, POISON_V, 0, VARLEN | SEQUSED, 28},
        {300, 1, 40, 32, 16, 64, 64, 0, TLAMP_MASK_NONE, TLAMP_TENSOR_BSHD, POISON_NONE, 1, 0,
         29}, /* too many to join */
        {3, 16, 200, 64, 2, 128, 128, 0, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BSHD, POISON_Q, 1, SPLITS, 30},
        {2, 1, 9000, 8, 2, 128, 128, 0, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BSHD, POISON_NONE, 0, CODES, 31},
        {4, 7, 3000, 6, 3, 64, 64, 0, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BHSD, POISON_V, 1, CODES | TOKENS | SEQUSED, 32},
        {50, 2, 500, 6, 3, 64, 64, 0, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BHSD, POISON_K, 0, CODES | TOKENS, 33},
        {7, 5, 700, 24, 24, 128, 128, 0, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BSHD, POISON_NONE, 1, CODES | VARLEN, 34},
        {1, 4, 20000, 4, 1, 128, 128, 50, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BHSD, POISON_V, 1, 0, 17},
        {3, 16, 1500, 4, 4, 64, 64, 100, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BSHD, POISON_NONE, 0, SINKS | VARLEN, 18},
        {2, 1, 4100, 12, 3, 128, 128, 100, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BSHD, POISON_K, 1, SEQUSED, 22},
        {3, 1, 2500, 32, 2, 80, 64, 50, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BHSD, POISON_V, 0, TILES | SMOOTH | SEQUSED,
         23},
        {7, 1, 300, 32, 16, 64, 64, 0, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BSHD, POISON_Q, 0, 0, 24},
        {2, 3, 2000, 4, 2, 200, 72, 75, TLAMP_MASK_NONE, TLAMP_TENSOR_BSHD, POISON_V, 1, BOOL_MASK | SEQUSED, 19},
        {1, 140, 700, 2, 1, 96, 96, 50, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BSHD, POISON_V, 0, SPLITS | WINDOW | BIAS, 20},
        {1, 1, 30000, 2, 1, 64, 64, 0, TLAMP_MASK_NONE, TLAMP_TENSOR_BSHD, POISON_NONE, 0, SPLITS | O_TYPE, 21},
        {1, 300, 500, 2, 1, 128, 128, 0, TLAMP_MASK_NONE, TLAMP_TENSOR_BSHD, POISON_V, 0, VAST, 25},
        {2, 200, 333, 4, 2, 64, 64, 50, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BHSD, POISON_V, 1, VAST, 26},
        {1, 300, 500, 2, 1, 80, 96, 100, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BSHD, POISON_K, 0, VAST | WINDOW | SINKS, 27},
        {1, 300, 500, 2, 1, 128, 128, 0, TLAMP_MASK_NONE, TLAMP_TENSOR_BSHD, POISON_NONE, 0, VAST | BOOL_MASK, 28},
        {1, 70, 500, 2, 1, 64, 64, 0, TLAMP_MASK_NONE, TLAMP_TENSOR_BSHD, POISON_NONE, 0, VAST | ALIBI | SOFTCAP, 29},
        {1, 5, 3000, 2, 1, 128, 128, 0, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BSHD, POISON_NONE, 0, VAST, 30},
    };
    enum { PICKED = sizeof picked / sizeof picked[0] };
    if (tlamp_num_devices() == 0) {
        puts("skipped: no device that this library has code for");
        return 77;
    }
    const int small = argc > 1 && strcmp(argv[1], "small") == 0;
    const int count = small ? SMALL_CASES : PICKED + (argc > 1 ? atoi(argv[1]) : 240);
    ratios worst[101] = {{0, 0}};
    int failed = 0;
    for (int i = 0; i < count; i++) {
        const test_case c = small ? small_case(i) : i < PICKED ? picked[i] : random_case((uint32_t)(i - PICKED + 100));
        failed += test(&c, &worst[c.percent]);
        fflush(stdout);
    }
    for (int i = 0; i <= 100; i++)
        if (worst[i].o > 0 || worst[i].lse > 0)
            printf("int8 %3d %%: error / bound at most %.3f (o), %.3f (lse)\n", i, worst[i].o, worst[i].lse);
    printf("%d passed, %d failed\n", count - failed, failed);
    return failed != 0;
}
