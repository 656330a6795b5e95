#define _GNU_SOURCE /* clock_gettime */
#include "samples.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

void samples_add(samples *s, double seconds)
{
    if (s->count < SAMPLES_MAX_ROUNDS) s->seconds[s->count++] = seconds;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static samples sorted(const samples *s)
{
    samples copy = *s;
    qsort(copy.seconds, (size_t)copy.count, sizeof copy.seconds[0], compare_doubles);
    return copy;
}

double samples_min(const samples *s) { return s->count ? sorted(s).seconds[0] : (double)NAN; }

double samples_max(const samples *s) { return s->count ? sorted(s).seconds[s->count - 1] : (double)NAN; }

double samples_median(const samples *s)
{
    if (!s->count) return (double)NAN;
    const samples copy = sorted(s);
    return (copy.seconds[(copy.count - 1) / 2] + copy.seconds[copy.count / 2]) / 2;
}

double samples_median_ratio(const samples *a, const samples *b)
{
    samples ratio = {.count = a->count < b->count ? a->count : b->count};
    for (int i = 0; i < ratio.count; i++) ratio.seconds[i] = b->seconds[i] / a->seconds[i];
    return samples_median(&ratio);
}

double samples_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int samples_repeats(double seconds)
{
    static const double enough = 2e-3;
    const int most = 1000;
    if (!(seconds < enough)) return 1;
    return seconds * most > enough ? (int)ceil(enough / seconds) : most;
}
