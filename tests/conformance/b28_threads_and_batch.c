/* B28: a row's bits do not depend on the number of threads, on the rest of the batch, on a caller's parallel region, or on
 * another thread that computes at the same time. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "support/conform.h"

static void run_into(trial *t, int32_t threads, trial_result *to, const trial_result *want, const char *what)
{
    verdict v;
    if (expect(trial_run(t, threads, to, &v), "%s: %s", what, v.why))
        (void)expect(trial_same_bits(t, to, want), "other bits %s", what);
}

static void default_threads(trial *t)
{
    trial_result r = trial_new_result(t);
    run_into(t, 0, &r, &t->result, "with OpenMP's default threads");
#ifdef _OPENMP
    const int dynamic = omp_get_dynamic();
    omp_set_dynamic(1);
    run_into(t, 7, &r, &t->result, "where OpenMP chooses the threads");
    omp_set_dynamic(dynamic);
#endif
    trial_free_result(&r);
}

/* Twins: trials of their own, with the same strings, for calls at the same time. */
enum { TWINS = 3 };
typedef struct twins {
    trial t[TWINS];
    trial_result r[TWINS];
    bool ok[TWINS];
} twins;

static void twins_begin(twins *w, const setting *s, int n)
{
    for (int i = 0; i < TWINS; i++) {
        conform_begin(&w->t[i], s, "hq4 hk2 q%d k%d d16 causal f16", n, n);
        w->r[i] = trial_new_result(&w->t[i]);
    }
}

static void twins_end(twins *w, const trial *want, const char *what)
{
    for (int i = 0; i < TWINS; i++) {
        (void)expect(w->ok[i] && trial_same_bits(want, &w->r[i], &want->result), "other bits %s", what);
        trial_free_result(&w->r[i]);
        conform_end(&w->t[i]);
    }
}

static void run_twin(twins *w, int i, int32_t threads)
{
    verdict v;
    w->ok[i] = trial_run(&w->t[i], threads, &w->r[i], &v);
}

static void inside_a_parallel_region(const setting *s, const trial *want, int n, int32_t threads)
{
    twins w;
    twins_begin(&w, s, n);
#ifdef _OPENMP
#pragma omp parallel for num_threads(TWINS)
#endif
    for (int i = 0; i < TWINS; i++) run_twin(&w, i, threads);
    twins_end(&w, want, "inside a parallel region");
}

typedef struct worker {
    twins *w;
    int index;
} worker;

static void *run_worker(void *context)
{
    const worker *k = context;
    run_twin(k->w, k->index, 2);
    return NULL;
}

static void at_the_same_time(const setting *s, const trial *want, int n)
{
    twins w;
    worker workers[TWINS];
    pthread_t threads[TWINS];
    twins_begin(&w, s, n);
    for (int i = 0; i < TWINS; i++) {
        workers[i] = (worker){&w, i};
        (void)expect(pthread_create(&threads[i], NULL, run_worker, &workers[i]) == 0, "no thread");
    }
    for (int i = 0; i < TWINS; i++) pthread_join(threads[i], NULL);
    twins_end(&w, want, "from several threads at once");
}

/* Does sequence b of a have the bits of sequence 0 of `alone`? */
static bool same_sequence(const trial *a, int64_t b, const trial *alone)
{
    const problem_spec *s = &alone->in.spec;
    for (int64_t h = 0; h < s->heads_q; h++)
        for (int64_t i = 0; i < s->lq; i++) {
            const double x = trial_lse(a, b, h, i), y = trial_lse(alone, 0, h, i);
            if (memcmp(&x, &y, sizeof x) != 0) return false;
            for (int64_t c = 0; c < s->dv; c++) {
                const double p = trial_o(a, b, h, i, c), q = trial_o(alone, 0, h, i, c);
                if (memcmp(&p, &q, sizeof p) != 0) return false;
            }
        }
    return true;
}

/* Copies q, k and v of sequence 0 of `from` to sequence b. */
static void copy_sequence(trial *to, int64_t b, const trial *from)
{
    const problem_spec *s = &from->in.spec;
    const tlamp_problem *p = &from->in.problem;
    for (int64_t h = 0; h < s->heads_q; h++)
        for (int64_t i = 0; i < s->lq; i++)
            for (int64_t c = 0; c < s->d; c++) {
                const int64_t q = input_offset(&p->q_stride, NULL, 0, i, h) + c;
                const int64_t k = input_offset(&p->k_stride, NULL, 0, i, h) + c;
                trial_set_q(to, b, h, i, c, tensor_get(from->in.q, s->q_dtype, q));
                if (h >= s->heads_k) continue;
                trial_set_k(to, b, h, i, c, tensor_get(from->in.k, s->k_dtype, k));
                trial_set_v(to, b, h, i, c, tensor_get(from->in.v, s->v_dtype, k));
            }
}

/* First, last and in the middle of a batch of 64. */
static void in_a_batch(const setting *s, const trial *alone, int n)
{
    trial t;
    conform_begin(&t, s, "b64 hq4 hk2 q%d k%d d16 causal f16 seed:9", n, n);
    static const int64_t places[] = {0, 31, 63};
    for (int i = 0; i < 3; i++) copy_sequence(&t, places[i], alone);
    verdict v;
    (void)expect(trial_run(&t, 3, &t.result, &v), "%s", v.why);
    for (int i = 0; i < 3; i++)
        (void)expect(same_sequence(&t, places[i], alone), "other bits as sequence %d of 64", (int)places[i]);
    conform_end(&t);
}

static void body(const setting *s)
{
    static const int lengths[] = {32, 33, 64};
    for (int i = 0; i < 3; i++) {
        trial t;
        conform_begin(&t, s, "hq4 hk2 q%d k%d d16 causal f16", lengths[i], lengths[i]);
        conform_verify(&t); /* 1, 2, 3 and 7 threads among others */
        default_threads(&t);
        inside_a_parallel_region(s, &t, lengths[i], 0);
        inside_a_parallel_region(s, &t, lengths[i], 2);
        at_the_same_time(s, &t, lengths[i]);
        in_a_batch(s, &t, lengths[i]);
        conform_end(&t);
    }
}

int main(void) { return conform(body); }
