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

#include "simd/peaks_int8.inc.h"

/* A widened row's codes; bias is added to each. */
static void tl_encode(tl_qcode *to, const float *x, int32_t n, float inverse, int32_t bias)
{
    for (int32_t i = 0; i < n; i += TL_LANES)
        tl_store_codes(to + i, tl_v_mul(tl_v_load(x + i), tl_v_set(inverse)), bias);
}

/* Those of X3's second plane. */
static void tl_encode_second(tl_qcode *to, const float *x, int32_t n, tl_quant quant, int32_t bias)
{
    for (int32_t i = 0; i < n; i += TL_LANES) tl_store_codes(to + i, tl_second_numbers(tl_v_load(x + i), quant), bias);
}

/* A row as it lies in its tensor, with zeros up to `stride`. */
TL_INLINE void tl_encode_row_of(tl_qcode *to, const unsigned char *row, int32_t n, int32_t stride, float inverse,
                                int32_t bias, const int32_t dtype)
{
    const tl_v y = tl_v_set(inverse);
    int32_t i = 0;
#ifdef TL_FOUR_CODES
    for (; i + 4 * TL_LANES <= n; i += 4 * TL_LANES) {
        tl_v a[4];
        TL_UNROLL for (int j = 0; j < 4; j++) a[j] = tl_v_mul(tl_load_lanes(row, i + j * TL_LANES, TL_LANES, dtype), y);
        tl_store_four_codes(to + i, a, bias);
    }
#endif
    for (; i + TL_LANES <= n; i += TL_LANES)
        tl_store_codes(to + i, tl_v_mul(tl_load_lanes(row, i, TL_LANES, dtype), y), bias);
    for (; i < stride; i += TL_LANES)
        tl_store_codes(to + i, i < n ? tl_v_mul(tl_load_lanes(row, i, n - i, dtype), y) : tl_v_set(0.f), bias);
}

static void tl_encode_row(tl_qcode *to, const unsigned char *row, int32_t n, int32_t stride, float inverse,
                          int32_t bias, int32_t dtype)
{
    switch (dtype) {
    case TL_F32: tl_encode_row_of(to, row, n, stride, inverse, bias, TL_F32); break;
    case TL_F16: tl_encode_row_of(to, row, n, stride, inverse, bias, TL_F16); break;
    default: tl_encode_row_of(to, row, n, stride, inverse, bias, TL_BF16); break;
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
    const tl_operand *k = &c->call->k;
    const int as_given = tl_coded_as_given(c, k) && z->planes == 1;
    int flagged = 0;
    float peak = 0.f;
    tl_quant quant = tl_policy_quant(c->call->policy, peak);
    for (int32_t j = 0; j < TL_PANEL; j++) {
        const int used = key + j < c->seq->lk && tl_key_is_seen(c->seq, c->prepared, key + j) && !z->flagged[at + j];
        if (k->scale) {
            quant = tl_given_quant(z->scale[at + j]);
        } else if (z->scale[at + j] != peak) { /* divisions; most keys share a scale */
            peak = z->scale[at + j];
            quant = tl_policy_quant(c->call->policy, peak);
        }
        tl_qcode *codes = z->codes + (int64_t)j * z->code_stride;
        if (used && as_given) {
            tl_encode_row(codes, tl_row(k, c->seq->batch, c->seq->k_start, key + j, c->kv_head), x->d, z->code_stride,
                          quant.inverse, TL_KEY_BIAS, k->dtype);
        } else {
            if (used)
                tl_widen_coded_key(x->token, c, key + j);
            else
                memset(x->token, 0, sizeof *x->token * (size_t)x->q_stride);
            tl_encode(codes, x->token, x->d, quant.inverse, TL_KEY_BIAS);
            if (z->planes == 2) tl_encode_second(codes + TL_PANEL * z->code_stride, x->token, x->d, quant, TL_KEY_BIAS);
        }
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

/* Of what meets a key's bias. */
TL_INLINE int64_t tl_sum_of_codes(const tl_qcode *codes, int32_t n)
{
    int64_t sum = 0;
    for (int32_t i = 0; TL_KEY_BIAS != 0 && i < n; i++) sum += (int8_t)codes[i];
    return sum;
}

/* Where a row's sums of products begin, so that the bias is taken back; they may wrap on the way. */
TL_INLINE int32_t tl_bias_start(int64_t sum) { return (int32_t)(uint32_t)(-TL_KEY_BIAS * sum); }

static void tl_quantise_query(const tl_operands *x, tl_int8 *z, int32_t r, tl_quant quant)
{
    const float *coded = z->coded + (int64_t)r * x->q_stride;
    const int flagged = !tl_is_finite(tl_peak(coded, x->d));
    int64_t sum = 0;
    z->q_flagged[r] = (unsigned char)flagged;
    z->some_q_flagged |= flagged;
    x->cpu.counters->nonfinite_tokens += flagged && tl_counts_rows(&x->cpu.task, TL_INT8);
    for (int p = 0; p < z->planes; p++) {
        tl_qcode *codes = z->q[p] + (int64_t)r * z->code_stride;
        const int32_t times = z->planes == 1 || p == 1 ? 1 : TL_PLANE_STEPS + 1;
        memset(codes, 0, sizeof *codes * (size_t)z->code_stride);
        if (!flagged && p == 0) tl_encode(codes, coded, x->d, quant.inverse, 0);
        if (!flagged && p == 1) tl_encode_second(codes, coded, x->d, quant, 0);
        sum += times * tl_sum_of_codes(codes, x->d);
    }
    z->q_start[r] = tl_bias_start(sum);
    z->q_scale[r] = tl_kernel_scale(quant) * tl_product_unit(&x->cpu.call->shape) * x->factor;
    z->q_mean[r] = tl_query_mean(x, r) * x->factor;
}

/* The block's rows, the task's from r on, straight from the tensor. 0: they have to be looked at one by one. */
static int tl_quantise_rows(const tl_operands *x, tl_int8 *z, int32_t r, const tl_query_block *b)
{
    const tl_cpu *c = &x->cpu;
    const tl_operand *q = &c->call->q;
    const tl_mask_geometry *mask = &c->task.mask;
    const int64_t first = b->first, last = b->last;
    if (!tl_coded_as_given(c, q) || z->planes != 1 || c->task.scattered) return 0;
    if (tl_key_begin(mask, first) >= tl_key_end(mask, first) || tl_key_begin(mask, last) >= tl_key_end(mask, last))
        return 0; /* rows that see no key do not count; those that see some are neighbours */
    const float peak = tl_rows_peak(q, tl_row(q, c->seq->batch, c->seq->q_start, first, b->head), last - first + 1,
                                    x->d);
    if (!tl_is_finite(peak)) return 0;
    const tl_quant quant = tl_policy_quant(c->call->policy, peak);
    for (int32_t i = 0; i < b->rows; i++, r++) {
        tl_qcode *codes = z->q[0] + (int64_t)r * z->code_stride;
        tl_encode_row(codes, tl_row(q, c->seq->batch, c->seq->q_start, tl_token_of(c, r), b->head), x->d,
                      z->code_stride, quant.inverse, 0, q->dtype);
        z->q_flagged[r] = 0;
        z->q_start[r] = tl_bias_start(tl_sum_of_codes(codes, x->d));
        z->q_scale[r] = tl_kernel_scale(quant) * tl_product_unit(&c->call->shape) * x->factor;
        z->q_mean[r] = 0.f;
    }
    return 1;
}

#define TL_INT8_TAKES_ROWS 1
#include "simd/scales_int8.inc.h"

static void tl_int8_scales(const tl_operands *x, const tl_int8 *z, int64_t begin, int64_t end)
{
    float peak;
    const int64_t n = tl_min64(end, x->cpu.seq->lk) - begin;
    if (!tl_find_one_peak(x, begin, n, &peak)) {
        tl_find_peaks(x, z, begin, end, x->token, 0);
        return;
    }
    memset(z->flagged + begin - x->first, 0, (size_t)(end - begin));
    for (int64_t key = begin; key < end; key++) z->scale[key - x->first] = peak;
}
