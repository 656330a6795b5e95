#include "conform.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "ladder.h"

static tally counts;
static char place[700]; /* the setting, and the problem of the latest trial */
static bool not_run;    /* the device does not run that problem, and said so: nothing is expected of it */

bool expect(bool ok, const char *format, ...)
{
    if (ok || not_run) {
        counts.passed += ok;
        return true;
    }
    counts.failed++;
    va_list args;
    va_start(args, format);
    printf("FAIL %s\n     ", place);
    (void)vprintf(format, args);
    putchar('\n');
    va_end(args);
    return false;
}

/* ------------------------------------------------------------------------------------------------ settings */

bool is_high(const setting *s) { return strcmp(s->policy, "high") == 0; }

bool has_int8_values(const setting *s) { return strstr(s->policy, "pv=int8") != NULL; }

typedef struct program {
    void (*body)(const setting *);
    bool once;
} program;

static tally run_settings(void *context)
{
    static const char *const policies[] = {
        "high", "int8", "int8 smooth-k scales=token", "row_rand:0.5 tile=16x16", "x3", "int8 pv=int8"};
    enum { NUM_POLICIES = sizeof policies / sizeof policies[0] };
    static const char *const layouts[] = {"bshd", "bhsd", "thd"};
    const program *p = context;
    for (int i = 0; i < (p->once ? 1 : NUM_POLICIES); i++)
        for (int j = 0; j < (p->once ? 1 : 3); j++) {
            const setting s = {policies[i], layouts[j]};
            (void)snprintf(place, sizeof place, "--policy \"%s\" layout:%s", s.policy, s.layout);
            p->body(&s);
        }
    return counts;
}

int32_t conform_device(void)
{
    const char *text = getenv("TILELAMP_TEST_DEVICE");
    int32_t device = -1;
    if (!text || device_parse(text, &device)) return device;
    fprintf(stderr, "test: TILELAMP_TEST_DEVICE=%s: write host, gpu or gpu:N\n", text);
    exit(2);
}

static int run_program(program p)
{
    const int32_t device = conform_device();
    if (device >= 0 && device >= tlamp_num_devices()) { /* not asked for the host's sake: it forks */
        puts("skipped: no such device");
        return SKIPPED;
    }
    const tally n = ladder_run(device < 0 ? NULL : "scalar", run_settings, &p);
    printf("%lld passed, %lld failed\n", (long long)n.passed, (long long)n.failed);
    return n.failed || !n.passed;
}

int conform(void (*body)(const setting *)) { return run_program((program){body, false}); }

int conform_once(void (*body)(const setting *)) { return run_program((program){body, true}); }

/* ------------------------------------------------------------------------------------------------ trials */

void conform_begin(trial *t, const setting *s, const char *problem, ...)
{
    char text[512];
    va_list args;
    va_start(args, problem);
    const int length = vsnprintf(text, sizeof text, problem, args);
    va_end(args);
    const bool free_layout = !strstr(text, "varlen:") && !strstr(text, "layout:");
    if (free_layout) (void)snprintf(text + length, sizeof text - (size_t)length, " layout:%s", s->layout);
    (void)snprintf(place, sizeof place, "\"%s\" --policy \"%s\"", text, s->policy);
    not_run = false;
    trial_create(t, text, s->policy);
    t->device = conform_device();
    t->exact = true;
}

void conform_verify(trial *t)
{
    const verdict v = trial_verify(t);
    (void)expect(v.passed, "%s", v.why);
    not_run = v.unsupported;
}

void conform_end(trial *t) { trial_free(t); }

/* ------------------------------------------------------------------------------------------------ results */

static bool is_near(double got, double want, double slack)
{
    return isnan(want) ? isnan(got) : got == want || fabs(got - want) <= slack;
}

void expect_o(const trial *t, int64_t b, int64_t h, int64_t i, int64_t c, double want, double printed)
{
    const double got = trial_o(t, b, h, i, c), bound = trial_o_bound(t, b, h, i, c);
    (void)expect(is_near(got, want, bound + printed), "o[b%d h%d i%d c%d] is %.9g, not %.9g +- %.3g", (int)b, (int)h,
                 (int)i, (int)c, got, want, bound + printed);
}

void expect_lse(const trial *t, int64_t b, int64_t h, int64_t i, double want, double printed)
{
    const double got = trial_lse(t, b, h, i), bound = trial_lse_bound(t, b, h, i);
    (void)expect(is_near(got, want, bound + printed), "lse[b%d h%d i%d] is %.9g, not %.9g +- %.3g", (int)b, (int)h,
                 (int)i, got, want, bound + printed);
}

void expect_empty(const trial *t, int64_t b, int64_t h, int64_t i)
{
    const double lse = trial_lse(t, b, h, i);
    (void)expect(isinf(lse) && lse < 0, "lse[b%d h%d i%d] of an empty row is %.9g", (int)b, (int)h, (int)i, lse);
    for (int64_t c = 0; c < t->in.spec.dv; c++)
        (void)expect(trial_o(t, b, h, i, c) == 0, "o[b%d h%d i%d c%d] of an empty row is %.9g", (int)b, (int)h, (int)i,
                     (int)c, trial_o(t, b, h, i, c));
}

void expect_refused(trial *t, tlamp_status status, const char *field)
{
    char why[240];
    (void)expect(trial_refused(t, status, field, why), "%s", why);
}

void expect_same(const trial *a, const trial *b, const char *what)
{
    if (expect(trial_o_count(a) == trial_o_count(b), "different sizes: %s", what))
        (void)expect(trial_same_bits(a, &a->result, &b->result), "other bits: %s", what);
}
