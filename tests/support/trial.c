#include "trial.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/parse.h"
#include "counting.h"
#include "device.h"

/* ------------------------------------------------------------------------------------------------ making one */

static void give_up(const char *problem, const char *policy, const char *why)
{
    fprintf(stderr, "test: \"%s\" --policy \"%s\": %s\n", problem, policy, why);
    exit(2);
}

static tlamp_geometry geometry_of(const trial *t, int64_t b)
{
    const problem_spec *s = &t->in.spec;
    tlamp_geometry g;
    tlamp_geometry_init(&g, sizeof g);
    g.seqlen_q = problem_length_q(s, b);
    g.seqlen_k = problem_used_k(s, b);
    g.block_m = t->policy.policy.block_m;
    g.block_n = t->policy.policy.block_n;
    g.group = t->policy.group ? t->policy.group : tlamp_auto_group(problem_length_k(s, b), g.block_n);
    g.mask = s->mask;
    g.window_left = s->window_left;
    g.window_right = s->window_right;
    return g;
}

static int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

static int64_t routing_rows(const trial *t, int64_t b)
{
    return ceil_div(problem_length_q(&t->in.spec, b), t->policy.policy.block_m);
}

static int32_t words_per_row(const trial *t)
{
    int64_t most = 1;
    for (int64_t b = 0; b < t->in.spec.batch; b++) {
        const int64_t lk = problem_length_k(&t->in.spec, b), tile = t->policy.policy.block_n;
        const int64_t group = t->policy.group ? t->policy.group : tlamp_auto_group(lk, t->policy.policy.block_n);
        const int64_t words = ceil_div(ceil_div(lk, tile * group), 64);
        most = words > most ? words : most;
    }
    return (int32_t)most;
}

/* Routing map of sequence b with words_per_row words a row; the bits beyond a shorter map are 0. */
static void build_map(const trial *t, const tlamp_layout *layout, int64_t b, uint64_t *words)
{
    const tlamp_geometry g = geometry_of(t, b);
    const int64_t count = tlamp_layout_words(&g), rows = routing_rows(t, b);
    uint64_t *map = new_zeros((size_t)(count > 0 ? count : 0), sizeof *map);
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    if (count < 0 || tlamp_layout_build(layout, &g, map, count, NULL, &err)) give_up("", t->policy.text, err.text);
    const int64_t from = rows ? count / rows : 0, to = t->in.problem.words_per_row;
    for (int64_t m = 0; m < rows; m++) memcpy(words + m * to, map + m * from, (size_t)from * sizeof *map);
    free(map);
}

/* One map per sequence, shared by the heads: packed one after another, dense with the same distance. */
static void build_words(const trial *t, const tlamp_layout *layout, uint64_t *words)
{
    for (int64_t b = 0; b < t->in.spec.batch; b++) {
        build_map(t, layout, b, words);
        words += routing_rows(t, b) * t->in.problem.words_per_row;
    }
}

static void make_words(trial *t)
{
    const problem_spec *s = &t->in.spec;
    tlamp_tensors *tensors = &t->in.tensors;
    t->in.problem.words_per_row = words_per_row(t);
    int64_t rows = 0;
    for (int64_t b = 0; b < s->batch; b++) rows += routing_rows(t, b);
    t->num_words = rows * t->in.problem.words_per_row;
    t->words = new_zeros((size_t)t->num_words, sizeof *t->words);
    tlamp_layout layout;
    tlamp_layout_init(&layout, sizeof layout);
    layout.kind = t->policy.layout;
    layout.coverage = t->policy.coverage;
    layout.retarget = t->policy.retarget;
    if (t->policy.has_seed) layout.seed = t->policy.seed;
    build_words(t, &layout, t->words);
    tensors->words = t->words;
    tensors->words_stride_row = t->in.problem.words_per_row;
    if (!s->varlen && s->batch) tensors->words_stride_batch = t->num_words / s->batch;
    if (!t->policy.group) return;
    t->groups = new_zeros((size_t)s->batch, sizeof *t->groups);
    for (int64_t b = 0; b < s->batch; b++) t->groups[b] = t->policy.group;
    tensors->groups = t->groups;
}

void trial_create(trial *t, const char *problem, const char *policy)
{
    fault f;
    problem_spec *spec = new_memory(1, sizeof *spec);
    *t = (trial){.threads = 7, .device = -1};
    if (problem_parse(spec, problem, &f) || policy_parse(&t->policy, policy, &f) || input_create(&t->in, spec, &f) ||
        input_fill(&t->in, &f))
        give_up(problem, policy, f.text);
    free(spec);
    if (t->policy.splits) t->in.problem.num_splits = num_splits_of(t->policy.splits);
    const bool rotates = (t->in.spec.d & (t->in.spec.d - 1)) == 0;
    if (t->policy.hadamard_if_possible && rotates) t->policy.policy.hadamard = 1;
    t->in.problem.policy = &t->policy.policy;
    if (t->policy.layout != NO_LAYOUT) make_words(t);
    t->result = trial_new_result(t);
    t->o = new_memory(trial_o_count(t), sizeof *t->o);
    t->o_bound = new_memory(trial_o_count(t), sizeof *t->o_bound);
    t->lse = new_memory(trial_lse_count(t), sizeof *t->lse);
    t->lse_bound = new_memory(trial_lse_count(t), sizeof *t->lse_bound);
}

void trial_free(trial *t)
{
    input_free(&t->in);
    free(t->words);
    free(t->groups);
    for (int i = 0; i < TRIAL_COPIES; i++) guarded_free(&t->copies[i]);
    guarded_free(&t->o_memory);
    guarded_free(&t->lse_memory);
    guarded_free(&t->workspace);
    trial_free_result(&t->result);
    free(t->o);
    free(t->o_bound);
    free(t->lse);
    free(t->lse_bound);
}

size_t trial_o_count(const trial *t) { return trial_lse_count(t) * (size_t)t->in.spec.dv; }

size_t trial_lse_count(const trial *t) { return (size_t)(t->in.rows * t->in.spec.heads_q); }

trial_result trial_new_result(const trial *t)
{
    return (trial_result){new_zeros(trial_o_count(t), 4), new_zeros(trial_lse_count(t), 4)};
}

void trial_free_result(trial_result *r)
{
    free(r->o);
    free(r->lse);
}

bool trial_same_bits(const trial *t, const trial_result *a, const trial_result *b)
{
    return memcmp(a->o, b->o, trial_o_count(t) * 4) == 0 && memcmp(a->lse, b->lse, trial_lse_count(t) * 4) == 0;
}

/* ------------------------------------------------------------------------------------------------ elements */

static void set(void *data, tlamp_dtype dtype, const tlamp_strides *stride, const int32_t *cu, int64_t b, int64_t h,
                int64_t i, int64_t c, double x)
{
    tensor_set(data, dtype, input_offset(stride, cu, b, i, h) + c, x);
}

void trial_set_q(trial *t, int64_t b, int64_t h, int64_t i, int64_t c, double x)
{
    set(t->in.q, t->in.spec.q_dtype, &t->in.problem.q_stride, t->in.tensors.cu_seqlens_q, b, h, i, c, x);
}

void trial_set_k(trial *t, int64_t b, int64_t h, int64_t j, int64_t c, double x)
{
    set(t->in.k, t->in.spec.k_dtype, &t->in.problem.k_stride, t->in.tensors.cu_seqlens_k, b, h, j, c, x);
}

void trial_set_v(trial *t, int64_t b, int64_t h, int64_t j, int64_t c, double x)
{
    set(t->in.v, t->in.spec.v_dtype, &t->in.problem.v_stride, t->in.tensors.cu_seqlens_k, b, h, j, c, x);
}

static int64_t score_offset(const tlamp_score_strides *s, int64_t b, int64_t h, int64_t i, int64_t j)
{
    return b * s->batch + h * s->head + i * s->q + j * s->k;
}

void trial_set_mask(trial *t, int64_t b, int64_t h, int64_t i, int64_t j, bool visible)
{
    /* The tensors are this trial's own: only the library may not write to them. */
    uint8_t *mask = (uint8_t *)(uintptr_t)t->in.tensors.bool_mask;
    mask[score_offset(&t->in.problem.bool_mask_stride, b, h, i, j)] = visible;
}

void trial_set_bias(trial *t, int64_t b, int64_t h, int64_t i, int64_t j, double x)
{
    void *bias = (void *)(uintptr_t)t->in.tensors.bias;
    tensor_set(bias, t->in.spec.bias_dtype, score_offset(&t->in.problem.bias_stride, b, h, i, j), x);
}

static size_t o_index(const trial *t, int64_t row, int64_t h, int64_t c)
{
    return (size_t)((row * t->in.spec.heads_q + h) * t->in.spec.dv + c);
}

static size_t lse_index(const trial *t, int64_t row, int64_t h) { return (size_t)(h * t->in.rows + row); }

static double o_value(const trial *t, const trial_result *r, size_t index)
{
    const uint16_t half = (uint16_t)r->o[index];
    const bool is_f32 = t->in.spec.o_dtype == TLAMP_F32;
    return tensor_get(is_f32 ? (const void *)&r->o[index] : &half, t->in.spec.o_dtype, 0);
}

static double lse_value(const trial_result *r, size_t index) { return tensor_get(&r->lse[index], TLAMP_F32, 0); }

double trial_o(const trial *t, int64_t b, int64_t h, int64_t i, int64_t c)
{
    return o_value(t, &t->result, o_index(t, input_row(&t->in, b, i), h, c));
}

double trial_lse(const trial *t, int64_t b, int64_t h, int64_t i)
{
    return lse_value(&t->result, lse_index(t, input_row(&t->in, b, i), h));
}

double trial_o_bound(const trial *t, int64_t b, int64_t h, int64_t i, int64_t c)
{
    return t->o_bound[o_index(t, input_row(&t->in, b, i), h, c)];
}

double trial_lse_bound(const trial *t, int64_t b, int64_t h, int64_t i)
{
    return t->lse_bound[lse_index(t, input_row(&t->in, b, i), h)];
}

/* ------------------------------------------------------------------------------------------------ guarded tensors */

#if defined __GNUC__
__attribute__((format(printf, 2, 3)))
#endif
static bool
fail(verdict *v, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (v->passed) (void)vsnprintf(v->why, sizeof v->why, format, args);
    va_end(args);
    return v->passed = false;
}

/* Elements from the first to the last one of a tensor with positive strides. */
static size_t extent(const trial *t, const tlamp_strides *s, bool of_keys, int64_t heads, int64_t dim)
{
    const problem_spec *spec = &t->in.spec;
    const tlamp_problem *p = &t->in.problem;
    const int64_t batch = spec->varlen ? 1 : spec->batch;
    const int64_t rows = spec->varlen ? (of_keys ? p->total_k : p->total_q) : (of_keys ? spec->lk : spec->lq);
    if (!batch || !rows || !heads) return 0;
    return (size_t)((batch - 1) * s->batch + (rows - 1) * s->seq + (heads - 1) * s->head + dim);
}

static size_t score_extent(const trial *t, const tlamp_score_strides *s)
{
    const problem_spec *spec = &t->in.spec;
    if (!spec->batch || !spec->heads_q || !spec->lq || !spec->lk) return 0;
    return (size_t)((spec->batch - 1) * s->batch + (spec->heads_q - 1) * s->head + (spec->lq - 1) * s->q +
                    (spec->lk - 1) * s->k + 1);
}

static size_t lse_extent(const trial *t)
{
    const problem_spec *spec = &t->in.spec;
    const tlamp_lse_strides *s = &t->in.problem.lse_stride;
    const int64_t batch = spec->varlen ? 1 : spec->batch, rows = spec->varlen ? t->in.problem.total_q : spec->lq;
    if (!batch || !rows || !spec->heads_q) return 0;
    return (size_t)((batch - 1) * s->batch + (rows - 1) * s->seq + (spec->heads_q - 1) * s->head + 1);
}

/* A copy that ends at the guard page; NULL stays NULL. */
static const void *guard(guarded *g, const void *from, size_t count, size_t size)
{
    if (!from) return NULL;
    guarded_copy(g, from, count * size);
    return g->data;
}

static void guard_inputs(trial *t)
{
    const problem_spec *s = &t->in.spec;
    const tlamp_problem *p = &t->in.problem;
    tlamp_tensors *g = &t->guarded_tensors;
    guarded *to = t->copies;
    const size_t batch = (size_t)s->batch, heads = (size_t)s->heads_q;
    *g = t->in.tensors;
    g->q = guard(to++, g->q, extent(t, &p->q_stride, false, s->heads_q, s->d), dtype_size(s->q_dtype));
    g->k = guard(to++, g->k, extent(t, &p->k_stride, true, s->heads_k, s->d), dtype_size(s->k_dtype));
    g->v = guard(to++, g->v, extent(t, &p->v_stride, true, s->heads_k, s->dv), dtype_size(s->v_dtype));
    g->bool_mask = guard(to++, g->bool_mask, score_extent(t, &p->bool_mask_stride), 1);
    g->bias = guard(to++, g->bias, score_extent(t, &p->bias_stride), dtype_size(s->bias_dtype));
    g->cu_seqlens_q = guard(to++, g->cu_seqlens_q, batch + 1, sizeof *g->cu_seqlens_q);
    g->cu_seqlens_k = guard(to++, g->cu_seqlens_k, batch + 1, sizeof *g->cu_seqlens_k);
    g->seqused_k = guard(to++, g->seqused_k, batch, sizeof *g->seqused_k);
    g->alibi_slopes = guard(to++, p->has_alibi ? g->alibi_slopes : NULL, heads, sizeof *g->alibi_slopes);
    g->sinks = guard(to++, p->has_sinks ? g->sinks : NULL, heads, sizeof *g->sinks);
}

static void guard_outputs(trial *t, unsigned char poison)
{
    const problem_spec *s = &t->in.spec;
    guarded_resize(&t->o_memory, extent(t, &t->in.problem.o_stride, false, s->heads_q, s->dv) * dtype_size(s->o_dtype));
    guarded_resize(&t->lse_memory, lse_extent(t) * sizeof(float));
    memset(t->o_memory.data, poison, t->o_memory.bytes);
    memset(t->lse_memory.data, poison, t->lse_memory.bytes);
    t->guarded_tensors.o = t->o_memory.data;
    t->guarded_tensors.lse = (float *)(void *)t->lse_memory.data;
}

static bool all_poison(const guarded *g, unsigned char poison)
{
    for (size_t i = 0; i < g->bytes; i++)
        if (g->data[i] != poison) return false;
    return true;
}

/* Takes the elements that belong to a row out of the outputs and leaves poison in their place: what is not poison after
 * that was never to be written. */
static void harvest(trial *t, unsigned char poison, trial_result *to)
{
    const problem_spec *s = &t->in.spec;
    const size_t size = dtype_size(s->o_dtype);
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t i = 0; i < problem_length_q(s, b); i++)
            for (int64_t h = 0; h < s->heads_q; h++) {
                const int64_t row = input_row(&t->in, b, i);
                const int64_t at = input_offset(&t->in.problem.o_stride, t->in.tensors.cu_seqlens_q, b, i, h);
                for (int64_t c = 0; c < s->dv; c++) {
                    unsigned char *from = t->o_memory.data + (size_t)(at + c) * size;
                    uint32_t *bits = &to->o[o_index(t, row, h, c)];
                    *bits = 0;
                    memcpy(bits, from, size); /* little endian: a half type in the low bits */
                    memset(from, poison, size);
                }
                if (!t->guarded_tensors.lse) continue;
                unsigned char *from = t->lse_memory.data + (size_t)input_lse_offset(&t->in, b, i, h) * 4;
                memcpy(&to->lse[lse_index(t, row, h)], from, 4);
                memset(from, poison, 4);
            }
}

static bool check_edges(const trial *t, unsigned char poison, verdict *v)
{
    if (!guarded_is_intact(&t->o_memory) || !all_poison(&t->o_memory, poison))
        return fail(v, "wrote outside the elements of o");
    if (!guarded_is_intact(&t->lse_memory) || !all_poison(&t->lse_memory, poison))
        return fail(v, "wrote outside the elements of lse");
    if (!guarded_is_intact(&t->workspace)) return fail(v, "wrote before the workspace");
    return true;
}

/* ------------------------------------------------------------------------------------------------ runs */

/* From the last task to the first, with ever another worker's name. */
static void backwards(void *context, int64_t count, tlamp_task task, void *task_context)
{
    const int32_t workers = *(const int32_t *)context;
    for (int64_t i = count - 1; i >= 0; i--) task(task_context, i, (int32_t)(i * 5 % workers));
}

typedef enum { ON_HOST, HOST_MEMORY, DEVICE_MEMORY } place;

typedef struct run {
    int32_t threads;
    bool own_loop, no_lse;
    tlamp_counters *counters;
    unsigned char poison; /* of the outputs */
    int workspace;        /* what the workspace is full of; -1: what the last run left; with DEVICE_MEMORY none */
    place place;
} run;

/* Puts the guarded tensors onto the device, calls, and brings them back: the inputs too, which must not have changed. */
static tlamp_status execute_there(trial *t, const tlamp_plan *plan, tlamp_exec *exec, bool workspace, tlamp_error *err,
                                  bool *intact)
{
    enum { TENSORS = 10, OUTPUTS = 2 };
    tlamp_tensors x = t->guarded_tensors;
    const tlamp_problem *p = &t->in.problem;
    const size_t heads = (size_t)t->in.spec.heads_q * sizeof(float);
    const struct {
        const void *here;
        size_t bytes;
    } all[TENSORS] = {{x.o, t->o_memory.bytes},
                      {x.lse, t->lse_memory.bytes},
                      {x.q, t->copies[0].bytes},
                      {x.k, t->copies[1].bytes},
                      {x.v, t->copies[2].bytes},
                      {x.bool_mask, t->copies[3].bytes},
                      {x.bias, t->copies[4].bytes},
                      {p->has_alibi ? x.alibi_slopes : NULL, heads},
                      {p->has_sinks ? x.sinks : NULL, heads},
                      {x.words, (size_t)t->num_words * sizeof *t->words}};
    void *there[TENSORS];
    for (int i = 0; i < TENSORS; i++) there[i] = device_copy(t->device, all[i].here, all[i].bytes);
    x.o = there[0];
    x.lse = there[1];
    x.q = there[2];
    x.k = there[3];
    x.v = there[4];
    x.bool_mask = there[5];
    x.bias = there[6];
    x.alibi_slopes = there[7];
    x.sinks = there[8];
    x.words = there[9];
    exec->memory = TLAMP_MEMORY_DEVICE;
    device_memory w = {NULL, NULL, 0};
    if (workspace) w = device_new(t->device, tlamp_plan_device_workspace_size(plan));
    const tlamp_status status = tlamp_execute(plan, &x, exec, w.data, w.bytes, err);
    *intact = !workspace || device_delete(t->device, w);
    for (int i = 0; i < TENSORS; i++) {
        unsigned char *back = new_memory(all[i].bytes, 1);
        *intact = device_take(t->device, there[i], back, all[i].bytes) && *intact;
        if (there[i] && i >= OUTPUTS && memcmp(all[i].here, back, all[i].bytes) != 0) *intact = false;
        if (there[i] && i < OUTPUTS) memcpy(i ? t->lse_memory.data : t->o_memory.data, back, all[i].bytes);
        free(back);
    }
    return status;
}

static bool execute(trial *t, const tlamp_plan *plan, const run *r, trial_result *to, verdict *v)
{
    int32_t workers = r->threads;
    tlamp_exec exec;
    tlamp_exec_init(&exec, sizeof exec);
    exec.num_threads = r->threads;
    if (r->own_loop) {
        exec.parallel_for = backwards;
        exec.parallel_context = &workers;
    }
    if (r->place != ON_HOST) exec.device = t->device;
    guard_outputs(t, r->poison);
    if (r->no_lse) t->guarded_tensors.lse = NULL;
    t->guarded_tensors.counters = r->counters;
    guarded_resize(&t->workspace, r->place == ON_HOST ? tlamp_plan_workspace_size(plan, r->threads) : 0);
    if (r->workspace >= 0) memset(t->workspace.data, r->workspace, t->workspace.bytes);
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    bool intact = true;
    const bool ours = r->workspace >= 0;
    const tlamp_status status = r->place == DEVICE_MEMORY ? execute_there(t, plan, &exec, ours, &err, &intact)
                                                          : tlamp_execute(plan, &t->guarded_tensors, &exec,
                                                                          t->workspace.data, t->workspace.bytes, &err);
    if (status == TLAMP_UNSUPPORTED && r->place != ON_HOST) v->unsupported = true;
    if (status) return fail(v, "%s: %s: %s", tlamp_status_string(status), err.field, err.text);
    if (!intact) return fail(v, "wrote outside the outputs on the device");
    harvest(t, r->poison, to);
    return check_edges(t, r->poison, v);
}

static const char *kernel_of(const trial *t, const tlamp_plan *plan)
{
    return t->device < 0 ? tlamp_plan_kernel_name(plan) : tlamp_plan_device_kernel_name(plan);
}

static tlamp_plan *plan_of(trial *t, verdict *v)
{
    tlamp_plan *plan = NULL;
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    tlamp_problem problem = t->in.problem;
    if (t->device >= 0 && problem.num_splits == TLAMP_SPLITS_AUTO)
        problem.num_splits = 1; /* what automatic is there: the host's bits are compared with the device's */
    const tlamp_status status = tlamp_plan_create(&plan, &problem, NULL, &err);
    if (status) (void)fail(v, "%s: %s: %s", tlamp_status_string(status), err.field, err.text);
    return plan;
}

bool trial_run(trial *t, int32_t threads, trial_result *to, verdict *v)
{
    *v = (verdict){.passed = true};
    tlamp_plan *plan = plan_of(t, v);
    if (!plan) return false;
    guard_inputs(t);
    const run r = {threads, false, false, NULL, 0x5a, 0xff, t->device < 0 ? ON_HOST : HOST_MEMORY};
    (void)execute(t, plan, &r, to, v);
    v->kernel = kernel_of(t, plan);
    tlamp_plan_destroy(plan);
    return v->passed;
}

bool trial_refused(trial *t, tlamp_status status, const char *field, char why[240])
{
    verdict v = {.passed = true};
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    guard_inputs(t);
    guard_outputs(t, 0x5a);
    guarded_resize(&t->workspace, 0);
    const tlamp_status got = tlamp_attention(&t->in.problem, &t->guarded_tensors, NULL, &err);
    if (got != status || err.status != status || (field && strcmp(err.field, field) != 0))
        (void)fail(&v, "%s about '%s' (%.80s), not %s about '%s'", tlamp_status_string(got), err.field, err.text,
                   tlamp_status_string(status), field ? field : "");
    (void)check_edges(t, 0x5a, &v);
    memcpy(why, v.why, sizeof v.why);
    return v.passed;
}

/* ------------------------------------------------------------------------------------------------ verdict */

/* Where an index of o or lse is. */
static void name_element(const trial *t, int64_t row, int64_t h, char name[64])
{
    int64_t b = 0;
    const problem_spec *s = &t->in.spec;
    while (b + 1 < s->batch && input_row(&t->in, b + 1, 0) <= row) b++;
    (void)snprintf(name, 64, "[b%lld h%lld i%lld", (long long)b, (long long)h,
                   (long long)(row - input_row(&t->in, b, 0)));
}

/* Error over bound; -1: nothing promised, Inf: wrong. */
static double ratio_of(double got, double want, double bound)
{
    if (isnan(want)) return isnan(got) ? 0 : (double)INFINITY;
    if (isinf(want)) return got == want ? 0 : (double)INFINITY;
    if (bound == HUGE_VAL) return -1;
    const double error = fabs(got - want);
    if (error == 0) return 0;
    return isfinite(error) && bound > 0 ? error / bound : (double)INFINITY;
}

static void compare_row(trial *t, int64_t row, int64_t h, verdict *v)
{
    char name[64];
    const size_t at = lse_index(t, row, h);
    const double lse = lse_value(&t->result, at), ratio = ratio_of(lse, t->lse[at], t->lse_bound[at]);
    if (ratio > 1) {
        name_element(t, row, h, name);
        (void)fail(v, "lse%s] is %.9g, not %.9g +- %.3g", name, lse, t->lse[at], t->lse_bound[at]);
    }
    v->lse_ratio = fmax(v->lse_ratio, ratio);
    for (int64_t c = 0; c < t->in.spec.dv; c++) {
        const size_t i = o_index(t, row, h, c);
        const double o = o_value(t, &t->result, i), r = ratio_of(o, t->o[i], t->o_bound[i]);
        if (r > 1) {
            name_element(t, row, h, name);
            (void)fail(v, "o%s c%lld] is %.9g, not %.9g +- %.3g", name, (long long)c, o, t->o[i], t->o_bound[i]);
        }
        v->o_ratio = fmax(v->o_ratio, r);
        v->elements++;
        v->unpromised += r < 0;
    }
}

/* The largest finite magnitude of V. */
static double largest_v(const trial *t)
{
    const size_t n = t->in.tensors.v ? extent(t, &t->in.problem.v_stride, true, t->in.spec.heads_k, t->in.spec.dv) : 0;
    double largest = 0;
    for (size_t i = 0; i < n; i++) {
        const double v = fabs(tensor_get(t->in.tensors.v, t->in.spec.v_dtype, (int64_t)i));
        if (isfinite(v)) largest = fmax(largest, v);
    }
    return largest;
}

/* What tensor cores add to the bound of a policy with f32 arithmetic: P in the type of V is off by half an ulp of every weight, in
 * f16 by half the smallest subnormal (the sum of weights is at least 1), and sums are truncated where f32 rounds: twice the
 * bound. */
static void widen_bounds(trial *t, const double *abs_pv)
{
    const double unit = t->in.spec.v_dtype == TLAMP_BF16 ? 0x1p-8 : 0x1p-11;
    const double least = (double)t->in.spec.lk * 0x1p-25 * largest_v(t);
    for (size_t i = 0; i < trial_o_count(t); i++) t->o_bound[i] = 2 * t->o_bound[i] + unit * abs_pv[i] * 1.01 + least;
    for (size_t i = 0; i < trial_lse_count(t); i++)
        if (isfinite(t->lse[i])) t->lse_bound[i] = 2 * t->lse_bound[i] + 0x1p-20 * (1 + fabs(t->lse[i]));
}

/* The bounds are those of the arithmetic that the kernel uses. */
static bool compare_with_reference(trial *t, tlamp_pv pv, verdict *v)
{
    const bool tensor_cores = t->device >= 0 && !t->exact;
    double *abs_pv = tensor_cores ? new_memory(trial_o_count(t), sizeof *abs_pv) : NULL;
    const tlamp_reference_outputs out = {.struct_size = sizeof out,
                                         .o = t->o,
                                         .lse = t->lse,
                                         .o_bound = t->o_bound,
                                         .lse_bound = t->lse_bound,
                                         .abs_pv = abs_pv};
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    tlamp_policy policy = *t->in.problem.policy;
    tlamp_problem problem = t->in.problem;
    policy.pv = pv;
    problem.policy = &policy;
    const tlamp_status status = tlamp_reference(&problem, &t->in.tensors, &out, NULL, &err);
    if (tensor_cores && !status) widen_bounds(t, abs_pv);
    free(abs_pv);
    if (status) return fail(v, "the reference: %s: %s", err.field, err.text);
    for (int64_t b = 0; b < t->in.spec.batch; b++)
        for (int64_t i = 0; i < problem_length_q(&t->in.spec, b); i++)
            for (int64_t h = 0; h < t->in.spec.heads_q; h++) compare_row(t, input_row(&t->in, b, i), h, v);
    return v->passed;
}

static bool check_counters(const trial *t, const tlamp_counters *got, verdict *v)
{
    const tlamp_counters want = count_by_hand(t);
    const int64_t pairs[][2] = {{got->groups, want.groups}, {got->groups_int8, want.groups_int8},
                                {got->tiles, want.tiles},   {got->tiles_int8, want.tiles_int8},
                                {got->cells, want.cells},   {got->cells_int8, want.cells_int8}};
    static const char *const names[] = {"groups", "groups_int8", "tiles", "tiles_int8", "cells", "cells_int8"};
    for (int i = 0; i < 6; i++)
        if (pairs[i][0] != pairs[i][1])
            return fail(v, "counters.%s is %lld, not %lld", names[i], (long long)pairs[i][0], (long long)pairs[i][1]);
    return true;
}

/* Bits of groups that no row of the routing row sees are ignored: sets them all. */
static void set_illegal_bits(trial *t)
{
    uint64_t *legal = new_zeros((size_t)t->num_words, sizeof *legal);
    tlamp_layout one;
    tlamp_layout_init(&one, sizeof one);
    build_words(t, &one, legal);
    for (int64_t i = 0; i < t->num_words; i++) t->words[i] |= ~legal[i];
    free(legal);
}

static void run_again(trial *t, const tlamp_plan *plan, verdict *v)
{
    tlamp_counters counters = {.struct_size = sizeof counters};
    const run runs[] = {
        {1, false, false, NULL, 0x6b, 0x7f, ON_HOST},    {2, false, true, NULL, 0x6c, -1, ON_HOST},
        {3, false, false, &counters, 0x6d, -1, ON_HOST}, {t->threads, false, false, NULL, 0x6e, -1, ON_HOST},
        {5, true, false, NULL, 0x6f, -1, ON_HOST},
    };
    static const char *const names[] = {"a second time", "with 2 threads and no lse", "with 3 threads and counters",
                                        "with all threads and illegal bits set", "with a parallel_for"};
    trial_result again = trial_new_result(t);
    for (size_t i = 0; i < sizeof runs / sizeof runs[0] && v->passed; i++) {
        if (i == 3 && t->words) set_illegal_bits(t);
        if (!execute(t, plan, &runs[i], &again, v)) break;
        if (runs[i].no_lse) memcpy(again.lse, t->result.lse, trial_lse_count(t) * 4);
        if (!trial_same_bits(t, &again, &t->result)) (void)fail(v, "other bits %s", names[i]);
    }
    if (v->passed) (void)check_counters(t, &counters, v);
    trial_free_result(&again);
}

/* The same bits but for those of NaNs, which processors choose. */
static bool same_numbers(const trial *t, const trial_result *a, const trial_result *b)
{
    for (size_t i = 0; i < trial_o_count(t); i++)
        if (a->o[i] != b->o[i] && !(isnan(o_value(t, a, i)) && isnan(o_value(t, b, i)))) return false;
    for (size_t i = 0; i < trial_lse_count(t); i++)
        if (a->lse[i] != b->lse[i] && !(isnan(lse_value(a, i)) && isnan(lse_value(b, i)))) return false;
    return true;
}

/* Other runs on the device: with both kinds of memory, with counters, without lse. Where it must be exact, bits and counters
 * are the host's. */
static void run_there(trial *t, const tlamp_plan *plan, verdict *v)
{
    tlamp_counters on_host = {.struct_size = sizeof on_host}, counters[2];
    const run runs[] = {{1, false, false, NULL, 0x6b, 0x7f, HOST_MEMORY},
                        {1, false, false, &counters[0], 0x6c, -1, HOST_MEMORY},
                        {1, false, false, NULL, 0x6d, 0, DEVICE_MEMORY},
                        {1, false, true, &counters[1], 0x6e, -1, DEVICE_MEMORY},
                        {1, false, false, &on_host, 0x6f, -1, ON_HOST}};
    static const char *const names[] = {"a second time", "with counters", "from device memory",
                                        "from device memory, with counters and no lse", "on the host"};
    trial_result again = trial_new_result(t);
    for (size_t i = 0; i < (t->exact ? 5 : 4) && v->passed; i++) {
        if (runs[i].counters) *runs[i].counters = (tlamp_counters){.struct_size = sizeof counters[0]};
        if (!execute(t, plan, &runs[i], &again, v)) break;
        if (runs[i].no_lse) memcpy(again.lse, t->result.lse, trial_lse_count(t) * 4);
        const bool same = runs[i].place == ON_HOST ? same_numbers(t, &again, &t->result)
                                                   : trial_same_bits(t, &again, &t->result);
        if (!same) (void)fail(v, "other bits %s", names[i]);
        if (runs[i].counters) (void)check_counters(t, runs[i].counters, v);
    }
    if (v->passed && t->exact)
        for (int i = 0; i < 2; i++)
            if (memcmp(&counters[i], &on_host, sizeof on_host) != 0) (void)fail(v, "other counters than the host's");
    trial_free_result(&again);
}

verdict trial_verify(trial *t)
{
    verdict v = {.passed = true};
    tlamp_plan *plan = plan_of(t, &v);
    if (!plan) return v;
    v.kernel = kernel_of(t, plan);
    guard_inputs(t);
    const run first = {1, false, false, NULL, 0x5a, 0xff, t->device < 0 ? ON_HOST : HOST_MEMORY};
    if (execute(t, plan, &first, &t->result, &v)) (void)compare_with_reference(t, tlamp_plan_pv(plan), &v);
    if (v.passed && t->device < 0) run_again(t, plan, &v);
    if (v.passed && t->device >= 0) run_there(t, plan, &v);
    if (v.unsupported) v.passed = true;
    tlamp_plan_destroy(plan);
    return v;
}
