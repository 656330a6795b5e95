/* The vocabulary of the simulated formats (ALGORITHMS B4): queries in lanes, so that every order of additions is that of the
 * plain transcription (src/reference/lamp.h states it) at any vector width. Plain C: each instruction set is a matter of the
 * compiler's flags, and all give the same bits. Where the primitives of a vector instruction set are included first, the
 * recursive accumulation uses them. */
#ifndef TL_CPU_SIMD_SIM_H
#define TL_CPU_SIMD_SIM_H

#include <string.h>

#include "core/lamp.h"
#include "core/minifloat.h"
#include "simd/rows.h"

#define TL_ROWS TL_LAMP_ROWS
#ifndef TL_ROW_BLOCKS
#define TL_ROW_BLOCKS 128 /* b_q may be 1 */
#endif
#define TL_SPAN_MAX 1
#define TL_SPAN_MIXED 0
#define TL_LAZY 0.f
#define TL_STATE_F16 0
#define TL_LAMP 1

enum { LANES = 16, CHAINS = 4 }; /* CHAINS keys side by side hide the latency of one accumulation */

/* Places at which a random number is drawn: as src/reference/lamp.h numbers them. */
enum {
    PLACE_LOW_SUM,
    PLACE_HIGH_SUM,
    PLACE_LOW_LOGIT,
    PLACE_HIGH_LOGIT,
    PLACE_SHIFT,
    PLACE_LOW_EXP,
    PLACE_HIGH_EXP,
    PLACE_RESCALE
};

typedef struct {
    tl_cpu cpu;
    int32_t d, dv, tile_keys, b_q, b_k, pad; /* pad: lanes of a row block, a multiple of LANES */
    int32_t hw, stochastic, clamp;

    /* scratch */
    float *q;                  /* [row blocks][d][pad] times softmax_scale */
    float *o;                  /* [row blocks][dv][pad] */
    float *k, *v;              /* [tile_keys][d], [tile_keys][dv] */
    float *k_channels;         /* [d][tile_keys]: K again, so that neighbouring keys lie side by side */
    float *scores;             /* [tile_keys][pad]: Y, then E */
    float *row;                /* [max(d, dv)] */
    float *exp_value;          /* [256] hw: the low exponential's table as numbers */
    unsigned char *over;       /* [tile_keys][pad] hw: some rounding of the logit saturated */
    float *q_largest;          /* [row blocks] largest magnitude */
    float k_largest;           /* of the tile */
    int32_t keys, v_nonfinite; /* of the tile: keys that exist */
    int64_t first_key;
    uint32_t legal;                  /* sub-blocks of the row block in hand */
    int64_t saturated[TL_LAMP_SUBS]; /* in each sub-block's latest logits */
    float largest[TL_LAMP_SUBS];
} tl_ctx;

typedef struct {
    float *s;
} tl_scores;

typedef struct {
    float *o;
} tl_acc;

TL_INLINE const tl_task *tl_task_of(const tl_ctx *x) { return &x->cpu.task; }
TL_INLINE int32_t tl_block_size(const tl_ctx *x) { return x->b_q; }
TL_INLINE int32_t tl_lamp_subs(const tl_ctx *x) { return x->cpu.call->policy->lamp_n_k; }

TL_INLINE int32_t tl_rows_here(const tl_ctx *x, int32_t rb)
{
    const int32_t left = tl_task_rows(&x->cpu.task) - rb * x->b_q;
    return left < x->b_q ? left : x->b_q;
}

TL_INLINE tl_lamp_rule_t tl_lamp_rule(const tl_ctx *x)
{
    static const int32_t baseline[] = {-1, TL_LEVEL_LOW, TL_LEVEL_HIGH, TL_LEVEL_F32};
    const tlamp_policy *p = x->cpu.call->policy;
    return (tl_lamp_rule_t){baseline[p->lamp_run], p->delta, p->tau, p->lamp_compact, x->hw && !x->clamp};
}

/* ---- memory */

static void tl_lay_out(tl_ctx *x, const tl_shape *shape, const tlamp_policy *policy, tl_arena *a)
{
    x->d = shape->head_dim_qk;
    x->dv = shape->head_dim_v;
    x->tile_keys = shape->tile_keys;
    x->b_q = policy->lamp_b_q < shape->task_tokens ? policy->lamp_b_q : shape->task_tokens;
    x->b_k = policy->lamp_b_k;
    x->pad = (int32_t)tl_round_up(x->b_q, LANES);
    x->hw = policy->lamp_mode == TLAMP_LAMP_HW;
    x->stochastic = policy->lamp_stochastic;
    x->clamp = policy->lamp_clamp;
    const int64_t blocks = tl_ceil_div(shape->task_tokens, x->b_q);
    x->q_largest = tl_take(a, blocks * 4);
    x->exp_value = tl_take(a, 256 * 4);
    x->over = tl_take(a, (int64_t)x->tile_keys * x->pad);
    x->q = tl_take(a, blocks * x->d * x->pad * 4);
    x->o = tl_take(a, blocks * x->dv * x->pad * 4);
    x->k = tl_take(a, (int64_t)x->tile_keys * x->d * 4);
    x->k_channels = tl_take(a, (int64_t)x->tile_keys * x->d * 4);
    x->v = tl_take(a, (int64_t)x->tile_keys * x->dv * 4);
    x->scores = tl_take(a, (int64_t)x->tile_keys * x->pad * 4);
    x->row = tl_take(a, (x->d > x->dv ? x->d : x->dv) * (int64_t)4);
}

/* ---- data movement */

TL_INLINE void tl_begin(tl_ctx *x, tl_acc *acc)
{
    const int32_t blocks = tl_task_rows(&x->cpu.task) / x->b_q + 1;
    const float scale = x->cpu.call->softmax_scale;
    acc->o = x->o;
    for (uint32_t code = 0; code < 256 && x->hw; code++)
        x->exp_value[code] = tl_mini_decode(tl_exp_table()[code], tl_ue5m3(TL_EXP_BIAS));
    for (int32_t rb = 0; rb * x->b_q < tl_task_rows(&x->cpu.task) && rb < blocks; rb++) {
        float *q = x->q + (int64_t)rb * x->d * x->pad;
        memset(q, 0, sizeof *q * (size_t)((int64_t)x->d * x->pad));
        memset(x->o + (int64_t)rb * x->dv * x->pad, 0, sizeof *q * (size_t)((int64_t)x->dv * x->pad));
        for (int32_t r = 0; r < tl_rows_here(x, rb); r++) {
            tl_load_query(x->row, &x->cpu, tl_head_of(&x->cpu, rb * x->b_q + r), tl_token_of(&x->cpu, rb * x->b_q + r));
            for (int32_t i = 0; i < x->d; i++) q[(int64_t)i * x->pad + r] = scale * x->row[i];
        }
        x->q_largest[rb] = tl_row_amax(q, (int64_t)x->d * x->pad);
    }
}

TL_INLINE void tl_prefetch(tl_ctx *x, tl_span span)
{
    (void)x;
    (void)span;
}

static void tl_arrive(tl_ctx *x, tl_span span)
{
    const tl_cpu *c = &x->cpu;
    x->first_key = (int64_t)span.first * x->tile_keys;
    x->keys = (int32_t)tl_min64(x->tile_keys, c->seq->lk - x->first_key);
    for (int32_t j = 0; j < x->keys; j++) {
        tl_load_key(x->k + (int64_t)j * x->d, c->call, c->seq, c->kv_head, x->first_key + j);
        for (int32_t i = 0; i < x->d; i++) x->k_channels[(int64_t)i * x->tile_keys + j] = x->k[(int64_t)j * x->d + i];
        tl_load_value(x->v + (int64_t)j * x->dv, c->call, c->seq, c->kv_head, x->first_key + j);
    }
    x->k_largest = tl_row_amax(x->k, (int64_t)x->keys * x->d);
    x->v_nonfinite = !tl_is_finite(tl_row_amax(x->v, (int64_t)x->keys * x->dv));
}

TL_INLINE void tl_leave(tl_ctx *x, tl_span span)
{
    (void)x;
    (void)span;
}

TL_INLINE void tl_scores_issue(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb) /* tl_sub_logits does the work */
{
    (void)span;
    (void)rb;
    s->s = x->scores;
}

TL_INLINE void tl_scores_wait(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    (void)x;
    (void)s;
    (void)span;
    (void)rb;
}

/* ---- rounding */

TL_INLINE uint32_t tl_draw(const tl_ctx *x, int32_t rb, int32_t r, int32_t key, int32_t place, int32_t step)
{
    const int32_t row = rb * x->b_q + r;
    const uint32_t stream = tl_random_stream(x->cpu.call->policy->lamp_seed, (uint32_t)tl_head_of(&x->cpu, row),
                                             (uint32_t)tl_token_of(&x->cpu, row), (uint32_t)(x->first_key + key));
    return tl_random(stream, (uint32_t)step + 65536u * (uint32_t)place);
}

/* To the format in hw, to as many mantissa bits in sim. Where the arguments are constants one branch is left. */
TL_INLINE float tl_to_format(float x, tl_minifloat f, int hw)
{
    return hw ? tl_mini_round(x, f) : tl_round_mantissa(x, f.mantissa);
}

TL_INLINE float tl_to_format_stochastic(float x, tl_minifloat f, int hw, uint32_t random)
{
    return hw ? tl_mini_round_stochastic(x, f, random) : tl_round_mantissa_stochastic(x, f.mantissa, random);
}

TL_INLINE tl_minifloat tl_logit_format(int32_t level) { return level == TL_LEVEL_LOW ? tl_e4m3() : tl_e4m11(); }
TL_INLINE tl_minifloat tl_exp_format(int32_t level)
{
    return level == TL_LEVEL_LOW ? tl_ue5m3(TL_EXP_BIAS) : tl_ue5m11(TL_EXP_BIAS);
}

/* ---- logits */

/* c <- rnd(fma(k, q, c)) for LANES rows and one key: the cost of everything. level and hw are constants where this is
 * called. */
TL_INLINE void tl_recur(const float *q, int32_t pad, const float *k, int32_t d, int32_t level, int hw, float *y,
                        unsigned char *over)
{
    float c[LANES] = {0.f};
    int saturated[LANES] = {0};
    for (int32_t i = 0; i < d; i++)
        for (int l = 0; l < LANES; l++) {
            const float sum = tl_fma(k[i], q[(int64_t)i * pad + l], c[l]);
            if (hw) saturated[l] |= tl_mini_overflows(sum, tl_logit_format(level));
            c[l] = level == TL_LEVEL_F32 ? sum : tl_to_format(sum, tl_logit_format(level), hw);
        }
    for (int l = 0; l < LANES; l++) {
        y[l] = c[l];
        over[l] = (unsigned char)saturated[l];
    }
}

#ifdef TL_VECTORS
enum {
    SIDE = LANES / TL_LANES,            /* vectors side by side */
    WIDE = TL_LANES >= 16 ? 16 : CHAINS /* keys side by side where registers allow more than CHAINS */
};

/* Rounding a vector of sums. With b = 1.5 * 2^23 spacings, (c + b) - b is c rounded to nearest even at that spacing, of either
 * sign. Finite operands of no great size only: tl_is_tame. The sign of a zero is lost, which changes nothing that follows. */
typedef struct {
    tl_v least, factor, minus; /* the power of two below which spacings stay; b / 2^e and its negative */
} tl_sim_rounding;

TL_INLINE tl_sim_rounding tl_sim_rounding_of(int32_t level, int hw)
{
    const tl_minifloat f = tl_logit_format(level == TL_LEVEL_F32 ? TL_LEVEL_HIGH : level);
    tl_sim_rounding r = {tl_v_set(hw ? tl_float((uint32_t)(128 - f.bias) << 23) : 0x1p-126f),
                         tl_v_set(1.5f * tl_float((uint32_t)(127 + 23 - f.mantissa) << 23)),
                         tl_v_set(-1.5f * tl_float((uint32_t)(127 + 23 - f.mantissa) << 23))};
    return r;
}

/* hw: without saturation. Who uses it watches for sums beyond the format. */
TL_INLINE tl_v tl_v_to_format(tl_v c, const tl_sim_rounding *r)
{
    const tl_v power = tl_v_max(tl_v_power(c),
                                r->least); /* times factor is b, exactly: the fma's round as + and - would */
    return tl_v_fma(power, r->minus, tl_v_fma(power, r->factor, c));
}

/* The same as tl_recur for `keys` keys, a constant: so many sums side by side hide the latency of one. Returns 0 if a sum left
 * the hw format on its way: then it says nothing, and tl_recur must be asked. k: [d][stride], from its first key on. */
TL_INLINE int tl_recur_vectors(const int keys, const float *q, int32_t pad, const float *k, int32_t stride, int32_t d,
                               int32_t level, int hw, float *y)
{
    const tl_sim_rounding r = tl_sim_rounding_of(level, hw);
    tl_v c[WIDE][SIDE], peak = tl_v_set(0.f);
    TL_UNROLL
    for (int j = 0; j < keys; j++) {
        TL_UNROLL
        for (int l = 0; l < SIDE; l++) c[j][l] = tl_v_set(0.f);
    }
    for (int32_t i = 0; i < d; i++) {
        TL_UNROLL
        for (int j = 0; j < keys; j++) {
            const tl_v b = tl_v_set(k[(int64_t)i * stride + j]);
            TL_UNROLL
            for (int l = 0; l < SIDE; l++) {
                const tl_v sum = tl_v_fma(b, tl_v_load(q + (int64_t)i * pad + l * TL_LANES), c[j][l]);
                c[j][l] = level == TL_LEVEL_F32 ? sum : tl_v_to_format(sum, &r);
                if (hw) peak = tl_v_max(tl_v_abs(c[j][l]), peak);
            }
        }
    }
    TL_UNROLL
    for (int j = 0; j < keys; j++) {
        TL_UNROLL
        for (int l = 0; l < SIDE; l++) tl_v_store(y + (int64_t)j * pad + l * TL_LANES, c[j][l]);
    }
    return !hw || tl_v_top(peak) <= tl_mini_max(tl_logit_format(level));
}
#endif

/* No operand is NaN or Inf, and no sum of their products can come near Inf. */
TL_INLINE int tl_is_tame(const tl_ctx *x, int32_t rb)
{
    return x->q_largest[rb] < 0x1p45f && x->k_largest < 0x1p45f; /* 2^90 d < 2^104 */
}

static void tl_recur_stochastic(const tl_ctx *x, int32_t rb, int32_t key, int32_t level, float *y)
{
    unsigned char *over = x->over + (int64_t)key * x->pad;
    const float *q = x->q + (int64_t)rb * x->d * x->pad, *k = x->k + (int64_t)key * x->d;
    for (int32_t r = 0; r < tl_rows_here(x, rb); r++) {
        float c = 0.f;
        over[r] = 0;
        for (int32_t i = 0; i < x->d; i++) {
            c = tl_fma(k[i], q[(int64_t)i * x->pad + r], c);
            if (x->hw) over[r] |= (unsigned char)tl_mini_overflows(c, tl_logit_format(level));
            if (level != TL_LEVEL_F32)
                c = tl_to_format_stochastic(
                    c, tl_logit_format(level), x->hw,
                    tl_draw(x, rb, r, key, level == TL_LEVEL_LOW ? PLACE_LOW_SUM : PLACE_HIGH_SUM, i));
        }
        y[r] = c;
    }
}

/* `wide` keys (a constant) on vectors where that can be done, else one by one. */
TL_INLINE void tl_recur_block(const tl_ctx *x, int32_t rb, int32_t key, const int wide, int32_t level, int hw, float *y)
{
    const float *q = x->q + (int64_t)rb * x->d * x->pad, *k = x->k + (int64_t)key * x->d;
    unsigned char *over = x->over + (int64_t)key * x->pad;
    for (int32_t lane = 0; lane < x->pad; lane += LANES) {
#ifdef TL_VECTORS
        if (wide > 1 && tl_is_tame(x, rb) &&
            tl_recur_vectors(wide, q + lane, x->pad, x->k_channels + key, x->tile_keys, x->d, level, hw, y + lane)) {
            for (int32_t j = 0; j < wide && hw; j++) memset(over + (int64_t)j * x->pad + lane, 0, LANES);
            continue;
        }
#endif
        for (int32_t j = 0; j < wide; j++)
            tl_recur(q + lane, x->pad, k + (int64_t)j * x->d, x->d, level, hw, y + (int64_t)j * x->pad + lane,
                     over + (int64_t)j * x->pad + lane);
    }
}

TL_INLINE void tl_recur_keys(const tl_ctx *x, int32_t rb, int32_t key, int32_t keys, int32_t level, int hw, float *y)
{
    int32_t j = 0;
#ifdef TL_VECTORS
    for (; j + WIDE <= keys; j += WIDE) tl_recur_block(x, rb, key + j, WIDE, level, hw, y + (int64_t)j * x->pad);
    for (; j + CHAINS <= keys; j += CHAINS) tl_recur_block(x, rb, key + j, CHAINS, level, hw, y + (int64_t)j * x->pad);
#endif
    for (; j < keys; j++) tl_recur_block(x, rb, key + j, 1, level, hw, y + (int64_t)j * x->pad);
}

/* One function per format: each is compiled for its constants. */
static void tl_recur_low_sim(const tl_ctx *x, int32_t rb, int32_t key, int32_t keys, float *y)
{
    tl_recur_keys(x, rb, key, keys, TL_LEVEL_LOW, 0, y);
}
static void tl_recur_high_sim(const tl_ctx *x, int32_t rb, int32_t key, int32_t keys, float *y)
{
    tl_recur_keys(x, rb, key, keys, TL_LEVEL_HIGH, 0, y);
}
static void tl_recur_low_hw(const tl_ctx *x, int32_t rb, int32_t key, int32_t keys, float *y)
{
    tl_recur_keys(x, rb, key, keys, TL_LEVEL_LOW, 1, y);
}
static void tl_recur_high_hw(const tl_ctx *x, int32_t rb, int32_t key, int32_t keys, float *y)
{
    tl_recur_keys(x, rb, key, keys, TL_LEVEL_HIGH, 1, y);
}
static void tl_recur_f32(const tl_ctx *x, int32_t rb, int32_t key, int32_t keys, float *y)
{
    tl_recur_keys(x, rb, key, keys, TL_LEVEL_F32, 0, y);
}

TL_INLINE void tl_recur_sub(const tl_ctx *x, int32_t rb, int32_t key, int32_t keys, int32_t level, float *y)
{
    if (level == TL_LEVEL_F32)
        tl_recur_f32(x, rb, key, keys, y);
    else if (level == TL_LEVEL_HIGH && x->hw)
        tl_recur_high_hw(x, rb, key, keys, y);
    else if (level == TL_LEVEL_HIGH)
        tl_recur_high_sim(x, rb, key, keys, y);
    else if (x->hw)
        tl_recur_low_hw(x, rb, key, keys, y);
    else
        tl_recur_low_sim(x, rb, key, keys, y);
}

/* Softcap, ALiBi and bias, the limit of core/online_softmax.h, and the rounding after them. */
static void tl_finish_logits(const tl_ctx *x, int32_t rb, int32_t key, int32_t level, float *y)
{
    const tl_call *call = x->cpu.call;
    const tl_sequence *seq = x->cpu.seq;
    /* On the format's grid and far from the limit: every step below would leave it as it is. */
    if (tl_logits_are_plain(call) && tl_is_tame(x, rb)) return;
    for (int32_t r = 0; r < tl_rows_here(x, rb); r++) {
        const int32_t row = rb * x->b_q + r, head = tl_head_of(&x->cpu, row);
        const int64_t token = tl_token_of(&x->cpu, row), j = x->first_key + key,
                      distance = j - (token + seq->lk - seq->lq);
        float c = y[r];
        if (call->softcap > 0.f) c = call->softcap * tl_tanh(c / call->softcap);
        if (call->alibi_slopes)
            c -= call->alibi_slopes[seq->batch * call->alibi_batch_stride + head] *
                 (float)(distance < 0 ? -distance : distance);
        if (call->bias.data)
            c += tl_load(call->bias.data, tl_score_offset(&call->bias, seq->batch, head, token, j), call->bias.dtype);
        y[r] = c;
    }
    const int32_t place = level == TL_LEVEL_LOW ? PLACE_LOW_LOGIT : PLACE_HIGH_LOGIT;
    for (int32_t r = 0; r < x->pad; r++) {
        y[r] = tl_limit_logit(y[r]);
        if (level == TL_LEVEL_F32) continue;
        if (x->hw) x->over[(int64_t)key * x->pad + r] |= (unsigned char)tl_mini_overflows(y[r], tl_logit_format(level));
        y[r] = x->stochastic
                   ? tl_to_format_stochastic(y[r], tl_logit_format(level), x->hw, tl_draw(x, rb, r, key, place, 0))
                   : tl_to_format(y[r], tl_logit_format(level), x->hw);
    }
}

/* Keys [first, end) of a sub-block that exist. */
TL_INLINE int32_t tl_sub_first(const tl_ctx *x, int32_t sub) { return sub * x->b_k < x->keys ? sub * x->b_k : x->keys; }
TL_INLINE int32_t tl_sub_end(const tl_ctx *x, int32_t sub) { return tl_sub_first(x, sub + 1); }

/* Does every row of the block see every key of the tile? */
TL_INLINE int tl_all_seen(const tl_span span) { return !span.edge; }

static uint32_t tl_sub_legal(tl_ctx *x, tl_span span, int32_t rb)
{
    uint32_t legal = 0;
    for (int32_t sub = 0; sub < tl_lamp_subs(x); sub++) {
        int seen = tl_all_seen(span) && tl_sub_first(x, sub) < tl_sub_end(x, sub);
        for (int32_t key = tl_sub_first(x, sub); key < tl_sub_end(x, sub) && !seen; key++)
            for (int32_t r = 0; r < tl_rows_here(x, rb) && !seen; r++)
                seen = tl_row_sees(&x->cpu, rb * x->b_q + r, x->first_key + key);
        legal |= (uint32_t)seen << sub;
    }
    x->legal = legal;
    return legal;
}

/* The largest finite magnitude, and how many logits left their format. What is hidden is -Inf. */
TL_INLINE void tl_look_at_logits(tl_ctx *x, int32_t sub, int32_t key, int32_t level, const float *y)
{
    const unsigned char *over = x->over + (int64_t)key * x->pad;
    const int counts = x->hw && level != TL_LEVEL_F32;
    float largest = x->largest[sub];
    int32_t saturated = 0;
    for (int32_t r = 0; r < x->pad; r++) largest = tl_max(tl_is_finite(y[r]) ? tl_abs(y[r]) : 0.f, largest);
    for (int32_t r = 0; r < x->pad && counts; r++) saturated += over[r] && tl_is_finite(y[r]);
    x->largest[sub] = largest;
    x->saturated[sub] += saturated;
}

static void tl_sub_logits(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb, int32_t sub, int32_t level)
{
    const int32_t first = tl_sub_first(x, sub), end = tl_sub_end(x, sub);
    float *y = s->s + (int64_t)first * x->pad;
    if (x->stochastic && level != TL_LEVEL_F32)
        for (int32_t key = first; key < end; key++)
            tl_recur_stochastic(x, rb, key, level, s->s + (int64_t)key * x->pad);
    else
        tl_recur_sub(x, rb, first, end - first, level, y);
    x->saturated[sub] = 0;
    x->largest[sub] = 0.f;
    for (int32_t key = first; key < end; key++) {
        float *to = s->s + (int64_t)key * x->pad;
        tl_finish_logits(x, rb, key, level, to);
        for (int32_t r = tl_rows_here(x, rb); r < x->pad; r++) to[r] = -TL_INF;
        for (int32_t r = 0; r < tl_rows_here(x, rb) && !tl_all_seen(span); r++)
            if (!tl_row_sees(&x->cpu, rb * x->b_q + r, x->first_key + key)) to[r] = -TL_INF;
        tl_look_at_logits(x, sub, key, level, to);
    }
}

static void tl_sub_max(const tl_ctx *x, const tl_scores *s, int32_t rb, int32_t sub, float *top)
{
    (void)rb;
    for (int32_t r = 0; r < x->pad; r++) top[r] = -TL_INF;
    for (int32_t key = tl_sub_first(x, sub); key < tl_sub_end(x, sub); key++)
        for (int32_t r = 0; r < x->pad; r++) top[r] = tl_max(s->s[(int64_t)key * x->pad + r], top[r]);
}

/* ---- exponentials */

TL_INLINE float tl_exp_of(float y) { return tl_exp2(y * TL_LOG2E); }

/* exp(y - ref) in a precision (src/reference/lamp.h); 0 for a y of -Inf. level and hw are constants where this is called; hw's
 * low exponential is tl_exp_low_hw. */
TL_INLINE float tl_sim_exp(float y, float ref, int32_t level, int hw, int clamp)
{
    if (level == TL_LEVEL_F32) return tl_exp_of(y - ref);
    if (level == TL_LEVEL_HIGH)
        return tl_to_format(tl_exp_of(clamp && y - ref > 0.f ? 0.f : y - ref), tl_exp_format(level), hw);
    const float shift = tl_to_format(ref - y, tl_ue5m3(TL_SHIFT_BIAS), 0);
    return tl_to_format(tl_exp_of(-shift), tl_exp_format(level), 0);
}

static float tl_sim_exp_stochastic(const tl_ctx *x, int32_t rb, int32_t r, int32_t key, float y, float ref,
                                   int32_t level)
{
    if (level == TL_LEVEL_F32) return tl_exp_of(y - ref);
    if (level == TL_LEVEL_HIGH) {
        const float e = tl_exp_of(x->hw && x->clamp && y - ref > 0.f ? 0.f : y - ref);
        return tl_to_format_stochastic(e, tl_exp_format(1), x->hw, tl_draw(x, rb, r, key, PLACE_HIGH_EXP, 0));
    }
    const float mu = x->hw ? tl_mini_truncate(ref, tl_e4m3()) : ref;
    const float shift = tl_to_format_stochastic(mu - y, tl_ue5m3(TL_SHIFT_BIAS), x->hw,
                                                tl_draw(x, rb, r, key, PLACE_SHIFT, 0));
    if (x->hw) return tl_exp_lookup(shift);
    return tl_to_format_stochastic(tl_exp_of(-shift), tl_exp_format(0), 0, tl_draw(x, rb, r, key, PLACE_LOW_EXP, 0));
}

TL_INLINE void tl_exp_lanes(float *e, const float *ref, int32_t n, int32_t level, int hw, int clamp)
{
    for (int32_t r = 0; r < n; r++) e[r] = tl_sim_exp(e[r], ref[r], level, hw, clamp);
}

/* hw, low: the one exponential that is a table. mu: the references, truncated. */
static void tl_exp_low_hw(const tl_ctx *x, float *e, const float *mu)
{
#ifdef TL_TABLE_IN_REGISTERS
    const tl_exp_registers table = tl_exp_registers_load();
#endif
    for (int32_t lane = 0; lane < x->pad; lane += LANES) {
        float shift[LANES];
        for (int l = 0; l < LANES; l++) shift[l] = tl_mini_round(mu[lane + l] - e[lane + l], tl_ue5m3(TL_SHIFT_BIAS));
#ifdef TL_TABLE_IN_REGISTERS
        _mm512_storeu_ps(e + lane, tl_exp_lookup_16(&table, _mm512_loadu_ps(shift)));
#else
        uint32_t code[LANES];
        for (int l = 0; l < LANES; l++) code[l] = tl_mini_encode(shift[l], tl_ue5m3(TL_SHIFT_BIAS));
        for (int l = 0; l < LANES; l++) e[lane + l] = tl_is_nan(shift[l]) ? shift[l] : x->exp_value[code[l]];
#endif
    }
}

static void tl_sub_exp(tl_ctx *x, tl_scores *s, int32_t rb, int32_t sub, int32_t level, const float *ref)
{
    const int32_t rows = tl_rows_here(x, rb);
    float mu[TL_LAMP_ROWS];
    for (int32_t r = 0; r < x->pad && x->hw; r++) mu[r] = tl_mini_truncate(ref[r], tl_e4m3());
    for (int32_t key = tl_sub_first(x, sub); key < tl_sub_end(x, sub); key++) {
        float *e = s->s + (int64_t)key * x->pad;
        if (level == TL_LEVEL_F32)
            tl_exp_lanes(e, ref, rows, TL_LEVEL_F32, 0, 0);
        else if (x->stochastic)
            for (int32_t r = 0; r < rows; r++) e[r] = tl_sim_exp_stochastic(x, rb, r, key, e[r], ref[r], level);
        else if (x->hw)
            if (level == TL_LEVEL_LOW)
                tl_exp_low_hw(x, e, mu);
            else
                tl_exp_lanes(e, ref, rows, TL_LEVEL_HIGH, 1, x->clamp);
        else if (level == TL_LEVEL_HIGH)
            tl_exp_lanes(e, ref, rows, TL_LEVEL_HIGH, 0, 0);
        else
            tl_exp_lanes(e, ref, rows, TL_LEVEL_LOW, 0, 0);
        for (int32_t r = rows; r < x->pad; r++) e[r] = 0.f;
    }
}

static void tl_sub_shrink(tl_ctx *x, tl_scores *s, int32_t rb, int32_t sub, int32_t level, const float *factor)
{
    for (int32_t key = tl_sub_first(x, sub); key < tl_sub_end(x, sub); key++)
        for (int32_t r = 0; r < tl_rows_here(x, rb); r++) {
            float *e = s->s + (int64_t)key * x->pad + r;
            if (factor[r] == 1.f) continue;
            *e = x->stochastic ? tl_to_format_stochastic(*e * factor[r], tl_exp_format(level), x->hw,
                                                         tl_draw(x, rb, r, key, PLACE_RESCALE, 0))
                               : tl_to_format(*e * factor[r], tl_exp_format(level), x->hw);
        }
}

/* ---- sums, keys rising */

static void tl_sub_sums(const tl_ctx *x, const tl_scores *s, int32_t rb, int32_t sub, float *s1, float *s2)
{
    (void)rb;
    for (int32_t r = 0; r < x->pad; r++) s1[r] = s2[r] = 0.f;
    for (int32_t key = tl_sub_first(x, sub); key < tl_sub_end(x, sub); key++)
        for (int32_t r = 0; r < x->pad; r++) {
            const float e = s->s[(int64_t)key * x->pad + r];
            s1[r] += e;
            s2[r] = tl_fma(e, e, s2[r]);
        }
}

static void tl_tile_sums(const tl_ctx *x, const tl_scores *s, int32_t rb, float *sum)
{
    (void)rb;
    for (int32_t r = 0; r < x->pad; r++) sum[r] = 0.f;
    for (int32_t key = 0; key < x->keys; key++) {
        if (!(x->legal & tl_lamp_bit(key / x->b_k))) continue;
        for (int32_t r = 0; r < x->pad; r++) sum[r] += s->s[(int64_t)key * x->pad + r];
    }
}

/* ---- P V: O = fma(E, V, O), keys rising */

TL_INLINE void tl_rescale(tl_ctx *x, tl_acc *acc, int32_t rb, const float *lambda)
{
    float *o = acc->o + (int64_t)rb * x->dv * x->pad;
    for (int32_t c = 0; c < x->dv; c++)
        for (int32_t r = 0; r < tl_rows_here(x, rb); r++) o[(int64_t)c * x->pad + r] *= lambda[r];
}

/* One channel and LANES rows. A key that a row does not see is left out where V is not finite: 0 * NaN is NaN. */
static void tl_values_lanes(const tl_ctx *x, const tl_scores *s, int32_t rb, int32_t channel, int32_t lane, float *o)
{
    for (int32_t key = 0; key < x->keys; key++) {
        if (!(x->legal & tl_lamp_bit(key / x->b_k))) continue;
        const float v = x->v[(int64_t)key * x->dv + channel], *e = s->s + (int64_t)key * x->pad + lane;
        for (int l = 0; l < LANES; l++) {
            const int32_t row = rb * x->b_q + lane + l;
            const int left_out = x->v_nonfinite &&
                                 (lane + l >= tl_rows_here(x, rb) || !tl_row_sees(&x->cpu, row, x->first_key + key));
            o[l] = left_out ? o[l] : tl_fma(e[l], v, o[l]);
        }
    }
}

#ifdef TL_VECTORS
/* The same for CHAINS channels at once, V finite. */
TL_INLINE void tl_values_vectors(const tl_ctx *x, const tl_scores *s, int32_t channel, int32_t lane, float *o)
{
    tl_v a[CHAINS][SIDE];
    TL_UNROLL
    for (int j = 0; j < CHAINS; j++) {
        TL_UNROLL
        for (int l = 0; l < SIDE; l++) a[j][l] = tl_v_load(o + (int64_t)j * x->pad + l * TL_LANES);
    }
    for (int32_t key = 0; key < x->keys; key++) {
        if (!(x->legal & tl_lamp_bit(key / x->b_k))) continue;
        const float *v = x->v + (int64_t)key * x->dv + channel, *e = s->s + (int64_t)key * x->pad + lane;
        TL_UNROLL
        for (int j = 0; j < CHAINS; j++) {
            TL_UNROLL
            for (int l = 0; l < SIDE; l++) a[j][l] = tl_v_fma(tl_v_load(e + l * TL_LANES), tl_v_set(v[j]), a[j][l]);
        }
    }
    TL_UNROLL
    for (int j = 0; j < CHAINS; j++) {
        TL_UNROLL
        for (int l = 0; l < SIDE; l++) tl_v_store(o + (int64_t)j * x->pad + l * TL_LANES, a[j][l]);
    }
}
#endif

static void tl_values_issue(tl_ctx *x, tl_acc *acc, tl_scores *s, tl_span span, int32_t rb)
{
    (void)span;
    for (int32_t lane = 0; lane < x->pad; lane += LANES) {
        float *o = acc->o + (int64_t)rb * x->dv * x->pad + lane;
        int32_t channel = 0;
#ifdef TL_VECTORS
        for (; channel + CHAINS <= x->dv && !x->v_nonfinite; channel += CHAINS)
            tl_values_vectors(x, s, channel, lane, o + (int64_t)channel * x->pad);
#endif
        for (; channel < x->dv; channel++) tl_values_lanes(x, s, rb, channel, lane, o + (int64_t)channel * x->pad);
    }
}

TL_INLINE void tl_values_wait(tl_ctx *x, tl_acc *acc)
{
    (void)x;
    (void)acc;
}

/* ---- state */

TL_INLINE void tl_sinks(const tl_ctx *x, int32_t rb, float sink[TL_ROWS])
{
    for (int32_t r = 0; r < TL_ROWS; r++)
        sink[r] = r < tl_rows_here(x, rb) && x->cpu.call->sinks
                      ? x->cpu.call->sinks[tl_head_of(&x->cpu, rb * x->b_q + r)]
                      : TL_NEVER;
}

TL_INLINE float tl_lamp_sink(const tl_ctx *x, float sink)
{
    return x->hw && x->cpu.call->policy->lamp_run != TLAMP_LAMP_RUN_F32 ? tl_mini_round(sink, tl_e4m11()) : sink;
}

TL_INLINE void tl_row_join_sum(const tl_ctx *x, float *sum)
{
    (void)x;
    (void)sum;
}

TL_INLINE void tl_count(tl_ctx *x, int32_t counter, int64_t n) { x->cpu.counters->lamp[counter] += n; }

TL_INLINE void tl_lamp_count(tl_ctx *x, uint32_t legal)
{
    for (int32_t sub = 0; sub < tl_lamp_subs(x); sub++) {
        if (!(legal & tl_lamp_bit(sub))) continue;
        tl_count(x, TL_COUNT_SATURATED, x->saturated[sub]);
        x->cpu.counters->largest_logit = tl_max(x->largest[sub], x->cpu.counters->largest_logit);
    }
}

static void tl_store(tl_ctx *x, const tl_acc *acc, int32_t rb, const float m[TL_ROWS], const float l[TL_ROWS])
{
    for (int32_t r = 0; r < tl_rows_here(x, rb); r++) {
        const float *o = acc->o + (int64_t)rb * x->dv * x->pad + r;
        for (int32_t c = 0; c < x->dv; c++) x->row[c] = o[(int64_t)c * x->pad];
        tl_store_output(&x->cpu, rb * x->b_q + r, x->row, l[r], m[r] + tl_log2(l[r]) * TL_LN2);
    }
}

#endif
