/* Output files that are either complete or not there: written beside their place, then renamed into it. */
#ifndef TL_CLI_FILE_H
#define TL_CLI_FILE_H

#include <stdbool.h>
#include <stdio.h>

#include "fault.h"

typedef struct file_writer {
    const char *path;
    char *temporary;
    FILE *stream; /* write here; errors show at file_end */
} file_writer;

/* Can anything be written there, as far as can be told without writing? */
bool file_takes_output(int descriptor);

/* Is the place of a file to come writable? Asked before long work whose result goes there. path NULL: nothing to ask. */
int file_check(const char *path, fault *f);

int file_begin(file_writer *writer, const char *path, fault *f);
int file_end(file_writer *writer, fault *f);
void file_cancel(file_writer *writer); /* instead of file_end: nothing is left behind */

#endif
