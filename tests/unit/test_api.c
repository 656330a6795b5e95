/* Every entry of the public contract: what is accepted, what is refused and how, and that a refusal touches nothing. */
#define _POSIX_C_SOURCE 200809L
#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "support/guard.h"
#include "tilelamp/tilelamp.h"

/* ------------------------------------------------------------------------------------------------ a small attention */

enum { B = 2, HQ = 4, HK = 2, LQ = 5, LK = 70, D = 8, DV = 6 };
enum { Q_SIZE = B * LQ * HQ * D, K_SIZE = B * LK * HK * D, V_SIZE = B * LK * HK * DV, O_SIZE = B * LQ * HQ * DV };
enum { LSE_SIZE = B * HQ * LQ };

static const float untouched = -12345.f;

typedef struct attention {
    tlamp_policy policy;
    tlamp_problem problem;
    tlamp_tensors tensors;
    float q[Q_SIZE], k[K_SIZE], v[V_SIZE], o[O_SIZE], lse[LSE_SIZE];
    uint8_t bool_mask[LQ * LK];
    float bias[LQ * LK], slopes[HQ], sinks[HQ];
    int32_t used[B], cu_q[B + 1], cu_k[B + 1];
    uint64_t words[B];
    tlamp_error err;
} attention;

static void clear_outputs(attention *a)
{
    for (int i = 0; i < O_SIZE; i++) a->o[i] = untouched;
    for (int i = 0; i < LSE_SIZE; i++) a->lse[i] = untouched;
}

static bool outputs_are_untouched(const attention *a)
{
    for (int i = 0; i < O_SIZE; i++)
        if (a->o[i] != untouched) return false;
    for (int i = 0; i < LSE_SIZE; i++)
        if (a->lse[i] != untouched) return false;
    return true;
}

static void fill(float *x, int n, unsigned seed)
{
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / (float)(1u << 23) - 1;
    }
}

/* Everything the problem may ask for is there; the problem asks for none of it. */
static attention *make(tlamp_policy_kind kind)
{
    attention *a = new_zeros(1, sizeof *a);
    tlamp_policy_init(&a->policy, sizeof a->policy);
    tlamp_problem_init(&a->problem, sizeof a->problem);
    tlamp_tensors_init(&a->tensors, sizeof a->tensors);
    a->policy.kind = kind;
    a->problem.policy = &a->policy;
    a->problem.batch = B;
    a->problem.max_seqlen_q = LQ;
    a->problem.max_seqlen_k = LK;
    a->problem.num_heads_q = HQ;
    a->problem.num_heads_k = HK;
    a->problem.head_dim_qk = D;
    a->problem.head_dim_v = DV;
    cr_assert(tlamp_set_strides(&a->problem, TLAMP_TENSOR_BSHD, NULL) == TLAMP_OK);
    a->problem.bool_mask_stride = a->problem.bias_stride = (tlamp_score_strides){0, 0, LK, 1};
    fill(a->q, Q_SIZE, 1);
    fill(a->k, K_SIZE, 2);
    fill(a->v, V_SIZE, 3);
    memset(a->bool_mask, 1, sizeof a->bool_mask);
    a->words[0] = a->words[1] = 1;
    for (int b = 0; b < B; b++) {
        a->used[b] = LK;
        a->cu_q[b + 1] = (b + 1) * LQ;
        a->cu_k[b + 1] = (b + 1) * LK;
    }
    tlamp_tensors *t = &a->tensors;
    *t = (tlamp_tensors){.struct_size = sizeof *t, .q = a->q, .k = a->k, .v = a->v, .o = a->o, .lse = a->lse};
    t->cu_seqlens_q = a->cu_q;
    t->cu_seqlens_k = a->cu_k;
    t->seqused_k = a->used;
    t->bool_mask = a->bool_mask;
    t->bias = a->bias;
    t->alibi_slopes = a->slopes;
    t->sinks = a->sinks;
    t->words = a->words;
    t->words_stride_batch = 1;
    t->words_stride_row = 1;
    a->err.struct_size = sizeof a->err;
    clear_outputs(a);
    return a;
}

static tlamp_status run(attention *a)
{
    clear_outputs(a);
    return tlamp_attention(&a->problem, &a->tensors, NULL, &a->err);
}

static tlamp_plan *plan_of(attention *a)
{
    tlamp_plan *plan = NULL;
    cr_assert(tlamp_plan_create(&plan, &a->problem, NULL, &a->err) == TLAMP_OK, "%s: %s", a->err.field, a->err.text);
    return plan;
}

static bool same_outputs(const attention *a, const attention *b)
{
    return memcmp(a->o, b->o, sizeof a->o) == 0 && memcmp(a->lse, b->lse, sizeof a->lse) == 0;
}

/* A refusal says what and where, in one line. */
static void check_error(const attention *a, tlamp_status got, tlamp_status want, const char *field)
{
    cr_assert(got == want, "%s (%s: %s), not %s about %s", tlamp_status_string(got), a->err.field, a->err.text,
              tlamp_status_string(want), field);
    cr_assert(a->err.status == want && strcmp(a->err.field, field) == 0, "about '%s', not '%s'", a->err.field, field);
    cr_assert(a->err.text[0] && !strchr(a->err.text, '\n'), "text '%s'", a->err.text);
    cr_assert(outputs_are_untouched(a), "%s: outputs were touched", field);
}

/* The problem is refused by every function that takes one, with and without a tlamp_error. */
static void check_refused(attention *a, tlamp_status status, const char *field)
{
    const tlamp_error fresh = {sizeof fresh, TLAMP_OK, "", ""};
    tlamp_plan *const nothing = (tlamp_plan *)(void *)a;
    tlamp_plan *plan = nothing;
    a->err = fresh;
    check_error(a, tlamp_supported(&a->problem, &a->err), status, field);
    a->err = fresh;
    check_error(a, tlamp_plan_create(&plan, &a->problem, NULL, &a->err), status, field);
    a->err = fresh;
    void *memory = aligned_alloc(64, (tlamp_plan_size() + 63) / 64 * 64);
    check_error(a, tlamp_plan_init(&plan, memory, tlamp_plan_size(), &a->problem, &a->err), status, field);
    free(memory);
    cr_assert(plan == nothing, "%s: *plan was set", field);
    a->err = fresh;
    check_error(a, run(a), status, field);
    cr_assert(tlamp_supported(&a->problem, NULL) == status);
    cr_assert(tlamp_attention(&a->problem, &a->tensors, NULL, NULL) == status);
}

/* ------------------------------------------------------------------------------------------------ versions, names */

Test(names, version)
{
    cr_assert(tlamp_version() == TLAMP_VERSION);
    cr_assert_str_eq(tlamp_version_string(), TLAMP_VERSION_STRING);
}

Test(names, status_strings)
{
    static const char *const names[] = {"OK",
                                        "INVALID_ARGUMENT",
                                        "UNSUPPORTED",
                                        "UNSUPPORTED_HARDWARE",
                                        "WORKSPACE_TOO_SMALL",
                                        "OUT_OF_MEMORY",
                                        "DEVICE_ERROR"};
    for (tlamp_status s = TLAMP_OK; s <= TLAMP_DEVICE_ERROR; s++) cr_assert_str_eq(tlamp_status_string(s), names[s]);
    cr_assert(tlamp_status_string(-1) && tlamp_status_string(7) && tlamp_status_string(INT32_MAX));
}

/* ------------------------------------------------------------------------------------------------ structs */

Test(structs, init_sets_the_documented_defaults)
{
    tlamp_problem p;
    tlamp_policy y;
    tlamp_exec e;
    memset(&p, 0x55, sizeof p);
    memset(&y, 0x55, sizeof y);
    memset(&e, 0x55, sizeof e);
    tlamp_problem_init(&p, sizeof p);
    tlamp_policy_init(&y, sizeof y);
    tlamp_exec_init(&e, sizeof e);
    cr_assert(p.struct_size == sizeof p && p.batch == 1 && p.q_stride.dim == 1 && p.o_stride.dim == 1);
    cr_assert(p.window_left == -1 && p.window_right == -1 && p.num_policies == 1 && p.words_per_row == 1);
    cr_assert(p.num_splits == TLAMP_SPLITS_AUTO && p.softmax_scale == 0 && p.mask == TLAMP_MASK_NONE && !p.policy &&
              !p.varlen);
    cr_assert(y.struct_size == sizeof y && y.kind == TLAMP_POLICY_HIGH && y.block_m == 128 && y.block_n == 64);
    cr_assert(y.quant_block_q == 128 && y.quant_block_k == 64 && y.scales == TLAMP_SCALES_BLOCK && !y.smooth_k);
    cr_assert(y.delta == 0x1p-8f && y.tau == 0.5f && y.lamp_b_q == 32 && y.lamp_b_k == 16 && y.lamp_n_k == 4);
    cr_assert(e.struct_size == sizeof e && e.num_threads == 0 && !e.parallel_for && e.device == -1);
}

Test(structs, init_stays_inside_the_given_size)
{
    unsigned char memory[sizeof(tlamp_problem)];
    memset(memory, 0x55, sizeof memory);
    tlamp_problem_init((tlamp_problem *)(void *)memory, 64);
    for (size_t i = 64; i < sizeof memory; i++) cr_assert(memory[i] == 0x55);
    tlamp_problem_init(NULL, 64);
    tlamp_problem_init((tlamp_problem *)(void *)memory, 3); /* not even room for the size */
}

/* A caller with an older header hands in less: what is missing takes its default, whatever lies behind. */
Test(structs, older_ones_work)
{
    attention *a = make(TLAMP_POLICY_HIGH), *b = make(TLAMP_POLICY_HIGH);
    cr_assert(run(a) == TLAMP_OK);
    memset((char *)&b->problem + offsetof(tlamp_problem, softmax_scale), 0x55,
           sizeof b->problem - offsetof(tlamp_problem, softmax_scale));
    b->problem.struct_size = offsetof(tlamp_problem, softmax_scale);
    memset((char *)&b->tensors + offsetof(tlamp_tensors, cu_seqlens_q), 0x55,
           sizeof b->tensors - offsetof(tlamp_tensors, cu_seqlens_q));
    b->tensors.struct_size = offsetof(tlamp_tensors, cu_seqlens_q);
    cr_assert(run(b) == TLAMP_OK, "%s", b->err.text);
    cr_assert(same_outputs(a, b));
    b->policy.struct_size = offsetof(tlamp_policy, block_m);
    memset(&b->policy.block_m, 0x55, sizeof b->policy - offsetof(tlamp_policy, block_m));
    b->problem = a->problem;
    b->problem.policy = &b->policy;
    cr_assert(run(b) == TLAMP_OK && same_outputs(a, b), "%s", b->err.text);
    free(a);
    free(b);
}

/* One from a newer header: room for fields that this library does not know. */
typedef struct newer {
    union {
        tlamp_problem problem;
        tlamp_policy policy;
        tlamp_tensors tensors;
        tlamp_exec exec;
    } known;
    char more[64];
} newer;

static void *make_newer(newer *to, const void *from, size_t size)
{
    memset(to, 0, sizeof *to);
    memcpy(to, from, size);
    const size_t grown = size + 32;
    memcpy(to, &grown, sizeof grown);
    return to;
}

Test(structs, newer_ones_work_while_the_rest_is_zero)
{
    attention *a = make(TLAMP_POLICY_HIGH), *b = make(TLAMP_POLICY_HIGH);
    newer problem, policy, tensors, exec;
    tlamp_exec e;
    tlamp_exec_init(&e, sizeof e);
    cr_assert(run(a) == TLAMP_OK);
    make_newer(&policy, &b->policy, sizeof b->policy);
    b->problem.policy = &policy.known.policy;
    make_newer(&problem, &b->problem, sizeof b->problem);
    make_newer(&tensors, &b->tensors, sizeof b->tensors);
    make_newer(&exec, &e, sizeof e);
    const tlamp_status ok = tlamp_attention(&problem.known.problem, &tensors.known.tensors, &exec.known.exec, &b->err);
    cr_assert(ok == TLAMP_OK && same_outputs(a, b), "%s", b->err.text);

    newer *const all[] = {&problem, &policy, &tensors, &exec};
    const size_t sizes[] = {sizeof b->problem, sizeof b->policy, sizeof b->tensors, sizeof e};
    for (int i = 0; i < 4; i++) {
        char *last = (char *)all[i] + sizes[i] + 31;
        *last = 1;
        clear_outputs(b);
        check_error(b, tlamp_attention(&problem.known.problem, &tensors.known.tensors, &exec.known.exec, &b->err),
                    TLAMP_UNSUPPORTED, "struct_size");
        *last = 0;
    }
    free(a);
    free(b);
}

Test(structs, no_size_is_refused)
{
    attention *a = make(TLAMP_POLICY_HIGH);
    tlamp_exec exec;
    tlamp_exec_init(&exec, sizeof exec);
    a->problem.struct_size = 0;
    check_refused(a, TLAMP_INVALID_ARGUMENT, "struct_size");
    a->problem.struct_size = sizeof a->problem;
    a->policy.struct_size = 7;
    check_refused(a, TLAMP_INVALID_ARGUMENT, "struct_size");
    a->policy.struct_size = sizeof a->policy;
    a->tensors.struct_size = 0;
    check_error(a, run(a), TLAMP_INVALID_ARGUMENT, "struct_size");
    a->tensors.struct_size = sizeof a->tensors;
    exec.struct_size = 0;
    check_error(a, tlamp_attention(&a->problem, &a->tensors, &exec, &a->err), TLAMP_INVALID_ARGUMENT, "struct_size");
    free(a);
}

Test(structs, an_older_error_gets_what_it_has_room_for)
{
    attention *a = make(TLAMP_POLICY_HIGH);
    a->problem.head_dim_qk = 0;
    memset(&a->err, 0x55, sizeof a->err);
    a->err.struct_size = offsetof(tlamp_error, text);
    cr_assert(tlamp_supported(&a->problem, &a->err) == TLAMP_INVALID_ARGUMENT);
    cr_assert(a->err.status == TLAMP_INVALID_ARGUMENT);
    cr_assert_str_eq(a->err.field, "head_dim_qk");
    for (size_t i = 0; i < sizeof a->err.text; i++) cr_assert(a->err.text[i] == 0x55);
    memset(&a->err, 0, sizeof a->err);
    cr_assert(tlamp_supported(&a->problem, &a->err) == TLAMP_INVALID_ARGUMENT && a->err.status == TLAMP_OK);
    free(a);
}

/* ------------------------------------------------------------------------------------------------ wrong problems */

typedef enum { I32, I64, F32 } field_type;

/* A field of a struct, a value it must not have, and what the refusal is about. */
typedef struct bad_field {
    size_t offset;
    field_type type;
    double value;
    const char *about;
} bad_field;

static void set_field(void *to, const bad_field *bad)
{
    char *at = (char *)to + bad->offset;
    const int32_t i32 = bad->type == I32 ? (int32_t)bad->value : 0;
    const int64_t i64 = bad->type == I64 ? (int64_t)bad->value : 0;
    const float f32 = (float)bad->value;
    switch (bad->type) {
    case I32: memcpy(at, &i32, sizeof i32); break;
    case I64: memcpy(at, &i64, sizeof i64); break;
    case F32: memcpy(at, &f32, sizeof f32); break;
    }
}

#define FIELD(type, field, value)                                                                                      \
    {                                                                                                                  \
        offsetof(tlamp_problem, field), type, value, #field                                                            \
    }
#define POLICY_FIELD(type, field, value)                                                                               \
    {                                                                                                                  \
        offsetof(tlamp_policy, field), type, value, "policy." #field                                                   \
    }
#define STRIDE(field, part, value)                                                                                     \
    {                                                                                                                  \
        offsetof(tlamp_problem, field.part), I64, value, #field                                                        \
    }

static const bad_field invalid_fields[] = {
    FIELD(I64, batch, -1),
    FIELD(I64, batch, 0x1p31),
    FIELD(I64, max_seqlen_q, -1),
    FIELD(I64, max_seqlen_q, 0x1p31),
    FIELD(I64, max_seqlen_k, -1),
    FIELD(I64, max_seqlen_k, 0x1p31),
    FIELD(I32, varlen, 2),
    FIELD(I32, varlen, -1),
    FIELD(I32, num_heads_q, -1),
    FIELD(I32, num_heads_q, 65537),
    FIELD(I32, num_heads_k, -1),
    FIELD(I32, num_heads_k, 0),
    FIELD(I32, num_heads_k, 3),
    FIELD(I32, num_heads_k, 8),
    FIELD(I32, head_dim_qk, 0),
    FIELD(I32, head_dim_qk, -8),
    FIELD(I32, head_dim_qk, 16385),
    FIELD(I32, head_dim_v, 0),
    FIELD(I32, head_dim_v, 16385),
    FIELD(I32, q_dtype, -1),
    FIELD(I32, q_dtype, 4),
    FIELD(I32, k_dtype, 4),
    FIELD(I32, v_dtype, 4),
    FIELD(I32, o_dtype, 4),
    FIELD(I32, o_dtype, TLAMP_INT8),
    FIELD(F32, softmax_scale, -1),
    FIELD(F32, softmax_scale, (double)NAN),
    FIELD(F32, softmax_scale, (double)INFINITY),
    FIELD(F32, softcap, -1),
    FIELD(F32, softcap, (double)NAN),
    FIELD(F32, softcap, (double)INFINITY),
    FIELD(I32, mask, -1),
    FIELD(I32, mask, 3),
    FIELD(I64, window_left, -2),
    FIELD(I64, window_right, -3),
    FIELD(I32, has_seqused_k, 2),
    FIELD(I32, has_bool_mask, 2),
    FIELD(I32, has_bias, 2),
    FIELD(I32, has_alibi, -1),
    FIELD(I32, has_sinks, 2),
    FIELD(I32, num_policies, 0),
    FIELD(I32, num_policies, 2),
    FIELD(I32, num_policies, -1),
    FIELD(I32, words_per_row, 0),
    FIELD(I32, num_splits, -1),
    FIELD(I32, num_splits, (1 << 20) + 1),
    FIELD(I32, page_size, -64),
    FIELD(I32, page_size, 63),
    FIELD(I64, num_pages, -1),
    STRIDE(q_stride, dim, 0),
    STRIDE(q_stride, dim, 2),
    STRIDE(k_stride, dim, -1),
    STRIDE(v_stride, dim, 0),
    STRIDE(o_stride, dim, 3),
    STRIDE(o_stride, batch, 0),
    STRIDE(o_stride, seq, 0),
    STRIDE(o_stride, head, 0),
    STRIDE(q_stride, batch, 0x1p62),
    STRIDE(k_stride, seq, 0x1p62),
    STRIDE(v_stride, head, -0x1p62),
    STRIDE(o_stride, seq, -0x1p63),
};

static const bad_field invalid_policy_fields[] = {
    POLICY_FIELD(I32, kind, -1),         POLICY_FIELD(I32, kind, 6),           POLICY_FIELD(I32, block_n, 0),
    POLICY_FIELD(I32, block_n, 8),       POLICY_FIELD(I32, block_n, 48),       POLICY_FIELD(I32, block_n, 96),
    POLICY_FIELD(I32, block_m, 0),       POLICY_FIELD(I32, block_m, 8),        POLICY_FIELD(I32, block_m, 96),
    POLICY_FIELD(I32, block_m, 192),     POLICY_FIELD(I32, quant_block_q, 0),  POLICY_FIELD(I32, quant_block_q, 64),
    POLICY_FIELD(I32, quant_block_k, 0), POLICY_FIELD(I32, quant_block_k, 32), POLICY_FIELD(I32, scales, 3),
    POLICY_FIELD(I32, scales, -1),       POLICY_FIELD(I32, quantise, 2),       POLICY_FIELD(I32, pv, 4),
    POLICY_FIELD(I32, state, 2),         POLICY_FIELD(I32, smooth_k, 2),       POLICY_FIELD(I32, hadamard, 2),
    POLICY_FIELD(I32, smooth_k, -1),
};

/* Right, but not in this version. */
static const bad_field unsupported_fields[] = {
    FIELD(I32, page_size, 64),
    FIELD(I32, num_policies, HQ),
};
static const bad_field unsupported_policy_fields[] = {};

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static void check_fields(const bad_field *fields, size_t count, bool of_policy, tlamp_status status)
{
    for (size_t i = 0; i < count; i++) {
        attention *a = make(TLAMP_POLICY_INT8);
        tlamp_policy policies[HQ]; /* in case there is one per head */
        for (int h = 0; h < HQ; h++) policies[h] = a->policy;
        a->problem.policy = policies;
        set_field(of_policy ? (void *)policies : (void *)&a->problem, &fields[i]);
        check_refused(a, status, fields[i].about);
        free(a);
    }
}

Test(problems, invalid) { check_fields(invalid_fields, COUNT(invalid_fields), false, TLAMP_INVALID_ARGUMENT); }

Test(problems, invalid_policies)
{
    check_fields(invalid_policy_fields, COUNT(invalid_policy_fields), true, TLAMP_INVALID_ARGUMENT);
}

Test(problems, unsupported)
{
    check_fields(unsupported_fields, COUNT(unsupported_fields), false, TLAMP_UNSUPPORTED);
    check_fields(unsupported_policy_fields, COUNT(unsupported_policy_fields), true, TLAMP_UNSUPPORTED);
}

/* LAMP decides key tile after key tile: parts of the keys would decide otherwise. */
Test(problems, lamp_is_not_split)
{
    attention *a = make(TLAMP_POLICY_LAMP);
    a->policy.lamp_format = TLAMP_LAMP_E4M3;
    cr_assert(tlamp_supported(&a->problem, NULL) == TLAMP_OK);
    a->problem.num_splits = TLAMP_SPLITS_AUTO;
    cr_assert(tlamp_supported(&a->problem, NULL) == TLAMP_OK);
    a->problem.num_splits = 2;
    check_refused(a, TLAMP_UNSUPPORTED, "num_splits");
    free(a);
}

Test(problems, packed_totals)
{
    attention *a = make(TLAMP_POLICY_HIGH);
    a->problem.varlen = 1;
    a->problem.total_q = -1;
    check_refused(a, TLAMP_INVALID_ARGUMENT, "total_q");
    a->problem.total_q = 1;
    a->problem.total_k = (int64_t)1 << 31;
    check_refused(a, TLAMP_INVALID_ARGUMENT, "total_k");
    free(a);
}

Test(problems, bias_dtype_matters_with_a_bias)
{
    attention *a = make(TLAMP_POLICY_HIGH);
    a->problem.bias_dtype = TLAMP_INT8;
    cr_assert(run(a) == TLAMP_OK);
    clear_outputs(a);
    a->problem.has_bias = 1;
    check_refused(a, TLAMP_INVALID_ARGUMENT, "bias_dtype");
    a->problem.bias_dtype = TLAMP_F32;
    a->problem.bias_stride.k = INT64_MIN;
    check_refused(a, TLAMP_INVALID_ARGUMENT, "bias_stride");
    a->problem.has_bias = 0;
    a->problem.has_bool_mask = 1;
    a->problem.bool_mask_stride.q = (int64_t)1 << 62;
    check_refused(a, TLAMP_INVALID_ARGUMENT, "bool_mask_stride");
    free(a);
}

Test(problems, hadamard_needs_a_power_of_two)
{
    attention *a = make(TLAMP_POLICY_INT8);
    a->policy.hadamard = 1;
    a->problem.head_dim_qk = 7;
    check_refused(a, TLAMP_INVALID_ARGUMENT, "policy.hadamard");
    free(a);
}

Test(problems, codes_of_the_callers_are_neither_rotated_nor_smoothed)
{
    attention *a = make(TLAMP_POLICY_X3);
    a->policy.hadamard = 1;
    a->problem.head_dim_qk = 64;
    a->problem.q_dtype = TLAMP_INT8;
    check_refused(a, TLAMP_UNSUPPORTED, "policy.hadamard");
    a->problem.q_dtype = TLAMP_F32;
    a->problem.k_dtype = TLAMP_INT8;
    check_refused(a, TLAMP_UNSUPPORTED, "policy.hadamard");
    a->policy.hadamard = 0;
    a->policy.smooth_k = 1;
    check_refused(a, TLAMP_UNSUPPORTED, "policy.smooth_k");
    free(a);
}

Test(problems, x3_sums_fit_an_int32)
{
    attention *a = make(TLAMP_POLICY_X3);
    a->problem.head_dim_qk = 524;
    check_refused(a, TLAMP_UNSUPPORTED, "head_dim_qk");
    a->problem.head_dim_qk = 523;
    cr_assert(tlamp_supported(&a->problem, &a->err) == TLAMP_OK);
    free(a);
}

/* Random fields with random small values: all three entries say the same, and nothing crashes. */
Test(problems, supported_is_what_plan_create_says)
{
    unsigned seed = 7;
    attention *a = make(TLAMP_POLICY_HIGH);
    const tlamp_problem good = a->problem;
    const tlamp_policy good_policy = a->policy;
    int accepted = 0;
    for (int n = 0; n < 20000; n++) {
        a->problem = good;
        a->policy = good_policy;
        for (int changes = 0; changes < 2; changes++) {
            seed = seed * 1664525u + 1013904223u;
            const bool of_policy = seed >> 31 != 0;
            const size_t size = of_policy ? sizeof a->policy : offsetof(tlamp_problem, policy);
            const size_t at = 8 + (seed >> 8) % (size - 8) / 4 * 4;
            const int32_t value = (int32_t)(seed >> 4 & 15) - 3;
            memcpy((char *)(of_policy ? (void *)&a->policy : (void *)&a->problem) + at, &value, sizeof value);
        }
        tlamp_error one = {sizeof one, TLAMP_OK, "", ""}, other = one;
        tlamp_plan *plan = NULL;
        const tlamp_status supported = tlamp_supported(&a->problem, &one);
        cr_assert(tlamp_plan_create(&plan, &a->problem, NULL, &other) == supported);
        cr_assert_str_eq(one.field, other.field);
        cr_assert(!plan == (supported != TLAMP_OK));
        accepted += supported == TLAMP_OK;
        if (plan) (void)tlamp_plan_workspace_size(plan, 2);
        tlamp_plan_destroy(plan);
    }
    cr_assert(100 < accepted && accepted < 19900, "%d accepted", accepted);
    free(a);
}

Test(problems, set_strides)
{
    attention *a = make(TLAMP_POLICY_HIGH);
    tlamp_problem *p = &a->problem;
    cr_assert(p->q_stride.batch == LQ * HQ * D && p->q_stride.seq == HQ * D && p->q_stride.head == D);
    cr_assert(p->lse_stride.batch == HQ * LQ && p->lse_stride.head == LQ && p->lse_stride.seq == 1);
    cr_assert(tlamp_set_strides(p, TLAMP_TENSOR_BHSD, NULL) == TLAMP_OK);
    cr_assert(p->v_stride.batch == LK * HK * DV && p->v_stride.seq == DV && p->v_stride.head == LK * DV);
    p->varlen = 1;
    p->total_q = 9;
    cr_assert(tlamp_set_strides(p, TLAMP_TENSOR_THD, NULL) == TLAMP_OK);
    cr_assert(p->o_stride.seq == HQ * DV && p->o_stride.head == DV && p->lse_stride.head == 9);
    cr_assert(tlamp_set_strides(p, TLAMP_TENSOR_BHSD, NULL) ==
              TLAMP_OK); /* packed, head by head: heads must not overlap */
    cr_assert(p->o_stride.batch == 0 && p->o_stride.seq == DV && p->o_stride.head == 9 * DV);
    cr_assert(tlamp_set_strides(p, 3, &a->err) == TLAMP_INVALID_ARGUMENT);
    cr_assert_str_eq(a->err.field, "layout");
    cr_assert(tlamp_set_strides(NULL, TLAMP_TENSOR_THD, NULL) == TLAMP_INVALID_ARGUMENT);
    p->head_dim_v = -1;
    cr_assert(tlamp_set_strides(p, TLAMP_TENSOR_THD, NULL) == TLAMP_INVALID_ARGUMENT);
    p->head_dim_v = 16384;
    p->num_heads_k = INT32_MAX;
    p->total_k = INT64_MAX;
    cr_assert(tlamp_set_strides(p, TLAMP_TENSOR_BSHD, NULL) == TLAMP_INVALID_ARGUMENT);
    p->varlen = 0;
    p->max_seqlen_k = INT64_MAX;
    cr_assert(tlamp_set_strides(p, TLAMP_TENSOR_BSHD, NULL) == TLAMP_INVALID_ARGUMENT);
    free(a);
}

/* ------------------------------------------------------------------------------------------------ wrong tensors */

Test(tensors, missing_pointers)
{
    static const struct {
        size_t offset;
        const char *field;
    } pointers[] = {
        {offsetof(tlamp_tensors, q), "q"},
        {offsetof(tlamp_tensors, k), "k"},
        {offsetof(tlamp_tensors, v), "v"},
        {offsetof(tlamp_tensors, o), "o"},
        {offsetof(tlamp_tensors, seqused_k), "seqused_k"},
        {offsetof(tlamp_tensors, bool_mask), "bool_mask"},
        {offsetof(tlamp_tensors, bias), "bias"},
        {offsetof(tlamp_tensors, alibi_slopes), "alibi_slopes"},
        {offsetof(tlamp_tensors, sinks), "sinks"},
        {offsetof(tlamp_tensors, words), "words"},
    };
    for (size_t i = 0; i < COUNT(pointers); i++) {
        attention *a = make(TLAMP_POLICY_ROUTED);
        a->problem.has_seqused_k = a->problem.has_bool_mask = a->problem.has_bias = 1;
        a->problem.has_alibi = a->problem.has_sinks = 1;
        cr_assert(run(a) == TLAMP_OK, "%s: %s", a->err.field, a->err.text);
        memset((char *)&a->tensors + pointers[i].offset, 0, sizeof(void *));
        check_error(a, run(a), TLAMP_INVALID_ARGUMENT, pointers[i].field);
        free(a);
    }
}

Test(tensors, packed_lengths)
{
    attention *a = make(TLAMP_POLICY_HIGH);
    a->problem.varlen = 1;
    a->problem.total_q = B * LQ;
    a->problem.total_k = B * LK;
    cr_assert(tlamp_set_strides(&a->problem, TLAMP_TENSOR_THD, NULL) == TLAMP_OK);
    cr_assert(run(a) == TLAMP_OK, "%s: %s", a->err.field, a->err.text);
    a->tensors.cu_seqlens_q = NULL;
    check_error(a, run(a), TLAMP_INVALID_ARGUMENT, "cu_seqlens_q");
    a->tensors.cu_seqlens_q = a->cu_q;
    a->tensors.cu_seqlens_k = NULL;
    check_error(a, run(a), TLAMP_INVALID_ARGUMENT, "cu_seqlens_k");
    free(a);
}

Test(tensors, outputs_cannot_be_broadcast)
{
    attention *a = make(TLAMP_POLICY_HIGH);
    a->problem.lse_stride.head = 0;
    check_error(a, run(a), TLAMP_INVALID_ARGUMENT, "lse_stride");
    a->problem.lse_stride.head = INT64_MIN;
    check_error(a, run(a), TLAMP_INVALID_ARGUMENT, "lse_stride");
    a->tensors.lse = NULL; /* nobody asks */
    cr_assert(run(a) == TLAMP_OK);
    free(a);
}

Test(tensors, inputs_can_be_broadcast)
{
    attention *a = make(TLAMP_POLICY_INT8), *b = make(TLAMP_POLICY_INT8);
    for (int i = 0; i < K_SIZE; i++) b->k[i] = a->k[i % D];
    for (int i = 0; i < V_SIZE; i++) b->v[i] = a->v[i % DV];
    a->problem.k_stride = a->problem.v_stride = (tlamp_strides){0, 0, 0, 1};
    cr_assert(run(a) == TLAMP_OK && run(b) == TLAMP_OK && same_outputs(a, b));
    free(a);
    free(b);
}

/* The last row first: negative strides, from a pointer to the last element. */
Test(tensors, strides_may_be_negative)
{
    attention *a = make(TLAMP_POLICY_INT8), *b = make(TLAMP_POLICY_INT8);
    const int row = HK * D;
    for (int i = 0; i < B * LK; i++) memcpy(b->k + (B * LK - 1 - i) * row, a->k + i * row, sizeof(float) * (size_t)row);
    b->tensors.k = b->k + (B * LK - 1) * row;
    b->problem.k_stride.seq = -row;
    b->problem.k_stride.batch = -LK * row;
    cr_assert(run(a) == TLAMP_OK && run(b) == TLAMP_OK && same_outputs(a, b), "%s", b->err.text);
    free(a);
    free(b);
}

Test(tensors, routing_words)
{
    attention *a = make(TLAMP_POLICY_ROUTED);
    int32_t groups[B] = {1, 0};
    a->tensors.groups = groups;
    check_error(a, run(a), TLAMP_INVALID_ARGUMENT, "groups");
    groups[1] = -3;
    check_error(a, run(a), TLAMP_INVALID_ARGUMENT, "groups");
    free(a);
}

/* 65 groups need two words. */
Test(tensors, more_groups_than_words)
{
    static float k[1025 * D], q[D], v[1025 * DV], o[DV];
    attention *a = make(TLAMP_POLICY_ROUTED);
    const int32_t one = 1;
    const uint64_t words[2] = {1, 1};
    a->policy.block_n = 16;
    a->problem.batch = a->problem.max_seqlen_q = 1;
    a->problem.num_heads_q = a->problem.num_heads_k = 1;
    a->problem.max_seqlen_k = 1025;
    cr_assert(tlamp_set_strides(&a->problem, TLAMP_TENSOR_BSHD, NULL) == TLAMP_OK);
    a->tensors = (tlamp_tensors){.struct_size = sizeof a->tensors, .q = q, .k = k, .v = v, .o = o};
    a->tensors.words = words;
    a->tensors.groups = &one;
    check_error(a, run(a), TLAMP_INVALID_ARGUMENT, "words_per_row");
    a->problem.words_per_row = 2;
    cr_assert(run(a) == TLAMP_OK, "%s", a->err.text);
    free(a);
}

/* Words of each sequence, key head and routing row through their strides: one group INT8 in one place changes the bits of
 * that place only. */
Test(tensors, words_are_found_by_their_strides)
{
    enum { ROWS = 1, WORDS = B * HK * ROWS };
    attention *zero = make(TLAMP_POLICY_ROUTED), *a = make(TLAMP_POLICY_ROUTED);
    uint64_t words[WORDS] = {0};
    zero->tensors.words = a->tensors.words = words;
    a->tensors.words_stride_batch = zero->tensors.words_stride_batch = HK;
    a->tensors.words_stride_head = zero->tensors.words_stride_head = 1;
    cr_assert(run(zero) == TLAMP_OK);
    for (int place = 0; place < WORDS; place++) {
        memset(words, 0, sizeof words);
        words[place] = 1; /* keys 0 .. 63 */
        cr_assert(run(a) == TLAMP_OK);
        for (int b = 0; b < B; b++)
            for (int h = 0; h < HQ; h++) {
                const bool same = memcmp(a->lse + (b * HQ + h) * LQ, zero->lse + (b * HQ + h) * LQ, LQ * 4) == 0;
                cr_assert(same == (b * HK + h / (HQ / HK) != place), "word %d, sequence %d, head %d", place, b, h);
            }
    }
    free(zero);
    free(a);
}

Test(tensors, outputs_of_later_versions)
{
    attention *a = make(TLAMP_POLICY_HIGH);
    float room[LSE_SIZE * 2];
    tlamp_counters counters = {.struct_size = 0};
    a->tensors.certificate = room;
    check_error(a, run(a), TLAMP_UNSUPPORTED, "certificate");
    a->tensors.certificate = NULL;
    a->tensors.group_statistics = room;
    check_error(a, run(a), TLAMP_UNSUPPORTED, "group_statistics");
    a->tensors.group_statistics = NULL;
    a->tensors.prepared = room;
    check_error(a, run(a), TLAMP_UNSUPPORTED, "prepared");
    a->tensors.prepared = NULL;
    a->tensors.counters = &counters;
    check_error(a, run(a), TLAMP_INVALID_ARGUMENT, "counters");
    free(a);
}

Test(tensors, prepared_keys_are_not_built)
{
    attention *a = make(TLAMP_POLICY_HIGH);
    tlamp_plan *plan = plan_of(a);
    size_t bytes = 17;
    cr_assert(tlamp_kv_prepared_size(plan, &bytes, NULL) == TLAMP_UNSUPPORTED && bytes == 17);
    cr_assert(tlamp_kv_prepare(plan, &a->tensors, NULL, a->o, sizeof a->o, NULL) == TLAMP_UNSUPPORTED);
    cr_assert(tlamp_kv_prepared_size(NULL, &bytes, NULL) == TLAMP_INVALID_ARGUMENT);
    cr_assert(outputs_are_untouched(a));
    tlamp_plan_destroy(plan);
    free(a);
}

/* ------------------------------------------------------------------------------------------------ wrong executions */

static void loop_of_own(void *context, int64_t count, tlamp_task task, void *task_context)
{
    (void)context;
    for (int64_t i = 0; i < count; i++) task(task_context, i, 0);
}

static void loop_with_a_stranger(void *context, int64_t count, tlamp_task task, void *task_context)
{
    for (int64_t i = 0; i < count; i++) task(task_context, i, *(const int32_t *)context);
}

Test(executions, invalid)
{
    attention *a = make(TLAMP_POLICY_HIGH);
    tlamp_exec e;
    tlamp_exec_init(&e, sizeof e);
    e.num_threads = -1;
    check_error(a, tlamp_attention(&a->problem, &a->tensors, &e, &a->err), TLAMP_INVALID_ARGUMENT, "num_threads");
    e.num_threads = 0;
    e.parallel_for = loop_of_own;
    check_error(a, tlamp_attention(&a->problem, &a->tensors, &e, &a->err), TLAMP_INVALID_ARGUMENT, "num_threads");
    e.parallel_for = NULL;
    e.memory = 2;
    check_error(a, tlamp_attention(&a->problem, &a->tensors, &e, &a->err), TLAMP_INVALID_ARGUMENT, "memory");
    e.memory = TLAMP_MEMORY_HOST;
    e.device = -2;
    check_error(a, tlamp_attention(&a->problem, &a->tensors, &e, &a->err), TLAMP_INVALID_ARGUMENT, "device");
    free(a);
}

Test(executions, no_devices)
{
    attention *a = make(TLAMP_POLICY_HIGH);
    tlamp_exec e;
    tlamp_exec_init(&e, sizeof e);
    cr_assert(tlamp_num_devices() == 0);
    e.device = 0;
    check_error(a, tlamp_attention(&a->problem, &a->tensors, &e, &a->err), TLAMP_UNSUPPORTED_HARDWARE, "device");
    e.device = -1;
    e.memory = TLAMP_MEMORY_DEVICE;
    check_error(a, tlamp_attention(&a->problem, &a->tensors, &e, &a->err), TLAMP_UNSUPPORTED_HARDWARE, "device");
    free(a);
}

Test(executions, null_arguments)
{
    attention *a = make(TLAMP_POLICY_HIGH);
    tlamp_plan *plan = plan_of(a);
    cr_assert(tlamp_supported(NULL, NULL) == TLAMP_INVALID_ARGUMENT);
    cr_assert(tlamp_plan_create(NULL, &a->problem, NULL, NULL) == TLAMP_INVALID_ARGUMENT);
    cr_assert(tlamp_plan_create(&plan, NULL, NULL, NULL) == TLAMP_INVALID_ARGUMENT);
    check_error(a, tlamp_execute(NULL, &a->tensors, NULL, NULL, 0, &a->err), TLAMP_INVALID_ARGUMENT, "plan");
    check_error(a, tlamp_execute(plan, NULL, NULL, NULL, 0, &a->err), TLAMP_INVALID_ARGUMENT, "tensors");
    cr_assert(tlamp_attention(NULL, &a->tensors, NULL, NULL) == TLAMP_INVALID_ARGUMENT);
    tlamp_plan_destroy(plan);
    tlamp_plan_destroy(NULL);
    free(a);
}

Test(executions, a_stranger_among_the_workers)
{
    static const int32_t strangers[] = {-1, 2, INT32_MAX, INT32_MIN};
    attention *a = make(TLAMP_POLICY_INT8);
    a->policy.smooth_k = 1;
    tlamp_exec e;
    tlamp_exec_init(&e, sizeof e);
    e.num_threads = 2;
    e.parallel_for = loop_with_a_stranger;
    for (int i = 0; i < 4; i++) {
        int32_t worker = strangers[i];
        e.parallel_context = &worker;
        cr_assert(tlamp_attention(&a->problem, &a->tensors, &e, &a->err) == TLAMP_INVALID_ARGUMENT);
        cr_assert_str_eq(a->err.field, "parallel_for");
    }
    free(a);
}

/* ------------------------------------------------------------------------------------------------ memory */

/* Counts what it gives and takes back; fails at the given call. */
typedef struct memory_log {
    int calls, fail_at, alive;
} memory_log;

static void *logged_alloc(void *context, size_t size, size_t align)
{
    memory_log *log = context;
    cr_assert(align >= 1 && (align & (align - 1)) == 0, "alignment %zu", align);
    if (++log->calls == log->fail_at) return NULL;
    log->alive++;
    return aligned_alloc(align < sizeof(void *) ? sizeof(void *) : align, (size + align - 1) / align * align);
}

static void logged_free(void *context, void *memory)
{
    memory_log *log = context;
    if (memory) log->alive--;
    free(memory);
}

static tlamp_status plan_and_execute(attention *a, memory_log *log)
{
    const tlamp_allocator allocator = {log, logged_alloc, logged_free};
    tlamp_exec e;
    tlamp_exec_init(&e, sizeof e);
    e.num_threads = 2;
    e.allocator = allocator;
    tlamp_plan *plan = NULL;
    tlamp_status s = tlamp_plan_create(&plan, &a->problem, &allocator, &a->err);
    if (!s) s = tlamp_execute(plan, &a->tensors, &e, NULL, 0, &a->err);
    tlamp_plan_destroy(plan);
    return s;
}

/* The n-th allocation fails, for every n until none does. */
Test(memory, every_allocation_may_fail)
{
    for (tlamp_policy_kind kind = TLAMP_POLICY_HIGH; kind <= TLAMP_POLICY_ROUTED; kind++) {
        attention *a = make(kind);
        int n = 0;
        tlamp_status s = TLAMP_OUT_OF_MEMORY;
        while (s == TLAMP_OUT_OF_MEMORY && n < 100) {
            memory_log log = {0, ++n, 0};
            clear_outputs(a);
            s = plan_and_execute(a, &log);
            cr_assert(log.alive == 0, "%d pieces of memory are lost", log.alive);
            if (s == TLAMP_OK) break;
            check_error(a, s, TLAMP_OUT_OF_MEMORY, n == 1 ? "allocator" : "workspace");
        }
        cr_assert(s == TLAMP_OK && n == 3, "%s at %d: one allocation makes a plan, one a workspace",
                  tlamp_status_string(s), n);
        free(a);
    }
}

Test(memory, half_an_allocator_is_refused)
{
    memory_log log = {0, 0, 0};
    const tlamp_allocator no_free = {&log, logged_alloc, NULL}, no_alloc = {&log, NULL, logged_free};
    attention *a = make(TLAMP_POLICY_HIGH);
    tlamp_plan *plan = NULL;
    cr_assert(tlamp_plan_create(&plan, &a->problem, &no_free, &a->err) == TLAMP_INVALID_ARGUMENT && !plan);
    cr_assert(tlamp_plan_create(&plan, &a->problem, &no_alloc, &a->err) == TLAMP_INVALID_ARGUMENT && !plan);
    cr_assert_str_eq(a->err.field, "allocator");
    tlamp_exec e;
    tlamp_exec_init(&e, sizeof e);
    e.allocator = no_free;
    check_error(a, tlamp_attention(&a->problem, &a->tensors, &e, &a->err), TLAMP_INVALID_ARGUMENT, "allocator");
    cr_assert(log.calls == 0);
    free(a);
}

Test(memory, a_plan_in_the_callers_memory)
{
    attention *a = make(TLAMP_POLICY_INT8), *b = make(TLAMP_POLICY_INT8);
    const size_t bytes = tlamp_plan_size();
    guarded memory = {NULL, 0, NULL, 0};
    guarded_resize(&memory, (bytes + 63) / 64 * 64);
    tlamp_plan *plan = NULL;
    check_error(a, tlamp_plan_init(&plan, memory.data, bytes - 1, &a->problem, &a->err), TLAMP_WORKSPACE_TOO_SMALL,
                "bytes");
    check_error(a, tlamp_plan_init(&plan, memory.data + 8, bytes, &a->problem, &a->err), TLAMP_INVALID_ARGUMENT,
                "memory");
    check_error(a, tlamp_plan_init(&plan, NULL, bytes, &a->problem, &a->err), TLAMP_INVALID_ARGUMENT, "memory");
    check_error(a, tlamp_plan_init(NULL, memory.data, bytes, &a->problem, &a->err), TLAMP_INVALID_ARGUMENT, "plan");
    cr_assert(!plan);
    cr_assert(tlamp_plan_init(&plan, memory.data, bytes, &a->problem, &a->err) == TLAMP_OK);
    cr_assert((unsigned char *)(void *)plan >= memory.data && (unsigned char *)(void *)plan < memory.data + bytes);
    cr_assert(tlamp_execute(plan, &a->tensors, NULL, NULL, 0, &a->err) == TLAMP_OK);
    cr_assert(run(b) == TLAMP_OK && same_outputs(a, b));
    tlamp_plan_destroy(plan); /* nothing to destroy, and harmless */
    cr_assert(guarded_is_intact(&memory));
    guarded_free(&memory);
    free(a);
    free(b);
}

/* The plan remembers nothing of the caller's: policy and problem may go. */
Test(memory, a_plan_copies_what_it_needs)
{
    attention *a = make(TLAMP_POLICY_INT8), *b = make(TLAMP_POLICY_INT8);
    tlamp_plan *plan = plan_of(a);
    memset(&a->policy, 0x55, sizeof a->policy);
    memset(&a->problem, 0x55, sizeof a->problem);
    cr_assert(tlamp_execute(plan, &a->tensors, NULL, NULL, 0, &a->err) == TLAMP_OK);
    cr_assert(run(b) == TLAMP_OK && same_outputs(a, b));
    tlamp_plan_destroy(plan);
    free(a);
    free(b);
}

Test(memory, a_workspace_exact_small_and_crooked)
{
    attention *a = make(TLAMP_POLICY_INT8);
    tlamp_plan *plan = plan_of(a);
    tlamp_exec e;
    tlamp_exec_init(&e, sizeof e);
    for (e.num_threads = 1; e.num_threads < 5; e.num_threads++) {
        const size_t bytes = tlamp_plan_workspace_size(plan, e.num_threads);
        guarded memory = {NULL, 0, NULL, 0};
        guarded_resize(&memory, bytes);
        clear_outputs(a);
        check_error(a, tlamp_execute(plan, &a->tensors, &e, memory.data, bytes - 1, &a->err), TLAMP_WORKSPACE_TOO_SMALL,
                    "workspace_bytes");
        check_error(a, tlamp_execute(plan, &a->tensors, &e, memory.data + 32, bytes, &a->err), TLAMP_INVALID_ARGUMENT,
                    "workspace");
        cr_assert(tlamp_execute(plan, &a->tensors, &e, memory.data, bytes, &a->err) == TLAMP_OK);
        cr_assert(guarded_is_intact(&memory));
        guarded_free(&memory);
    }
    cr_assert(tlamp_plan_workspace_size(plan, 2) > tlamp_plan_workspace_size(plan, 1));
    tlamp_plan_destroy(plan);
    free(a);
}

/* ------------------------------------------------------------------------------------------------ threads */

enum { CALLERS = 4 };

typedef struct caller {
    const tlamp_plan *plan;
    attention *a;
    tlamp_status status;
} caller;

static void *call_often(void *context)
{
    caller *c = context;
    for (int i = 0; i < 20 && !c->status; i++) c->status = tlamp_execute(c->plan, &c->a->tensors, NULL, NULL, 0, NULL);
    return NULL;
}

Test(threads, a_plan_can_be_shared)
{
    attention *want = make(TLAMP_POLICY_INT8);
    tlamp_plan *plan = plan_of(want);
    cr_assert(run(want) == TLAMP_OK);
    caller callers[CALLERS];
    pthread_t threads[CALLERS];
    for (int i = 0; i < CALLERS; i++) {
        callers[i] = (caller){plan, make(TLAMP_POLICY_INT8), TLAMP_OK};
        cr_assert(pthread_create(&threads[i], NULL, call_often, &callers[i]) == 0);
    }
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(threads[i], NULL);
        cr_assert(callers[i].status == TLAMP_OK && same_outputs(callers[i].a, want));
        free(callers[i].a);
    }
    tlamp_plan_destroy(plan);
    free(want);
}

/* A pool of the caller's: pthreads that take the next index. */
typedef struct pool {
    int32_t workers;
    int64_t count;
    _Atomic int64_t next;
    tlamp_task task;
    void *context;
} pool;

typedef struct pool_worker {
    pool *pool;
    int32_t index;
} pool_worker;

static void *work(void *context)
{
    const pool_worker *w = context;
    for (int64_t i; (i = atomic_fetch_add(&w->pool->next, 1)) < w->pool->count;)
        w->pool->task(w->pool->context, i, w->index);
    return NULL;
}

static void pool_run(void *context, int64_t count, tlamp_task task, void *task_context)
{
    pool *p = context;
    pool_worker workers[CALLERS];
    pthread_t threads[CALLERS];
    p->count = count;
    p->task = task;
    p->context = task_context;
    atomic_store(&p->next, 0);
    for (int32_t i = 0; i < p->workers; i++) {
        workers[i] = (pool_worker){p, i};
        cr_assert(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    for (int32_t i = 0; i < p->workers; i++) pthread_join(threads[i], NULL);
}

Test(threads, a_parallel_for_of_the_callers)
{
    attention *a = make(TLAMP_POLICY_INT8), *want = make(TLAMP_POLICY_INT8);
    a->policy.smooth_k = want->policy.smooth_k = 1;
    cr_assert(run(want) == TLAMP_OK);
    pool p = {.workers = CALLERS};
    tlamp_exec e;
    tlamp_exec_init(&e, sizeof e);
    e.num_threads = CALLERS;
    e.parallel_for = pool_run;
    e.parallel_context = &p;
    cr_assert(tlamp_attention(&a->problem, &a->tensors, &e, &a->err) == TLAMP_OK && same_outputs(a, want));
    cr_assert(p.count > 0, "the pool was not used");
    free(a);
    free(want);
}

/* Keys that several tasks meet are packed by one team phase after another, or, where each of its workers has as many heads,
 * head by head in memory that heads share. */
static void check_long_heads(tlamp_policy_kind kind)
{
    enum { BATCH = 2, HEADS = 6, TOKENS = 300, DIM = 32, SIZE = BATCH * HEADS * TOKENS * DIM, TIMES = 8 };
    float *x[5];
    for (int i = 0; i < 5; i++) {
        x[i] = new_zeros(SIZE, sizeof *x[i]);
        fill(x[i], SIZE, (unsigned)i);
    }
    tlamp_policy policy;
    tlamp_problem p;
    tlamp_exec e;
    tlamp_policy_init(&policy, sizeof policy);
    tlamp_problem_init(&p, sizeof p);
    tlamp_exec_init(&e, sizeof e);
    policy.kind = kind;
    p.policy = &policy;
    p.batch = BATCH;
    p.max_seqlen_q = p.max_seqlen_k = TOKENS;
    p.num_heads_q = p.num_heads_k = HEADS;
    p.head_dim_qk = p.head_dim_v = DIM;
    cr_assert(tlamp_set_strides(&p, TLAMP_TENSOR_BSHD, NULL) == TLAMP_OK);
    tlamp_tensors t = {.struct_size = sizeof t, .q = x[0], .k = x[1], .v = x[2], .o = x[3]};
    pool workers = {.workers = CALLERS};
    e.num_threads = CALLERS;
    e.parallel_for = pool_run;
    e.parallel_context = &workers;
    cr_assert(tlamp_attention(&p, &t, &e, NULL) == TLAMP_OK);
    tlamp_exec_init(&e, sizeof e);
    t.o = x[4];
    static const int32_t threads[] = {1, 2, 3, 4, 5, 6, 12, 13};
    for (int i = 0; i < 8 * TIMES; i++) {
        e.num_threads = threads[i % 8];
        memset(x[4], 0xff, SIZE * sizeof *x[4]);
        cr_assert(tlamp_attention(&p, &t, &e, NULL) == TLAMP_OK);
        cr_assert(memcmp(x[3], x[4], SIZE * sizeof *x[4]) == 0, "%d threads", (int)e.num_threads);
    }
    for (int i = 0; i < 5; i++) free(x[i]);
}

Test(threads, long_heads)
{
    check_long_heads(TLAMP_POLICY_HIGH);
    check_long_heads(TLAMP_POLICY_INT8);
}

Test(threads, inside_a_parallel_region)
{
    attention *want = make(TLAMP_POLICY_INT8), *a[CALLERS];
    cr_assert(run(want) == TLAMP_OK);
    tlamp_status status[CALLERS];
    for (int i = 0; i < CALLERS; i++) a[i] = make(TLAMP_POLICY_INT8);
#ifdef _OPENMP
#pragma omp parallel for num_threads(CALLERS)
#endif
    for (int i = 0; i < CALLERS; i++) status[i] = tlamp_attention(&a[i]->problem, &a[i]->tensors, NULL, NULL);
    for (int i = 0; i < CALLERS; i++) {
        cr_assert(status[i] == TLAMP_OK && same_outputs(a[i], want));
        free(a[i]);
    }
    free(want);
}

#ifdef _OPENMP
Test(threads, nothing_global_is_set)
{
    attention *a = make(TLAMP_POLICY_HIGH);
    tlamp_exec e;
    tlamp_exec_init(&e, sizeof e);
    e.num_threads = 3;
    const int most = omp_get_max_threads(), dynamic = omp_get_dynamic(), levels = omp_get_max_active_levels();
    cr_assert(tlamp_attention(&a->problem, &a->tensors, &e, NULL) == TLAMP_OK);
    cr_assert(omp_get_max_threads() == most && omp_get_dynamic() == dynamic && omp_get_max_active_levels() == levels);
    free(a);
}
#endif

/* ------------------------------------------------------------------------------------------------ merge */

enum { ROWS = 6, COLUMNS = 5 };

typedef struct part {
    float o[ROWS * COLUMNS], lse[ROWS];
} part;

static part random_part(unsigned seed)
{
    part p;
    fill(p.o, ROWS * COLUMNS, seed);
    fill(p.lse, ROWS, seed + 1);
    for (int i = 0; i < ROWS; i++) p.lse[i] *= 30;
    return p;
}

static part no_part(void)
{
    part p = {{0}, {0}};
    for (int i = 0; i < ROWS; i++) p.lse[i] = -INFINITY;
    return p;
}

static void merge(part *a, const part *b)
{
    cr_assert(tlamp_merge(ROWS, COLUMNS, a->o, COLUMNS, a->lse, b->o, COLUMNS, b->lse, NULL) == TLAMP_OK);
}

Test(merge, nothing_is_neutral)
{
    const part p = random_part(1), none = no_part();
    part right = p, left = none, both = none;
    merge(&right, &none);
    merge(&left, &p);
    merge(&both, &none);
    cr_assert(memcmp(&right, &p, sizeof p) == 0 && memcmp(&left, &p, sizeof p) == 0);
    cr_assert(memcmp(&both, &none, sizeof none) == 0);
}

Test(merge, equals_its_definition_in_either_order)
{
    const part p = random_part(1), q = random_part(5);
    part a = p, b = q;
    merge(&a, &q);
    merge(&b, &p);
    for (int i = 0; i < ROWS; i++) {
        const double x = (double)p.lse[i], y = (double)q.lse[i], top = fmax(x, y);
        const double lse = top + log(exp(x - top) + exp(y - top));
        cr_assert(fabs((double)a.lse[i] - lse) < 4e-6 && fabs((double)b.lse[i] - lse) < 4e-6);
        for (int c = 0; c < COLUMNS; c++) {
            const int at = i * COLUMNS + c;
            const double o = (double)p.o[at] * exp(x - lse) + (double)q.o[at] * exp(y - lse);
            cr_assert(fabs((double)a.o[at] - o) < 8e-6 && fabs((double)b.o[at] - o) < 8e-6);
        }
    }
}

Test(merge, large_and_far_apart)
{
    part a = random_part(1), b = random_part(5);
    for (int i = 0; i < ROWS; i++) {
        a.lse[i] = i % 2 ? 3e38f : -3e38f;
        b.lse[i] = i % 2 ? -3e38f : 3e38f;
    }
    const part p = a, q = b;
    merge(&a, &b);
    for (int i = 0; i < ROWS; i++)
        for (int c = 0; c < COLUMNS; c++)
            cr_assert(a.o[i * COLUMNS + c] == (i % 2 ? p : q).o[i * COLUMNS + c] && a.lse[i] == 3e38f);
}

Test(merge, nan_stays)
{
    part a = random_part(1), b = random_part(5);
    b.lse[2] = NAN;
    a.lse[3] = NAN;
    merge(&a, &b);
    for (int i = 0; i < ROWS; i++)
        cr_assert(!isnan(a.lse[i]) == (i != 2 && i != 3) && !isnan(a.o[i * COLUMNS]) == (i != 2 && i != 3), "row %d",
                  i);
}

/* A part that saw a logit of +Inf is NaN, whatever the other is; so is one whose LSE says so. */
Test(merge, infinity_makes_nan)
{
    static const float others[] = {INFINITY, NAN, 0.5f, -3e38f, -INFINITY, 3e38f};
    part a = random_part(1), b = random_part(5);
    for (int i = 0; i < ROWS; i++) {
        a.lse[i] = INFINITY;
        b.lse[i] = others[i];
    }
    part left = a, right = b;
    merge(&left, &b);
    merge(&right, &a);
    for (int i = 0; i < ROWS; i++) {
        cr_assert(isnan(left.lse[i]) && isnan(right.lse[i]), "row %d", i);
        for (int c = 0; c < COLUMNS; c++)
            cr_assert(isnan(left.o[i * COLUMNS + c]) && isnan(right.o[i * COLUMNS + c]), "row %d", i);
    }
}

Test(merge, arguments)
{
    part a = random_part(1), b = random_part(5);
    const part before = a;
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    cr_assert(tlamp_merge(0, COLUMNS, NULL, 0, NULL, NULL, 0, NULL, &err) == TLAMP_OK);
    cr_assert(tlamp_merge(-1, COLUMNS, a.o, 5, a.lse, b.o, 5, b.lse, &err) == TLAMP_INVALID_ARGUMENT);
    cr_assert(tlamp_merge(ROWS, 0, a.o, 5, a.lse, b.o, 5, b.lse, &err) == TLAMP_INVALID_ARGUMENT);
    cr_assert(tlamp_merge(ROWS, COLUMNS, NULL, 5, a.lse, b.o, 5, b.lse, &err) == TLAMP_INVALID_ARGUMENT);
    cr_assert(tlamp_merge(ROWS, COLUMNS, a.o, 5, NULL, b.o, 5, b.lse, &err) == TLAMP_INVALID_ARGUMENT);
    cr_assert(tlamp_merge(ROWS, COLUMNS, a.o, 5, a.lse, NULL, 5, b.lse, &err) == TLAMP_INVALID_ARGUMENT);
    cr_assert(tlamp_merge(ROWS, COLUMNS, a.o, 5, a.lse, b.o, 5, NULL, &err) == TLAMP_INVALID_ARGUMENT);
    cr_assert(tlamp_merge(ROWS, COLUMNS, a.o, 0, a.lse, b.o, 5, b.lse, &err) == TLAMP_INVALID_ARGUMENT);
    cr_assert(memcmp(&a, &before, sizeof a) == 0);
}

/* ------------------------------------------------------------------------------------------------ counters */

Test(counters, an_older_struct_gets_what_it_has_room_for)
{
    attention *a = make(TLAMP_POLICY_INT8);
    tlamp_counters n;
    memset(&n, 0x55, sizeof n);
    n.struct_size = offsetof(tlamp_counters, tiles);
    a->tensors.counters = &n;
    cr_assert(run(a) == TLAMP_OK);
    cr_assert(n.groups == B * HK * 2 && n.groups_int8 == n.groups, "%d groups", (int)n.groups);
    cr_assert(n.tiles == 0x5555555555555555);
    free(a);
}

Test(counters, tokens_with_nan_or_inf)
{
    attention *a = make(TLAMP_POLICY_INT8);
    tlamp_counters n = {.struct_size = sizeof n};
    a->tensors.counters = &n;
    a->k[0] = NAN;          /* key 0 of head 0 */
    a->k[1] = INFINITY;     /* the same token */
    a->k[D] = -INFINITY;    /* key 0 of head 1 */
    a->q[5 * D] = INFINITY; /* token 1 of head 1 */
    cr_assert(run(a) == TLAMP_OK);
    cr_assert(n.nonfinite_tokens == 3, "%d tokens", (int)n.nonfinite_tokens);
    a->policy.kind = TLAMP_POLICY_HIGH;
    cr_assert(run(a) == TLAMP_OK);
    cr_assert(n.nonfinite_tokens == 0 && n.tiles_int8 == 0 && n.tiles > 0, "HIGH leaves none out of INT8");
    free(a);
}

Test(counters, do_not_depend_on_threads)
{
    attention *a = make(TLAMP_POLICY_INT8);
    tlamp_counters one = {.struct_size = sizeof one}, many = one;
    tlamp_exec e;
    tlamp_exec_init(&e, sizeof e);
    a->q[0] = NAN;
    a->tensors.counters = &one;
    e.num_threads = 1;
    cr_assert(tlamp_attention(&a->problem, &a->tensors, &e, NULL) == TLAMP_OK);
    a->tensors.counters = &many;
    e.num_threads = 7;
    cr_assert(tlamp_attention(&a->problem, &a->tensors, &e, NULL) == TLAMP_OK);
    cr_assert(memcmp(&one, &many, sizeof one) == 0);
    free(a);
}

/* ------------------------------------------------------------------------------------------------ machine */

Test(machine, kernels)
{
    enum { MOST = 64 };
    tlamp_kernel_info kernels[MOST];
    const int32_t count = tlamp_kernels(NULL, 0);
    cr_assert(0 < count && count <= MOST);
    kernels[0].struct_size = sizeof kernels[0];
    cr_assert(tlamp_kernels(kernels, MOST) == count);
    bool scalar = false;
    for (int32_t i = 0; i < count; i++) {
        cr_assert(kernels[i].struct_size == sizeof kernels[i]);
        cr_assert(strstr(kernels[i].name, kernels[i].isa), "%s is not for %s", kernels[i].name, kernels[i].isa);
        scalar = scalar || (strcmp(kernels[i].isa, "scalar") == 0 && kernels[i].available);
        for (int32_t j = 0; j < i; j++)
            cr_assert(strcmp(kernels[i].name, kernels[j].name) != 0, "%s is there twice", kernels[i].name);
    }
    cr_assert(scalar, "no kernel runs on any machine");
    memset(kernels, 0x55, sizeof kernels);
    kernels[0].struct_size = sizeof kernels[0];
    const tlamp_kernel_info before = kernels[1];
    cr_assert(tlamp_kernels(kernels, 1) == count && memcmp(&kernels[1], &before, sizeof before) == 0);
}

/* A caller's header may know less of the struct, or more. */
Test(machine, kernels_of_other_headers)
{
    typedef struct newer_info {
        tlamp_kernel_info known;
        int64_t later;
    } newer_info;
    typedef struct older_info {
        size_t struct_size;
        const char *name;
    } older_info;
    enum { MOST = 4 };
    tlamp_kernel_info here[MOST] = {{.struct_size = sizeof here[0]}};
    newer_info more[MOST + 1];
    older_info less[MOST + 1];
    memset(more, 0x55, sizeof more);
    memset(less, 0x55, sizeof less);
    const newer_info behind = more[MOST];
    more[0].known.struct_size = sizeof more[0];
    less[0].struct_size = sizeof less[0];
    const int32_t count = tlamp_kernels(here, MOST);
    cr_assert(count >= MOST);
    cr_assert(tlamp_kernels(&more[0].known, MOST) == count);
    cr_assert(tlamp_kernels((tlamp_kernel_info *)(void *)less, MOST) == count);
    for (int i = 0; i < MOST; i++) {
        cr_assert(more[i].known.struct_size == sizeof more[i] && more[i].later == 0);
        cr_assert(more[i].known.name == here[i].name && more[i].known.available == here[i].available);
        cr_assert(less[i].struct_size == sizeof less[i] && less[i].name == here[i].name);
    }
    cr_assert(memcmp(&more[MOST], &behind, sizeof behind) == 0 && less[MOST].struct_size == 0x5555555555555555);
    here[0].struct_size = 0;
    cr_assert(tlamp_kernels(here, MOST) == -1, "no size is no stride");
}

Test(machine, a_plan_names_its_kernel)
{
    attention *a = make(TLAMP_POLICY_HIGH);
    tlamp_plan *plan = plan_of(a);
    const char *name = tlamp_plan_kernel_name(plan), *there = tlamp_plan_device_kernel_name(plan);
    cr_assert(tlamp_num_devices() > 0 ? strcmp(there, name) != 0 : !*there, "%s", there);
    tlamp_plan_destroy(plan);
    tlamp_kernel_info kernels[64] = {{.struct_size = sizeof kernels[0]}};
    bool known = false;
    for (int32_t i = 0, n = tlamp_kernels(kernels, 64); i < n && i < 64; i++)
        known = known || (kernels[i].available && strcmp(kernels[i].name, name) == 0);
    cr_assert(known, "%s is no available kernel", name);
    cr_assert_str_eq(tlamp_plan_kernel_name(NULL), "");
    cr_assert_str_eq(tlamp_plan_device_kernel_name(NULL), "");
    free(a);
}

Test(machine, max_isa_before_the_first_plan)
{
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    cr_assert(tlamp_set_max_isa("sse9", &err) == TLAMP_INVALID_ARGUMENT);
    cr_assert_str_eq(err.field, "isa");
    cr_assert(tlamp_set_max_isa("", NULL) == TLAMP_INVALID_ARGUMENT);
    cr_assert(tlamp_set_max_isa(NULL, NULL) == TLAMP_INVALID_ARGUMENT);
    cr_assert(tlamp_set_max_isa("scalar", &err) == TLAMP_OK);
    cr_assert_str_eq(tlamp_isa(), "scalar");
    attention *a = make(TLAMP_POLICY_HIGH);
    tlamp_plan *plan = plan_of(a);
    cr_assert(strstr(tlamp_plan_kernel_name(plan), "scalar"));
    cr_assert(tlamp_set_max_isa("scalar", &err) == TLAMP_INVALID_ARGUMENT, "after the first plan");
    tlamp_plan_destroy(plan);
    free(a);
}

Test(machine, max_isa_of_the_environment)
{
    cr_assert(setenv("TLAMP_MAX_ISA", "scalar", 1) == 0);
    cr_assert_str_eq(tlamp_isa(), "scalar");
}

Test(machine, an_empty_isa_in_the_environment_lowers_nothing)
{
    cr_assert(setenv("TLAMP_MAX_ISA", "", 1) == 0);
    cr_assert_str_neq(tlamp_isa(), "none");
    attention *a = make(TLAMP_POLICY_HIGH);
    cr_assert(tlamp_supported(&a->problem, NULL) == TLAMP_OK);
    free(a);
}

/* A typing error there must not run other kernels than its author believes. */
Test(machine, an_unknown_isa_in_the_environment_is_an_error)
{
    cr_assert(setenv("TLAMP_MAX_ISA", "avx-512", 1) == 0);
    attention *a = make(TLAMP_POLICY_HIGH);
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    tlamp_plan *plan = NULL;
    cr_assert(tlamp_supported(&a->problem, &err) == TLAMP_INVALID_ARGUMENT);
    cr_assert(strcmp(err.field, "TLAMP_MAX_ISA") == 0 && strstr(err.text, "avx512vnni, "), "%s", err.text);
    cr_assert(tlamp_plan_create(&plan, &a->problem, NULL, &err) == TLAMP_INVALID_ARGUMENT && !plan);
    cr_assert(run(a) == TLAMP_INVALID_ARGUMENT);
    cr_assert_str_eq(tlamp_isa(), "none");
    tlamp_kernel_info kernels[64] = {{.struct_size = sizeof kernels[0]}};
    for (int32_t i = 0, n = tlamp_kernels(kernels, 64); i < n && i < 64; i++) cr_assert(!kernels[i].available);
    cr_assert(tlamp_set_max_isa("scalar", &err) == TLAMP_OK, "what is set counts, not the environment");
    cr_assert(run(a) == TLAMP_OK);
    free(a);
}
