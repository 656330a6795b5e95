/* `tilelamp bench tune`: times the forms that plain kernels on a GPU may have, and writes the fastest of each head dimension
 * and kind into the table that the library is built with (offload/nvptx_tuned.def). The program is the library's objects and
 * a kernel for each candidate, so that all run in one process, in turns, on the same tensors. Every candidate's result is
 * first compared with the double reference. */
#include <dlfcn.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nvptx.h"
#include "tilelamp/tilelamp.h"

enum { DEVICE = 0, MOST = 16, ROUNDS = 15, CALLS = 2 };

/* A form must be faster by so much to take the place of the one that the library has. */
static const double margin = 0.985;

/* ------------------------------------------------------------------------------------------------ candidates */

#define CANDIDATE(d, kind, rows, keys, blocks, launch) extern tl_device_launch launch;
#include "candidates.def"
#undef CANDIDATE

typedef struct {
    int32_t d, kind, form;
    tl_device_launch *launch;
} candidate;

static const candidate candidates[] = {
#define CANDIDATE(d, kind, rows, keys, blocks, launch) {d, TL_KIND_##kind, TL_MAKE_FORM(rows, keys, blocks), launch},
#include "candidates.def"
#undef CANDIDATE
};
enum { CANDIDATES = sizeof candidates / sizeof candidates[0] };

static const char *const kind_names[TL_KINDS] = {"high", "routed"};
static const int32_t arch_numbers[TL_ARCHS] = {[TL_ARCH_80] = 80, [TL_ARCH_90] = 90};

/* ------------------------------------------------------------------------------------------------ problems */

typedef struct {
    int32_t batch, heads_q, heads_k, length, causal, percent; /* of INT8: 0, 100, or by words between them */
} shape;

static const shape small[] = {{1, 4, 2, 700, 0, 50}, {2, 2, 2, 333, 1, 50}};
static const shape large[] = {{1, 64, 64, 4096, 0, 50}, {1, 64, 64, 4096, 1, 100}, {1, 32, 8, 8192, 0, 100},
                              {1, 32, 8, 8192, 1, 50},  {4, 64, 64, 1024, 0, 75},  {4, 64, 64, 1024, 1, 75}};
enum { SMALL = sizeof small / sizeof small[0], LARGE = sizeof large / sizeof large[0] };

/* A plan, and its tensors in host and device memory. */
typedef struct {
    tlamp_policy policy;
    tlamp_problem problem;
    tlamp_plan *plan;
    tlamp_tensors here, there;
    size_t q_bytes, k_bytes, words_bytes, workspace_bytes;
    void *workspace;
} trial;

static void must(int failed, const char *what, const tlamp_error *err)
{
    if (!failed) return;
    fprintf(stderr, "tilelamp-tune: %s: %s\n", what, err ? err->text : "failed");
    exit(3);
}

static void *allocate(size_t bytes)
{
    void *p = malloc(bytes);
    must(!p, "memory of the host", NULL);
    return p;
}

/* A copy in device memory. */
static void *upload(const void *data, size_t bytes)
{
    void *p = omp_target_alloc(bytes, DEVICE);
    must(!p || omp_target_memcpy(p, data, bytes, 0, 0, DEVICE, omp_get_initial_device()), "memory of the device", NULL);
    return p;
}

/* f16 numbers with about the spread of a normal distribution; they repeat after a while. */
static uint16_t *random_halves(size_t bytes, uint32_t seed)
{
    enum { PERIOD = 1000003 };
    uint16_t *x = allocate(bytes);
    for (size_t i = 0; i < bytes / 2; i++) {
        if (i >= PERIOD) {
            x[i] = x[i - PERIOD];
            continue;
        }
        float sum = 0.f;
        for (int j = 0; j < 3; j++) {
            seed = seed * 1664525u + 1013904223u;
            sum += (float)(seed >> 8) * 0x1p-23f - 1.f;
        }
        x[i] = tlamp_f32_to_f16(sum);
    }
    return x;
}

static void make_words(trial *t, const shape *s)
{
    tlamp_error err = {.struct_size = sizeof err};
    tlamp_geometry geometry;
    tlamp_geometry_init(&geometry, sizeof geometry);
    geometry.seqlen_q = geometry.seqlen_k = s->length;
    geometry.mask = t->problem.mask;
    tlamp_layout layout;
    tlamp_layout_init(&layout, sizeof layout);
    layout.kind = TLAMP_LAYOUT_ROW_RAND;
    layout.coverage = s->percent / 100.;
    const int64_t count = tlamp_layout_words(&geometry);
    t->words_bytes = (size_t)count * sizeof(uint64_t);
    uint64_t *words = allocate(t->words_bytes);
    must(tlamp_layout_build(&layout, &geometry, words, count, NULL, &err), "routing words", &err);
    t->here.words = words;
    t->there.words = upload(words, t->words_bytes);
}

static void open_trial(trial *t, const shape *s, int32_t d, int32_t kind)
{
    tlamp_error err = {.struct_size = sizeof err};
    *t = (trial){.words_bytes = 0};
    tlamp_policy_init(&t->policy, sizeof t->policy);
    const int has_words = kind == TL_KIND_routed && s->percent < 100;
    t->policy.kind = kind == TL_KIND_high ? TLAMP_POLICY_HIGH : has_words ? TLAMP_POLICY_ROUTED : TLAMP_POLICY_INT8;
    tlamp_problem *p = &t->problem;
    tlamp_problem_init(p, sizeof *p);
    p->batch = s->batch;
    p->max_seqlen_q = p->max_seqlen_k = s->length;
    p->num_heads_q = s->heads_q;
    p->num_heads_k = s->heads_k;
    p->head_dim_qk = p->head_dim_v = d;
    p->q_dtype = p->k_dtype = p->v_dtype = p->o_dtype = TLAMP_F16;
    p->mask = s->causal ? TLAMP_MASK_CAUSAL : TLAMP_MASK_NONE;
    p->policy = &t->policy;
    must(tlamp_set_strides(p, TLAMP_TENSOR_BHSD, &err) || tlamp_plan_create(&t->plan, p, NULL, &err), "a plan", &err);
    tlamp_tensors_init(&t->here, sizeof t->here);
    t->q_bytes = sizeof(uint16_t) * (size_t)s->batch * (size_t)s->heads_q * (size_t)s->length * (size_t)d;
    t->k_bytes = t->q_bytes / (size_t)s->heads_q * (size_t)s->heads_k;
    t->here.q = random_halves(t->q_bytes, 1);
    t->here.k = random_halves(t->k_bytes, 2);
    t->here.v = random_halves(t->k_bytes, 3);
    t->here.o = allocate(t->q_bytes);
    t->here.words_stride_row = 1;
    t->there = t->here;
    t->there.q = upload(t->here.q, t->q_bytes);
    t->there.k = upload(t->here.k, t->k_bytes);
    t->there.v = upload(t->here.v, t->k_bytes);
    t->there.o = omp_target_alloc(t->q_bytes, DEVICE);
    if (has_words) make_words(t, s);
    t->workspace_bytes = tlamp_plan_device_workspace_size(t->plan);
    t->workspace = omp_target_alloc(t->workspace_bytes, DEVICE);
    must(!t->there.o || !t->workspace, "memory of the device", NULL);
}

static void close_trial(trial *t)
{
    const void *const here[] = {t->here.q, t->here.k, t->here.v, t->here.o, t->here.words};
    const void *const there[] = {t->there.q, t->there.k, t->there.v, t->there.o, t->there.words, t->workspace};
    for (size_t i = 0; i < sizeof here / sizeof *here; i++) free((void *)(uintptr_t)here[i]);
    for (size_t i = 0; i < sizeof there / sizeof *there; i++)
        if (there[i]) omp_target_free((void *)(uintptr_t)there[i], DEVICE);
    tlamp_plan_destroy(t->plan);
}

static void call(const trial *t)
{
    tlamp_error err = {.struct_size = sizeof err};
    tlamp_exec exec;
    tlamp_exec_init(&exec, sizeof exec);
    exec.device = DEVICE;
    exec.memory = TLAMP_MEMORY_DEVICE;
    must(tlamp_execute(t->plan, &t->there, &exec, t->workspace, t->workspace_bytes, &err), "a call", &err);
}

/* ------------------------------------------------------------------------------------------------ results */

/* Error / bound at most, over all of O. */
static double worst_error(trial *t)
{
    tlamp_error err = {.struct_size = sizeof err};
    const size_t count = t->q_bytes / sizeof(uint16_t);
    tlamp_reference_outputs r = {.struct_size = sizeof r};
    r.o = allocate(count * sizeof(double));
    r.o_bound = allocate(count * sizeof(double));
    r.abs_pv = allocate(count * sizeof(double));
    tlamp_exec exec;
    tlamp_exec_init(&exec, sizeof exec);
    must(tlamp_reference(&t->problem, &t->here, &r, &exec, &err), "the reference", &err);
    call(t);
    must(omp_target_memcpy(t->here.o, t->there.o, t->q_bytes, 0, 0, omp_get_initial_device(), DEVICE), "a copy", NULL);
    double worst = 0.;
    const tlamp_problem *p = &t->problem;
    for (int64_t i = 0; i < (int64_t)count;
         i++) { /* O is [batch, head, row, d] here, the reference's [batch, row, head, d] */
        const int64_t e = i % p->head_dim_v, row = i / p->head_dim_v % p->max_seqlen_q;
        const int64_t h = i / p->head_dim_v / p->max_seqlen_q % p->num_heads_q;
        const int64_t b = i / p->head_dim_v / p->max_seqlen_q / p->num_heads_q;
        const int64_t at = ((b * p->max_seqlen_q + row) * p->num_heads_q + h) * p->head_dim_v + e;
        /* P in f16, sums of tensor cores: as in tests/gpu/gputest.c */
        const double limit = 2. * r.o_bound[at] + 0x1p-11 * r.abs_pv[at] * 1.01 + (double)p->max_seqlen_k * 0x1p-23;
        const double error = fabs((double)tlamp_f16_to_f32(((const uint16_t *)t->here.o)[i]) - r.o[at]) / limit;
        worst = error <= worst ? worst : error; /* NaN too */
    }
    free(r.o);
    free(r.o_bound);
    free(r.abs_pv);
    return worst;
}

static double now(void)
{
    struct timespec t;
    (void)timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int order(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int count)
{
    qsort(x, (size_t)count, sizeof *x, order);
    return x[count / 2];
}

/* ------------------------------------------------------------------------------------------------ choices */

static int32_t arch;

static tl_plain_kernel *slot(int32_t d, int32_t kind) { return &tl_plain_kernels[arch][d == 128][kind]; }

/* Of each kernel on each of the large shapes: seconds of a call, the median; and the median over the rounds of its time over
 * kernel 0's, which what slows down all does not change. */
typedef struct {
    double seconds[MOST][LARGE], ratio[MOST][LARGE];
} timing;

static void time_all(const tl_plain_kernel *kernels, int count, int32_t d, int32_t kind, int causal_only, timing *t)
{
    static double samples[MOST][ROUNDS], ratios[ROUNDS];
    tl_plain_kernel *used = slot(d, kind), before = *used;
    for (int s = 0; s < LARGE; s++) {
        if (causal_only && !large[s].causal) continue;
        trial on;
        open_trial(&on, &large[s], d, kind);
        for (int round = -1; round < ROUNDS; round++) /* the first one warms up */
            for (int k = 0; k < count; k++) {
                *used = kernels[k];
                const double start = now();
                for (int i = 0; i < CALLS; i++) call(&on);
                if (round >= 0) samples[k][round] = (now() - start) / (double)CALLS;
            }
        for (int k = count - 1; k >= 0; k--) { /* kernel 0 last: a median sorts */
            for (int round = 0; round < ROUNDS; round++) ratios[round] = samples[k][round] / samples[0][round];
            t->ratio[k][s] = median(ratios, ROUNDS);
            t->seconds[k][s] = median(samples[k], ROUNDS);
        }
        close_trial(&on);
    }
    *used = before;
}

/* Geometric mean of a kernel's ratios. */
static double score(const timing *t, int k, int causal_only)
{
    double sum = 0.;
    int count = 0;
    for (int s = 0; s < LARGE; s++) {
        if (causal_only && !large[s].causal) continue;
        sum += log(t->ratio[k][s]);
        count++;
    }
    return exp(sum / count);
}

static int json; /* one object on stdout and nothing else */

static void print_json_kernel(const tl_plain_kernel *kernel, int32_t d, int32_t kind, const double seconds[LARGE],
                              int causal_only, double ratio, int chosen)
{
    static int is_first = 1;
    printf("%s\n  {\"head_dim\": %d, \"kind\": \"%s\", \"rows\": %d, \"keys\": %d, \"blocks\": %d, \"cache_mib\": %d, "
           "\"ratio\": %.4f, \"chosen\": %s, \"microseconds\": {",
           is_first ? "" : ",", d, kind_names[kind], TL_FORM_ROWS(kernel->form), TL_FORM_KEYS(kernel->form),
           TL_FORM_BLOCKS(kernel->form), kernel->cache_mib, ratio, chosen ? "true" : "false");
    const char *separator = "";
    for (int s = 0; s < LARGE; s++) {
        if (causal_only && !large[s].causal) continue;
        printf("%s\"%dx%d/%dx%d%s\": %.1f", separator, large[s].batch, large[s].heads_q, large[s].heads_k,
               large[s].length, large[s].causal ? " causal" : "", seconds[s] * 1e6);
        separator = ", ";
    }
    printf("}}");
    is_first = 0;
}

static void print_kernel(const tl_plain_kernel *kernel, int32_t d, int32_t kind, int causal_only,
                         const double seconds[LARGE], double ratio, int chosen)
{
    if (json) {
        print_json_kernel(kernel, d, kind, seconds, causal_only, ratio, chosen);
        return;
    }
    printf("%3d %-7s %4d %4d %6d %5d ", d, kind_names[kind], TL_FORM_ROWS(kernel->form), TL_FORM_KEYS(kernel->form),
           TL_FORM_BLOCKS(kernel->form), kernel->cache_mib);
    for (int s = 0; s < LARGE; s++)
        if (!causal_only || large[s].causal)
            printf(" %11.1f", seconds[s] * 1e6);
        else
            printf(" %11s", "");
    printf("  %.3f%s\n", ratio, chosen ? "  <" : "");
}

static int best_of(const tl_plain_kernel *kernels, int count, int32_t d, int32_t kind, int causal_only)
{
    static timing t;
    time_all(kernels, count, d, kind, causal_only, &t);
    int best = 0;
    for (int k = 1; k < count; k++)
        if (score(&t, k, causal_only) < (best ? 1. : margin) * score(&t, best, causal_only)) best = k;
    for (int k = 0; k < count; k++)
        print_kernel(&kernels[k], d, kind, causal_only, t.seconds[k], score(&t, k, causal_only), k == best);
    fflush(stdout);
    return best;
}

/* The library's own kernel and all candidates that are right. */
static int collect(tl_plain_kernel kernels[MOST], int32_t d, int32_t kind, int *wrong)
{
    int count = 1;
    tl_plain_kernel *used = slot(d, kind);
    kernels[0] = *used;
    for (int c = 0; c < CANDIDATES && count < MOST; c++)
        if (candidates[c].d == d && candidates[c].kind == kind && candidates[c].form != kernels[0].form) {
            kernels[count] = kernels[0];
            kernels[count].form = candidates[c].form;
            kernels[count++].launch[0] = candidates[c].launch;
        }
    for (int s = 0; s < SMALL; s++) {
        trial t;
        open_trial(&t, &small[s], d, kind);
        for (int k = 0; k < count; k++) {
            *used = kernels[k];
            const double error = worst_error(&t);
            if (error <= 1.) continue;
            fprintf(stderr, "tilelamp-tune: d=%d %s %d %d %d is wrong, error / bound %.3g: it is left out\n", d,
                    kind_names[kind], TL_FORM_ROWS(kernels[k].form), TL_FORM_KEYS(kernels[k].form),
                    TL_FORM_BLOCKS(kernels[k].form), error);
            *wrong = 1;
            kernels[k--] = kernels[--count];
        }
        close_trial(&t);
    }
    *used = kernels[0];
    return count;
}

static void tune(int32_t d, int32_t kind, int *wrong)
{
    static const int32_t caches[] = {8, 16, 32, 64};
    tl_plain_kernel kernels[MOST];
    int count = collect(kernels, d, kind, wrong);
    if (count == 0) return;
    const tl_plain_kernel chosen = kernels[best_of(kernels, count, d, kind, 0)];
    count = 0;
    kernels[count++] = chosen;
    for (size_t i = 0; i < sizeof caches / sizeof *caches; i++)
        if (caches[i] != chosen.cache_mib) {
            kernels[count] = chosen;
            kernels[count++].cache_mib = caches[i];
        }
    *slot(d, kind) = kernels[best_of(kernels, count, d, kind, 1)];
}

/* ------------------------------------------------------------------------------------------------ the table */

static const char *const remarks[TL_ARCHS][2][TL_KINDS] = {
#define TL_TUNED(arch, d, kind, rows, keys, blocks, cache, remark) [TL_ARCH_##arch][d == 128][TL_KIND_##kind] = remark,
#include "nvptx_tuned.def"
#undef TL_TUNED
};

static int write_table(const char *path)
{
    FILE *f = fopen(path, "w");
    if (!f) return 1;
    fprintf(
        f,
        "/* Forms of the plain kernels (nvptx.h), written by `tilelamp bench tune` (docs/gpu.md) and fixed until it is "
        "run again.\n * TL_TUNED(architecture, head dimension, kind, query rows of a block, keys of a tile, blocks "
        "of a processor, MiB of cache,\n *          where from) */\n");
    for (int a = 0; a < TL_ARCHS; a++)
        for (int d = 64; d <= 128; d += 64)
            for (int kind = 0; kind < TL_KINDS; kind++) {
                const tl_plain_kernel *k = &tl_plain_kernels[a][d == 128][kind];
                fprintf(f, "TL_TUNED(%d, %d, %s, %d, %d, %d, %d, \"%s\")\n", arch_numbers[a], d, kind_names[kind],
                        TL_FORM_ROWS(k->form), TL_FORM_KEYS(k->form), TL_FORM_BLOCKS(k->form), k->cache_mib,
                        a == arch ? "measured" : remarks[a][d == 128][kind]);
            }
    return fclose(f) != 0;
}

static void print_heading(void)
{
    printf("sm_%d, f16: microseconds of a call, medians of %d rounds in turns; and by how much of the first line's\n",
           arch_numbers[arch], ROUNDS);
    printf("  d kind    rows keys blocks cache ");
    for (int s = 0; s < LARGE; s++)
        printf(" %6dx%d%s", large[s].batch * large[s].heads_q, large[s].length, large[s].causal ? "c" : " ");
    printf("\n");
}

/* Calls that are waited for by spinning: an OpenMP runtime that finds no context makes one whose waits sleep, for a time that
 * varies by tens of microseconds. */
static void spin(void)
{
    enum { SCHED_SPIN = 1 };
    void *context, *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return;
    int (*init)(unsigned), (*set_flags)(int, unsigned), (*retain)(void **, int);
    *(void **)&init = dlsym(driver, "cuInit");
    *(void **)&set_flags = dlsym(driver, "cuDevicePrimaryCtxSetFlags_v2");
    *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
    if (!init || !set_flags || !retain || init(0)) return;
    if (set_flags(DEVICE, SCHED_SPIN) == 0) (void)retain(&context, DEVICE);
}

int main(int argc, char **argv)
{
    static const char usage[] = "usage: tilelamp-tune [--json] [-o FILE]   (nvptx_tuned.def)\n";
    const char *path = "nvptx_tuned.def";
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            json = 1;
        } else if (strcmp(argv[i], "-o") == 0 && i + 1 < argc) {
            path = argv[++i];
        } else {
            fputs(usage, stderr);
            return 2;
        }
    }
    spin();
    if (tlamp_num_devices() < 1) {
        fprintf(stderr, "tilelamp-tune: no GPU: this machine has none that the library has code for\n");
        return 3;
    }
    int32_t *at = omp_target_alloc(sizeof *at, DEVICE);
    must(!at || tl_nvptx_which_image(DEVICE, at) ||
             omp_target_memcpy(&arch, at, sizeof arch, 0, 0, omp_get_initial_device(), DEVICE),
         "the device", NULL);
    omp_target_free(at, DEVICE);
    if (json)
        printf("{\"arch\": %d, \"file\": \"%s\", \"results\": [", arch_numbers[arch], path);
    else
        print_heading();
    int wrong = 0;
    for (int d = 64; d <= 128; d += 64)
        for (int kind = 0; kind < TL_KINDS; kind++) tune(d, kind, &wrong);
    if (write_table(path)) {
        fprintf(stderr, "tilelamp-tune: %s cannot be written\n", path);
        return 2;
    }
    if (json)
        printf("]}\n");
    else
        printf("%s is written: put it in the place of offload/nvptx_tuned.def and build again\n", path);
    return wrong;
}
