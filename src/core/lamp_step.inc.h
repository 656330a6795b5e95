/* LampAttention's step of the tile loop (ALGORITHMS B3): one row block against one key tile, where cheap logits are computed
 * first and risky sub-blocks again. The decisions are core/lamp.h's; src/reference/lamp.h states the arithmetic, which this
 * must reproduce bit for bit. Included by core/tile_loop.inc.h where TL_LAMP is 1. Logits are natural here, not log2: (7)
 * compares with |mu| delta.
 *
 * Beside the loop's own words it needs
 *   tl_lamp_rule(x)                               the parameters below
 *   tl_sub_legal(x, span, rb)                     mask of the sub-blocks of which some row sees some key
 *   tl_sub_logits(x, s, span, rb, sub, level)     Y of a sub-block, final but for being cheap; -Inf where unseen
 *   tl_sub_max(x, s, rb, sub, top)                each row's largest; -Inf: none
 *   tl_sub_exp(x, s, rb, sub, level, ref)         Y becomes E = exp(Y - ref), 0 where unseen
 *   tl_sub_sums(x, s, rb, sub, s1, s2)            sum E and sum E^2 of each row, rising keys
 *   tl_sub_shrink(x, s, rb, sub, level, factor)   E *= factor, rounded in its own format
 *   tl_tile_sums(x, s, rb, sum)                   sum E over the tile, rising keys
 *   tl_lamp_sink(x, sink)                         a sink as the running maximum holds it
 *   tl_lamp_count(x, legal)                       counts what the final logits of the tile's sub-blocks showed
 */
#include "lamp.h"

/* The tile in hand. Arrays over sub-blocks as core/lamp.h has them. */
typedef struct {
    uint32_t legal;
    int32_t subs, rows;
    int32_t level[TL_LAMP_SUBS];
    float top[TL_LAMP_SUBS * TL_LAMP_ROWS];
    float muhat[TL_LAMP_ROWS], lambda[TL_LAMP_ROWS], alpha[TL_LAMP_ROWS];
} tl_lamp_tile;

TL_INLINE float tl_exp_natural(float x) { return tl_exp2(x * TL_LOG2E); }

TL_INLINE int32_t tl_set_size(uint32_t set)
{
    int32_t n = 0;
    for (; set; set &= set - 1u) n++;
    return n;
}

TL_INLINE void tl_lamp_start(const tl_ctx *x, tl_rows *row)
{
    for (int r = 0; r < TL_ROWS; r++) {
        const float sink = row->m[r];
        if (sink == TL_NEVER) continue;
        row->m[r] = tl_lamp_sink(x, sink);
        row->l[r] = tl_exp_natural(sink - row->m[r]);
    }
}

/* Lines 9, 14 and 24. */
TL_INLINE void tl_lamp_logits(tl_ctx *x, tl_lamp_tile *t, tl_scores *s, tl_span span, int32_t rb, uint32_t set,
                              int32_t level)
{
    for (int32_t sub = 0; sub < t->subs; sub++) {
        if (!(set & tl_lamp_bit(sub))) continue;
        t->level[sub] = level;
        tl_sub_logits(x, s, span, rb, sub, level);
        tl_sub_max(x, s, rb, sub, t->top + sub * TL_LAMP_ROWS);
    }
}

TL_INLINE void tl_lamp_raise_by(tl_lamp_tile *t, uint32_t set)
{
    for (int32_t sub = 0; sub < t->subs; sub++)
        if (set & tl_lamp_bit(sub)) tl_lamp_raise(t->muhat, t->top + sub * TL_LAMP_ROWS, t->rows);
}

/* Lines 17 to 20 and 25. */
TL_INLINE void tl_lamp_exp(tl_ctx *x, const tl_lamp_tile *t, tl_scores *s, int32_t rb, uint32_t set)
{
    float ref[TL_ROWS];
    for (int32_t r = 0; r < TL_ROWS; r++) ref[r] = r < t->rows ? tl_reference(t->muhat[r]) : 0.f;
    for (int32_t sub = 0; sub < t->subs; sub++)
        if (set & tl_lamp_bit(sub)) tl_sub_exp(x, s, rb, sub, t->level[sub], ref);
}

/* Line 21, lambda and alpha. */
TL_INLINE void tl_lamp_rescale_old(tl_lamp_tile *t, const tl_rows *row)
{
    for (int32_t r = 0; r < t->rows; r++) {
        t->lambda[r] = t->muhat[r] == TL_NEVER ? 1.f : tl_exp_natural(row->m[r] - t->muhat[r]);
        t->alpha[r] = t->lambda[r] * row->l[r];
    }
}

/* The whole tile at one level, with the running maximum of its own logits: forced tiles, baselines, compact. */
TL_INLINE void tl_lamp_uniform(tl_ctx *x, tl_lamp_tile *t, const tl_rows *row, tl_scores *s, tl_span span, int32_t rb,
                               int32_t level)
{
    for (int32_t r = 0; r < t->rows; r++) t->muhat[r] = row->m[r];
    tl_lamp_logits(x, t, s, span, rb, t->legal, level);
    tl_lamp_raise_by(t, t->legal);
    tl_lamp_exp(x, t, s, rb, t->legal);
    tl_lamp_rescale_old(t, row);
}

/* Lines 10 to 15. Returns Theta. */
TL_INLINE uint32_t tl_lamp_stage_one(tl_ctx *x, tl_lamp_tile *t, const tl_rows *row, tl_scores *s, tl_span span,
                                     int32_t rb, const tl_lamp_rule_t *rule)
{
    tl_lamp_threat threat[TL_LAMP_SUBS];
    uint8_t order[TL_LAMP_SUBS];
    uint32_t theta = 0;
    for (int32_t sub = 0; sub < t->subs; sub++)
        if (t->legal & tl_lamp_bit(sub))
            threat[sub] = tl_lamp_threat_of(t->top + sub * TL_LAMP_ROWS, 0, row->m, t->rows);
    const int32_t n = tl_lamp_order(threat, t->legal, t->subs, order);
    for (int32_t i = 0; i < n; i++) {
        const uint32_t one = tl_lamp_bit(order[i]);
        if (tl_lamp_stays_low(t->top + order[i] * TL_LAMP_ROWS, t->muhat, t->rows, rule->delta)) continue;
        tl_lamp_logits(x, t, s, span, rb, one, TL_LEVEL_HIGH);
        tl_lamp_raise_by(t, one);
        theta |= one;
    }
    return theta;
}

/* What was computed before muhat rose from `before` is rescaled, each sub-block in its own format. */
TL_INLINE void tl_lamp_shrink(tl_ctx *x, const tl_lamp_tile *t, const float *before, tl_scores *s, int32_t rb,
                              uint32_t set)
{
    float factor[TL_ROWS];
    for (int32_t r = 0; r < TL_ROWS; r++)
        factor[r] = r >= t->rows || t->muhat[r] == before[r] || before[r] == TL_NEVER
                        ? 1.f
                        : tl_exp_natural(before[r] - t->muhat[r]);
    for (int32_t sub = 0; sub < t->subs; sub++)
        if (set & tl_lamp_bit(sub)) tl_sub_shrink(x, s, rb, sub, t->level[sub], factor);
}

/* Lines 21 to 26. Returns what was recomputed. */
TL_INLINE uint32_t tl_lamp_stage_two(tl_ctx *x, tl_lamp_tile *t, const tl_rows *row, tl_scores *s, tl_span span,
                                     int32_t rb, uint32_t theta, const tl_lamp_rule_t *rule)
{
    float r[TL_LAMP_SUBS * TL_LAMP_ROWS], sum[TL_ROWS], s1[TL_ROWS], s2[TL_ROWS], before[TL_LAMP_ROWS];
    if (!(rule->tau < 1.f)) return 0; /* no constraint: sum p (1 - p) <= 1 */
    tl_tile_sums(x, s, rb, sum);
    for (int32_t sub = 0; sub < t->subs; sub++) {
        if (!(t->legal & tl_lamp_bit(sub))) continue;
        tl_sub_sums(x, s, rb, sub, s1, s2);
        for (int32_t j = 0; j < t->rows; j++)
            r[sub * TL_LAMP_ROWS + j] = tl_lamp_weight(t->alpha[j] + sum[j], s1[j], s2[j]);
    }
    const uint32_t free = t->legal & ~theta, redone = free & ~tl_lamp_solve(r, free, t->subs, t->rows, rule->tau);
    if (!redone) return 0;
    for (int32_t j = 0; j < t->rows; j++) before[j] = t->muhat[j];
    tl_lamp_logits(x, t, s, span, rb, redone, TL_LEVEL_HIGH);
    if (rule->raises) {
        tl_lamp_raise_by(t, redone);
        tl_lamp_shrink(x, t, before, s, rb, t->legal & ~redone);
    }
    tl_lamp_exp(x, t, s, rb, redone);
    tl_lamp_rescale_old(t, row);
    return redone;
}

/* What a tile cost: sub-blocks that were computed high because the word said so, by stage one, by stage two. */
TL_INLINE void tl_lamp_count_tile(tl_ctx *x, uint32_t legal, uint32_t forced, uint32_t one, uint32_t two)
{
    const int32_t n = tl_set_size(forced | one | two);
    tl_count(x, TL_COUNT_SUB_BLOCKS, tl_set_size(legal));
    tl_count(x, TL_COUNT_RECOMPUTED, n);
    tl_count(x, TL_COUNT_HISTOGRAM + n, 1);
    tl_count(x, TL_COUNT_FORCED, tl_set_size(forced));
    tl_count(x, TL_COUNT_STAGE_ONE, tl_set_size(one));
    tl_count(x, TL_COUNT_STAGE_TWO, tl_set_size(two));
}

/* Lines 7 to 26: E of the tile, muhat, lambda and alpha. */
TL_INLINE void tl_lamp_decide(tl_ctx *x, tl_lamp_tile *t, const tl_rows *row, tl_scores *s, tl_span span, int32_t rb,
                              const tl_lamp_rule_t *rule)
{
    uint32_t forced = tl_lamp_forced(span.route & 1, t->legal), one = 0, two = 0;
    if (forced) {
        tl_lamp_uniform(x, t, row, s, span, rb, TL_LEVEL_HIGH);
    } else {
        for (int32_t r = 0; r < t->rows; r++) t->muhat[r] = row->m[r];
        tl_lamp_logits(x, t, s, span, rb, t->legal, TL_LEVEL_LOW);
        if (rule->delta >= 0.f)
            one = tl_lamp_stage_one(x, t, row, s, span, rb, rule);
        else
            tl_lamp_raise_by(t, t->legal);
        tl_lamp_exp(x, t, s, rb, t->legal);
        tl_lamp_rescale_old(t, row);
        two = tl_lamp_stage_two(x, t, row, s, span, rb, one, rule);
    }
    tl_lamp_count_tile(x, t->legal, forced, one, two);
    const int32_t high = tl_set_size(forced | one | two), all = rule->compact && high >= 2;
    if (all) tl_lamp_uniform(x, t, row, s, span, rb, TL_LEVEL_HIGH);
    tl_count(x, TL_COUNT_EXECUTED, all ? tl_set_size(t->legal) : high);
}

TL_INLINE void tl_step(tl_ctx *x, tl_state *state, tl_scores *s, tl_span span, int32_t rb)
{
    const tl_lamp_rule_t rule = tl_lamp_rule(x);
    tl_rows *row = &state->rows[rb];
    tl_lamp_tile t;
    float sum[TL_ROWS];
    t.legal = tl_sub_legal(x, span, rb);
    if (!t.legal) return;
    t.subs = tl_lamp_subs(x);
    t.rows = tl_block_rows(tl_task_of(x), rb, tl_block_size(x));
    if (rule.baseline < 0) {
        tl_lamp_decide(x, &t, row, s, span, rb, &rule);
    } else {
        tl_lamp_uniform(x, &t, row, s, span, rb, rule.baseline);
        tl_lamp_count_tile(x, t.legal, 0, 0, 0);
    }
    tl_lamp_count(x, t.legal);
    tl_tile_sums(x, s, rb, sum);
    for (int32_t r = 0; r < TL_ROWS; r++) {
        if (r >= t.rows)
            t.lambda[r] = 1.f;
        else {
            row->l[r] = t.alpha[r] + sum[r]; /* 27 */
            row->m[r] = t.muhat[r];
        }
    }
    tl_rescale(x, &state->acc, rb, t.lambda); /* 28 */
    tl_values_issue(x, &state->acc, s, span, rb);
    tl_values_wait(x, &state->acc);
}
