/* The scalar vocabulary: plain C with loops over LANES neighbouring keys or channels, which compilers turn into vectors.
 * K tiles lie in panels of LANES keys, [d][LANES]; high panels are made on arrival from the caller's tensor, INT8 panels
 * once per call by tl_pack, or on arrival when the policy quantises on the fly.
 * An instantiation says TL_STATE_F16 (core/tile_loop.inc.h) and TL_PV_INT8 (P V from u8 P and INT8 V) before including it,
 * TL_PV_BF16 1 where P and V are to be rounded to bf16, and TL_ROW_BLOCKS where its tasks are small. */
#ifndef TL_CPU_SIMD_SCALAR_H
#define TL_CPU_SIMD_SCALAR_H

#include <string.h>

#include "simd/rows.h"

enum { LANES = 16 };

#define TL_ROWS 8
#ifndef TL_ROW_BLOCKS
#define TL_ROW_BLOCKS 64
#endif
#ifndef TL_PV_BF16
#define TL_PV_BF16 0
#endif
#define TL_SPAN_MAX (TL_STATE_F16 ? 1 : 4)
#define TL_SPAN_MIXED 1
#define TL_LAMP 0
#define TL_SPLITS 1
#define TL_LAZY (TL_STATE_F16 || TL_PV_INT8 ? 0.f : 8.f) /* u8 P must not exceed 1 */

enum { SPAN_KEYS = TL_SPAN_MAX * 64, VALUE_KEYS = TL_VALUE_KEYS };

/* INT8 keys and values [first, first + n) of one KV head. first is a multiple of the unit. */
typedef struct {
    int64_t first;
    int8_t *codes[2]; /* [ceil(n / LANES)][d][LANES], of each plane */
    float *scale;     /* per key */
    unsigned char *flagged;
    int8_t *v_codes;            /* [n][dv_pad] */
    float *v_scale;             /* [ceil(n / VALUE_KEYS)][dv_pad] */
    unsigned char *v_nonfinite; /* [ceil(n / VALUE_KEYS)] */
} tl_packed;

typedef struct {
    tl_cpu cpu;
    int32_t d, dv, dv_pad, planes;
    tl_packed keys;

    /* scratch */
    float *q;                 /* [rows][d] */
    int8_t *q_codes[2];       /* [rows][d], of each plane */
    tl_quant *q_quant;        /* [rows] */
    float *q_mean;            /* [rows] q . mean of K, with smooth_k */
    unsigned char *q_flagged; /* [rows] */
    tl_quant *k_quant;        /* [unit_keys] */
    tl_quant *v_quant;        /* [dv] */
    float *k;                 /* [SPAN_KEYS / LANES][d][LANES] */
    float *v;                 /* [SPAN_KEYS][dv_pad] */
    float *o;                 /* [rows][dv_pad] */
    float *scores;            /* [TL_ROWS][SPAN_KEYS] */
    float *row;               /* [max(d, dv)] */
    int32_t arrived;          /* first tile of the span in k and v */
    unsigned char v_nonfinite[TL_SPAN_MAX];
    tl_packed flown; /* on the fly: the units the span meets */
} tl_ctx;

/* Scores of one row block against its part of a span. They are q . k until tl_logits. */
typedef struct {
    float *s;     /* [TL_ROWS][SPAN_KEYS] */
    int32_t cols; /* in use: a multiple of LANES, no further than the block's last row sees */
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

/* ---- memory */

static tl_packed tl_lay_out_keys(const tl_shape *shape, int64_t n, tl_arena *a)
{
    const int64_t keys = tl_round_up(n, VALUE_KEYS), dv_pad = tl_round_up(shape->head_dim_v, LANES);
    tl_packed p = {.first = 0};
    for (int i = 0; i < 2; i++)
        p.codes[i] = tl_take(a, shape->int8 && i < shape->code_planes ? keys * shape->head_dim_qk : 0);
    p.scale = tl_take(a, shape->int8 ? keys * 4 : 0);
    p.flagged = tl_take(a, shape->int8 ? keys : 0);
    p.v_codes = tl_take(a, shape->int8_values ? keys * dv_pad : 0);
    p.v_scale = tl_take(a, shape->int8_values ? keys / VALUE_KEYS * dv_pad * 4 : 0);
    p.v_nonfinite = tl_take(a, shape->int8_values ? keys / VALUE_KEYS : 0);
    return p;
}

/* Most keys of the units that one span meets. */
TL_INLINE int64_t tl_flown_keys(const tl_shape *shape)
{
    return tl_round_up(SPAN_KEYS, shape->unit_keys) + shape->unit_keys;
}

/* Lays the scratch out; with base NULL only to learn the size. */
static void tl_lay_out(tl_ctx *x, const tl_shape *shape, tl_arena *a)
{
    const int64_t rows = tl_round_up((int64_t)shape->task_tokens * shape->task_heads, TL_ROWS);
    x->d = shape->head_dim_qk;
    x->dv = shape->head_dim_v;
    x->planes = shape->code_planes;
    x->dv_pad = (int32_t)tl_round_up(x->dv, LANES);
    x->q = tl_take(a, rows * x->d * 4);
    for (int i = 0; i < 2; i++) x->q_codes[i] = tl_take(a, shape->int8 && i < shape->code_planes ? rows * x->d : 0);
    x->q_quant = tl_take(a, shape->int8 ? rows * (int64_t)sizeof(tl_quant) : 0);
    x->q_mean = tl_take(a, shape->int8 ? rows * 4 : 0);
    x->q_flagged = tl_take(a, shape->int8 ? rows : 0);
    x->k_quant = tl_take(a, shape->int8 ? shape->unit_keys * (int64_t)sizeof(tl_quant) : 0);
    x->v_quant = tl_take(a, shape->int8_values ? x->dv * (int64_t)sizeof(tl_quant) : 0);
    x->k = tl_take(a, (int64_t)SPAN_KEYS * x->d * 4);
    x->v = tl_take(a, (int64_t)SPAN_KEYS * x->dv_pad * 4);
    x->o = tl_take(a, rows * x->dv_pad * 4);
    x->scores = tl_take(a, (int64_t)TL_ROWS * SPAN_KEYS * 4);
    x->row = tl_take(a, (x->d > x->dv ? x->d : x->dv) * (int64_t)4);
    if (shape->fly) x->flown = tl_lay_out_keys(shape, tl_flown_keys(shape), a);
}

/* ---- quantising */

/* n codes of x in every plane, `stride` apart. */
static void tl_encode(const tl_ctx *x, int8_t *const to[2], int64_t at, int64_t stride, const float *row, tl_quant z)
{
    for (int32_t i = 0; i < x->d; i++) {
        const int32_t code = tl_code(row[i], z.inverse);
        to[0][at + i * stride] = (int8_t)code;
        if (x->planes == 2) to[1][at + i * stride] = (int8_t)tl_second_code(row[i], code, z);
    }
}

/* Keys [begin, end) to their place in p. */
static void tl_pack_keys(tl_ctx *x, const tl_packed *p, int64_t begin, int64_t end)
{
    const tl_cpu *c = &x->cpu;
    unsigned char *flagged = p->flagged + (begin - p->first);
    tl_unit_quants(c->call, c->seq, c->prepared, c->kv_head, begin, end, x->k_quant, flagged, x->row, c->counters);
    for (int64_t key = begin; key < end; key++) {
        const int64_t at = key - p->first;
        const tl_quant z = x->k_quant[key - begin];
        const int used = key < c->seq->lk && tl_key_is_seen(c->seq, c->prepared, key) && !p->flagged[at];
        if (used)
            tl_load_coded_key(x->row, c->call, c->seq, c->prepared, c->kv_head, key);
        else
            memset(x->row, 0, sizeof *x->row * (size_t)x->d);
        tl_encode(x, p->codes, at / LANES * LANES * x->d + at % LANES, LANES, x->row, z);
        p->scale[at] = tl_kernel_scale(z);
    }
}

/* VALUE_KEYS values from key `begin` on. */
static void tl_pack_values(tl_ctx *x, const tl_packed *p, int64_t begin)
{
    const tl_cpu *c = &x->cpu;
    const int64_t end = begin + VALUE_KEYS, block = (begin - p->first) / VALUE_KEYS;
    float *scale = p->v_scale + block * x->dv_pad;
    const int nonfinite = tl_value_quants(c->call, c->seq, c->prepared, c->kv_head, begin, end, x->v_quant, x->row);
    p->v_nonfinite[block] = (unsigned char)nonfinite;
    for (int32_t i = 0; i < x->dv_pad; i++) scale[i] = i < x->dv && !nonfinite ? x->v_quant[i].scale : 0.f;
    for (int64_t key = begin; key < end; key++) {
        int8_t *codes = p->v_codes + (key - p->first) * x->dv_pad;
        const int used = key < c->seq->lk && tl_key_is_seen(c->seq, c->prepared, key) && !nonfinite;
        if (used) tl_load_value(x->row, c->call, c->seq, c->kv_head, key);
        for (int32_t i = 0; i < x->dv_pad; i++)
            codes[i] = (int8_t)(used && i < x->dv ? tl_code(x->row[i], x->v_quant[i].inverse) : 0);
    }
}

static void tl_pack_unit(tl_ctx *x, const tl_packed *p, int64_t begin)
{
    const tl_shape *shape = &x->cpu.call->shape;
    const int64_t end = tl_min64(begin + shape->unit_keys, tl_round_up(x->cpu.seq->lk, VALUE_KEYS));
    if (shape->int8) tl_pack_keys(x, p, begin, end);
    for (int64_t key = begin; key < end && shape->int8_values; key += VALUE_KEYS) tl_pack_values(x, p, key);
}

static void tl_quantise_queries(tl_ctx *x)
{
    const float *mean = x->cpu.prepared->mean;
    const int counts = tl_counts_rows(&x->cpu.task, TL_INT8);
    tl_query_quants(&x->cpu, x->q_quant, x->row);
    for (int32_t r = 0; r < tl_task_rows(&x->cpu.task); r++) {
        const float *q = x->q + (int64_t)r * x->d;
        tl_load_coded_query(x->row, &x->cpu, tl_head_of(&x->cpu, r), tl_token_of(&x->cpu, r));
        x->q_flagged[r] = !tl_is_finite(tl_row_amax(x->row, x->d));
        x->cpu.counters->nonfinite_tokens += counts && x->q_flagged[r];
        if (x->q_flagged[r]) memset(x->row, 0, sizeof *x->row * (size_t)x->d);
        tl_encode(x, x->q_codes, (int64_t)r * x->d, 1, x->row, x->q_quant[r]);
        x->q_mean[r] = 0.f;
        for (int32_t i = 0; i < x->d && mean; i++) x->q_mean[r] += q[i] * mean[i];
    }
}

/* ---- data movement */

TL_INLINE void tl_begin(tl_ctx *x, tl_acc *acc)
{
    const int32_t rows = tl_task_rows(&x->cpu.task);
    for (int32_t r = 0; r < rows; r++)
        tl_load_query(x->q + (int64_t)r * x->d, &x->cpu, tl_head_of(&x->cpu, r), tl_token_of(&x->cpu, r));
    if (tl_meets(&x->cpu.task, TL_INT8)) tl_quantise_queries(x);
    acc->o = x->o;
    memset(x->o, 0, sizeof *x->o * (size_t)((int64_t)rows * x->dv_pad));
}

TL_INLINE void tl_prefetch(tl_ctx *x, tl_span span)
{
    (void)x;
    (void)span;
}

/* One key tile, of which `used` keys exist: K to f32 panels, V to f32 rows. The rest is 0. */
static void tl_arrive_keys(tl_ctx *x, int64_t key, int32_t used, float *k)
{
    const tl_cpu *c = &x->cpu;
    for (int32_t j = 0; j < c->task.tile_keys; j++) {
        float *lane = k + (int64_t)(j / LANES) * LANES * x->d + j % LANES;
        if (j < used) tl_load_key(x->row, c->call, c->seq, c->kv_head, key + j);
        for (int32_t i = 0; i < x->d; i++) lane[(int64_t)i * LANES] = j < used ? x->row[i] : 0.f;
    }
}

static void tl_arrive_values(tl_ctx *x, int64_t key, int32_t used, float *v)
{
    const tl_cpu *c = &x->cpu;
    for (int32_t j = 0; j < c->task.tile_keys; j++) {
        float *to = v + (int64_t)j * x->dv_pad;
        if (j < used) tl_load_value(to, c->call, c->seq, c->kv_head, key + j);
        for (int32_t i = j < used ? x->dv : 0; i < x->dv_pad; i++) to[i] = 0.f;
        for (int32_t i = 0; TL_PV_BF16 && i < x->dv_pad; i++) to[i] = tl_round_bf16(to[i]);
    }
}

/* On the fly: the units of the span's tiles that need INT8. Same codes and scales as made once. */
static void tl_fly(tl_ctx *x, tl_span span)
{
    const tl_shape *shape = &x->cpu.call->shape;
    const int64_t unit = shape->unit_keys, tile = x->cpu.task.tile_keys;
    tl_worker_counters *counters = x->cpu.counters, none = {0};
    x->cpu.counters = &none; /* a key is packed many times and counted never */
    x->keys = x->flown;
    x->keys.first = span.first * tile / unit * unit;
    for (int64_t begin = x->keys.first; begin < (span.first + span.count) * tile; begin += unit) {
        int needed = shape->int8_values;
        for (int32_t i = 0; i < span.count; i++) {
            const int64_t key = (span.first + i) * tile;
            needed |= (span.route >> i & 1) && key >= begin && key < begin + unit;
        }
        if (needed && begin < x->cpu.seq->lk) tl_pack_unit(x, &x->keys, begin);
    }
    x->cpu.counters = counters;
}

static void tl_arrive(tl_ctx *x, tl_span span)
{
    const int32_t tile = x->cpu.task.tile_keys;
    const tl_shape *shape = &x->cpu.call->shape;
    x->arrived = span.first;
    if (shape->fly) tl_fly(x, span);
    for (int32_t i = 0; i < span.count; i++) {
        const int64_t key = (int64_t)(span.first + i) * tile;
        const int32_t used = (int32_t)tl_min64(tile, x->cpu.seq->lk - key);
        float *v = x->v + (int64_t)i * tile * x->dv_pad;
        if (!(span.route >> i & 1)) tl_arrive_keys(x, key, used, x->k + (int64_t)i * tile * x->d);
        if (TL_PV_INT8) {
            x->v_nonfinite[i] = x->keys.v_nonfinite[(key - x->keys.first) / VALUE_KEYS];
            if (!x->v_nonfinite[i]) continue;
        }
        tl_arrive_values(x, key, used, v);
        x->v_nonfinite[i] |= !tl_is_finite(tl_row_amax(v, (int64_t)tile * x->dv_pad));
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
    for (int32_t i = 0; i < d; i++)
        for (int l = 0; l < LANES; l++) a[l] += q[i] * panel[(int64_t)i * LANES + l];
    for (int l = 0; l < LANES; l++) s[l] = a[l];
}

/* s += q . k */
TL_INLINE void tl_dot_int8(const int8_t *q, const int8_t *panel, int32_t d, int32_t *s)
{
    int32_t a[LANES];
    for (int l = 0; l < LANES; l++) a[l] = s[l];
    for (int32_t i = 0; i < d; i++)
        for (int l = 0; l < LANES; l++) a[l] += q[i] * panel[(int64_t)i * LANES + l];
    for (int l = 0; l < LANES; l++) s[l] = a[l];
}

/* INT8, or X3: 254 q1 k1 + q1 k2 + q2 k1. */
TL_INLINE void tl_scores_int8(const tl_ctx *x, int32_t row, int64_t key, float *s)
{
    const float scale = tl_kernel_scale(x->q_quant[row]) * tl_product_unit(&x->cpu.call->shape);
    const int64_t at = key - x->keys.first, q = (int64_t)row * x->d, k = at * x->d;
    int32_t product[LANES] = {0};
    tl_dot_int8(x->q_codes[0] + q, x->keys.codes[0] + k, x->d, product);
    if (x->planes == 2) {
        for (int l = 0; l < LANES; l++) product[l] *= TL_PLANE_STEPS;
        tl_dot_int8(x->q_codes[0] + q, x->keys.codes[1] + k, x->d, product);
        tl_dot_int8(x->q_codes[1] + q, x->keys.codes[0] + k, x->d, product);
    }
    for (int l = 0; l < LANES; l++) s[l] = (float)product[l] * scale * x->keys.scale[at + l] + x->q_mean[row];
    for (int l = 0; l < LANES && key + l < x->cpu.seq->lk; l++)
        if (x->q_flagged[row] || x->keys.flagged[at + l])
            s[l] = tl_dot_flagged(&x->cpu, x->q + (int64_t)row * x->d, key + l);
}

static void tl_scores_issue(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    const tl_task *t = &x->cpu.task;
    const int32_t first = rb * TL_ROWS, rows = tl_rows_here(x, rb);
    const int64_t key = (int64_t)span.first * t->tile_keys;
    const int64_t seen = tl_key_end(&t->mask, tl_row_tokens(t, first, rows).last) - key;
    s->s = x->scores;
    s->cols = (int32_t)tl_round_up(tl_min64(seen, (int64_t)span.count * t->tile_keys), LANES);
    const float *high = x->k + (int64_t)(span.first - x->arrived) * t->tile_keys * x->d;
    for (int32_t col = 0; col < s->cols; col += LANES) {
        const int route = span.route >> (col / t->tile_keys) & 1;
        for (int32_t r = 0; r < rows; r++) {
            float *to = s->s + r * SPAN_KEYS + col;
            if (route == TL_INT8)
                tl_scores_int8(x, first + r, key + col, to);
            else
                tl_dot_high(x->q + (int64_t)(first + r) * x->d, high + (int64_t)col * x->d, x->d, to);
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

TL_INLINE void tl_sinks(const tl_ctx *x, int32_t rb, float sink[TL_ROWS])
{
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < TL_ROWS; r++)
        sink[r] = r < n ? tl_sink_of(&x->cpu, rb * TL_ROWS + r) : TL_NEVER;
}

static void tl_logits(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    const tl_call *call = x->cpu.call;
    const float factor = call->softmax_scale * TL_LOG2E;
    const int plain = tl_logits_are_plain(call);
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < n; r++) {
        float *row = s->s + r * SPAN_KEYS;
        if (plain)
            for (int32_t i = 0; i < s->cols; i++) row[i] *= factor;
        else
            tl_logits_row(&x->cpu, row, rb * TL_ROWS + r, (int64_t)span.first * x->cpu.task.tile_keys, s->cols);
        for (int32_t i = 0; TL_STATE_F16 && i < s->cols; i++) row[i] = tl_round_f16(row[i]);
    }
}

static void tl_mask(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < n; r++)
        tl_mask_row(&x->cpu, s->s + r * SPAN_KEYS, rb * TL_ROWS + r, (int64_t)span.first * x->cpu.task.tile_keys,
                    s->cols);
}

static void tl_row_max(const tl_ctx *x, const tl_scores *s, tl_span span, int32_t rb, float top[TL_ROWS])
{
    (void)span;
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < TL_ROWS; r++) {
        float lane[LANES];
        for (int l = 0; l < LANES; l++) lane[l] = -TL_INF;
        for (int32_t i = 0; r < n && i < s->cols; i += LANES)
            for (int l = 0; l < LANES; l++) lane[l] = tl_max(s->s[r * SPAN_KEYS + i + l], lane[l]);
        top[r] = -TL_INF;
        for (int l = 0; l < LANES; l++) top[r] = tl_max(lane[l], top[r]);
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
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < TL_ROWS; r++) {
        float lane[LANES] = {0.f};
        for (int32_t i = 0; r < n && i < s->cols; i += LANES)
            for (int l = 0; l < LANES; l++) {
                float *p = s->s + r * SPAN_KEYS + i + l;
                *p = tl_exp2(*p - ref[r]);
                lane[l] += *p;
                if (TL_STATE_F16) *p = tl_round_f16(*p);
                if (TL_PV_BF16) *p = tl_round_bf16(*p);
            }
        sum[r] = 0.f;
        for (int l = 0; l < LANES; l++) sum[r] += lane[l];
    }
}

TL_INLINE void tl_rescale(tl_ctx *x, tl_acc *acc, int32_t rb, const float lambda[TL_ROWS])
{
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < n; r++) {
        float *o = acc->o + (int64_t)(rb * TL_ROWS + r) * x->dv_pad;
        if (lambda[r] != 1.f)
            for (int32_t i = 0; i < x->dv_pad; i++) o[i] *= lambda[r];
    }
}

/* ---- P V */

TL_INLINE void tl_accumulate(float *o, const float *p, const float *v, int32_t keys, int32_t dv_pad)
{
    for (int32_t i = 0; i < dv_pad; i += LANES) {
        float a[LANES];
        for (int l = 0; l < LANES; l++) a[l] = o[i + l];
        for (int32_t k = 0; k < keys; k++)
            for (int l = 0; l < LANES; l++) a[l] += p[k] * v[(int64_t)k * dv_pad + i + l];
        for (int l = 0; l < LANES; l++) o[i + l] = a[l];
    }
}

/* The same from u8 P, P = code / 255, and INT8 V of keys at `at` of the packed ones, which lie in one block of V's scales:
 * exact int32 products, one scale per channel. */
TL_INLINE void tl_accumulate_int8(const tl_ctx *x, float *o, const float *p, int64_t at, int32_t keys)
{
    const float *scale = x->keys.v_scale + at / VALUE_KEYS * x->dv_pad;
    int32_t code[VALUE_KEYS];
    for (int32_t k = 0; k < keys; k++) code[k] = tl_weight_code(p[k]);
    for (int32_t i = 0; i < x->dv_pad; i += LANES) {
        int32_t a[LANES] = {0};
        for (int32_t k = 0; k < keys; k++)
            for (int l = 0; l < LANES; l++) a[l] += code[k] * x->keys.v_codes[(at + k) * x->dv_pad + i + l];
        for (int l = 0; l < LANES; l++) o[i + l] += (float)a[l] * (scale[i + l] / 255.f);
    }
}

static void tl_values_issue(tl_ctx *x, tl_acc *acc, tl_scores *s, tl_span span, int32_t rb)
{
    const int32_t tile = x->cpu.task.tile_keys;
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < n; r++) {
        const int32_t row = rb * TL_ROWS + r;
        float *o = acc->o + (int64_t)row * x->dv_pad;
        for (int32_t i = 0; i * tile < s->cols; i++) {
            const int32_t at = span.first + i - x->arrived, left = s->cols - i * tile, keys = left < tile ? left : tile;
            const float *p = s->s + r * SPAN_KEYS + i * tile, *v = x->v + (int64_t)at * tile * x->dv_pad;
            const int64_t key = (int64_t)(span.first + i) * tile;
            if (x->v_nonfinite[at]) {
                for (int32_t k = 0; k < keys; k++) /* a key that the row does not see is left out: 0 * NaN is NaN */
                    if (tl_row_sees(&x->cpu, row, key + k))
                        tl_accumulate(o, p + k, v + (int64_t)k * x->dv_pad, 1, x->dv_pad);
            } else if (TL_PV_INT8) {
                tl_accumulate_int8(x, o, p, key - x->keys.first, keys);
            } else {
                tl_accumulate(o, p, v, keys, x->dv_pad);
            }
        }
        for (int32_t i = 0; TL_STATE_F16 && i < x->dv_pad; i++) o[i] = tl_round_f16(o[i]);
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
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < n; r++)
        tl_store_row(&x->cpu, rb * TL_ROWS + r, acc->o + (int64_t)(rb * TL_ROWS + r) * x->dv_pad, m[r], l[r]);
}

/* ---- splits of the keys */

static void tl_store_partial(tl_ctx *x, const tl_acc *acc, int32_t rb, const float m[TL_ROWS], const float l[TL_ROWS])
{
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < n; r++)
        tl_keep_partial(&x->cpu, rb * TL_ROWS + r, acc->o + (int64_t)(rb * TL_ROWS + r) * x->dv_pad, m[r], l[r]);
}

static void tl_begin_merge(tl_ctx *x, tl_acc *acc)
{
    acc->o = x->o;
    memset(x->o, 0, sizeof *x->o * (size_t)tl_task_rows(&x->cpu.task) * (size_t)x->dv_pad);
}

TL_INLINE void tl_partial(const tl_ctx *x, int32_t rb, int32_t split, float m[TL_ROWS], float l[TL_ROWS])
{
    tl_load_partials(&x->cpu, rb * TL_ROWS, tl_rows_here(x, rb), TL_ROWS, split, m, l);
}

static void tl_add_partial(tl_ctx *x, tl_acc *acc, int32_t rb, int32_t split, const float weight[TL_ROWS])
{
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < n; r++) {
        const float *from = tl_partial_output(&x->cpu, rb * TL_ROWS + r, split);
        float *o = acc->o + (int64_t)(rb * TL_ROWS + r) * x->dv_pad;
        for (int32_t i = 0; i < x->dv; i++) o[i] += weight[r] * from[i];
    }
}

#endif
