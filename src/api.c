/* Executions: checks, then waves of sequences through survey, packing and attention. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "counters.h"
#include "device.h"
#include "plan.h"
#include "schedule.h"
#include "status.h"
#include "team.h"
#include "validate.h"

/* ------------------------------------------------------------------------------------------------ one execution */

typedef struct {
    const tlamp_plan *plan;
    tl_call call;
    tlamp_exec exec;
    int32_t workers;
    tl_workspace memory;
    tl_wave wave;
    int64_t run_heads; /* KV heads of a run, which are done one after another; 0: phase by phase */
    _Atomic int bad_worker;
} execution;

/* ------------------------------------------------------------------------------------------------ tasks */

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

static void survey_task(void *context, int64_t index, int32_t worker)
{
    execution *e = context;
    void *scratch = scratch_of(e, worker);
    if (!scratch) return;
    if (!e->plan->kernel->survey) {
        tl_survey_work(&e->wave, index, scratch);
        return;
    }
    const tl_unit_work u = tl_unit_at(&e->wave, index);
    e->plan->kernel->survey(&e->call, u.seq, &u.prepared, u.kv_head, u.unit, scratch);
}

static void mean_task(void *context, int64_t index, int32_t worker)
{
    execution *e = context;
    (void)worker;
    tl_mean_work(&e->wave, index);
}

/* A KV head's number in the wave. */
static int64_t head_number(const execution *e, const tl_sequence *s, int32_t kv_head)
{
    return (s - e->wave.sequences) * e->call.shape.heads_k + kv_head;
}

/* Heads of one run take turns in one area of memory, which stays in the cache of whoever runs them. */
static void take_area(const execution *e, const tl_sequence *s, int32_t kv_head, tl_prepared *prepared)
{
    if (!e->run_heads) return;
    const int64_t run = head_number(e, s, kv_head) / e->run_heads;
    *prepared = tl_prepared_at(&e->call.shape, s, e->memory.prepared + s->prepared_bytes * (size_t)run);
}

static void pack_task(void *context, int64_t index, int32_t worker)
{
    execution *e = context;
    void *scratch = scratch_of(e, worker);
    if (!scratch) return;
    tl_unit_work u = tl_unit_at(&e->wave, index);
    take_area(e, u.seq, u.kv_head, &u.prepared);
    e->plan->kernel->pack(&e->call, u.seq, &u.prepared, u.kv_head, u.unit, scratch, counters_of(e, worker));
}

static void attend_task(void *context, int64_t index, int32_t worker)
{
    execution *e = context;
    void *scratch = scratch_of(e, worker);
    if (!scratch) return;
    tl_task_work k = tl_split_task_at(&e->wave, index);
    take_area(e, k.seq, k.head / e->call.shape.group_heads, &k.prepared);
    e->plan->kernel->attend(&e->call, k.seq, &k.prepared, &k.task, k.head, scratch, counters_of(e, worker));
}

static void merge_task(void *context, int64_t index, int32_t worker)
{
    execution *e = context;
    void *scratch = scratch_of(e, worker);
    if (!scratch) return;
    const tl_task_work k = tl_task_at(&e->wave, index);
    e->plan->kernel->merge(&e->call, k.seq, &k.prepared, &k.task, k.head, scratch, counters_of(e, worker));
}

/* A head's units, then its tasks, for every head of the wave; all have as many. A task of a run waits for those before it at
 * most, and seldom: for what another worker, idle otherwise, has taken over. */
static void head_task(void *context, int64_t index, int32_t worker)
{
    execution *e = context;
    const tl_wave *w = &e->wave;
    const int64_t heads = w->count * e->call.shape.heads_k, units = w->units / heads, tasks = w->tasks / heads;
    const int64_t head = index / (units + tasks), i = index % (units + tasks);
    _Atomic int64_t *done = e->memory.done + head;
    if (i >= units) {
        tl_team_wait(done, units);
        attend_task(e, head * tasks + i - units, worker);
    } else {
        if (head % e->run_heads) tl_team_wait(done - 1, units + tasks); /* the area is free again */
        pack_task(e, head * units + i, worker);
    }
    (void)atomic_fetch_add_explicit(done, 1, memory_order_release);
}

/* ------------------------------------------------------------------------------------------------ run */

/* A worker must have something to do: waking it costs as much as some ten thousand multiplications. */
#define LEAST_WORK 65536.

static int32_t team_of(const execution *e)
{
    const tl_shape *shape = &e->call.shape;
    const double work = e->wave.pairs * (shape->head_dim_qk + shape->head_dim_v) / LEAST_WORK;
    return work < 1 ? 1 : work < e->workers ? (int32_t)work : e->workers;
}

/* 0: a stranger was among the workers, so that some of the phase's results are missing, which the next would read. */
static int run_phase(execution *e, int32_t runs, int64_t count, tlamp_task task)
{
    tl_team_run(&e->exec, team_of(e), runs, count, task, e);
    return !atomic_load(&e->bad_worker);
}

/* Worth it where keys are packed for several tasks, and workers have as many heads each, or heads as many workers: then nobody
 * waits for all others between the phases, and packed keys need not leave the cache. A caller's parallel_for sees each phase: it
 * may run tasks in any order. */
static int64_t run_heads(const execution *e)
{
    const tl_shape *shape = &e->call.shape;
    const tl_wave *w = &e->wave;
    const int64_t heads = w->count * shape->heads_k, team = team_of(e);
    const int packs = shape->packs && !shape->seen && !shape->mean && shape->splits == 1;
    if (!packs || e->exec.parallel_for || tl_min64(heads, team) > TL_MOST_RUNS || (heads % team && team % heads))
        return 0;
    for (int64_t b = 1; b < w->count; b++)
        if (w->sequences[b].lq != w->sequences[0].lq || w->sequences[b].lk != w->sequences[0].lk) return 0;
    return tl_max64(heads / team, 1);
}

static int run_wave(execution *e)
{
    const tl_shape *shape = &e->call.shape;
    const tl_wave *w = &e->wave;
    const int64_t heads = w->count * shape->heads_k;
    e->run_heads = run_heads(e);
    if (e->run_heads) {
        for (int64_t i = 0; i < heads; i++) atomic_init(&e->memory.done[i], 0);
        return run_phase(e, (int32_t)(heads / e->run_heads), w->units + w->tasks, head_task);
    }
    if ((shape->seen || shape->mean) && !run_phase(e, 0, w->units, survey_task)) return 0;
    if (shape->mean && !run_phase(e, 0, heads, mean_task)) return 0;
    if (shape->packs && !run_phase(e, 0, w->units, pack_task)) return 0;
    if (!run_phase(e, 0, w->tasks * shape->splits, attend_task)) return 0;
    return shape->splits == 1 || run_phase(e, 0, w->tasks, merge_task);
}

static void run(execution *e)
{
    for (int64_t first = 0; first < e->plan->problem.batch;) {
        first = tl_make_wave(&e->wave, e->plan, &e->call, e->memory.sequences, first, e->memory.prepared);
        if (e->wave.tasks && !run_wave(e)) return;
    }
}

static void fill_counters(execution *e, tlamp_counters *out)
{
    tlamp_counters n = {.struct_size = sizeof n};
    for (int64_t b = 0; b < e->plan->problem.batch; b++) tl_count_sequence(&e->call, &e->memory.sequences[b], &n);
    for (int32_t w = 0; w < e->workers; w++) tl_count_worker(&n, counters_of(e, w));
    tl_give_counters(out, &n);
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

    e.call = tl_make_call(plan, &t);
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
    e.call.partials = e.memory.partials;
    memset(e.memory.counters, 0, (size_t)e.workers * TL_COUNTERS_STRIDE);
    tl_make_sequences(e.memory.sequences, plan, &t);
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
        if (!(a < INFINITY && b < INFINITY)) { /* one of them is the row of a logit that is NaN or +Inf */
            for (int32_t c = 0; c < head_dim; c++) to[c] = NAN;
            lse_a[r] = NAN;
            continue;
        }
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
