/* B18: one query, one key, a few queries behind a long cache, and any number of query heads per key head. */
#include "support/conform.h"

/* With one query, causal hides nothing. */
static void one_query(const setting *s, int lk, int group)
{
    trial plain, causal;
    conform_begin(&plain, s, "hq%d hk1 q1 k%d d16 f16", group, lk);
    conform_begin(&causal, s, "hq%d hk1 q1 k%d d16 f16 causal", group, lk);
    conform_verify(&plain);
    conform_verify(&causal);
    expect_same(&plain, &causal, "causal with one query");
    conform_end(&plain);
    conform_end(&causal);
}

/* A single key has weight 1: O is its value. */
static void one_key(const setting *s, const char *dtype)
{
    trial t;
    conform_begin(&t, s, "hq8 hk2 q1 k1 d16 dv5 %s", dtype);
    conform_verify(&t);
    for (int64_t h = 0; h < 8; h++)
        for (int64_t c = 0; c < 5; c++) {
            const int64_t at = input_offset(&t.in.problem.v_stride, t.in.tensors.cu_seqlens_k, 0, 0, h / 4) + c;
            const double v = tensor_get(t.in.v, t.in.spec.v_dtype, at);
            expect_o(&t, 0, h, 0, c, v, 0);
            (void)expect(has_int8_values(s) || trial_o(&t, 0, h, 0, c) == v, "o[h%d c%d] is %.9g, not the value %.9g",
                         (int)h, (int)c, trial_o(&t, 0, h, 0, c), v);
        }
    conform_end(&t);
}

/* The last `rows` queries of a long prefill, on their own against the same keys. */
static void last_rows(const setting *s, int rows)
{
    enum { LENGTH = 140 };
    trial all, few;
    conform_begin(&all, s, "hq4 hk2 q%d k%d d16 causal", (int)LENGTH, (int)LENGTH);
    conform_begin(&few, s, "hq4 hk2 q%d k%d d16 causal", rows, (int)LENGTH);
    for (int64_t h = 0; h < 4; h++)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t c = 0; c < 16; c++) {
                const int64_t at = input_offset(&all.in.problem.q_stride, all.in.tensors.cu_seqlens_q, 0,
                                                LENGTH - rows + i, h);
                trial_set_q(&few, 0, h, i, c, tensor_get(all.in.q, TLAMP_F32, at + c));
            }
    conform_verify(&all);
    conform_verify(&few);
    for (int64_t h = 0; h < 4; h++)
        for (int64_t i = 0; i < rows; i++) {
            const int64_t row = LENGTH - rows + i;
            expect_lse(&few, 0, h, i, trial_lse(&all, 0, h, row), trial_lse_bound(&all, 0, h, row));
            for (int64_t c = 0; c < 16; c++)
                expect_o(&few, 0, h, i, c, trial_o(&all, 0, h, row, c), trial_o_bound(&all, 0, h, row, c));
        }
    conform_end(&all);
    conform_end(&few);
}

/* In parts, the keys give what they give in one piece. */
static void same_as_whole(const trial *split, const trial *whole)
{
    const problem_spec *p = &whole->in.spec;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->heads_q; h++)
            for (int64_t i = 0; i < p->lq; i++) {
                expect_lse(split, b, h, i, trial_lse(whole, b, h, i), trial_lse_bound(whole, b, h, i));
                for (int64_t c = 0; c < p->dv; c += 3)
                    expect_o(split, b, h, i, c, trial_o(whole, b, h, i, c), trial_o_bound(whole, b, h, i, c));
            }
}

static void in_parts(const setting *s, const char *problem)
{
    static const char *const parts[] = {"2", "3", "100", "auto"};
    trial whole;
    conform_begin(&whole, s, "%s", problem);
    conform_verify(&whole);
    for (int i = 0; i < 4; i++) {
        trial split;
        conform_begin(&split, s, "%s splits:%s", problem, parts[i]);
        conform_verify(&split);
        same_as_whole(&split, &whole);
        conform_end(&split);
    }
    conform_end(&whole);
}

/* Where all keys lie in one part, the others change no bit. */
static void empty_parts(const setting *s, const char *parts)
{
    trial one, many;
    conform_begin(&one, s, "b2 hq4 hk2 q3 k900 used:15,0 d16 f16 causal");
    conform_begin(&many, s, "b2 hq4 hk2 q3 k900 used:15,0 d16 f16 causal splits:%s", parts);
    conform_verify(&one);
    conform_verify(&many);
    expect_same(&one, &many, "with empty parts");
    conform_end(&one);
    conform_end(&many);
}

static void parts(const setting *s)
{
    static const char *const problems[] = {
        "hq6 hk2 q1 k700 d40 f16",
        "hq3 hk1 q5 k300 d16 dv24 causal alibi",
        "b2 hq4 hk2 q3 k600 used:599,70 d8 bf16 window:100,0",
        "q150 k150 d16 causal softcap:20", /* parts that most rows do not see */
        "hq2 hk1 q4 k200 d16 mask:rowempty sinks:1",
    };
    for (int i = 0; i < 5; i++) in_parts(s, problems[i]);
    empty_parts(s, "7");
    empty_parts(s, "auto");
}

static void body(const setting *s)
{
    static const int keys[] = {1, 2, 64, 65}, groups[] = {1, 2, 7, 8};
    for (int i = 0; i < 4; i++)
        for (int g = 0; g < 4; g++) one_query(s, keys[i], groups[g]);
    one_query(s, 4097, 1);
    one_key(s, "f32");
    one_key(s, "f16");
    one_key(s, "bf16");
    for (int rows = 2; rows <= 8; rows += 3) last_rows(s, rows);
    parts(s);
}

int main(void) { return conform(body); }
