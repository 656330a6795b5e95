/* INT8 products from K as it lies in the tensor, for tasks of few rows: keys are quantised as they are multiplied, in
 * registers, with the scales that packing would give them. What takes more than a product and a rounding (smoothing, rotation,
 * a scale for each key, two planes) is made tile by tile, as rows of codes that stay in the second-level cache. Codes are floats
 * here: their products and sums are whole numbers below 2^24, so that every score has the bits of the packed product. Comes
 * after simd/products_rows.inc.h. */

typedef struct {
    const unsigned char *key; /* as tl_high */
    int64_t stride;

    /* of the keys of a span */
    float *scale;           /* [keys] what a score is multiplied by, times q_scale; before that as tl_find_peaks says */
    float *inverse;         /* [keys] what a key is multiplied by before it is rounded */
    unsigned char *flagged; /* [keys] left out of INT8 */
    unsigned char *tiles_known;   /* [keys / 64] the above are there */
    unsigned char *tiles_flagged; /* [keys / 64] a key of the tile is */
    float *made[2];               /* [keys][x->q_stride] codes of each plane, where they are made ahead; or NULL */

    /* of the task's queries */
    int32_t planes;           /* 2: X3 */
    float *codes[2];          /* [rows][x->q_stride], of each plane */
    float *coded, *rotated;   /* [rows][x->q_stride] as they are quantised: x->q, or rotated */
    float *q_scale, *q_mean;  /* [rows] times x->factor; q . mean of K, with smooth_k */
    unsigned char *q_flagged; /* [rows] */
    int32_t some_q_flagged;
} tl_int8;

enum { TL_KEY_TILE = 64 };

/* Are codes of keys made ahead? */
TL_INLINE int tl_makes_codes(const tlamp_policy *p, int32_t k_dtype)
{
    return p->kind == TLAMP_POLICY_X3 || p->smooth_k || p->hadamard ||
           (p->scales == TLAMP_SCALES_TOKEN && k_dtype != TL_I8);
}

/* Units of one tile; and sums that are exact: of X3 those of two products, 254 times the third being added by fma. Products of
 * floats cost more than of packed codes: where codes are made ahead, only that they need no packing speaks for them. */
TL_INLINE int tl_int8_suits(const tlamp_problem *problem)
{
    const tlamp_policy *p = problem->policy;
    if (p->kind == TLAMP_POLICY_HIGH) return 1;
    const int one_tile = p->quant_block_k <= TL_KEY_TILE || problem->max_seqlen_k <= TL_KEY_TILE;
    const int x3 = p->kind == TLAMP_POLICY_X3;
    const int64_t rows = problem->num_heads_k ? problem->max_seqlen_q * problem->num_heads_q / problem->num_heads_k : 0;
    const int64_t most = !tl_makes_codes(p, problem->k_dtype) ? TL_FEW_ROWS : x3 ? 8 : TL_FEW_ROWS_OF_MANY_KEYS;
    return one_tile && rows <= most && (x3 ? 2 : 1) * problem->head_dim_qk * (127 * 127) < 1 << 24;
}

static void tl_int8_lay_out_keys(tl_int8 *z, const tl_shape *shape, int64_t keys, tl_arena *a)
{
    const int64_t n = shape->int8 ? keys : 0;
    z->scale = tl_take(a, n * 4);
    z->inverse = tl_take(a, tl_ceil_div(n, TL_KEY_TILE) * 4);
    z->flagged = tl_take(a, n);
    z->tiles_known = tl_take(a, tl_ceil_div(n, TL_KEY_TILE));
    z->tiles_flagged = tl_take(a, tl_ceil_div(n, TL_KEY_TILE));
    const int64_t row = tl_round_up(shape->head_dim_qk, TL_PANEL),
                  made = tl_makes_codes(shape->policy, shape->k_dtype) ? n * row * 4 : 0;
    for (int i = 0; i < 2; i++) {
        z->made[i] = tl_take(a, i < shape->code_planes ? made : 0);
        if (!made || i >= shape->code_planes) z->made[i] = NULL;
    }
}

static void tl_int8_lay_out_task(tl_int8 *z, const tl_shape *shape, int64_t rows, tl_arena *a)
{
    const int64_t n = shape->int8 ? rows : 0, row = n * tl_round_up(shape->head_dim_qk, TL_PANEL) * 4;
    z->planes = shape->code_planes;
    for (int i = 0; i < 2; i++) z->codes[i] = tl_take(a, i < shape->code_planes ? row : 0);
    z->rotated = tl_take(a, shape->policy->hadamard ? row : 0);
    z->q_scale = tl_take(a, n * 4);
    z->q_mean = tl_take(a, n * 4);
    z->q_flagged = tl_take(a, n);
}

#include "simd/peaks_int8.inc.h"

/* ---- codes */

/* Of a widened row, made up to whole panels. */
TL_INLINE void tl_make_codes(float *to, const float *from, int32_t n, tl_quant quant)
{
    for (int32_t i = 0; i < n; i += TL_LANES)
        tl_v_store(to + i, tl_v_round(tl_v_mul(tl_v_load(from + i), tl_v_set(quant.inverse))));
}

/* Those of X3's second plane. */
TL_INLINE void tl_make_second_codes(float *to, const float *from, int32_t n, tl_quant quant)
{
    for (int32_t i = 0; i < n; i += TL_LANES)
        tl_v_store(to + i, tl_v_round(tl_second_numbers(tl_v_load(from + i), quant)));
}

static void tl_quantise_query(const tl_operands *x, tl_int8 *z, int32_t r, tl_quant quant)
{
    const int64_t at = (int64_t)r * x->q_stride;
    const float *coded = z->coded + at;
    const int flagged = !tl_is_finite(tl_peak(coded, x->d));
    z->q_flagged[r] = (unsigned char)flagged;
    z->some_q_flagged |= flagged;
    x->cpu.counters->nonfinite_tokens += flagged && tl_counts_rows(&x->cpu.task, TL_INT8);
    for (int i = 0; flagged && i < z->planes; i++) memset(z->codes[i] + at, 0, sizeof *coded * (size_t)x->q_stride);
    if (!flagged) tl_make_codes(z->codes[0] + at, coded, x->q_stride, quant);
    if (!flagged && z->planes == 2) tl_make_second_codes(z->codes[1] + at, coded, x->q_stride, quant);
    z->q_scale[r] = tl_kernel_scale(quant) * tl_product_unit(&x->cpu.call->shape) * x->factor;
    z->q_mean[r] = tl_query_mean(x, r) * x->factor;
}

#include "simd/scales_int8.inc.h"

/* ---- keys */

/* Of a tile whose codes are made: they take the place of the keys that tl_find_peaks leaves there. Keys that count for nothing
 * are 0. */
static int tl_make_tile(const tl_operands *x, const tl_int8 *z, int64_t at, int32_t padded)
{
    const tl_cpu *c = &x->cpu;
    const int64_t key = x->first + at;
    int flagged = 0;
    tl_find_peaks(x, z, key, key + padded, z->made[0] + at * x->q_stride, x->q_stride);
    for (int32_t j = 0; j < padded; j++) {
        const int used = key + j < c->seq->lk && tl_key_is_seen(c->seq, c->prepared, key + j) && !z->flagged[at + j];
        const tl_quant quant = c->call->k.scale ? tl_given_quant(z->scale[at + j])
                                                : tl_policy_quant(c->call->policy, z->scale[at + j]);
        float *row = z->made[0] + (at + j) * x->q_stride;
        if (!used) memset(row, 0, sizeof *row * (size_t)x->q_stride);
        if (z->planes == 2) tl_make_second_codes(z->made[1] + (at + j) * x->q_stride, row, x->q_stride, quant);
        tl_make_codes(row, row, x->q_stride, quant);
        z->scale[at + j] = tl_kernel_scale(quant);
        flagged |= z->flagged[at + j];
    }
    return flagged;
}

/* Scales and flags of the tile's keys, which begin at `at`. */
static void tl_know_tile(const tl_operands *x, const tl_int8 *z, int64_t at)
{
    const tl_cpu *c = &x->cpu;
    const int64_t key = x->first + at, tile = at / TL_KEY_TILE;
    const int32_t n = tl_least(TL_KEY_TILE, c->seq->lk - key), padded = (int32_t)tl_round_up(n, TL_PANEL);
    int flagged = 0;
    float peak = 0.f;
    z->tiles_known[tile] = 1;
    if (z->made[0]) {
        z->tiles_flagged[tile] = (unsigned char)tl_make_tile(x, z, at, padded);
        return;
    }
    if (tl_find_one_peak(x, key, n, &peak))
        memset(z->flagged + at, 0, (size_t)padded);
    else {
        tl_find_peaks(x, z, key, key + padded, x->token, 0);
        peak = z->scale[at];
        for (int32_t j = 0; j < padded; j++) flagged |= z->flagged[at + j];
    }
    const tl_quant quant = tl_policy_quant(c->call->policy, peak);
    z->inverse[tile] = quant.inverse;
    for (int32_t j = 0; j < padded; j++) /* codes of the caller's whose scale is none count as 0 */
        z->scale[at + j] = c->call->k.scale ? tl_given_quant(z->scale[at + j]).scale : tl_kernel_scale(quant);
    z->tiles_flagged[tile] = (unsigned char)flagged;
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
        const tl_v q = tl_v_set(z->q_scale[row + r]), mean = tl_v_set(z->q_mean[row + r]);
        for (int32_t j = 0; j < n; j += TL_LANES)
            tl_v_store(s + j, tl_v_fma(tl_v_load(s + j), tl_v_mul(q, tl_v_load(z->scale + at + j)), mean));
    }
}

/* Codes that are made: one plane of Q by one of K. The first asks for what is read when the next tile's are made. */
static void tl_made_products(const tl_operands *x, const tl_int8 *z, int plane_q, int plane_k, int32_t row,
                             int32_t rows, int64_t at, int32_t n, float *s)
{
    const tl_high h = {z->key, z->stride};
    const float *q = z->codes[plane_q] + (int64_t)row * x->q_stride;
    for (int32_t j = 0; j < n; j += TL_PANEL) {
        tl_key_panel p;
        tl_take_keys(x, &h, x->first + at + j, &p);
        if (plane_q || plane_k) p.ahead.rows = 0;
        for (int32_t i = 0; i < TL_PANEL; i++)
            p.key[i] = (const unsigned char *)(z->made[plane_k] + (at + j + i) * x->q_stride);
        tl_number_panel_f32(q, x->q_stride, rows, x->d, 1.f, &p, s + j);
    }
}

/* The sum of X3 is 254 q1 k1 + (q1 k2 + q2 k1); rounded once, as when an int32 becomes a float. */
static void tl_made_scores(const tl_operands *x, const tl_int8 *z, int32_t row, int32_t rows, int64_t at, int32_t n,
                           float *s)
{
    float t[2][TL_ROWS * TL_SCORE_STRIDE];
    tl_made_products(x, z, 0, 0, row, rows, at, n, s);
    if (z->planes == 1) return;
    for (int i = 0; i < 2; i++) /* keys that do not exist stay 0 */
        for (int32_t r = 0; r < rows; r++) memset(t[i] + r * TL_SCORE_STRIDE, 0, sizeof **t * (size_t)n);
    tl_made_products(x, z, 0, 1, row, rows, at, n, t[0]);
    tl_made_products(x, z, 1, 0, row, rows, at, n, t[1]);
    for (int32_t r = 0; r < rows; r++)
        for (int32_t j = r * TL_SCORE_STRIDE, end = j + n; j < end; j += TL_LANES) {
            const tl_v others = tl_v_add(tl_v_load(t[0] + j), tl_v_load(t[1] + j));
            tl_v_store(s + j, tl_v_fma(tl_v_load(s + j), tl_v_set(TL_PLANE_STEPS), others));
        }
}

static void tl_register_scores(const tl_operands *x, const tl_int8 *z, int32_t row, int32_t rows, int64_t at, int32_t n,
                               float *s)
{
    const tl_high h = {z->key, z->stride};
    const float *q = z->codes[0] + (int64_t)row * x->q_stride;
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
}

/* Keys [at, at + n) of one tile. */
static void tl_int8_tile_scores(const tl_operands *x, const tl_int8 *z, int32_t row, int32_t rows, int64_t at,
                                int32_t n, float *s)
{
    if (!z->tiles_known[at / TL_KEY_TILE]) tl_know_tile(x, z, at / TL_KEY_TILE * TL_KEY_TILE);
    if (z->made[0])
        tl_made_scores(x, z, row, rows, at, n, s);
    else
        tl_register_scores(x, z, row, rows, at, n, s);
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
