/* Every kernel against the reference: shapes, masks, dtypes, layouts, policies. A plain program, so that it runs under every
 * sanitizer and on every machine. Prints failures as the command that repeats them; last line: "N passed, M failed". */
#define _GNU_SOURCE
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"
#include "support/device.h"
#include "support/ladder.h"
#include "support/trial.h"

typedef struct options {
    bool list, full;
    const char *only, *isa;
    int32_t device; /* -1: the host */
    int threads;
    size_t random; /* 0: the sweep */
    uint64_t seed;
} options;

static const char usage[] =
    "Usage: checktile [OPTION...]\n"
    "Runs every kernel of this machine against the double reference and itself.\n"
    "  --full            more and larger cases\n"
    "  --random N        N random cases instead of the sweep\n"
    "  --seed S          of the random cases (default 1)\n"
    "  --only SUBSTRING  cases whose problem or policy contains it\n"
    "  --isa NAME        one instruction set; default: each one in a process of its own\n"
    "  --threads N       most threads (default 7)\n"
    "  --device gpu[:N]  the cases on a device: with the scalar kernels of the portable path, whose\n"
    "                    bits must be the host's, and with its best ones (--isa scalar, --isa best)\n"
    "  --list            print the cases, run nothing\n";

/* ------------------------------------------------------------------------------------------------ one case */

enum { NUM_KINDS = TLAMP_POLICY_TOLERANCE + 1 };
static const char *const kind_names[NUM_KINDS] = {"high", "int8", "routed", "x3", "lamp", "tolerance"};

/* The closest that a policy came to its bound. */
typedef struct extreme {
    double o, lse;
    size_t o_case, lse_case;
} extreme;

typedef struct sweep {
    const options *options;
    case_list list;
    extreme worst[NUM_KINDS];
    int64_t elements, unpromised, unsupported;
    char unsupported_why[240]; /* of the last one */
} sweep;

/* The case that is running, for a signal handler. */
static char current[4096];
static struct sigaction previous[NSIG];

/* Names the case, then lets the signal have its way. */
static void on_signal(int signal)
{
    const ssize_t written = write(STDOUT_FILENO, current, strlen(current));
    (void)written;
    (void)sigaction(signal, &previous[signal], NULL);
    if (signal == SIGABRT) (void)raise(signal);
}

static void catch_signals(void)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    struct sigaction action = {.sa_handler = on_signal};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        (void)sigaction(signals[i], &action, &previous[signals[i]]);
}

static void keep_extreme(extreme *worst, const verdict *v, size_t index)
{
    if (v->o_ratio > worst->o) {
        worst->o = v->o_ratio;
        worst->o_case = index;
    }
    if (v->lse_ratio > worst->lse) {
        worst->lse = v->lse_ratio;
        worst->lse_case = index;
    }
}

/* Would a process for a lesser instruction set run the same kernel? Then the case is that one's. */
static bool is_anothers(const sweep *s, const trial *t)
{
    tlamp_plan *plan = NULL;
    if (s->options->isa || s->options->device >= 0 || tlamp_plan_create(&plan, &t->in.problem, NULL, NULL))
        return false;
    const bool mine = strstr(tlamp_plan_kernel_name(plan), tlamp_isa());
    tlamp_plan_destroy(plan);
    return !mine;
}

static void run_case(sweep *s, size_t index, tally *n)
{
    const tile_case *c = &s->list.cases[index];
    (void)snprintf(current, sizeof current, "FAIL tilelamp run \"%s\" --policy \"%s\"\n     a signal\n", c->problem,
                   c->policy);
    trial t;
    trial_create(&t, c->problem, c->policy);
    if (s->options->threads) t.threads = s->options->threads;
    t.device = s->options->device;
    t.exact = strcmp(tlamp_isa(), "scalar") == 0;
    if (is_anothers(s, &t)) {
        trial_free(&t);
        return;
    }
    const verdict v = trial_verify(&t);
    keep_extreme(&s->worst[t.policy.policy.kind], &v, index);
    s->elements += v.elements;
    s->unpromised += v.unpromised;
    s->unsupported += v.unsupported;
    if (v.unsupported) (void)snprintf(s->unsupported_why, sizeof s->unsupported_why, "%s", v.why);
    n->passed += v.passed;
    n->failed += !v.passed;
    if (!v.passed) printf("FAIL tilelamp run \"%s\" --policy \"%s\"\n     %s\n", c->problem, c->policy, v.why);
    fflush(stdout);
    trial_free(&t);
}

/* ------------------------------------------------------------------------------------------------ all cases */

static bool is_wanted(const options *o, const tile_case *c)
{
    return !o->only || strstr(c->problem, o->only) || strstr(c->policy, o->only);
}

static void print_extremes(const sweep *s)
{
    for (int k = 0; k < NUM_KINDS; k++) {
        const extreme *w = &s->worst[k];
        const tile_case *o = &s->list.cases[w->o_case], *lse = &s->list.cases[w->lse_case];
        if (w->o > 0)
            printf("%-9s o   error/bound at most %.3f: \"%s\" \"%s\"\n", kind_names[k], w->o, o->problem, o->policy);
        if (w->lse > 0)
            printf("%-9s lse error/bound at most %.3f: \"%s\" \"%s\"\n", kind_names[k], w->lse, lse->problem,
                   lse->policy);
    }
    printf("%lld elements of o, %.4f %% without a promise\n", (long long)s->elements,
           s->elements ? 100. * (double)s->unpromised / (double)s->elements : 0.);
}

static tally run_all(void *context)
{
    sweep *s = context;
    tally n = {0, 0};
    for (size_t i = 0; i < s->list.count; i++) {
        if (is_wanted(s->options, &s->list.cases[i])) run_case(s, i, &n);
    }
    print_extremes(s);
    if (s->unsupported)
        printf("%lld cases the device does not run; the last: %s\n", (long long)s->unsupported, s->unsupported_why);
    return n;
}

static void list_all(const sweep *s)
{
    for (size_t i = 0; i < s->list.count; i++)
        if (is_wanted(s->options, &s->list.cases[i]))
            printf("\"%s\" --policy \"%s\"\n", s->list.cases[i].problem, s->list.cases[i].policy);
}

/* ------------------------------------------------------------------------------------------------ command line */

/* The value of option argv[*i], which is the next word. */
static const char *value_of(int argc, char **argv, int *i)
{
    if (*i + 1 < argc) return argv[++*i];
    fprintf(stderr, "checktile: %s needs a value\n", argv[*i]);
    exit(2);
}

static uint64_t number_of(int argc, char **argv, int *i)
{
    const char *text = value_of(argc, argv, i);
    char *end;
    const unsigned long long n = strtoull(text, &end, 10);
    if (*text && *text != '-' && !*end) return n;
    fprintf(stderr, "checktile: '%s' is no number\n", text);
    exit(2);
}

static void take_option(options *o, int argc, char **argv, int *i)
{
    const char *name = argv[*i];
    if (strcmp(name, "--list") == 0) {
        o->list = true;
    } else if (strcmp(name, "--full") == 0) {
        o->full = true;
    } else if (strcmp(name, "--random") == 0) {
        o->random = (size_t)number_of(argc, argv, i);
    } else if (strcmp(name, "--seed") == 0) {
        o->seed = number_of(argc, argv, i);
    } else if (strcmp(name, "--threads") == 0) {
        o->threads = (int)number_of(argc, argv, i);
    } else if (strcmp(name, "--only") == 0) {
        o->only = value_of(argc, argv, i);
    } else if (strcmp(name, "--isa") == 0) {
        o->isa = value_of(argc, argv, i);
    } else if (strcmp(name, "--device") == 0) {
        const char *text = value_of(argc, argv, i);
        if (device_parse(text, &o->device)) return;
        fprintf(stderr, "checktile: --device %s: write host, gpu or gpu:N\n", text);
        exit(2);
    } else {
        fputs(usage, strcmp(name, "--help") == 0 ? stdout : stderr);
        exit(strcmp(name, "--help") == 0 ? 0 : 2);
    }
}

/* Threads that wait must sleep: there are more of them than processors. OpenMP reads this when the program is loaded. */
static void sleep_while_waiting(char **argv)
{
    if (getenv("OMP_WAIT_POLICY")) return;
    if (setenv("OMP_WAIT_POLICY", "passive", 1) == 0) (void)execv("/proc/self/exe", argv);
}

/* The same command with --isa, as a new program: what an OpenMP runtime knows of its device does not survive a fork. */
static bool passes_with(char **argv, const char *isa)
{
    int words = 0;
    while (argv[words]) words++;
    char **again = new_zeros((size_t)words + 3, sizeof *again), option[] = "--isa", name[16];
    memcpy(again, argv, (size_t)words * sizeof *again);
    (void)snprintf(name, sizeof name, "%s", isa);
    again[words] = option;
    again[words + 1] = name;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        (void)execv("/proc/self/exe", again);
        _exit(2);
    }
    int status = 1;
    if (child > 0) waitpid(child, &status, 0);
    free(again);
    return child > 0 && status == 0;
}

/* Without --isa: the portable path's scalar kernels, then the device's best ones. The exit code. */
static int run_on_device(sweep *s, char **argv)
{
    if (s->options->device >= tlamp_num_devices()) {
        puts("skipped: no such device that this library has code for");
        return 77;
    }
    if (!s->options->isa) {
        const bool portable = passes_with(argv, "scalar"), best = passes_with(argv, "best");
        return portable && best ? 0 : 1;
    }
    catch_signals();
    const bool best = strcmp(s->options->isa, "best") == 0;
    printf("-- %s kernels\n", s->options->isa);
    const tally n = best ? run_all(s) : ladder_run(s->options->isa, run_all, s);
    printf("%lld passed, %lld failed\n", (long long)n.passed, (long long)n.failed);
    return n.failed ? 1 : 0;
}

int main(int argc, char **argv)
{
    sleep_while_waiting(argv);
    options o = {.seed = 1, .device = -1};
    for (int i = 1; i < argc; i++) take_option(&o, argc, argv, &i);
    sweep s = {.options = &o};
    const double max_work = o.full ? 4e7 : 4e6;
    if (o.random)
        cases_random(&s.list, o.random, o.seed, max_work);
    else
        cases_sweep(&s.list, o.full ? 8000 : 2400, o.seed, max_work);
    int status = 0;
    if (o.list) {
        list_all(&s);
    } else if (o.device >= 0) {
        status = run_on_device(&s, argv);
    } else {
        catch_signals();
        const tally n = ladder_run(o.isa, run_all, &s);
        printf("%lld passed, %lld failed\n", (long long)n.passed, (long long)n.failed);
        status = n.failed ? 1 : 0;
    }
    cases_free(&s.list);
    return status;
}
