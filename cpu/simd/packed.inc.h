/* The vector vocabulary of the tile loop, once for every instruction set. Before including this file, a kernel's source
 * includes the primitives of its instruction set (simd/avx2.h, ...); a new one is one more such file.
 *
 * K and V are packed once per KV head. Keys, and V's channels, come in panels of 16:
 *   high    [keys / 16][d][16]             f32
 *   codes   [keys / 16][d / TL_CODES][16]  32-bit units of TL_CODES channels
 *   values  [d_v / 16][keys][16]           f32
 * so that both products are register tiles of some rows by some panels, fed by whole vectors of the packed operand and by
 * single numbers of Q or P. Packing converts half types and fills tails: the products see neither.
 *
 * Every score and every output element is one chain of fma in the order of channels or keys, whatever tile it is part of.
 * So a row's bits depend neither on its neighbours nor on how rows are grouped.
 */
#include <math.h>
#include <string.h>

#include "simd/rows.h"

enum {
    TL_PANEL = 16,
    TL_PARTS = TL_PANEL / TL_LANES, /* vectors side by side in a panel */
    TL_MOST_ROWS = 16,              /* of a register tile: bounds of arrays that live in registers */
    TL_MOST_VECTORS = 8             /* side by side in a register tile */
};

#define TL_STATE_F16 0
#define TL_LAMP 0
#define TL_ROWS 16
#define TL_ROW_BLOCKS 32
#define TL_SPAN_MAX 4
#define TL_SPAN_MIXED 1
#define TL_LAZY 8.f

enum {
    TL_SPAN_KEYS = TL_SPAN_MAX * 64,
    TL_SCORE_STRIDE = TL_SPAN_KEYS + 16 /* no power of two: rows of scores would crowd a few cache sets */
};

#define TL_UNROLL _Pragma("GCC unroll 16")
#define TL_UNROLL_4 _Pragma("GCC unroll 4") /* long loops: fewer branches, and short enough a count to be predicted */

/* Keys and values [first, first + n) of one KV head. */
typedef struct {
    int64_t first;
    float *high;            /* keys for the high route */
    tl_qcode *codes;        /* keys for INT8 */
    float *scale;           /* [keys] of INT8 */
    unsigned char *flagged; /* [keys] left out of INT8 */
    unsigned char *flags;   /* [keys / 16] KEY_FLAGGED, VALUE_NONFINITE */
    float *values;
    int64_t value_stride; /* floats from one panel of V's channels to the next */
} tl_packed;

enum { KEY_FLAGGED = 1, VALUE_NONFINITE = 2 }; /* a panel holds such a key */

typedef struct {
    tl_cpu cpu;
    int32_t d, dv;
    int32_t q_stride, code_stride, o_stride;
    int32_t units; /* 32-bit units of a token's codes */
    float factor;  /* the products leave q . k times this: the logit, where only a factor stands between; else 1 */
    tl_packed packed;

    /* scratch */
    float *q;                 /* [rows][q_stride] */
    tl_qcode *q_codes;        /* [rows][code_stride] */
    int32_t *q_start;         /* [rows] where the sum of products starts: takes the bias of the keys' codes back */
    float *q_scale, *q_mean;  /* [rows] times factor: INT8 scale; q . mean of K, with smooth_k */
    unsigned char *q_flagged; /* [rows] */
    float *o;                 /* [rows][o_stride] */
    float *scores;            /* [TL_ROWS][TL_SCORE_STRIDE] */
    float *tokens;            /* [TL_PANEL][max(q_stride, o_stride)] */
    tl_qcode *codes;          /* [TL_PANEL][code_stride] */
    int32_t some_q_flagged;
} tl_ctx;

/* Scores of one row block against its part of a span. Logits in log2 units, if need be after tl_logits. */
typedef struct {
    float *s;     /* [TL_ROWS][TL_SCORE_STRIDE] */
    int32_t cols; /* in use: a multiple of TL_PANEL, no further than the block's last row sees */
} tl_scores;

typedef struct {
    float *o;
} tl_acc;

TL_INLINE const tl_task *tl_task_of(const tl_ctx *x) { return &x->cpu.task; }

TL_INLINE int32_t tl_block_size(const tl_ctx *x)
{
    (void)x;
    return TL_ROWS;
}

TL_INLINE int32_t tl_rows_here(const tl_ctx *x, int32_t rb)
{
    const int32_t left = tl_task_rows(&x->cpu.task) - rb * TL_ROWS;
    return left < TL_ROWS ? left : TL_ROWS;
}

TL_INLINE int32_t tl_least(int64_t a, int64_t b) { return (int32_t)(a < b ? a : b); }

/* Where only one task meets the keys of a KV head, it packs them as they arrive: span by span, and they stay in cache.
 * INT8 scales must not reach over a span's end. */
TL_INLINE int tl_packs_on_arrival(const tl_shape *shape)
{
    return shape->one_task && shape->tile_keys == 64 && (!shape->int8 || shape->unit_keys == 64);
}

/* ---- memory */

static tl_packed tl_lay_out_packed(const tl_shape *shape, int64_t n, tl_arena *a)
{
    const int64_t keys = tl_round_up(n, TL_PANEL), int8_keys = shape->int8 ? keys : 0;
    tl_packed p = {.first = 0};
    p.high = tl_take(a, shape->high ? keys * shape->head_dim_qk * 4 : 0);
    p.codes = tl_take(a, int8_keys * tl_ceil_div(shape->head_dim_qk, TL_CODES) * 4);
    p.scale = tl_take(a, int8_keys * 4);
    p.flagged = tl_take(a, int8_keys);
    p.flags = tl_take(a, keys / TL_PANEL);
    p.value_stride = (keys + 1) * TL_PANEL; /* one row more: panels of 2^n keys would crowd a few cache sets */
    p.values = tl_take(a, tl_ceil_div(shape->head_dim_v, TL_PANEL) * p.value_stride * 4);
    return p;
}

/* Lays the scratch out; with base NULL only to learn the size. */
static void tl_lay_out(tl_ctx *x, const tl_shape *shape, tl_arena *a)
{
    const int64_t rows = (int64_t)shape->task_tokens * shape->task_heads, int8_rows = shape->int8 ? rows : 0;
    x->d = shape->head_dim_qk;
    x->dv = shape->head_dim_v;
    x->q_stride = (int32_t)tl_round_up(x->d, TL_PANEL);
    x->o_stride = (int32_t)tl_round_up(x->dv, TL_PANEL);
    x->code_stride = (int32_t)tl_round_up(x->d, TL_LANES * TL_CODES);
    x->units = (int32_t)tl_ceil_div(x->d, TL_CODES);
    x->q = tl_take(a, rows * x->q_stride * 4);
    x->q_codes = tl_take(a, int8_rows * x->code_stride * (int64_t)sizeof(tl_qcode));
    x->q_start = tl_take(a, int8_rows * 4);
    x->q_scale = tl_take(a, int8_rows * 4);
    x->q_mean = tl_take(a, int8_rows * 4);
    x->q_flagged = tl_take(a, int8_rows);
    x->o = tl_take(a, rows * x->o_stride * 4);
    x->scores = tl_take(a, (int64_t)TL_ROWS * TL_SCORE_STRIDE * 4);
    x->tokens = tl_take(a, (int64_t)TL_PANEL * tl_max64(x->q_stride, x->o_stride) * 4);
    x->codes = tl_take(a, shape->int8 ? (int64_t)TL_PANEL * x->code_stride * (int64_t)sizeof(tl_qcode) : 0);
    if (tl_packs_on_arrival(shape)) x->packed = tl_lay_out_packed(shape, TL_SPAN_KEYS, a);
}

/* ---- rows of tensors as vectors */

/* Elements i .. of a row as floats, the first n of them (n > 0; TL_LANES or more: a whole vector). */
TL_INLINE tl_v tl_load_lanes(const unsigned char *row, int64_t i, int64_t n, int32_t dtype)
{
    const float *f = (const float *)(const void *)row + i;
    const uint16_t *h = (const uint16_t *)(const void *)row + i;
    if (dtype == TL_F32) return n >= TL_LANES ? tl_v_load(f) : tl_v_load_part(f, (int32_t)n);
    if (dtype == TL_I8) return tl_v_load_i8((const int8_t *)row + i, tl_least(n, TL_LANES));
    const tl_half half = n >= TL_LANES ? tl_half_load(h) : tl_half_load_part(h, (int32_t)n);
    return dtype == TL_F16 ? tl_v_from_f16(half) : tl_v_from_bf16(half);
}

TL_INLINE void tl_store_lanes(unsigned char *row, int64_t i, int64_t n, int32_t dtype, tl_v x)
{
    float *f = (float *)(void *)row + i;
    uint16_t *h = (uint16_t *)(void *)row + i;
    if (dtype == TL_F32) {
        if (n >= TL_LANES)
            tl_v_store(f, x);
        else
            tl_v_store_part(f, x, (int32_t)n);
        return;
    }
    const tl_half half = dtype == TL_F16 ? tl_v_to_f16(x) : tl_v_to_bf16(x);
    if (n >= TL_LANES)
        tl_half_store(h, half);
    else
        tl_half_store_part(h, half, (int32_t)n);
}

TL_INLINE void tl_widen_from(float *to, const unsigned char *row, int32_t n, float scale, const int32_t dtype)
{
    for (int32_t i = 0, padded = (int32_t)tl_round_up(n, TL_PANEL); i < padded; i += TL_LANES) {
        const tl_v a = i < n ? tl_load_lanes(row, i, n - i, dtype) : tl_v_set(0.f);
        tl_v_store(to + i, dtype == TL_I8 ? tl_v_mul(a, tl_v_set(scale)) : a);
    }
}

/* A row of n elements as floats (codes: times scale), with zeros up to the next multiple of TL_PANEL. */
static void tl_widen(float *to, const unsigned char *row, int32_t n, int32_t dtype, float scale)
{
    switch (dtype) {
    case TL_F32: tl_widen_from(to, row, n, scale, TL_F32); break;
    case TL_F16: tl_widen_from(to, row, n, scale, TL_F16); break;
    case TL_BF16: tl_widen_from(to, row, n, scale, TL_BF16); break;
    default: tl_widen_from(to, row, n, scale, TL_I8); break;
    }
}

static void tl_widen_query(float *to, const tl_cpu *c, int32_t head, int64_t token)
{
    const tl_call *call = c->call;
    tl_widen(to, tl_row(&call->q, c->seq->batch, c->seq->q_start, token, head), call->shape.head_dim_qk, call->q.dtype,
             tl_query_scale(c, head, token));
}

static void tl_widen_key(float *to, const tl_cpu *c, int64_t key)
{
    const tl_call *call = c->call;
    tl_widen(to, tl_row(&call->k, c->seq->batch, c->seq->k_start, key, c->kv_head), call->shape.head_dim_qk,
             call->k.dtype, tl_key_scale(call, c->seq, c->kv_head, key));
}

/* As it is quantised: without the mean under smooth_k. */
static void tl_widen_centred_key(float *to, const tl_cpu *c, int64_t key)
{
    const unsigned char *mean = (const unsigned char *)c->prepared->mean;
    tl_widen_key(to, c, key);
    for (int32_t i = 0, d = c->call->shape.head_dim_qk; mean && i < d; i += TL_LANES)
        tl_v_store(to + i, tl_v_sub(tl_v_load(to + i), tl_load_lanes(mean, i, d - i, TL_F32)));
}

/* max |x_i| of a widened row; Inf where one of them is Inf or NaN. */
static float tl_peak(const float *x, int32_t n)
{
    tl_v top = tl_v_set(0.f), bad = tl_v_set(0.f);
    for (int32_t i = 0; i < n; i += TL_LANES) {
        const tl_v a = tl_v_load(x + i);
        top = tl_v_max(tl_v_abs(a), top);
        bad = tl_v_fma(a, tl_v_set(0.f), bad); /* 0, or NaN for ever */
    }
    return tl_is_nan(tl_v_sum(bad)) ? TL_INF : tl_v_top(top);
}

/* ---- quantising */

/* A widened row's codes; bias is added to each. */
static void tl_encode(tl_qcode *to, const float *x, int32_t n, float inverse, int32_t bias)
{
    for (int32_t i = 0; i < n; i += TL_LANES)
        tl_store_codes(to + i, tl_v_mul(tl_v_load(x + i), tl_v_set(inverse)), bias);
}

/* Which keys of one unit are flagged, and what their scales come from (as tl_unit_quants): p->scale holds largest magnitudes,
 * or the caller's scales, until tl_pack_codes. */
static void tl_unit_scales(const tl_ctx *x, const tl_packed *p, int64_t begin, int64_t end)
{
    const tl_cpu *c = &x->cpu;
    const int given = c->call->k.scale != NULL, shared = !given && c->call->policy->scales != TLAMP_SCALES_TOKEN;
    float block = 0.f;
    for (int64_t key = begin; key < end; key++) {
        const int seen = key < c->seq->lk && tl_key_is_seen(c->seq, c->prepared, key);
        if (seen) tl_widen_centred_key(x->tokens, c, key);
        const float peak = seen ? tl_peak(x->tokens, x->d) : 0.f;
        const int64_t at = key - p->first;
        p->flagged[at] = !tl_is_finite(peak);
        if (!c->call->shape.fly) c->counters->nonfinite_tokens += p->flagged[at]; /* on the fly, nobody counts keys */
        p->scale[at] = p->flagged[at] ? 0.f : peak;
        block = tl_max(p->scale[at], block);
        if (given) p->scale[at] = seen ? tl_key_scale(c->call, c->seq, c->kv_head, key) : 0.f;
    }
    for (int64_t key = begin; key < end && shared; key++) p->scale[key - p->first] = block;
}

/* The largest magnitude of a head's query tokens [first, last], over rows that see a key and hold no NaN or Inf. Rows of
 * the task are at hand. */
static float tl_query_peak(tl_ctx *x, int32_t head, int64_t first, int64_t last)
{
    const tl_cpu *c = &x->cpu;
    float top = 0.f;
    for (int64_t token = first; token <= last; token++) {
        if (!tl_row_sees_a_key(c->call, c->seq, head, token)) continue;
        const int64_t i = token - c->task.token0;
        const float *q = x->tokens;
        if (i >= 0 && i < c->task.tokens)
            q = x->q + ((head - c->head) * (int64_t)c->task.tokens + i) * x->q_stride;
        else
            tl_widen_query(x->tokens, c, head, token);
        const float peak = tl_peak(q, x->d);
        if (tl_is_finite(peak)) top = tl_max(peak, top);
    }
    return top;
}

static void tl_quantise_query(tl_ctx *x, int32_t r, tl_quant z)
{
    const float *q = x->q + (int64_t)r * x->q_stride, *mean = x->cpu.prepared->mean;
    tl_qcode *codes = x->q_codes + (int64_t)r * x->code_stride;
    const int flagged = !tl_is_finite(tl_peak(q, x->d));
    x->q_flagged[r] = (unsigned char)flagged;
    x->some_q_flagged |= flagged;
    x->cpu.counters->nonfinite_tokens += flagged;
    memset(codes, 0, sizeof *codes * (size_t)x->code_stride);
    if (!flagged) tl_encode(codes, q, x->d, z.inverse, 0);
    int32_t sum = 0;
    for (int32_t i = 0; TL_KEY_BIAS != 0 && i < x->d; i++) sum += (int8_t)codes[i];
    x->q_start[r] = -TL_KEY_BIAS * sum;
    x->q_scale[r] = tl_kernel_scale(z) * x->factor;
    float dot = 0.f;
    for (int32_t i = 0; mean && i < x->d; i++) dot += q[i] * mean[i];
    x->q_mean[r] = dot * x->factor;
}

/* One scale per quant_block_q tokens of a head, counted in the sequence: a block may begin before the task and end after
 * it. */
static void tl_quantise_queries(tl_ctx *x)
{
    const tl_cpu *c = &x->cpu;
    const tl_task *t = &c->task;
    const int given = c->call->q.scale != NULL;
    const int64_t block = c->call->policy->scales == TLAMP_SCALES_TOKEN ? 1 : c->call->policy->quant_block_q;
    for (int32_t r = 0; r < tl_task_rows(t);) {
        const int32_t head = tl_head_of(c, r);
        const int64_t token = tl_token_of(c, r), first = token / block * block;
        const int64_t last = tl_min64(first + block, c->seq->lq) - 1;
        const int64_t mine = tl_min64(last, t->token0 + t->tokens - 1) - token + 1;
        const tl_quant z = given ? tl_given_quant(tl_query_scale(c, head, token))
                                 : tl_policy_quant(c->call->policy, tl_query_peak(x, head, first, last));
        for (int64_t i = 0; i < mine; i++) tl_quantise_query(x, r++, z);
    }
}

/* ---- packing */

/* Rows j .. j + TL_LANES - 1 of units c .. of a panel [units][16], given as rows. */
TL_INLINE void tl_store_square(float *panel, int32_t c, int32_t units, int32_t j, tl_v square[TL_LANES])
{
    tl_v_transpose(square);
    if (c + TL_LANES <= units)
        TL_UNROLL for (int i = 0; i < TL_LANES; i++) tl_v_store(panel + (c + i) * TL_PANEL + j, square[i]);
    else
        TL_UNROLL for (int i = 0; i < TL_LANES; i++) if (c + i < units)
            tl_v_store(panel + (c + i) * TL_PANEL + j, square[i]);
}

/* The high form of 16 keys, straight from the tensor. */
TL_INLINE void tl_pack_high_from(const tl_ctx *x, const tl_packed *p, int64_t key, const int32_t dtype)
{
    const tl_call *call = x->cpu.call;
    const tl_sequence *seq = x->cpu.seq;
    const unsigned char *rows[TL_PANEL];
    float *panel = p->high + (key - p->first) * x->d, scale[TL_PANEL];
    for (int32_t j = 0; j < TL_PANEL; j++) {
        const int64_t k = tl_min64(key + j, seq->lk - 1); /* what stands for keys that do not exist is never seen */
        rows[j] = tl_row(&call->k, seq->batch, seq->k_start, k, x->cpu.kv_head);
        scale[j] = tl_key_scale(call, seq, x->cpu.kv_head, k);
    }
    for (int32_t c = 0; c < x->d; c += TL_LANES)
        for (int32_t j = 0; j < TL_PANEL; j += TL_LANES) {
            tl_v square[TL_LANES];
            TL_UNROLL for (int i = 0; i < TL_LANES; i++)
            {
                square[i] = tl_load_lanes(rows[j + i], c, x->d - c, dtype);
                if (dtype == TL_I8) square[i] = tl_v_mul(square[i], tl_v_set(scale[j + i]));
            }
            tl_store_square(panel, c, x->d, j, square);
        }
}

static void tl_pack_high(const tl_ctx *x, const tl_packed *p, int64_t key)
{
    switch (x->cpu.call->k.dtype) {
    case TL_F32: tl_pack_high_from(x, p, key, TL_F32); break;
    case TL_F16: tl_pack_high_from(x, p, key, TL_F16); break;
    case TL_BF16: tl_pack_high_from(x, p, key, TL_BF16); break;
    default: tl_pack_high_from(x, p, key, TL_I8); break;
    }
}

/* Codes of 16 keys, and their scales. */
static void tl_pack_codes(const tl_ctx *x, const tl_packed *p, int64_t key)
{
    const tl_cpu *c = &x->cpu;
    const int64_t at = key - p->first;
    for (int32_t j = 0; j < TL_PANEL; j++) {
        const int used = key + j < c->seq->lk && tl_key_is_seen(c->seq, c->prepared, key + j) && !p->flagged[at + j];
        const tl_quant z = c->call->k.scale ? tl_given_quant(p->scale[at + j])
                                            : tl_policy_quant(c->call->policy, p->scale[at + j]);
        if (used)
            tl_widen_centred_key(x->tokens, c, key + j);
        else
            memset(x->tokens, 0, sizeof *x->tokens * (size_t)x->q_stride);
        tl_encode(x->codes + (int64_t)j * x->code_stride, x->tokens, x->d, z.inverse, TL_KEY_BIAS);
        p->scale[at + j] = tl_kernel_scale(z);
    }
    float *panel = (float *)(void *)(p->codes + at * x->units * TL_CODES);
    const float *units = (const float *)(const void *)x->codes; /* in fact: four bytes that stay together */
    for (int32_t u = 0; u < x->units; u += TL_LANES)
        for (int32_t j = 0; j < TL_PANEL; j += TL_LANES) {
            tl_v square[TL_LANES];
            TL_UNROLL for (int i = 0; i < TL_LANES; i++)
                square[i] = tl_v_load(units + (int64_t)(j + i) * (x->code_stride / TL_CODES) + u);
            tl_store_square(panel, u, x->units, j, square);
        }
}

/* V of 16 keys. Returns whether it holds a NaN or Inf. */
TL_INLINE int tl_pack_values_from(const tl_ctx *x, const tl_packed *p, int64_t key, const int32_t dtype)
{
    const tl_call *call = x->cpu.call;
    const tl_sequence *seq = x->cpu.seq;
    const tl_v zero = tl_v_set(0.f);
    tl_v bad = zero;
    for (int32_t j = 0; j < TL_PANEL; j++) {
        const int64_t k = tl_min64(key + j, seq->lk - 1);
        const int32_t dv = key + j < seq->lk ? x->dv : 0; /* P is 0 where no key is: V must be finite there */
        const unsigned char *row = tl_row(&call->v, seq->batch, seq->k_start, k, x->cpu.kv_head);
        const tl_v scale = tl_v_set(tl_value_scale(call, seq, x->cpu.kv_head, k));
        float *to = p->values + (key - p->first + j) * TL_PANEL;
        for (int32_t i = 0; i < x->o_stride; i += TL_PANEL, to += p->value_stride)
            for (int32_t l = 0; l < TL_PANEL; l += TL_LANES) {
                tl_v a = i + l < dv ? tl_load_lanes(row, i + l, dv - i - l, dtype) : zero;
                if (dtype == TL_I8) a = tl_v_mul(a, scale);
                bad = tl_v_fma(a, zero, bad); /* 0, or NaN for ever */
                tl_v_store(to + l, a);
            }
    }
    return tl_is_nan(tl_v_sum(bad));
}

static int tl_pack_values(const tl_ctx *x, const tl_packed *p, int64_t key)
{
    switch (x->cpu.call->v.dtype) {
    case TL_F32: return tl_pack_values_from(x, p, key, TL_F32);
    case TL_F16: return tl_pack_values_from(x, p, key, TL_F16);
    case TL_BF16: return tl_pack_values_from(x, p, key, TL_BF16);
    default: return tl_pack_values_from(x, p, key, TL_I8);
    }
}

/* Bit r is set if some tile of keys [begin, end) takes route r. */
static int tl_unit_routes(const tl_call *call, const tl_sequence *seq, int32_t kv_head, int64_t begin, int64_t end)
{
    const tlamp_policy *policy = call->policy;
    if (!seq->words) return policy->kind == TLAMP_POLICY_INT8 ? 1 << TL_INT8 : 1 << TL_HIGH;
    const int64_t group_keys = (int64_t)seq->group * policy->block_n, rows = tl_ceil_div(seq->lq, policy->block_m);
    int routes = 0;
    for (int64_t m = 0; m < rows; m++) {
        const uint64_t *words = seq->words + kv_head * call->words_head + m * call->words_row;
        for (int64_t group = begin / group_keys; group * group_keys < end; group++)
            routes |= 1 << tl_word_bit(words, group);
    }
    return routes;
}

/* Packs one unit, keys [begin, end) of which may lie beyond the last; routes as from tl_unit_routes. */
static void tl_pack_unit(const tl_ctx *x, const tl_packed *p, int64_t begin, int64_t end, int routes)
{
    if (x->cpu.call->shape.int8) tl_unit_scales(x, p, begin, end);
    for (int64_t key = begin; key < end; key += TL_PANEL) {
        int flags = tl_pack_values(x, p, key) ? VALUE_NONFINITE : 0;
        if (routes & 1 << TL_HIGH) tl_pack_high(x, p, key);
        if (routes & 1 << TL_INT8) {
            tl_pack_codes(x, p, key);
            for (int32_t j = 0; j < TL_PANEL; j++)
                if (p->flagged[key - p->first + j]) flags |= KEY_FLAGGED;
        }
        p->flags[(key - p->first) / TL_PANEL] = (unsigned char)flags;
    }
}

/* Some key of the panels at [at, at + n) of the packed ones has the flag. */
TL_INLINE int tl_flagged(const tl_ctx *x, int64_t at, int32_t n, int flag)
{
    int found = 0;
    for (int32_t j = 0; j < n; j += TL_PANEL) found |= x->packed.flags[(at + j) / TL_PANEL] & flag;
    return found;
}

/* ---- data movement */

TL_INLINE void tl_begin(tl_ctx *x, tl_acc *acc)
{
    const tl_cpu *c = &x->cpu;
    const int32_t rows = tl_task_rows(&c->task);
    for (int32_t r = 0; r < rows; r++) {
        tl_widen_query(x->q + (int64_t)r * x->q_stride, c, tl_head_of(c, r), tl_token_of(c, r));
    }
    x->some_q_flagged = 0;
    if (tl_meets(&c->task, TL_INT8)) tl_quantise_queries(x);
    acc->o = x->o;
    memset(x->o, 0, sizeof *x->o * (size_t)((int64_t)rows * x->o_stride));
}

TL_INLINE void tl_prefetch(tl_ctx *x, tl_span span)
{
    (void)x;
    (void)span;
}

static void tl_arrive(tl_ctx *x, tl_span span)
{
    if (!tl_packs_on_arrival(&x->cpu.call->shape)) return;
    const int64_t first = (int64_t)span.first * 64, past = tl_round_up(x->cpu.seq->lk, TL_PANEL);
    x->packed.first = first;
    for (int32_t i = 0; i < span.count; i++)
        tl_pack_unit(x, &x->packed, first + i * 64, tl_min64(first + i * 64 + 64, past), 1 << (span.route >> i & 1));
}

TL_INLINE void tl_leave(tl_ctx *x, tl_span span)
{
    (void)x;
    (void)span;
}

/* ---- register tiles: R rows by P panels, both constants where they are called. at: a place among the packed keys */

/* The next rows of a block that make a register tile. */
TL_INLINE int32_t tl_tile_rows(int32_t left)
{
    return left >= TL_TILE_ROWS ? TL_TILE_ROWS : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

/* Rows that make tiles of four and more: they take turns at each panel, so that it stays in the first-level cache. The
 * few left over take the panels in one go. */
TL_INLINE int32_t tl_big_rows(int32_t rows)
{
    int32_t r = 0;
    while (rows - r >= 4) r += tl_tile_rows(rows - r);
    return r;
}

TL_INLINE void tl_high_tile(const int R, const int P, const tl_ctx *x, int32_t row, int64_t at, float *s)
{
    const int vectors = P * TL_PARTS;
    const float *q = x->q + (int64_t)row * x->q_stride, *k = x->packed.high + at * x->d;
    const int64_t q_stride = x->q_stride, panel = (int64_t)x->d * TL_PANEL;
    tl_v a[TL_MOST_ROWS][TL_MOST_VECTORS];
    TL_UNROLL for (int i = 0; i < R; i++) TL_UNROLL for (int j = 0; j < vectors; j++) a[i][j] = tl_v_set(0.f);
    TL_UNROLL_4 for (int32_t c = 0, d = x->d; c < d; c++, k += TL_PANEL, q++)
    {
        tl_v b[TL_MOST_VECTORS];
        TL_UNROLL for (int j = 0; j < vectors; j++)
            b[j] = tl_v_load(k + j / TL_PARTS * panel + j % TL_PARTS * TL_LANES);
        TL_UNROLL for (int i = 0; i < R; i++)
        {
            const tl_v y = tl_v_set(q[i * q_stride]);
            TL_UNROLL for (int j = 0; j < vectors; j++) a[i][j] = tl_v_fma(y, b[j], a[i][j]);
        }
    }
    const tl_v factor = tl_v_set(x->factor);
    TL_UNROLL for (int i = 0; i < R; i++) TL_UNROLL for (int j = 0; j < vectors; j++)
        tl_v_store(s + i * TL_SCORE_STRIDE + j * TL_LANES, tl_v_mul(a[i][j], factor));
}

TL_INLINE int32_t tl_unit(const tl_qcode *codes)
{
    int32_t u;
    memcpy(&u, codes, sizeof u);
    return u;
}

TL_INLINE void tl_int8_tile(const int R, const int P, const tl_ctx *x, int32_t row, int64_t at, float *s)
{
    const int vectors = P * TL_PARTS;
    const int64_t q_stride = x->code_stride, panel = (int64_t)x->units * TL_PANEL * TL_CODES;
    const tl_qcode *q = x->q_codes + row * q_stride, *k = x->packed.codes + at * x->units * TL_CODES;
    tl_vi a[TL_MOST_ROWS][TL_MOST_VECTORS];
    TL_UNROLL for (int i = 0; i < R; i++) TL_UNROLL for (int j = 0; j < vectors; j++)
        a[i][j] = tl_vi_set(TL_KEY_BIAS == 0 ? 0 : x->q_start[row + i]);
    for (int32_t u = 0, units = x->units; u < units; u++, k += TL_PANEL * TL_CODES, q += TL_CODES) {
        tl_vi b[TL_MOST_VECTORS];
        TL_UNROLL for (int j = 0; j < vectors; j++)
            b[j] = tl_vi_load(k + j / TL_PARTS * panel + j % TL_PARTS * TL_LANES * TL_CODES);
        TL_UNROLL for (int i = 0; i < R; i++)
        {
            const tl_vi y = tl_vi_set(tl_unit(q + i * q_stride));
            TL_UNROLL for (int j = 0; j < vectors; j++) a[i][j] = tl_vi_dot(a[i][j], y, b[j]);
        }
    }
    const float *scale = x->packed.scale + at;
    TL_UNROLL for (int i = 0; i < R; i++) TL_UNROLL for (int j = 0; j < vectors; j++)
    {
        const tl_v f = tl_v_mul(tl_v_set(x->q_scale[row + i]), tl_v_load(scale + j * TL_LANES));
        const tl_v t = tl_v_fma(tl_v_from_int(a[i][j]), f, tl_v_set(x->q_mean[row + i]));
        tl_v_store(s + i * TL_SCORE_STRIDE + j * TL_LANES, t);
    }
}

/* O += P V: keys [at, at + n) and channels from channel panel c on. */
TL_INLINE void tl_value_tile(const int R, const int P, const tl_ctx *x, const float *p, int64_t at, int32_t n,
                             int32_t c, float *o)
{
    const int vectors = P * TL_PARTS;
    const int64_t o_stride = x->o_stride, panel = x->packed.value_stride;
    const float *v = x->packed.values + c * panel + at * TL_PANEL;
    o += c * TL_PANEL;
    tl_v a[TL_MOST_ROWS][TL_MOST_VECTORS];
    TL_UNROLL for (int i = 0; i < R; i++) TL_UNROLL for (int j = 0; j < vectors; j++)
        a[i][j] = tl_v_load(o + i * o_stride + j * TL_LANES);
    TL_UNROLL_4 for (int32_t k = 0; k < n; k++, v += TL_PANEL, p++)
    {
        tl_v b[TL_MOST_VECTORS];
        TL_UNROLL for (int j = 0; j < vectors; j++)
            b[j] = tl_v_load(v + j / TL_PARTS * panel + j % TL_PARTS * TL_LANES);
        TL_UNROLL for (int i = 0; i < R; i++)
        {
            const tl_v y = tl_v_set(p[i * TL_SCORE_STRIDE]);
            TL_UNROLL for (int j = 0; j < vectors; j++) a[i][j] = tl_v_fma(y, b[j], a[i][j]);
        }
    }
    TL_UNROLL for (int i = 0; i < R; i++) TL_UNROLL for (int j = 0; j < vectors; j++)
        tl_v_store(o + i * o_stride + j * TL_LANES, a[i][j]);
}

/* ---- products of a few rows: register tiles side by side */

TL_INLINE void tl_high_tiles(const int R, const int P, const tl_ctx *x, int32_t row, int64_t at, int32_t n, float *s)
{
    int32_t j = 0;
    for (; j + P * TL_PANEL <= n; j += P * TL_PANEL) tl_high_tile(R, P, x, row, at + j, s + j);
    for (; P > 1 && j < n; j += TL_PANEL) tl_high_tile(R, 1, x, row, at + j, s + j);
}

static void tl_high_rows(const tl_ctx *x, int32_t row, int32_t rows, int64_t at, int32_t n, float *s)
{
    switch (rows) {
    case TL_TILE_ROWS: tl_high_tiles(TL_TILE_ROWS, TL_TILE_PANELS, x, row, at, n, s); break;
    case 4: tl_high_tiles(4, TL_TILE4_PANELS, x, row, at, n, s); break;
    case 2: tl_high_tiles(2, TL_TILE2_PANELS, x, row, at, n, s); break;
    default: tl_high_tiles(1, TL_TILE1_PANELS, x, row, at, n, s); break;
    }
}

TL_INLINE void tl_int8_tiles(const int R, const int P, const tl_ctx *x, int32_t row, int64_t at, int32_t n, float *s)
{
    int32_t j = 0;
    for (; j + P * TL_PANEL <= n; j += P * TL_PANEL) tl_int8_tile(R, P, x, row, at + j, s + j);
    for (; P > 1 && j < n; j += TL_PANEL) tl_int8_tile(R, 1, x, row, at + j, s + j);
}

static void tl_int8_rows(const tl_ctx *x, int32_t row, int32_t rows, int64_t at, int32_t n, float *s)
{
    switch (rows) {
    case TL_TILE_ROWS: tl_int8_tiles(TL_TILE_ROWS, TL_TILE_PANELS, x, row, at, n, s); break;
    case 4: tl_int8_tiles(4, TL_TILE4_PANELS, x, row, at, n, s); break;
    case 2: tl_int8_tiles(2, TL_TILE2_PANELS, x, row, at, n, s); break;
    default: tl_int8_tiles(1, TL_TILE1_PANELS, x, row, at, n, s); break;
    }
}

TL_INLINE void tl_value_tiles(const int R, const int P, const tl_ctx *x, const float *p, int64_t at, int32_t n,
                              int32_t c, int32_t end, float *o)
{
    for (; c + P <= end; c += P) tl_value_tile(R, P, x, p, at, n, c, o);
    for (; P > 1 && c < end; c++) tl_value_tile(R, 1, x, p, at, n, c, o);
}

static void tl_value_rows(const tl_ctx *x, int32_t rows, const float *p, int64_t at, int32_t n, int32_t c, int32_t end,
                          float *o)
{
    switch (rows) {
    case TL_TILE_ROWS: tl_value_tiles(TL_TILE_ROWS, TL_TILE_PANELS, x, p, at, n, c, end, o); break;
    case 4: tl_value_tiles(4, TL_TILE4_PANELS, x, p, at, n, c, end, o); break;
    case 2: tl_value_tiles(2, TL_TILE2_PANELS, x, p, at, n, c, end, o); break;
    default: tl_value_tiles(1, TL_TILE1_PANELS, x, p, at, n, c, end, o); break;
    }
}

/* ---- products of a row block */

TL_INLINE void tl_scores_of(const tl_ctx *x, int route, int32_t row, int32_t rows, int64_t at, int32_t n, float *s)
{
    if (route == TL_INT8)
        tl_int8_rows(x, row, rows, at, n, s);
    else
        tl_high_rows(x, row, rows, at, n, s);
}

/* Keys [at, at + n), all of one route. */
static void tl_scores_run(const tl_ctx *x, int route, int32_t row, int32_t rows, int64_t at, int32_t n, float *s)
{
    const int32_t big = tl_big_rows(rows), chunk = TL_TILE_PANELS * TL_PANEL;
    for (int32_t j = 0; big && j < n; j += chunk)
        for (int32_t r = 0, step; r < big; r += step) {
            step = tl_tile_rows(rows - r);
            tl_scores_of(x, route, row + r, step, at + j, tl_least(chunk, n - j), s + r * TL_SCORE_STRIDE + j);
        }
    for (int32_t r = big, step; r < rows; r += step) {
        step = tl_tile_rows(rows - r);
        tl_scores_of(x, route, row + r, step, at, n, s + r * TL_SCORE_STRIDE);
    }
}

/* Pairs whose query or key was left out of INT8 (ALGORITHMS A2). */
static void tl_scores_flagged(const tl_ctx *x, int32_t row, int32_t rows, int64_t key, int32_t n, float *s)
{
    const int64_t at = key - x->packed.first;
    if (!x->some_q_flagged && !tl_flagged(x, at, n, KEY_FLAGGED)) return;
    for (int32_t r = 0; r < rows; r++)
        for (int32_t j = 0; j < n && key + j < x->cpu.seq->lk; j++)
            if (x->q_flagged[row + r] || x->packed.flagged[at + j])
                s[r * TL_SCORE_STRIDE + j] = tl_dot_flagged(&x->cpu, x->q + (int64_t)(row + r) * x->q_stride, key + j) *
                                             x->factor;
}

static void tl_scores_issue(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    const tl_task *t = &x->cpu.task;
    const int32_t first = rb * TL_ROWS, rows = tl_rows_here(x, rb), tile = t->tile_keys;
    const int64_t key = (int64_t)span.first * tile;
    const int64_t seen = tl_key_end(&t->mask, tl_row_tokens(t, first, rows).last) - key;
    s->s = x->scores;
    s->cols = (int32_t)tl_round_up(tl_min64(seen, (int64_t)span.count * tile), TL_PANEL);
    for (int32_t j = 0, n; j < s->cols; j += n) {
        const int route = span.route >> (j / tile) & 1;
        for (n = tile; j + n < s->cols && (span.route >> ((j + n) / tile) & 1) == route;) n += tile;
        n = tl_least(n, s->cols - j);
        tl_scores_run(x, route, first, rows, key - x->packed.first + j, n, s->s + j);
        if (route == TL_INT8) tl_scores_flagged(x, first, rows, key + j, n, s->s + j);
    }
}

TL_INLINE void tl_scores_wait(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    (void)x;
    (void)s;
    (void)span;
    (void)rb;
}

/* Keys [at, at + n) of the packed ones, whose V is finite. */
static void tl_values_run(const tl_ctx *x, int32_t rows, const float *p, int64_t at, int32_t n, float *o)
{
    const int32_t big = tl_big_rows(rows), panels = x->o_stride / TL_PANEL;
    for (int32_t c = 0; big && c < panels; c += TL_TILE_PANELS)
        for (int32_t r = 0, step; r < big; r += step) {
            step = tl_tile_rows(rows - r);
            tl_value_rows(x, step, p + r * TL_SCORE_STRIDE, at, n, c, tl_least(c + TL_TILE_PANELS, panels),
                          o + (int64_t)r * x->o_stride);
        }
    for (int32_t r = big, step; r < rows; r += step) {
        step = tl_tile_rows(rows - r);
        tl_value_rows(x, step, p + r * TL_SCORE_STRIDE, at, n, 0, panels, o + (int64_t)r * x->o_stride);
    }
}

/* One panel of keys some of whose V is not finite. A key that the row does not see is left out: 0 * NaN is NaN. */
static void tl_values_nonfinite(const tl_ctx *x, int32_t row, int32_t rows, const float *p, int64_t key, float *o)
{
    for (int32_t r = 0; r < rows; r++)
        for (int32_t j = 0; j < TL_PANEL; j++)
            if (tl_row_sees(&x->cpu, row + r, key + j))
                tl_value_rows(x, 1, p + r * TL_SCORE_STRIDE + j, key - x->packed.first + j, 1, 0,
                              x->o_stride / TL_PANEL, o + (int64_t)r * x->o_stride);
}

static void tl_values_issue(tl_ctx *x, tl_acc *acc, tl_scores *s, tl_span span, int32_t rb)
{
    const int32_t first = rb * TL_ROWS, rows = tl_rows_here(x, rb);
    const int64_t key = (int64_t)span.first * x->cpu.task.tile_keys, at = key - x->packed.first;
    float *o = acc->o + (int64_t)first * x->o_stride;
    for (int32_t j = 0, n; j < s->cols; j += n) {
        n = TL_PANEL;
        if (tl_flagged(x, at + j, TL_PANEL, VALUE_NONFINITE)) {
            tl_values_nonfinite(x, first, rows, s->s + j, key + j, o);
            continue;
        }
        while (j + n < s->cols && !tl_flagged(x, at + j + n, TL_PANEL, VALUE_NONFINITE)) n += TL_PANEL;
        tl_values_run(x, rows, s->s + j, at + j, n, o);
    }
}

TL_INLINE void tl_values_wait(tl_ctx *x, tl_acc *acc)
{
    (void)x;
    (void)acc;
}

/* ---- score epilogue */

TL_INLINE void tl_sinks(const tl_ctx *x, int32_t rb, float sink[TL_ROWS])
{
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < TL_ROWS; r++)
        sink[r] = r < n ? tl_sink_of(&x->cpu, rb * TL_ROWS + r) : TL_NEVER;
}

/* As tl_log2_logit. */
TL_INLINE tl_v tl_v_log2_logit(tl_v s)
{
    const tl_v limit = tl_v_set(2.35e38f), clamped = tl_v_max(tl_v_min(s, limit), tl_v_sub(tl_v_set(0.f), limit));
    const tl_v kept = tl_v_pick(tl_m_less(tl_v_abs(s), tl_v_set(TL_INF)), clamped, s);
    return tl_v_mul(kept, tl_v_set(TL_LOG2E));
}

/* As tl_tanh: a polynomial near 0, elsewhere 1 - 2 / (e^2x + 1). */
TL_INLINE tl_v tl_v_tanh(tl_v x)
{
    const tl_v one = tl_v_set(1.f), two = tl_v_set(2.f), z = tl_v_mul(x, x);
    tl_v p = tl_v_set(0.00227270322f);
    p = tl_v_fma(p, z, tl_v_set(-0.00832640007f));
    p = tl_v_fma(p, z, tl_v_set(0.0217636321f));
    p = tl_v_fma(p, z, tl_v_set(-0.0539586246f));
    p = tl_v_fma(p, z, tl_v_set(0.133333012f));
    p = tl_v_fma(p, z, tl_v_set(-0.333333343f));
    const tl_v small = tl_v_fma(tl_v_mul(x, z), p, x);
    const tl_v most = tl_v_min(tl_v_set(16.f), tl_v_abs(x)); /* NaN is kept; tanh 16 is 1 in f32 */
    const tl_v e = tl_v_exp2(tl_v_mul(most, tl_v_set(2.f * TL_LOG2E)));
    const tl_v t = tl_v_sub(one, tl_v_div(two, tl_v_add(e, one)));
    const tl_v large = tl_v_pick(tl_m_less(x, tl_v_set(0.f)), tl_v_sub(tl_v_set(0.f), t), t);
    return tl_v_pick(tl_m_less(z, tl_v_set(0.4f)), small, large);
}

/* tl_logits_row for neighbouring bias elements (or one for all keys) and positions that a float holds exactly. */
static void tl_logits_lanes(const tl_ctx *x, float *s, int32_t row, int64_t key, int32_t cols)
{
    const tl_cpu *c = &x->cpu;
    const tl_call *call = c->call;
    const int32_t head = tl_head_of(c, row), n = tl_least(cols, c->seq->lk - key);
    const int64_t token = tl_token_of(c, row), distance = key - (token + c->seq->lk - c->seq->lq);
    const float slope = call->alibi_slopes ? call->alibi_slopes[c->seq->batch * call->alibi_batch_stride + head] : 0.f;
    const int64_t bias_at = call->bias.data ? tl_score_offset(&call->bias, c->seq->batch, head, token, key) : 0;
    const unsigned char *bias = call->bias.data ? call->bias.data + bias_at * tl_dtype_bytes(call->bias.dtype) : NULL;
    const tl_v cap = tl_v_set(call->softcap), scale = tl_v_set(call->softmax_scale);
    for (int32_t i = 0; i < n; i += TL_LANES) {
        tl_v y = tl_v_mul(tl_v_load(s + i), scale);
        if (call->softcap > 0.f) y = tl_v_mul(cap, tl_v_tanh(tl_v_div(y, cap)));
        if (call->alibi_slopes) {
            const tl_vi at = tl_vi_add(tl_vi_set((int32_t)distance + i), tl_iota());
            y = tl_v_sub(y, tl_v_mul(tl_v_set(slope), tl_v_abs(tl_v_from_int(at))));
        }
        if (bias && call->bias.k == 1) y = tl_v_add(y, tl_load_lanes(bias, i, n - i, call->bias.dtype));
        if (bias && call->bias.k == 0) y = tl_v_add(y, tl_v_set(tl_load(bias, 0, call->bias.dtype)));
        tl_v_store(s + i, tl_v_log2_logit(y));
    }
}

static void tl_logits(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    const tl_call *call = x->cpu.call;
    const int64_t key = (int64_t)span.first * x->cpu.task.tile_keys, far = (int64_t)1 << 30;
    if (tl_logits_are_plain(call)) return; /* the products have applied the factor */
    const int lanes = (!call->bias.data || call->bias.k == 1 || call->bias.k == 0) && x->cpu.seq->lk < far &&
                      x->cpu.seq->lq < far;
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < n; r++) {
        float *row = s->s + r * TL_SCORE_STRIDE;
        if (lanes)
            tl_logits_lanes(x, row, rb * TL_ROWS + r, key, s->cols);
        else
            tl_logits_row(&x->cpu, row, rb * TL_ROWS + r, key, s->cols);
    }
}

/* -Inf in keys [begin, end) that a boolean mask or a bias of -Inf hides: elements that are neighbours, or one for all. */
static void tl_mask_lanes(const tl_ctx *x, float *s, int32_t row, int64_t key, int32_t begin, int32_t end)
{
    const tl_cpu *c = &x->cpu;
    const tl_score_operand *mask = &c->call->bool_mask, *bias = &c->call->bias;
    const int32_t head = tl_head_of(c, row);
    const int64_t token = tl_token_of(c, row), batch = c->seq->batch;
    const tl_v never = tl_v_set(-TL_INF);
    for (int32_t i = begin; i < end; i += TL_LANES) {
        const int32_t n = tl_least(end - i, TL_LANES);
        tl_v y = n < TL_LANES ? tl_v_load_part(s + i, n) : tl_v_load(s + i);
        if (mask->data) {
            const unsigned char *m = mask->data + tl_score_offset(mask, batch, head, token, key + i);
            if (mask->k == 1)
                y = tl_v_pick(tl_m_bytes(m, n), y, never);
            else if (!*m)
                y = never;
        }
        if (bias->data) {
            const int64_t at = tl_score_offset(bias, batch, head, token, key + i);
            const tl_v b = bias->k == 1 ? tl_load_lanes(bias->data, at, n, bias->dtype)
                                        : tl_v_set(tl_load(bias->data, at, bias->dtype));
            y = tl_v_pick(tl_m_equal(b, never), never, y);
        }
        if (n < TL_LANES)
            tl_v_store_part(s + i, y, n);
        else
            tl_v_store(s + i, y);
    }
}

/* -Inf in [from, to), multiples of TL_LANES, outside [begin, end). */
TL_INLINE void tl_hide_outside(float *s, int32_t from, int32_t to, int32_t begin, int32_t end)
{
    const tl_v never = tl_v_set(-TL_INF);
    for (int32_t i = from; i < to; i += TL_LANES) {
        const tl_v y = tl_v_pick(tl_m_first(end - i), tl_v_load(s + i), never);
        tl_v_store(s + i, tl_v_pick(tl_m_first(begin - i), never, y));
    }
}

static void tl_mask(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    const tl_cpu *c = &x->cpu;
    const int64_t key = (int64_t)span.first * c->task.tile_keys;
    const int64_t mask_k = c->call->bool_mask.data ? c->call->bool_mask.k : 1;
    const int64_t bias_k = c->call->bias.data ? c->call->bias.k : 1;
    const int lanes = (mask_k == 0 || mask_k == 1) && (bias_k == 0 || bias_k == 1);
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < n; r++) {
        float *row = s->s + r * TL_SCORE_STRIDE;
        if (c->task.scattered && !lanes) {
            tl_mask_row(c, row, rb * TL_ROWS + r, key, s->cols);
            continue;
        }
        const int64_t token = tl_token_of(c, rb * TL_ROWS + r);
        const int32_t begin = (int32_t)tl_clamp64(tl_key_begin(&c->task.mask, token) - key, 0, s->cols);
        const int32_t end = (int32_t)tl_clamp64(tl_key_end(&c->task.mask, token) - key, begin, s->cols);
        const int32_t low = (int32_t)tl_round_up(begin, TL_LANES), high = end / TL_LANES * TL_LANES;
        if (c->task.scattered) tl_mask_lanes(x, row, rb * TL_ROWS + r, key, begin, end);
        tl_hide_outside(row, 0, low, begin, end);
        tl_hide_outside(row, high, s->cols, begin, end);
    }
}

static void tl_row_max(const tl_ctx *x, const tl_scores *s, tl_span span, int32_t rb, float top[TL_ROWS])
{
    (void)span;
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < TL_ROWS; r++) {
        tl_v lane[2] = {tl_v_set(-TL_INF), tl_v_set(-TL_INF)};
        const float *row = s->s + r * TL_SCORE_STRIDE;
        for (int32_t i = 0; r < n && i < s->cols; i += TL_PANEL)
            TL_UNROLL for (int j = 0; j < TL_PARTS; j++) lane[j] = tl_v_max(tl_v_load(row + i + j * TL_LANES), lane[j]);
        top[r] = tl_v_top(tl_v_max(lane[0], lane[1])); /* NaN is not a maximum */
    }
}

TL_INLINE void tl_row_join_max(const tl_ctx *x, float *top)
{
    (void)x;
    (void)top;
}

TL_INLINE void tl_row_join_sum(const tl_ctx *x, float *sum)
{
    (void)x;
    (void)sum;
}

TL_INLINE int tl_any(const tl_ctx *x, int predicate)
{
    (void)x;
    return predicate;
}

/* The logits were rounded when the products were stored, so that the largest minus itself is 0 whatever its size. */
static void tl_exp(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb, const float ref[TL_ROWS], float sum[TL_ROWS])
{
    (void)span;
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < TL_ROWS; r++) {
        tl_v lane[2] = {tl_v_set(0.f), tl_v_set(0.f)};
        const tl_v m = tl_v_set(ref[r]);
        float *row = s->s + r * TL_SCORE_STRIDE;
        for (int32_t i = 0; r < n && i < s->cols; i += TL_PANEL) TL_UNROLL for (int j = 0; j < TL_PARTS; j++)
            {
                const tl_v p = tl_v_exp2(tl_v_sub(tl_v_load(row + i + j * TL_LANES), m));
                tl_v_store(row + i + j * TL_LANES, p);
                lane[j] = tl_v_add(lane[j], p);
            }
        sum[r] = tl_v_sum(tl_v_add(lane[0], lane[1]));
    }
}

TL_INLINE void tl_rescale(tl_ctx *x, tl_acc *acc, int32_t rb, const float lambda[TL_ROWS])
{
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < n; r++) {
        float *o = acc->o + (int64_t)(rb * TL_ROWS + r) * x->o_stride;
        for (int32_t i = 0; lambda[r] != 1.f && i < x->o_stride; i += TL_LANES)
            tl_v_store(o + i, tl_v_mul(tl_v_load(o + i), tl_v_set(lambda[r])));
    }
}

/* ---- end */

static void tl_store(tl_ctx *x, const tl_acc *acc, int32_t rb, const float m[TL_ROWS], const float l[TL_ROWS])
{
    const tl_cpu *c = &x->cpu;
    const tl_call *call = c->call;
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < n; r++) {
        const int32_t row = rb * TL_ROWS + r, head = tl_head_of(c, row);
        const int64_t token = tl_token_of(c, row);
        unsigned char *to = tl_out_row(&call->o, c->seq->batch, c->seq->q_start, token, head);
        const float *o = acc->o + (int64_t)row * x->o_stride;
        const int empty = l[r] == 0.f; /* no key was seen: O is 0, whatever V holds */
        const tl_v inverse = tl_v_set(1.f / l[r]), zero = tl_v_set(0.f);
        for (int32_t i = 0; i < x->dv; i += TL_LANES)
            tl_store_lanes(to, i, x->dv - i, call->o.dtype, empty ? zero : tl_v_mul(tl_v_load(o + i), inverse));
        if (!call->lse) continue;
        const tlamp_lse_strides *s = &call->lse_stride;
        call->lse[c->seq->batch * s->batch + head * s->head + (c->seq->q_start + token) * s->seq] =
            empty ? -TL_INF : (m[r] + log2f(l[r])) * TL_LN2;
    }
}

#include "core/tile_loop.inc.h"

/* ---- what a tl_kernel is made of */

static int tl_supports(const tlamp_problem *problem)
{
    const tlamp_policy *p = problem->policy;
    const int kind = p->kind == TLAMP_POLICY_HIGH || p->kind == TLAMP_POLICY_INT8 || p->kind == TLAMP_POLICY_ROUTED;
    return kind && (p->pv == TLAMP_PV_AUTO || p->pv == TLAMP_PV_F32) && p->state == TLAMP_STATE_F32;
}

static size_t tl_scratch_bytes(const tl_shape *shape)
{
    tl_ctx x;
    tl_arena a = {NULL, 0};
    tl_lay_out(&x, shape, &a);
    return a.used;
}

static size_t tl_packed_bytes(const tl_shape *shape, int64_t lk)
{
    tl_arena a = {NULL, 0};
    if (!tl_packs_on_arrival(shape)) (void)tl_lay_out_packed(shape, lk, &a);
    return a.used;
}

static void tl_start(tl_ctx *x, void *scratch)
{
    const tl_cpu *c = &x->cpu;
    const tl_shape *shape = &c->call->shape;
    tl_lay_out(x, shape, &(tl_arena){scratch, 0});
    if (!tl_packs_on_arrival(shape))
        x->packed = tl_lay_out_packed(shape, c->seq->lk, &(tl_arena){c->prepared->packed, 0});
}

static void tl_pack(const tl_call *call, const tl_sequence *seq, const tl_prepared *prepared, int32_t kv_head,
                    int64_t unit, void *scratch, tl_worker_counters *counters)
{
    tl_ctx x = {.cpu = {.call = call, .seq = seq, .prepared = prepared, .counters = counters, .kv_head = kv_head}};
    tl_start(&x, scratch);
    const int64_t begin = unit * call->shape.unit_keys;
    const int64_t end = tl_min64(begin + call->shape.unit_keys, tl_round_up(seq->lk, TL_PANEL));
    tl_pack_unit(&x, &x.packed, begin, end, tl_unit_routes(call, seq, kv_head, begin, end));
}

static void tl_attend(const tl_call *call, const tl_sequence *seq, const tl_prepared *prepared, const tl_task *task,
                      int32_t head, void *scratch, tl_worker_counters *counters)
{
    tl_ctx x = {.cpu = {*task, call, seq, prepared, counters, head, head / call->shape.group_heads}};
    tl_start(&x, scratch);
    x.factor = tl_logits_are_plain(call) ? call->softmax_scale * TL_LOG2E : 1.f;
    tl_tile_loop(&x);
}
