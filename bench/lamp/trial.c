#include "trial.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------ inputs */

static int open_problem(experiment *e, const char *text, fault *f)
{
    problem_spec spec;
    *e = (experiment){.threads = 0};
    (void)snprintf(e->name, sizeof e->name, "%s", text);
    int code = problem_parse(&spec, text, f);
    if (!code && spec.varlen) code = fault_set(f, BAD_INPUT, "%s: packed sequences: write a dense problem", text);
    if (!code) code = input_create(&e->in, &spec, f);
    if (!code) code = input_fill(&e->in, f);
    if (code) experiment_close(e);
    return code;
}

int lamp_input_open(lamp_input *in, const char *what, int32_t threads, fault *f)
{
    static const char ending[] = ".safetensors";
    const size_t length = strlen(what), tail = sizeof ending - 1;
    const int is_file = length > tail && strcmp(what + length - tail, ending) == 0;
    *in = (lamp_input){.exact = NULL};
    const int code = is_file ? experiment_file(&in->e, what, f) : open_problem(&in->e, what, f);
    in->e.threads = threads;
    return code;
}

void lamp_input_close(lamp_input *in)
{
    experiment_close(&in->e);
    free(in->exact);
    in->exact = NULL;
}

void lamp_input_cut(lamp_input *in, int64_t length)
{
    experiment_keep_head(&in->e, 0);
    if (length < in->e.in.spec.lq) experiment_keep_tokens(&in->e, length);
}

/* O of every sequence. */
static int64_t elements(const lamp_input *in) { return in->e.in.spec.batch * experiment_elements(&in->e); }

static tlamp_exec exec_of(const lamp_input *in)
{
    tlamp_exec exec;
    tlamp_exec_init(&exec, sizeof exec);
    exec.num_threads = in->e.threads;
    return exec;
}

int lamp_input_solve(lamp_input *in, fault *f)
{
    const int64_t count = elements(in);
    in->exact = calloc((size_t)count + 1, sizeof *in->exact);
    if (!in->exact) return fault_no_memory(f);
    const tlamp_reference_outputs out = {.struct_size = sizeof out, .o = in->exact};
    const tlamp_exec exec = exec_of(in);
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    if (tlamp_reference(&in->e.in.problem, &in->e.in.tensors, &out, &exec, &err)) return fault_from_library(f, &err);
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += fabs(in->exact[i]);
    in->mean_exact = sum / (double)count;
    return DONE;
}

/* ------------------------------------------------------------------------------------------------ one policy */

static int attend(trial *t, const lamp_input *in, const policy_spec *spec, const routing *map, float *o, fault *f)
{
    tlamp_problem p = in->e.in.problem;
    tlamp_tensors tensors = in->e.in.tensors;
    const tlamp_exec exec = exec_of(in);
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    const int64_t row = (int64_t)p.num_heads_q * p.head_dim_v;
    p.policy = &spec->policy;
    p.o_dtype = TLAMP_F32;
    p.o_stride = (tlamp_strides){.batch = row * p.max_seqlen_q, .seq = row, .head = p.head_dim_v, .dim = 1};
    t->counters = (tlamp_counters){.struct_size = sizeof t->counters};
    tensors.o = o;
    tensors.lse = NULL;
    tensors.counters = &t->counters;
    if (map->words) {
        p.words_per_row = map->words_per_row;
        routing_apply(map, &tensors);
    }
    return tlamp_attention(&p, &tensors, &exec, &err) ? fault_from_library(f, &err) : DONE;
}

static void compare(trial *t, const lamp_input *in, const float *o)
{
    const int64_t count = elements(in);
    double sum = 0;
    t->max = 0;
    for (int64_t i = 0; i < count; i++) {
        const double error = fabs((double)o[i] - in->exact[i]);
        if (!(error <= t->max)) t->max = error; /* a NaN stays */
        sum += error;
    }
    t->rel_mae = sum / (double)count / in->mean_exact;
}

int lamp_try(trial *t, const lamp_input *in, const char *policy, fault *f)
{
    enum { SEED = 42 }; /* of random layouts */
    policy_spec spec;
    routing map = {.words = NULL};
    float *o = calloc((size_t)elements(in) + 1, sizeof *o);
    int code = o ? policy_parse(&spec, policy, f) : fault_no_memory(f);
    if (!code) code = routing_open(&map, &spec, f);
    if (!code && policy_has_words(&spec)) code = routing_build(&map, &spec, &in->e.in, SEED, f);
    if (!code) code = attend(t, in, &spec, &map, o, f);
    if (!code) compare(t, in, o);
    routing_free(&map);
    free(o);
    return code;
}

/* ------------------------------------------------------------------------------------------------ shares */

static double share(int64_t part, int64_t whole) { return whole > 0 ? (double)part / (double)whole : 0; }

double trial_tiles(const trial *t, int n)
{
    const int64_t *tiles = t->counters.tiles_recomputed;
    return share(tiles[n], tiles[0] + tiles[1] + tiles[2]);
}

double trial_recomputed(const trial *t) { return share(t->counters.sub_blocks_recomputed, t->counters.sub_blocks); }

double trial_stage_one(const trial *t) { return share(t->counters.stage_one, t->counters.sub_blocks); }

double trial_stage_two(const trial *t) { return share(t->counters.stage_two, t->counters.sub_blocks); }
