/* B29: the workspace is as large as the library says and not a byte more, aligned, and its size never wraps. */
#include <stdlib.h>
#include <string.h>

#include "support/conform.h"

static tlamp_plan *plan_of(const trial *t)
{
    tlamp_plan *plan = NULL;
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    (void)expect(tlamp_plan_create(&plan, &t->in.problem, NULL, &err) == TLAMP_OK, "%s: %s", err.field, err.text);
    return plan;
}

static void refused(const tlamp_plan *plan, const tlamp_tensors *tensors, int32_t threads, void *memory, size_t bytes,
                    tlamp_status status, const char *field)
{
    tlamp_exec exec;
    tlamp_exec_init(&exec, sizeof exec);
    exec.num_threads = threads;
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    const tlamp_status got = tlamp_execute(plan, tensors, &exec, memory, bytes, &err);
    (void)expect(got == status && strcmp(err.field, field) == 0, "%s about '%s', not %s", tlamp_status_string(got),
                 err.field, tlamp_status_string(status));
}

static bool all_nan(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (x[i] == x[i]) return false;
    return true;
}

/* trial_verify runs with the exact size before a page that may not be touched; here come the wrong ones. */
static void one_shape(const setting *s, int lq, int lk)
{
    trial t;
    conform_begin(&t, s, "hq4 hk2 q%d k%d d40 dv24 causal", lq, lk);
    conform_verify(&t);
    tlamp_plan *plan = plan_of(&t);
    for (int32_t threads = 1; plan && threads <= 3; threads++) {
        const size_t bytes = tlamp_plan_workspace_size(plan, threads);
        guarded memory = {NULL, 0, NULL, 0};
        guarded_resize(&memory, bytes + 64);
        (void)expect(bytes > 0 && bytes % 64 == 0, "a workspace of %zu bytes", bytes);
        refused(plan, &t.in.tensors, threads, memory.data + 1, bytes + 63, TLAMP_INVALID_ARGUMENT, "workspace");
        refused(plan, &t.in.tensors, threads, memory.data, bytes - 1, TLAMP_WORKSPACE_TOO_SMALL, "workspace_bytes");
        refused(plan, &t.in.tensors, threads, memory.data, 0, TLAMP_WORKSPACE_TOO_SMALL, "workspace_bytes");
        (void)expect(all_nan(t.in.tensors.o, trial_o_count(&t)), "o was touched");
        (void)expect(all_nan(t.in.tensors.lse, trial_lse_count(&t)), "lse was touched");
        guarded_free(&memory);
    }
    tlamp_plan_destroy(plan);
    conform_end(&t);
}

static void *fail_to_allocate(void *context, size_t size, size_t align)
{
    (void)align;
    *(size_t *)context = size;
    return NULL;
}

static void never_called(void *context, void *memory)
{
    (void)context;
    (void)expect(!memory, "freed what was never allocated");
}

static void no_such_memory(const tlamp_plan *plan, const tlamp_tensors *tensors, size_t bytes)
{
    size_t asked = 0;
    tlamp_exec exec;
    tlamp_exec_init(&exec, sizeof exec);
    exec.num_threads = 1;
    exec.allocator = (tlamp_allocator){&asked, fail_to_allocate, never_called};
    tlamp_tensors t = *tensors;
    t.lse = NULL;
    const tlamp_status status = tlamp_execute(plan, &t, &exec, NULL, 0, NULL);
    (void)expect(status == TLAMP_OUT_OF_MEMORY, "%s", tlamp_status_string(status));
    const size_t fits = bytes == SIZE_MAX ? 0 : bytes; /* what no address space holds is not even asked for */
    (void)expect(asked == fits, "asked for %zu bytes, not %zu", asked, fits);
}

/* Everything as large as the problem may be. */
static void near_the_end_of_memory(const setting *s)
{
    trial t;
    conform_begin(&t, s, "q4 k4 d8 mask:random");
    tlamp_problem *p = &t.in.problem;
    p->batch = 1 << 16;
    p->max_seqlen_q = p->max_seqlen_k = INT32_MAX;
    p->num_heads_q = p->num_heads_k = 65536;
    p->head_dim_qk = p->head_dim_v = 16384;
    p->q_stride = p->k_stride = p->v_stride = (tlamp_strides){0, 0, 0, 1};
    p->o_stride = (tlamp_strides){1, 1, 1, 1};
    p->bool_mask_stride = (tlamp_score_strides){0, 0, 0, 0};
    p->varlen = 0;
    tlamp_plan *plan = NULL;
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    const tlamp_status status = tlamp_plan_create(&plan, p, NULL, &err);
    if (status == TLAMP_OK) {
        const size_t one = tlamp_plan_workspace_size(plan, 1), many = tlamp_plan_workspace_size(plan, 1000);
        (void)expect(0 < one && one <= many, "sizes %zu, %zu", one, many);
        /* The codes of one sequence's keys alone: 2^16 heads x 2^31 keys x 2^14 columns. */
        if (t.policy.policy.kind == TLAMP_POLICY_INT8) (void)expect(one > (size_t)1 << 60, "%zu bytes cannot do", one);
        no_such_memory(plan, &t.in.tensors, one);
    } else {
        (void)expect(status != TLAMP_INVALID_ARGUMENT, "%s: %s", err.field, err.text);
    }
    tlamp_plan_destroy(plan);
    conform_end(&t);
}

static void body(const setting *s)
{
    static const int lengths[] = {1, 64, 65, 128, 129, 4 * 64 + 3, 4 * 128 + 3};
    for (int i = 0; i < 7; i++) {
        one_shape(s, lengths[i], 70);
        one_shape(s, 3, lengths[i]);
    }
    near_the_end_of_memory(s);
}

int main(void) { return conform(body); }
