/* `tilelamp bench`: what its parts share. */
#ifndef TL_CLI_BENCH_H
#define TL_CLI_BENCH_H

#include "cli.h"
#include "machine.h"
#include "measure.h"
#include "peak.h"
#include "samples.h"

typedef struct bench_options {
    common_options common; /* first: cli_parse */
    const char *what;      /* peak, lamp, ...; NULL: none was named */
    const char *shapes;    /* a file; NULL: the shapes that are built in */
    const char *peers;     /* the list of peers; NULL: none */
    bool quick;
    int32_t seconds; /* for all of it; 0: as long as it takes */
} bench_options;

int bench_peak(const bench_options *o, fault *f);
int bench_tune(const bench_options *o, fault *f);
int bench_lamp(const bench_options *o, fault *f);
int bench_prefill(const bench_options *o, fault *f);
int bench_decode(const bench_options *o, fault *f);
int bench_quant(const bench_options *o, fault *f);

/* Rounds of loops and of simulated formats. */
int bench_rounds(const bench_options *o);

/* Between catch_stop(true) and catch_stop(false) SIGINT, SIGTERM and SIGHUP only say that the end is wanted. */
void bench_catch_stop(bool on);
bool bench_stopped(void);

/* Threads of a run on all of them. */
int bench_threads(const bench_options *o, const machine *m);

/* Binds the threads of a run to processors (pin.h), of different cores while there are enough. */
void bench_pin(const bench_options *o, const machine *m, int threads);
void bench_print_run(int threads); /* one line: threads, processors, instruction set */

/* {"processor", "features", "threads", "processors", "isa", "compiler"}: all there are, and those that are used */
json_t *bench_machine_json(const machine *m);
void bench_print_machine(const machine *m);

/* The fields that every result has. rate: in 1e9 per second, at the median. */
json_t *bench_result_json(const char *shape, const char *mode, const char *kernel, int threads, const samples *s,
                          double rate, double roofline_fraction);

/* Where every policy of a shape was invalid: what is wrong with the first; NULL otherwise. */
const char *bench_complaint(const measurement *results, int count);

/* The machine's peaks on so many threads: what a bound is made of. */
typedef struct bench_peaks {
    double rate[NUM_PEAKS]; /* in peak_units, at the best round; NaN: no loop */
    const char *loop[NUM_PEAKS];
} bench_peaks;
enum { BENCH_PEAK_ROUNDS = 5 }; /* as many steps of the bar */
int bench_measure_peaks(const bench_options *o, const machine *m, int threads, bench_peaks *peaks, progress *bar,
                        fault *f);
/* Runs the loops once (not those of memory), and keeps the best rates. What is measured beside them, in the same rounds, is
 * judged by the machine as it was then. */
void bench_peaks_round(const bench_options *o, const machine *m, int threads, bench_peaks *best);
json_t *bench_peaks_json(const bench_peaks *peaks);
void bench_print_peaks(const bench_peaks *peaks);

#endif
