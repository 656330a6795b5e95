/* P V by AMX, summed in f32. Before including this file, TL_P_PLANES is
 *   3  P V in f32: P in three bf16 planes, V in as many as its type needs (simd/amx.h)
 *   1  P V in bf16: both rounded to it
 * V is packed as [d_v / 16][planes][keys / 2][16] pairs of neighbouring keys. Every element of O adds its terms in one order. */
#include "simd/value_lanes.h"

typedef struct {
    int32_t planes;
    int64_t
        plane; /* numbers from one plane to the next; from one panel of channels to the next it is `planes` of these */
    uint16_t *v;
    uint16_t *nonfinite;
} tl_values;

#define TL_VALUES_BEGIN 1

/* Planes of P lie behind the scores of a row; a single one takes their place. */
enum { TL_P_AT = TL_P_PLANES > 1 ? TL_SPAN_KEYS * 2 : 0 };

TL_INLINE int tl_values_suits(const tlamp_problem *problem)
{
    return problem->policy->pv == (TL_P_PLANES > 1 ? TLAMP_PV_F32 : TLAMP_PV_BF16);
}

static void tl_values_lay_out_keys(tl_values *v, const tl_shape *shape, int64_t keys, tl_arena *a)
{
    v->planes = TL_P_PLANES > 1 ? tl_planes_of(shape->v_dtype) : 1;
    v->nonfinite = tl_take(a, keys / TL_PANEL * 2);
    /* One panel more, since a step may begin with the last panel; and one pair: panels of 2^n keys would crowd a few cache
     * sets. */
    v->plane = (keys + TL_PANEL + 2) * TL_PANEL;
    v->v = tl_take(a, tl_ceil_div(shape->head_dim_v, TL_PANEL) * v->planes * v->plane * 2);
}

/* ---- packing */

/* 16 keys of bf16 numbers, which are planes as they are. Returns whether all are finite. */
static int tl_pack_value_halves(const tl_operands *x, const tl_values *v, const tl_panel_rows *rows, uint16_t *to)
{
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                  second = _mm512_add_epi64(first, _mm512_set1_epi64(4));
    __m512i top = _mm512_setzero_si512();
    for (int32_t i = 0; i < x->o_stride; i += 2 * TL_PANEL, to += 2 * v->plane) {
        const int two = i + TL_PANEL < x->o_stride;
        for (int32_t j = 0; j < TL_PANEL; j += 2) {
            __m512i a = _mm512_setzero_si512(), b = a;
            if (rows->row[j]) a = tl_row_halves(rows->row[j], i, x->dv);
            if (rows->row[j + 1]) b = tl_row_halves(rows->row[j + 1], i, x->dv);
            top = tl_halves_top(tl_halves_top(top, a), b);
            /* pairs of channels 0 to 3 and 4 to 7 of every 8 */
            const __m512i low = _mm512_unpacklo_epi16(a, b), high = _mm512_unpackhi_epi16(a, b);
            _mm512_storeu_si512(to + j * TL_PANEL, _mm512_permutex2var_epi64(low, first, high));
            if (two) _mm512_storeu_si512(to + v->plane + j * TL_PANEL, _mm512_permutex2var_epi64(low, second, high));
        }
    }
    return tl_halves_are_finite(top);
}

/* 16 keys without those in `out`. Returns a bit for each one that holds a NaN or Inf. */
TL_INLINE int32_t tl_pack_values_from(const tl_operands *x, const tl_values *v, int64_t key, int32_t out,
                                      const int32_t dtype)
{
    const tl_v zero = tl_v_set(0.f);
    int32_t bad = 0;
    uint16_t *to = v->v + (key - x->first) * TL_PANEL;
    tl_panel_rows rows;
    tl_find_values(x, key, out, &rows);
    if (dtype == TL_BF16 && tl_pack_value_halves(x, v, &rows, to)) return 0;
    for (int32_t i = 0; i < x->o_stride; i += TL_PANEL, to += v->planes * v->plane) {
        for (int32_t j = 0; j < TL_PANEL; j += 2) {
            tl_v a = tl_load_value_lanes(x, &rows, j, i, dtype), b = tl_load_value_lanes(x, &rows, j + 1, i, dtype);
            if (TL_P_PLANES == 1 && dtype != TL_BF16) { /* rounded, perhaps to Inf */
                a = tl_v_round_bf16(a);
                b = tl_v_round_bf16(b);
            }
            const tl_v none_a = tl_v_mul(a, zero), none_b = tl_v_mul(b, zero); /* 0, or NaN */
            bad |= (int32_t)(_mm512_cmp_ps_mask(none_a, none_a, _CMP_UNORD_Q) != 0) << j;
            bad |= (int32_t)(_mm512_cmp_ps_mask(none_b, none_b, _CMP_UNORD_Q) != 0) << (j + 1);
            for (int32_t p = 0; p < (TL_P_PLANES > 1 ? tl_planes_of(dtype) : 1); p++) {
                const __m512i high = tl_plane(&a);
                _mm512_storeu_si512(to + p * v->plane + j * TL_PANEL, tl_planes_zip(high, tl_plane(&b)));
            }
        }
    }
    return bad;
}

#include "simd/pack_values.inc.h"

static void tl_values_pack(const tl_operands *x, const tl_values *v, int64_t begin, int64_t end)
{
    tl_pack_value_panels(x, v, begin, end);
    if (end >= x->cpu.seq->lk) (void)tl_pack_values(x, v, end, 0); /* zeros: half of a step may be P of no key */
}

/* ---- P */

TL_INLINE tl_v tl_values_exp2(tl_v t) { return TL_P_PLANES == 1 ? tl_v_exp2_short(t) : tl_v_exp2(t); }

/* Columns i .. i + 31 of a row. */
TL_INLINE void tl_values_put(float *p, int32_t i, tl_v a, tl_v b)
{
    uint16_t *to = (uint16_t *)(void *)p + TL_P_AT + i;
#if TL_P_PLANES == 1
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(b, a));
#else
    TL_UNROLL for (int32_t plane = 0; plane < TL_P_PLANES; plane++)
    {
        const __m512i high = tl_plane(&a);
        _mm512_storeu_si512(to + plane * TL_SPAN_KEYS, tl_planes_join(high, tl_plane(&b)));
    }
#endif
}

TL_INLINE float tl_values_weigh(float *p, int32_t n, float ref)
{
    const tl_v m = tl_v_set(ref);
    tl_v sum = tl_v_set(0.f);
    for (int32_t i = 0; i < n; i += TL_DEPTH) {
        const tl_v a = tl_values_exp2(tl_v_sub(tl_v_load(p + i), m));
        const tl_v b = i + TL_PANEL < n ? tl_values_exp2(tl_v_sub(tl_v_load(p + i + TL_PANEL), m)) : tl_v_set(0.f);
        tl_values_put(p, i, a, b);
        sum = tl_v_add(sum, tl_v_add(a, b));
    }
    return tl_v_sum(sum);
}

/* ---- products */

TL_INLINE void tl_value_block(const int two_rows, const int two_columns, const tl_operands *x, const tl_values *values,
                              const float *p, int64_t at, int32_t n, float *o, int32_t panel)
{
    const int64_t p_stride = TL_SCORE_STRIDE * 4, p_next = TL_PANEL * p_stride, p_plane = TL_SPAN_KEYS * 2;
    const int64_t v_plane = values->plane * 2, v_next = values->planes * v_plane;
    const unsigned char *a = (const unsigned char *)p + TL_P_AT * 2;
    const unsigned char *b = (const unsigned char *)values->v + panel * v_next + at * TL_PANEL * 2;
    if (x->fresh)
        tl_tiles_zero(two_rows, two_columns);
    else
        tl_tiles_load(two_rows, two_columns, o, x->o_stride);
    for (int32_t j = 0; j < n; j += TL_DEPTH) {
        TL_UNROLL for (int32_t i = 0; i < TL_P_PLANES; i++)
        {
            tl_tiles_a(two_rows, a + i * p_plane, p_stride, p_next);
            for (int32_t l = 0; l < values->planes && tl_planes_meet(i, l); l++)
                tl_tiles_dot(TL_BF16_BY_BF16, two_rows, two_columns, b + l * v_plane, v_next);
        }
        a += TL_DEPTH * 2;
        b += TL_TILE_BYTES;
    }
    tl_tiles_store(two_rows, two_columns, o, x->o_stride);
}

TL_INLINE void tl_value_blocks(const int two_rows, const tl_operands *x, const tl_values *v, const float *p, int64_t at,
                               int32_t n, float *o)
{
    int32_t i = 0;
    for (const int32_t panels = x->o_stride / TL_PANEL; i + 1 < panels; i += 2)
        tl_value_block(two_rows, 1, x, v, p, at, n, o + i * TL_PANEL, i);
    if (i * TL_PANEL < x->o_stride) tl_value_block(two_rows, 0, x, v, p, at, n, o + i * TL_PANEL, i);
}

static void tl_values_run(const tl_operands *x, const tl_values *v, int32_t rows, const float *p, int64_t at, int32_t n,
                          float *o)
{
    if (rows > TL_PANEL)
        tl_value_blocks(1, x, v, p, at, n, o);
    else
        tl_value_blocks(0, x, v, p, at, n, o);
}

TL_INLINE float tl_values_weight(const float *p, int32_t j)
{
    const uint16_t *to = (const uint16_t *)(const void *)p + TL_P_AT;
    float sum = tl_from_bf16(to[j]);
    for (int32_t plane = 1; plane < TL_P_PLANES; plane++) sum += tl_from_bf16(to[plane * TL_SPAN_KEYS + j]);
    return sum;
}
