/* What the reference and its error bounds share. Written from the definitions in the public header, in double, and
 * on purpose without core/mask.h: an oracle that shares the kernel's mask shares its mistakes (CASES B08). */
#ifndef TL_REFERENCE_REFERENCE_H
#define TL_REFERENCE_REFERENCE_H

#include <stdbool.h>

#include "tilelamp/tilelamp.h"

/* The call: problem and tensors with all defaults filled in. */
typedef struct tl_ref {
    tlamp_problem problem;
    tlamp_policy policy; /* problem.policy points here */
    tlamp_tensors tensors;
    double scale;       /* softmax_scale */
    int64_t rows, keys; /* rows of Q (the header's R) and of K over all sequences */
    double *wide_k,
        *wide_v; /* [num_heads_k][keys][dim] K and V as numbers, or NULL: converted wherever they are read */
} tl_ref;

/* One sequence. */
typedef struct tl_ref_seq {
    int64_t b;
    int64_t lq, lk;               /* lk: the used length */
    int64_t length_k;             /* before seqused_k */
    int64_t first_row, first_key; /* its place among all rows and keys */
    int64_t q, k, v;              /* offsets of its first token in the tensors */
    int64_t q_blocks, k_blocks;   /* scales of earlier sequences, where the caller quantised */
} tl_ref_seq;

/* One query row of one head. The arrays have lk entries. */
typedef struct tl_ref_row {
    const tl_ref *ref;
    tl_ref_seq seq;
    int32_t head, head_k;
    int64_t i;       /* inside its sequence */
    const double *q; /* [head_dim_qk] */
    const bool *seen;
    const double *logit;  /* final; only where seen */
    const double *weight; /* 0 where not seen */
    double sink;          /* -Inf: none */
    double top;           /* the largest logit, the sink's among them */
    double lse;
} tl_ref_row;

tl_ref_seq tl_ref_sequence(const tl_ref *ref, int64_t b);

/* Does row i of head see key j? By causal kind, window, used length, boolean mask and bias of -Inf. */
bool tl_ref_sees(const tl_ref *ref, const tl_ref_seq *seq, int32_t head, int64_t i, int64_t j);

/* Bias of a pair; 0 without one. */
double tl_ref_bias(const tl_ref *ref, const tl_ref_seq *seq, int32_t head, int64_t i, int64_t j);

/* What ALiBi takes off the logit of a pair; 0 without it. */
double tl_ref_alibi(const tl_ref *ref, const tl_ref_seq *seq, int32_t head, int64_t i, int64_t j);

/* Row i of head in Q; key or value j of KV head in K or V. As numbers: scale * code where the caller quantised. */
void tl_ref_query(const tl_ref *ref, const tl_ref_seq *seq, int32_t head, int64_t i, double *to);
void tl_ref_key(const tl_ref *ref, const tl_ref_seq *seq, int32_t head_k, int64_t j, double *to);
void tl_ref_value(const tl_ref *ref, const tl_ref_seq *seq, int32_t head_k, int64_t j, double *to);

/* That scale; 1 where the caller did not quantise. */
double tl_ref_query_scale(const tl_ref *ref, const tl_ref_seq *seq, int32_t head, int64_t i);
double tl_ref_key_scale(const tl_ref *ref, const tl_ref_seq *seq, int32_t head_k, int64_t j);

/* ---- bound.c: the largest errors the policy may make */

typedef struct tl_ref_bound tl_ref_bound;

/* Quantises Q and K of every head whose policy does; NULL: out of memory. */
tl_ref_bound *tl_ref_bound_create(const tl_ref *ref);
void tl_ref_bound_destroy(tl_ref_bound *bound);

/* o and abs_pv are the row's, [head_dim_v]; so is o_bound. work has room for 3 * max(head_dim_qk, head_dim_v). NaN
 * where the reference is NaN or infinite (compare the patterns there), except LSE = -Inf, whose bound is 0; +Inf
 * where nothing is promised. */
void tl_ref_bound_row(const tl_ref_bound *bound, const tl_ref_row *row, const double *o, const double *abs_pv,
                      double *work, double *o_bound, double *lse_bound);

#endif
