#define _GNU_SOURCE /* sysconf */
#include "data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parse.h"

/* ------------------------------------------------------------------------------------------------ random numbers */

/* SplitMix64's finaliser: a bijection whose every output bit depends on every input bit. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* What a stream of random numbers is for. */
typedef enum { STREAM_Q, STREAM_K, STREAM_V, STREAM_GAIN, STREAM_MASK, STREAM_BIAS } stream;

/* The state of one row of numbers; element c of it is mix(row + c). */
static uint64_t row_key(uint64_t seed, stream purpose, int64_t b, int64_t i, int64_t h)
{
    return mix(mix(mix(mix(seed) + (uint64_t)purpose) + (uint64_t)b) + (uint64_t)i) + ((uint64_t)h << 32);
}

/* N(0,1) by Box and Muller; |x| < 6.7. */
static double normal(uint64_t key, int64_t c)
{
    const uint64_t bits = mix(key + (uint64_t)c);
    const double u = ((double)(bits >> 32) + 1) * 0x1p-32, angle = (double)(bits & 0xffffffffu) * 0x1p-32;
    return sqrt(-2 * log(u)) * cos(6.283185307179586477 * angle);
}

/* ------------------------------------------------------------------------------------------------ elements */

double tensor_get(const void *data, tlamp_dtype dtype, int64_t index)
{
    switch (dtype) {
    case TLAMP_F16: return (double)tlamp_f16_to_f32(((const uint16_t *)data)[index]);
    case TLAMP_BF16: return (double)tlamp_bf16_to_f32(((const uint16_t *)data)[index]);
    default: return (double)((const float *)data)[index];
    }
}

void tensor_set(void *data, tlamp_dtype dtype, int64_t index, double value)
{
    switch (dtype) {
    case TLAMP_F16: ((uint16_t *)data)[index] = tlamp_f32_to_f16((float)value); break;
    case TLAMP_BF16: ((uint16_t *)data)[index] = tlamp_f32_to_bf16((float)value); break;
    default: ((float *)data)[index] = (float)value; break;
    }
}

int64_t input_offset(const tlamp_strides *stride, const int32_t *cu_seqlens, int64_t b, int64_t i, int64_t h)
{
    if (cu_seqlens) return (cu_seqlens[b] + i) * stride->seq + h * stride->head;
    return b * stride->batch + i * stride->seq + h * stride->head;
}

int64_t input_lse_offset(const input *in, int64_t b, int64_t i, int64_t h)
{
    const tlamp_lse_strides *s = &in->problem.lse_stride;
    if (in->spec.varlen) return h * s->head + (in->tensors.cu_seqlens_q[b] + i) * s->seq;
    return b * s->batch + h * s->head + i * s->seq;
}

int64_t input_row(const input *in, int64_t b, int64_t i)
{
    return in->spec.varlen ? in->tensors.cu_seqlens_q[b] + i : b * in->spec.lq + i;
}

/* ------------------------------------------------------------------------------------------------ memory */

/* Rows of all sequences together. */
static int64_t total_rows(const problem_spec *s, int64_t (*length)(const problem_spec *, int64_t))
{
    if (!s->varlen) return s->batch * length(s, 0);
    int64_t total = 0;
    for (int64_t b = 0; b < s->batch; b++) total += length(s, b);
    return total;
}

/* Bytes of everything that a comparison allocates, about; in double, so that nothing overflows. */
static double bytes_needed(const problem_spec *s)
{
    const double q = (double)total_rows(s, problem_length_q), k = (double)total_rows(s, problem_length_k);
    const double hq = (double)s->heads_q, hk = (double)s->heads_k, pad = (double)s->pad;
    const double d = (double)s->d + pad, dv = (double)s->dv + pad, cells = (double)s->lq * (double)s->lk;
    double bytes = 4 * (q * hq * (d + dv) + k * hk * (d + dv)); /* tensors */
    bytes += q * hq * ((double)s->dv + 1) * 16;                 /* the reference and its bounds, in double */
    if (s->pattern) bytes += (double)s->batch * cells;
    if (s->has_bias) bytes += hq * cells * 4;
    return bytes;
}

int input_check(const problem_spec *s, fault *f)
{
    if (s->cache) return fault_set(f, UNAVAILABLE, "problem: cache: needs KV caches, which this version does not have");
    const double bytes = bytes_needed(s);
    const double physical = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (bytes <= 0.75 * physical) return DONE;
    return fault_set(f, BAD_INPUT, "problem: it needs %.3g GB of memory and this machine has %.3g: take a smaller one",
                     bytes * 1e-9, physical * 1e-9);
}

/* A buffer of the input's, aligned to 64; freed by input_free. */
static void *new_buffer(input *in, int64_t count, size_t size)
{
    const size_t bytes = ((size_t)count * size + 64) & ~(size_t)63;
    void *memory = aligned_alloc(64, bytes);
    if (memory) in->buffers[in->num_buffers++] = memory;
    return memory;
}

/* A tensor full of NaN. */
static void *new_tensor(input *in, int64_t count, tlamp_dtype dtype)
{
    void *data = new_buffer(in, count, dtype_size(dtype));
    for (int64_t i = 0; data && i < count; i++) tensor_set(data, dtype, i, (double)NAN);
    return data;
}

void input_free(input *in)
{
    while (in->num_buffers > 0) free(in->buffers[--in->num_buffers]);
}

/* ------------------------------------------------------------------------------------------------ layout */

/* Strides of a tensor whose tokens hold `heads` vectors of `width` elements. */
static tlamp_strides strides(const problem_spec *s, int64_t length, int64_t heads, int64_t width)
{
    if (s->layout == LAYOUT_BHSD)
        return (tlamp_strides){.batch = heads * length * width, .head = length * width, .seq = width, .dim = 1};
    return (tlamp_strides){.batch = heads * length * width, .seq = heads * width, .head = width, .dim = 1};
}

static void describe_strides(tlamp_problem *p, const problem_spec *s, int64_t rows)
{
    const int64_t width = s->d + s->pad, width_v = s->dv + s->pad;
    if (s->layout == LAYOUT_FUSED) {
        p->q_stride = p->k_stride = p->v_stride = strides(s, s->lq, s->heads_q + 2 * s->heads_k, width);
    } else {
        p->q_stride = strides(s, s->lq, s->heads_q, width);
        p->k_stride = strides(s, s->lk, s->heads_k, width);
        p->v_stride = strides(s, s->lk, s->heads_k, width_v);
    }
    p->o_stride = strides(s, s->lq, s->heads_q, width_v);
    p->lse_stride = (tlamp_lse_strides){.batch = s->heads_q * s->lq, .head = s->lq, .seq = 1};
    if (s->varlen) p->lse_stride.head = rows;
}

static void describe(input *in)
{
    const problem_spec *s = &in->spec;
    tlamp_problem *p = &in->problem;
    tlamp_problem_init(p, sizeof *p);
    in->rows = total_rows(s, problem_length_q);
    p->batch = s->batch;
    p->max_seqlen_q = s->lq;
    p->max_seqlen_k = s->lk;
    p->varlen = s->varlen;
    if (s->varlen) {
        p->total_q = in->rows;
        p->total_k = total_rows(s, problem_length_k);
    }
    p->num_heads_q = (int32_t)s->heads_q;
    p->num_heads_k = (int32_t)s->heads_k;
    p->head_dim_qk = (int32_t)s->d;
    p->head_dim_v = (int32_t)s->dv;
    p->q_dtype = s->q_dtype;
    p->k_dtype = s->k_dtype;
    p->v_dtype = s->v_dtype;
    p->o_dtype = s->o_dtype;
    describe_strides(p, s, in->rows);
    p->softmax_scale = s->scale;
    p->softcap = s->softcap;
    p->mask = s->mask;
    p->window_left = s->window_left;
    p->window_right = s->window_right;
    p->has_seqused_k = s->num_used > 0;
    p->has_bool_mask = s->pattern != PATTERN_NONE;
    p->bool_mask_stride = (tlamp_score_strides){.batch = s->lq * s->lk, .head = 0, .q = s->lk, .k = 1};
    p->has_bias = s->has_bias;
    p->bias_dtype = s->bias_dtype;
    p->bias_stride = (tlamp_score_strides){.batch = 0, .head = s->lq * s->lk, .q = s->lk, .k = 1};
    p->has_alibi = s->has_alibi;
    p->has_sinks = s->num_sinks > 0;
    p->num_splits = num_splits_of(s->splits);
}

static bool create_qkv(input *in)
{
    const problem_spec *s = &in->spec;
    const int64_t rows_k = total_rows(s, problem_length_k), width = s->d + s->pad, width_v = s->dv + s->pad;
    if (s->layout == LAYOUT_FUSED) {
        char *qkv = new_tensor(in, in->rows * (s->heads_q + 2 * s->heads_k) * width, s->q_dtype);
        if (!qkv) return false;
        in->q = qkv;
        in->k = qkv + (size_t)(s->heads_q * width) * dtype_size(s->q_dtype);
        in->v = qkv + (size_t)((s->heads_q + s->heads_k) * width) * dtype_size(s->q_dtype);
    } else {
        in->q = new_tensor(in, in->rows * s->heads_q * width, s->q_dtype);
        in->k = new_tensor(in, rows_k * s->heads_k * width, s->k_dtype);
        in->v = new_tensor(in, rows_k * s->heads_k * width_v, s->v_dtype);
    }
    tlamp_tensors *t = &in->tensors;
    t->q = in->q;
    t->k = in->k;
    t->v = in->v;
    t->o = new_tensor(in, in->rows * s->heads_q * width_v, s->o_dtype);
    t->lse = new_tensor(in, in->rows * s->heads_q, TLAMP_F32);
    return t->q && t->k && t->v && t->o && t->lse;
}

/* ------------------------------------------------------------------------------------------------ lengths, masks, bias */

static bool create_lengths(input *in)
{
    const problem_spec *s = &in->spec;
    if (s->varlen) {
        int32_t *cu_q = new_buffer(in, s->batch + 1, sizeof *cu_q);
        int32_t *cu_k = new_buffer(in, s->batch + 1, sizeof *cu_k);
        if (!cu_q || !cu_k) return false;
        cu_q[0] = cu_k[0] = 0;
        for (int64_t b = 0; b < s->batch; b++) {
            cu_q[b + 1] = cu_q[b] + (int32_t)s->lengths_q[b];
            cu_k[b + 1] = cu_k[b] + (int32_t)s->lengths_k[b];
        }
        in->tensors.cu_seqlens_q = cu_q;
        in->tensors.cu_seqlens_k = cu_k;
    }
    if (s->num_used) {
        int32_t *used = new_buffer(in, s->batch, sizeof *used);
        if (!used) return false;
        for (int64_t b = 0; b < s->batch; b++) used[b] = (int32_t)s->used[b];
        in->tensors.seqused_k = used;
    }
    return true;
}

static bool pattern_shows(const problem_spec *s, int64_t b, int64_t i, int64_t j)
{
    const int64_t lq = problem_length_q(s, b), lk = problem_used_k(s, b);
    switch (s->pattern) {
    case PATTERN_PADDING: return j < lk - lk * (b % 4 + 1) / 8;
    case PATTERN_BLOCK: return i * 4 / (lq ? lq : 1) == j * 4 / (lk ? lk : 1);
    case PATTERN_ROWEMPTY:
        if (i == 0 || i == lq / 2 || i == lq - 1) return false;
        break;
    default: break;
    }
    return mix(row_key(s->seed, STREAM_MASK, b, i, 0) + (uint64_t)j) >> 62 != 0;
}

static bool create_mask(input *in)
{
    const problem_spec *s = &in->spec;
    uint8_t *mask = new_buffer(in, s->batch * s->lq * s->lk, 1);
    if (!mask) return false;
    in->tensors.bool_mask = mask;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t i = 0; i < s->lq; i++)
            for (int64_t j = 0; j < s->lk; j++) *mask++ = pattern_shows(s, b, i, j);
    return true;
}

static bool create_bias(input *in)
{
    const problem_spec *s = &in->spec;
    void *bias = new_buffer(in, s->heads_q * s->lq * s->lk, dtype_size(s->bias_dtype));
    if (!bias) return false;
    in->tensors.bias = bias;
    int64_t at = 0;
    for (int64_t h = 0; h < s->heads_q; h++)
        for (int64_t i = 0; i < s->lq; i++) {
            const uint64_t key = row_key(s->seed, STREAM_BIAS, 0, i, h);
            for (int64_t j = 0; j < s->lk; j++) tensor_set(bias, s->bias_dtype, at++, normal(key, j));
        }
    return true;
}

static bool create_per_head(input *in)
{
    const problem_spec *s = &in->spec;
    float *slopes = new_buffer(in, s->heads_q, sizeof *slopes);
    float *sinks = new_buffer(in, s->heads_q, sizeof *sinks);
    if (!slopes || !sinks) return false;
    for (int64_t h = 0; h < s->heads_q; h++) {
        slopes[h] = (float)exp2(-8.0 * (double)(h + 1) / (double)s->heads_q);
        sinks[h] = s->sinks[s->num_sinks > 1 ? h : 0];
    }
    in->tensors.alibi_slopes = slopes;
    in->tensors.sinks = sinks;
    return true;
}

int input_create(input *in, const problem_spec *spec, fault *f)
{
    *in = (input){.spec = *spec};
    const int code = input_check(spec, f);
    if (code) return code;
    tlamp_tensors_init(&in->tensors, sizeof in->tensors);
    describe(in);
    if (create_qkv(in) && create_lengths(in) && (!spec->pattern || create_mask(in)) &&
        (!spec->has_bias || create_bias(in)) && create_per_head(in))
        return DONE;
    input_free(in);
    return fault_no_memory(f);
}

/* ------------------------------------------------------------------------------------------------ q, k and v */

static double softmax_scale(const problem_spec *s) { return s->scale > 0 ? (double)s->scale : 1 / sqrt((double)s->d); }

static void fill_value(double *row, int64_t count, double value)
{
    for (int64_t c = 0; c < count; c++) row[c] = value;
}

static void fill_normal(double *row, int64_t count, uint64_t key)
{
    for (int64_t c = 0; c < count; c++) row[c] = normal(key, c);
}

/* A row of RMS 1, then a gain that belongs to the channel of this head. */
static void normalise(const problem_spec *s, double *row, stream which, int64_t h)
{
    double sum = 0;
    for (int64_t c = 0; c < s->d; c++) sum += row[c] * row[c];
    const double rms = sqrt(sum / (double)s->d);
    const uint64_t key = row_key(s->seed, STREAM_GAIN, which, 0, h);
    for (int64_t c = 0; c < s->d; c++) row[c] = row[c] / rms * exp(0.5 * normal(key, c));
}

/* Operands whose product times the scale is 1e30, or the most that f16 holds. */
static double spread_operand(const problem_spec *s)
{
    const double operand = sqrt(1e30 / softmax_scale(s));
    return (s->q_dtype == TLAMP_F16 || s->k_dtype == TLAMP_F16) && operand > 60000 ? 60000 : operand;
}

/* A subnormal number with some bits to spare: multiples of the smallest one. */
static double subnormal(tlamp_dtype dtype)
{
    return dtype == TLAMP_F16 ? 0x1p-19 : dtype == TLAMP_BF16 ? 0x1p-129 : 0x1p-140;
}

/* Row i of q (which = STREAM_Q) or k (STREAM_K). */
static void make_qk_row(const problem_spec *s, stream which, int64_t b, int64_t i, int64_t h, double *row)
{
    const bool is_q = which == STREAM_Q;
    switch (s->data) {
    case DATA_ONEHOT:
        fill_value(row, s->d, 0);
        row[s->d - 1] = is_q ? 1 : (double)i;
        return;
    case DATA_RAMP:
    case DATA_ZEROS: fill_value(row, s->d, 0); return;
    case DATA_MINUS5: fill_value(row, s->d, is_q ? 1 : -5 / ((double)s->d * softmax_scale(s))); return;
    case DATA_SPREAD:
        fill_value(row, s->d, 0);
        row[0] = (is_q || i == problem_used_k(s, b) / 2 ? 1 : -1) * spread_operand(s);
        return;
    default: break;
    }
    fill_normal(row, s->d, row_key(s->seed, which, b, i, h));
    if (s->data == DATA_QKNORM) normalise(s, row, which, h);
    for (int64_t c = 0; c < s->d; c++) {
        if (s->data == DATA_OUTLIER && c % 32 == 5) row[c] *= 10;
        if (s->data == DATA_PM127) row[c] = row[c] < 0 ? -127 : 127;
        if (s->data == DATA_BIGCHANNEL && !is_q && c == s->d / 2) row[c] += 1000;
        if (s->data == DATA_SUBNORMAL) row[c] *= subnormal(is_q ? s->q_dtype : s->k_dtype);
    }
}

static void make_v_row(const problem_spec *s, stream which, int64_t b, int64_t i, int64_t h, double *row)
{
    switch (s->data) {
    case DATA_RAMP:
    case DATA_MINUS5: fill_value(row, s->dv, (double)i); return;
    case DATA_ZEROS: fill_value(row, s->dv, 0); return;
    default: fill_normal(row, s->dv, row_key(s->seed, which, b, i, h)); break;
    }
    for (int64_t c = 0; s->data == DATA_SUBNORMAL && c < s->dv; c++) row[c] *= subnormal(s->v_dtype);
}

/* A tensor as it is being written. */
typedef struct target {
    stream which;
    void *data;
    tlamp_dtype dtype;
    const tlamp_strides *stride;
    const int32_t *cu_seqlens;
    int64_t heads, dim;
    int64_t (*length)(const problem_spec *, int64_t);
    void (*make_row)(const problem_spec *, stream, int64_t, int64_t, int64_t, double *);
} target;

static void set_row(const target *t, int64_t b, int64_t i, int64_t h, const double *row)
{
    const int64_t at = input_offset(t->stride, t->cu_seqlens, b, i, h);
    for (int64_t c = 0; c < t->dim; c++) tensor_set(t->data, t->dtype, at + c, row[c]);
}

static void fill_tensor(const problem_spec *s, const target *t, double *row)
{
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t i = 0; i < t->length(s, b); i++)
            for (int64_t h = 0; h < t->heads; h++) {
                t->make_row(s, t->which, b, i, h, row);
                set_row(t, b, i, h, row);
            }
}

/* Does some row of sequence b see key j? */
static bool is_seen(const problem_spec *s, int64_t b, int64_t j)
{
    for (int64_t i = 0; i < problem_length_q(s, b); i++) {
        int64_t begin, end;
        problem_visible_keys(s, b, i, &begin, &end);
        if (begin <= j && j < end && (!s->pattern || pattern_shows(s, b, i, j))) return true;
    }
    return false;
}

static void hide_unseen(const problem_spec *s, const target *k, const target *v, double *row)
{
    fill_value(row, s->d > s->dv ? s->d : s->dv, (double)NAN);
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t j = 0; j < problem_length_k(s, b); j++) {
            if (is_seen(s, b, j)) continue;
            for (int64_t h = 0; h < s->heads_k; h++) {
                set_row(k, b, j, h, row);
                set_row(v, b, j, h, row);
            }
        }
}

int input_fill(input *in, fault *f)
{
    const problem_spec *s = &in->spec;
    const tlamp_problem *p = &in->problem;
    const int32_t *cu_q = in->tensors.cu_seqlens_q, *cu_k = in->tensors.cu_seqlens_k;
    const target q = {STREAM_Q, in->q, s->q_dtype, &p->q_stride, cu_q, s->heads_q, s->d, problem_length_q, make_qk_row};
    const target k = {STREAM_K, in->k, s->k_dtype, &p->k_stride, cu_k, s->heads_k, s->d, problem_length_k, make_qk_row};
    const target v = {STREAM_V, in->v, s->v_dtype, &p->v_stride, cu_k, s->heads_k, s->dv, problem_length_k, make_v_row};
    double *row = malloc((size_t)(s->d > s->dv ? s->d : s->dv) * sizeof *row);
    if (!row) return fault_no_memory(f);
    fill_tensor(s, &q, row);
    fill_tensor(s, &k, row);
    fill_tensor(s, &v, row);
    if (s->data == DATA_NANHIDDEN) hide_unseen(s, &k, &v, row);
    free(row);
    return DONE;
}
