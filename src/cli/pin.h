/* Which processors a measurement runs on. */
#ifndef TL_CLI_PIN_H
#define TL_CLI_PIN_H

#include "peak.h"

enum { PIN_MAX = 1024 };

/* Processors that this process may use. */
int pin_available(void);

/* Binds each thread of an OpenMP team to a processor of its own, of different cores while there are enough. What the system says
 * of cores is not always so (virtual machines): where there is a choice, `load`, which fills a core's units, is run on
 * several processors at once to see whether they slow each other down. load NULL: the system is believed. Where there are
 * too few processors, several threads share one. */
void pin_threads(int threads, const peak_loop *load);

/* The processors that pin_threads bound to, in the order of the threads. Returns how many. */
int pin_list(int cpus[PIN_MAX]);

/* Gives the calling process all processors that pin_threads bound to: for a child, before it runs another program. */
void pin_release(void);

/* Of `count` processors, so many that do not slow each other down come first, up to `wanted`; the others follow in their
 * order. time_of(context, cpus, n): how long the slowest takes when n of them run at once. For pin_threads, and tests. */
typedef double (*pin_probe)(void *context, const int *cpus, int n);
void pin_order(int *cpus, int count, int wanted, pin_probe time_of, void *context);

#endif
