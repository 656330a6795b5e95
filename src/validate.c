#include "validate.h"

#include <math.h>
#include <string.h>

#include "core/routing.h"
#include "status.h"

/* ------------------------------------------------------------------------------------------------ defaults */

static tlamp_policy default_policy(void)
{
    tlamp_policy p = {.struct_size = sizeof p};
    p.block_m = 128;
    p.block_n = 64;
    p.quant_block_q = 128;
    p.quant_block_k = 64;
    p.delta = 0x1p-8f;
    p.tau = 0.5f;
    p.lamp_b_q = 32;
    p.lamp_b_k = 16;
    p.lamp_n_k = 4;
    p.lamp_seed = 42;
    return p;
}

static tlamp_problem default_problem(void)
{
    tlamp_problem p = {.struct_size = sizeof p};
    p.batch = 1;
    p.q_stride.dim = p.k_stride.dim = p.v_stride.dim = p.o_stride.dim = 1;
    p.window_left = p.window_right = -1;
    p.num_policies = 1;
    p.words_per_row = 1;
    p.num_splits = TLAMP_SPLITS_AUTO;
    return p;
}

static tlamp_exec default_exec(void)
{
    tlamp_exec e = {.struct_size = sizeof e};
    e.device = -1;
    return e;
}

void tlamp_policy_init(tlamp_policy *policy, size_t struct_size)
{
    const tlamp_policy d = default_policy();
    tl_init_struct(policy, struct_size, &d, sizeof d);
}

void tlamp_problem_init(tlamp_problem *problem, size_t struct_size)
{
    const tlamp_problem d = default_problem();
    tl_init_struct(problem, struct_size, &d, sizeof d);
}

void tlamp_tensors_init(tlamp_tensors *tensors, size_t struct_size)
{
    const tlamp_tensors d = {.struct_size = sizeof d};
    tl_init_struct(tensors, struct_size, &d, sizeof d);
}

void tlamp_exec_init(tlamp_exec *exec, size_t struct_size)
{
    const tlamp_exec d = default_exec();
    tl_init_struct(exec, struct_size, &d, sizeof d);
}

tlamp_status tlamp_set_strides(tlamp_problem *problem, tlamp_tensor_layout layout, tlamp_error *err)
{
    if (!problem || problem->struct_size < offsetof(tlamp_problem, softmax_scale))
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "problem", "the problem is NULL or not initialised");
    if (layout < TLAMP_TENSOR_BSHD || layout > TLAMP_TENSOR_THD)
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "layout", "%d is no tensor layout", (int)layout);
    const int64_t lq = problem->varlen ? problem->total_q : problem->max_seqlen_q;
    const int64_t lk = problem->varlen ? problem->total_k : problem->max_seqlen_k;
    const int64_t hq = problem->num_heads_q, hk = problem->num_heads_k;
    struct {
        tlamp_strides *stride;
        int64_t length, heads, dim;
    } t[] = {{&problem->q_stride, lq, hq, problem->head_dim_qk},
             {&problem->k_stride, lk, hk, problem->head_dim_qk},
             {&problem->v_stride, lk, hk, problem->head_dim_v},
             {&problem->o_stride, lq, hq, problem->head_dim_v}};
    const int64_t longest = INT64_MAX / 8;
    for (int i = 0; i < 4; i++) {
        if (t[i].length < 0 || t[i].heads < 0 || t[i].dim < 0)
            return tl_fail(err, TLAMP_INVALID_ARGUMENT, "problem",
                           "a length, head count or head dimension is negative");
        if (t[i].heads && t[i].dim > longest / t[i].heads / tl_max64(t[i].length, 1))
            return tl_fail(err, TLAMP_INVALID_ARGUMENT, "problem", "the tensors would be larger than memory");
    }
    for (int i = 0; i < 4; i++) {
        const int head_first = layout == TLAMP_TENSOR_BHSD;
        const int64_t dim = t[i].dim, length = t[i].length, heads = t[i].heads;
        const int packed = problem->varlen || layout == TLAMP_TENSOR_THD;
        const tlamp_strides s = {packed ? 0 : length * heads * dim, head_first ? dim : heads * dim,
                                 head_first ? length * dim : dim, 1};
        *t[i].stride = s;
    }
    const tlamp_lse_strides lse = {problem->varlen ? 0 : hq * lq, lq, 1};
    problem->lse_stride = lse;
    return TLAMP_OK;
}

/* ------------------------------------------------------------------------------------------------ policy */

#define INVALID(field, ...) return tl_fail(err, TLAMP_INVALID_ARGUMENT, field, __VA_ARGS__)
#define REQUIRE(condition, field, ...)                                                                                 \
    do {                                                                                                               \
        if (!(condition)) INVALID(field, __VA_ARGS__);                                                                 \
    } while (0)

static int in(int32_t x, int32_t low, int32_t high) { return x >= low && x <= high; }

static tlamp_status check_policy(const tlamp_policy *p, int32_t head_dim_qk, tlamp_error *err)
{
    REQUIRE(in(p->kind, TLAMP_POLICY_HIGH, TLAMP_POLICY_TOLERANCE), "policy.kind", "%d is no score policy",
            (int)p->kind);
    REQUIRE(p->block_n >= 16 && (64 % p->block_n == 0 || p->block_n % 64 == 0), "policy.block_n",
            "%d: must be 16, 32, 64 or a multiple of 64", (int)p->block_n);
    REQUIRE(p->block_m >= 16 && (128 % p->block_m == 0 || p->block_m % 128 == 0), "policy.block_m",
            "%d: must be 16, 32, 64, 128 or a multiple of 128", (int)p->block_m);
    REQUIRE(p->quant_block_q > 0 && p->quant_block_q % 128 == 0, "policy.quant_block_q",
            "%d: must be a multiple of 128", (int)p->quant_block_q);
    REQUIRE(p->quant_block_k > 0 && p->quant_block_k % 64 == 0, "policy.quant_block_k", "%d: must be a multiple of 64",
            (int)p->quant_block_k);
    REQUIRE(in(p->scales, TLAMP_SCALES_BLOCK, TLAMP_SCALES_BLOCK_F16), "policy.scales", "%d is unknown",
            (int)p->scales);
    REQUIRE(in(p->quantise, TLAMP_QUANTISE_ONCE, TLAMP_QUANTISE_FLY), "policy.quantise", "%d is unknown",
            (int)p->quantise);
    REQUIRE(in(p->pv, TLAMP_PV_AUTO, TLAMP_PV_INT8), "policy.pv", "%d is unknown", (int)p->pv);
    REQUIRE(in(p->state, TLAMP_STATE_F32, TLAMP_STATE_F16), "policy.state", "%d is unknown", (int)p->state);
    REQUIRE(in(p->smooth_k, 0, 1), "policy.smooth_k", "%d: must be 0 or 1", (int)p->smooth_k);
    REQUIRE(in(p->hadamard, 0, 1), "policy.hadamard", "%d: must be 0 or 1", (int)p->hadamard);
    REQUIRE(!p->hadamard || (head_dim_qk & (head_dim_qk - 1)) == 0, "policy.hadamard",
            "needs a head_dim_qk that is a power of two, not %d", (int)head_dim_qk);
    if (p->kind == TLAMP_POLICY_LAMP) {
        REQUIRE(in(p->lamp_format, TLAMP_LAMP_INT8, TLAMP_LAMP_E4M3), "policy.lamp_format", "%d is unknown",
                (int)p->lamp_format);
        REQUIRE(in(p->lamp_mode, TLAMP_LAMP_SIM, TLAMP_LAMP_HW), "policy.lamp_mode", "%d is unknown",
                (int)p->lamp_mode);
        REQUIRE(in(p->lamp_run, TLAMP_LAMP_RUN_LAMP, TLAMP_LAMP_RUN_F32), "policy.lamp_run", "%d is unknown",
                (int)p->lamp_run);
        REQUIRE(in(p->lamp_stochastic, 0, 1), "policy.lamp_stochastic", "%d: must be 0 or 1", (int)p->lamp_stochastic);
        REQUIRE(in(p->lamp_compact, 0, 1), "policy.lamp_compact", "%d: must be 0 or 1", (int)p->lamp_compact);
        REQUIRE(in(p->lamp_clamp, 0, 1), "policy.lamp_clamp", "%d: must be 0 or 1", (int)p->lamp_clamp);
        REQUIRE(p->tau >= 0.f && p->tau <= 1.f, "policy.tau", "%g: must be in [0, 1]", (double)p->tau);
        REQUIRE((p->delta >= 0.f && !isinf(p->delta)) || p->delta == TLAMP_STAGE_ONE_OFF, "policy.delta",
                "%g: must be finite and not negative, or TLAMP_STAGE_ONE_OFF", (double)p->delta);
        REQUIRE(p->lamp_b_q > 0, "policy.lamp_b_q", "%d: must be positive", (int)p->lamp_b_q);
        REQUIRE(p->lamp_n_k > 0 && p->lamp_b_k > 0 && p->lamp_b_k <= p->block_n / p->lamp_n_k &&
                    p->lamp_b_k * p->lamp_n_k == p->block_n,
                "policy.lamp_n_k", "lamp_b_k * lamp_n_k must be block_n = %d", (int)p->block_n);
    }
    if (p->kind == TLAMP_POLICY_TOLERANCE) {
        REQUIRE(p->tolerance > 0.f && !isinf(p->tolerance), "policy.tolerance", "%g: must be positive and finite",
                (double)p->tolerance);
        REQUIRE(in(p->tolerance_kind, TLAMP_TOLERANCE_WEIGHTS_L1, TLAMP_TOLERANCE_OUTPUT), "policy.tolerance_kind",
                "%d is unknown", (int)p->tolerance_kind);
        REQUIRE(in(p->provider, TLAMP_PROVIDER_RIGOROUS, TLAMP_PROVIDER_EXPECTED), "policy.provider", "%d is unknown",
                (int)p->provider);
    }
    return TLAMP_OK;
}

/* ------------------------------------------------------------------------------------------------ problem */

static int is_float(tlamp_dtype d) { return in(d, TLAMP_F32, TLAMP_BF16); }

/* Adds the bytes between the first and the farthest element of one dimension. 0 where that exceeds half the address space. */
static int reaches(int64_t *bytes, int64_t count, int64_t stride, int64_t element)
{
    const int64_t limit = INT64_MAX / 4;
    if (count < 2 || stride == 0) return 1;
    if (stride == INT64_MIN) return 0;
    const int64_t step = stride < 0 ? -stride : stride;
    if (step > limit / element / (count - 1)) return 0;
    *bytes += step * element * (count - 1);
    return *bytes <= limit;
}

static tlamp_status check_operand(const tlamp_problem *p, const char *name, const tlamp_strides *s, tlamp_dtype dtype,
                                  int64_t length, int64_t heads, int output, tlamp_error *err)
{
    const int64_t batch = p->varlen ? 1 : p->batch, element = dtype == TLAMP_F32 ? 4 : dtype == TLAMP_INT8 ? 1 : 2;
    REQUIRE(s->dim == 1, name, "the stride of the last dimension is %lld: it must be 1", (long long)s->dim);
    int64_t bytes = 0;
    REQUIRE(reaches(&bytes, batch, s->batch, element) && reaches(&bytes, length, s->seq, element) &&
                reaches(&bytes, heads, s->head, element),
            name, "its strides reach further than an address can");
    if (output && batch > 0 && length > 0 && heads > 0) /* without elements any stride will do */
        REQUIRE(!((batch > 1 && s->batch == 0) || (length > 1 && s->seq == 0) || (heads > 1 && s->head == 0)), name,
                "an output cannot be broadcast: a stride is 0. Call tlamp_set_strides or fill the strides");
    return TLAMP_OK;
}

static tlamp_status check_scores(const tlamp_problem *p, const char *name, const tlamp_score_strides *s,
                                 int64_t element, tlamp_error *err)
{
    int64_t bytes = 0;
    REQUIRE(reaches(&bytes, p->batch, s->batch, element) && reaches(&bytes, p->num_heads_q, s->head, element) &&
                reaches(&bytes, p->max_seqlen_q, s->q, element) && reaches(&bytes, p->max_seqlen_k, s->k, element),
            name, "its strides reach further than an address can");
    return TLAMP_OK;
}

static tlamp_status check_shapes(const tlamp_problem *p, tlamp_error *err)
{
    const int64_t longest = INT32_MAX;
    REQUIRE(p->batch >= 0 && p->batch <= longest, "batch", "%lld: must be 0 .. 2^31-1", (long long)p->batch);
    REQUIRE(p->max_seqlen_q >= 0 && p->max_seqlen_q <= longest, "max_seqlen_q", "%lld: must be 0 .. 2^31-1",
            (long long)p->max_seqlen_q);
    REQUIRE(p->max_seqlen_k >= 0 && p->max_seqlen_k <= longest, "max_seqlen_k", "%lld: must be 0 .. 2^31-1",
            (long long)p->max_seqlen_k);
    REQUIRE(in(p->varlen, 0, 1), "varlen", "%d: must be 0 or 1", (int)p->varlen);
    if (p->varlen) {
        REQUIRE(p->total_q >= 0 && p->total_q <= longest, "total_q", "%lld: must be 0 .. 2^31-1",
                (long long)p->total_q);
        REQUIRE(p->total_k >= 0 && p->total_k <= longest, "total_k", "%lld: must be 0 .. 2^31-1",
                (long long)p->total_k);
    }
    REQUIRE(p->num_heads_q >= 0 && p->num_heads_q <= 65536, "num_heads_q", "%d: must be 0 .. 65536",
            (int)p->num_heads_q);
    REQUIRE(p->num_heads_k >= 0, "num_heads_k", "%d: must not be negative", (int)p->num_heads_k);
    REQUIRE(p->num_heads_q == 0 || (p->num_heads_k > 0 && p->num_heads_q % p->num_heads_k == 0), "num_heads_k",
            "%d query heads cannot share %d key heads: num_heads_q must be a multiple of num_heads_k",
            (int)p->num_heads_q, (int)p->num_heads_k);
    REQUIRE(in(p->head_dim_qk, 1, 16384), "head_dim_qk", "%d: must be 1 .. 16384", (int)p->head_dim_qk);
    REQUIRE(in(p->head_dim_v, 1, 16384), "head_dim_v", "%d: must be 1 .. 16384", (int)p->head_dim_v);
    return TLAMP_OK;
}

static tlamp_status check_logits(const tlamp_problem *p, tlamp_error *err)
{
    REQUIRE(p->softmax_scale >= 0.f && !isinf(p->softmax_scale), "softmax_scale",
            "%g: must be positive and finite, or 0 for 1/sqrt(head_dim_qk)", (double)p->softmax_scale);
    REQUIRE(p->softcap >= 0.f && !isinf(p->softcap), "softcap", "%g: must be positive and finite, or 0 for off",
            (double)p->softcap);
    REQUIRE(in(p->mask, TLAMP_MASK_NONE, TLAMP_MASK_CAUSAL_TOP_LEFT), "mask", "%d is no mask kind", (int)p->mask);
    REQUIRE(p->window_left >= -1, "window_left", "%lld: must be -1 (unlimited) or more", (long long)p->window_left);
    REQUIRE(p->window_right >= -1, "window_right", "%lld: must be -1 (unlimited) or more", (long long)p->window_right);
    REQUIRE(in(p->has_seqused_k, 0, 1), "has_seqused_k", "%d: must be 0 or 1", (int)p->has_seqused_k);
    REQUIRE(in(p->has_bool_mask, 0, 1), "has_bool_mask", "%d: must be 0 or 1", (int)p->has_bool_mask);
    REQUIRE(in(p->has_bias, 0, 1), "has_bias", "%d: must be 0 or 1", (int)p->has_bias);
    REQUIRE(in(p->has_alibi, 0, 1), "has_alibi", "%d: must be 0 or 1", (int)p->has_alibi);
    REQUIRE(in(p->has_sinks, 0, 1), "has_sinks", "%d: must be 0 or 1", (int)p->has_sinks);
    REQUIRE(!p->has_bias || is_float(p->bias_dtype), "bias_dtype", "%d: must be f32, f16 or bf16", (int)p->bias_dtype);
    return TLAMP_OK;
}

static tlamp_status check_tensors_of(const tlamp_problem *p, tlamp_error *err)
{
    const int64_t rows_q = p->varlen ? p->total_q : p->max_seqlen_q, rows_k = p->varlen ? p->total_k : p->max_seqlen_k;
    const struct {
        const char *dtype_name, *stride_name;
        tlamp_dtype dtype;
        const tlamp_strides *stride;
        int64_t length, heads;
        int output;
    } t[] = {{"q_dtype", "q_stride", p->q_dtype, &p->q_stride, rows_q, p->num_heads_q, 0},
             {"k_dtype", "k_stride", p->k_dtype, &p->k_stride, rows_k, p->num_heads_k, 0},
             {"v_dtype", "v_stride", p->v_dtype, &p->v_stride, rows_k, p->num_heads_k, 0},
             {"o_dtype", "o_stride", p->o_dtype, &p->o_stride, rows_q, p->num_heads_q, 1}};
    for (int i = 0; i < 4; i++) {
        REQUIRE(in(t[i].dtype, TLAMP_F32, t[i].output ? TLAMP_BF16 : TLAMP_INT8), t[i].dtype_name,
                "%d is no dtype for it", (int)t[i].dtype);
        const tlamp_status s = check_operand(p, t[i].stride_name, t[i].stride, t[i].dtype, t[i].length, t[i].heads,
                                             t[i].output, err);
        if (s) return s;
    }
    if (p->has_bool_mask) {
        const tlamp_status s = check_scores(p, "bool_mask_stride", &p->bool_mask_stride, 1, err);
        if (s) return s;
    }
    if (p->has_bias) return check_scores(p, "bias_stride", &p->bias_stride, 4, err);
    return TLAMP_OK;
}

static tlamp_status check_counts(const tlamp_problem *p, tlamp_error *err)
{
    REQUIRE(p->num_policies == 1 || p->num_policies == p->num_heads_q, "num_policies", "%d: must be 1 or num_heads_q",
            (int)p->num_policies);
    REQUIRE(in(p->words_per_row, 1, 1 << 20), "words_per_row", "%d: must be 1 .. 2^20", (int)p->words_per_row);
    REQUIRE(in(p->num_splits, TLAMP_SPLITS_AUTO, 1 << 20), "num_splits", "%d: must be 1 .. 2^20, or 0 for automatic",
            (int)p->num_splits);
    REQUIRE(p->page_size >= 0 && p->page_size % 64 == 0, "page_size", "%d: must be 0 or a multiple of 64",
            (int)p->page_size);
    REQUIRE(p->num_pages >= 0 && p->max_pages_per_seq >= 0, "num_pages", "must not be negative");
    return TLAMP_OK;
}

tlamp_status tl_validate_problem(tlamp_problem *full, tlamp_policy *policy, const tlamp_problem *problem,
                                 tlamp_error *err)
{
    REQUIRE(problem, "problem", "is NULL");
    *full = default_problem();
    *policy = default_policy();
    tlamp_status s = tl_take_struct(full, sizeof *full, problem, "problem", err);
    if (!s && full->policy) s = tl_take_struct(policy, sizeof *policy, full->policy, "policy", err);
    if (!s) s = check_shapes(full, err);
    if (!s) s = check_logits(full, err);
    if (!s) s = check_counts(full, err);
    if (!s) s = check_tensors_of(full, err);
    if (!s) s = check_policy(policy, full->head_dim_qk, err);
    if (s) return s;
    full->policy = policy;
    if (full->softmax_scale == 0.f) full->softmax_scale = (float)(1. / sqrt((double)full->head_dim_qk));
    return TLAMP_OK;
}

/* ------------------------------------------------------------------------------------------------ tensors */

static tlamp_status check_cu_seqlens(const int32_t *cu, int64_t batch, int64_t total, int64_t longest, const char *name,
                                     tlamp_error *err)
{
    REQUIRE(cu, name, "is NULL, and the problem is varlen");
    REQUIRE(cu[0] == 0, name, "must begin with 0, not %d", (int)cu[0]);
    for (int64_t b = 0; b < batch; b++) {
        REQUIRE(cu[b + 1] >= cu[b], name, "decreases after sequence %lld", (long long)b);
        REQUIRE((int64_t)cu[b + 1] - cu[b] <= longest, name, "sequence %lld has %lld tokens, max_seqlen is %lld",
                (long long)b, (long long)cu[b + 1] - cu[b], (long long)longest);
    }
    REQUIRE(cu[batch] <= total, name, "ends at %d, the tensor has %lld tokens", (int)cu[batch], (long long)total);
    return TLAMP_OK;
}

tl_lengths tl_sequence_lengths(const tlamp_problem *problem, const tlamp_tensors *tensors, int64_t b)
{
    tl_lengths n = {0, 0, problem->max_seqlen_q, problem->max_seqlen_k, problem->max_seqlen_k};
    if (problem->varlen) {
        n.q_start = tensors->cu_seqlens_q[b];
        n.k_start = tensors->cu_seqlens_k[b];
        n.seqlen_q = tensors->cu_seqlens_q[b + 1] - n.q_start;
        n.seqlen_k = n.layout_k = tensors->cu_seqlens_k[b + 1] - n.k_start;
    }
    if (problem->has_seqused_k) n.seqlen_k = tensors->seqused_k[b];
    return n;
}

static tlamp_status check_lengths(const tlamp_problem *p, const tlamp_tensors *t, tlamp_error *err)
{
    if (p->varlen) {
        tlamp_status s = check_cu_seqlens(t->cu_seqlens_q, p->batch, p->total_q, p->max_seqlen_q, "cu_seqlens_q", err);
        if (!s) s = check_cu_seqlens(t->cu_seqlens_k, p->batch, p->total_k, p->max_seqlen_k, "cu_seqlens_k", err);
        if (s) return s;
    }
    if (p->has_seqused_k) {
        REQUIRE(t->seqused_k || p->batch == 0, "seqused_k", "is NULL, and the problem has_seqused_k");
        for (int64_t b = 0; b < p->batch; b++) {
            const tl_lengths n = tl_sequence_lengths(p, t, b);
            REQUIRE(n.seqlen_k >= 0 && n.seqlen_k <= n.layout_k, "seqused_k",
                    "sequence %lld uses %lld keys of %lld: must be 0 .. its key length", (long long)b,
                    (long long)n.seqlen_k, (long long)n.layout_k);
        }
    }
    return TLAMP_OK;
}

static tlamp_status check_words(const tlamp_problem *p, const tlamp_tensors *t, tlamp_error *err)
{
    REQUIRE(t->words, "words", "is NULL, and the policy is ROUTED: build words with tlamp_layout_build");
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t lk = tl_sequence_lengths(p, t, b).layout_k;
        const int32_t g = t->groups ? t->groups[b] : tl_auto_group(lk, p->policy->block_n);
        REQUIRE(g > 0, "groups", "sequence %lld has %d key tiles per group: must be positive", (long long)b, (int)g);
        const int64_t words = tl_ceil_div(tl_num_groups(lk, p->policy->block_n, g), 64);
        REQUIRE(words <= p->words_per_row, "words_per_row",
                "sequence %lld needs %lld words per routing row, the problem says %d: raise words_per_row or the group "
                "size",
                (long long)b, (long long)words, (int)p->words_per_row);
    }
    return TLAMP_OK;
}

tlamp_status tl_validate_tensors(tlamp_tensors *full, const tlamp_problem *p, const tlamp_tensors *tensors,
                                 tlamp_error *err)
{
    REQUIRE(tensors, "tensors", "is NULL");
    *full = (tlamp_tensors){.struct_size = sizeof *full};
    tlamp_status s = tl_take_struct(full, sizeof *full, tensors, "tensors", err);
    if (!s) s = check_lengths(p, full, err);
    if (s) return s;
    const int64_t sequences = p->varlen ? 1 : p->batch;
    const int queries = sequences > 0 && (p->varlen ? p->total_q : p->max_seqlen_q) > 0 && p->num_heads_q > 0;
    const int keys = sequences > 0 && (p->varlen ? p->total_k : p->max_seqlen_k) > 0 && p->num_heads_k > 0;
    REQUIRE(!queries || full->q, "q", "is NULL");
    REQUIRE(!keys || !queries || full->k, "k", "is NULL");
    REQUIRE(!keys || !queries || full->v, "v", "is NULL");
    REQUIRE(p->q_dtype != TLAMP_INT8 || !queries || full->q_scale, "q_scale", "is NULL, and q holds INT8 codes");
    REQUIRE(p->k_dtype != TLAMP_INT8 || !keys || !queries || full->k_scale, "k_scale",
            "is NULL, and k holds INT8 codes");
    REQUIRE(p->v_dtype != TLAMP_INT8 || !keys || !queries || full->v_scale, "v_scale",
            "is NULL, and v holds INT8 codes");
    const int scores = queries && keys;
    REQUIRE(!p->has_bool_mask || !scores || full->bool_mask, "bool_mask", "is NULL, and the problem has_bool_mask");
    REQUIRE(!p->has_bias || !scores || full->bias, "bias", "is NULL, and the problem has_bias");
    REQUIRE(!p->has_alibi || !queries || full->alibi_slopes, "alibi_slopes", "is NULL, and the problem has_alibi");
    REQUIRE(!p->has_sinks || !queries || full->sinks, "sinks", "is NULL, and the problem has_sinks");
    if (full->lse && queries) {
        const tlamp_lse_strides *l = &p->lse_stride;
        int64_t bytes = 0;
        const int64_t rows = p->varlen ? p->total_q : p->max_seqlen_q;
        REQUIRE(reaches(&bytes, sequences, l->batch, 4) && reaches(&bytes, p->num_heads_q, l->head, 4) &&
                    reaches(&bytes, rows, l->seq, 4),
                "lse_stride", "its strides reach further than an address can");
        REQUIRE(!((sequences > 1 && !l->batch) || (p->num_heads_q > 1 && !l->head) || (rows > 1 && !l->seq)),
                "lse_stride",
                "an output cannot be broadcast: a stride is 0. Call tlamp_set_strides or fill the strides");
    }
    const int words = p->policy->kind == TLAMP_POLICY_ROUTED || (p->policy->kind == TLAMP_POLICY_LAMP && full->words);
    if (words && queries && keys) return check_words(p, full, err);
    return TLAMP_OK;
}

tlamp_status tl_validate_exec(tlamp_exec *full, const tlamp_exec *exec, tlamp_error *err)
{
    *full = default_exec();
    if (!exec) return TLAMP_OK;
    const tlamp_status s = tl_take_struct(full, sizeof *full, exec, "exec", err);
    if (s) return s;
    REQUIRE(full->num_threads >= 0, "num_threads", "%d: must not be negative", (int)full->num_threads);
    REQUIRE(!full->parallel_for || full->num_threads >= 1, "num_threads",
            "say how many workers parallel_for has, at least 1");
    REQUIRE(!full->allocator.alloc == !full->allocator.free, "allocator", "alloc and free come together");
    REQUIRE(in(full->memory, TLAMP_MEMORY_HOST, TLAMP_MEMORY_DEVICE), "memory", "%d is unknown", (int)full->memory);
    REQUIRE(full->device >= -1, "device", "%d: must be -1 (the host) or a device number", (int)full->device);
    return TLAMP_OK;
}
