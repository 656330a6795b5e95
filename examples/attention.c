/* Causal grouped-query attention with INT8 scores, checked against double precision. The README shows this file. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tilelamp/tilelamp.h>

int main(void)
{
    enum { L = 512, HQ = 8, HK = 2, D = 64 };
    float *q = malloc(sizeof(float[L * HQ * D])), *k = malloc(sizeof(float[L * HK * D]));
    float *v = malloc(sizeof(float[L * HK * D])), *o = malloc(sizeof(float[L * HQ * D]));
    double *exact = malloc(sizeof(double[L * HQ * D])), worst = 0;
    for (int i = 0; i < L * HQ * D; i++) q[i] = sinf((float)i * 0.37f);
    for (int i = 0; i < L * HK * D; i++) k[i] = cosf((float)i * 0.73f), v[i] = sinf((float)i * 1.9f);

    tlamp_policy policy;
    tlamp_policy_init(&policy, sizeof policy);
    policy.kind = TLAMP_POLICY_INT8;

    tlamp_problem problem;
    tlamp_problem_init(&problem, sizeof problem);
    problem.max_seqlen_q = problem.max_seqlen_k = L;
    problem.num_heads_q = HQ, problem.num_heads_k = HK;
    problem.head_dim_qk = problem.head_dim_v = D;
    problem.mask = TLAMP_MASK_CAUSAL;
    problem.policy = &policy;
    tlamp_set_strides(&problem, TLAMP_TENSOR_BSHD, NULL);

    tlamp_tensors tensors = {.struct_size = sizeof tensors, .q = q, .k = k, .v = v, .o = o};
    tlamp_reference_outputs reference = {.struct_size = sizeof reference, .o = exact};
    tlamp_error err = {.struct_size = sizeof err};
    if (tlamp_attention(&problem, &tensors, NULL, &err) || tlamp_reference(&problem, &tensors, &reference, NULL, &err))
        return fprintf(stderr, "%s: %s\n", err.field, err.text), 1;
    for (int i = 0; i < L * HQ * D; i++) worst = fmax(worst, fabs(o[i] - exact[i]));
    printf("TileLamp %s: largest error of INT8 attention %.1e\n", tlamp_version_string(), worst);
    free(q), free(k), free(v), free(o), free(exact);
    return worst < 0.1 ? 0 : 1;
}
