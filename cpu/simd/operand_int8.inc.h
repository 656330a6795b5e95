/* The operands of INT8 products: queries as rows of codes, keys as [keys / 16][units][16] 32-bit units of TL_CODES channels.
 * TL_CODE_UNITS: what the units of a token are made up to a multiple of. X3 (ALGORITHMS E) has two planes of each. */
#include "simd/operands.h"

typedef struct {
    int32_t units, code_stride; /* 32-bit units of a token's codes; codes from one row to the next */
    int32_t planes;             /* 2: X3 */

    /* of the packed keys */
    tl_qcode *keys[2];             /* of each plane */
    float *scale;                  /* [keys] */
    unsigned char *flagged;        /* [keys] left out of INT8 */
    unsigned char *panels_flagged; /* [keys / 16] a key of the panel is */

    /* of the task's queries */
    tl_qcode *q[2];           /* [rows][code_stride], of each plane */
    float *coded, *rotated;   /* [rows][x->q_stride] as they are quantised: x->q, or rotated */
    int32_t *q_start;         /* [rows] a part of the sum of products: takes the bias of the keys' codes back */
    float *q_scale, *q_mean;  /* [rows] times x->factor: INT8 scale; q . mean of K, with smooth_k */
    unsigned char *q_flagged; /* [rows] */
    int32_t some_q_flagged;

    tl_qcode *codes; /* [planes][TL_PANEL][code_stride] scratch */
} tl_int8;

/* What lies behind the last channel is never NaN or Inf, and 0 in queries: keys may hold anything there. */
TL_INLINE int32_t tl_int8_units(const tl_shape *shape)
{
    return (int32_t)tl_round_up(tl_ceil_div(shape->head_dim_qk, TL_CODES), TL_CODE_UNITS);
}

static void tl_int8_lay_out_keys(tl_int8 *z, const tl_shape *shape, int64_t keys, tl_arena *a)
{
    const int64_t n = shape->int8 ? keys : 0;
    for (int i = 0; i < 2; i++) z->keys[i] = tl_take(a, i < shape->code_planes ? n * tl_int8_units(shape) * 4 : 0);
    z->scale = tl_take(a, n * 4);
    z->flagged = tl_take(a, n);
    z->panels_flagged = tl_take(a, n / TL_PANEL);
}

static void tl_int8_lay_out_task(tl_int8 *z, const tl_shape *shape, int64_t rows, tl_arena *a)
{
    const int64_t n = shape->int8 ? rows : 0, code = (int64_t)sizeof(tl_qcode);
    z->code_stride = (int32_t)tl_round_up(shape->head_dim_qk, TL_LANES * TL_CODES);
    z->units = tl_int8_units(shape);
    z->planes = shape->code_planes;
    for (int i = 0; i < 2; i++) z->q[i] = tl_take(a, i < shape->code_planes ? n * z->code_stride * code : 0);
    z->rotated = tl_take(a, shape->policy->hadamard ? n * tl_round_up(shape->head_dim_qk, TL_PANEL) * 4 : 0);
    z->q_start = tl_take(a, n * 4);
    z->q_scale = tl_take(a, n * 4);
    z->q_mean = tl_take(a, n * 4);
    z->q_flagged = tl_take(a, n);
    z->codes = tl_take(a, shape->int8 ? shape->code_planes * TL_PANEL * z->code_stride * code : 0);
}

/* A widened row's codes; bias is added to each. */
static void tl_encode(tl_qcode *to, const float *x, int32_t n, float inverse, int32_t bias)
{
    for (int32_t i = 0; i < n; i += TL_LANES)
        tl_store_codes(to + i, tl_v_mul(tl_v_load(x + i), tl_v_set(inverse)), bias);
}

/* Those of X3's second plane: as tl_second_code. */
static void tl_encode_second(tl_qcode *to, const float *x, int32_t n, tl_quant quant, int32_t bias)
{
    const tl_v inverse = tl_v_set(quant.inverse), scale = tl_v_set(-quant.scale), magic = tl_v_set(12582912.f);
    for (int32_t i = 0; i < n; i += TL_LANES) {
        const tl_v a = tl_v_load(x + i), code = tl_v_sub(tl_v_add(tl_v_mul(a, inverse), magic), magic);
        const tl_v rest = tl_v_mul(tl_v_fma(code, scale, a), inverse);
        tl_store_codes(to + i, tl_v_mul(rest, tl_v_set(TL_PLANE_STEPS)), bias);
    }
}

/* ---- keys */

/* One plane's codes of 16 keys, as rows in z->codes, to their place at. */
static void tl_pack_plane(const tl_int8 *z, int plane, int64_t at)
{
    float *panel = (float *)(void *)(z->keys[plane] + at * z->units * TL_CODES);
    const int32_t stride = z->code_stride / TL_CODES;
    const float *units = (const float *)(const void *)z->codes; /* in fact: four bytes that stay together */
    units += (int64_t)plane * TL_PANEL * stride;
    for (int32_t u = 0; u < z->units; u += TL_LANES)
        for (int32_t j = 0; j < TL_PANEL; j += TL_LANES) {
            tl_v square[TL_LANES];
            TL_UNROLL for (int i = 0; i < TL_LANES; i++) square[i] = tl_v_load(units + (int64_t)(j + i) * stride + u);
            tl_store_square(panel, u, z->units, j, square);
        }
}

/* Codes of 16 keys, and their scales. Returns whether one of them is flagged. */
static int tl_pack_codes(const tl_operands *x, const tl_int8 *z, int64_t key)
{
    const tl_cpu *c = &x->cpu;
    const int64_t at = key - x->first;
    int flagged = 0;
    for (int32_t j = 0; j < TL_PANEL; j++) {
        const int used = key + j < c->seq->lk && tl_key_is_seen(c->seq, c->prepared, key + j) && !z->flagged[at + j];
        const tl_quant quant = c->call->k.scale ? tl_given_quant(z->scale[at + j])
                                                : tl_policy_quant(c->call->policy, z->scale[at + j]);
        if (used)
            tl_widen_coded_key(x->token, c, key + j);
        else
            memset(x->token, 0, sizeof *x->token * (size_t)x->q_stride);
        tl_qcode *codes = z->codes + (int64_t)j * z->code_stride;
        tl_encode(codes, x->token, x->d, quant.inverse, TL_KEY_BIAS);
        if (z->planes == 2) tl_encode_second(codes + TL_PANEL * z->code_stride, x->token, x->d, quant, TL_KEY_BIAS);
        z->scale[at + j] = tl_kernel_scale(quant);
        flagged |= z->flagged[at + j];
    }
    for (int i = 0; i < z->planes; i++) tl_pack_plane(z, i, at);
    return flagged;
}

static void tl_int8_pack(const tl_operands *x, const tl_int8 *z, int64_t begin, int64_t end)
{
    for (int64_t key = begin; key < end; key += TL_PANEL)
        z->panels_flagged[(key - x->first) / TL_PANEL] = (unsigned char)tl_pack_codes(x, z, key);
}

/* ---- queries */

static void tl_quantise_query(const tl_operands *x, tl_int8 *z, int32_t r, tl_quant quant)
{
    const float *q = x->q + (int64_t)r * x->q_stride, *mean = x->cpu.prepared->mean;
    const float *coded = z->coded + (int64_t)r * x->q_stride;
    const int flagged = !tl_is_finite(tl_peak(coded, x->d));
    int64_t sum = 0; /* of what meets a key's bias */
    z->q_flagged[r] = (unsigned char)flagged;
    z->some_q_flagged |= flagged;
    x->cpu.counters->nonfinite_tokens += flagged && tl_counts_rows(&x->cpu.task, TL_INT8);
    for (int p = 0; p < z->planes; p++) {
        tl_qcode *codes = z->q[p] + (int64_t)r * z->code_stride;
        const int32_t times = z->planes == 1 || p == 1 ? 1 : TL_PLANE_STEPS + 1;
        memset(codes, 0, sizeof *codes * (size_t)z->code_stride);
        if (!flagged && p == 0) tl_encode(codes, coded, x->d, quant.inverse, 0);
        if (!flagged && p == 1) tl_encode_second(codes, coded, x->d, quant, 0);
        for (int32_t i = 0; TL_KEY_BIAS != 0 && i < x->d; i++) sum += times * (int8_t)codes[i];
    }
    z->q_start[r] = (int32_t)(uint32_t)(-TL_KEY_BIAS * sum); /* sums may wrap on the way */
    z->q_scale[r] = tl_kernel_scale(quant) * tl_product_unit(&x->cpu.call->shape) * x->factor;
    float dot = 0.f;
    for (int32_t i = 0; mean && i < x->d; i++) dot += q[i] * mean[i];
    z->q_mean[r] = dot * x->factor;
}

#include "simd/scales_int8.inc.h"

static void tl_int8_scales(const tl_operands *x, const tl_int8 *z, int64_t begin, int64_t end)
{
    tl_find_peaks(x, z, begin, end);
}
