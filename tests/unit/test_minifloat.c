/* core/minifloat.h against a second implementation in double, which knows a format only as the sorted list of its values. */
#include <criterion/criterion.h>

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "core/minifloat.h"

/* A passing cr_assert in a loop of millions costs more than the loop. */
#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) cr_assert(0, __VA_ARGS__);                                                                   \
    } while (0)

static uint64_t random_state = 1;

static uint32_t random_bits(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

/* -------------------------------------------------------------------------------------------- formats, once more */

/* The numbers of a format that are not negative, in order: value[code]. */
typedef struct {
    const char *name;
    tl_minifloat f;
    int exponent_bits, mantissa, bias;
    bool has_sign;
    double *value;
    int count;
} format;

/* Fields of a code, as IEEE 754 reads them. */
static double value_of(const format *t, int code)
{
    const int e = code >> t->mantissa, m = code & ((1 << t->mantissa) - 1);
    return e ? ldexp((1 << t->mantissa) + m, e - t->bias - t->mantissa) : ldexp(m, 1 - t->bias - t->mantissa);
}

static format make(const char *name, tl_minifloat f, int exponent_bits, int mantissa, int bias, bool has_sign)
{
    format t = {name, f, exponent_bits, mantissa, bias, has_sign, NULL, 0};
    t.count = (1 << (exponent_bits + mantissa)) - has_sign; /* with a sign, the last code is NaN */
    t.value = malloc(sizeof *t.value * (size_t)t.count);
    cr_assert(t.value);
    for (int code = 0; code < t.count; code++) t.value[code] = value_of(&t, code);
    return t;
}

enum { FORMATS = 6 };

static void make_all(format all[FORMATS])
{
    all[0] = make("e4m3", tl_e4m3(), 4, 3, 7, true);
    all[1] = make("e4m11", tl_e4m11(), 4, 11, 7, true);
    all[2] = make("ue5m3 shift", tl_ue5m3(TL_SHIFT_BIAS), 5, 3, 15, false);
    all[3] = make("ue5m3 exp", tl_ue5m3(TL_EXP_BIAS), 5, 3, 31, false);
    all[4] = make("ue5m11 exp", tl_ue5m11(TL_EXP_BIAS), 5, 11, 31, false);
    all[5] = make("ue5m11 of another bias", tl_ue5m11(15), 5, 11, 15, false);
}

static void drop_all(format all[FORMATS])
{
    for (int i = 0; i < FORMATS; i++) free(all[i].value);
}

/* The largest code whose value is at most x >= 0. */
static int below(const format *t, double x)
{
    int low = 0, high = t->count;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (t->value[middle] <= x)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static int nearest(const format *t, double x)
{
    const int a = below(t, x);
    if (a == t->count - 1) return a; /* saturates */
    const double down = x - t->value[a], up = t->value[a + 1] - x;
    return down < up || (down == up && a % 2 == 0) ? a : a + 1;
}

static uint32_t sign_bit(const format *t) { return (uint32_t)1 << (t->exponent_bits + t->mantissa); }

static bool same(float a, float b) { return tl_bits(a) == tl_bits(b) || (isnan(a) && isnan(b)); }

/* Rounding, truncation and encoding of a number that is neither NaN nor Inf. */
static void check_number(const format *t, float x)
{
    const bool lost = !t->has_sign && x < 0;
    const double magnitude = lost ? 0 : fabs((double)x);
    const int code = nearest(t, magnitude), floor_code = below(t, magnitude);
    const uint32_t sign = t->has_sign && signbit(x) ? sign_bit(t) : 0;
    const float expected = sign ? (float)-t->value[code] : (float)t->value[code];
    const float floored = sign ? (float)-t->value[floor_code] : (float)t->value[floor_code];
    CHECK(same(tl_mini_round(x, t->f), expected), "%s: round(%a) = %a, not %a", t->name, (double)x,
          (double)tl_mini_round(x, t->f), (double)expected);
    CHECK(tl_mini_encode(x, t->f) == ((uint32_t)code | sign), "%s: encode(%a) = %#x, not %#x", t->name, (double)x,
          tl_mini_encode(x, t->f), (unsigned)code | sign);
    CHECK(same(tl_mini_truncate(x, t->f), floored), "%s: truncate(%a) = %a, not %a", t->name, (double)x,
          (double)tl_mini_truncate(x, t->f), (double)floored);
}

/* x and its neighbours in f32, of both signs. */
static void check_around(const format *t, float x)
{
    const float around[] = {nextafterf(x, -INFINITY), x, nextafterf(x, INFINITY)};
    for (int i = 0; i < 3; i++) {
        check_number(t, around[i]);
        check_number(t, -around[i]);
    }
}

Test(minifloat, named_codes)
{
    cr_assert(tl_mini_max(tl_e4m3()) == 448.f && tl_mini_max(tl_e4m11()) == 511.75f);
    cr_assert(tl_mini_quantum(tl_e4m3()) == 0x1p-9f && tl_mini_quantum(tl_e4m11()) == 0x1p-17f);
    cr_assert(tl_mini_decode(0x08, tl_e4m3()) == 0x1p-6f && tl_mini_decode(0x0800, tl_e4m11()) == 0x1p-6f);
    cr_assert(isnan(tl_mini_decode(0x7f, tl_e4m3())) && isnan(tl_mini_decode(0xff, tl_e4m3())));
    cr_assert(isnan(tl_mini_decode(0x7fff, tl_e4m11())) && isnan(tl_mini_decode(0xffff, tl_e4m11())));
    cr_assert(tl_mini_max(tl_ue5m3(TL_SHIFT_BIAS)) >= 896.f && tl_mini_quantum(tl_ue5m3(TL_SHIFT_BIAS)) == 0x1p-17f);
    const tl_minifloat e = tl_ue5m3(TL_EXP_BIAS), high = tl_ue5m11(TL_EXP_BIAS);
    cr_assert(tl_mini_decode(0xf8, e) == 1.f && tl_mini_decode(0xff, e) == 1.875f && tl_mini_decode(0, e) == 0.f);
    cr_assert(tl_mini_decode(0x08, e) == 0x1p-30f && tl_mini_decode(0x01, e) == 0x1p-33f);
    cr_assert(tl_mini_decode(0xf800, high) == 1.f && tl_mini_decode(0x0800, high) == 0x1p-30f);
    cr_assert(tl_mini_decode(0x0001, high) == 0x1p-41f);
}

Test(minifloat, every_code)
{
    format all[FORMATS];
    make_all(all);
    for (int i = 0; i < FORMATS; i++) {
        const format *t = &all[i];
        for (int code = 0; code < t->count; code++) {
            const float x = tl_mini_decode((uint32_t)code, t->f);
            CHECK((double)x == t->value[code], "%s: code %#x is %a", t->name, (unsigned)code, (double)x);
            CHECK(code == 0 || t->value[code] > t->value[code - 1], "%s: code %#x", t->name, (unsigned)code);
            CHECK(tl_mini_encode(x, t->f) == (uint32_t)code, "%s: code %#x", t->name, (unsigned)code);
            if (!t->has_sign) continue;
            const uint32_t negative = (uint32_t)code | sign_bit(t);
            CHECK(same(tl_mini_decode(negative, t->f), -x), "%s: code %#x", t->name, negative);
            CHECK(tl_mini_encode(-x, t->f) == negative, "%s: code %#x", t->name, negative);
        }
    }
    drop_all(all);
}

/* Between two neighbouring codes: the ends, the midpoint, and the f32 numbers on either side of each. */
Test(minifloat, every_rounding_boundary)
{
    format all[FORMATS];
    make_all(all);
    for (int i = 0; i < FORMATS; i++)
        for (int code = 0; code < all[i].count; code++) {
            check_around(&all[i], (float)all[i].value[code]);
            if (code + 1 < all[i].count)
                check_around(&all[i], (float)((all[i].value[code] + all[i].value[code + 1]) / 2));
        }
    drop_all(all);
}

Test(minifloat, any_number)
{
    format all[FORMATS];
    make_all(all);
    for (int n = 0; n < 200000; n++) {
        const float x = tl_float(random_bits());
        const float near = (float)ldexp((double)random_bits(),
                                        -32 - (int)(random_bits() % 45)); /* the formats' range */
        for (int i = 0; i < FORMATS; i++) {
            if (tl_is_finite(x)) check_number(&all[i], x);
            check_number(&all[i], near);
        }
    }
    drop_all(all);
}

Test(minifloat, beyond_the_range)
{
    format all[FORMATS];
    make_all(all);
    for (int i = 0; i < FORMATS; i++) {
        const tl_minifloat f = all[i].f;
        const float most = tl_mini_max(f), far[] = {nextafterf(most, INFINITY), 2 * most, 1e30f, FLT_MAX};
        for (int n = 0; n < 4; n++) {
            cr_assert(tl_mini_round(far[n], f) == most && tl_mini_encode(far[n], f) == f.top);
            cr_assert(tl_mini_truncate(far[n], f) == most);
            cr_assert(tl_mini_round_stochastic(far[n], f, random_bits()) == most);
            cr_assert(tl_mini_round(-far[n], f) == (all[i].has_sign ? -most : 0.f));
        }
        cr_assert(isnan(tl_mini_round(NAN, f)) && isnan(tl_mini_round(-NAN, f)) && isnan(tl_mini_truncate(NAN, f)));
        cr_assert(isnan(tl_mini_round_stochastic(NAN, f, 77)));
        if (all[i].has_sign) {
            cr_assert(isnan(tl_mini_round(INFINITY, f)) && isnan(tl_mini_round(-INFINITY, f)));
            cr_assert(isnan(tl_mini_decode(tl_mini_encode(NAN, f), f)));
            cr_assert(isnan(tl_mini_decode(tl_mini_encode(-INFINITY, f), f)));
            cr_assert(signbit(tl_mini_round(-0.f, f)) && !signbit(tl_mini_round(0.f, f)));
            cr_assert_eq(tl_mini_encode(-0.f, f), f.top + 2u);
        } else {
            cr_assert(tl_mini_round(INFINITY, f) == most && tl_mini_round(-INFINITY, f) == 0.f);
            cr_assert(tl_mini_encode(NAN, f) == f.top);
            cr_assert(!signbit(tl_mini_round(-0.f, f)));
        }
        const float tiny[] = {FLT_TRUE_MIN, FLT_MIN, tl_mini_quantum(f) * 0.5f}; /* the last is a tie, to even */
        for (int n = 0; n < 3; n++) cr_assert(tl_mini_round(tiny[n], f) == 0.f && tl_mini_encode(tiny[n], f) == 0u);
    }
    drop_all(all);
}

/* --------------------------------------------------------------------------------------------------- mantissa only */

/* Units of the last of m bits of x, as f32 spaces them: below 2^-126 they shrink no more. */
static double unit_of(float x, int m)
{
    int e;
    (void)frexp((double)x, &e);
    return ldexp(1, (e - 1 < -126 ? -126 : e - 1) - m);
}

static void check_mantissa(float x, int m)
{
    const double unit = unit_of(x, m);
    const float expected = (float)(nearbyint((double)x / unit) * unit); /* beyond FLT_MAX: the carry makes it Inf */
    CHECK(same(tl_round_mantissa(x, m), expected), "%a to %d bits: %a, not %a", (double)x, m,
          (double)tl_round_mantissa(x, m), (double)expected);
}

Test(minifloat, mantissa)
{
    const int bits[] = {3, 11, 1, 22};
    for (int b = 0; b < 4; b++) {
        const int m = bits[b];
        /* every neighbour pair of a few binades, both signs, and the ends of f32 */
        const int exponents[] = {-126, -1, 0, 9, 127};
        for (int i = 0; i < 5; i++)
            for (int n = 0; n < 2 << (m < 12 ? m : 12); n++) {
                const float mid = (float)ldexp(n + 0.5, exponents[i] - m), end = (float)ldexp(n, exponents[i] - m);
                const float points[] = {end, mid, nextafterf(mid, 0.f), nextafterf(mid, INFINITY)};
                for (int p = 0; p < 4; p++) {
                    if (!tl_is_finite(points[p])) continue;
                    check_mantissa(points[p], m);
                    check_mantissa(-points[p], m);
                }
            }
        for (int n = 0; n < 300000; n++) {
            const float x = tl_float(random_bits());
            if (tl_is_finite(x))
                check_mantissa(x, m);
            else
                CHECK(tl_bits(tl_round_mantissa(x, m)) == tl_bits(x), "NaN and Inf pass");
        }
        cr_assert(tl_round_mantissa(FLT_MAX, m) == INFINITY && tl_round_mantissa(-FLT_MAX, m) == -INFINITY);
        cr_assert(signbit(tl_round_mantissa(-0.f, m)));
        cr_assert(tl_bits(tl_round_mantissa(tl_float(0x7fffffffu), m)) == 0x7fffffffu); /* a NaN that +1 would break */
    }
}

/* ------------------------------------------------------------------------------------------------------ stochastic */

Test(minifloat, random_depends_on_the_place_alone)
{
    const uint32_t stream = tl_random_stream(42, 1, 2, 3), first = tl_random(stream, 5);
    for (uint32_t i = 0; i < 100; i++) (void)tl_random(stream, i);
    cr_assert_eq(tl_random(stream, 5), first);
    cr_assert(stream != tl_random_stream(43, 1, 2, 3) && stream != tl_random_stream(42, 2, 1, 3));
    cr_assert(stream != tl_random_stream(42, 1, 3, 2) && stream != tl_random_stream(42, 1, 2, 4));
    /* each bit is set half of the time, along a stream and across streams */
    int32_t along[32] = {0}, across[32] = {0};
    enum { N = 40000 };
    for (uint32_t i = 0; i < N; i++)
        for (int b = 0; b < 32; b++) {
            along[b] += (int32_t)(tl_random(stream, i) >> b & 1u);
            across[b] += (int32_t)(tl_random(tl_random_stream(42, 0, i % 200, i / 200), 7) >> b & 1u);
        }
    for (int b = 0; b < 32; b++) /* 5 sigma */
        cr_assert(abs(along[b] - N / 2) < 500 && abs(across[b] - N / 2) < 500, "bit %d: %d, %d", b, along[b],
                  across[b]);
}

/* The mean of many roundings of x, each of which must be one of its two neighbours down and up. */
static double mean_of(float x, double down, double up, const format *t, int m)
{
    enum { N = 4000 };
    double sum = 0;
    for (uint32_t n = 0; n < N; n++) {
        const uint32_t r = tl_random(tl_bits(x), n);
        const float y = t ? tl_mini_round_stochastic(x, t->f, r) : tl_round_mantissa_stochastic(x, m, r);
        CHECK((double)y == down || (double)y == up, "%a becomes %a", (double)x, (double)y);
        sum += (double)y;
    }
    return sum / (int)N;
}

/* The standard deviation of that mean is at most spacing / 2 / sqrt(N): 5 of them are 0.04 spacings. */
Test(minifloat, stochastic_rounding_keeps_the_mean)
{
    format all[FORMATS];
    make_all(all);
    double drift = 0;
    int trials = 0;
    for (int n = 0; n < 300; n++) {
        const format *t = &all[n % FORMATS];
        const int code = (int)(random_bits() % (uint32_t)(t->count - 1)) % (n % 3 ? t->count : 1 << t->mantissa);
        const double part = random_bits() * 0x1p-32, a = t->value[code], b = t->value[code + 1];
        const float x = (float)(a + (b - a) * part), signed_x = t->has_sign && n % 2 ? -x : x;
        const double sign = signed_x < 0 ? -1 : 1,
                     error = mean_of(signed_x, sign * a, sign * b, t, 0) - (double)signed_x;
        CHECK(fabs(error) <= 0.04 * (b - a), "%s: %a drifts by %g spacings", t->name, (double)x, error / (b - a));
        drift += error / (b - a);

        const int m = n % 2 ? 3 : 11;
        const float y = tl_float((random_bits() & 0x807fffffu) | 0x30000000u);
        const double unit = unit_of(y, m), down = trunc((double)y / unit) * unit, up = down + copysign(unit, (double)y);
        const double error2 = mean_of(y, down, up, NULL, m) - (double)y;
        CHECK(fabs(error2) <= 0.04 * unit, "%a to %d bits drifts by %g", (double)y, m, error2 / unit);
        drift += error2 / unit;
        trials += 2;
    }
    cr_assert(fabs(drift / trials) < 0.002, "the mean drift is %g spacings", drift / trials);
    drop_all(all);
}

Test(minifloat, stochastic_rounding_keeps_what_needs_none)
{
    format all[FORMATS];
    make_all(all);
    for (int i = 0; i < FORMATS; i++)
        for (int code = 0; code < all[i].count; code++) {
            const float x = (float)all[i].value[code];
            CHECK(same(tl_mini_round_stochastic(x, all[i].f, 0xffffffffu), x), "%s: %a", all[i].name, (double)x);
            CHECK(same(tl_mini_round_stochastic(x, all[i].f, 0), x), "%s: %a", all[i].name, (double)x);
            CHECK(same(tl_round_mantissa_stochastic(x, all[i].mantissa, 0xffffffffu), x), "%a", (double)x);
        }
    drop_all(all);
}

/* ------------------------------------------------------------------------------------------------ the exponential */

Test(minifloat, exp_table)
{
    format all[FORMATS];
    make_all(all);
    for (int code = 0; code < 256; code++) {
        const double x = all[2].value[code];
        CHECK(tl_exp_table()[code] == nearest(&all[3], exp(-x)), "code %#x: exp(%g)", (unsigned)code, -x);
        CHECK((double)tl_exp_lookup((float)x) == all[3].value[tl_exp_table()[code]], "exp(%g)", -x);
        CHECK(x < 34 * log(2) || tl_exp_table()[code] == 0, "exp(%g) underflows", -x);
    }
    cr_assert(tl_exp_lookup(0.f) == 1.f && tl_exp_lookup(-1.f) == 1.f && tl_exp_lookup(INFINITY) == 0.f);
    cr_assert(isnan(tl_exp_lookup(NAN)));
    drop_all(all);
}
