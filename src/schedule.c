#include "schedule.h"

#include "validate.h"

static tl_operand operand(const void *data, const tlamp_strides *s, tlamp_dtype dtype)
{
    return (tl_operand){.data = data, .batch = s->batch, .seq = s->seq, .head = s->head, .dtype = dtype};
}

/* INT8 codes of the caller's: a scale per `block` tokens and head. */
static void take_scales(tl_operand *a, const float *scale, int64_t block, int32_t heads)
{
    if (a->dtype != TL_I8) return;
    a->scale = scale;
    a->scale_block = block;
    a->heads = heads;
}

static int64_t scale_block(const tlamp_policy *policy, int32_t block)
{
    return policy->scales == TLAMP_SCALES_TOKEN ? 1 : block;
}

static tl_score_operand score_operand(const void *data, const tlamp_score_strides *s, tlamp_dtype dtype)
{
    return (tl_score_operand){data, s->batch, s->head, s->q, s->k, dtype};
}

tl_call tl_make_call(const tlamp_plan *plan, const tlamp_tensors *t)
{
    const tlamp_problem *p = &plan->problem;
    tl_call c = {.shape = plan->shape, .policy = &plan->policy};
    c.q = operand(t->q, &p->q_stride, p->q_dtype);
    c.k = operand(t->k, &p->k_stride, p->k_dtype);
    c.v = operand(t->v, &p->v_stride, p->v_dtype);
    c.o = (tl_output){t->o, p->o_stride.batch, p->o_stride.seq, p->o_stride.head, p->o_dtype};
    take_scales(&c.q, t->q_scale, scale_block(&plan->policy, plan->policy.quant_block_q), p->num_heads_q);
    take_scales(&c.k, t->k_scale, scale_block(&plan->policy, plan->policy.quant_block_k), p->num_heads_k);
    take_scales(&c.v, t->v_scale, scale_block(&plan->policy, plan->policy.quant_block_k), p->num_heads_k);
    c.lse = t->lse;
    c.lse_stride = p->lse_stride;
    if (p->varlen) c.q.batch = c.k.batch = c.v.batch = c.o.batch = c.lse_stride.batch = 0;
    if (p->has_bool_mask) c.bool_mask = score_operand(t->bool_mask, &p->bool_mask_stride, 0);
    if (p->has_bias) c.bias = score_operand(t->bias, &p->bias_stride, p->bias_dtype);
    if (p->has_alibi) c.alibi_slopes = t->alibi_slopes;
    if (p->has_sinks) c.sinks = t->sinks;
    c.alibi_batch_stride = p->alibi_batch_stride;
    c.softmax_scale = p->softmax_scale;
    c.softcap = p->softcap;
    c.words_head = t->words_stride_head;
    c.words_row = t->words_stride_row;
    return c;
}

/* ROUTED needs words; for LAMP they are permissions to be low (ALGORITHMS C0), and none permits all. */
static int takes_words(const tlamp_policy *policy, const tlamp_tensors *t)
{
    return policy->kind == TLAMP_POLICY_ROUTED || (policy->kind == TLAMP_POLICY_LAMP && t->words);
}

void tl_make_sequences(tl_sequence *sequences, const tlamp_plan *plan, const tlamp_tensors *t)
{
    const tlamp_problem *p = &plan->problem;
    int64_t routing_rows = 0; /* cu_tm[b] of packed sequences (ALGORITHMS A6) */
    int64_t q_blocks = 0, k_blocks = 0, rows = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        const tl_lengths n = tl_sequence_lengths(p, t, b);
        tl_sequence *s = &sequences[b];
        *s = (tl_sequence){.batch = b, .q_start = n.q_start, .k_start = n.k_start, .lq = n.seqlen_q, .lk = n.seqlen_k};
        s->mask = tl_mask_make(s->lq, s->lk, p->mask != TLAMP_MASK_NONE, p->mask == TLAMP_MASK_CAUSAL_TOP_LEFT,
                               p->window_left, p->window_right);
        s->group = t->groups && takes_words(p->policy, t) ? t->groups[b]
                                                          : tl_auto_group(n.layout_k, p->policy->block_n);
        if (takes_words(p->policy, t))
            s->words = t->words + (p->varlen ? routing_rows * t->words_stride_row : b * t->words_stride_batch);
        s->row_begin = rows;
        rows += s->lq;
        s->q_blocks = q_blocks;
        s->k_blocks = k_blocks;
        routing_rows += tl_ceil_div(s->lq, p->policy->block_m);
        q_blocks += tl_ceil_div(s->lq, scale_block(p->policy, p->policy->quant_block_q));
        k_blocks += tl_ceil_div(n.layout_k, scale_block(p->policy, p->policy->quant_block_k));
    }
}

int64_t tl_make_wave(tl_wave *wave, const tlamp_plan *plan, const tl_call *call, tl_sequence *sequences, int64_t first,
                     unsigned char *prepared)
{
    const tl_shape *shape = &plan->shape;
    int64_t b = first;
    size_t used = 0;
    *wave = (tl_wave){call, sequences + first, 0, 0, 0, 0};
    for (; b < plan->problem.batch; b++) {
        tl_sequence *s = &sequences[b];
        const size_t bytes = tl_prepared_size(plan, s->lk);
        if (b > first && bytes > plan->prepared_bytes - used) break;
        s->prepared = prepared + used;
        s->prepared_bytes = bytes / (size_t)tl_max64(shape->heads_k, 1);
        s->unit_begin = wave->units;
        s->task_begin = wave->tasks;
        used += bytes;
        wave->units += tl_units(shape, s->lk) * shape->heads_k;
        wave->pairs += (double)s->lq * (double)s->lk * shape->heads_q;
        wave->tasks += tl_row_tasks(shape, s->lq) * shape->heads_k * tl_head_tasks(shape);
    }
    wave->count = b - first;
    return b;
}
