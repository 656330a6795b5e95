/* Executions on a device: what it does not do, the memory it works in, the launches. Host code; the kernels are in
 * nvptx_*.c. */
#include "backend.h"

#include <omp.h>
#include <string.h>

#include "core/exp2.h"
#include "core/routing.h"
#include "nvptx.h"
#include "status.h"

/* ------------------------------------------------------------------------------------------------ what it runs */

#define UNSUPPORTED_IF(condition, field, text)                                                                         \
    do {                                                                                                               \
        if (condition) return tl_fail(err, TLAMP_UNSUPPORTED, field, "not built for devices: " text);                  \
    } while (0)

static tlamp_status check_policy(const tlamp_policy *policy, tlamp_error *err)
{
    UNSUPPORTED_IF(policy->kind > TLAMP_POLICY_ROUTED, "policy.kind", "anything but HIGH, INT8 and ROUTED");
    UNSUPPORTED_IF(policy->pv != TLAMP_PV_AUTO, "policy.pv", "P V other than AUTO, which is f16 with sums in f32");
    UNSUPPORTED_IF(policy->state != TLAMP_STATE_F32, "policy.state", "the f16 state");
    if (policy->kind == TLAMP_POLICY_HIGH) return TLAMP_OK;
    UNSUPPORTED_IF(policy->block_m != TL_DEVICE_ROWS, "policy.block_m", "routing tiles other than 128 x 64");
    UNSUPPORTED_IF(policy->block_n != TL_DEVICE_KEYS, "policy.block_n", "routing tiles other than 128 x 64");
    UNSUPPORTED_IF(policy->quant_block_q != TL_DEVICE_ROWS, "policy.quant_block_q", "scale blocks other than 128");
    UNSUPPORTED_IF(policy->quant_block_k != TL_DEVICE_KEYS, "policy.quant_block_k", "scale blocks other than 64");
    UNSUPPORTED_IF(policy->scales != TLAMP_SCALES_BLOCK, "policy.scales", "scales other than f32 per block");
    UNSUPPORTED_IF(policy->quantise != TLAMP_QUANTISE_ONCE, "policy.quantise", "quantising on the fly");
    UNSUPPORTED_IF(policy->smooth_k, "policy.smooth_k", "smoothing of keys");
    UNSUPPORTED_IF(policy->hadamard, "policy.hadamard", "the Hadamard rotation");
    return TLAMP_OK;
}

static tlamp_status check_problem(const tlamp_problem *p, tlamp_error *err)
{
    UNSUPPORTED_IF(p->q_dtype != TLAMP_F16, "q_dtype", "types other than f16");
    UNSUPPORTED_IF(p->k_dtype != TLAMP_F16, "k_dtype", "types other than f16");
    UNSUPPORTED_IF(p->v_dtype != TLAMP_F16, "v_dtype", "types other than f16");
    UNSUPPORTED_IF(p->o_dtype != TLAMP_F16, "o_dtype", "types other than f16");
    UNSUPPORTED_IF(p->head_dim_qk != 64 && p->head_dim_qk != 128, "head_dim_qk",
                   "head dimensions other than 64 and 128");
    UNSUPPORTED_IF(p->head_dim_v != p->head_dim_qk, "head_dim_v", "head_dim_v other than head_dim_qk");
    UNSUPPORTED_IF(p->varlen, "varlen", "packed sequences");
    UNSUPPORTED_IF(p->has_seqused_k, "has_seqused_k", "used key lengths");
    UNSUPPORTED_IF(p->softcap > 0.f, "softcap", "the softcap");
    UNSUPPORTED_IF(p->window_left >= 0 || p->window_right >= 0, "window_left", "windows");
    UNSUPPORTED_IF(p->has_bool_mask, "has_bool_mask", "boolean masks");
    UNSUPPORTED_IF(p->has_bias, "has_bias", "bias");
    UNSUPPORTED_IF(p->has_alibi, "has_alibi", "ALiBi");
    UNSUPPORTED_IF(p->has_sinks, "has_sinks", "sinks");
    /* Scores are scaled in one step; a product of scales must stay a normal number. */
    UNSUPPORTED_IF(!(p->softmax_scale > 0x1p-60f && p->softmax_scale < 0x1p60f), "softmax_scale",
                   "scales outside 2^-60 .. 2^60");
    UNSUPPORTED_IF(p->max_seqlen_q >= 1 << 24, "max_seqlen_q", "2^24 queries or more");
    UNSUPPORTED_IF(p->max_seqlen_k >= 1 << 21, "max_seqlen_k", "2^21 keys or more");
    const int64_t heads = tl_max64(p->num_heads_q, 1);
    UNSUPPORTED_IF(p->batch >
                       (1 << 30) / heads / (tl_ceil_div(p->max_seqlen_q, 64) + tl_ceil_div(p->max_seqlen_k, 64) + 1),
                   "batch", "2^30 blocks or more");
    return check_policy(p->policy, err);
}

/* Rows are copied 16 bytes at a time. */
static int is_aligned(const void *data, const tlamp_strides *s, int64_t batch, int64_t seq, int64_t heads)
{
    return (uintptr_t)data % 16 == 0 && (batch < 2 || s->batch % 8 == 0) && (seq < 2 || s->seq % 8 == 0) &&
           (heads < 2 || s->head % 8 == 0);
}

static tlamp_status check_alignment(const tlamp_problem *p, const tlamp_tensors *t, tlamp_error *err)
{
    const int64_t lq = p->max_seqlen_q, lk = p->max_seqlen_k;
    UNSUPPORTED_IF(!is_aligned(t->q, &p->q_stride, p->batch, lq, p->num_heads_q), "q", "rows not aligned to 16 bytes");
    UNSUPPORTED_IF(!is_aligned(t->k, &p->k_stride, p->batch, lk, p->num_heads_k), "k", "rows not aligned to 16 bytes");
    UNSUPPORTED_IF(!is_aligned(t->v, &p->v_stride, p->batch, lk, p->num_heads_k), "v", "rows not aligned to 16 bytes");
    UNSUPPORTED_IF(!is_aligned(t->o, &p->o_stride, p->batch, lq, p->num_heads_q), "o", "rows not aligned to 16 bytes");
    return TLAMP_OK;
}

/* Key tiles of a routing group, the same for every sequence. */
static tlamp_status choose_group(int64_t *group, const tlamp_problem *p, const tlamp_tensors *t, tlamp_error *err)
{
    const int64_t tiles = tl_max64(tl_ceil_div(p->max_seqlen_k, TL_DEVICE_KEYS), 1);
    *group = tl_auto_group(p->max_seqlen_k, TL_DEVICE_KEYS);
    if (p->policy->kind != TLAMP_POLICY_ROUTED || !t->groups || p->batch == 0) return TLAMP_OK;
    for (int64_t b = 1; b < p->batch; b++)
        UNSUPPORTED_IF(t->groups[b] != t->groups[0], "groups", "sequences with different groups");
    UNSUPPORTED_IF(tl_ceil_div(tiles, t->groups[0]) > 64, "groups", "more than 64 groups in a row");
    *group = tl_min64(t->groups[0], tiles);
    return TLAMP_OK;
}

/* ------------------------------------------------------------------------------------------------ memory */

static tl_device_codes lay_out_codes(const tlamp_problem *p, tl_arena *arena)
{
    const int64_t q_blocks = p->batch * p->num_heads_q * tl_ceil_div(p->max_seqlen_q, TL_DEVICE_ROWS);
    const int64_t k_blocks = p->batch * p->num_heads_k * tl_ceil_div(p->max_seqlen_k, TL_DEVICE_KEYS);
    tl_device_codes c = {NULL, NULL, NULL, NULL};
    if (p->policy->kind == TLAMP_POLICY_HIGH) return c;
    c.q_codes = tl_take_array(arena, q_blocks, (size_t)p->head_dim_qk * TL_DEVICE_ROWS);
    c.k_codes = tl_take_array(arena, k_blocks, (size_t)p->head_dim_qk * TL_DEVICE_KEYS);
    c.q_scale = tl_take_array(arena, q_blocks, sizeof(float));
    c.k_scale = tl_take_array(arena, k_blocks, sizeof(float));
    return c;
}

static size_t workspace_bytes_of(const tlamp_plan *plan)
{
    tl_arena a = {NULL, 0};
    (void)lay_out_codes(&plan->problem, &a);
    return a.used;
}

/* Host tensors, dense [batch][head][token][d]: what travels to the device and back in one piece each. */
typedef struct {
    uint16_t *q, *k, *v;
    uint64_t *words; /* [batch][KV head][routing row] */
    uint16_t *o;
    float *lse;
    size_t outputs; /* where they begin */
} staging;

static staging lay_out_staging(const tlamp_problem *p, const tlamp_tensors *t, tl_arena *a)
{
    const int64_t rows_q = p->batch * p->num_heads_q * p->max_seqlen_q, row = p->head_dim_qk * 2;
    const int64_t rows_k = p->batch * p->num_heads_k * p->max_seqlen_k;
    staging s = {NULL, NULL, NULL, NULL, NULL, NULL, 0};
    s.q = tl_take_array(a, rows_q, (size_t)row);
    s.k = tl_take_array(a, rows_k, (size_t)row);
    s.v = tl_take_array(a, rows_k, (size_t)row);
    if (p->policy->kind == TLAMP_POLICY_ROUTED)
        s.words = tl_take_array(a, p->batch * p->num_heads_k * tl_ceil_div(p->max_seqlen_q, TL_DEVICE_ROWS), 8);
    s.outputs = a->used;
    s.o = tl_take_array(a, rows_q, (size_t)row);
    if (t->lse) s.lse = tl_take_array(a, rows_q, sizeof(float));
    return s;
}

/* Rows of a strided tensor into a dense one, or back. */
static void move_rows(const tlamp_strides *s, const int64_t extent[3], size_t element, int64_t row, void *strided,
                      void *dense, int back)
{
    unsigned char *at = dense;
    for (int64_t b = 0; b < extent[0]; b++)
        for (int64_t h = 0; h < extent[1]; h++)
            for (int64_t i = 0; i < extent[2]; i++, at += row * (int64_t)element) {
                const int64_t offset = (b * s->batch + h * s->head + i * s->seq) * (int64_t)element;
                unsigned char *there = (unsigned char *)strided + offset;
                memcpy(back ? there : at, back ? at : there, (size_t)row * element);
            }
}

static void gather(const tlamp_problem *p, const tlamp_tensors *t, const staging *s)
{
    const int64_t q[3] = {p->batch, p->num_heads_q, p->max_seqlen_q},
                  k[3] = {p->batch, p->num_heads_k, p->max_seqlen_k};
    const int64_t words[3] = {p->batch, p->num_heads_k, tl_ceil_div(p->max_seqlen_q, TL_DEVICE_ROWS)};
    const tlamp_strides words_stride = {t->words_stride_batch, t->words_stride_row, t->words_stride_head, 1};
    move_rows(&p->q_stride, q, 2, p->head_dim_qk, (void *)(uintptr_t)t->q, s->q, 0);
    move_rows(&p->k_stride, k, 2, p->head_dim_qk, (void *)(uintptr_t)t->k, s->k, 0);
    move_rows(&p->v_stride, k, 2, p->head_dim_v, (void *)(uintptr_t)t->v, s->v, 0);
    if (s->words) move_rows(&words_stride, words, 8, 1, (void *)(uintptr_t)t->words, s->words, 0);
}

static void scatter(const tlamp_problem *p, const tlamp_tensors *t, const staging *s)
{
    const int64_t extent[3] = {p->batch, p->num_heads_q, p->max_seqlen_q};
    const tlamp_strides lse = {p->lse_stride.batch, p->lse_stride.seq, p->lse_stride.head, 1};
    move_rows(&p->o_stride, extent, 2, p->head_dim_v, t->o, s->o, 1);
    if (t->lse) move_rows(&lse, extent, 4, 1, t->lse, s->lse, 1);
}

/* ------------------------------------------------------------------------------------------------ launches */

static tl_device_strides strides_of(const tlamp_strides *s) { return (tl_device_strides){s->batch, s->head, s->seq}; }

static tl_device_strides dense_strides(int64_t heads, int64_t seq, int64_t row)
{
    return (tl_device_strides){heads * seq * row, seq * row, row};
}

static tl_device_call make_call(const tlamp_problem *p, const tlamp_tensors *t, int64_t group)
{
    const int top_left = p->mask == TLAMP_MASK_CAUSAL_TOP_LEFT;
    const int64_t lq = p->max_seqlen_q, lk = top_left ? tl_min64(lq, p->max_seqlen_k) : p->max_seqlen_k;
    tl_device_call c = {.q = t->q, .k = t->k, .v = t->v, .o = t->o, .lse = t->lse};
    c.q_stride = strides_of(&p->q_stride);
    c.k_stride = strides_of(&p->k_stride);
    c.v_stride = strides_of(&p->v_stride);
    c.o_stride = strides_of(&p->o_stride);
    c.lse_stride = (tl_device_strides){p->lse_stride.batch, p->lse_stride.head, p->lse_stride.seq};
    c.batch = (int32_t)p->batch;
    c.heads_q = p->num_heads_q;
    c.heads_k = p->num_heads_k;
    c.head_dim = p->head_dim_qk;
    c.lq = (int32_t)lq;
    c.lk = (int32_t)lk;
    c.causal = p->mask != TLAMP_MASK_NONE;
    c.reach = (int32_t)(!c.causal ? lk : top_left ? 1 : lk - lq + 1);
    c.logit_scale = p->softmax_scale * TL_LOG2E;
    if (p->policy->kind == TLAMP_POLICY_ROUTED) c.words = t->words;
    c.words_batch = t->words_stride_batch;
    c.words_head = t->words_stride_head;
    c.words_row = t->words_stride_row;
    c.group_inverse = (uint32_t)tl_ceil_div(INT64_C(1) << 31, group); /* exact for tiles * group below 2^31 */
    return c;
}

static void use_staging(tl_device_call *c, const staging *s, int64_t keys)
{
    c->q = s->q;
    c->k = s->k;
    c->v = s->v;
    c->o = s->o;
    c->lse = s->lse;
    const int64_t d = c->head_dim;
    c->q_stride = c->o_stride = dense_strides(c->heads_q, c->lq, d);
    c->k_stride = c->v_stride = dense_strides(c->heads_k, keys, d);
    c->lse_stride = dense_strides(c->heads_q, c->lq, 1);
    if (c->words) {
        c->words = s->words;
        c->words_row = 1;
        c->words_head = tl_ceil_div(c->lq, TL_DEVICE_ROWS);
        c->words_batch = c->words_head * c->heads_k;
    }
}

static tlamp_status launch(const tl_device_call *c, int high, tlamp_error *err)
{
    const int d64 = c->head_dim == 64;
    int on_host = 0;
    if (!high && c->lk > 0) on_host |= tl_nvptx_quantise(c);
    if (high || c->lk == 0)
        on_host |= d64 ? tl_nvptx_high_d64(c) : tl_nvptx_high_d128(c);
    else
        on_host |= d64 ? tl_nvptx_routed_d64(c) : tl_nvptx_routed_d128(c);
    return on_host ? tl_fail(err, TLAMP_DEVICE_ERROR, "device", "the OpenMP runtime could not launch the kernel")
                   : TLAMP_OK;
}

/* ------------------------------------------------------------------------------------------------ executions */

static tlamp_status no_memory(size_t bytes, tlamp_error *err)
{
    return tl_fail(err, TLAMP_OUT_OF_MEMORY, "device", "no device memory for %zu bytes", bytes);
}

static tlamp_status run_device_memory(tl_device_call *c, const tlamp_problem *p, void *workspace, size_t bytes,
                                      tlamp_error *err)
{
    tl_arena need = {NULL, 0};
    (void)lay_out_codes(p, &need);
    void *own = NULL;
    if (need.used && !workspace) {
        own = workspace = omp_target_alloc(need.used, c->device);
        if (!own) return no_memory(need.used, err);
    } else if (need.used && bytes < need.used) {
        return tl_fail(err, TLAMP_WORKSPACE_TOO_SMALL, "workspace_bytes", "%zu: the device needs %zu", bytes,
                       need.used);
    }
    c->codes = lay_out_codes(p, &(tl_arena){workspace, 0});
    const tlamp_status s = launch(c, p->policy->kind == TLAMP_POLICY_HIGH, err);
    if (own) omp_target_free(own, c->device);
    return s;
}

static tlamp_status run_host_memory(tl_device_call *c, const tlamp_problem *p, const tlamp_tensors *t,
                                    const tlamp_allocator *memory, tlamp_error *err)
{
    tl_arena host_size = {NULL, 0};
    const size_t outputs = lay_out_staging(p, t, &host_size).outputs;
    tl_arena size = host_size;
    (void)lay_out_codes(p, &size);
    const int host_device = omp_get_initial_device();
    unsigned char *host = memory->alloc(memory->context, host_size.used, TLAMP_WORKSPACE_ALIGN);
    unsigned char *there = omp_target_alloc(size.used, c->device);
    tlamp_status status = TLAMP_OK;
    if (!host || !there) {
        status = no_memory(size.used, err);
    } else {
        const staging here = lay_out_staging(p, t, &(tl_arena){host, 0});
        tl_arena device = {there, 0};
        const staging s = lay_out_staging(p, t, &device);
        use_staging(c, &s, p->max_seqlen_k);
        c->codes = lay_out_codes(p, &device);
        gather(p, t, &here);
        int failed = omp_target_memcpy(there, host, outputs, 0, 0, c->device, host_device);
        if (!failed) status = launch(c, p->policy->kind == TLAMP_POLICY_HIGH, err);
        if (!failed && !status)
            failed = omp_target_memcpy(host, there, host_size.used - outputs, outputs, outputs, host_device, c->device);
        if (failed) status = tl_fail(err, TLAMP_DEVICE_ERROR, "device", "a copy failed");
        if (!status) scatter(p, t, &here);
    }
    if (there) omp_target_free(there, c->device);
    if (host) memory->free(memory->context, host);
    return status;
}

static tlamp_status execute(const tlamp_plan *plan, const tlamp_tensors *tensors, const tlamp_exec *exec,
                            void *workspace, size_t workspace_bytes, tlamp_error *err)
{
    const tlamp_problem *p = &plan->problem;
    const int32_t device = exec->device;
    int64_t group = 1;
    tlamp_status s = check_problem(p, err);
    if (!s) s = choose_group(&group, p, tensors, err);
    if (!s && exec->memory == TLAMP_MEMORY_DEVICE) s = check_alignment(p, tensors, err);
    if (s) return s;
    UNSUPPORTED_IF(tensors->counters, "counters", "counters");
    if (p->batch == 0 || p->num_heads_q == 0 || p->max_seqlen_q == 0) return TLAMP_OK;

    tl_device_call call = make_call(p, tensors, group);
    call.device = device;
    if (exec->memory == TLAMP_MEMORY_DEVICE) return run_device_memory(&call, p, workspace, workspace_bytes, err);
    const tlamp_allocator memory = tl_allocator(&exec->allocator);
    return run_host_memory(&call, p, tensors, &memory, err);
}

extern const tl_backend tl_nvptx_backend;
const tl_backend tl_nvptx_backend = {"nvptx", workspace_bytes_of, execute};
