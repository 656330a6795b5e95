/* Attention as its definition reads (the first lines of tilelamp.h): in double, one row of scores at a time.
 * Nothing here is clever; that is its use. */
#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/port.h"
#include "status.h"
#include "team.h"
#include "validate.h"

/* ------------------------------------------------------------------------------------------------ elements */

static double element(const void *tensor, tlamp_dtype dtype, int64_t at)
{
    switch (dtype) {
    case TLAMP_F16: return (double)tl_from_f16(((const uint16_t *)tensor)[at]);
    case TLAMP_BF16: return (double)tl_from_bf16(((const uint16_t *)tensor)[at]);
    case TLAMP_INT8: return (double)((const int8_t *)tensor)[at];
    default: return (double)((const float *)tensor)[at];
    }
}

/* Tokens that share a scale of codes the caller made. */
static int64_t scale_tokens(const tl_ref *ref, int32_t block)
{
    return ref->policy.scales == TLAMP_SCALES_TOKEN ? 1 : block;
}

double tl_ref_query_scale(const tl_ref *ref, const tl_ref_seq *seq, int32_t head, int64_t i)
{
    if (ref->problem.q_dtype != TLAMP_INT8) return 1;
    const int64_t block = seq->q_blocks + i / scale_tokens(ref, ref->policy.quant_block_q);
    return (double)ref->tensors.q_scale[block * ref->problem.num_heads_q + head];
}

/* Of K or V: both count in blocks of quant_block_k. */
static double key_scale(const tl_ref *ref, const tl_ref_seq *seq, const float *scales, int32_t head_k, int64_t j)
{
    const int64_t block = seq->k_blocks + j / scale_tokens(ref, ref->policy.quant_block_k);
    return (double)scales[block * ref->problem.num_heads_k + head_k];
}

double tl_ref_key_scale(const tl_ref *ref, const tl_ref_seq *seq, int32_t head_k, int64_t j)
{
    return ref->problem.k_dtype == TLAMP_INT8 ? key_scale(ref, seq, ref->tensors.k_scale, head_k, j) : 1;
}

static double value_scale(const tl_ref *ref, const tl_ref_seq *seq, int32_t head_k, int64_t j)
{
    return ref->problem.v_dtype == TLAMP_INT8 ? key_scale(ref, seq, ref->tensors.v_scale, head_k, j) : 1;
}

static void load(double *to, const void *tensor, tlamp_dtype dtype, int64_t offset, int32_t n, double scale)
{
    for (int32_t c = 0; c < n; c++) to[c] = scale * element(tensor, dtype, offset + c);
}

static double *wide_row(const tl_ref *ref, double *wide, const tl_ref_seq *seq, int32_t head_k, int64_t j, int32_t n)
{
    return wide + ((int64_t)head_k * ref->keys + seq->first_key + j) * n;
}

void tl_ref_query(const tl_ref *ref, const tl_ref_seq *seq, int32_t head, int64_t i, double *to)
{
    const tlamp_problem *p = &ref->problem;
    const int64_t offset = seq->q + i * p->q_stride.seq + head * p->q_stride.head;
    load(to, ref->tensors.q, p->q_dtype, offset, p->head_dim_qk, tl_ref_query_scale(ref, seq, head, i));
}

void tl_ref_key(const tl_ref *ref, const tl_ref_seq *seq, int32_t head_k, int64_t j, double *to)
{
    const tlamp_problem *p = &ref->problem;
    if (ref->wide_k) {
        memcpy(to, wide_row(ref, ref->wide_k, seq, head_k, j, p->head_dim_qk), sizeof *to * (size_t)p->head_dim_qk);
        return;
    }
    const int64_t offset = seq->k + j * p->k_stride.seq + head_k * p->k_stride.head;
    load(to, ref->tensors.k, p->k_dtype, offset, p->head_dim_qk, tl_ref_key_scale(ref, seq, head_k, j));
}

void tl_ref_value(const tl_ref *ref, const tl_ref_seq *seq, int32_t head_k, int64_t j, double *to)
{
    const tlamp_problem *p = &ref->problem;
    if (ref->wide_v) {
        memcpy(to, wide_row(ref, ref->wide_v, seq, head_k, j, p->head_dim_v), sizeof *to * (size_t)p->head_dim_v);
        return;
    }
    const int64_t offset = seq->v + j * p->v_stride.seq + head_k * p->v_stride.head;
    load(to, ref->tensors.v, p->v_dtype, offset, p->head_dim_v, value_scale(ref, seq, head_k, j));
}

/* ------------------------------------------------------------------------------------------------ sequences */

/* Blocks of `tokens` tokens of the sequences before b; each sequence begins a new one. */
static int64_t blocks_before(const tlamp_problem *p, const int32_t *cu_seqlens, int64_t b, int64_t length,
                             int64_t tokens)
{
    int64_t blocks = 0;
    for (int64_t a = 0; a < b; a++)
        blocks += tl_ceil_div(p->varlen ? cu_seqlens[a + 1] - cu_seqlens[a] : length, tokens);
    return blocks;
}

tl_ref_seq tl_ref_sequence(const tl_ref *ref, int64_t b)
{
    const tlamp_problem *p = &ref->problem;
    const tlamp_tensors *t = &ref->tensors;
    tl_ref_seq s = {.b = b};
    if (p->varlen) {
        s.first_row = t->cu_seqlens_q[b];
        s.first_key = t->cu_seqlens_k[b];
        s.lq = t->cu_seqlens_q[b + 1] - s.first_row;
        s.length_k = t->cu_seqlens_k[b + 1] - s.first_key;
        s.q = s.first_row * p->q_stride.seq;
        s.k = s.first_key * p->k_stride.seq;
        s.v = s.first_key * p->v_stride.seq;
    } else {
        s.first_row = b * p->max_seqlen_q;
        s.first_key = b * p->max_seqlen_k;
        s.lq = p->max_seqlen_q;
        s.length_k = p->max_seqlen_k;
        s.q = b * p->q_stride.batch;
        s.k = b * p->k_stride.batch;
        s.v = b * p->v_stride.batch;
    }
    s.lk = p->has_seqused_k ? t->seqused_k[b] : s.length_k;
    s.q_blocks = blocks_before(p, t->cu_seqlens_q, b, p->max_seqlen_q, scale_tokens(ref, ref->policy.quant_block_q));
    s.k_blocks = blocks_before(p, t->cu_seqlens_k, b, p->max_seqlen_k, scale_tokens(ref, ref->policy.quant_block_k));
    return s;
}

/* Every key and value is read by every row: converts them once where there is memory for it. */
static void widen(tl_ref *ref)
{
    const tlamp_problem *p = &ref->problem;
    const int64_t most = (int64_t)1 << 27, dims = (int64_t)p->head_dim_qk + p->head_dim_v; /* 1 GiB */
    if (ref->keys == 0 || ref->keys > most / dims / (p->num_heads_k > 0 ? p->num_heads_k : 1)) return;
    const size_t heads_keys = (size_t)(ref->keys * p->num_heads_k);
    double *k = malloc(sizeof *k * heads_keys * (size_t)p->head_dim_qk);
    double *v = malloc(sizeof *v * heads_keys * (size_t)p->head_dim_v);
    for (int64_t b = 0; b < p->batch && k && v; b++) {
        const tl_ref_seq seq = tl_ref_sequence(ref, b);
        for (int32_t head = 0; head < p->num_heads_k; head++)
            for (int64_t j = 0; j < seq.lk; j++) {
                tl_ref_key(ref, &seq, head, j, wide_row(ref, k, &seq, head, j, p->head_dim_qk));
                tl_ref_value(ref, &seq, head, j, wide_row(ref, v, &seq, head, j, p->head_dim_v));
            }
    }
    if (k && v) {
        ref->wide_k = k;
        ref->wide_v = v;
    } else {
        free(k);
        free(v);
    }
}

/* The sequence that owns row r, or -1: a packed token beyond the last sequence. */
static int64_t owner(const tl_ref *ref, int64_t r)
{
    const tlamp_problem *p = &ref->problem;
    if (!p->varlen) return r / p->max_seqlen_q;
    for (int64_t b = 0; b < p->batch; b++)
        if (r < ref->tensors.cu_seqlens_q[b + 1]) return b;
    return -1;
}

/* ------------------------------------------------------------------------------------------------ masks and bias */

/* Causal kind and window. The differences cannot overflow; i + d + window_right could. */
static bool in_window(const tlamp_problem *p, int64_t lq, int64_t lk, int64_t i, int64_t j)
{
    const int64_t d = p->mask == TLAMP_MASK_CAUSAL_TOP_LEFT ? 0 : lk - lq;
    const int64_t ahead = j - (i + d); /* how far key j lies beyond the row's diagonal */
    if (p->mask != TLAMP_MASK_NONE && ahead > 0) return false;
    if (p->window_left >= 0 && -ahead > p->window_left) return false;
    if (p->window_right >= 0 && ahead > p->window_right) return false;
    return true;
}

static int64_t score_at(const tlamp_score_strides *s, int64_t b, int64_t head, int64_t i, int64_t j)
{
    return b * s->batch + head * s->head + i * s->q + j * s->k;
}

double tl_ref_bias(const tl_ref *ref, const tl_ref_seq *seq, int32_t head, int64_t i, int64_t j)
{
    const tlamp_problem *p = &ref->problem;
    if (!p->has_bias) return 0;
    return element(ref->tensors.bias, p->bias_dtype, score_at(&p->bias_stride, seq->b, head, i, j));
}

double tl_ref_alibi(const tl_ref *ref, const tl_ref_seq *seq, int32_t head, int64_t i, int64_t j)
{
    const tlamp_problem *p = &ref->problem;
    if (!p->has_alibi) return 0;
    const double slope = (double)ref->tensors.alibi_slopes[seq->b * p->alibi_batch_stride + head];
    return slope * fabs((double)(i + seq->lk - seq->lq - j));
}

bool tl_ref_sees(const tl_ref *ref, const tl_ref_seq *seq, int32_t head, int64_t i, int64_t j)
{
    const tlamp_problem *p = &ref->problem;
    if (j >= seq->lk || !in_window(p, seq->lq, seq->lk, i, j)) return false;
    if (p->has_bool_mask && !ref->tensors.bool_mask[score_at(&p->bool_mask_stride, seq->b, head, i, j)]) return false;
    return tl_ref_bias(ref, seq, head, i, j) != -HUGE_VAL;
}

/* ------------------------------------------------------------------------------------------------ one row */

/* The arrays behind a tl_ref_row, and more room. */
typedef struct scratch {
    bool *seen;                          /* [max_seqlen_k] */
    double *logit, *weight;              /* [max_seqlen_k] */
    double *q, *token;                   /* [width]; token: one key or value */
    double *o, *abs_pv, *o_bound, *work; /* [width]; work [3 * width] */
} scratch;

static double dot(const double *a, const double *b, int32_t n)
{
    double sum = 0;
    for (int32_t c = 0; c < n; c++) sum += a[c] * b[c];
    return sum;
}

/* s[j] of every key that the row sees. */
static void logits_of(const tl_ref_row *row, scratch *s)
{
    const tlamp_problem *p = &row->ref->problem;
    const double cap = (double)p->softcap;
    for (int64_t j = 0; j < row->seq.lk; j++) {
        s->seen[j] = tl_ref_sees(row->ref, &row->seq, row->head, row->i, j);
        if (!s->seen[j]) continue;
        tl_ref_key(row->ref, &row->seq, row->head_k, j, s->token);
        double x = row->ref->scale * dot(s->q, s->token, p->head_dim_qk);
        if (cap > 0) x = cap * tanh(x / cap);
        s->logit[j] = x + tl_ref_bias(row->ref, &row->seq, row->head, row->i, j) -
                      tl_ref_alibi(row->ref, &row->seq, row->head, row->i, j);
    }
}

/* exp(s[j] - lse), and lse. A NaN or +Inf among the logits makes the whole row NaN; with nothing above -Inf it is
 * empty. */
static void softmax(tl_ref_row *row, scratch *s)
{
    const int64_t n = row->seq.lk;
    bool spoilt = isnan(row->sink) || row->sink == HUGE_VAL;
    row->top = row->sink;
    for (int64_t j = 0; j < n; j++) {
        if (!s->seen[j]) continue;
        if (isnan(s->logit[j]) || s->logit[j] == HUGE_VAL) spoilt = true;
        if (s->logit[j] > row->top) row->top = s->logit[j];
    }
    const bool empty = row->top == -HUGE_VAL;

    double sum = empty ? 0 : exp(row->sink - row->top);
    for (int64_t j = 0; j < n; j++) {
        s->weight[j] = !s->seen[j] ? 0 : spoilt ? (double)NAN : empty ? 0 : exp(s->logit[j] - row->top);
        sum += s->weight[j];
    }
    row->lse = spoilt ? (double)NAN : empty ? -HUGE_VAL : row->top + log(sum);
    for (int64_t j = 0; j < n; j++)
        if (s->seen[j] && !empty) s->weight[j] /= sum;
}

/* Is there a key that counts, or that makes the row NaN? */
static bool has_keys(const tl_ref_row *row)
{
    for (int64_t j = 0; j < row->seq.lk; j++)
        if (row->seen[j] && row->logit[j] != -HUGE_VAL) return true;
    return false;
}

/* o and sum_j p_j |v_j|: plain sums over the keys the row sees, as IEEE has them. So a NaN or Inf in V reaches the
 * output even where its weight is 0 (0 * NaN and 0 * Inf are NaN); only a row without keys is 0 whatever V holds. */
static void values_of(const tl_ref_row *row, scratch *s)
{
    const int32_t n = row->ref->problem.head_dim_v;
    for (int32_t c = 0; c < n; c++) s->o[c] = s->abs_pv[c] = isnan(row->lse) ? (double)NAN : 0;
    if (isnan(row->lse) || !has_keys(row)) return;
    for (int64_t j = 0; j < row->seq.lk; j++) {
        if (!row->seen[j]) continue;
        tl_ref_value(row->ref, &row->seq, row->head_k, j, s->token);
        for (int32_t c = 0; c < n; c++) {
            s->o[c] += row->weight[j] * s->token[c];
            s->abs_pv[c] += row->weight[j] * fabs(s->token[c]);
        }
    }
}

/* ------------------------------------------------------------------------------------------------ the call */

typedef struct reference_call {
    tl_ref ref;
    tlamp_reference_outputs out;
    tl_ref_bound *bound; /* NULL: not asked for */
    scratch *scratch;    /* one per worker */
} reference_call;

/* Writes n doubles to their place in an output, where there is one. */
static void put(double *to, int64_t index, int64_t width, const double *from, int64_t n)
{
    if (to && n > 0) memcpy(to + index * width, from, sizeof *from * (size_t)n);
}

static void write_weights(const reference_call *call, int64_t index, const double *weight, int64_t n)
{
    const int64_t width = call->ref.problem.max_seqlen_k;
    put(call->out.weights, index, width, weight, n);
    for (int64_t j = n; call->out.weights && j < width; j++) call->out.weights[index * width + j] = 0;
}

static void row_task(void *context, int64_t index, int32_t worker)
{
    const reference_call *call = context;
    const tlamp_problem *p = &call->ref.problem;
    scratch *s = &call->scratch[worker];
    const int64_t r = index % call->ref.rows;
    const int32_t head = (int32_t)(index / call->ref.rows);
    if (call->out.row_step > 1 && (r + head) % call->out.row_step != 0) return;

    tl_ref_row row = {.ref = &call->ref,
                      .head = head,
                      .head_k = head / (p->num_heads_q / p->num_heads_k),
                      .q = s->q,
                      .seen = s->seen,
                      .logit = s->logit,
                      .weight = s->weight};
    const int64_t b = owner(&call->ref, r);
    if (b < 0) return;
    row.seq = tl_ref_sequence(&call->ref, b);
    row.i = r - row.seq.first_row;
    row.sink = p->has_sinks ? (double)call->ref.tensors.sinks[head] : -HUGE_VAL;

    tl_ref_query(&call->ref, &row.seq, head, row.i, s->q);
    logits_of(&row, s);
    softmax(&row, s);
    values_of(&row, s);

    const int64_t by_row = r * p->num_heads_q + head; /* o: [R, heads]; lse: [heads, R] as index counts */
    put(call->out.o, by_row, p->head_dim_v, s->o, p->head_dim_v);
    put(call->out.abs_pv, by_row, p->head_dim_v, s->abs_pv, p->head_dim_v);
    put(call->out.lse, index, 1, &row.lse, 1);
    write_weights(call, index, s->weight, row.seq.lk);
    if (!call->bound) return;
    double lse_bound;
    tl_ref_bound_row(call->bound, &row, s->o, s->abs_pv, s->work, s->o_bound, &lse_bound);
    put(call->out.o_bound, by_row, p->head_dim_v, s->o_bound, p->head_dim_v);
    put(call->out.lse_bound, index, 1, &lse_bound, 1);
}

/* Scratch of every worker in one allocation; NULL: out of memory. */
static scratch *scratch_create(const tlamp_problem *p, int32_t workers)
{
    const size_t keys = (size_t)p->max_seqlen_k;
    const size_t width = (size_t)(p->head_dim_qk > p->head_dim_v ? p->head_dim_qk : p->head_dim_v);
    const size_t doubles = 2 * keys + 8 * width, n = (size_t)workers;
    if (keys > SIZE_MAX / 64 / n) return NULL;
    scratch *all = malloc(n * (sizeof *all + doubles * sizeof(double) + keys * sizeof(bool)));
    if (!all) return NULL;
    double *at = (double *)(void *)(all + n);
    bool *seen = (bool *)(void *)(at + n * doubles);
    for (size_t w = 0; w < n; w++, at += doubles, seen += keys) {
        double *token = at + 2 * keys;
        all[w] = (scratch){seen,
                           at,
                           at + keys,
                           token,
                           token + width,
                           token + 2 * width,
                           token + 3 * width,
                           token + 4 * width,
                           token + 5 * width};
    }
    return all;
}

/* What a valid call may ask for and the reference does not do. */
static tlamp_status check_readable(const tlamp_problem *p, const tlamp_tensors *t, const tlamp_exec *exec,
                                   tlamp_error *err)
{
    if (p->page_size || t->prepared)
        return tl_fail(err, TLAMP_UNSUPPORTED, "page_size", "the reference reads plain tensors only");
    if (exec->memory == TLAMP_MEMORY_DEVICE)
        return tl_fail(err, TLAMP_UNSUPPORTED, "memory", "the reference reads host memory only");
    return TLAMP_OK;
}

tlamp_status tlamp_reference(const tlamp_problem *problem, const tlamp_tensors *tensors,
                             const tlamp_reference_outputs *outputs, const tlamp_exec *exec, tlamp_error *err)
{
    reference_call call = {.out = {.struct_size = sizeof call.out}};
    tl_ref *ref = &call.ref;
    tlamp_exec team;
    tlamp_status status = tl_validate_problem(&ref->problem, &ref->policy, problem, err);
    if (!status) status = tl_validate_tensors(&ref->tensors, &ref->problem, tensors, err);
    if (!status) status = tl_validate_exec(&team, exec, err);
    if (!status && !outputs) status = tl_fail(err, TLAMP_INVALID_ARGUMENT, "outputs", "is NULL");
    if (!status) status = tl_take_struct(&call.out, sizeof call.out, outputs, "tlamp_reference_outputs", err);
    if (!status && call.out.row_step < 0) status = tl_fail(err, TLAMP_INVALID_ARGUMENT, "row_step", "is negative");
    if (!status) status = check_readable(&ref->problem, &ref->tensors, &team, err);
    if (status) return status;

    const tlamp_problem *p = &ref->problem;
    ref->scale = (double)p->softmax_scale;
    ref->rows = p->varlen ? p->total_q : p->batch * p->max_seqlen_q;
    ref->keys = p->varlen ? p->total_k : p->batch * p->max_seqlen_k;
    if (!ref->rows || !p->num_heads_q) return TLAMP_OK;

    widen(ref);
    const bool bounded = call.out.o_bound || call.out.lse_bound;
    const int32_t workers = tl_team_workers(&team);
    call.scratch = scratch_create(p, workers);
    call.bound = bounded ? tl_ref_bound_create(ref) : NULL;
    if (!call.scratch || (bounded && !call.bound))
        status = tl_fail(err, TLAMP_OUT_OF_MEMORY, "", "no memory for the reference's rows");
    else
        tl_team_run(&team, workers, 0, p->num_heads_q * ref->rows, row_task, &call); /* rows do not depend on each other */
    tl_ref_bound_destroy(call.bound);
    free(call.scratch);
    free(ref->wide_k);
    free(ref->wide_v);
    return status;
}
