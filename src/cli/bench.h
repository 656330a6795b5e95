/* `tilelamp bench`: what its parts share. */
#ifndef TL_CLI_BENCH_H
#define TL_CLI_BENCH_H

#include "cli.h"
#include "machine.h"

typedef struct bench_options {
    common_options common; /* first: cli_parse */
    const char *what;      /* peak, lamp, ...; NULL: none was named */
    bool quick;
} bench_options;

int bench_peak(const bench_options *o, fault *f);
int bench_lamp(const bench_options *o, fault *f);

/* Rounds: everything that is compared is timed once in each of them, so that a machine that speeds up or slows down does so
 * for all. */
enum { BENCH_MAX_ROUNDS = 15 };
int bench_rounds(const bench_options *o);

/* Threads of a run on all of them. */
int bench_threads(const bench_options *o, const machine *m);

/* Seconds of each round. */
typedef struct samples {
    int count;
    double seconds[BENCH_MAX_ROUNDS];
} samples;
void samples_add(samples *s, double seconds);
double samples_min(const samples *s);
double samples_median(const samples *s);

/* Of a thing done in a against one done in b, round by round: the median of b / a. */
double samples_median_ratio(const samples *a, const samples *b);

double bench_now(void);

/* {"processor", "features", "threads", "isa", "compiler"} */
json_t *bench_machine_json(const machine *m);

/* The fields that every result has. rate: in 1e9 per second, at the median. */
json_t *bench_result_json(const char *shape, const char *mode, const char *kernel, int threads, const samples *s,
                          double rate, double roofline_fraction);

#endif
