/* The small functions of src/core and src/workspace.c against independent definitions. */
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "core/exp2.h"
#include "core/index.h"
#include "core/mask.h"
#include "core/online_softmax.h"
#include "core/port.h"
#include "core/quantize.h"
#include "core/task.h"
#include "tilelamp/tilelamp.h"
#include "workspace.h"

/* ------------------------------------------------------------------------------------------------ half types */

/* A half type by its definition: 1 sign bit, then exponent and fraction bits. */
typedef struct half_type {
    const char *name;
    int fraction_bits, exponent_bits;
    float (*decode)(uint16_t);
    uint16_t (*encode)(float);
} half_type;

static float f16_decode(uint16_t h) { return tl_from_f16(h); }
static float bf16_decode(uint16_t h) { return tl_from_bf16(h); }
static uint16_t f16_encode(float x) { return tl_to_f16(x); }
static uint16_t bf16_encode(float x) { return tl_to_bf16(x); }

static const half_type half_types[] = {{"f16", 10, 5, f16_decode, f16_encode},
                                       {"bf16", 7, 8, bf16_decode, bf16_encode},
                                       {"f16, public", 10, 5, tlamp_f16_to_f32, tlamp_f32_to_f16},
                                       {"bf16, public", 7, 8, tlamp_bf16_to_f32, tlamp_f32_to_bf16}};
enum { NUM_HALF_TYPES = 4 };

static double half_value(const half_type *t, uint16_t code)
{
    const int bias = (1 << (t->exponent_bits - 1)) - 1, top = (1 << t->exponent_bits) - 1;
    const int exponent = code >> t->fraction_bits & top, fraction = code & ((1 << t->fraction_bits) - 1);
    const double sign = code >> 15 ? -1 : 1;
    if (exponent == top) return fraction ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0) return sign * ldexp(fraction, 1 - bias - t->fraction_bits);
    return sign * ldexp(fraction + (1 << t->fraction_bits), exponent - bias - t->fraction_bits);
}

Test(half_types, every_code_decodes)
{
    for (int t = 0; t < NUM_HALF_TYPES; t++)
        for (uint32_t code = 0; code < 65536; code++) {
            const double want = half_value(&half_types[t], (uint16_t)code);
            const float got = half_types[t].decode((uint16_t)code);
            cr_assert(isnan(want) ? isnan(got) : (double)got == want && !signbit(got) == !(code >> 15),
                      "%s 0x%04x is %g, not %g", half_types[t].name, code, (double)got, want);
        }
}

Test(half_types, every_code_comes_back)
{
    for (int t = 0; t < NUM_HALF_TYPES; t++)
        for (uint32_t code = 0; code < 65536; code++) {
            const half_type *h = &half_types[t];
            const uint16_t back = h->encode(h->decode((uint16_t)code));
            if (isnan(half_value(h, (uint16_t)code)))
                cr_assert(isnan(half_value(h, back)) && back >> 15 == code >> 15, "%s 0x%04x", h->name, code);
            else
                cr_assert(back == code, "%s 0x%04x comes back as 0x%04x", h->name, code, back);
        }
}

/* Between every two neighbours: the midpoint goes to the even one, anything beside it to the nearer one. */
Test(half_types, rounding_is_to_nearest_even)
{
    for (int t = 0; t < NUM_HALF_TYPES; t++) {
        const half_type *h = &half_types[t];
        for (uint16_t code = 0; isfinite(half_value(h, (uint16_t)(code + 1))); code++) {
            const uint16_t next = (uint16_t)(code + 1);
            const float middle = (float)((half_value(h, code) + half_value(h, next)) / 2); /* exact */
            cr_assert(h->encode(middle) == (code % 2 ? next : code), "%s: the middle of 0x%04x", h->name, code);
            cr_assert(h->encode(nextafterf(middle, 0)) == code, "%s: below the middle of 0x%04x", h->name, code);
            cr_assert(h->encode(nextafterf(middle, INFINITY)) == next, "%s: above the middle of 0x%04x", h->name, code);
            cr_assert(h->encode(-middle) == ((code % 2 ? next : code) | 0x8000), "%s: -0x%04x", h->name, code);
        }
    }
}

Test(half_types, overflow_is_infinity_and_nan_stays)
{
    cr_assert(tl_to_f16(65519.996f) == 0x7bff && tl_to_f16(65520.f) == 0x7c00 && tl_to_f16(-1e30f) == 0xfc00);
    cr_assert(tl_to_bf16(FLT_MAX) == 0x7f80 && tl_to_bf16(0x1.fefffep127f) == 0x7f7f);
    for (uint32_t payload = 1; payload < 0x800000u; payload += 4099) {
        cr_assert(isnan(half_value(&half_types[0], tl_to_f16(tl_float(0x7f800000u | payload)))), "0x%x", payload);
        cr_assert(isnan(half_value(&half_types[1], tl_to_bf16(tl_float(0xff800000u | payload)))), "0x%x", payload);
    }
}

/* ------------------------------------------------------------------------------------------------ elementary functions */

Test(exp2, error_is_below_the_bound)
{
    double worst = 0;
    for (double x = -126; x < 128; x += 0x1.3p-14) {
        const float at = (float)x;
        const double want = exp2((double)at);
        worst = fmax(worst, fabs((double)tl_exp2(at) - want) / want);
    }
    cr_assert(worst < 0x1p-22, "relative error %g", worst);
}

Test(exp2, subnormal_results_are_rounded_once)
{
    for (double x = -152; x < -126; x += 0x1.3p-12) {
        const float at = (float)x;
        const double want = exp2((double)at), error = fabs((double)tl_exp2(at) - want);
        cr_assert(error <= 0x1p-150 + 0x1p-22 * want, "2^%g is %g, not %g", (double)at, (double)tl_exp2(at), want);
    }
}

Test(exp2, powers_of_two_are_exact)
{
    for (int n = -149; n < 128; n++)
        cr_assert(tl_exp2((float)n) == ldexpf(1, n), "2^%d is %g", n, (double)tl_exp2((float)n));
}

Test(exp2, special_values)
{
    cr_assert(tl_exp2(0.f) == 1.f && tl_exp2(-0.f) == 1.f);
    cr_assert(tl_exp2(-INFINITY) == 0.f && tl_exp2(-FLT_MAX) == 0.f && tl_exp2(-151.f) == 0.f);
    cr_assert(isinf(tl_exp2(INFINITY)) && isinf(tl_exp2(FLT_MAX)) && isinf(tl_exp2(128.f)));
    cr_assert(isnan(tl_exp2(NAN)) && isnan(tl_exp2(-NAN)));
}

/* Every 4099th number of all. */
Test(exp2, is_near_for_any_number)
{
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 4099) {
        const float x = tl_float((uint32_t)bits), got = tl_exp2(x);
        const double want = isnan(x) ? (double)NAN : exp2((double)x);
        if (isnan(x))
            cr_assert(isnan(got), "0x%08x", (uint32_t)bits);
        else if (want > (double)FLT_MAX)
            cr_assert(isinf(got), "2^%g is %g", (double)x, (double)got);
        else
            cr_assert(fabs((double)got - want) <= 0x1p-22 * want + 0x1p-150, "2^%g is %g", (double)x, (double)got);
    }
}

Test(log2, error_is_below_the_bound)
{
    double worst = 0;
    for (double x = 0x1p-149; x < 0x1p127; x *= 1.0003) {
        const float at = (float)x;
        const double want = log2((double)at);
        worst = fmax(worst, want == 0 ? fabs((double)tl_log2(at)) : fabs((double)tl_log2(at) / want - 1));
    }
    for (int32_t i = -100000; i <= 100000; i++) { /* near 1 the logarithm is small, and must be as exact */
        const float at = 1.f + (float)i * 0x1p-20f;
        const double want = log2((double)at);
        if (i) worst = fmax(worst, fabs((double)tl_log2(at) / want - 1));
    }
    cr_assert(worst < 0x1p-21, "relative error %g", worst);
}

Test(log2, special_values)
{
    for (int e = -149; e <= 127; e++)
        cr_assert(tl_log2(ldexpf(1, e)) == (float)e, "log2(2^%d) is %g", e, (double)tl_log2(ldexpf(1, e)));
    cr_assert(tl_log2(0.f) == -INFINITY && tl_log2(-0.f) == -INFINITY && tl_log2(INFINITY) == INFINITY);
    cr_assert(isnan(tl_log2(NAN)));
    cr_assert(fabs((double)tl_log2(FLT_MAX) - 128) < 1e-4);
}

Test(tanh, error_is_below_the_bound)
{
    double worst = 0;
    for (double x = 1e-30; x < 100; x *= 1 + 0x1p-14) {
        const float at = (float)x;
        const double want = tanh((double)at);
        worst = fmax(worst, fabs((double)tl_tanh(at) - want) / want);
        cr_assert(tl_tanh(-at) == -tl_tanh(at), "tanh(-%g)", x);
    }
    cr_assert(worst < 0x1p-21, "relative error %g", worst);
}

Test(tanh, special_values)
{
    cr_assert(tl_tanh(0.f) == 0.f && tl_tanh(0x1p-149f) == 0x1p-149f);
    cr_assert(tl_tanh(INFINITY) == 1.f && tl_tanh(-INFINITY) == -1.f && tl_tanh(FLT_MAX) == 1.f);
    cr_assert(isnan(tl_tanh(NAN)));
    cr_assert(fabsf(tl_tanh(20.f)) <= 1.f);
}

Test(online_softmax, finite_logits_stay_finite_in_log2_units)
{
    cr_assert(isfinite(tl_log2_logit(FLT_MAX)) && isfinite(tl_log2_logit(-FLT_MAX)));
    cr_assert(tl_log2_logit(-FLT_MAX) < -1e38f);
    cr_assert(isinf(tl_log2_logit(INFINITY)) && isinf(tl_log2_logit(-INFINITY)) && isnan(tl_log2_logit(NAN)));
    cr_assert(tl_log2_logit(1.f) == TL_LOG2E);
    cr_assert(tl_reference(TL_NEVER) == 0.f && tl_reference(3.f) == 3.f);
}

Test(port, integers)
{
    cr_assert(tl_ceil_div(0, 5) == 0 && tl_ceil_div(5, 5) == 1 && tl_ceil_div(6, 5) == 2);
    cr_assert(tl_ceil_div(INT64_MAX, 2) == INT64_MAX / 2 + 1);
    cr_assert(tl_round_up(0, 16) == 0 && tl_round_up(1, 16) == 16 && tl_round_up(16, 16) == 16);
    cr_assert(tl_round(0.5f) == 0.f && tl_round(1.5f) == 2.f && tl_round(-2.5f) == -2.f && tl_round(126.5f) == 126.f);
}

Test(index, offsets_are_64_bits)
{
    const tl_score_operand a = {NULL, (int64_t)1 << 40, (int64_t)1 << 33, -((int64_t)1 << 32), 1, TL_F32};
    cr_assert(tl_score_offset(&a, 3, 5, 7, 11) ==
              3 * ((int64_t)1 << 40) + 5 * ((int64_t)1 << 33) - 7 * ((int64_t)1 << 32) + 11);
}

/* ------------------------------------------------------------------------------------------------ quantiser */

static void check_codes(tl_quant z, float amax, double slack)
{
    const double scale = (double)z.scale;
    for (int i = -200; i <= 200; i++) {
        const float x = (float)((double)amax * i / 200);
        const int32_t code = tl_code(x, z.inverse);
        cr_assert(-127 <= code && code <= 127, "amax %g: code %d", (double)amax, code);
        cr_assert(fabs((double)x - scale * code) <= scale / 2 * (1 + slack), "amax %g: %g is %d x %g", (double)amax,
                  (double)x, code, scale);
    }
}

Test(quantise, codes_are_within_half_a_step)
{
    for (float amax = 0x1p-118f; amax < 0x1p126f; amax *= 1.37f) {
        const tl_quant z = tl_quant_make(amax);
        cr_assert(z.scale > 0 && tl_code(amax, z.inverse) == 127 && tl_code(-amax, z.inverse) == -127);
        check_codes(z, amax, 0x1p-15);
    }
    check_codes(tl_quant_make(FLT_MAX), FLT_MAX, 0x1p-15);
    check_codes(tl_quant_make(127.f * 0x1p-126f), 127.f * 0x1p-126f, 0x1p-15);
}

Test(quantise, scales_in_f16_are_rounded_up)
{
    for (float amax = 1e-10f; amax < 1e10f; amax *= 1.01f) {
        const tl_quant z = tl_quant_make_f16(amax), exact = tl_quant_make(amax);
        cr_assert(z.scale >= exact.scale, "amax %g", (double)amax);
        if (exact.scale <= 65504.f) {
            cr_assert(tl_from_f16(tl_to_f16(z.scale)) == z.scale, "amax %g: %g is no f16", (double)amax,
                      (double)z.scale);
            cr_assert((double)z.scale - (double)exact.scale <= 0x1p-10 * (double)exact.scale + 0x1p-24, "amax %g",
                      (double)amax);
        }
        check_codes(z, amax, 0x1p-15);
    }
}

Test(quantise, tiny_blocks_are_zero)
{
    static const float sizes[] = {0.f, FLT_MIN, 0x1p-149f, 126.99f * 0x1p-126f};
    for (int i = 0; i < 4; i++) {
        const tl_quant z = tl_quant_make(sizes[i]), h = tl_quant_make_f16(sizes[i]);
        cr_assert(z.scale == 0 && z.inverse == 0 && h.scale == 0 && h.inverse == 0, "amax %g", (double)sizes[i]);
        cr_assert(tl_code(sizes[i], z.inverse) == 0);
    }
}

/* Both planes of X3 together are one code of steps scale / 254. */
Test(quantise, second_codes_are_within_half_a_step)
{
    for (float amax = 0x1p-100f; amax < 0x1p126f; amax *= 1.37f) {
        const tl_quant z = tl_quant_make(amax);
        const double step = (double)z.scale / 254;
        for (int i = -100003; i <= 100003; i += 13) {
            const float x = (float)((double)amax * i / 100003);
            const int32_t code = tl_code(x, z.inverse), second = tl_second_code(x, code, z);
            const double error = fabs((double)x - step * (254 * code + second));
            cr_assert(abs(second) <= 127 && error <= step / 2 * (1 + 0x1p-13), "amax %g: %g is %d, %d", (double)amax,
                      (double)x, code, second);
        }
    }
    const tl_quant zero = tl_quant_make(FLT_MIN), given = {0.37f, 1 / 0.37f};
    cr_assert(tl_second_code(FLT_MIN, 0, zero) == 0);
    for (int i = -127; i <= 127; i++) cr_assert(tl_second_code((float)i * 0.37f, i, given) == 0);
}

/* The largest and the smallest sum of one channel times the most channels fit an int32; one more channel does not. */
Test(quantise, x3_sums_fit_an_int32)
{
    int64_t most = 0;
    for (int a = 0; a <= 127 * 254; a++) { /* the codes of x = a steps, as the quantiser splits them */
        const tl_quant z = {254, 1 / 254.f};
        const int32_t c1 = tl_code((float)a, z.inverse), c2 = tl_second_code((float)a, c1, z);
        for (int i = 0; i < 2; i++) { /* against the largest, and against itself */
            const int64_t d1 = i ? c1 : 127, d2 = i ? c2 : 0, sum = 254 * c1 * d1 + c1 * d2 + c2 * d1;
            most = sum > most ? sum : most;
            cr_assert(sum >= 0);
        }
    }
    cr_assert(most * TL_X3_MOST_DIM <= INT32_MAX && most * (TL_X3_MOST_DIM + 2) > INT32_MAX, "%lld", (long long)most);
}

Test(quantise, the_rotation_is_hadamards_and_keeps_products)
{
    for (int n = 1; n <= 1024; n *= 2) {
        static float x[1024], y[1024];
        double want = 0, norm = 0;
        uint32_t seed = 5;
        for (int i = 0; i < n; i++) {
            seed = seed * 1664525u + 1013904223u;
            x[i] = (float)((double)(int32_t)seed * 0x1p-31) * (i % 7 == 3 ? 100.f : 1.f);
            norm += (double)x[i] * (double)x[i];
        }
        memcpy(y, x, sizeof y);
        tl_hadamard(y, n);
        const double slack = 0x1p-24 * (log2(n) + 3) * sqrt(norm);
        double after = 0;
        for (int i = 0; i < n; i++) { /* H[i][j] = (-1)^popcount(i & j) */
            want = 0;
            for (int j = 0; j < n; j++) want += (__builtin_popcount((unsigned)(i & j)) % 2 ? -1 : 1) * (double)x[j];
            cr_assert(fabs((double)y[i] - want / sqrt(n)) <= slack, "n %d: %g, not %g", n, (double)y[i],
                      want / sqrt(n));
            after += (double)y[i] * (double)y[i];
        }
        cr_assert(fabs(sqrt(after) - sqrt(norm)) <= slack);
    }
    float huge[64], spoilt[64];
    for (int i = 0; i < 64; i++) huge[i] = i < 60 ? 4e37f : -4e37f; /* the plain sum overflows, the norm does not */
    for (int i = 0; i < 64; i++) spoilt[i] = i == 9 ? INFINITY : i == 33 ? -INFINITY : 1;
    tl_hadamard(huge, 64);
    tl_hadamard(spoilt, 64);
    for (int i = 0; i < 64; i++) cr_assert(isfinite(huge[i]) && !isfinite(spoilt[i]));
}

Test(quantise, a_row_with_nan_or_inf_has_no_finite_maximum)
{
    float x[7] = {1, -3, 2, 0, 0.5f, -0.f, 1};
    cr_assert(tl_row_amax(x, 7) == 3.f && tl_row_amax(x, 1) == 1.f && tl_row_amax(x, 0) == 0.f);
    for (int i = 0; i < 7; i++) {
        const float kept = x[i];
        static const uint32_t poisons[] = {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0x7f800000u, 0xff800000u};
        for (int p = 0; p < 5; p++) {
            memcpy(&x[i], &poisons[p], sizeof x[i]);
            cr_assert(!tl_is_finite(tl_row_amax(x, 7)), "0x%08x at %d", poisons[p], i);
        }
        x[i] = kept;
    }
}

/* ------------------------------------------------------------------------------------------------ masks and tasks */

static int sees(int64_t lq, int64_t lk, int causal, int top_left, int64_t left, int64_t right, int64_t i, int64_t j)
{
    const int64_t ahead = j - i - (top_left ? 0 : lk - lq);
    return (!causal || ahead <= 0) && (left < 0 || -ahead <= left) && (right < 0 || ahead <= right);
}

static const int64_t limits[] = {-1, 0, 1, 2, 3, 9, INT64_MAX};
enum { NUM_LIMITS = 7 };

static void check_mask(int64_t lq, int64_t lk, int kind, int64_t left, int64_t right)
{
    const tl_mask_geometry g = tl_mask_make(lq, lk, kind != 0, kind == 2, left, right);
    for (int64_t i = 0; i < lq; i++) {
        const int64_t begin = tl_key_begin(&g, i), end = tl_key_end(&g, i);
        cr_assert(0 <= begin && begin <= lk && 0 <= end && end <= lk);
        for (int64_t j = 0; j < lk; j++)
            cr_assert((begin <= j && j < end) == sees(lq, lk, kind != 0, kind == 2, left, right, i, j),
                      "lq %d lk %d kind %d left %lld right %lld: row %d key %d", (int)lq, (int)lk, kind,
                      (long long)left, (long long)right, (int)i, (int)j);
        cr_assert(i == 0 || (tl_key_begin(&g, i - 1) <= begin && tl_key_end(&g, i - 1) <= end), "an end moves back");
    }
}

Test(mask, equals_its_definition)
{
    for (int64_t lq = 0; lq < 7; lq++)
        for (int64_t lk = 0; lk < 7; lk++)
            for (int kind = 0; kind < 3; kind++)
                for (int l = 0; l < NUM_LIMITS; l++)
                    for (int r = 0; r < NUM_LIMITS; r++) check_mask(lq, lk, kind, limits[l], limits[r]);
}

/* Rows [first, last] of a task against a span of all its tiles: what is cut off is seen by no row, and unless the span says
 * edge, every row sees all of the rest. */
static void check_clip(const tl_task *t, int64_t first, int64_t last)
{
    const int64_t tiles = tl_ceil_div(t->mask.lk, t->tile_keys), lk = t->mask.lk;
    const tl_span all = {0, (int32_t)tiles, 0, 0}, own = tl_clip(t, all, (tl_tokens){first, last});
    for (int64_t j = 0; j < lk; j++) {
        const int kept = own.count && j / t->tile_keys >= own.first && j / t->tile_keys < own.first + own.count;
        for (int64_t i = first; i <= last; i++) {
            const int seen = tl_key_begin(&t->mask, i) <= j && j < tl_key_end(&t->mask, i);
            cr_assert(kept || !seen, "row %d loses key %d", (int)i, (int)j);
            cr_assert(!kept || own.edge || seen, "row %d gets key %d", (int)i, (int)j);
        }
    }
    cr_assert(!own.count || own.edge || (own.first + own.count) * (int64_t)t->tile_keys <= lk, "a tile with a tail");
}

Test(task, spans_lose_nothing_and_know_their_edges)
{
    static const int64_t lengths[] = {1, 3, 5, 8, 11};
    for (int q = 0; q < 5; q++)
        for (int k = 0; k < 5; k++)
            for (int kind = 0; kind < 3; kind++)
                for (int l = 0; l < NUM_LIMITS; l++) {
                    tl_task t = {.tile_keys = 2, .heads = 1, .tokens = (int32_t)lengths[q], .tile_past = INT32_MAX};
                    t.mask = tl_mask_make(lengths[q], lengths[k], kind != 0, kind == 2, limits[l],
                                          limits[NUM_LIMITS - 1 - l]);
                    for (int64_t first = 0; first < lengths[q]; first++)
                        for (int64_t last = first; last < lengths[q]; last++) check_clip(&t, first, last);
                }
}

/* ------------------------------------------------------------------------------------------------ workspace */

Test(workspace, sizes_do_not_wrap)
{
    cr_assert(tl_add_size(SIZE_MAX, 1) == SIZE_MAX && tl_add_size(1, SIZE_MAX - 1) == SIZE_MAX);
    cr_assert(tl_add_size(3, 4) == 7);
    cr_assert(tl_mul_size(SIZE_MAX / 2, 3) == SIZE_MAX && tl_mul_size((size_t)1 << 32, (size_t)1 << 32) == SIZE_MAX);
    cr_assert(tl_mul_size(0, SIZE_MAX) == 0 && tl_mul_size(SIZE_MAX, 0) == 0 && tl_mul_size(6, 7) == 42);
}

Test(workspace, an_overflow_stays)
{
    tl_arena a = {NULL, 0};
    (void)tl_take(&a, 100);
    cr_assert(a.used == 128);
    (void)tl_take_array(&a, INT64_MAX, 1 << 20);
    cr_assert(a.used == SIZE_MAX);
    (void)tl_take(&a, 64);
    cr_assert(a.used == SIZE_MAX);
}

Test(workspace, pieces_are_aligned_and_apart)
{
    _Alignas(64) unsigned char memory[512];
    tl_arena a = {memory, 0};
    unsigned char *first = tl_take(&a, 1), *second = tl_take_array(&a, 3, 30), *third = tl_take(&a, 0);
    cr_assert(first == memory && second == memory + 64 && third == memory + 192 && a.used == 192);
}
