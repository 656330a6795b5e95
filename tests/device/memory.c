/* Memory on devices: a workspace of the caller's is used, so that the library takes none of its own, and what a caller can get
 * wrong is refused with outputs untouched. Usage: device_memory. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dlfcn.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"
#include "tilelamp/tilelamp.h"

enum { BATCH = 2, L = 90, HEADS = 2, D = 64, N = BATCH * L * HEADS * D, WORDS = BATCH * HEADS, UNTOUCHED = 0x5a };

static int failures;

static void expect(int ok, const char *name, const char *what)
{
    if (ok) return;
    printf("FAIL %s: %s\n", name, what);
    failures++;
}

/* The library's calls come here. */
static int allocations;
static size_t allocated; /* bytes */

void *omp_target_alloc(size_t bytes, int device)
{
    static void *(*real)(size_t, int);
    if (!real) {
        void *symbol = dlsym(RTLD_NEXT, "omp_target_alloc");
        *(void **)&real = symbol;
    }
    allocations++;
    allocated += bytes;
    return real(bytes, device);
}

typedef struct {
    const char *name;
    tlamp_dtype dtype;
    tlamp_policy_kind kind;
    int32_t smooth_k, varlen;
} test_case;

typedef struct {
    tlamp_problem problem;
    tlamp_policy policy;
    tlamp_tensors there; /* on the device */
    tlamp_plan *plan;
    size_t bytes, workspace_bytes; /* of an operand; of the workspace */
    device_memory workspace;
    int32_t cu[BATCH + 1];
} setting;

static float numbers[N];
static uint16_t halves[N];
static unsigned char zero[N * 4], before[N * 4], after[N * 4], once[N * 4];

static const void *inputs_of(const test_case *c, int which)
{
    uint32_t state = (uint32_t)which + 1;
    for (int i = 0; i < N; i++) {
        state = state * 1664525u + 1013904223u;
        numbers[i] = (float)(state >> 8) * 0x1p-23f - 1.f;
        halves[i] = tlamp_f32_to_f16(numbers[i]);
    }
    return c->dtype == TLAMP_F32 ? (const void *)numbers : halves;
}

static void set_up(setting *s, const test_case *c)
{
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    memset(s, 0, sizeof *s);
    tlamp_problem_init(&s->problem, sizeof s->problem);
    tlamp_policy_init(&s->policy, sizeof s->policy);
    tlamp_tensors_init(&s->there, sizeof s->there);
    s->policy.kind = c->kind;
    s->policy.smooth_k = c->smooth_k;
    tlamp_problem *p = &s->problem;
    p->batch = BATCH;
    p->max_seqlen_q = p->max_seqlen_k = L;
    p->num_heads_q = p->num_heads_k = HEADS;
    p->head_dim_qk = p->head_dim_v = D;
    p->q_dtype = p->k_dtype = p->v_dtype = p->o_dtype = c->dtype;
    p->mask = TLAMP_MASK_CAUSAL;
    p->policy = &s->policy;
    p->varlen = c->varlen;
    p->total_q = p->total_k = BATCH * L;
    for (int b = 0; b <= BATCH; b++) s->cu[b] = b == 1 ? L - 20 : b * L; /* 70 and 110: the bound is the longest */
    if (c->varlen) p->max_seqlen_q = p->max_seqlen_k = L + 20;
    (void)tlamp_set_strides(p, c->varlen ? TLAMP_TENSOR_THD : TLAMP_TENSOR_BSHD, NULL);
    expect(tlamp_plan_create(&s->plan, p, NULL, &err) == TLAMP_OK, c->name, err.text);
    static const uint64_t words[WORDS] = {1, 2, 3, 0};
    s->bytes = (size_t)N * (c->dtype == TLAMP_F32 ? 4 : 2);
    s->there.q = device_copy(0, inputs_of(c, 0), s->bytes);
    s->there.k = device_copy(0, inputs_of(c, 1), s->bytes);
    s->there.v = device_copy(0, inputs_of(c, 2), s->bytes);
    s->there.words = device_copy(0, words, sizeof words);
    s->there.words_stride_row = s->there.words_stride_head = 1;
    s->there.words_stride_batch = HEADS;
    s->there.cu_seqlens_q = s->there.cu_seqlens_k = s->cu;
    s->workspace_bytes = tlamp_plan_device_workspace_size(s->plan);
    s->workspace = device_new(0, s->workspace_bytes);
}

static void tear_down(setting *s, const test_case *c)
{
    uint64_t words[WORDS];
    int intact = device_take(0, (void *)(uintptr_t)s->there.q, after, s->bytes);
    intact &= device_take(0, (void *)(uintptr_t)s->there.k, after, s->bytes);
    intact &= device_take(0, (void *)(uintptr_t)s->there.v, after, s->bytes);
    intact &= device_take(0, (void *)(uintptr_t)s->there.words, words, sizeof words);
    intact &= device_delete(0, s->workspace);
    expect(intact, c->name, "something wrote beside an input or the workspace");
    tlamp_plan_destroy(s->plan);
}

/* Into `out`; what lay there before is UNTOUCHED. */
static tlamp_status run(setting *s, const test_case *c, const tlamp_tensors *t, void *workspace, size_t bytes,
                        tlamp_error *err, unsigned char *out)
{
    tlamp_exec e;
    tlamp_tensors x = *t;
    tlamp_exec_init(&e, sizeof e);
    e.device = 0;
    e.memory = TLAMP_MEMORY_DEVICE;
    memset(before, UNTOUCHED, sizeof before);
    void *o = device_copy(0, before, s->bytes);
    x.o = t->o ? t->o : o;
    *err = (tlamp_error){sizeof *err, TLAMP_OK, "", ""};
    const int so_far = allocations;
    const size_t bytes_so_far = allocated;
    const tlamp_status status = tlamp_execute(s->plan, &x, &e, workspace, bytes, err);
    allocations -= so_far;
    allocated -= bytes_so_far;
    expect(device_take(0, o, out, s->bytes), c->name, "something wrote beside the output");
    return status;
}

static void expect_refused(setting *s, const test_case *c, const tlamp_tensors *t, void *workspace, size_t bytes,
                           tlamp_status wanted, const char *field)
{
    tlamp_error err;
    const tlamp_status status = run(s, c, t, workspace, bytes, &err, after);
    expect(status == wanted && strcmp(err.field, field) == 0, c->name, field);
    if (status != wanted || strcmp(err.field, field) != 0)
        printf("     %s, %s: %s\n", tlamp_status_string(status), err.field, err.text);
    expect(memcmp(after, before, s->bytes) == 0, c->name, "a refused call touched its output");
}

static void test(const test_case *c, int has_driver)
{
    setting s;
    tlamp_error err;
    set_up(&s, c);
    expect(run(&s, c, &s.there, NULL, 0, &err, once) == TLAMP_OK, c->name, err.text);
    expect(allocations > 0 || (c->kind == TLAMP_POLICY_HIGH && c->dtype == TLAMP_F16), c->name,
           "its allocations are not seen here");
    expect(memcmp(once, before, s.bytes) != 0 && memcmp(once, zero, s.bytes) != 0, c->name, "nothing was computed");
    for (int i = 0; i < 2; i++) {
        expect(run(&s, c, &s.there, s.workspace.data, s.workspace_bytes, &err, after) == TLAMP_OK, c->name, err.text);
        expect(memcmp(once, after, s.bytes) == 0, c->name, "other bits with a workspace of the caller's");
        expect(allocations == 0, c->name, "it takes device memory though it was given some");
    }
    if (s.workspace_bytes) {
        unsigned char *w = s.workspace.data;
        expect_refused(&s, c, &s.there, w, 1, TLAMP_WORKSPACE_TOO_SMALL, "workspace_bytes");
        expect_refused(&s, c, &s.there, w + 8, s.workspace_bytes, TLAMP_INVALID_ARGUMENT, "workspace");
    }
    tlamp_tensors t = s.there;
    t.q = NULL;
    expect_refused(&s, c, &t, NULL, 0, TLAMP_INVALID_ARGUMENT, "q");
    if (has_driver) { /* which knows whose memory it is */
        const char *const fields[] = {"q", "k", "v", "o", "workspace"};
        void *here = aligned_alloc(64, s.bytes + s.workspace_bytes / 64 * 64 + 64);
        if (!here) abort();
        for (int i = 0; i < 5; i++) {
            t = s.there;
            *(i == 0 ? &t.q : i == 1 ? &t.k : &t.v) = i < 3 ? here : t.v;
            if (i == 3) t.o = here;
            expect_refused(&s, c, &t, i == 4 ? here : NULL, s.workspace_bytes, TLAMP_INVALID_ARGUMENT, fields[i]);
        }
        free(here);
    }
    tear_down(&s, c);
}

/* Keys that tensor cores quantise on the fly have no codes in memory. */
static void test_fly(void)
{
    static const test_case c = {"f16 int8 smooth-k", TLAMP_F16, TLAMP_POLICY_INT8, 1, 0};
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        setting s;
        tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
        set_up(&s, &c);
        tlamp_plan_destroy(s.plan);
        s.policy.quantise = i ? TLAMP_QUANTISE_FLY : TLAMP_QUANTISE_ONCE;
        expect(tlamp_plan_create(&s.plan, &s.problem, NULL, &err) == TLAMP_OK, c.name, err.text);
        expect(run(&s, &c, &s.there, NULL, 0, &err, after) == TLAMP_OK, c.name, err.text);
        bytes[i] = allocated;
        tear_down(&s, &c);
    }
    const size_t codes = 2 * (size_t)BATCH * HEADS * L * D; /* of Q and K */
    expect(bytes[1] + codes / 2 < bytes[0], c.name, "on the fly, codes are kept all the same");
}

int main(void)
{
    static const test_case cases[] = {
        {"f32 high", TLAMP_F32, TLAMP_POLICY_HIGH, 0, 0},
        {"f32 int8 smooth-k varlen", TLAMP_F32, TLAMP_POLICY_INT8, 1, 1},
        {"f16 high", TLAMP_F16, TLAMP_POLICY_HIGH, 0, 0},
        {"f16 int8", TLAMP_F16, TLAMP_POLICY_INT8, 0, 0},
        {"f16 routed", TLAMP_F16, TLAMP_POLICY_ROUTED, 0, 0},
        {"f16 routed smooth-k varlen", TLAMP_F16, TLAMP_POLICY_ROUTED, 1, 1},
        {"f16 x3", TLAMP_F16, TLAMP_POLICY_X3, 0, 0},
    };
    enum { CASES = sizeof cases / sizeof cases[0] };
    if (tlamp_num_devices() == 0) {
        puts("skipped: no device that this library has code for");
        return 77;
    }
    const int has_driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) != NULL;
    for (int i = 0; i < CASES; i++) test(&cases[i], has_driver);
    if (has_driver) test_fly(); /* and tensor cores: plain C keeps them in scratch */
    printf("%d cases, %d failures%s\n", (int)CASES, failures,
           has_driver ? "" : " (no driver to tell whose memory it is)");
    return failures != 0;
}
