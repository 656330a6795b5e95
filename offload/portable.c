/* The portable path's host side: memory on the device, the way there and back, the phases. It runs what the scalar CPU kernels
 * run, with their bits: the arithmetic is the same text.
 *
 * HOST memory: what the call reads is gathered, densely, into one buffer that has the device's layout; it travels in one piece,
 * and so do the results. DEVICE memory: pointers and strides are used as they are. */
#include "portable.h"

#include <omp.h>
#include <string.h>

#include "backend.h"
#include "count.h"
#include "counters.h"
#include "schedule.h"
#include "status.h"

#define TL_PORTABLE_KERNEL(symbol) extern const tl_portable_kernel symbol;
#include "portable_kernels.def"
#undef TL_PORTABLE_KERNEL

static const tl_portable_kernel *const kernels[] = {
#define TL_PORTABLE_KERNEL(symbol) &symbol,
#include "portable_kernels.def"
#undef TL_PORTABLE_KERNEL
};
enum { KERNELS = sizeof kernels / sizeof kernels[0] };

/* Workers are so many that a large device is busy, and their scratch so little that a small one has it. */
enum { MOST_WORKERS = 1 << 14 };
static const size_t most_scratch = (size_t)1 << 30, most_prepared = (size_t)1 << 28;

typedef struct {
    tlamp_plan plan; /* of the portable kernel */
    const tl_portable_kernel *kernel;
    int32_t device;
    int64_t workers;
    tl_call from;           /* the caller's tensors */
    tl_sequence *sequences; /* the caller's, [batch] */
    int64_t words_each;     /* words of a routing row, at most; 0: no words travel */
    int64_t words_rows;     /* routing rows of a sequence, at most */
    int64_t rows_q, rows_k; /* of the packed tensors, or of the longest sequence */
    size_t returned,
        shared; /* bytes of the device's memory: [returned, shared) comes back, [0, shared) has a twin here */
    unsigned char *here, *there;
} execution;

/* ------------------------------------------------------------------------------------------------ layout */

/* The device's memory. In its twin on the host the same offsets hold. */
typedef struct {
    tl_portable_run *run;
    tlamp_policy *policy;
    tl_sequence *sequences;
    tl_call call; /* tensors: pieces of this memory, dense; or the caller's where those lie on the device */
    uint64_t *words;
    unsigned char *counters, *prepared, *scratch;
} layout;

/* Dense strides of [batch][rows][heads][row], 1 element for dimensions that were broadcast. Returns the number of elements. */
static int64_t dense(int64_t *batch, int64_t *seq, int64_t *head, const int64_t extent[3], int64_t row)
{
    int64_t step = row, *const stride[3] = {head, seq, batch};
    for (int i = 0; i < 3; i++) {
        const int64_t n = extent[2 - i];
        const int broadcast = *stride[i] == 0;
        *stride[i] = broadcast ? 0 : step;
        if (!broadcast || n == 0) step *= n;
    }
    return step;
}

/* The batch dimension of packed sequences has stride 0. */
static void place_operand(const execution *e, tl_operand *a, int64_t rows, int64_t blocks, int64_t heads, int64_t row,
                          tl_arena *arena)
{
    const int64_t extent[3] = {e->plan.problem.batch, rows, heads};
    const int64_t n = dense(&a->batch, &a->seq, &a->head, extent, row);
    a->data = tl_take_array(arena, n, (size_t)tl_dtype_bytes(a->dtype));
    if (a->scale) a->scale = tl_take_array(arena, blocks * heads, sizeof(float));
}

static void place_scores(const execution *e, tl_score_operand *a, size_t element, tl_arena *arena)
{
    const tlamp_problem *p = &e->plan.problem;
    const int64_t extent[3] = {p->batch, p->num_heads_q, e->plan.problem.max_seqlen_q};
    if (!a->data) return;
    const int64_t keys = a->k ? p->max_seqlen_k : 1;
    a->k = a->k != 0;
    const int64_t n = dense(&a->batch, &a->head, &a->q, extent, keys);
    a->data = tl_take_array(arena, n, element);
}

static int64_t blocks_of(const tl_operand *a, int64_t earlier, int64_t tokens)
{
    return a->scale ? earlier + tl_ceil_div(tokens, a->scale_block) : 0;
}

static void place_inputs(const execution *e, layout *l, tl_arena *a)
{
    const tlamp_problem *p = &e->plan.problem;
    const tl_sequence *last = e->sequences + p->batch - 1;
    tl_call *c = &l->call;
    place_operand(e, &c->q, e->rows_q, blocks_of(&c->q, last->q_blocks, last->lq), p->num_heads_q, p->head_dim_qk, a);
    place_operand(e, &c->k, e->rows_k, blocks_of(&c->k, last->k_blocks, last->lk), p->num_heads_k, p->head_dim_qk, a);
    place_operand(e, &c->v, e->rows_k, blocks_of(&c->v, last->k_blocks, last->lk), p->num_heads_k, p->head_dim_v, a);
    place_scores(e, &c->bool_mask, 1, a);
    place_scores(e, &c->bias, (size_t)tl_dtype_bytes(c->bias.dtype), a);
    if (c->alibi_slopes) {
        const int64_t each = c->alibi_batch_stride ? p->num_heads_q : 0;
        c->alibi_slopes = tl_take_array(a, each ? each * p->batch : p->num_heads_q, sizeof(float));
        c->alibi_batch_stride = each;
    }
    if (c->sinks) c->sinks = tl_take_array(a, p->num_heads_q, sizeof(float));
    l->words = tl_take_array(a, p->batch * p->num_heads_k * e->words_rows * e->words_each, sizeof *l->words);
    c->words_row = e->words_each;
    c->words_head = e->words_rows * e->words_each;
}

static void place_outputs(const execution *e, layout *l, tl_arena *a)
{
    const tlamp_problem *p = &e->plan.problem;
    const int64_t extent[3] = {p->batch, e->rows_q, p->num_heads_q};
    tl_call *c = &l->call;
    const int64_t n = dense(&c->o.batch, &c->o.seq, &c->o.head, extent, p->head_dim_v);
    c->o.data = tl_take_array(a, n, (size_t)tl_dtype_bytes(c->o.dtype));
    if (!c->lse) return;
    tlamp_lse_strides *s = &c->lse_stride;
    c->lse = tl_take_array(a, dense(&s->batch, &s->seq, &s->head, extent, 1), sizeof(float));
}

/* shared and returned are learnt on the way. */
static layout lay_out(execution *e, tlamp_memory memory, unsigned char *base, size_t *bytes)
{
    tl_arena a = {base, 0};
    layout l = {.call = e->from};
    l.run = tl_take(&a, (int64_t)sizeof *l.run);
    l.policy = tl_take(&a, (int64_t)sizeof *l.policy);
    l.sequences = tl_take_array(&a, e->plan.problem.batch, sizeof *l.sequences);
    if (memory == TLAMP_MEMORY_HOST) place_inputs(e, &l, &a);
    e->returned = a.used;
    l.counters = tl_take_array(&a, e->workers, TL_COUNTERS_STRIDE);
    if (memory == TLAMP_MEMORY_HOST) place_outputs(e, &l, &a);
    e->shared = a.used;
    l.prepared = tl_take_array(&a, 1, e->plan.prepared_bytes);
    l.scratch = tl_take_array(&a, e->workers, e->plan.scratch_bytes);
    *bytes = a.used;
    return l;
}

/* ------------------------------------------------------------------------------------------------ gathering */

/* What the sequence's rows of one operand are; a broadcast dimension is copied once. */
static void gather_operand(const tl_operand *from, const tl_operand *to, const tl_sequence *s, int64_t start,
                           int64_t rows, int64_t heads, int64_t row)
{
    const int64_t n_rows = to->seq ? rows : tl_min64(rows, 1), n_heads = to->head ? heads : tl_min64(heads, 1);
    const size_t bytes = (size_t)(row * tl_dtype_bytes(from->dtype));
    for (int64_t h = 0; h < n_heads; h++)
        for (int64_t i = 0; i < n_rows; i++)
            memcpy((void *)(uintptr_t)tl_row(to, s->batch, start, i, h), tl_row(from, s->batch, start, i, h), bytes);
}

static void gather_scales(const tl_operand *from, const tl_operand *to, int64_t blocks, int64_t heads)
{
    if (from->scale) memcpy((void *)(uintptr_t)to->scale, from->scale, (size_t)(blocks * heads) * sizeof(float));
}

static void gather_scores(const tl_score_operand *from, const tl_score_operand *to, size_t element, int64_t heads,
                          const tl_sequence *s)
{
    if (!from->data) return;
    const int64_t n_heads = to->head ? heads : tl_min64(heads, 1), n_rows = to->q ? s->lq : tl_min64(s->lq, 1);
    const int64_t n_keys = to->k ? s->lk : tl_min64(s->lk, 1);
    unsigned char *data = (unsigned char *)(uintptr_t)to->data;
    for (int64_t h = 0; h < n_heads; h++)
        for (int64_t i = 0; i < n_rows; i++)
            for (int64_t j = 0; j < n_keys; j++)
                memcpy(data + tl_score_offset(to, s->batch, h, i, j) * (int64_t)element,
                       from->data + tl_score_offset(from, s->batch, h, i, j) * (int64_t)element, element);
}

/* Words of a routing row that exist. */
static int64_t words_of(const execution *e, const tl_sequence *s)
{
    return tl_ceil_div(tl_num_groups(s->lk, e->plan.policy.block_n, s->group), 64);
}

static int64_t routing_rows(const execution *e, const tl_sequence *s)
{
    return tl_ceil_div(s->lq, e->plan.policy.block_m);
}

static uint64_t *sequence_words(const execution *e, uint64_t *words, const tl_sequence *s)
{
    return words + s->batch * e->plan.problem.num_heads_k * e->words_rows * e->words_each;
}

static void gather_words(const execution *e, const tl_sequence *s, uint64_t *words)
{
    const size_t bytes = (size_t)words_of(e, s) * sizeof *words;
    uint64_t *to = sequence_words(e, words, s);
    for (int64_t h = 0; h < e->plan.problem.num_heads_k; h++)
        for (int64_t m = 0; m < routing_rows(e, s) && bytes; m++)
            memcpy(to + (h * e->words_rows + m) * e->words_each,
                   s->words + h * e->from.words_head + m * e->from.words_row, bytes);
}

static void gather(const execution *e, layout *l)
{
    const tlamp_problem *p = &e->plan.problem;
    const tl_call *from = &e->from, *to = &l->call;
    const tl_sequence *last = e->sequences + p->batch - 1;
    for (int64_t b = 0; b < p->batch; b++) {
        const tl_sequence *s = &e->sequences[b];
        gather_operand(&from->q, &to->q, s, s->q_start, s->lq, p->num_heads_q, p->head_dim_qk);
        gather_operand(&from->k, &to->k, s, s->k_start, s->lk, p->num_heads_k, p->head_dim_qk);
        gather_operand(&from->v, &to->v, s, s->k_start, s->lk, p->num_heads_k, p->head_dim_v);
        gather_scores(&from->bool_mask, &to->bool_mask, 1, p->num_heads_q, s);
        gather_scores(&from->bias, &to->bias, (size_t)tl_dtype_bytes(from->bias.dtype), p->num_heads_q, s);
        if (from->alibi_slopes)
            memcpy((float *)(uintptr_t)to->alibi_slopes + b * to->alibi_batch_stride,
                   from->alibi_slopes + b * from->alibi_batch_stride, (size_t)p->num_heads_q * sizeof(float));
        if (e->words_each) gather_words(e, s, l->words);
    }
    gather_scales(&from->q, &to->q, blocks_of(&from->q, last->q_blocks, last->lq), p->num_heads_q);
    gather_scales(&from->k, &to->k, blocks_of(&from->k, last->k_blocks, last->lk), p->num_heads_k);
    gather_scales(&from->v, &to->v, blocks_of(&from->v, last->k_blocks, last->lk), p->num_heads_k);
    if (from->sinks) memcpy((float *)(uintptr_t)to->sinks, from->sinks, (size_t)p->num_heads_q * sizeof(float));
}

static void scatter(const execution *e, const layout *l)
{
    const tlamp_problem *p = &e->plan.problem;
    const tl_output *from = &l->call.o, *to = &e->from.o;
    const tlamp_lse_strides *a = &l->call.lse_stride, *b = &e->from.lse_stride;
    const size_t bytes = (size_t)(p->head_dim_v * tl_dtype_bytes(to->dtype));
    for (int64_t n = 0; n < p->batch; n++) {
        const tl_sequence *s = &e->sequences[n];
        for (int64_t h = 0; h < p->num_heads_q; h++)
            for (int64_t i = 0; i < s->lq; i++) {
                const int64_t row = s->q_start + i;
                memcpy(tl_out_row(to, n, s->q_start, i, h), tl_out_row(from, n, s->q_start, i, h), bytes);
                if (e->from.lse)
                    e->from.lse[n * b->batch + h * b->head + row * b->seq] =
                        l->call.lse[n * a->batch + h * a->head + row * a->seq];
            }
    }
}

/* ------------------------------------------------------------------------------------------------ running */

static tlamp_status copy(const execution *e, size_t from, size_t to, int back, tlamp_error *err)
{
    const int host = omp_get_initial_device(), device = e->device;
    const int failed = back ? omp_target_memcpy(e->here, e->there, to - from, from, from, host, device)
                            : omp_target_memcpy(e->there, e->here, to - from, from, from, device, host);
    return failed ? tl_copy_failed(err) : TLAMP_OK;
}

/* The head of the shared memory as the device is to see it: every pointer is the device's. */
static void make_run(const execution *e, const layout *here, const layout *there, tl_wave *wave)
{
    tl_call call = there->call;
    call.policy = call.shape.policy = there->policy;
    wave->call = &there->run->call;
    wave->sequences = there->sequences + (wave->sequences - here->sequences);
    *here->run = (tl_portable_run){
        call, *wave, there->scratch, there->counters, e->plan.scratch_bytes, TL_COUNTERS_STRIDE, e->workers};
    *here->policy = e->plan.policy;
}

static tlamp_status run_phases(const execution *e, const layout *there, const tl_wave *w, tlamp_error *err)
{
    const tl_shape *shape = &e->plan.shape;
    const struct {
        tl_phase phase;
        int needed;
        int64_t count;
    } phases[] = {{TL_PHASE_SURVEY, shape->seen || shape->mean, w->units},
                  {TL_PHASE_MEAN, shape->mean, w->count * shape->heads_k},
                  {TL_PHASE_PACK, shape->packs, w->units},
                  {TL_PHASE_ATTEND, 1, w->tasks}};
    for (int i = 0; i < 4; i++) {
        if (!phases[i].needed || !phases[i].count) continue;
        if (e->kernel->launch(there->run, (int32_t)phases[i].phase, tl_min64(e->workers, phases[i].count), e->device))
            return tl_not_launched(err);
    }
    return TLAMP_OK;
}

static tlamp_status run(execution *e, layout *here, layout *there, tlamp_error *err)
{
    const int64_t batch = e->plan.problem.batch;
    memcpy(here->sequences, e->sequences, (size_t)batch * sizeof *here->sequences);
    for (int64_t b = 0; b < batch && there->words && e->words_each; b++) /* HOST memory */
        here->sequences[b].words = sequence_words(e, there->words, &e->sequences[b]);
    const size_t head = (size_t)((unsigned char *)(here->sequences + batch) - e->here);
    tlamp_status status = copy(e, 0, e->returned, 0, err);
    if (!status) { /* counters start at 0 */
        memset(here->counters, 0, (size_t)e->workers * TL_COUNTERS_STRIDE);
        const size_t at = e->returned;
        status = copy(e, at, at + (size_t)e->workers * TL_COUNTERS_STRIDE, 0, err);
    }
    for (int64_t first = 0; first < batch && !status;) {
        tl_wave wave;
        first = tl_make_wave(&wave, &e->plan, &e->from, here->sequences, first, there->prepared);
        if (wave.tasks == 0) continue;
        make_run(e, here, there, &wave);
        status = copy(e, 0, head, 0, err);
        if (!status) status = run_phases(e, there, &wave, err);
    }
    return status ? status : copy(e, e->returned, e->shared, 1, err);
}

/* ------------------------------------------------------------------------------------------------ executions */

static const tl_portable_kernel *choose_kernel(const tlamp_problem *p)
{
    for (int i = 0; i < KERNELS; i++)
        if (kernels[i]->kernel->lamp == (p->policy->kind == TLAMP_POLICY_LAMP) && kernels[i]->kernel->supports(p))
            return kernels[i];
    return NULL;
}

/* Workers and memory for so much work: prepared bytes are those of all sequences. Neither falls where work grows. */
static void set_sizes(execution *e, int64_t units, int64_t tasks, size_t prepared)
{
    const size_t longest = e->plan.prepared_bytes, limit = longest > most_prepared ? longest : most_prepared;
    const int64_t fit = (int64_t)(most_scratch / (e->plan.scratch_bytes + 1)) + 1;
    e->plan.prepared_bytes = prepared < limit ? prepared : limit;
    e->workers = tl_clamp64(tl_max64(units, tasks), 1, tl_min64(fit, MOST_WORKERS));
}

static int64_t tasks_of(const tl_shape *shape, int64_t lq)
{
    return tl_row_tasks(shape, lq) * shape->heads_k * tl_head_tasks(shape);
}

/* The most work that an execution of the plan can have. */
static void set_most_sizes(execution *e)
{
    const tlamp_problem *p = &e->plan.problem;
    const tl_shape *shape = &e->plan.shape;
    const int64_t sequences = tl_clamp64(p->batch, 0, MOST_WORKERS); /* more change nothing */
    const int64_t units = tl_min64(tl_units(shape, p->max_seqlen_k) * shape->heads_k, MOST_WORKERS);
    const int64_t tasks = tl_min64(tasks_of(shape, p->max_seqlen_q), MOST_WORKERS);
    set_sizes(e, units * sequences, tasks * sequences,
              tl_mul_size(tl_prepared_size(&e->plan, p->max_seqlen_k), (size_t)p->batch));
}

/* The work of the whole batch, the extents of what travels, and how many workers there are. */
static void measure(execution *e)
{
    const tlamp_problem *p = &e->plan.problem;
    const tl_shape *shape = &e->plan.shape;
    int64_t units = 0, tasks = 0;
    size_t prepared = 0;
    e->rows_q = e->rows_k = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        const tl_sequence *s = &e->sequences[b];
        units += tl_units(shape, s->lk) * shape->heads_k;
        tasks += tasks_of(shape, s->lq);
        prepared = tl_add_size(prepared, tl_prepared_size(&e->plan, s->lk));
        e->rows_q = tl_max64(e->rows_q, s->q_start + s->lq);
        e->rows_k = tl_max64(e->rows_k, s->k_start + s->lk);
        if (!s->words) continue;
        e->words_each = tl_max64(e->words_each, words_of(e, s));
        e->words_rows = tl_max64(e->words_rows, routing_rows(e, s));
    }
    set_sizes(e, units, tasks, prepared);
}

/* counters: NULL, or where workers' counts are added. */
static tlamp_status run_with_memory(execution *e, tlamp_memory memory, tlamp_counters *counters, tlamp_error *err)
{
    size_t ignored;
    layout here = lay_out(e, memory, e->here, &ignored), there = lay_out(e, memory, e->there, &ignored);
    if (memory == TLAMP_MEMORY_HOST) gather(e, &here);
    tlamp_status status = run(e, &here, &there, err);
    for (int64_t w = 0; w < e->workers && counters && !status; w++)
        tl_count_worker(counters,
                        (const tl_worker_counters *)(const void *)(here.counters + (size_t)w * TL_COUNTERS_STRIDE));
    if (!status && memory == TLAMP_MEMORY_HOST) scatter(e, &here);
    return status;
}

static tlamp_status execute(const tlamp_plan *plan, const tlamp_tensors *tensors, const tlamp_exec *exec,
                            void *workspace, size_t workspace_bytes, tlamp_error *err)
{
    execution e = {.kernel = choose_kernel(&plan->problem), .device = exec->device};
    if (!e.kernel) return tl_fail(err, TLAMP_UNSUPPORTED, "policy", "not built for devices");
    if (plan->problem.num_splits > 1)
        return tl_fail(err, TLAMP_UNSUPPORTED, "num_splits",
                       "on devices keys are split where tensor cores run the problem alone: use 1");
    tlamp_counters counters = {.struct_size = sizeof counters};
    if (plan->problem.batch == 0) {
        if (tensors->counters) tl_give_counters(tensors->counters, &counters);
        return TLAMP_OK;
    }
    if (tensors->counters) {
        const tlamp_status counted = tl_count_geometry(&counters, plan, tensors, exec, err);
        if (counted) return counted;
    }
    tl_plan_with_kernel(&e.plan, plan, e.kernel->kernel);
    e.from = tl_make_call(&e.plan, tensors);

    /* Here: the sequences, and the twin of what travels. There: all of it. */
    const tlamp_allocator memory = tl_allocator(&exec->allocator);
    const size_t sequences = tl_mul_size((size_t)plan->problem.batch, sizeof *e.sequences);
    e.sequences = memory.alloc(memory.context, sequences, TLAMP_WORKSPACE_ALIGN);
    if (!e.sequences) return tl_no_memory(sequences, err);
    tl_make_sequences(e.sequences, &e.plan, tensors);
    measure(&e);
    size_t bytes;
    (void)lay_out(&e, exec->memory, NULL, &bytes);
    tlamp_status status = TLAMP_OK;
    void *own = NULL;
    if (bytes != SIZE_MAX && e.shared != SIZE_MAX) {
        e.here = memory.alloc(memory.context, e.shared, TLAMP_WORKSPACE_ALIGN);
        e.there = workspace && workspace_bytes >= bytes ? workspace : NULL;
        if (e.here && !e.there) e.there = own = omp_target_alloc(bytes, e.device);
    }
    if (!e.here || !e.there)
        status = tl_no_device_memory(bytes, err);
    else
        status = run_with_memory(&e, exec->memory, tensors->counters ? &counters : NULL, err);
    if (!status && tensors->counters) tl_give_counters(tensors->counters, &counters);
    if (own) omp_target_free(own, e.device);
    if (e.here) memory.free(memory.context, e.here);
    memory.free(memory.context, e.sequences);
    return status;
}

/* What an execution with DEVICE memory needs, at most. */
static int supports(const tlamp_plan *plan, size_t *bytes)
{
    execution e = {.kernel = choose_kernel(&plan->problem)};
    *bytes = 0;
    if (!e.kernel || plan->problem.num_splits > 1) return 0;
    if (plan->problem.batch == 0) return 1;
    tl_plan_with_kernel(&e.plan, plan, e.kernel->kernel);
    set_most_sizes(&e);
    (void)lay_out(&e, TLAMP_MEMORY_DEVICE, NULL, bytes);
    return 1;
}

static const char *kernel_name(const tlamp_plan *plan) { return choose_kernel(&plan->problem)->kernel->name; }

extern const tl_backend tl_portable_backend;
const tl_backend tl_portable_backend = {"portable", supports, kernel_name, execute};
