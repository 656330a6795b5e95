#include "experiment.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/parse.h"
#include "cli/qkv.h"

/* ------------------------------------------------------------------------------------------------ inputs */

int experiment_random(experiment *e, int64_t length, int64_t dim, uint64_t seed, fault *f)
{
    *e = (experiment){.threads = 0};
    (void)snprintf(e->name, sizeof e->name, "q%lld d%lld f16 causal seed:%llu", (long long)length, (long long)dim,
                   (unsigned long long)seed);
    problem_spec spec;
    int code = problem_parse(&spec, e->name, f);
    if (!code) code = input_create(&e->in, &spec, f);
    if (!code) code = input_fill(&e->in, f);
    if (code) experiment_close(e);
    return code;
}

/* "tests/data/layer02.safetensors" -> "layer02" */
static void name_after(experiment *e, const char *path)
{
    const char *slash = strrchr(path, '/');
    (void)snprintf(e->name, sizeof e->name, "%s", slash ? slash + 1 : path);
    char *dot = strrchr(e->name, '.');
    if (dot && dot > e->name) *dot = '\0';
}

int experiment_file(experiment *e, const char *path, fault *f)
{
    *e = (experiment){.threads = 0};
    name_after(e, path);
    char *source = NULL;
    int code = qkv_load(&e->in, path, &source, f);
    free(source);
    if (code) return code;
    const problem_spec *s = &e->in.spec;
    if (s->batch == 1 && !s->varlen && s->lq == s->lk && s->lq > 0 && s->mask == TLAMP_MASK_CAUSAL) return DONE;
    experiment_close(e);
    return fault_set(f, BAD_INPUT, "%s: not one causal sequence with as many queries as keys: take another file", path);
}

void experiment_close(experiment *e) { input_free(&e->in); }

/* Elements of q, k or v as bytes. */
static const void *skip(const void *data, int64_t elements, tlamp_dtype dtype)
{
    return (const char *)data + elements * (int64_t)dtype_size(dtype);
}

void experiment_keep_head(experiment *e, int32_t kv_head)
{
    tlamp_problem *p = &e->in.problem;
    tlamp_tensors *t = &e->in.tensors;
    const int32_t group = p->num_heads_q / p->num_heads_k;
    t->q = skip(t->q, kv_head * group * p->q_stride.head, p->q_dtype);
    t->k = skip(t->k, kv_head * p->k_stride.head, p->k_dtype);
    t->v = skip(t->v, kv_head * p->v_stride.head, p->v_dtype);
    e->in.spec.heads_q = p->num_heads_q = group;
    e->in.spec.heads_k = p->num_heads_k = 1;
}

void experiment_keep_tokens(experiment *e, int64_t length)
{
    problem_spec *s = &e->in.spec;
    s->lq = s->lk = e->in.problem.max_seqlen_q = e->in.problem.max_seqlen_k = length;
}

int64_t experiment_elements(const experiment *e)
{
    const problem_spec *s = &e->in.spec;
    return s->lq * s->heads_q * s->dv;
}

/* ------------------------------------------------------------------------------------------------ one policy */

int experiment_map(const experiment *e, const char *policy, uint32_t seed, policy_spec *spec, routing *map, fault *f)
{
    *map = (routing){.words = NULL};
    int code = policy_parse(spec, policy, f);
    if (!code) code = routing_open(map, spec, f);
    if (!code && spec->policy.kind == TLAMP_POLICY_ROUTED) code = routing_build(map, spec, &e->in, seed, f);
    return code;
}

static int attend(const experiment *e, const policy_spec *spec, const routing *map, tlamp_dtype o_dtype, void *o,
                  fault *f)
{
    tlamp_problem p = e->in.problem;
    tlamp_tensors t = e->in.tensors;
    tlamp_exec exec;
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    tlamp_exec_init(&exec, sizeof exec);
    exec.num_threads = e->threads;
    p.policy = &spec->policy;
    p.o_dtype = o_dtype;
    p.o_stride = (tlamp_strides){.seq = (int64_t)p.num_heads_q * p.head_dim_v, .head = p.head_dim_v, .dim = 1};
    t.o = o;
    t.lse = NULL;
    if (map->words) {
        p.words_per_row = map->words_per_row;
        routing_apply(map, &t);
    }
    return tlamp_attention(&p, &t, &exec, &err) ? fault_from_library(f, &err) : DONE;
}

int experiment_run(const experiment *e, const char *policy, uint32_t seed, tlamp_dtype o_dtype, float *o, fault *f)
{
    const int64_t count = experiment_elements(e);
    policy_spec spec;
    routing map;
    int code = experiment_map(e, policy, seed, &spec, &map, f);
    void *raw = malloc((size_t)count * dtype_size(o_dtype));
    if (!code && !raw) code = fault_no_memory(f);
    if (!code) code = attend(e, &spec, &map, o_dtype, raw, f);
    for (int64_t i = 0; !code && i < count; i++) o[i] = (float)tensor_get(raw, o_dtype, i);
    free(raw);
    routing_free(&map);
    return code;
}

/* ------------------------------------------------------------------------------------------------ the exact result */

int experiment_reference(const experiment *e, int64_t first, int64_t count, double *o, double *weights, fault *f)
{
    tlamp_problem p = e->in.problem;
    tlamp_tensors t = e->in.tensors;
    tlamp_exec exec;
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    tlamp_exec_init(&exec, sizeof exec);
    exec.num_threads = e->threads;
    /* The causal mask is aligned to the last key, so these rows are the last ones of a shorter sequence. */
    p.max_seqlen_q = count;
    p.max_seqlen_k = first + count;
    t.q = skip(t.q, first * p.q_stride.seq, p.q_dtype);
    const tlamp_reference_outputs out = {.struct_size = sizeof out, .o = o, .weights = weights};
    return tlamp_reference(&p, &t, &out, &exec, &err) ? fault_from_library(f, &err) : DONE;
}

/* ------------------------------------------------------------------------------------------------ differences */

static void add(difference *d, double error)
{
    if (!(error <= d->max)) d->max = error; /* a NaN stays */
    d->sum += error;
    d->count++;
}

void difference_add(difference *d, const float *a, const float *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++) add(d, fabs((double)a[i] - (double)b[i]));
}

double difference_mean(const difference *d) { return d->sum / (double)d->count; }

enum { BLOCK_ROWS = 8 };

int difference_add_exact(difference *d, const experiment *e, const float *o, int64_t blocks, fault *f)
{
    const problem_spec *s = &e->in.spec;
    const int64_t row = s->heads_q * s->dv, all = (s->lq + BLOCK_ROWS - 1) / BLOCK_ROWS;
    const int64_t wanted = blocks > 0 && blocks < all ? blocks : all;
    double *exact = malloc((size_t)(BLOCK_ROWS * row) * sizeof *exact);
    int code = exact ? DONE : fault_no_memory(f);
    for (int64_t b = 0; !code && b < wanted; b++) {
        const int64_t first = b * all / wanted * BLOCK_ROWS;
        const int64_t count = s->lq - first < BLOCK_ROWS ? s->lq - first : BLOCK_ROWS;
        code = experiment_reference(e, first, count, exact, NULL, f);
        for (int64_t i = 0; !code && i < count * row; i++) add(d, fabs((double)o[first * row + i] - exact[i]));
    }
    free(exact);
    return code;
}
