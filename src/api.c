/* Executions: checks, then waves of sequences through survey, packing and attention. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "counters.h"
#include "device.h"
#include "plan.h"
#include "status.h"
#include "survey.h"
#include "team.h"
#include "validate.h"

/* ------------------------------------------------------------------------------------------------ one execution */

typedef struct {
    const tlamp_plan *plan;
    tl_call call;
    tlamp_exec exec;
    int32_t workers;
    tl_workspace memory;
    const tl_sequence *wave; /* the sequences whose keys are prepared at the same time */
    int64_t wave_count;
    _Atomic int bad_worker;
} execution;

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

static tl_call make_call(const tlamp_plan *plan, const tlamp_tensors *t)
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

static int64_t task_rows(const execution *e, const tl_sequence *s)
{
    return tl_ceil_div(s->lq, e->call.shape.task_tokens);
}

static int64_t head_parts(const execution *e)
{
    return tl_ceil_div(e->call.shape.group_heads, tl_max64(e->call.shape.task_heads, 1));
}

/* ROUTED needs words; for LAMP they are permissions to be low (ALGORITHMS C0), and none permits all. */
static int takes_words(const tlamp_policy *policy, const tlamp_tensors *t)
{
    return policy->kind == TLAMP_POLICY_ROUTED || (policy->kind == TLAMP_POLICY_LAMP && t->words);
}

/* Fills memory.sequences; the prepared areas and the counts of work come with the waves. */
static void make_sequences(execution *e, const tlamp_tensors *t)
{
    const tlamp_problem *p = &e->plan->problem;
    int64_t routing_rows = 0; /* cu_tm[b] of packed sequences (ALGORITHMS A6) */
    int64_t q_blocks = 0, k_blocks = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        const tl_lengths n = tl_sequence_lengths(p, t, b);
        tl_sequence *s = &e->memory.sequences[b];
        *s = (tl_sequence){.batch = b, .q_start = n.q_start, .k_start = n.k_start, .lq = n.seqlen_q, .lk = n.seqlen_k};
        s->mask = tl_mask_make(s->lq, s->lk, p->mask != TLAMP_MASK_NONE, p->mask == TLAMP_MASK_CAUSAL_TOP_LEFT,
                               p->window_left, p->window_right);
        s->group = t->groups && takes_words(p->policy, t) ? t->groups[b]
                                                          : tl_auto_group(n.layout_k, p->policy->block_n);
        if (takes_words(p->policy, t))
            s->words = t->words + (p->varlen ? routing_rows * t->words_stride_row : b * t->words_stride_batch);
        s->q_blocks = q_blocks;
        s->k_blocks = k_blocks;
        routing_rows += tl_ceil_div(s->lq, p->policy->block_m);
        q_blocks += tl_ceil_div(s->lq, scale_block(p->policy, p->policy->quant_block_q));
        k_blocks += tl_ceil_div(n.layout_k, scale_block(p->policy, p->policy->quant_block_k));
    }
}

/* The wave that starts at sequence `first`: as many as fit where the keys of one longest sequence fit. */
static int64_t make_wave(execution *e, int64_t first)
{
    const tlamp_plan *plan = e->plan;
    int64_t units = 0, tasks = 0, b = first;
    size_t used = 0;
    for (; b < plan->problem.batch; b++) {
        tl_sequence *s = &e->memory.sequences[b];
        const size_t bytes = tl_prepared_size(plan, s->lk);
        if (b > first && bytes > plan->prepared_bytes - used) break;
        s->prepared = e->memory.prepared + used;
        s->unit_begin = units;
        s->task_begin = tasks;
        used += bytes;
        units += tl_units(plan, s->lk) * plan->shape.heads_k;
        tasks += task_rows(e, s) * plan->shape.heads_k * head_parts(e);
    }
    e->wave = e->memory.sequences + first;
    e->wave_count = b - first;
    return b;
}

static tl_prepared prepared_of(const execution *e, const tl_sequence *s, int32_t kv_head)
{
    const size_t each = tl_prepared_size(e->plan, s->lk) / (size_t)tl_max64(e->call.shape.heads_k, 1);
    tl_arena a = {s->prepared + each * (size_t)kv_head, 0};
    return tl_lay_out_prepared(e->plan, s->lk, &a);
}

/* ------------------------------------------------------------------------------------------------ tasks */

/* The last sequence of the wave whose first unit (or task) is not beyond i. Sequences without any share the number of the
 * next one, so the last is the one that owns i. */
static const tl_sequence *owner(const execution *e, int64_t i, int tasks)
{
    int64_t low = 0, high = e->wave_count;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        const int64_t begin = tasks ? e->wave[middle].task_begin : e->wave[middle].unit_begin;
        if (begin <= i)
            low = middle;
        else
            high = middle;
    }
    return &e->wave[low];
}

/* A caller's parallel_for that names a worker it does not have would write outside the workspace. */
static void *scratch_of(execution *e, int32_t worker)
{
    if (worker < 0 || worker >= e->workers) {
        atomic_store(&e->bad_worker, 1);
        return NULL;
    }
    return e->memory.scratch + (size_t)worker * e->plan->scratch_bytes;
}

static tl_worker_counters *counters_of(execution *e, int32_t worker)
{
    return (void *)((unsigned char *)e->memory.counters + (size_t)worker * TL_COUNTERS_STRIDE);
}

typedef struct {
    const tl_sequence *seq;
    tl_prepared prepared;
    int32_t kv_head;
    int64_t unit;
} unit_task;

static unit_task find_unit(const execution *e, int64_t index)
{
    unit_task u;
    u.seq = owner(e, index, 0);
    const int64_t units = tl_units(e->plan, u.seq->lk), i = index - u.seq->unit_begin;
    u.kv_head = (int32_t)(i / units);
    u.unit = i % units;
    u.prepared = prepared_of(e, u.seq, u.kv_head);
    return u;
}

static void survey_task(void *context, int64_t index, int32_t worker)
{
    execution *e = context;
    void *scratch = scratch_of(e, worker);
    if (!scratch) return;
    const unit_task u = find_unit(e, index);
    tl_survey_unit(&e->call, u.seq, &u.prepared, u.kv_head, u.unit, scratch);
}

static void mean_task(void *context, int64_t index, int32_t worker)
{
    execution *e = context;
    (void)worker;
    const tl_sequence *s = &e->wave[index / e->call.shape.heads_k];
    const tl_prepared p = prepared_of(e, s, (int32_t)(index % e->call.shape.heads_k));
    if (s->lk > 0) tl_survey_mean(&e->call, s, &p);
}

static void pack_task(void *context, int64_t index, int32_t worker)
{
    execution *e = context;
    void *scratch = scratch_of(e, worker);
    if (!scratch) return;
    const unit_task u = find_unit(e, index);
    e->plan->kernel->pack(&e->call, u.seq, &u.prepared, u.kv_head, u.unit, scratch, counters_of(e, worker));
}

static void attend_task(void *context, int64_t index, int32_t worker)
{
    execution *e = context;
    void *scratch = scratch_of(e, worker);
    if (!scratch) return;
    const tl_shape *shape = &e->call.shape;
    const tl_sequence *s = owner(e, index, 1);
    const int64_t i = index - s->task_begin, parts = head_parts(e), rows = task_rows(e, s);
    const int causal = s->mask.right >= 0;
    /* Causal: the last rows see most, and come first. Otherwise head by head, so that K and V stay in cache. */
    const int64_t per_row = shape->heads_k * parts;
    const int64_t row = causal ? rows - 1 - i / per_row : i % rows, rest = causal ? i % per_row : i / rows;
    const int32_t kv_head = (int32_t)(rest / parts), first = (int32_t)(rest % parts) * shape->task_heads;
    const int64_t token0 = row * shape->task_tokens;

    tl_task task = {.mask = s->mask, .token0 = token0, .tile_keys = shape->tile_keys};
    task.tokens = (int32_t)tl_min64(shape->task_tokens, s->lq - token0);
    task.heads = (int32_t)tl_min64(shape->task_heads, shape->group_heads - first);
    task.route_all = e->call.policy->kind == TLAMP_POLICY_HIGH ? TL_HIGH : TL_INT8; /* LAMP: permitted */
    task.group_keys = (int64_t)s->group * e->call.policy->block_n;
    if (s->words)
        task.words = s->words + kv_head * e->call.words_head + token0 / e->call.policy->block_m * e->call.words_row;
    task.scattered = e->call.bool_mask.data || e->call.bias.data;
    const tl_prepared p = prepared_of(e, s, kv_head);
    e->plan->kernel->attend(&e->call, s, &p, &task, kv_head * shape->group_heads + first, scratch,
                            counters_of(e, worker));
}

/* ------------------------------------------------------------------------------------------------ run */

/* 0: a stranger was among the workers, so that some of the phase's results are missing, which the next would read. */
static int run_phase(execution *e, int64_t count, tlamp_task task)
{
    tl_team_run(&e->exec, e->workers, count, task, e);
    return !atomic_load(&e->bad_worker);
}

static void run(execution *e)
{
    const tlamp_plan *plan = e->plan;
    const int survey = tl_needs_survey(plan);
    for (int64_t first = 0; first < plan->problem.batch;) {
        first = make_wave(e, first);
        const tl_sequence *last = &e->wave[e->wave_count - 1];
        const int64_t heads = plan->shape.heads_k;
        const int64_t units = last->unit_begin + tl_units(plan, last->lk) * heads;
        const int64_t tasks = last->task_begin + task_rows(e, last) * heads * head_parts(e);
        if (tasks == 0) continue;
        if (survey && !run_phase(e, units, survey_task)) return;
        if (survey && plan->policy.smooth_k && !run_phase(e, e->wave_count * heads, mean_task)) return;
        if (tl_needs_pack(plan) && !run_phase(e, units, pack_task)) return;
        if (!run_phase(e, tasks, attend_task)) return;
    }
}

static void add_worker(tlamp_counters *n, const tl_worker_counters *w)
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

static void fill_counters(execution *e, tlamp_counters *out)
{
    const size_t given = out->struct_size;
    tlamp_counters n = {.struct_size = given};
    for (int64_t b = 0; b < e->plan->problem.batch; b++) tl_count_sequence(&e->call, &e->memory.sequences[b], &n);
    for (int32_t w = 0; w < e->workers; w++) add_worker(&n, counters_of(e, w));
    memcpy(out, &n, given < sizeof n ? given : sizeof n);
}

static tlamp_status check_outputs(const tlamp_problem *p, const tlamp_tensors *t, tlamp_error *err)
{
    if (!t->o && p->batch > 0 && p->num_heads_q > 0 && (p->varlen ? p->total_q : p->max_seqlen_q) > 0)
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "o", "is NULL");
    if (t->certificate) return tl_fail(err, TLAMP_UNSUPPORTED, "certificate", "certificates are not built yet");
    if (t->group_statistics)
        return tl_fail(err, TLAMP_UNSUPPORTED, "group_statistics", "group statistics are not built yet");
    if (t->prepared) return tl_fail(err, TLAMP_UNSUPPORTED, "prepared", "prepared keys and values are not built yet");
    if (t->counters && t->counters->struct_size < sizeof(size_t))
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "counters", "set counters->struct_size to sizeof(tlamp_counters)");
    return TLAMP_OK;
}

tlamp_status tlamp_execute(const tlamp_plan *plan, const tlamp_tensors *tensors, const tlamp_exec *exec,
                           void *workspace, size_t workspace_bytes, tlamp_error *err)
{
    if (!plan) return tl_fail(err, TLAMP_INVALID_ARGUMENT, "plan", "is NULL");
    tlamp_tensors t;
    execution e = {.plan = plan};
    tlamp_status s = tl_validate_exec(&e.exec, exec, err);
    if (!s) s = tl_validate_tensors(&t, &plan->problem, tensors, err);
    if (!s) s = check_outputs(&plan->problem, &t, err);
    if (s) return s;
    if (e.exec.memory != TLAMP_MEMORY_HOST || e.exec.device >= 0)
        return tl_device_execute(plan, &t, &e.exec, workspace, workspace_bytes, err);

    e.call = make_call(plan, &t);
    e.workers = tl_team_workers(&e.exec);
    tl_arena size = {NULL, 0};
    (void)tl_lay_out_workspace(plan, e.workers, &size);
    if (size.used == SIZE_MAX)
        return tl_fail(err, TLAMP_OUT_OF_MEMORY, "workspace", "the workspace exceeds the address space");
    const tlamp_allocator memory = tl_allocator(&e.exec.allocator);
    void *own = NULL;
    if (workspace) {
        if ((uintptr_t)workspace % TLAMP_WORKSPACE_ALIGN)
            return tl_fail(err, TLAMP_INVALID_ARGUMENT, "workspace", "must be aligned to %d", TLAMP_WORKSPACE_ALIGN);
        if (workspace_bytes < size.used)
            return tl_fail(err, TLAMP_WORKSPACE_TOO_SMALL, "workspace_bytes",
                           "%zu: %d threads need %zu (tlamp_plan_workspace_size)", workspace_bytes, (int)e.workers,
                           size.used);
    } else if (size.used) {
        own = workspace = memory.alloc(memory.context, size.used, TLAMP_WORKSPACE_ALIGN);
        if (!own)
            return tl_fail(err, TLAMP_OUT_OF_MEMORY, "workspace", "no memory for a workspace of %zu bytes", size.used);
    }

    tl_arena arena = {workspace, 0};
    e.memory = tl_lay_out_workspace(plan, e.workers, &arena);
    memset(e.memory.counters, 0, (size_t)e.workers * TL_COUNTERS_STRIDE);
    make_sequences(&e, &t);
    run(&e);
    if (t.counters) fill_counters(&e, t.counters);
    if (own) memory.free(memory.context, own);
    if (atomic_load(&e.bad_worker))
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "parallel_for",
                       "named a worker outside 0 .. num_threads-1: outputs are incomplete");
    return TLAMP_OK;
}

tlamp_status tlamp_attention(const tlamp_problem *problem, const tlamp_tensors *tensors, const tlamp_exec *exec,
                             tlamp_error *err)
{
    _Alignas(TLAMP_WORKSPACE_ALIGN) tlamp_plan memory;
    tlamp_plan *plan;
    const tlamp_status s = tlamp_plan_init(&plan, &memory, sizeof memory, problem, err);
    return s ? s : tlamp_execute(plan, tensors, exec, NULL, 0, err);
}

/* ------------------------------------------------------------------------------------------------ partial states */

tlamp_status tlamp_merge(int64_t rows, int32_t head_dim, float *o_a, int64_t o_a_stride, float *lse_a, const float *o_b,
                         int64_t o_b_stride, const float *lse_b, tlamp_error *err)
{
    if (rows < 0 || head_dim < 1)
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, rows < 0 ? "rows" : "head_dim",
                       "rows is negative or head_dim below 1");
    if (rows && (!o_a || !lse_a || !o_b || !lse_b))
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "o_a", "a pointer is NULL");
    if (rows > 1 && o_a_stride == 0)
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "o_a_stride", "an output cannot be broadcast");
    for (int64_t r = 0; r < rows; r++) {
        const float a = lse_a[r], b = lse_b[r];
        float *to = o_a + r * o_a_stride;
        const float *from = o_b + r * o_b_stride;
        if (b == -INFINITY) continue; /* neutral, exactly */
        if (a == -INFINITY) {
            memcpy(to, from, sizeof *to * (size_t)head_dim);
            lse_a[r] = b;
            continue;
        }
        const float top = a > b ? a : b, lse = top + logf(expf(a - top) + expf(b - top));
        const float weight_a = expf(a - lse), weight_b = expf(b - lse);
        for (int32_t c = 0; c < head_dim; c++) to[c] = weight_a * to[c] + weight_b * from[c];
        lse_a[r] = lse;
    }
    return TLAMP_OK;
}

/* ------------------------------------------------------------------------------------------------ later work */

tlamp_status tlamp_kv_prepared_size(const tlamp_plan *plan, size_t *bytes, tlamp_error *err)
{
    if (!plan || !bytes) return tl_fail(err, TLAMP_INVALID_ARGUMENT, plan ? "bytes" : "plan", "is NULL");
    return tl_fail(err, TLAMP_UNSUPPORTED, "", "preparing keys and values is not built yet");
}

tlamp_status tlamp_kv_prepare(const tlamp_plan *plan, const tlamp_tensors *tensors, const tlamp_exec *exec,
                              void *prepared, size_t bytes, tlamp_error *err)
{
    (void)tensors;
    (void)exec;
    (void)prepared;
    (void)bytes;
    if (!plan) return tl_fail(err, TLAMP_INVALID_ARGUMENT, "plan", "is NULL");
    return tl_fail(err, TLAMP_UNSUPPORTED, "", "preparing keys and values is not built yet");
}

float tlamp_f16_to_f32(uint16_t x) { return tl_from_f16(x); }
uint16_t tlamp_f32_to_f16(float x) { return tl_to_f16(x); }
float tlamp_bf16_to_f32(uint16_t x) { return tl_from_bf16(x); }
uint16_t tlamp_f32_to_bf16(float x) { return tl_to_bf16(x); }
