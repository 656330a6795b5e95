/* The scalar vocabulary: plain C with loops over LANES neighbouring keys or channels, which compilers turn into vectors.
 * K tiles lie in panels of LANES keys, [d][LANES]; high panels are made on arrival from the caller's tensor, INT8 panels
 * once per call by tl_pack. */
#ifndef TL_CPU_SIMD_SCALAR_H
#define TL_CPU_SIMD_SCALAR_H

#include <math.h>
#include <string.h>

#include "core/online_softmax.h"
#include "core/quantize.h"
#include "core/task.h"
#include "kernel.h"
#include "workspace.h"

enum { LANES = 16 };

#define TL_ROWS 8
#define TL_ROW_BLOCKS 64
#define TL_SPAN_MAX 4
#define TL_SPAN_MIXED 1
#define TL_LAZY 8.f

enum { SPAN_KEYS = TL_SPAN_MAX * 64 };

/* INT8 keys of one KV head, as tl_pack leaves them. */
typedef struct {
    int8_t *codes;          /* [ceil(lk / LANES)][d][LANES] */
    float *scale;           /* per key; 1 where the block is zero: 0 * -Inf would be NaN */
    unsigned char *flagged; /* per key: holds a NaN or Inf, its logits come from the high path */
} tl_packed;

typedef struct {
    tl_task task;
    const tl_call *call;
    const tl_sequence *seq;
    const tl_prepared *prepared;
    tl_worker_counters *counters;
    int32_t head, kv_head; /* first query head; KV head */
    int32_t d, dv, dv_pad;
    tl_packed keys;

    /* scratch */
    float *q;                 /* [rows][d] */
    int8_t *q_codes;          /* [rows][d] */
    float *q_scale;           /* [rows] */
    float *q_mean;            /* [rows] q . mean of K, with smooth_k */
    unsigned char *q_flagged; /* [rows] */
    float *k;                 /* [SPAN_KEYS / LANES][d][LANES] */
    float *v;                 /* [SPAN_KEYS][dv_pad] */
    float *o;                 /* [rows][dv_pad] */
    float *scores;            /* [TL_ROWS][SPAN_KEYS] */
    float *row;               /* [max(d, dv)] */
    int32_t arrived;          /* first tile of the span in k and v */
    unsigned char v_nonfinite[TL_SPAN_MAX];
} tl_ctx;

/* Scores of one row block against its part of a span. They are q . k until tl_logits. */
typedef struct {
    float *s;     /* [TL_ROWS][SPAN_KEYS] */
    int32_t cols; /* in use: a multiple of LANES, no further than the block's last row sees */
} tl_scores;

typedef struct {
    float *o;
} tl_acc;

/* ---- memory */

/* Lays the scratch out; with base NULL only to learn the size. */
static void tl_lay_out(tl_ctx *x, const tl_shape *shape, tl_arena *a)
{
    const int64_t rows = tl_round_up((int64_t)shape->task_tokens * shape->task_heads, TL_ROWS);
    x->d = shape->head_dim_qk;
    x->dv = shape->head_dim_v;
    x->dv_pad = (int32_t)tl_round_up(x->dv, LANES);
    x->q = tl_take(a, rows * x->d * 4);
    x->q_codes = tl_take(a, shape->int8 ? rows * x->d : 0);
    x->q_scale = tl_take(a, shape->int8 ? rows * 4 : 0);
    x->q_mean = tl_take(a, shape->int8 ? rows * 4 : 0);
    x->q_flagged = tl_take(a, shape->int8 ? rows : 0);
    x->k = tl_take(a, (int64_t)SPAN_KEYS * x->d * 4);
    x->v = tl_take(a, (int64_t)SPAN_KEYS * x->dv_pad * 4);
    x->o = tl_take(a, rows * x->dv_pad * 4);
    x->scores = tl_take(a, (int64_t)TL_ROWS * SPAN_KEYS * 4);
    x->row = tl_take(a, (x->d > x->dv ? x->d : x->dv) * (int64_t)4);
}

static tl_packed tl_lay_out_keys(const tl_shape *shape, int64_t lk, tl_arena *a)
{
    const int64_t keys = tl_round_up(lk, LANES);
    tl_packed p;
    p.codes = tl_take(a, shape->int8 ? keys * shape->head_dim_qk : 0);
    p.scale = tl_take(a, shape->int8 ? keys * 4 : 0);
    p.flagged = tl_take(a, shape->int8 ? keys : 0);
    return p;
}

TL_INLINE tl_packed tl_packed_keys(const tl_call *call, const tl_sequence *seq, const tl_prepared *prepared)
{
    tl_arena a = {prepared->packed, 0};
    return tl_lay_out_keys(&call->shape, seq->lk, &a);
}

/* ---- quantising */

TL_INLINE tl_quant tl_policy_quant(const tlamp_policy *policy, float amax)
{
    return policy->scales == TLAMP_SCALES_BLOCK_F16 ? tl_quant_make_f16(amax) : tl_quant_make(amax);
}

TL_INLINE void tl_load_key(float *to, const tl_call *call, const tl_sequence *seq, const tl_prepared *prepared,
                           int32_t kv_head, int64_t key)
{
    const int32_t d = call->shape.head_dim_qk;
    tl_load_row(to, tl_row(&call->k, seq->batch, seq->k_start, key, kv_head), d, call->k.dtype);
    if (prepared->mean)
        for (int32_t c = 0; c < d; c++)
            to[c] -= prepared->mean[c];
}

static void tl_pack(const tl_call *call, const tl_sequence *seq, const tl_prepared *prepared, int32_t kv_head,
                    int64_t unit, void *scratch, tl_worker_counters *counters)
{
    tl_ctx x;
    tl_lay_out(&x, &call->shape, &(tl_arena){scratch, 0});
    const tl_packed p = tl_packed_keys(call, seq, prepared);
    const int32_t d = x.d;
    const int64_t begin = unit * call->shape.unit_keys;
    const int64_t end = tl_min64(begin + call->shape.unit_keys, tl_round_up(seq->lk, LANES));
    const int per_token = call->policy->scales == TLAMP_SCALES_TOKEN;

    float block = 0.f;
    for (int64_t key = begin; key < end; key++) { /* scale[] holds the token's maximum until the block's is known */
        float amax = 0.f;
        if (key < seq->lk && tl_key_is_seen(seq, prepared, key)) {
            tl_load_key(x.row, call, seq, prepared, kv_head, key);
            amax = tl_row_amax(x.row, d);
        }
        p.flagged[key] = !tl_is_finite(amax);
        counters->nonfinite_tokens += p.flagged[key];
        p.scale[key] = p.flagged[key] ? 0.f : amax;
        block = tl_max(p.scale[key], block);
    }
    for (int64_t key = begin; key < end; key++) {
        int8_t *codes = p.codes + key / LANES * LANES * d + key % LANES;
        const int used = key < seq->lk && tl_key_is_seen(seq, prepared, key) && !p.flagged[key];
        const tl_quant z = tl_policy_quant(call->policy, per_token ? p.scale[key] : block);
        if (used) tl_load_key(x.row, call, seq, prepared, kv_head, key);
        for (int32_t c = 0; c < d; c++)
            codes[(int64_t)c * LANES] = (int8_t)(used ? tl_code(x.row[c], z.inverse) : 0);
        p.scale[key] = z.scale > 0.f ? z.scale : 1.f;
    }
}

/* The largest magnitude of a block of query tokens, over rows that see a key and hold no NaN or Inf. */
static float tl_query_amax(tl_ctx *x, int32_t head, int64_t first, int64_t last)
{
    float top = 0.f;
    for (int64_t token = first; token <= last; token++) {
        if (!tl_row_sees_a_key(x->call, x->seq, head, token)) continue;
        tl_load_row(x->row, tl_row(&x->call->q, x->seq->batch, x->seq->q_start, token, head), x->d, x->call->q.dtype);
        const float amax = tl_row_amax(x->row, x->d);
        if (tl_is_finite(amax)) top = tl_max(amax, top);
    }
    return top;
}

TL_INLINE void tl_quantise_query(tl_ctx *x, int32_t row, tl_quant z)
{
    const float *q = x->q + (int64_t)row * x->d;
    int8_t *codes = x->q_codes + (int64_t)row * x->d;
    x->q_flagged[row] = !tl_is_finite(tl_row_amax(q, x->d));
    x->counters->nonfinite_tokens += x->q_flagged[row];
    for (int32_t c = 0; c < x->d; c++)
        codes[c] = (int8_t)(x->q_flagged[row] ? 0 : tl_code(q[c], z.inverse));
    x->q_scale[row] = z.scale > 0.f ? z.scale : 1.f;
    float mean = 0.f;
    if (x->prepared->mean)
        for (int32_t c = 0; c < x->d; c++)
            mean += q[c] * x->prepared->mean[c];
    x->q_mean[row] = mean;
}

/* One scale per quant_block_q tokens of a head, counted in the sequence: a block may begin before the task and end after. */
static void tl_quantise_queries(tl_ctx *x)
{
    const tl_task *t = &x->task;
    const int per_token = x->call->policy->scales == TLAMP_SCALES_TOKEN;
    const int64_t block = per_token ? 1 : x->call->policy->quant_block_q;
    for (int32_t row = 0; row < tl_task_rows(t);) {
        const int32_t head = x->head + row / t->tokens;
        const int64_t token = t->token0 + row % t->tokens, first = token / block * block;
        const int64_t last = tl_min64(first + block, x->seq->lq) - 1;
        const int64_t mine = tl_min64(last, t->token0 + t->tokens - 1) - token + 1;
        const tl_quant z = tl_policy_quant(x->call->policy, tl_query_amax(x, head, first, last));
        for (int64_t i = 0; i < mine; i++)
            tl_quantise_query(x, row++, z);
    }
}

/* ---- data movement */

TL_INLINE void tl_load_queries(tl_ctx *x)
{
    const tl_task *t = &x->task;
    for (int32_t row = 0; row < tl_task_rows(t); row++)
        tl_load_row(
            x->q + (int64_t)row * x->d,
            tl_row(&x->call->q, x->seq->batch, x->seq->q_start, t->token0 + row % t->tokens, x->head + row / t->tokens),
            x->d, x->call->q.dtype);
}

/* Does any tile that the task meets take INT8? Then Q is quantised. */
TL_INLINE int tl_meets_int8(const tl_task *t)
{
    for (int32_t tile = tl_tile_low(t), end = tl_tile_end(t); tile < end; tile++)
        if (tl_route(t, tile) == TL_INT8) return 1;
    return 0;
}

TL_INLINE void tl_begin(tl_ctx *x, tl_acc *acc)
{
    tl_load_queries(x);
    if (tl_meets_int8(&x->task)) tl_quantise_queries(x);
    acc->o = x->o;
    memset(x->o, 0, sizeof *x->o * (size_t)(tl_task_rows(&x->task) * (int64_t)x->dv_pad));
}

TL_INLINE void tl_prefetch(tl_ctx *x, tl_span span)
{
    (void)x;
    (void)span;
}

/* K of the span's high tiles to f32 panels, V to f32 rows. Lanes beyond the last key are 0. */
static void tl_arrive(tl_ctx *x, tl_span span)
{
    const int32_t tile = x->task.tile_keys;
    x->arrived = span.first;
    for (int32_t i = 0; i < span.count; i++) {
        float *k = x->k + (int64_t)i * tile * x->d, *v = x->v + (int64_t)i * tile * x->dv_pad;
        unsigned exponents = 0;
        for (int32_t j = 0; j < tile; j++) {
            const int64_t key = (int64_t)(span.first + i) * tile + j;
            const int used = key < x->seq->lk;
            if (!(span.route >> i & 1)) {
                if (used)
                    tl_load_row(x->row, tl_row(&x->call->k, x->seq->batch, x->seq->k_start, key, x->kv_head), x->d,
                                x->call->k.dtype);
                float *lane = k + (int64_t)(j / LANES) * LANES * x->d + j % LANES;
                for (int32_t c = 0; c < x->d; c++)
                    lane[(int64_t)c * LANES] = used ? x->row[c] : 0.f;
            }
            float *to = v + (int64_t)j * x->dv_pad;
            if (used)
                tl_load_row(to, tl_row(&x->call->v, x->seq->batch, x->seq->k_start, key, x->kv_head), x->dv,
                            x->call->v.dtype);
            for (int32_t c = used ? x->dv : 0; c < x->dv_pad; c++)
                to[c] = 0.f;
            exponents |= !tl_is_finite(tl_row_amax(to, x->dv));
        }
        x->v_nonfinite[i] = exponents != 0;
    }
}

TL_INLINE void tl_leave(tl_ctx *x, tl_span span)
{
    (void)x;
    (void)span;
}

/* ---- products */

/* q . k of one row and one panel: the order of additions is that of the channels. */
TL_INLINE void tl_dot_high(const float *q, const float *panel, int32_t d, float *s)
{
    float a[LANES] = {0.f};
    for (int32_t c = 0; c < d; c++)
        for (int l = 0; l < LANES; l++)
            a[l] += q[c] * panel[(int64_t)c * LANES + l];
    for (int l = 0; l < LANES; l++)
        s[l] = a[l];
}

TL_INLINE void tl_dot_int8(const int8_t *q, const int8_t *panel, int32_t d, int32_t *s)
{
    int32_t a[LANES] = {0};
    for (int32_t c = 0; c < d; c++)
        for (int l = 0; l < LANES; l++)
            a[l] += q[c] * panel[(int64_t)c * LANES + l];
    for (int l = 0; l < LANES; l++)
        s[l] = a[l];
}

/* The high score of a pair whose query or key was flagged. */
static float tl_dot_flagged(const tl_ctx *x, const float *q, int64_t key)
{
    const unsigned char *k = tl_row(&x->call->k, x->seq->batch, x->seq->k_start, key, x->kv_head);
    float a = 0.f;
    for (int32_t c = 0; c < x->d; c++)
        a += q[c] * tl_load(k, c, x->call->k.dtype);
    return a;
}

TL_INLINE void tl_scores_int8(const tl_ctx *x, int32_t row, int64_t key, float *s)
{
    int32_t product[LANES];
    tl_dot_int8(x->q_codes + (int64_t)row * x->d, x->keys.codes + key * x->d, x->d, product);
    for (int l = 0; l < LANES; l++)
        s[l] = (float)product[l] * (x->q_scale[row] * x->keys.scale[key + l]) + x->q_mean[row];
    for (int l = 0; l < LANES && key + l < x->seq->lk; l++)
        if (x->q_flagged[row] || x->keys.flagged[key + l])
            s[l] = tl_dot_flagged(x, x->q + (int64_t)row * x->d, key + l);
}

static void tl_scores_issue(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    const tl_task *t = &x->task;
    const int32_t first_row = rb * TL_ROWS, left = tl_task_rows(t) - first_row, rows = left < TL_ROWS ? left : TL_ROWS;
    const int64_t first_key = (int64_t)span.first * t->tile_keys;
    const int64_t seen = tl_key_end(&t->mask, tl_row_tokens(t, first_row, rows).last) - first_key;
    s->s = x->scores;
    s->cols = (int32_t)tl_round_up(tl_min64(seen, (int64_t)span.count * t->tile_keys), LANES);
    const float *high = x->k + (int64_t)(span.first - x->arrived) * t->tile_keys * x->d;
    for (int32_t col = 0; col < s->cols; col += LANES) {
        const int route = span.route >> (col / t->tile_keys) & 1;
        for (int32_t r = 0; r < rows; r++) {
            float *to = s->s + r * SPAN_KEYS + col;
            if (route == TL_INT8)
                tl_scores_int8(x, first_row + r, first_key + col, to);
            else
                tl_dot_high(x->q + (int64_t)(first_row + r) * x->d, high + (int64_t)col * x->d, x->d, to);
        }
    }
}

TL_INLINE void tl_scores_wait(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    (void)x;
    (void)s;
    (void)span;
    (void)rb;
}

/* ---- score epilogue */

TL_INLINE int32_t tl_rows_here(const tl_ctx *x, int32_t rb)
{
    const int32_t left = tl_task_rows(&x->task) - rb * TL_ROWS;
    return left < TL_ROWS ? left : TL_ROWS;
}

TL_INLINE int32_t tl_head_of(const tl_ctx *x, int32_t row) { return x->head + row / x->task.tokens; }
TL_INLINE int64_t tl_token_of(const tl_ctx *x, int32_t row) { return x->task.token0 + row % x->task.tokens; }

TL_INLINE void tl_sinks(const tl_ctx *x, int32_t rb, float sink[TL_ROWS])
{
    const int32_t n = tl_rows_here(x, rb);
    for (int32_t r = 0; r < TL_ROWS; r++)
        sink[r] = x->call->sinks && r < n ? tl_log2_logit(x->call->sinks[tl_head_of(x, rb * TL_ROWS + r)]) : TL_NEVER;
}

/* Order: scale, softcap, ALiBi, bias (STYLE section 5). A bias of -Inf hides the key: tl_mask. */
static void tl_row_logits(const tl_ctx *x, float *s, int32_t row, int64_t key, int64_t cols)
{
    const tl_call *call = x->call;
    const int32_t head = tl_head_of(x, row);
    const int64_t token = tl_token_of(x, row), last = x->seq->lk - key < cols ? x->seq->lk - key : cols;
    const float slope = call->alibi_slopes ? call->alibi_slopes[x->seq->batch * call->alibi_batch_stride + head] : 0.f;
    const int64_t diagonal = token + x->seq->lk - x->seq->lq;
    for (int64_t c = 0; c < last; c++) {
        float y = s[c] * call->softmax_scale;
        if (call->softcap > 0.f) y = call->softcap * tl_tanh(y / call->softcap);
        if (call->alibi_slopes) {
            const int64_t distance = key + c - diagonal;
            y -= slope * (float)(distance < 0 ? -distance : distance);
        }
        if (call->bias.data)
            y += tl_load(call->bias.data, tl_score_offset(&call->bias, x->seq->batch, head, token, key + c),
                         call->bias.dtype);
        s[c] = tl_log2_logit(y);
    }
}

static void tl_logits(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    const tl_call *call = x->call;
    const int64_t key = (int64_t)span.first * x->task.tile_keys;
    const float factor = call->softmax_scale * TL_LOG2E;
    const int plain = !(call->softcap > 0.f) && !call->alibi_slopes && !call->bias.data;
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < n; r++) {
        float *row = s->s + r * SPAN_KEYS;
        if (plain)
            for (int32_t c = 0; c < s->cols; c++)
                row[c] *= factor;
        else
            tl_row_logits(x, row, rb * TL_ROWS + r, key, s->cols);
    }
}

static void tl_mask(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    const int64_t key = (int64_t)span.first * x->task.tile_keys;
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < n; r++) {
        float *row = s->s + r * SPAN_KEYS;
        const int64_t token = tl_token_of(x, rb * TL_ROWS + r);
        const int64_t begin = tl_clamp64(tl_key_begin(&x->task.mask, token) - key, 0, s->cols);
        const int64_t end = tl_clamp64(tl_key_end(&x->task.mask, token) - key, begin, s->cols);
        for (int64_t c = 0; c < begin; c++)
            row[c] = -TL_INF;
        for (int64_t c = end; c < s->cols; c++)
            row[c] = -TL_INF;
        if (x->task.scattered)
            for (int64_t c = begin; c < end; c++)
                if (tl_key_is_hidden(x->call, x->seq, tl_head_of(x, rb * TL_ROWS + r), token, key + c))
                    row[c] = -TL_INF;
    }
}

static void tl_row_max(const tl_ctx *x, const tl_scores *s, tl_span span, int32_t rb, float top[TL_ROWS])
{
    (void)span;
    const int32_t n = tl_rows_here(x, rb);
    for (int32_t r = 0; r < TL_ROWS; r++) {
        float lane[LANES];
        for (int l = 0; l < LANES; l++)
            lane[l] = -TL_INF;
        if (r < n)
            for (int32_t c = 0; c < s->cols; c += LANES)
                for (int l = 0; l < LANES; l++)
                    lane[l] = tl_max(s->s[r * SPAN_KEYS + c + l], lane[l]);
        top[r] = -TL_INF;
        for (int l = 0; l < LANES; l++)
            top[r] = tl_max(lane[l], top[r]);
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

static void tl_exp(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb, const float ref[TL_ROWS], float sum[TL_ROWS])
{
    (void)span;
    const int32_t n = tl_rows_here(x, rb);
    for (int32_t r = 0; r < TL_ROWS; r++) {
        float lane[LANES] = {0.f};
        if (r < n)
            for (int32_t c = 0; c < s->cols; c += LANES)
                for (int l = 0; l < LANES; l++) {
                    float *p = s->s + r * SPAN_KEYS + c + l;
                    *p = tl_exp2(*p - ref[r]);
                    lane[l] += *p;
                }
        sum[r] = 0.f;
        for (int l = 0; l < LANES; l++)
            sum[r] += lane[l];
    }
}

TL_INLINE void tl_rescale(tl_ctx *x, tl_acc *acc, int32_t rb, const float lambda[TL_ROWS])
{
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < n; r++) {
        float *o = acc->o + (int64_t)(rb * TL_ROWS + r) * x->dv_pad;
        if (lambda[r] != 1.f)
            for (int32_t c = 0; c < x->dv_pad; c++)
                o[c] *= lambda[r];
    }
}

/* ---- P V */

TL_INLINE void tl_accumulate(float *o, const float *p, const float *v, int32_t keys, int32_t dv_pad)
{
    for (int32_t c = 0; c < dv_pad; c += LANES) {
        float a[LANES];
        for (int l = 0; l < LANES; l++)
            a[l] = o[c + l];
        for (int32_t k = 0; k < keys; k++)
            for (int l = 0; l < LANES; l++)
                a[l] += p[k] * v[(int64_t)k * dv_pad + c + l];
        for (int l = 0; l < LANES; l++)
            o[c + l] = a[l];
    }
}

/* V of the tile holds a NaN or Inf: a key that the row does not see must be left out, 0 * NaN is NaN. */
static void tl_accumulate_visible(const tl_ctx *x, float *o, const float *p, const float *v, int32_t keys, int32_t row,
                                  int64_t key)
{
    const int64_t token = tl_token_of(x, row);
    for (int32_t k = 0; k < keys; k++) {
        if (key + k < tl_key_begin(&x->task.mask, token) || key + k >= tl_key_end(&x->task.mask, token)) continue;
        if (x->task.scattered && tl_key_is_hidden(x->call, x->seq, tl_head_of(x, row), token, key + k)) continue;
        tl_accumulate(o, p + k, v + (int64_t)k * x->dv_pad, 1, x->dv_pad);
    }
}

static void tl_values_issue(tl_ctx *x, tl_acc *acc, tl_scores *s, tl_span span, int32_t rb)
{
    const int32_t tile = x->task.tile_keys;
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < n; r++) {
        const int32_t row = rb * TL_ROWS + r;
        float *o = acc->o + (int64_t)row * x->dv_pad;
        for (int32_t i = 0; i * tile < s->cols; i++) {
            const int32_t at = span.first + i - x->arrived,
                          keys = s->cols - i * tile < tile ? s->cols - i * tile : tile;
            const float *p = s->s + r * SPAN_KEYS + i * tile, *v = x->v + (int64_t)at * tile * x->dv_pad;
            if (x->v_nonfinite[at])
                tl_accumulate_visible(x, o, p, v, keys, row, (int64_t)(span.first + i) * tile);
            else
                tl_accumulate(o, p, v, keys, x->dv_pad);
        }
    }
}

TL_INLINE void tl_values_wait(tl_ctx *x, tl_acc *acc)
{
    (void)x;
    (void)acc;
}

/* ---- end */

static void tl_store(tl_ctx *x, const tl_acc *acc, int32_t rb, const float m[TL_ROWS], const float l[TL_ROWS])
{
    const tl_call *call = x->call;
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < n; r++) {
        const int32_t row = rb * TL_ROWS + r, head = tl_head_of(x, row);
        const int64_t token = tl_token_of(x, row);
        const float *o = acc->o + (int64_t)row * x->dv_pad;
        unsigned char *to = tl_out_row(&call->o, x->seq->batch, x->seq->q_start, token, head);
        for (int32_t c = 0; c < x->dv; c++)
            tl_store_element(to, c, call->o.dtype, l[r] == 0.f ? 0.f : o[c] / l[r]);
        if (call->lse)
            call->lse[x->seq->batch * call->lse_stride.batch + head * call->lse_stride.head +
                      (x->seq->q_start + token) * call->lse_stride.seq] = l[r] == 0.f ? -TL_INF
                                                                                      : (m[r] + log2f(l[r])) * TL_LN2;
    }
}

#endif
