/* Which processors a measurement runs on. */
#ifndef TL_CLI_PIN_H
#define TL_CLI_PIN_H

enum { PIN_MAX = 1024 };

/* Processors that this process may use. */
int pin_available(void);

/* Binds each thread of an OpenMP team to a processor of its own, the first of every core before its siblings. Where there
 * are too few, several threads share one. */
void pin_threads(int threads);

/* Gives the calling process all processors that pin_threads bound to: for a child, before it runs another program. */
void pin_release(void);

#endif
