/* Blocked attention on OpenBLAS: what PyTorch's CPU kernel does (blocks of 256 queries by 512 keys, one thread for each block of
 * queries, key blocks beyond the diagonal left out), with cblas_sgemm for both products. f32 only. */
#include <cblas.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <omp.h>

#include "peer.h"

enum { ROWS = 256, KEYS = 512 };

static peer_shape shape;
static float *q, *k, *v, *o; /* [batch][head][token][dim] */

static const char *hello(int threads, char version[160])
{
    openblas_set_num_threads(1); /* the loop's threads are the only ones */
    omp_set_num_threads(threads);
    (void)snprintf(version, 160, "%s, core %s", openblas_get_config(), openblas_get_corename());
    return NULL;
}

static void close_shape(void)
{
    free(q);
    free(k);
    free(v);
    free(o);
    q = k = v = o = NULL;
}

static const char *open_shape(const peer_shape *s, char kernel[100])
{
    close_shape();
    shape = *s;
    if (strcmp(s->dtype, "f32") != 0) return "f32 only";
    q = peer_read(s, "q");
    k = peer_read(s, "k");
    v = peer_read(s, "v");
    o = malloc((size_t)(s->batch * s->heads_q * s->lq * s->dv + 1) * sizeof *o);
    if (!q || !k || !v || !o) return "out of memory";
    (void)snprintf(kernel, 100, "flash %dx%d sgemm, %s", ROWS, KEYS, openblas_get_corename());
    return NULL;
}

/* exp(x) for x <= 0, in a form that compilers vectorise: 2^n by the exponent's bits, the rest by a polynomial (2e-7). */
static inline float exponential(float x)
{
    const float t = x * 1.44269504f < -126.f ? -126.f : x * 1.44269504f, n = floorf(t), f = t - n;
    const float p = 1.f + f * (.693147182f +
                               f * (.240226448f + f * (.0555033572f + f * (.00961851888f +
                                                                           f * (.00133986911f + f * .000154691967f)))));
    const union {
        int32_t i;
        float f;
    } power = {.i = ((int32_t)n + 127) << 23};
    return x < -87.f ? 0.f : p * power.f;
}

/* One row of a block of scores: its new maximum and sum; the scores become weights. Returns what the old sums count. */
static float softmax_row(float *s, int64_t n, float scale, float *top, float *sum)
{
    float largest = *top, added = 0;
#pragma omp simd reduction(max : largest)
    for (int64_t j = 0; j < n; j++) largest = s[j] * scale > largest ? s[j] * scale : largest;
#pragma omp simd reduction(+ : added)
    for (int64_t j = 0; j < n; j++) {
        s[j] = exponential(s[j] * scale - largest);
        added += s[j];
    }
    const float old = expf(*top - largest); /* 0 for the first block */
    *top = largest;
    *sum = *sum * old + added;
    return old;
}

static void attend(int64_t b, int64_t h, int64_t first, float *scores)
{
    const int64_t d = shape.d, dv = shape.dv, head_k = h / (shape.heads_q / shape.heads_k);
    const int64_t rows = shape.lq - first < ROWS ? shape.lq - first : ROWS;
    const float *qb = q + ((b * shape.heads_q + h) * shape.lq + first) * d;
    const float *kh = k + (b * shape.heads_k + head_k) * shape.lk * d,
                *vh = v + (b * shape.heads_k + head_k) * shape.lk * dv;
    float *ob = o + ((b * shape.heads_q + h) * shape.lq + first) * dv, top[ROWS], sum[ROWS];
    const float scale = 1 / sqrtf((float)d);
    const int64_t end = shape.causal && first + rows < shape.lk ? first + rows : shape.lk;
    for (int64_t i = 0; i < rows; i++) top[i] = -FLT_MAX, sum[i] = 0;
    for (int64_t key = 0; key < end; key += KEYS) {
        const int64_t n = end - key < KEYS ? end - key : KEYS;
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)n, (int)d, 1, qb, (int)d, kh + key * d,
                    (int)d, 0, scores, KEYS);
        for (int64_t i = 0; i < rows; i++) {
            float *row = scores + i * KEYS;
            int64_t seen = n;
            if (shape.causal && first + i + 1 - key < n) seen = first + i + 1 - key > 0 ? first + i + 1 - key : 0;
            for (int64_t j = seen; j < n; j++) row[j] = 0;
            const float old = seen ? softmax_row(row, seen, scale, &top[i], &sum[i]) : 1;
            if (key)
                for (int64_t c = 0; c < dv; c++) ob[i * dv + c] *= old;
        }
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, (int)dv, (int)n, 1, scores, KEYS,
                    vh + key * dv, (int)dv, key ? 1 : 0, ob, (int)dv);
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < dv; c++) ob[i * dv + c] /= sum[i];
}

static const char *run(void)
{
    const int64_t blocks = (shape.lq + ROWS - 1) / ROWS, heads = shape.batch * shape.heads_q;
#pragma omp parallel
    {
        float *scores = malloc(sizeof *scores * ROWS * KEYS);
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < heads * blocks; task++) {
            const int64_t head = task % heads, block = blocks - 1 - task / heads; /* long ones first */
            if (scores) attend(head / shape.heads_q, head % shape.heads_q, block * ROWS, scores);
        }
        free(scores);
    }
    return NULL;
}

static void output(float *to) { peer_swap_heads(to, o, shape.batch, shape.heads_q, shape.lq, shape.dv, sizeof *o); }

int main(void)
{
    const peer_program program = {hello, open_shape, run, output, close_shape};
    return peer_serve(&program);
}
