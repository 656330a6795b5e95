#include "counters.h"

#include <string.h>

/* Where a routing row's INT8 tiles are: by its words, or the same answer for all. */
typedef struct {
    const uint64_t *words;
    int all;
    int64_t group_keys;
} route_map;

static int is_int8(const route_map *r, int64_t group) { return r->words ? tl_word_bit(r->words, group) : r->all; }

/* Keys of [begin, end) whose group is INT8. */
static int64_t int8_keys(const route_map *r, int64_t begin, int64_t end)
{
    if (!r->words) return r->all ? end - begin : 0;
    int64_t keys = 0;
    for (int64_t g = begin / r->group_keys; g * r->group_keys < end; g++)
        if (is_int8(r, g)) keys += tl_min64(end, (g + 1) * r->group_keys) - tl_max64(begin, g * r->group_keys);
    return keys;
}

/* One routing row [first, last] of one KV head, whose words G query heads share. */
static void count_row(const tl_call *call, const tl_sequence *seq, const route_map *r, int64_t first, int64_t last,
                      tlamp_counters *n)
{
    const int64_t begin = tl_key_begin(&seq->mask, first), end = tl_key_end(&seq->mask, last);
    const int64_t heads = call->shape.group_heads, block_n = call->policy->block_n;
    if (begin >= end) return;
    for (int64_t g = begin / r->group_keys; g * r->group_keys < end; g++) {
        n->groups++;
        n->groups_int8 += is_int8(r, g);
    }
    for (int64_t tile = begin / block_n; tile * block_n < end; tile++) {
        n->tiles += heads;
        n->tiles_int8 += is_int8(r, tile * block_n / r->group_keys) ? heads : 0;
    }
    for (int64_t row = first; row <= last; row++) {
        const int64_t low = tl_key_begin(&seq->mask, row), high = tl_key_end(&seq->mask, row);
        if (low >= high) continue;
        n->cells += heads * (high - low);
        n->cells_int8 += heads * int8_keys(r, low, high);
    }
}

void tl_count_sequence(const tl_call *call, const tl_sequence *seq, tlamp_counters *counters)
{
    const int64_t block_m = call->policy->block_m;
    for (int32_t head = 0; head < call->shape.heads_k; head++)
        for (int64_t m = 0; m * block_m < seq->lq; m++) {
            route_map r = {NULL, call->policy->kind == TLAMP_POLICY_INT8, (int64_t)seq->group * call->policy->block_n};
            if (seq->words) r.words = seq->words + head * call->words_head + m * call->words_row;
            count_row(call, seq, &r, m * block_m, tl_min64((m + 1) * block_m, seq->lq) - 1, counters);
        }
}

void tl_count_worker(tlamp_counters *n, const tl_worker_counters *w)
{
    n->nonfinite_tokens += w->nonfinite_tokens;
    n->sub_blocks += w->lamp[TL_COUNT_SUB_BLOCKS];
    n->sub_blocks_recomputed += w->lamp[TL_COUNT_RECOMPUTED];
    n->sub_blocks_executed += w->lamp[TL_COUNT_EXECUTED];
    n->forced += w->lamp[TL_COUNT_FORCED];
    n->stage_one += w->lamp[TL_COUNT_STAGE_ONE];
    n->stage_two += w->lamp[TL_COUNT_STAGE_TWO];
    n->saturated_logits += w->lamp[TL_COUNT_SATURATED];
    for (int i = 0; i < 33; i++) {
        n->histogram[i] += w->lamp[TL_COUNT_HISTOGRAM + i];
        n->tiles_recomputed[i < 2 ? i : 2] += w->lamp[TL_COUNT_HISTOGRAM + i];
    }
    n->largest_logit = tl_max(w->largest_logit, n->largest_logit);
}

void tl_give_counters(tlamp_counters *to, const tlamp_counters *counters)
{
    const size_t given = to->struct_size;
    memcpy(to, counters, given < sizeof *counters ? given : sizeof *counters);
    to->struct_size = given;
}
