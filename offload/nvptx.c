/* Executions on NVIDIA GPUs: what the kernels run, the memory they work in, the launches. Host code; the kernels are in
 * nvptx_*.c. */
#include "backend.h"

#include <omp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>

#include "core/exp2.h"
#include "core/mask.h"
#include "core/routing.h"
#include "count.h"
#include "counters.h"
#include "nvptx.h"
#include "status.h"
#include "validate.h"

enum { WIDEST = 256, CODE_ROW = 32 }; /* most channels; codes are padded to multiples of CODE_ROW channels */

/* ------------------------------------------------------------------------------------------------ what it runs */

#define UNSUPPORTED_IF(condition, field, text)                                                                         \
    do {                                                                                                               \
        if (condition) return tl_fail(err, TLAMP_UNSUPPORTED, field, "not built for devices: " text);                  \
    } while (0)

static tlamp_status check_policy(const tlamp_policy *policy, tlamp_error *err)
{
    UNSUPPORTED_IF(policy->kind > TLAMP_POLICY_ROUTED, "policy.kind", "anything but HIGH, INT8 and ROUTED");
    UNSUPPORTED_IF(policy->pv != TLAMP_PV_AUTO, "policy.pv",
                   "P V other than AUTO, which is P in V's type, sums in f32");
    if (policy->kind == TLAMP_POLICY_HIGH) return TLAMP_OK;
    UNSUPPORTED_IF(policy->hadamard, "policy.hadamard", "rotation of queries and keys");
    return TLAMP_OK;
}

/* Who runs a problem: see docs/gpu.md. */
typedef enum { PLAIN, SHAPED, SCORED, GENERAL, DECODE } kernel_kind;

/* Keys of a tile in the kernel for so many channels; of those that share a scale in others than general ones. */
static int32_t tile_keys(const tlamp_problem *p, kernel_kind kind)
{
    const int wide = kind == GENERAL &&
                     (p->head_dim_qk > 128 || p->head_dim_v > 128 || p->policy->state == TLAMP_STATE_F16);
    const int32_t most = wide ? 32 : 64;
    return p->policy->kind == TLAMP_POLICY_HIGH || p->policy->block_n > most ? most : p->policy->block_n;
}

static int32_t tile_rows(const tlamp_problem *p)
{
    const int any = p->policy->kind == TLAMP_POLICY_HIGH || p->policy->block_m > TL_DEVICE_ROWS;
    return any ? TL_DEVICE_ROWS : p->policy->block_m;
}

/* Parts of the keys: what the plan says. A state in f16 is not joined. */
static int32_t splits_of(const tlamp_plan *plan)
{
    return plan->policy.state == TLAMP_STATE_F16 ? 1 : plan->shape.splits;
}

/* INT8 codes of the caller's in K and V. */
static int holds_codes(const tlamp_problem *p) { return p->k_dtype == TLAMP_INT8 && p->v_dtype == TLAMP_INT8; }

static int is_decoding(const tlamp_problem *p);

static tlamp_status check_problem(const tlamp_plan *plan, tlamp_error *err)
{
    const tlamp_problem *p = &plan->problem;
    static const char *const narrow = "only f16 or bf16, the same for q, k and v: others would be narrowed";
    UNSUPPORTED_IF(p->q_dtype != TLAMP_F16 && p->q_dtype != TLAMP_BF16, "q_dtype",
                   "types other than f16 and bf16, which would be narrowed");
    if (holds_codes(p)) {
        UNSUPPORTED_IF(!is_decoding(p), "k_dtype", "INT8 keys and values for more than decoding with HIGH");
        UNSUPPORTED_IF(p->varlen ? p->total_k > INT32_MAX - p->batch : p->batch > INT32_MAX / (p->max_seqlen_k + 1),
                       "batch", "2^31 scales or more");
    } else if (p->k_dtype != p->q_dtype || p->v_dtype != p->q_dtype)
        return tl_fail(err, TLAMP_UNSUPPORTED, p->k_dtype != p->q_dtype ? "k_dtype" : "v_dtype",
                       "not built for devices: %s", narrow);
    UNSUPPORTED_IF(p->head_dim_qk > WIDEST, "head_dim_qk", "head dimensions above 256");
    UNSUPPORTED_IF(p->head_dim_v > WIDEST, "head_dim_v", "head dimensions above 256");
    UNSUPPORTED_IF(p->num_policies > 1, "num_policies", "a policy per head");
    UNSUPPORTED_IF(p->page_size, "page_size", "paged caches");
    UNSUPPORTED_IF(p->num_splits > 1 && p->policy->state == TLAMP_STATE_F16, "num_splits",
                   "splits of the keys with a state in f16");
    UNSUPPORTED_IF(p->max_seqlen_q >= 1 << 24, "max_seqlen_q", "2^24 queries or more");
    UNSUPPORTED_IF(p->max_seqlen_k >= (int64_t)tile_keys(p, GENERAL) << 15, "max_seqlen_k", "2^15 key tiles or more");
    const int64_t heads = tl_max64(p->num_heads_q, 1);
    UNSUPPORTED_IF(p->batch > (1 << 30) / heads /
                                  (tl_ceil_div(p->max_seqlen_q, tile_rows(p)) * splits_of(plan) +
                                   tl_ceil_div(p->max_seqlen_k, 64) + 1),
                   "batch", "2^30 blocks or more");
    return check_policy(p->policy, err);
}

/* Rows are copied 16 bytes at a time where they can be; each: elements of 16 bytes. */
static int is_aligned(const void *data, const tlamp_strides *s, int64_t batch, int64_t seq, int64_t heads, int64_t each)
{
    return (uintptr_t)data % 16 == 0 && (batch < 2 || s->batch % each == 0) && (seq < 2 || s->seq % each == 0) &&
           (heads < 2 || s->head % each == 0);
}

static int has_scores(const tlamp_problem *p)
{
    return p->softcap > 0.f || p->has_bool_mask || p->has_bias || p->has_alibi || p->policy->state == TLAMP_STATE_F16;
}

/* Channels that the kernel for so many is made for: of those in launch_shaped, or as many as a plain problem has. */
static int32_t padded_channels(const tlamp_problem *p)
{
    const int32_t d = p->head_dim_qk > p->head_dim_v ? p->head_dim_qk : p->head_dim_v;
    const int few = !has_scores(p);
    if (d <= 128) return d <= 64 && p->policy->state != TLAMP_STATE_F16 ? 64 : d <= 96 && few ? 96 : 128;
    return d <= 192 && p->head_dim_v <= 128 && few ? 192 : 256;
}

/* ---- decoding: few queries, whose blocks are few, so that keys are parted */

/* Most queries of a sequence; blocks of eight warps that keep all processors reading, of which half do for few sets of rows, as
 * one block joins the parts of each; and most keys of a part, so that no long sequence is left to few blocks when short ones are
 * done. */
enum { DECODE_TOKENS = 16, DECODE_BLOCKS = 128, DECODE_PARTS = 64, DECODE_KEYS = 8192 };

static int32_t group_heads(const tlamp_problem *p) { return p->num_heads_k ? p->num_heads_q / p->num_heads_k : 1; }

/* Blocks that a KV head's rows in a sequence of so many tokens make. */
static int32_t row_blocks(const tlamp_problem *p, int64_t tokens)
{
    return (int32_t)tl_ceil_div(tokens * group_heads(p), TL_DECODE_ROWS);
}

/* Sets of rows that a block has, over the whole plan. */
static int64_t row_sets(const tlamp_problem *p) { return p->batch * p->num_heads_k * row_blocks(p, p->max_seqlen_q); }

/* How many parts a sequence of so many keys has at most. It knows the plan's numbers and the sequence's own length, nothing of its
 * neighbours' lengths or of the machine. Automatic: as many as make DECODE_BLOCKS blocks of the plan, up to DECODE_PARTS, or parts
 * of DECODE_KEYS keys if those are more. */
static int64_t most_parts(const tlamp_problem *p, int64_t keys)
{
    int64_t parts = p->num_splits;
    if (p->num_splits == TLAMP_SPLITS_AUTO)
        parts = row_sets(p) > TL_DECODE_JOINS
                    ? 1
                    : tl_max64(tl_min64(DECODE_BLOCKS / tl_max64(row_sets(p), 1), DECODE_PARTS),
                               tl_ceil_div(keys, DECODE_KEYS));
    return tl_clamp64(parts, 1, TL_DECODE_PARTS);
}

/* Keys of each part but the last: whole TL_DECODE_UNITs. */
static int32_t part_keys(const tlamp_problem *p, int64_t keys)
{
    return (int32_t)tl_ceil_div(tl_max64(tl_ceil_div(keys, TL_DECODE_UNIT), 1), most_parts(p, keys)) * TL_DECODE_UNIT;
}

static int is_decoding(const tlamp_problem *p)
{
    const int rows = p->max_seqlen_q <= DECODE_TOKENS && p->max_seqlen_q * group_heads(p) < 1 << 15;
    const int channels = p->head_dim_v == p->head_dim_qk && (p->head_dim_qk == 64 || p->head_dim_qk == 128);
    const int bare = !has_scores(p) && !p->has_sinks && p->window_left < 0 && p->window_right < 0;
    return p->policy->kind == TLAMP_POLICY_HIGH && rows && channels && bare && p->o_dtype == p->q_dtype &&
           p->num_splits <= TL_DECODE_PARTS && (row_sets(p) <= TL_DECODE_JOINS || p->num_splits <= 1);
}

/* With tensors that are aligned. */
static kernel_kind kind_of(const tlamp_problem *p, int32_t splits)
{
    const tlamp_policy *y = p->policy;
    const int blocks = y->block_m == TL_DEVICE_ROWS && y->block_n == TL_DEVICE_KEYS &&
                       y->quant_block_q == TL_DEVICE_ROWS && y->quant_block_k == TL_DEVICE_KEYS &&
                       y->scales == TLAMP_SCALES_BLOCK && !y->smooth_k && y->quantise == TLAMP_QUANTISE_ONCE;
    /* Scores are scaled in one step there; a product of scales must stay a normal number. With softcap their quotient's
     * eighth power, too. */
    const float cap_scale = p->softmax_scale / p->softcap;
    const int scale = p->softmax_scale > 0x1p-60f && p->softmax_scale < 0x1p60f &&
                      (!(p->softcap > 0.f) || (cap_scale > 0x1p-15f && cap_scale < 0x1p15f && p->softcap < 0x1p15f));
    const int state16 = y->state == TLAMP_STATE_F16;
    if (is_decoding(p)) return DECODE;
    if (splits > 1 || !scale || (y->kind != TLAMP_POLICY_HIGH && !blocks) || p->o_dtype != p->q_dtype ||
        p->head_dim_qk % 8 || p->head_dim_v % 8 || (state16 && padded_channels(p) > 128))
        return GENERAL;
    if (has_scores(p)) return SCORED;
    const int plain = p->head_dim_v == p->head_dim_qk && (p->head_dim_qk == 64 || p->head_dim_qk == 128) &&
                      p->window_left < 0 && p->window_right < 0 && !p->has_sinks;
    return plain ? PLAIN : SHAPED;
}

/* ------------------------------------------------------------------------------------------------ sequences */

static int takes_words(const tlamp_problem *p) { return p->policy->kind == TLAMP_POLICY_ROUTED; }

static int takes_codes(const tlamp_problem *p) { return p->policy->kind != TLAMP_POLICY_HIGH; }

/* Words of a routing row of the sequence. */
static int64_t words_in_row(const tlamp_problem *p, const tlamp_tensors *t, int64_t b)
{
    const int64_t keys = tl_sequence_lengths(p, t, b).layout_k;
    const int32_t block_n = p->policy->block_n, group = t->groups ? t->groups[b] : tl_auto_group(keys, block_n);
    return tl_ceil_div(tl_num_groups(keys, block_n, group), 64);
}

/* Sequence b, as if it came first. */
static tl_device_sequence make_sequence(const tlamp_problem *p, const tlamp_tensors *t, int64_t b, kernel_kind kind)
{
    const tl_lengths n = tl_sequence_lengths(p, t, b);
    const tl_mask_geometry g = tl_mask_make(n.seqlen_q, n.seqlen_k, p->mask != TLAMP_MASK_NONE,
                                            p->mask == TLAMP_MASK_CAUSAL_TOP_LEFT, p->window_left, p->window_right);
    const int64_t reach = g.right < 0 ? g.lk : tl_clamp64(g.diagonal + g.right + 1, -g.lq, g.lk);
    const int64_t seen = g.lq ? tl_clamp64(g.lq - 1 + reach, 0, g.lk) : 0;
    const int32_t block_n = p->policy->block_n;
    const int64_t group = takes_words(p) && t->groups ? t->groups[b] : tl_auto_group(n.layout_k, block_n);
    const int64_t tiles = tl_clamp64(group * (block_n / tile_keys(p, kind)), 1, 1 << 15); /* more are one group, too */
    return (tl_device_sequence){.q_start = n.q_start,
                                .k_start = n.k_start,
                                .batch = (int32_t)b,
                                .lq = (int32_t)g.lq,
                                .lk = (int32_t)seen,
                                .reach = (int32_t)reach,
                                .floor = (int32_t)(g.left < 0 ? -g.lq : tl_clamp64(g.diagonal - g.left, -g.lq, g.lk)),
                                .diagonal = (int32_t)(n.seqlen_k - n.seqlen_q),
                                .group_inverse = (uint32_t)tl_ceil_div(INT64_C(1) << 31, tiles)};
}

/* What comes before the sequence in tensors and tables. */
typedef struct {
    int64_t words;
    int32_t row_tiles, q_blocks, k_blocks; /* row_tiles: decoding, row blocks of all parts */
} passed;

/* Scales of the caller's for a sequence. */
static int64_t scales_of(const tl_device_call *c, const tlamp_problem *p, const tlamp_tensors *t, int64_t b)
{
    return tl_ceil_div(tl_sequence_lengths(p, t, b).layout_k, c->scale_keys);
}

static void pass(passed *so_far, const tl_device_call *c, const tlamp_problem *p, const tlamp_tensors *t,
                 const tl_device_sequence *s)
{
    so_far->words += p->varlen ? tl_ceil_div(s->lq, p->policy->block_m) * t->words_stride_row : t->words_stride_batch;
    so_far->row_tiles += s->parts ? s->row_blocks * s->parts : (int32_t)tl_ceil_div(s->lq, c->tile_rows);
    so_far->q_blocks += (int32_t)tl_ceil_div(s->lq, TL_DEVICE_ROWS);
    so_far->k_blocks += (int32_t)(holds_codes(p) ? scales_of(c, p, t, s->batch) : tl_ceil_div(s->lk, TL_DEVICE_KEYS));
}

/* Sequence b behind what has passed. */
static tl_device_sequence next_sequence(passed *so_far, const tl_device_call *c, const tlamp_problem *p,
                                        const tlamp_tensors *t, int64_t b, kernel_kind kind)
{
    tl_device_sequence s = make_sequence(p, t, b, kind);
    if (c->head_rows) { /* all of them see the same keys, those that are left in lk */
        s.lq = c->head_rows;
        s.reach = s.lk;
        s.floor = -s.lq;
    }
    if (kind == DECODE) {
        s.row_blocks = row_blocks(p, s.lq);
        s.part_keys = part_keys(p, s.lk);
        s.parts = (int32_t)tl_max64(tl_ceil_div(s.lk, s.part_keys), 1);
    }
    s.words = so_far->words;
    s.row_tiles = so_far->row_tiles;
    s.q_blocks = so_far->q_blocks;
    s.k_blocks = so_far->k_blocks;
    pass(so_far, c, p, t, &s);
    return s;
}

static int are_alike(const tlamp_problem *p, const tlamp_tensors *t)
{
    if (p->varlen || p->has_seqused_k) return 0;
    for (int64_t b = 1; b < p->batch && takes_words(p) && t->groups; b++)
        if (t->groups[b] != t->groups[0]) return 0;
    return 1;
}

/* ------------------------------------------------------------------------------------------------ device memory */

static int64_t most_q_blocks(const tlamp_problem *p)
{
    return p->varlen ? p->total_q / TL_DEVICE_ROWS + p->batch : p->batch * tl_ceil_div(p->max_seqlen_q, TL_DEVICE_ROWS);
}

static int64_t most_k_blocks(const tlamp_problem *p)
{
    return p->varlen ? p->total_k / TL_DEVICE_KEYS + p->batch : p->batch * tl_ceil_div(p->max_seqlen_k, TL_DEVICE_KEYS);
}

/* What the general kernels keep between them. */
static void lay_out(tl_device_call *c, const tlamp_problem *p, tl_arena *a)
{
    const int64_t queries = p->num_heads_q * most_q_blocks(p) * TL_DEVICE_ROWS;
    const int64_t keys = p->num_heads_k * most_k_blocks(p) * TL_DEVICE_KEYS,
                  row = tl_round_up(p->head_dim_qk, CODE_ROW);
    const int smooth = p->policy->smooth_k, scattered = p->has_bool_mask || p->has_bias,
              fly = p->policy->quantise == TLAMP_QUANTISE_FLY;
    c->sequences = tl_take_array(a, p->batch, sizeof *c->sequences);
    if (c->splits > 1) {
        const int64_t rows = p->varlen ? p->total_q : p->batch * p->max_seqlen_q,
                      parts = rows * p->num_heads_q * c->splits;
        c->part_o = tl_take_array(a, parts, sizeof(float) * (size_t)p->head_dim_v);
        c->part_m = tl_take_array(a, parts, sizeof(float));
        c->part_l = tl_take_array(a, parts, sizeof(float));
    }
    if (!takes_codes(p)) return;
    if (fly) {
        c->q_inverse = tl_take_array(a, queries, sizeof(float));
        c->k_inverse = tl_take_array(a, keys, sizeof(float));
    } else {
        c->q_codes = tl_take_array(a, queries, (size_t)row);
        c->k_codes = tl_take_array(a, keys, (size_t)row);
    }
    c->q_scale = tl_take_array(a, queries, sizeof(float));
    c->k_scale = tl_take_array(a, keys, sizeof(float));
    c->q_flags = tl_take_array(a, queries / 16, 1);
    c->k_flags = tl_take_array(a, keys / 16, 1);
    if (scattered) c->q_seen = tl_take_array(a, queries, 1);
    if (scattered) c->k_seen = tl_take_array(a, keys, 1);
    if (smooth) c->q_mean = tl_take_array(a, queries, sizeof(float));
    if (smooth) c->mean = tl_take_array(a, p->batch * p->num_heads_k, sizeof(float) * (size_t)p->head_dim_qk);
}

/* The same for plain and shaped kernels. */
static void lay_out_blocks(tl_device_call *c, const tlamp_problem *p, tl_arena *a)
{
    const int64_t q_blocks = p->num_heads_q * most_q_blocks(p), k_blocks = p->num_heads_k * most_k_blocks(p);
    c->code_row = padded_channels(p);
    c->sequences = tl_take_array(a, p->batch, sizeof *c->sequences);
    if (!takes_codes(p)) return;
    c->q_codes = tl_take_array(a, q_blocks, (size_t)c->code_row * TL_DEVICE_ROWS);
    c->k_codes = tl_take_array(a, k_blocks, (size_t)c->code_row * TL_DEVICE_KEYS);
    c->q_scale = tl_take_array(a, q_blocks, sizeof(float));
    c->k_scale = tl_take_array(a, k_blocks, sizeof(float));
    if (!p->has_bool_mask && !p->has_bias) return;
    c->q_seen = tl_take_array(a, q_blocks, TL_DEVICE_ROWS);
    c->k_seen = tl_take_array(a, k_blocks, TL_DEVICE_KEYS);
}

/* And for decoding ones. */
static void lay_out_parts(tl_device_call *c, const tlamp_problem *p, tl_arena *a)
{
    const int64_t parts = most_parts(p, p->max_seqlen_k), rows = p->max_seqlen_q * group_heads(p);
    c->part_rows = (int32_t)tl_min64(rows, TL_DECODE_ROWS);
    c->sequences = tl_take_array(a, p->batch, sizeof *c->sequences);
    if (parts == 1) return;
    const int64_t slots = row_sets(p) * parts * c->part_rows;
    c->part_o = tl_take_array(a, slots, sizeof(float) * (size_t)p->head_dim_v);
    c->part_m = tl_take_array(a, slots, sizeof(float));
    c->part_l = tl_take_array(a, slots, sizeof(float));
}

static size_t workspace_bytes(const tlamp_plan *plan)
{
    const tlamp_problem *p = &plan->problem;
    tl_device_call c = {.splits = splits_of(plan)};
    tl_arena general = {NULL, 0}, blocks = {NULL, 0}, parts = {NULL, 0};
    lay_out(&c, p, &general); /* which any kind may become, if rows are not aligned */
    if (kind_of(p, c.splits) != GENERAL) lay_out_blocks(&c, p, &blocks);
    if (is_decoding(p)) lay_out_parts(&c, p, &parts);
    const size_t more = general.used > blocks.used ? general.used : blocks.used;
    return more > parts.used ? more : parts.used;
}

static int supports(const tlamp_plan *plan, size_t *bytes)
{
    const int yes = check_problem(plan, NULL) == TLAMP_OK;
    *bytes = yes ? workspace_bytes(plan) : 0;
    return yes;
}

/* ------------------------------------------------------------------------------------------------ launches */

/* Do two scores side by side lie on a multiple of their size? */
static int are_pairs(const void *data, const tlamp_score_strides *s, size_t size)
{
    return s->k == 1 && (uintptr_t)data % (2 * size) == 0 && (s->batch | s->head | s->q) % 2 == 0;
}

/* p: the plan's problem, or that of the copy of its tensors. */
static tl_device_call make_call(const tlamp_plan *plan, const tlamp_problem *p, const tlamp_tensors *t, int32_t device)
{
    const tlamp_policy *y = p->policy;
    const int packed = p->varlen;
    tl_device_call c = {.q = t->q, .k = t->k, .v = t->v, .o = t->o, .lse = t->lse, .device = device};
    c.q_batch = packed ? 0 : p->q_stride.batch;
    c.q_head = p->q_stride.head;
    c.q_seq = p->q_stride.seq;
    c.k_batch = packed ? 0 : p->k_stride.batch;
    c.k_head = p->k_stride.head;
    c.k_seq = p->k_stride.seq;
    c.v_batch = packed ? 0 : p->v_stride.batch;
    c.v_head = p->v_stride.head;
    c.v_seq = p->v_stride.seq;
    c.o_batch = packed ? 0 : p->o_stride.batch;
    c.o_head = p->o_stride.head;
    c.o_seq = p->o_stride.seq;
    c.lse_batch = packed ? 0 : p->lse_stride.batch;
    c.lse_head = p->lse_stride.head;
    c.lse_seq = p->lse_stride.seq;
    if (takes_words(p)) c.words = t->words;
    c.words_batch = t->words_stride_batch;
    c.words_head = t->words_stride_head;
    c.words_row = t->words_stride_row;
    c.batch = (int32_t)p->batch;
    c.heads_q = p->num_heads_q;
    c.group_heads = p->num_heads_q / p->num_heads_k;
    c.causal = p->mask != TLAMP_MASK_NONE;
    c.logit_scale = p->softmax_scale * TL_LOG2E;
    c.bf16 = p->q_dtype == TLAMP_BF16;

    if (p->has_bool_mask) c.bool_mask = t->bool_mask;
    c.mask_batch = p->bool_mask_stride.batch;
    c.mask_head = p->bool_mask_stride.head;
    c.mask_q = p->bool_mask_stride.q;
    c.mask_k = p->bool_mask_stride.k;
    if (p->has_bias) c.bias = t->bias;
    c.bias_batch = p->bias_stride.batch;
    c.bias_head = p->bias_stride.head;
    c.bias_q = p->bias_stride.q;
    c.bias_k = p->bias_stride.k;
    c.bias_dtype = p->bias_dtype;
    if (p->has_bias) c.bias_pairs = are_pairs(t->bias, &p->bias_stride, p->bias_dtype == TLAMP_F32 ? 4 : 2);
    if (p->has_bool_mask) c.mask_pairs = are_pairs(t->bool_mask, &p->bool_mask_stride, 1);
    if (p->has_alibi) c.alibi = t->alibi_slopes;
    c.alibi_batch = p->alibi_batch_stride;
    if (p->has_sinks) c.sinks = t->sinks;
    c.o_dtype = p->o_dtype;
    c.d = p->head_dim_qk;
    c.dv = p->head_dim_v;
    c.int8 = takes_codes(p);
    c.tile_rows = tile_rows(p);
    c.tile_keys = tile_keys(p, GENERAL);
    c.block_m = y->block_m;
    c.quant_q = y->scales == TLAMP_SCALES_TOKEN ? 0 : y->quant_block_q;
    c.quant_k = y->scales == TLAMP_SCALES_TOKEN ? 0 : y->quant_block_k;
    c.scales_f16 = y->scales == TLAMP_SCALES_BLOCK_F16;
    if (holds_codes(p)) {
        c.k_scale = (float *)(uintptr_t)t->k_scale; /* read only: the general kernels' is theirs */
        c.v_scale = t->v_scale;
        c.scale_keys = y->scales == TLAMP_SCALES_TOKEN ? 1 : y->quant_block_k;
    }
    c.softmax_scale = p->softmax_scale;
    c.softcap = p->softcap;
    c.rows_each = packed ? 0 : (int32_t)p->max_seqlen_q;
    c.splits = splits_of(plan);
    c.split_keys = plan->shape.split_tiles * plan->shape.tile_keys;
    c.split_tile = (int32_t)tl_max64(plan->shape.tile_keys, c.tile_keys); /* one is a multiple of the other */
    return c;
}

static tlamp_status launched(int on_host, tlamp_error *err) { return on_host ? tl_not_launched(err) : TLAMP_OK; }

/* The image's architecture, asked once for each device. Threads that ask at once learn the same. */
static int32_t image_of(int32_t device)
{
    enum { DEVICES = 64 };
    static _Atomic int8_t known[DEVICES]; /* architecture + 1 */
    int32_t arch = device < DEVICES ? known[device] - 1 : -1;
    if (arch >= 0) return arch;
    int32_t *at = omp_target_alloc(sizeof *at, device);
    if (!at) return -1;
    const int failed = tl_nvptx_which_image(device, at) ||
                       omp_target_memcpy(&arch, at, sizeof arch, 0, 0, omp_get_initial_device(), device);
    omp_target_free(at, device);
    if (failed) return -1;
    if (device < DEVICES) known[device] = (int8_t)(arch + 1);
    return arch;
}

#define KERNELS_OF(name)                                                                                               \
    {                                                                                                                  \
        tl_nvptx_##name##_f16, tl_nvptx_##name##_bf16                                                                  \
    }
#define TL_TUNED(arch, d, kind, rows, keys, blocks, cache, remark)                                                     \
    [TL_ARCH_##arch][d == 128][TL_KIND_##kind] = {KERNELS_OF(kind##_d##d), TL_MAKE_FORM(rows, keys, blocks), cache},
tl_plain_kernel tl_plain_kernels[TL_ARCHS][2][TL_KINDS] = {
#include "nvptx_tuned.def"
};
#undef TL_TUNED

/* What is not tuned: for f16 and for bf16. */
typedef struct {
    const char *name;
    tl_device_launch *launch[2];
} named_launch;
#define NAMED(name)                                                                                                    \
    {                                                                                                                  \
        "tlamp_fwd_" #name "__nvptx", KERNELS_OF(name)                                                                 \
    }

/* d: padded_channels. */
static const named_launch *shaped_launch(int32_t d)
{
    static const named_launch kernels[5] = {NAMED(shaped_d64), NAMED(shaped_d96), NAMED(shaped_d128),
                                            NAMED(shaped_d192), NAMED(shaped_d256)};
    return &kernels[d == 64 ? 0 : d == 96 ? 1 : d == 128 ? 2 : d == 192 ? 3 : 4];
}

static const named_launch *scored_launch(int32_t d, int state16)
{
    static const named_launch kernels[4] = {NAMED(scored_d64), NAMED(scored_d128), NAMED(scored_d256),
                                            NAMED(scored_state16)};
    return &kernels[state16 ? 3 : d == 64 ? 0 : d == 128 ? 1 : 2];
}

/* d: the larger of d_qk and d_v. */
static const named_launch *general_launch(int32_t d, int state16)
{
    static const named_launch kernels[4] = {NAMED(general_d64), NAMED(general_d128), NAMED(general_d256),
                                            NAMED(state16)};
    return &kernels[state16 ? 3 : d <= 64 ? 0 : d <= 128 ? 1 : 2];
}

static const char *kernel_name(const tlamp_plan *plan)
{
    static const char *const plain[2][2] = {{"tlamp_fwd_high_d64__nvptx", "tlamp_fwd_high_d128__nvptx"},
                                            {"tlamp_fwd_routed_d64__nvptx", "tlamp_fwd_routed_d128__nvptx"}};
    static const char *const decode[2][2] = {{"tlamp_fwd_decode_d64__nvptx", "tlamp_fwd_decode_d128__nvptx"},
                                             {"tlamp_fwd_codes_d64__nvptx", "tlamp_fwd_codes_d128__nvptx"}};
    const tlamp_problem *p = &plan->problem;
    const int state16 = p->policy->state == TLAMP_STATE_F16;
    const int32_t d = p->head_dim_qk > p->head_dim_v ? p->head_dim_qk : p->head_dim_v;
    switch (kind_of(p, splits_of(plan))) {
    case PLAIN: return plain[takes_codes(p)][d == 128];
    case DECODE: return decode[holds_codes(p)][d == 128];
    case SHAPED: return shaped_launch(padded_channels(p))->name;
    case SCORED: return scored_launch(padded_channels(p), state16)->name;
    default: return general_launch(d, state16)->name;
    }
}

/* Heads whose K and V take so much: most of the cache. */
static void set_heads_apart(tl_device_call *c, int32_t mib)
{
    const int64_t heads = c->sequences ? c->heads_q : (int64_t)c->batch * c->heads_q;
    const int64_t keys = tl_max64(c->sequences ? (int64_t)c->all_k_blocks * TL_DEVICE_KEYS : c->lk, 1);
    const int64_t apart = ((int64_t)mib << 20) / (keys * (c->d + c->dv) * 2) * c->group_heads;
    c->heads_apart = (int32_t)tl_clamp64(apart, 1, heads);
}

static tlamp_status launch_plain(tl_device_call *c, int int8, tlamp_error *err)
{
    if (c->all_row_tiles == 0) return TLAMP_OK;
    const int32_t arch = image_of(c->device);
    if (arch < 0) return launched(1, err);
    int8 &= c->all_k_blocks > 0;
    const tl_plain_kernel *kernel = &tl_plain_kernels[arch][c->d == 128][int8 ? TL_KIND_routed : TL_KIND_high];
    set_heads_apart(c, kernel->cache_mib);
    c->form = kernel->form;
    int on_host = 0;
    if (int8) on_host = c->bf16 ? tl_nvptx_quantise_plain_bf16(c) : tl_nvptx_quantise_plain_f16(c);
    return launched(on_host | kernel->launch[c->bf16](c), err);
}

/* Problems of kind SHAPED, and SCORED. */
static tlamp_status launch_shaped(tl_device_call *c, int scored, int state16, tlamp_error *err)
{
    if (c->all_row_tiles == 0) return TLAMP_OK;
    const int32_t arch = image_of(c->device), d = c->code_row;
    if (arch < 0) return launched(1, err);
    c->form = arch == TL_ARCH_80 ? TL_SHAPED_FORM(80, d) : TL_SHAPED_FORM(90, d);
    set_heads_apart(c, 32);
    if (c->bias || c->bool_mask) c->causal = 1; /* so that heads alternate: often they share what is read of these */
    if (c->softcap > 0.f) {
        c->logit_scale = c->softmax_scale / c->softcap;
        c->cap_inverse = c->softcap / c->softmax_scale;
    } else if (c->alibi || c->bias)
        c->logit_scale = c->softmax_scale;
    int on_host = 0;
    if (c->all_k_blocks == 0) c->q_codes = NULL;
    if (c->q_codes && c->q_seen) on_host |= tl_nvptx_survey(c);
    if (c->q_codes) on_host |= c->bf16 ? tl_nvptx_quantise_plain_bf16(c) : tl_nvptx_quantise_plain_f16(c);
    c->int8 = c->q_codes != NULL;
    const named_launch *kernel = scored ? scored_launch(c->code_row, state16) : shaped_launch(c->code_row);
    return launched(on_host | kernel->launch[c->bf16](c), err);
}

static tlamp_status launch_general(const tl_device_call *c, int state16, tlamp_error *err)
{
    const int32_t d = c->d > c->dv ? c->d : c->dv;
    int on_host = 0;
    if (c->all_row_tiles == 0) return TLAMP_OK;
    if (c->int8 && c->q_seen) on_host |= tl_nvptx_survey(c);
    if (c->int8 && c->mean) on_host |= c->bf16 ? tl_nvptx_mean_bf16(c) : tl_nvptx_mean_f16(c);
    if (c->int8) on_host |= c->bf16 ? tl_nvptx_quantise_bf16(c) : tl_nvptx_quantise_f16(c);
    return launched(on_host | general_launch(d, state16)->launch[c->bf16](c), err);
}

/* Which of TL_DECODE_LAUNCHES launches at once this is: others wait for one to end. */
static _Atomic uint32_t turns_taken; /* bits */

static int32_t take_turn(void)
{
    for (;;) {
        uint32_t taken = turns_taken;
        for (int32_t turn = 0; turn < TL_DECODE_LAUNCHES; turn++)
            if (!(taken >> turn & 1u) &&
                atomic_compare_exchange_strong(&turns_taken, &taken, taken | UINT32_C(1) << turn))
                return turn;
        thrd_yield();
    }
}

static void give_turn(int32_t turn) { atomic_fetch_and(&turns_taken, ~(UINT32_C(1) << turn)); }

/* Few sets of rows make few blocks, one for each processor, of many warps; of more sets, each processor holds several blocks. On
 * 8.x those fit better in any case. */
static tlamp_status launch_decode(tl_device_call *c, const tlamp_problem *p, tlamp_error *err)
{
    static tl_device_launch *const kernels[2][2][2][2] = {
        {{KERNELS_OF(decode4_d64), KERNELS_OF(decode4_d128)}, {KERNELS_OF(decode8_d64), KERNELS_OF(decode8_d128)}},
        {{KERNELS_OF(codes4_d64), KERNELS_OF(codes4_d128)}, {KERNELS_OF(codes8_d64), KERNELS_OF(codes8_d128)}},
    };
    if (c->all_row_tiles == 0) return TLAMP_OK;
    const int32_t arch = image_of(c->device);
    if (arch < 0) return launched(1, err);
    const int few = arch == TL_ARCH_90 && row_sets(p) <= DECODE_BLOCKS;
    c->logit_scale = c->softmax_scale;
    c->kv_heads = p->num_heads_k;
    c->row_blocks = row_blocks(p, p->max_seqlen_q);
    c->kv_heads_inverse = TL_INVERSE(c->kv_heads);
    if (!c->sequences) {
        c->units_inverse = TL_INVERSE(c->row_blocks * c->parts);
        c->row_blocks_inverse = TL_INVERSE(c->row_blocks);
        c->scales_each = c->all_k_blocks / c->batch;
    }
    c->turn = take_turn();
    const int on_host = kernels[holds_codes(p)][few][c->d == 128][c->bf16](c);
    give_turn(c->turn);
    return launched(on_host, err);
}

/* Fills what follows from the lengths, and the table of sequences on the device where they differ. */
static tlamp_status set_sequences(tl_device_call *c, const tlamp_problem *p, const tlamp_tensors *t, kernel_kind kind,
                                  tlamp_error *err)
{
    passed all = {0, 0, 0, 0};
    tlamp_status status = TLAMP_OK;
    const int alike = are_alike(p, t);
    tl_device_sequence *table = alike ? NULL : malloc(sizeof *table * (size_t)p->batch);
    if (!alike && !table) return tl_fail(err, TLAMP_OUT_OF_MEMORY, "batch", "no memory for a table of sequences");
    for (int64_t b = 0; b < (alike ? 1 : p->batch); b++) {
        const tl_device_sequence s = next_sequence(&all, c, p, t, b, kind);
        if (table) table[b] = s;
        c->lq = s.lq;
        c->lk = s.lk;
        c->reach = s.reach;
        c->floor = s.floor;
        c->diagonal = s.diagonal;
        c->group_inverse = s.group_inverse;
        c->parts = s.parts;
        c->part_keys = s.part_keys;
    }
    const int32_t times = alike ? (int32_t)p->batch : 1;
    c->all_row_tiles = all.row_tiles * times;
    c->all_q_blocks = all.q_blocks * times;
    c->all_k_blocks = all.k_blocks * times;
    if (table && omp_target_memcpy((void *)(uintptr_t)c->sequences, table, sizeof *table * (size_t)p->batch, 0, 0,
                                   c->device, omp_get_initial_device()))
        status = tl_copy_failed(err);
    if (!table) c->sequences = NULL;
    free(table);
    return status;
}

/* One query each, whose heads read the same keys: the heads of a group become the rows of one block, as if they were tokens, so
 * that K and V are read once for all of them. Where keys are not split, only if no scale is shared by rows. */
static int are_heads_rows(const tlamp_problem *p, int32_t splits)
{
    const int32_t group = group_heads(p);
    const int same_scores = !p->has_bool_mask && !p->has_bias && !p->has_alibi && !p->has_sinks;
    return !p->varlen && p->max_seqlen_q == 1 && group > 1 && group <= TL_DEVICE_ROWS && p->window_left < 0 &&
           same_scores && (splits > 1 || !takes_codes(p));
}

static void make_heads_rows(tl_device_call *c)
{
    const int32_t group = c->group_heads;
    c->head_rows = c->rows_each = group;
    c->heads_q /= group;
    c->group_heads = 1;
    c->q_seq = c->q_head;
    c->q_head *= group;
    c->o_seq = c->o_head;
    c->o_head *= group;
    c->lse_seq = c->lse_head;
    c->lse_head *= group;
    c->causal = 0;
    c->tile_rows = c->block_m = TL_DEVICE_ROWS; /* one routing row */
    c->quant_q = 0;                             /* a block of one query is that query */
}

/* Adds the tokens that are left out of INT8. */
static tlamp_status count_nonfinite(const tl_device_call *c, int64_t *tokens, tlamp_error *err)
{
    const int64_t blocks = (int64_t)c->heads_q * c->all_q_blocks +
                           (int64_t)c->heads_q / c->group_heads * c->all_k_blocks;
    const int64_t queries = (int64_t)c->heads_q * c->all_q_blocks;
    const int fly = c->q_inverse != NULL; /* nobody counts keys then */
    const size_t bytes = (size_t)blocks * sizeof(int32_t);
    if (blocks == 0) return TLAMP_OK;
    int32_t *here = malloc(bytes), *there = here ? omp_target_alloc(bytes, c->device) : NULL;
    tlamp_status s = there ? TLAMP_OK : tl_no_device_memory(bytes, err);
    if (!s) s = launched(c->bf16 ? tl_nvptx_nonfinite_bf16(c, there) : tl_nvptx_nonfinite_f16(c, there), err);
    if (!s && omp_target_memcpy(here, there, bytes, 0, 0, omp_get_initial_device(), c->device)) s = tl_copy_failed(err);
    for (int64_t i = 0; i < (fly ? queries : blocks) && !s; i++) *tokens += here[i];
    if (there) omp_target_free(there, c->device);
    free(here);
    return s;
}

/* Are all rows aligned? For a call of kind GENERAL, which of q, k and v are not goes into the call. */
static int are_aligned(tl_device_call *c, const tlamp_problem *p)
{
    const int64_t batches = p->varlen ? 1 : p->batch, lk = p->varlen ? p->total_k : p->max_seqlen_k;
    const int64_t lq = p->varlen ? p->total_q : c->rows_each, each = holds_codes(p) ? 16 : 8;
    const tlamp_strides q = {c->q_batch, c->q_seq, c->q_head, 1}, k = {c->k_batch, c->k_seq, c->k_head, 1},
                        v = {c->v_batch, c->v_seq, c->v_head, 1}, o = {c->o_batch, c->o_seq, c->o_head, 1};
    c->unaligned = !is_aligned(c->q, &q, batches, lq, c->heads_q, 8) |
                   !is_aligned(c->k, &k, batches, lk, p->num_heads_k, each) << 1 |
                   !is_aligned(c->v, &v, batches, lk, p->num_heads_k, each) << 2;
    return !c->unaligned && is_aligned(c->o, &o, batches, lq, c->heads_q, 8);
}

/* On device memory; work: the device's workspace. */
static tlamp_status run(tl_device_call *c, const tlamp_problem *p, const tlamp_tensors *t, void *work, tlamp_error *err)
{
    kernel_kind kind = kind_of(p, c->splits);
    if (kind != DECODE || !are_aligned(c, p)) {
        UNSUPPORTED_IF(holds_codes(p), "k_stride", "INT8 keys and values that are not aligned to 16 bytes");
        if (are_heads_rows(p, c->splits)) make_heads_rows(c);
        if (!are_aligned(c, p)) kind = GENERAL;
    }
    for (int64_t b = 0; b < p->batch && takes_words(p); b++)
        if (words_in_row(p, t, b) > 1) kind = GENERAL;
    tl_arena a = {work, 0};
    if (kind == DECODE)
        lay_out_parts(c, p, &a);
    else if (kind != GENERAL)
        lay_out_blocks(c, p, &a);
    else
        lay_out(c, p, &a);
    tlamp_status s = set_sequences(c, p, t, kind, err);
    if (s) return s;
    const int state16 = p->policy->state == TLAMP_STATE_F16;
    switch (kind) {
    case DECODE: s = launch_decode(c, p, err); break;
    case PLAIN: s = launch_plain(c, takes_codes(p), err); break;
    case GENERAL: s = launch_general(c, state16, err); break;
    default: s = launch_shaped(c, kind == SCORED, state16, err); break;
    }
    return s || !t->counters || !takes_codes(p) ? s : count_nonfinite(c, &t->counters->nonfinite_tokens, err);
}

/* Is there anything that the workspace would hold? */
static int needs_workspace(const tlamp_plan *plan, const tlamp_tensors *t)
{
    const tlamp_problem *p = &plan->problem;
    const kernel_kind kind = kind_of(p, splits_of(plan));
    if (takes_codes(p) || splits_of(plan) > 1 || !are_alike(p, t)) return 1;
    return kind == DECODE ? most_parts(p, p->max_seqlen_k) > 1 : kind == GENERAL;
}

/* Device memory of so many bytes: the caller's where there is some. */
static tlamp_status run_device_memory(const tlamp_plan *plan, const tlamp_tensors *t, int32_t device, void *workspace,
                                      size_t bytes, tlamp_error *err)
{
    const size_t need = workspace_bytes(plan);
    void *own = NULL;
    if (bytes < need) workspace = NULL;
    tl_device_call c = make_call(plan, &plan->problem, t, device);
    if (!workspace && needs_workspace(plan, t)) {
        own = workspace = omp_target_alloc(need, device);
        if (!own) return tl_no_device_memory(need, err);
    }
    const tlamp_status s = run(&c, &plan->problem, t, workspace, err);
    if (own) omp_target_free(own, device);
    return s;
}

/* ------------------------------------------------------------------------------------------------ host memory */

/* A tensor of the caller's and its dense copy, of which a part or all travels. */
typedef struct {
    const void *strided;
    int64_t extent[4], stride[4];
    size_t element;
} view;

static int64_t count_of(const view *x) { return x->extent[0] * x->extent[1] * x->extent[2] * x->extent[3]; }

/* Strides of the dense copy: 0 where the tensor is broadcast. */
static void dense_strides(const view *x, int64_t stride[4])
{
    int64_t step = 1;
    for (int i = 3; i >= 0; i--) {
        stride[i] = x->stride[i] ? step : 0;
        step *= x->stride[i] ? x->extent[i] : 1;
    }
}

/* Elements that all have: extents of broadcast dimensions count as 1. */
static view without_broadcast(view x)
{
    for (int i = 0; i < 4; i++)
        if (x.stride[i] == 0) x.extent[i] = 1;
    return x;
}

/* Rows of the strided tensor into the dense one (whose strides are given), or back. */
static void move(const view *x, const int64_t dense[4], void *copy, int back)
{
    const int whole = x->stride[3] == 1 && dense[3] == 1;
    const size_t piece = x->element * (size_t)(whole ? x->extent[3] : 1);
    for (int64_t a = 0; a < x->extent[0]; a++)
        for (int64_t b = 0; b < x->extent[1]; b++)
            for (int64_t c = 0; c < x->extent[2]; c++)
                for (int64_t d = 0; d < (whole ? 1 : x->extent[3]); d++) {
                    const int64_t from = a * x->stride[0] + b * x->stride[1] + c * x->stride[2] + d * x->stride[3];
                    const int64_t to = a * dense[0] + b * dense[1] + c * dense[2] + d * dense[3];
                    unsigned char *there = (unsigned char *)(uintptr_t)x->strided + from * (int64_t)x->element;
                    unsigned char *here = (unsigned char *)copy + to * (int64_t)x->element;
                    memcpy(back ? there : here, back ? here : there, piece);
                }
}

/* Where everything lies in the one piece of memory that travels, as offsets. */
typedef struct {
    view q, k, v, words, mask, bias, alibi, sinks, o, lse;
    size_t q_at, k_at, v_at, words_at, mask_at, bias_at, alibi_at, sinks_at, o_at, lse_at, bytes;
    int64_t words_row; /* most words of a routing row */
} staging;

static size_t place(const view *x, tl_arena *a)
{
    const size_t at = a->used;
    (void)tl_take_array(a, x->strided ? count_of(x) : 0, x->element);
    return at;
}

static size_t size_of(tlamp_dtype dtype) { return dtype == TLAMP_F32 ? 4 : 2; }

static view rows_view(const void *data, const tlamp_strides *s, int64_t batch, int64_t heads, int64_t rows, int64_t d,
                      tlamp_dtype dtype)
{
    return (view){data, {batch, heads, rows, d}, {s->batch, s->head, s->seq, 1}, size_of(dtype)};
}

static view scores_view(const void *data, const tlamp_score_strides *s, const tlamp_problem *p, size_t element)
{
    const view x = {
        data, {p->batch, p->num_heads_q, p->max_seqlen_q, p->max_seqlen_k}, {s->batch, s->head, s->q, s->k}, element};
    return without_broadcast(x);
}

static staging lay_out_staging(const tlamp_problem *p, const tlamp_tensors *t)
{
    staging s = {.words_row = 1};
    const int64_t batch = p->varlen ? 1 : p->batch;
    const int64_t lq = p->varlen ? t->cu_seqlens_q[p->batch] : p->max_seqlen_q;
    const int64_t lk = p->varlen ? t->cu_seqlens_k[p->batch] : p->max_seqlen_k;
    int64_t routing_rows = 0;
    for (int64_t b = 0; b < p->batch && takes_words(p); b++) {
        routing_rows += tl_ceil_div(tl_sequence_lengths(p, t, b).seqlen_q, p->policy->block_m);
        s.words_row = tl_max64(s.words_row, words_in_row(p, t, b));
    }
    s.q = rows_view(t->q, &p->q_stride, batch, p->num_heads_q, lq, p->head_dim_qk, p->q_dtype);
    s.k = rows_view(t->k, &p->k_stride, batch, p->num_heads_k, lk, p->head_dim_qk, p->k_dtype);
    s.v = rows_view(t->v, &p->v_stride, batch, p->num_heads_k, lk, p->head_dim_v, p->v_dtype);
    s.o = rows_view(t->o, &p->o_stride, batch, p->num_heads_q, lq, p->head_dim_v, p->o_dtype);
    const tlamp_lse_strides *l = &p->lse_stride;
    s.lse = (view){t->lse, {batch, p->num_heads_q, lq, 1}, {l->batch, l->head, l->seq, 1}, sizeof(float)};
    if (takes_words(p)) /* the copy is [KV head][routing row of all sequences][word] */
        s.words = (view){t->words, {1, p->num_heads_k, routing_rows, s.words_row}, {1, 1, 1, 1}, sizeof(uint64_t)};
    if (p->has_bool_mask) s.mask = scores_view(t->bool_mask, &p->bool_mask_stride, p, 1);
    if (p->has_bias) s.bias = scores_view(t->bias, &p->bias_stride, p, size_of(p->bias_dtype));
    if (p->has_alibi)
        s.alibi = without_broadcast(
            (view){t->alibi_slopes, {1, 1, p->batch, p->num_heads_q}, {1, 1, p->alibi_batch_stride, 1}, sizeof(float)});
    if (p->has_sinks) s.sinks = (view){t->sinks, {1, 1, 1, p->num_heads_q}, {1, 1, 1, 1}, sizeof(float)};

    tl_arena a = {NULL, 0};
    s.q_at = place(&s.q, &a);
    s.k_at = place(&s.k, &a);
    s.v_at = place(&s.v, &a);
    s.words_at = place(&s.words, &a);
    s.mask_at = place(&s.mask, &a);
    s.bias_at = place(&s.bias, &a);
    s.alibi_at = place(&s.alibi, &a);
    s.sinks_at = place(&s.sinks, &a);
    s.o_at = place(&s.o, &a); /* outputs last: only they come back */
    s.lse_at = place(&s.lse, &a);
    s.bytes = a.used;
    return s;
}

static void move_all(const view *x, void *copy, int back)
{
    int64_t dense[4];
    if (!x->strided) return;
    view whole = *x;
    for (int i = 0; i < 4; i++) whole.stride[i] = 1;
    dense_strides(&whole, dense);
    move(x, dense, copy, back);
}

/* Scores of sequence after sequence, each within its own lengths: nothing else need exist. */
static void gather_scores(const view *x, const tlamp_problem *p, const tlamp_tensors *t, void *copy)
{
    int64_t dense[4];
    if (!x->strided) return;
    dense_strides(x, dense);
    for (int64_t b = 0; b < p->batch; b++) {
        const tl_lengths n = tl_sequence_lengths(p, t, b);
        view one = *x;
        one.strided = (const unsigned char *)x->strided + b * x->stride[0] * (int64_t)x->element;
        one.extent[0] = 1;
        one.extent[2] = tl_min64(one.extent[2], n.seqlen_q);
        one.extent[3] = tl_min64(one.extent[3], n.seqlen_k);
        move(&one, dense, (unsigned char *)copy + b * dense[0] * (int64_t)x->element, 0);
    }
}

static void gather_words(const staging *s, const tlamp_problem *p, const tlamp_tensors *t, uint64_t *copy)
{
    const int64_t dense[4] = {0, s->words.extent[2] * s->words_row, s->words_row, 1};
    int64_t before = 0;
    for (int64_t b = 0; b < p->batch && s->words.strided; b++) {
        const int64_t rows = tl_ceil_div(tl_sequence_lengths(p, t, b).seqlen_q, p->policy->block_m);
        const view one = {t->words + (p->varlen ? before * t->words_stride_row : b * t->words_stride_batch),
                          {1, p->num_heads_k, rows, words_in_row(p, t, b)},
                          {0, t->words_stride_head, t->words_stride_row, 1},
                          sizeof(uint64_t)};
        move(&one, dense, copy + before * s->words_row, 0);
        before += rows;
    }
}

static void gather_all(const staging *s, const tlamp_problem *p, const tlamp_tensors *t, unsigned char *to)
{
    move_all(&s->q, to + s->q_at, 0);
    move_all(&s->k, to + s->k_at, 0);
    move_all(&s->v, to + s->v_at, 0);
    gather_words(s, p, t, (uint64_t *)(void *)(to + s->words_at));
    gather_scores(&s->mask, p, t, to + s->mask_at);
    gather_scores(&s->bias, p, t, to + s->bias_at);
    move_all(&s->alibi, to + s->alibi_at, 0);
    move_all(&s->sinks, to + s->sinks_at, 0);
}

/* The problem and tensors of the copy on the device. */
static void describe_copy(tlamp_problem *p, tlamp_tensors *t, const staging *s, unsigned char *at)
{
    const int64_t rows_q = s->q.extent[2], rows_k = s->k.extent[2], hq = p->num_heads_q, hk = p->num_heads_k;
    const int64_t d = p->head_dim_qk, dv = p->head_dim_v;
    int64_t dense[4];
    t->q = at + s->q_at;
    t->k = at + s->k_at;
    t->v = at + s->v_at;
    t->o = at + s->o_at;
    t->lse = t->lse ? (float *)(void *)(at + s->lse_at) : NULL;
    p->q_stride = (tlamp_strides){hq * rows_q * d, d, rows_q * d, 1};
    p->k_stride = (tlamp_strides){hk * rows_k * d, d, rows_k * d, 1};
    p->v_stride = (tlamp_strides){hk * rows_k * dv, dv, rows_k * dv, 1};
    p->o_stride = (tlamp_strides){hq * rows_q * dv, dv, rows_q * dv, 1};
    p->lse_stride = (tlamp_lse_strides){hq * rows_q, rows_q, 1};
    if (takes_words(p)) {
        t->words = (const uint64_t *)(const void *)(at + s->words_at);
        t->words_stride_row = s->words_row;
        t->words_stride_head = s->words.extent[2] * s->words_row;
        t->words_stride_batch = tl_ceil_div(p->max_seqlen_q, p->policy->block_m) * s->words_row;
    }
    if (p->has_bool_mask) {
        dense_strides(&s->mask, dense);
        t->bool_mask = at + s->mask_at;
        p->bool_mask_stride = (tlamp_score_strides){dense[0], dense[1], dense[2], dense[3]};
    }
    if (p->has_bias) {
        dense_strides(&s->bias, dense);
        t->bias = at + s->bias_at;
        p->bias_stride = (tlamp_score_strides){dense[0], dense[1], dense[2], dense[3]};
    }
    if (p->has_alibi) t->alibi_slopes = (const float *)(const void *)(at + s->alibi_at);
    if (p->alibi_batch_stride) p->alibi_batch_stride = hq;
    if (p->has_sinks) t->sinks = (const float *)(const void *)(at + s->sinks_at);
}

static tlamp_status run_host_memory(const tlamp_plan *plan, const tlamp_tensors *tensors, int32_t device,
                                    const tlamp_allocator *memory, tlamp_error *err)
{
    const staging s = lay_out_staging(&plan->problem, tensors);
    const size_t work = tl_add_size(s.bytes, 64), bytes = tl_add_size(work, workspace_bytes(plan));
    const int host = omp_get_initial_device();
    unsigned char *here = memory->alloc(memory->context, s.bytes, TLAMP_WORKSPACE_ALIGN);
    unsigned char *there = here ? omp_target_alloc(bytes, device) : NULL;
    tlamp_status status = TLAMP_OK;
    if (!there) {
        status = tl_no_device_memory(bytes, err);
    } else {
        tlamp_problem p = plan->problem;
        tlamp_tensors t = *tensors;
        describe_copy(&p, &t, &s, there);
        gather_all(&s, &plan->problem, tensors, here);
        int failed = s.o_at && omp_target_memcpy(there, here, s.o_at, 0, 0, device, host);
        tl_device_call c = make_call(plan, &p, &t, device);
        if (!failed) status = run(&c, &p, &t, there + work / 64 * 64, err);
        if (!failed && !status) failed = omp_target_memcpy(here, there, s.bytes - s.o_at, s.o_at, s.o_at, host, device);
        if (failed) status = tl_copy_failed(err);
        if (!status) {
            move_all(&s.o, here + s.o_at, 1);
            move_all(&s.lse, here + s.lse_at, 1);
        }
    }
    if (there) omp_target_free(there, device);
    if (here) memory->free(memory->context, here);
    return status;
}

static tlamp_status execute(const tlamp_plan *plan, const tlamp_tensors *tensors, const tlamp_exec *exec,
                            void *workspace, size_t bytes, tlamp_error *err)
{
    const tlamp_problem *p = &plan->problem;
    tlamp_counters counters = {.struct_size = sizeof counters};
    tlamp_tensors t = *tensors;
    tlamp_status s = check_problem(plan, err);
    if (s) return s;
    UNSUPPORTED_IF(holds_codes(p) && exec->memory != TLAMP_MEMORY_DEVICE, "memory",
                   "INT8 keys and values in the host's memory");
    if (t.counters) {
        t.counters = &counters;
        s = tl_count_geometry(&counters, plan, tensors, exec, err);
        if (s) return s;
    }
    const int64_t rows = p->batch == 0 ? 0 : p->varlen ? t.cu_seqlens_q[p->batch] : p->max_seqlen_q;
    const tlamp_allocator memory = tl_allocator(&exec->allocator);
    if (rows == 0 || p->num_heads_q == 0)
        s = TLAMP_OK;
    else if (exec->memory == TLAMP_MEMORY_DEVICE)
        s = run_device_memory(plan, &t, exec->device, workspace, bytes, err);
    else
        s = run_host_memory(plan, &t, exec->device, &memory, err);
    if (!s && tensors->counters) tl_give_counters(tensors->counters, &counters);
    return s;
}

extern const tl_backend tl_nvptx_backend;
const tl_backend tl_nvptx_backend = {"nvptx", supports, kernel_name, execute};
