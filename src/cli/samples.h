/* Times of rounds. Everything that is compared is timed once in each round, so that a machine that speeds up or slows down
 * does so for all. */
#ifndef TL_CLI_SAMPLES_H
#define TL_CLI_SAMPLES_H

enum { SAMPLES_MAX_ROUNDS = 51 };

/* Seconds of each round. */
typedef struct samples {
    int count;
    double seconds[SAMPLES_MAX_ROUNDS];
} samples;

void samples_add(samples *s, double seconds); /* beyond SAMPLES_MAX_ROUNDS: dropped */

/* Of an empty list: NaN. */
double samples_min(const samples *s);
double samples_max(const samples *s);
double samples_median(const samples *s);

/* Of a thing done in a against one done in b, round by round: the median of b / a. */
double samples_median_ratio(const samples *a, const samples *b);

/* Seconds of a clock that never goes back. */
double samples_now(void);

/* How often a call that takes so many seconds is repeated in a round, so that neither the clock nor threads that wake up
 * count: the sample is the mean, and where there are several, one more comes before them untimed. */
int samples_repeats(double seconds);

#endif
