/* B15: offsets that wrap in 32 bits, signed and unsigned, in elements and in bytes. Each tensor in turn gets a stride of
 * 2^30 + 64 elements on one axis, three steps of it, in memory that is reserved and hardly touched; the result must have
 * the bits of the same tensors lying dense. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, MAP_NORESERVE */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "support/conform.h"

enum { N = 3, D = 8, TENSORS = 4 }; /* N sequences, tokens and heads */
static const int64_t huge = ((int64_t)1 << 30) + 64;

typedef struct tensor {
    char *data;
    tlamp_strides stride;
} tensor;

static const char *const names[TENSORS] = {"q", "k", "v", "o"};
static const char *const axes[3] = {"batch", "seq", "head"};

static int64_t offset(const tensor *t, int b, int i, int h)
{
    return b * t->stride.batch + i * t->stride.seq + h * t->stride.head;
}

static tensor dense(size_t element)
{
    tensor t = {new_zeros(N * N * N * D, element), {N * N * D, N * D, D, 1}};
    return t;
}

/* Elements of every row, from one tensor to another. */
static void copy(tensor *to, const tensor *from, size_t element)
{
    for (int b = 0; b < N; b++)
        for (int i = 0; i < N; i++)
            for (int h = 0; h < N; h++)
                memcpy(to->data + offset(to, b, i, h) * (int64_t)element,
                       from->data + offset(from, b, i, h) * (int64_t)element, D * element);
}

static void run(const tensor t[TENSORS], tlamp_dtype dtype, const tlamp_policy *policy)
{
    tlamp_problem p;
    tlamp_tensors data;
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    tlamp_problem_init(&p, sizeof p);
    tlamp_tensors_init(&data, sizeof data);
    p.batch = p.max_seqlen_q = p.max_seqlen_k = N;
    p.num_heads_q = p.num_heads_k = N;
    p.head_dim_qk = p.head_dim_v = D;
    p.q_dtype = p.k_dtype = p.v_dtype = p.o_dtype = dtype;
    p.q_stride = t[0].stride;
    p.k_stride = t[1].stride;
    p.v_stride = t[2].stride;
    p.o_stride = t[3].stride;
    p.policy = policy;
    data.q = t[0].data;
    data.k = t[1].data;
    data.v = t[2].data;
    data.o = t[3].data;
    tlamp_exec exec;
    tlamp_exec_init(&exec, sizeof exec);
    exec.device = conform_device();
    (void)expect(tlamp_attention(&p, &data, &exec, &err) == TLAMP_OK, "%s: %s", err.field, err.text);
}

static void stretch(tensor *t, int axis)
{
    int64_t *strides[3] = {&t->stride.batch, &t->stride.seq, &t->stride.head};
    *strides[axis] = huge;
}

static void compare(const tensor *want, const tensor *got, size_t element, const char *what)
{
    tensor again = dense(element);
    copy(&again, got, element);
    (void)expect(memcmp(again.data, want->data, N * N * N * D * element) == 0, "huge stride: %s", what);
    free(again.data);
}

/* Tensor `which` stretched on `axis`, against all dense. */
static void one(const tensor base[TENSORS], int which, int axis, tlamp_dtype dtype, const tlamp_policy *policy,
                char *map)
{
    const size_t element = dtype == TLAMP_F32 ? 4 : 2;
    char what[64];
    (void)snprintf(what, sizeof what, "%s, %s, %zu bytes an element", names[which], axes[axis], element);
    tensor t[TENSORS];
    memcpy(t, base, sizeof t);
    t[which].data = map;
    stretch(&t[which], axis);
    if (which < 3) copy(&t[which], &base[which], element);
    tensor out = dense(element);
    if (which < 3) t[3] = out;
    run(t, dtype, policy);
    compare(&base[3], &t[3], element, what);
    free(out.data);
}

static void all_axes(tlamp_dtype dtype, tlamp_policy_kind kind)
{
    const size_t element = dtype == TLAMP_F32 ? 4 : 2, bytes = (size_t)(2 * huge + N * N * D + 4096) * element;
    tlamp_policy policy;
    tlamp_policy_init(&policy, sizeof policy);
    policy.kind = kind;
    tensor base[TENSORS];
    for (int i = 0; i < TENSORS; i++) base[i] = dense(element);
    for (int i = 0; i < 3; i++)
        for (int64_t e = 0; e < N * N * N * D; e++)
            tensor_set(base[i].data, dtype, e, (double)((e * (7 + i) + i) % 31 - 15) / 8);
    run(base, dtype, &policy);
    for (int which = 0; which < TENSORS; which++)
        for (int axis = 0; axis < 3; axis++) {
            char *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (map == MAP_FAILED) {
                puts("skipped: cannot reserve the addresses");
                exit(SKIPPED);
            }
            one(base, which, axis, dtype, &policy, map);
            munmap(map, bytes);
        }
    for (int i = 0; i < TENSORS; i++) free(base[i].data);
}

static void body(const setting *s)
{
    (void)s;
    all_axes(TLAMP_F16, TLAMP_POLICY_HIGH);
    all_axes(TLAMP_F32, TLAMP_POLICY_HIGH);
    all_axes(TLAMP_BF16, TLAMP_POLICY_INT8);
}

int main(void) { return conform_once(body); }
