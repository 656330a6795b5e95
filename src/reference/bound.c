/* The largest error that a policy may make on each element of O and LSE (ALGORITHMS C1, C2), from the exact logits
 * and weights of the reference and from a quantisation of its own, made as A2 defines it.
 *
 * The computation that is bounded, in f32 and in log2 units (core/tile_loop.inc.h):
 *     x   = dot(q, k) in f32 in any order, or from INT8 codes         tl_epsilon_high, tl_epsilon_int8 (X3 too)
 *           or by bf16 planes, as O may be                            tl_roundings_planes
 *     t   = log2(e) * (cap * tanh(scale * x / cap) + bias - alibi)    logit_error: 4 u |t|; 8 u with bias
 *     p   = exp2(t - m), then times exp2(m_old - m_new) whenever the reference m moves; it moves by at least 8
 *     l   = sum p, O = sum p v, O / l                                 gamma_n of the terms
 * Each line's roundings become an error of the logit (a factor 1 + x on a weight is an error of at most |x| (1 +
 * |x|) of its logit) or of O. u = 2^-24. */
#include "reference.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/bound.h"
#include "core/quantize.h"
#include "core/routing.h"
#include "dispatch.h"
#include "plan.h"

#define LN2 0.6931471805599453
#define TL_U_F16 0x1p-11  /* unit roundoff of f16 */
#define F16_LIMIT 40000.  /* in log2 units a larger logit leaves f16 */
#define NAT_LIMIT 2.35e38 /* a larger logit saturates when it is turned to log2 units (core/online_softmax.h) */

struct tl_ref_bound {
    const tl_ref *ref;
    bool promised;     /* the policy is one that is bounded here */
    bool planes;       /* f32 products may be made of bf16 planes */
    bool bf16_values;  /* P V is computed in bf16 */
    tl_token *query;   /* [num_heads_q][rows]; NULL where nothing is INT8 */
    tl_token *key;     /* [num_heads_k][keys] */
    double *mean_norm; /* [batch][num_heads_k] of K, 0 without smooth_k */
    double *v_step;    /* [num_heads_k][value_blocks][head_dim_v] INT8 P V: distance of V's codes; NULL otherwise */
};

enum { VALUE_KEYS = TL_VALUE_KEYS };

/* Blocks of VALUE_KEYS keys, each sequence's from a place of its own. */
static int64_t value_blocks(const tl_ref *ref) { return ref->keys / VALUE_KEYS + ref->problem.batch + 1; }
static int64_t value_block(const tl_ref_seq *seq, int64_t j)
{
    return seq->first_key / VALUE_KEYS + seq->b + j / VALUE_KEYS;
}

static double norm_of(const double *x, int32_t n)
{
    double sum = 0;
    for (int32_t c = 0; c < n; c++) sum += x[c] * x[c];
    return sqrt(sum);
}

/* n zeroed elements, at least one, so that NULL means only that there is no memory. */
static void *zeroed(int64_t n, int64_t m, size_t size)
{
    const uint64_t all = n > 0 && m > 0 ? (uint64_t)n * (uint64_t)m : 1;
    return calloc((size_t)all, size);
}

/* ------------------------------------------------------------------------------------------------ quantiser (A2) */

/* One operand of one sequence and head. */
typedef struct operand {
    const tl_ref *ref;
    const tl_ref_seq *seq;
    void (*load)(const tl_ref *, const tl_ref_seq *, int32_t head, int64_t token, double *to);
    double (*given)(const tl_ref *, const tl_ref_seq *, int32_t head, int64_t token); /* scale; NULL: to be made */
    int32_t head;
    int64_t count, block;     /* tokens, tokens per scale */
    const bool *seen;         /* [count] */
    const double *mean;       /* [d] taken off every token; NULL: none */
    const double *mean_error; /* [d] how far the mean that the kernel takes off may be from it */
    double *x;                /* [d] room for one token */
    double *blur;             /* [d] how far the kernel's x may be from it */
} operand;

/* Is x what the kernel quantises, so that its codes are known? Means and rotations are rounded. */
static bool is_exact(const operand *o) { return !o->mean && !o->ref->policy.hadamard; }

/* H x / sqrt(d), and what f32 may do to it: log2 d sums and two products, each of which is off by u of itself, while norms
 * stay. No row of the matrix makes more of an error than its norm. */
static void rotate(const operand *o)
{
    const int32_t d = o->ref->problem.head_dim_qk;
    double stages = 3;
    for (int32_t h = 1; h < d; h *= 2, stages++)
        for (int32_t i = 0; i < d; i++) {
            if (i & h) continue;
            const double a = o->x[i], b = o->x[i + h];
            o->x[i] = a + b;
            o->x[i + h] = a - b;
        }
    for (int32_t c = 0; c < d; c++) o->x[c] /= sqrt((double)d);
    const double error = norm_of(o->blur, d) + stages * (double)TL_U * norm_of(o->x, d);
    for (int32_t c = 0; c < d; c++) o->blur[c] = error;
}

/* Token t in o->x as it is given. false: it is not quantised, because nothing sees it or it holds a NaN or Inf. */
static bool load_given(const operand *o, int64_t t)
{
    if (!o->seen[t]) return false;
    o->load(o->ref, o->seq, o->head, t, o->x);
    for (int32_t c = 0; c < o->ref->problem.head_dim_qk; c++)
        if (!isfinite(o->x[c])) return false;
    return true;
}

/* The same as it is quantised: less the mean, rotated. */
static bool load_token(const operand *o, int64_t t)
{
    if (!load_given(o, t)) return false;
    for (int32_t c = 0; c < o->ref->problem.head_dim_qk; c++) {
        if (o->mean) o->x[c] -= o->mean[c];
        o->blur[c] = o->mean ? o->mean_error[c] : 0;
    }
    if (o->ref->policy.hadamard) rotate(o);
    return true;
}

static double block_amax(const operand *o, int64_t first, int64_t end)
{
    double amax = 0;
    for (int64_t t = first; t < end; t++) {
        if (!load_token(o, t)) continue;
        for (int32_t c = 0; c < o->ref->problem.head_dim_qk; c++) amax = fmax(amax, fabs(o->x[c]) + o->blur[c]);
    }
    return amax;
}

/* delta; 0 for a zero block. f16 scales are rounded up and used as rounded. */
static float scale_of(double amax, tlamp_scales scales)
{
    if (amax < 127 * 0x1p-126) return 0;
    const float delta = (float)amax / 127.f;
    if (scales != TLAMP_SCALES_BLOCK_F16 || delta > 65504.f) return delta;
    uint16_t half = tl_to_f16(delta);
    while (tl_from_f16(half) < delta) half++;
    return tl_from_f16(half);
}

/* The largest magnitude, at most `most`, that the code of a number (in units of delta) may have, and how far it may be off.
 * Close to a tie the kernel, which multiplies by a rounded 127 / amax, may take either neighbour. */
static void code_of(double units, double most, double *code, double *error)
{
    const double size = fmin(most, fabs(units)), low = floor(size), tie = size - low - 0.5;
    const bool either = fabs(tie) < 0x1p-14;
    *code = either || tie > 0 ? low + 1 : low;
    *error = (either ? 0.5 + fabs(tie) : fabs(size - *code)) + fmax(0, fabs(units) - most);
}

/* The token in o->x with scale delta; amax is its block's. */
static tl_token measure(const operand *o, float delta, double amax)
{
    const int32_t d = o->ref->problem.head_dim_qk;
    double l1 = 0, codes = 0, errors = 0;
    for (int32_t c = 0; c < d && delta > 0; c++) {
        double code, error;
        code_of(o->x[c] / (double)delta, 127, &code, &error);
        l1 += code;
        codes += code * code;
        errors += error * error;
    }
    const double norm = norm_of(o->x, d);
    if (!(delta > 0)) return (tl_token){2 * (float)amax, 0, (float)norm, 0, (float)norm, 0};
    return (tl_token){delta, (float)l1, (float)norm, delta * (float)sqrt(codes), delta * (float)sqrt(errors), 0};
}

/* The same of both planes of X3 (E): together they are one code of steps delta / 254. Close to a tie of the first plane it
 * may have either neighbour; the second then is 127 steps on either side of the same number. */
static tl_token measure_planes(const operand *o, float delta, double amax)
{
    const int32_t d = o->ref->problem.head_dim_qk;
    const double step = (double)delta / TL_PLANE_STEPS;
    double codes = 0, errors = 0, seconds = 0;
    for (int32_t c = 0; c < d && delta > 0; c++) {
        const double units = fmin(127, fabs(o->x[c] / (double)delta)), rest = fabs(units - nearbyint(units));
        double code, error, second, unused;
        code_of(o->x[c] / step, 127 * TL_PLANE_STEPS, &code, &error);
        code_of(rest * TL_PLANE_STEPS, 127, &second, &unused);
        codes += code * code;
        errors += error * error;
        seconds += second * second;
    }
    const double norm = norm_of(o->x, d);
    if (!(delta > 0)) return (tl_token){2 * (float)amax, 0, (float)norm, 0, (float)norm, 0};
    return (tl_token){.delta = (float)step,
                      .l1 = TL_INF,
                      .norm = (float)norm,
                      .code_norm = (float)(step * sqrt(codes)),
                      .residual = (float)(step * sqrt(errors)),
                      .second = (float)(step * sqrt(seconds))};
}

/* The same where x is known only up to blur: codes may differ from the kernel's, so that |e_i| <= delta / 2 is all that is sure
 * (delta allows for the blur already), and B1 is not. Of X3: the last plane's delta, and second codes of any size. */
static tl_token measure_blurred(const operand *o, float delta, double amax)
{
    const int32_t d = o->ref->problem.head_dim_qk;
    const bool x3 = o->ref->policy.kind == TLAMP_POLICY_X3;
    const double first = delta > 0 ? (double)delta / 2 : amax, half = x3 && delta > 0 ? first / TL_PLANE_STEPS : first;
    const double residual = sqrt((double)d) * half, norm = norm_of(o->x, d) + norm_of(o->blur, d);
    return (tl_token){.delta = 2 * (float)half,
                      .l1 = TL_INF,
                      .norm = (float)norm,
                      .code_norm = (float)(norm + residual),
                      .residual = (float)residual,
                      .second = x3 && delta > 0 ? (float)(sqrt((double)d) * first) : 0};
}

static void quantise(const operand *o, tlamp_scales scales, tl_token *tokens)
{
    for (int64_t first = 0; first < o->count; first += o->block) {
        const int64_t end = tl_min64(first + o->block, o->count);
        const double amax = block_amax(o, first, end);
        const float made = scale_of(amax, scales);
        for (int64_t t = first; t < end; t++) {
            float delta = o->given ? (float)fabs(o->given(o->ref, o->seq, o->head, t)) : made;
            if (delta < 0x1p-126f) delta = 0; /* a zero block, whoever made the scale */
            if (!load_token(o, t))
                tokens[t] = (tl_token){.delta = -1}; /* see is_quantised */
            else if (!is_exact(o))
                tokens[t] = measure_blurred(o, delta, amax);
            else if (o->ref->policy.kind == TLAMP_POLICY_X3)
                tokens[t] = measure_planes(o, delta, amax);
            else
                tokens[t] = measure(o, delta, amax);
        }
    }
}

static bool is_quantised(const tl_token *t) { return t->delta >= 0; }

/* The mean of K's seen, finite tokens, and what f32 sums of any order may do to it: anything where they overflow. */
static void mean_of(const operand *keys, double *mean, double *mean_error)
{
    const int32_t d = keys->ref->problem.head_dim_qk;
    double n = 0;
    memset(mean, 0, sizeof *mean * (size_t)d);
    memset(mean_error, 0, sizeof *mean_error * (size_t)d);
    for (int64_t t = 0; t < keys->count; t++) {
        if (!load_given(keys, t)) continue; /* the mean is taken off before the rotation */
        n++;
        for (int32_t c = 0; c < d; c++) {
            mean[c] += keys->x[c];
            mean_error[c] += fabs(keys->x[c]);
        }
    }
    for (int32_t c = 0; c < d && n > 0; c++) {
        mean[c] /= n;
        mean_error[c] = mean_error[c] < (double)FLT_MAX / 2 ? mean_error[c] / n * (double)tl_gamma((float)n + 2)
                                                            : HUGE_VAL;
    }
}

/* ------------------------------------------------------------------------------------------------ all tokens */

/* Room for one sequence and head at a time. */
typedef struct token_room {
    bool *row_seen, *key_seen;
    double *x, *blur, *mean, *mean_error;
} token_room;

static bool row_sees_a_key(const tl_ref *ref, const tl_ref_seq *seq, int32_t head, int64_t i)
{
    for (int64_t j = 0; j < seq->lk; j++)
        if (tl_ref_sees(ref, seq, head, i, j)) return true;
    return false;
}

static bool key_is_seen(const tl_ref *ref, const tl_ref_seq *seq, int32_t first_head, int32_t heads, int64_t j)
{
    for (int32_t head = first_head; head < first_head + heads; head++)
        for (int64_t i = seq->lq - 1; i >= 0; i--)
            if (tl_ref_sees(ref, seq, head, i, j)) return true;
    return false;
}

/* Q and K of one KV head of one sequence. */
static void quantise_head(tl_ref_bound *bound, const tl_ref_seq *seq, int32_t head_k, const token_room *room)
{
    const tl_ref *ref = bound->ref;
    const tlamp_policy *policy = &ref->policy;
    const bool per_token = policy->scales == TLAMP_SCALES_TOKEN;
    const int32_t group = ref->problem.num_heads_q / ref->problem.num_heads_k;

    for (int64_t j = 0; j < seq->lk; j++) room->key_seen[j] = key_is_seen(ref, seq, head_k * group, group, j);
    operand keys = {.ref = ref,
                    .seq = seq,
                    .load = tl_ref_key,
                    .given = ref->problem.k_dtype == TLAMP_INT8 ? tl_ref_key_scale : NULL,
                    .head = head_k,
                    .count = seq->lk,
                    .block = per_token ? 1 : policy->quant_block_k,
                    .seen = room->key_seen,
                    .x = room->x,
                    .blur = room->blur};
    if (policy->smooth_k) {
        mean_of(&keys, room->mean, room->mean_error);
        bound->mean_norm[seq->b * ref->problem.num_heads_k + head_k] = norm_of(room->mean, ref->problem.head_dim_qk);
        keys.mean = room->mean;
        keys.mean_error = room->mean_error;
    }
    quantise(&keys, policy->scales, bound->key + head_k * ref->keys + seq->first_key);

    for (int32_t head = head_k * group; head < (head_k + 1) * group; head++) {
        for (int64_t i = 0; i < seq->lq; i++) room->row_seen[i] = row_sees_a_key(ref, seq, head, i);
        const operand queries = {.ref = ref,
                                 .seq = seq,
                                 .load = tl_ref_query,
                                 .given = ref->problem.q_dtype == TLAMP_INT8 ? tl_ref_query_scale : NULL,
                                 .head = head,
                                 .count = seq->lq,
                                 .block = per_token ? 1 : policy->quant_block_q,
                                 .seen = room->row_seen,
                                 .x = room->x,
                                 .blur = room->blur};
        quantise(&queries, policy->scales, bound->query + head * ref->rows + seq->first_row);
    }
}

/* The codes of one block of V lie max |v| / 127 apart, per channel, over the keys that some row sees; those that hold a NaN or
 * Inf are left out and met in f32, at least. 0 where V is not rounded: codes of the caller's. */
static void quantise_value_block(tl_ref_bound *bound, const tl_ref_seq *seq, int32_t head_k, int64_t first,
                                 const bool *seen, double *v)
{
    const tl_ref *ref = bound->ref;
    const int32_t n = ref->problem.head_dim_v;
    double *step = bound->v_step + (head_k * value_blocks(ref) + value_block(seq, first)) * n;
    const bool exact = ref->problem.v_dtype == TLAMP_INT8 && ref->policy.scales != TLAMP_SCALES_TOKEN;
    for (int64_t j = first; j < tl_min64(first + VALUE_KEYS, seq->lk); j++) {
        if (!seen[j]) continue;
        tl_ref_value(ref, seq, head_k, j, v);
        bool finite = true;
        for (int32_t c = 0; c < n; c++) finite &= isfinite(v[c]) != 0;
        for (int32_t c = 0; c < n && finite; c++) step[c] = fmax(step[c], fabs(v[c]) / 127);
    }
    for (int32_t c = 0; c < n; c++) /* a zero block (A2) loses what it holds */
        step[c] = exact ? 0 : step[c] < 0x1p-126 ? 2 * 127 * step[c] : step[c] * (1 + 0x1p-13);
}

static bool quantise_values(tl_ref_bound *bound)
{
    const tl_ref *ref = bound->ref;
    const tlamp_problem *p = &ref->problem;
    const int32_t group = p->num_heads_q / (p->num_heads_k > 0 ? p->num_heads_k : 1);
    double *memory = malloc(sizeof *memory * (size_t)p->head_dim_v + (size_t)p->max_seqlen_k);
    if (!memory) return false;
    bool *seen = (bool *)(memory + p->head_dim_v);
    for (int64_t b = 0; b < p->batch; b++) {
        const tl_ref_seq seq = tl_ref_sequence(ref, b);
        for (int32_t head_k = 0; head_k < p->num_heads_k; head_k++) {
            for (int64_t j = 0; j < seq.lk; j++) seen[j] = key_is_seen(ref, &seq, head_k * group, group, j);
            for (int64_t j = 0; j < seq.lk; j += VALUE_KEYS) quantise_value_block(bound, &seq, head_k, j, seen, memory);
        }
    }
    free(memory);
    return true;
}

static bool quantise_all(tl_ref_bound *bound)
{
    const tlamp_problem *p = &bound->ref->problem;
    const size_t lq = (size_t)p->max_seqlen_q, lk = (size_t)p->max_seqlen_k, d = (size_t)p->head_dim_qk;
    double *memory = malloc(4 * d * sizeof *memory + lq + lk);
    if (!memory) return false;
    bool *seen = (bool *)(memory + 4 * d);
    const token_room room = {seen, seen + lq, memory, memory + d, memory + 2 * d, memory + 3 * d};
    for (int64_t b = 0; b < p->batch; b++) {
        const tl_ref_seq seq = tl_ref_sequence(bound->ref, b);
        for (int32_t head_k = 0; head_k < p->num_heads_k; head_k++) quantise_head(bound, &seq, head_k, &room);
    }
    free(memory);
    return true;
}

tl_ref_bound *tl_ref_bound_create(const tl_ref *ref)
{
    const tlamp_policy *policy = &ref->policy;
    tl_ref_bound *bound = calloc(1, sizeof *bound);
    if (!bound) return NULL;
    const bool high = policy->kind == TLAMP_POLICY_HIGH;
    const bool int8 = policy->kind == TLAMP_POLICY_INT8 || policy->kind == TLAMP_POLICY_ROUTED ||
                      policy->kind == TLAMP_POLICY_X3;
    const bool given_k = ref->problem.k_dtype == TLAMP_INT8, given = given_k || ref->problem.q_dtype == TLAMP_INT8;
    const bool odd = (policy->hadamard && given) || (policy->smooth_k && given_k);
    const bool pv8 = policy->pv == TLAMP_PV_INT8, pv32 = policy->pv == TLAMP_PV_AUTO || policy->pv == TLAMP_PV_F32;
    const bool values = pv32 || policy->state == TLAMP_STATE_F32;
    const tl_machine here = tl_this_machine();
    tlamp_pv pv = policy->pv; /* AUTO: what it is on this machine */
    const tl_kernel *kernel = tl_find_kernel(&pv, &here, &ref->problem);
    bound->ref = ref;
    bound->planes = kernel && kernel->planes;
    bound->bf16_values = pv == TLAMP_PV_BF16;
    bound->promised = values && ref->problem.num_policies == 1 && (high || (int8 && !odd));
    if (pv8 && bound->promised) {
        bound->v_step = zeroed(ref->problem.num_heads_k, value_blocks(ref) * ref->problem.head_dim_v, sizeof(double));
        if (!bound->v_step || !quantise_values(bound)) {
            tl_ref_bound_destroy(bound);
            return NULL;
        }
    }
    if (high || !bound->promised) return bound;

    bound->query = zeroed(ref->problem.num_heads_q, ref->rows, sizeof *bound->query);
    bound->key = zeroed(ref->problem.num_heads_k, ref->keys, sizeof *bound->key);
    bound->mean_norm = zeroed(ref->problem.num_heads_k, ref->problem.batch, sizeof *bound->mean_norm);
    if (bound->query && bound->key && bound->mean_norm && quantise_all(bound)) return bound;
    tl_ref_bound_destroy(bound);
    return NULL;
}

void tl_ref_bound_destroy(tl_ref_bound *bound)
{
    if (!bound) return;
    free(bound->query);
    free(bound->key);
    free(bound->mean_norm);
    free(bound->v_step);
    free(bound);
}

/* ------------------------------------------------------------------------------------------------ logits */

/* The words of row i (A3, A6): packed sequences count their routing rows one after another. */
static const uint64_t *routing_words(const tl_ref_row *row)
{
    const tlamp_tensors *t = &row->ref->tensors;
    const int64_t block_m = row->ref->policy.block_m;
    int64_t m = row->i / block_m;
    if (!row->ref->problem.varlen)
        return t->words + row->seq.b * t->words_stride_batch + row->head_k * t->words_stride_head +
               m * t->words_stride_row;
    for (int64_t b = 0; b < row->seq.b; b++) m += tl_ceil_div(tl_ref_sequence(row->ref, b).lq, block_m);
    return t->words + row->head_k * t->words_stride_head + m * t->words_stride_row;
}

/* Keys per routing group. */
static int64_t group_keys(const tl_ref_row *row)
{
    const int32_t *groups = row->ref->tensors.groups, block_n = row->ref->policy.block_n;
    return (int64_t)block_n * (groups ? groups[row->seq.b] : tl_auto_group(row->seq.length_k, block_n));
}

/* What the logits of a row share. */
typedef struct row_route {
    tlamp_policy_kind kind;
    const uint64_t *words;
    int64_t keys;
} row_route;

static row_route route_of(const tl_ref_row *row)
{
    const tlamp_policy_kind kind = row->ref->policy.kind;
    if (kind != TLAMP_POLICY_ROUTED) return (row_route){kind, NULL, 1};
    return (row_route){kind, routing_words(row), group_keys(row)};
}

/* From codes: of one plane, or under X3 of two. */
static bool is_int8(const row_route *r, int64_t j)
{
    return r->kind == TLAMP_POLICY_INT8 || r->kind == TLAMP_POLICY_X3 ||
           (r->kind == TLAMP_POLICY_ROUTED && tl_word_bit(r->words, j / r->keys));
}

/* A product q . k, exactly, and what its size can do to rounding. */
typedef struct product {
    double value, magnitudes; /* sum q k, sum |q k| */
    double q_norm, k_norm;
} product;

static product multiply(const double *q, const double *k, int32_t d)
{
    product x = {0, 0, norm_of(q, d), norm_of(k, d)};
    for (int32_t c = 0; c < d; c++) {
        x.value += q[c] * k[c];
        x.magnitudes += fabs(q[c] * k[c]);
    }
    return x;
}

/* What a kernel multiplies codes of the token with: its block's scale, 1 for a zero block (whose delta here is below 2^-117). */
static double kernel_scale(const tl_token *t) { return t->delta < 0x1p-117f ? 1 : (double)t->delta; }

/* Kernels multiply a sum of codes by both scales and the logit's factor, in some order. Scales are those of blocks, so that
 * these may leave f32 where the pair's own product does not. */
static bool scales_overflow(const tl_token *q, const tl_token *k, int32_t d, double factor)
{
    const double of_q = fmax(1, kernel_scale(q) * fmax(1, 2 * factor)), of_k = fmax(1, kernel_scale(k));
    return !(of_q * of_k * d * (127. * 127.) < (double)FLT_MAX / 8);
}

/* Error of scale * dot(q, k) by the route of the pair. Flagged tokens are high (A2). Under smooth_k an INT8 logit
 * has scale * q . mean added, an f32 dot product and a sum. */
static double product_error(const tl_ref_bound *bound, const tl_ref_row *row, const row_route *route, int64_t j,
                            const product *x)
{
    const tl_ref *ref = row->ref;
    const int32_t d = ref->problem.head_dim_qk;
    const float scale = (float)ref->scale, q_norm = (float)x->q_norm, k_norm = (float)x->k_norm;
    const double underflow = (double)tl_epsilon_underflow(q_norm, k_norm, d, scale);
    if (is_int8(route, j)) {
        const tl_token *q = bound->query + row->head * ref->rows + row->seq.first_row + row->i;
        const tl_token *k = bound->key + row->head_k * ref->keys + row->seq.first_key + j;
        const double shift = x->q_norm * bound->mean_norm[row->seq.b * ref->problem.num_heads_k + row->head_k];
        const float slack = ref->policy.hadamard ? TL_SLACK_ROTATED : TL_SLACK;
        if (is_quantised(q) && is_quantised(k) && scales_overflow(q, k, d, (double)scale)) return HUGE_VAL;
        if (is_quantised(q) && is_quantised(k))
            return (double)tl_epsilon_int8(q, k, d, slack, scale) + (ref->policy.hadamard ? 2 : 1) * underflow +
                   (double)(tl_epsilon_high((float)shift, d, scale) +
                            0x1p-22f * (float)(x->magnitudes + shift) * scale);
    }
    double high = (double)tl_epsilon_high((float)x->magnitudes, d, scale);
    if (bound->planes)
        high = fmax(high,
                    (double)(tl_gamma(tl_roundings_planes((float)tl_ceil_div(d, 32))) * (float)x->magnitudes * scale));
    return high + underflow;
}

/* Can any intermediate of the logit leave f32? Then nothing is promised. */
static bool overflows(const tl_ref *ref, const product *x)
{
    const double largest = fmax(x->magnitudes, x->q_norm * x->k_norm) * fmax(1, ref->scale);
    return !(largest < (double)FLT_MAX / 8);
}

/* cap tanh(y / cap) where y is off by e and rounded: tanh is monotone, so the ends decide. */
static double softcap_error(double y, double e, double cap)
{
    const double wide = e + 0x1p-22 * fabs(y), at = cap * tanh(y / cap);
    const double up = cap * tanh((y + wide) / cap) - at, down = at - cap * tanh((y - wide) / cap);
    return fmax(up, down) * (1 + 0x1p-20) + 0x1p-21 * fabs(at);
}

/* What one logit may be off by, without the exponential's part; magnitude: sum of the sizes of its terms. */
static double logit_error(const tl_ref_bound *bound, const tl_ref_row *row, const row_route *route, int64_t j,
                          double *key, double *magnitude)
{
    const tl_ref *ref = row->ref;
    const double cap = (double)ref->problem.softcap;
    tl_ref_key(ref, &row->seq, row->head_k, j, key);
    const product x = multiply(row->q, key, ref->problem.head_dim_qk);
    if (overflows(ref, &x)) return HUGE_VAL;
    double y = ref->scale * x.value, e = product_error(bound, row, route, j, &x);
    if (cap > 0 && e < HUGE_VAL) {
        e = softcap_error(y, e, cap);
        y = cap * tanh(y / cap);
    }
    const double bias = fabs(tl_ref_bias(ref, &row->seq, row->head, row->i, j));
    const double alibi = fabs(tl_ref_alibi(ref, &row->seq, row->head, row->i, j));
    *magnitude = fabs(y) + bias + alibi;
    if (*magnitude > (double)FLT_MAX) return HUGE_VAL;
    /* Scale, log2(e) and the factors of ALiBi are at most 4 roundings of each term, two sums 2 more, log2 units
     * again 1. */
    const double roundings = bias > 0 || alibi > 0 ? 8 : 4;
    double half = 0; /* f16 state: the logit itself is rounded, and must not leave f16 */
    if (ref->policy.state == TLAMP_STATE_F16) {
        if (*magnitude > F16_LIMIT) return HUGE_VAL;
        half = TL_U_F16 * (*magnitude + e) + 0x1p-25;
    }
    return e + half + roundings * (double)TL_U * *magnitude + fmax(0, *magnitude - NAT_LIMIT);
}

/* ------------------------------------------------------------------------------------------------ weights (C2) */

/* A row so far: n keys, a = sum p expm1(eps), the largest eps, the smallest logit. */
typedef struct charges {
    int64_t n;
    double a, eps, low;
} charges;

/* Key tiles a row meets, at most. */
static double tiles_of(const tl_ref_row *row)
{
    const int32_t block_n = row->ref->policy.block_n;
    return (double)tl_ceil_div(row->seq.lk, block_n < 64 ? block_n : 64) + 1;
}

static double eager_moves(const tl_ref_row *row)
{
    const tlamp_policy *policy = &row->ref->policy;
    return policy->state == TLAMP_STATE_F16 || policy->pv == TLAMP_PV_INT8 ? tiles_of(row) : 0;
}

/* The exponential's part of the error of logit s, in units of 2^-22 = u_exp = 4 u:
 *   - t - m and then every m_old - m_new is rounded relative to the difference, u (m_final - s + 16 ln 2) in all, since
 *     the lazy reference m stays within 8 ln 2 below the running maximum: 1/4 of (top - s) + 12;
 *   - exp2 itself once, and once per move of m, at least 8 ln 2 apart: 2 + (top - s) / 5.5;
 *   - m is rounded as a logit is, and does not cancel exactly where splits are merged: |top|;
 *   - each further split is merged by exp(lse_a - lse), with both rounded.
 * Where the reference is not lazy (f16 state, INT8 P V) it may move with every tile. bf16 P comes from a short polynomial. */
static double exponential_error(const tl_ref_bound *bound, const tl_ref_row *row, double s, double size)
{
    const double merges = (double)tl_splits(&row->ref->problem) - 1;
    const double once = fabs(row->top) + (row->top - s) + 9 + eager_moves(row);
    const double merge = fabs(row->top) + size + log((double)row->seq.lk + 1) + 4;
    const double polynomial = bound->bf16_values ? (double)TL_U_EXP_SHORT * (1 + (double)TL_U_EXP_SHORT) : 0;
    return polynomial + (double)TL_U_EXP * (once + (merges > 0 ? merges : 0) * merge);
}

/* p expm1(eps). p is exp(s - lse), but may have underflowed where a huge eps could bring it back. */
static void charge(charges *c, double p, double log_p, double eps)
{
    c->a += eps < 30 ? p * expm1(eps) : exp(fmin(log_p + eps, 800));
    c->eps = fmax(c->eps, eps);
}

/* false: some intermediate of the row may overflow. */
static bool charge_row(const tl_ref_bound *bound, const tl_ref_row *row, double *key, charges *c)
{
    const row_route route = route_of(row);
    if (row->sink != -HUGE_VAL) { /* a key without a value whose logit is given */
        const double limit = row->ref->policy.state == TLAMP_STATE_F16 ? F16_LIMIT : NAT_LIMIT;
        if (fabs(row->sink) > limit) return false;
        const double eps = 4 * (double)TL_U * fabs(row->sink) +
                           exponential_error(bound, row, row->sink, fabs(row->sink));
        charge(c, exp(row->sink - row->lse), row->sink - row->lse, eps);
        c->low = row->sink;
    }
    for (int64_t j = 0; j < row->seq.lk; j++) {
        if (!row->seen[j]) continue;
        c->n++;
        if (row->logit[j] == -HUGE_VAL) continue; /* weight 0 in any arithmetic */
        double size = 0;
        const double eps = logit_error(bound, row, &route, j, key, &size) +
                           exponential_error(bound, row, row->logit[j], size);
        if (!(eps < HUGE_VAL)) return false;
        charge(c, row->weight[j], row->logit[j] - row->lse, eps);
        c->low = fmin(c->low, row->logit[j]);
    }
    return true;
}

/* Mass that f32 loses below 2^-126: at most 2^-126 of every weight, and once more where m moves, of weights up to
 * 2^8, relative to a sum of at least 1. A weight that vanishes because its logit is off is charged already. */
static double vanishing(const charges *c) { return (double)c->n * 0x1p-116; }

/* Relative error of a sum whose terms (a product each, for O) pass so many roundings, and are rescaled when m moves. */
static double sum_error(const tl_ref_row *row, const charges *c, double roundings)
{
    const double moves = fmin((double)c->n, 2 + (row->top - c->low) / (8 * LN2)) + eager_moves(row);
    const double gamma = (double)tl_gamma((float)(roundings + moves + 8 + (double)tl_splits(&row->ref->problem)));
    return gamma < 0.5 ? gamma / (1 - gamma) : HUGE_VAL;
}

/* ... of l, and of O. Planes: tiles begin at multiples of 16 keys, and those without a seen key add 0. */
static double weights_error(const tl_ref_row *row, const charges *c) { return sum_error(row, c, (double)c->n); }
static double values_error(const tl_ref_bound *bound, const tl_ref_row *row, const charges *c)
{
    const double tiles = fmin((double)c->n, (double)(tl_ceil_div(row->seq.lk, 16) + 1));
    const double planes = bound->planes ? (double)tl_roundings_planes((float)tiles) : 0;
    return sum_error(row, c, fmax((double)c->n, planes));
}

/* ------------------------------------------------------------------------------------------------ outputs */

/* What storing a value of at most `size` in the output's type rounds away. */
static double storage_error(tlamp_dtype dtype, double size)
{
    switch (dtype) {
    case TLAMP_F16: return size < 65504 ? 0x1p-11 * size + 0x1p-25 : HUGE_VAL;
    case TLAMP_BF16: return size < 0x1.fep127 ? 0x1p-8 * size : HUGE_VAL;
    default: return size < (double)FLT_MAX ? 0x1p-24 * size : HUGE_VAL;
    }
}

/* Lowest and highest value per column among the seen keys. A sink is a key whose value is 0. */
static void value_range(const tl_ref_row *row, double *v, double *low, double *high)
{
    const int32_t n = row->ref->problem.head_dim_v;
    const bool sink = row->sink != -HUGE_VAL;
    for (int32_t c = 0; c < n; c++) {
        low[c] = sink ? 0 : HUGE_VAL;
        high[c] = sink ? 0 : -HUGE_VAL;
    }
    for (int64_t j = 0; j < row->seq.lk; j++) {
        if (!row->seen[j]) continue;
        tl_ref_value(row->ref, &row->seq, row->head_k, j, v);
        for (int32_t c = 0; c < n; c++) {
            low[c] = fmin(low[c], v[c]);
            high[c] = fmax(high[c], v[c]);
        }
    }
}

/* f16 state (A8): l and O are rounded after each tile, and P once. Relative to sum p and to sum p |v|. */
static double held_error(const tl_ref_row *row)
{
    if (row->ref->policy.state != TLAMP_STATE_F16) return 0;
    return pow(1 + TL_U_F16, tiles_of(row) + 1) - 1;
}

/* The same below f16's normal range, relative to the largest |v| + 1: each P, and O after each tile. sum p is at least 1. */
static double held_floor(const tl_ref_row *row, const charges *c)
{
    return row->ref->policy.state == TLAMP_STATE_F16 ? ((double)c->n + tiles_of(row)) * 0x1p-25 : 0;
}

/* INT8 P V (C2): each weight is off by half of 1/255 of the reference's, which sum p is e^(lse - top) of at least, and each
 * value by half a step of its block. */
static double int8_error(const tl_ref_bound *bound, const tl_ref_row *row, const charges *c, int32_t i, double largest)
{
    if (!bound->v_step) return 0;
    const int32_t n = row->ref->problem.head_dim_v;
    const double *steps = bound->v_step + (row->head_k * value_blocks(row->ref)) * n + i;
    double step = 0;
    for (int64_t j = 0; j < row->seq.lk; j++)
        if (row->seen[j]) step = fmax(step, steps[value_block(&row->seq, j) * n]);
    const double sum = fmax(1, exp(row->lse - row->top - 2 * fmin(c->eps, 300)));
    const double weights = (double)c->n * (1 + 0x1p-15) / (510 * sum);
    return weights * (largest + step / 2) + step / 2 * (1 + 0x1p-12);
}

/* bf16 P V: what P and V are rounded by, relative to sum p |v|; l is summed from P before that. Products are exact, and
 * numbers below 2^-126, which count as 0, are among what vanishes. */
static double bf16_error(const tl_ref_bound *bound, const tl_ref_row *row)
{
    if (!bound->bf16_values) return 0;
    const double u = (double)TL_U_BF16, v = row->ref->problem.v_dtype == TLAMP_BF16 ? 0 : u;
    return (1 + u) * (1 + v) - 1;
}

/* C2: |O^ - O| <= ||p^ - p||_1 / 2 (max V - min V), then the sums, what vanishes, and storage. */
static void output_bound(const tl_ref_bound *promise, const tl_ref_row *row, const charges *c, double half_l1,
                         const double *o, const double *abs_pv, double *work, double *bound)
{
    const tlamp_problem *p = &row->ref->problem;
    const double held = held_error(row);
    const double both = weights_error(row, c) + values_error(promise, row, c) + 2 * held / (1 - fmin(held, 0.5));
    const double sums = both + (1 + both) * bf16_error(promise, row);
    double *low = work, *high = work + p->head_dim_v;
    value_range(row, work + 2 * p->head_dim_v, low, high);
    for (int32_t i = 0; i < p->head_dim_v; i++) {
        const double largest = fmax(fabs(low[i]), fabs(high[i]));
        const double error = half_l1 * (high[i] - low[i]) + sums * (abs_pv[i] + half_l1 * largest) +
                             (vanishing(c) + 2 * held_floor(row, c)) * (largest + 1) +
                             int8_error(promise, row, c, i, largest);
        const bool held16 = row->ref->policy.state == TLAMP_STATE_F16;
        const bool small = held16
                               ? (double)c->n * fmax(largest, 1) < 60000 && held < 0.5 /* sum p v before the division */
                               : 0x1p9 * (double)c->n * largest < (double)FLT_MAX;
        const bool fits = small && both < HUGE_VAL; /* else the error may be Inf times 0 */
        bound[i] = !isfinite(o[i]) ? (double)NAN
                   : fits          ? error + storage_error(p->o_dtype, fabs(o[i]) + error)
                                   : HUGE_VAL;
    }
}

/* |dLSE| <= log sum p e^eps = log1p(a), never more than the largest eps; downwards the same, since sum p e^-eps is
 * at least 1 / sum p e^eps. Then l's sum, and m ln 2 + ln l in f32. */
static double log_bound(const tl_ref_row *row, const charges *c)
{
    const double sizes = fabs(row->lse) + fabs(row->top) + 6 + log((double)c->n + 1);
    const double held = held_error(row);
    if (held > 0 && !(held < 0.5 && c->n < 60000)) return HUGE_VAL;
    return fmin(log1p(c->a), c->eps) + weights_error(row, c) + 2 * held + held_floor(row, c) + vanishing(c) +
           2 * (double)TL_U_EXP * sizes * (double)tl_splits(&row->ref->problem);
}

static void fill(double *to, int32_t n, double value)
{
    for (int32_t c = 0; c < n; c++) to[c] = value;
}

void tl_ref_bound_row(const tl_ref_bound *bound, const tl_ref_row *row, const double *o, const double *abs_pv,
                      double *work, double *o_bound, double *lse_bound)
{
    const int32_t n = row->ref->problem.head_dim_v;
    charges c = {0, 0, 0, row->top};
    if (!isfinite(row->lse)) { /* NaN, or nothing seen: 0 and -Inf exactly */
        *lse_bound = isnan(row->lse) ? (double)NAN : 0;
        fill(o_bound, n, *lse_bound);
    } else if (!bound->promised || !charge_row(bound, row, work, &c)) {
        *lse_bound = HUGE_VAL;
        for (int32_t i = 0; i < n; i++) o_bound[i] = isfinite(o[i]) ? HUGE_VAL : (double)NAN;
    } else {
        const float w = tl_expm1_upper((float)(c.eps * (1 + 0x1p-22))), a = (float)(c.a * (1 + 0x1p-22));
        *lse_bound = log_bound(row, &c);
        if (c.n == 0)
            fill(o_bound, n, 0); /* a sink alone */
        else
            output_bound(bound, row, &c, fmin(1, (double)tl_half_l1(a, w) + vanishing(&c)), o, abs_pv, work, o_bound);
    }
}
