/* How functions of the library report failure. */
#ifndef TL_STATUS_H
#define TL_STATUS_H

#include "tilelamp/tilelamp.h"

/* Fills *err (where there is one, as far as its struct_size reaches) and returns status. */
#if defined __GNUC__
__attribute__((format(printf, 4, 5)))
#endif
tlamp_status
tl_fail(tlamp_error *err, tlamp_status status, const char *field, const char *format, ...);

/* Zeros, then the defaults, as far as the caller's struct reaches: what every tlamp_*_init does. */
void tl_init_struct(void *to, size_t struct_size, const void *defaults, size_t known);

/* Copies a size-first struct of the caller's over defaults: known fields are taken, a newer struct's unknown tail must be
 * zero. `to` must hold its defaults already; its struct_size is kept. */
tlamp_status tl_take_struct(void *to, size_t known, const void *from, const char *name, tlamp_error *err);

#endif
