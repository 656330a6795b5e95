/* The work of an execution: how units of keys and tasks of rows are numbered, and what each of them is. Freestanding: the host
 * and devices compile it alike. */
#ifndef TL_WORK_H
#define TL_WORK_H

#include "kernel.h"
#include "survey.h"
#include "workspace.h"

/* Sequences whose keys are prepared at the same time. In this order: every unit is surveyed, every KV head's mean is made,
 * every unit is packed, every task is attended. */
typedef struct {
    const tl_call *call;
    const tl_sequence *sequences;
    int64_t count, units, tasks;
    double pairs; /* of a query and a key */
} tl_wave;

/* ---- what is prepared of one KV head's keys */

/* Units of unit_keys; 0 where nothing is prepared. */
TL_INLINE int64_t tl_units(const tl_shape *shape, int64_t lk)
{
    return shape->seen || shape->mean || shape->packs ? tl_ceil_div(lk, shape->unit_keys) : 0;
}

/* All but what the kernel packs, which comes last. */
TL_SHARED tl_prepared tl_lay_out_prepared(const tl_shape *shape, int64_t lk, tl_arena *arena)
{
    const int64_t units = tl_units(shape, lk), d = shape->head_dim_qk;
    tl_prepared p = {NULL, NULL, NULL, NULL, NULL};
    if (shape->seen) p.seen = tl_take(arena, lk);
    if (shape->mean) {
        p.mean = tl_take(arena, d * 4);
        p.unit_sums = tl_take_array(arena, units * d, 4);
        p.unit_counts = tl_take_array(arena, units, 8);
    }
    return p;
}

/* In an area of s->prepared_bytes. */
TL_INLINE tl_prepared tl_prepared_at(const tl_shape *shape, const tl_sequence *s, unsigned char *area)
{
    tl_arena a = {area, 0};
    tl_prepared p = tl_lay_out_prepared(shape, s->lk, &a);
    p.packed = a.base + a.used;
    return p;
}

TL_INLINE tl_prepared tl_prepared_of(const tl_shape *shape, const tl_sequence *s, int32_t kv_head)
{
    return tl_prepared_at(shape, s, s->prepared + s->prepared_bytes * (size_t)kv_head);
}

/* ---- numbering */

TL_INLINE int64_t tl_tasks_per_part(const tl_shape *shape)
{
    return tl_ceil_div(shape->part_tokens, shape->task_tokens);
}

/* Tasks side by side along a head's rows. */
TL_INLINE int64_t tl_row_tasks(const tl_shape *shape, int64_t lq)
{
    return lq / shape->part_tokens * tl_tasks_per_part(shape) +
           tl_ceil_div(lq % shape->part_tokens, shape->task_tokens);
}

/* Tasks that share the query heads of one KV head. */
TL_INLINE int64_t tl_head_tasks(const tl_shape *shape)
{
    return tl_ceil_div(shape->group_heads, tl_max64(shape->task_heads, 1));
}

/* The last sequence of the wave whose first unit (or task) is not beyond i. Sequences without any share the number of the
 * next one, so the last is the one that owns i. */
TL_INLINE const tl_sequence *tl_owner(const tl_wave *w, int64_t i, int tasks)
{
    int64_t low = 0, high = w->count;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        const int64_t begin = tasks ? w->sequences[middle].task_begin : w->sequences[middle].unit_begin;
        if (begin <= i)
            low = middle;
        else
            high = middle;
    }
    return &w->sequences[low];
}

typedef struct {
    const tl_sequence *seq;
    tl_prepared prepared;
    int32_t kv_head;
    int64_t unit;
} tl_unit_work;

TL_INLINE tl_unit_work tl_unit_at(const tl_wave *w, int64_t index)
{
    const tl_shape *shape = &w->call->shape;
    tl_unit_work u;
    u.seq = tl_owner(w, index, 0);
    const int64_t units = tl_units(shape, u.seq->lk), i = index - u.seq->unit_begin;
    u.kv_head = (int32_t)(shape->heads_first ? i % shape->heads_k : i / units);
    u.unit = shape->heads_first ? i / shape->heads_k : i % units;
    u.prepared = tl_prepared_of(shape, u.seq, u.kv_head);
    return u;
}

/* Unit `index`, surveyed. scratch: one row of head_dim_qk floats. */
TL_SHARED void tl_survey_work(const tl_wave *w, int64_t index, float *scratch)
{
    const tl_unit_work u = tl_unit_at(w, index);
    tl_survey_unit(w->call, u.seq, &u.prepared, u.kv_head, u.unit, scratch);
}

/* The mean of KV head `index` of the wave's; they are counted sequence by sequence. */
TL_SHARED void tl_mean_work(const tl_wave *w, int64_t index)
{
    const tl_shape *shape = &w->call->shape;
    const tl_sequence *s = &w->sequences[index / shape->heads_k];
    const tl_prepared p = tl_prepared_of(shape, s, (int32_t)(index % shape->heads_k));
    if (s->lk > 0) tl_survey_mean(w->call, s, &p);
}

/* The rows of a task, and all keys or one split of them. */
typedef struct {
    const tl_sequence *seq;
    tl_prepared prepared;
    tl_task task;
    int32_t head; /* the first query head */
} tl_task_work;

TL_INLINE tl_task_work tl_task_at(const tl_wave *w, int64_t index)
{
    const tl_call *call = w->call;
    const tl_shape *shape = &call->shape;
    const tl_sequence *s = tl_owner(w, index, 1);
    const int64_t i = index - s->task_begin, parts = tl_head_tasks(shape), rows = tl_row_tasks(shape, s->lq);
    /* Head by head, so that K and V stay in cache. Causal: the last rows see most, the first least. They take turns, so that
     * any run of neighbours has its share of the work. */
    const int64_t place = i % rows, rest = i / rows;
    const int64_t row = s->mask.right < 0 ? place : place % 2 ? place / 2 : rows - 1 - place / 2;
    const int32_t kv_head = (int32_t)(rest / parts), first = (int32_t)(rest % parts) * shape->task_heads;
    const int64_t per_part = tl_tasks_per_part(shape), part = row / per_part * shape->part_tokens;
    const int64_t token0 = part + row % per_part * shape->task_tokens;

    tl_task_work k = {s, tl_prepared_of(shape, s, kv_head), {.mask = s->mask, .token0 = token0}, 0};
    k.head = kv_head * shape->group_heads + first;
    k.task.tile_keys = shape->tile_keys;
    k.task.tokens = (int32_t)tl_min64(shape->task_tokens, tl_min64(part + shape->part_tokens, s->lq) - token0);
    k.task.heads = (int32_t)tl_min64(shape->task_heads, shape->group_heads - first);
    k.task.route_all = call->policy->kind == TLAMP_POLICY_HIGH ? TL_HIGH : TL_INT8; /* LAMP: permitted */
    k.task.group_keys = (int64_t)s->group * call->policy->block_n;
    if (s->words)
        k.task.words = s->words + kv_head * call->words_head + token0 / call->policy->block_m * call->words_row;
    k.task.scattered = call->bool_mask.data || call->bias.data;
    k.task.splits = shape->splits;
    k.task.tile_past = INT32_MAX;
    return k;
}

TL_INLINE void tl_take_split(tl_task_work *k, const tl_shape *shape, int32_t split)
{
    const int64_t tiles = tl_ceil_div(k->seq->lk, shape->tile_keys);
    const int64_t each = shape->split_tiles ? shape->split_tiles : tl_ceil_div(tiles, shape->splits);
    k->task.split = split;
    k->task.tile_begin = (int32_t)tl_min64(split * each, INT32_MAX);
    k->task.tile_past = (int32_t)tl_min64((split + 1) * each, INT32_MAX);
}

/* Number `index` of all splits of all tasks, sequence by sequence. */
TL_INLINE tl_task_work tl_split_task_at(const tl_wave *w, int64_t index)
{
    const tl_shape *shape = &w->call->shape;
    if (shape->splits == 1) return tl_task_at(w, index);
    const tl_sequence *s = tl_owner(w, index / shape->splits, 1);
    const int64_t tasks = tl_row_tasks(shape, s->lq) * shape->heads_k * tl_head_tasks(shape);
    const int64_t i = index - s->task_begin * shape->splits;
    tl_task_work k = tl_task_at(w, s->task_begin + (shape->heads_first ? i % tasks : i / shape->splits));
    tl_take_split(&k, shape, (int32_t)(shape->heads_first ? i / tasks : i % shape->splits));
    return k;
}

#endif
