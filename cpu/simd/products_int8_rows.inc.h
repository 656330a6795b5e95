/* INT8 products from K as it lies in the tensor, for tasks of few rows: keys are quantised as they are multiplied, in
 * registers, with the scales that packing would give them. Codes are floats here: their products and sums are whole numbers
 * below 2^24, so that every score has the bits of the packed product. Comes after simd/products_rows.inc.h. */

typedef struct {
    const unsigned char *key; /* as tl_high */
    int64_t stride;

    /* of the keys of a span */
    float *scale;           /* [keys] what a score is multiplied by, times q_scale; before that as tl_find_peaks says */
    float *inverse;         /* [keys] what a key is multiplied by before it is rounded */
    unsigned char *flagged; /* [keys] left out of INT8 */
    unsigned char *tiles_known;   /* [keys / 64] the above are there */
    unsigned char *tiles_flagged; /* [keys / 64] a key of the tile is */

    /* of the task's queries */
    float *codes;             /* [rows][x->q_stride] */
    float *coded, *rotated;   /* x->q: what needs a rotation is not done here */
    float *q_scale;           /* [rows] times x->factor */
    unsigned char *q_flagged; /* [rows] */
    int32_t some_q_flagged;
} tl_int8;

enum { TL_KEY_TILE = 64 };

/* Units of one tile, which share a scale unless the caller has quantised; and sums that are exact. */
TL_INLINE int tl_int8_suits(const tlamp_problem *problem)
{
    const tlamp_policy *p = problem->policy;
    if (p->kind == TLAMP_POLICY_HIGH) return 1;
    const int one_tile = p->quant_block_k <= TL_KEY_TILE || problem->max_seqlen_k <= TL_KEY_TILE;
    const int shared = p->scales != TLAMP_SCALES_TOKEN || problem->k_dtype == TLAMP_INT8;
    return p->kind != TLAMP_POLICY_X3 && one_tile && shared && !p->smooth_k && !p->hadamard &&
           problem->head_dim_qk * (127 * 127) < 1 << 24;
}

static void tl_int8_lay_out_keys(tl_int8 *z, const tl_shape *shape, int64_t keys, tl_arena *a)
{
    const int64_t n = shape->int8 ? keys : 0;
    z->scale = tl_take(a, n * 4);
    z->inverse = tl_take(a, tl_ceil_div(n, TL_KEY_TILE) * 4);
    z->flagged = tl_take(a, n);
    z->tiles_known = tl_take(a, tl_ceil_div(n, TL_KEY_TILE));
    z->tiles_flagged = tl_take(a, tl_ceil_div(n, TL_KEY_TILE));
}

static void tl_int8_lay_out_task(tl_int8 *z, const tl_shape *shape, int64_t rows, tl_arena *a)
{
    const int64_t n = shape->int8 ? rows : 0;
    z->codes = tl_take(a, n * tl_round_up(shape->head_dim_qk, TL_PANEL) * 4);
    z->q_scale = tl_take(a, n * 4);
    z->q_flagged = tl_take(a, n);
}

/* ---- queries */

static void tl_quantise_query(const tl_operands *x, tl_int8 *z, int32_t r, tl_quant quant)
{
    const float *q = x->q + (int64_t)r * x->q_stride;
    float *codes = z->codes + (int64_t)r * x->q_stride;
    const int flagged = !tl_is_finite(tl_peak(q, x->d));
    z->q_flagged[r] = (unsigned char)flagged;
    z->some_q_flagged |= flagged;
    x->cpu.counters->nonfinite_tokens += flagged && tl_counts_rows(&x->cpu.task, TL_INT8);
    for (int32_t i = 0; i < x->q_stride; i += TL_LANES) {
        const tl_v y = tl_v_round(tl_v_mul(tl_v_load(q + i), tl_v_set(quant.inverse)));
        tl_v_store(codes + i, flagged ? tl_v_set(0.f) : y);
    }
    z->q_scale[r] = tl_kernel_scale(quant) * x->factor;
}

#include "simd/peaks_int8.inc.h"
#include "simd/scales_int8.inc.h"

/* ---- keys */

/* Scales and flags of the tile's keys, which begin at `at`. */
static void tl_know_tile(const tl_operands *x, const tl_int8 *z, int64_t at)
{
    const tl_cpu *c = &x->cpu;
    const int64_t key = x->first + at, tile = at / TL_KEY_TILE;
    const int32_t n = tl_least(TL_KEY_TILE, c->seq->lk - key), padded = (int32_t)tl_round_up(n, TL_PANEL);
    int flagged = 0;
    float peak = 0.f;
    if (tl_find_one_peak(x, key, n, &peak))
        memset(z->flagged + at, 0, (size_t)padded);
    else {
        tl_find_peaks(x, z, key, key + padded);
        peak = z->scale[at];
        for (int32_t j = 0; j < padded; j++) flagged |= z->flagged[at + j];
    }
    const tl_quant quant = tl_policy_quant(c->call->policy, peak);
    z->inverse[tile] = quant.inverse;
    for (int32_t j = 0; j < padded; j++) /* codes of the caller's whose scale is none count as 0 */
        z->scale[at + j] = c->call->k.scale ? tl_given_quant(z->scale[at + j]).scale : tl_kernel_scale(quant);
    z->tiles_flagged[tile] = (unsigned char)flagged;
    z->tiles_known[tile] = 1;
}

/* Nothing is packed, and scales are found when they are needed, while their keys come into the cache. Under ROUTED every
 * tile's are: the tokens that are left out are counted whatever the route. */
static void tl_int8_scales(const tl_operands *x, tl_int8 *z, int64_t begin, int64_t end)
{
    const tl_operand *k = &x->cpu.call->k;
    z->key = tl_row(k, x->cpu.seq->batch, x->cpu.seq->k_start, 0, x->cpu.kv_head);
    z->stride = k->seq * tl_dtype_bytes(k->dtype);
    for (int64_t at = begin - x->first; at < end - x->first; at += TL_KEY_TILE) {
        z->tiles_known[at / TL_KEY_TILE] = 0;
        if (x->cpu.call->policy->kind == TLAMP_POLICY_ROUTED) tl_know_tile(x, z, at);
    }
}

TL_INLINE void tl_int8_pack(const tl_operands *x, const tl_int8 *z, int64_t begin, int64_t end)
{
    (void)x;
    (void)z;
    (void)begin;
    (void)end;
}

/* ---- products */

TL_SCORE_PANELS(tl_code_panel_f32, TL_F32, TL_AS_CODES)
TL_SCORE_PANELS(tl_code_panel_f16, TL_F16, TL_AS_CODES)
TL_SCORE_PANELS(tl_code_panel_bf16, TL_BF16, TL_AS_CODES)
TL_SCORE_PANELS(tl_code_panel_i8, TL_I8, TL_AS_CODES)

/* Sums of products of codes become scores. */
TL_INLINE void tl_scale_scores(const tl_int8 *z, int32_t row, int32_t rows, int64_t at, int32_t n, float *s)
{
    for (int32_t r = 0; r < rows; r++, s += TL_SCORE_STRIDE) {
        const tl_v q = tl_v_set(z->q_scale[row + r]);
        for (int32_t j = 0; j < n; j += TL_LANES)
            tl_v_store(s + j, tl_v_mul(tl_v_load(s + j), tl_v_mul(q, tl_v_load(z->scale + at + j))));
    }
}

/* Keys [at, at + n) of one tile. */
static void tl_int8_tile_scores(const tl_operands *x, const tl_int8 *z, int32_t row, int32_t rows, int64_t at,
                                int32_t n, float *s)
{
    const tl_high h = {z->key, z->stride};
    const float *q = z->codes + (int64_t)row * x->q_stride;
    if (!z->tiles_known[at / TL_KEY_TILE]) tl_know_tile(x, z, at / TL_KEY_TILE * TL_KEY_TILE);
    for (int32_t j = 0; j < n; j += TL_PANEL) {
        tl_key_panel p;
        tl_take_keys(x, &h, x->first + at + j, &p);
        p.inverse = z->inverse[at / TL_KEY_TILE];
        switch (x->cpu.call->k.dtype) {
        case TL_F32: tl_code_panel_f32(q, x->q_stride, rows, x->d, 1.f, &p, s + j); break;
        case TL_F16: tl_code_panel_f16(q, x->q_stride, rows, x->d, 1.f, &p, s + j); break;
        case TL_BF16: tl_code_panel_bf16(q, x->q_stride, rows, x->d, 1.f, &p, s + j); break;
        default: tl_code_panel_i8(q, x->q_stride, rows, x->d, 1.f, &p, s + j); break;
        }
    }
    tl_scale_scores(z, row, rows, at, n, s);
    if (z->some_q_flagged || z->tiles_flagged[at / TL_KEY_TILE]) tl_scores_flagged(x, z, row, rows, at, n, s);
}

static void tl_int8_scores(const tl_operands *x, const tl_int8 *z, int32_t row, int32_t rows, int64_t at, int32_t n,
                           float *s)
{
    for (int32_t j = 0, m; j < n; j += m) {
        m = tl_least(TL_KEY_TILE - (at + j) % TL_KEY_TILE, n - j);
        tl_int8_tile_scores(x, z, row, rows, at + j, m, s + j);
    }
}
