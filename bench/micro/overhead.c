/* What a call costs beside its kernel: plans, and executions of problems so small that little else is left.
 *
 *     tilelamp-overhead [THREADS]
 *
 * A sequence's own work is what each further sequence of a batch adds; the overhead of a call is the rest of the time of a
 * batch of one. Each figure is the least of many, in microseconds. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tilelamp/tilelamp.h"

enum { MANY = 17, ROUNDS = 4000, SEQ_MOST = 64, HEADS_MOST = 8, DIM_MOST = 128 };

static double microseconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static void stop(tlamp_status status, const tlamp_error *err)
{
    if (!status) return;
    fprintf(stderr, "tilelamp-overhead: %s: %s\n", err->field, err->text);
    exit(2);
}

typedef struct {
    float *q, *k, *v, *o;
    tlamp_exec exec;
} bench;

static tlamp_problem problem_of(int64_t batch, int64_t length, int32_t heads, int32_t d)
{
    tlamp_problem p;
    tlamp_problem_init(&p, sizeof p);
    p.batch = batch;
    p.max_seqlen_q = p.max_seqlen_k = length;
    p.num_heads_q = p.num_heads_k = heads;
    p.head_dim_qk = p.head_dim_v = d;
    (void)tlamp_set_strides(&p, TLAMP_TENSOR_BSHD, NULL);
    return p;
}

/* The least time of a plan, made and destroyed. */
static double plan_time(const tlamp_problem *p)
{
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    double best = 1e9;
    for (int i = 0; i < ROUNDS; i++) {
        tlamp_plan *plan;
        const double begin = microseconds();
        stop(tlamp_plan_create(&plan, p, NULL, &err), &err);
        tlamp_plan_destroy(plan);
        const double time = microseconds() - begin;
        best = time < best ? time : best;
    }
    return best;
}

static double execute_time(bench *b, const tlamp_problem *p, const char **kernel)
{
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    tlamp_plan *plan;
    stop(tlamp_plan_create(&plan, p, NULL, &err), &err);
    const size_t bytes = tlamp_plan_workspace_size(plan, b->exec.num_threads);
    void *workspace = aligned_alloc(TLAMP_WORKSPACE_ALIGN, bytes + TLAMP_WORKSPACE_ALIGN);
    const tlamp_tensors t = {.struct_size = sizeof t, .q = b->q, .k = b->k, .v = b->v, .o = b->o};
    double best = 1e9;
    for (int i = 0; i < ROUNDS; i++) {
        const double begin = microseconds();
        stop(tlamp_execute(plan, &t, &b->exec, workspace, bytes, &err), &err);
        const double time = microseconds() - begin;
        best = time < best ? time : best;
    }
    *kernel = tlamp_plan_kernel_name(plan);
    free(workspace);
    tlamp_plan_destroy(plan);
    return best;
}

static void report(bench *b, int64_t length, int32_t heads, int32_t d)
{
    const tlamp_problem one = problem_of(1, length, heads, d), many = problem_of(MANY, length, heads, d);
    const char *kernel = "";
    const double all = execute_time(b, &many, &kernel), first = execute_time(b, &one, &kernel);
    const double own = (all - first) / (MANY - 1);
    printf("%6d %6d %6d %10.3f %10.3f %10.3f %10.3f  %s\n", (int)length, (int)heads, (int)d, plan_time(&one), first,
           own, first - own, kernel);
}

int main(int argc, char **argv)
{
    const size_t count = (size_t)MANY * SEQ_MOST * HEADS_MOST * DIM_MOST;
    bench b;
    float **tensors[] = {&b.q, &b.k, &b.v, &b.o};
    for (int t = 0; t < 4; t++) {
        *tensors[t] = malloc(count * sizeof **tensors[t]);
        for (size_t i = 0; *tensors[t] && i < count; i++)
            (*tensors[t])[i] = (float)((i * 2654435761u + (size_t)t) % 1000) / 1000.f - 0.5f;
    }
    tlamp_exec_init(&b.exec, sizeof b.exec);
    b.exec.num_threads = argc > 1 ? atoi(argv[1]) : 1;
    if (!b.q || !b.k || !b.v || !b.o || b.exec.num_threads < 1) return 2;
    printf("microseconds, %d threads\n%6s %6s %6s %10s %10s %10s %10s  kernel\n", (int)b.exec.num_threads, "length",
           "heads", "d", "plan", "execute", "own work", "overhead");
    static const int lengths[] = {1, 16, 32, 64};
    for (int i = 0; i < 4; i++) {
        report(&b, lengths[i], 1, 64);
        report(&b, lengths[i], 8, 128);
    }
    for (int t = 0; t < 4; t++) free(*tensors[t]);
    return 0;
}
