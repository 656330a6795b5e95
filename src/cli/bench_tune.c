/* `tilelamp bench tune`: kernels for GPUs have forms to choose from, which only a program with all of them in it can compare
 * (bench/gpu/tune.c). It is built beside this one; this command is its name. */
#define _GNU_SOURCE
#include "bench.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

int bench_tune(const bench_options *o, fault *f)
{
    static const char name[] = "tilelamp-tune";
    char path[4096];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - sizeof name);
    if (o->quick) return fault_set(f, BAD_INPUT, "bench tune has one length: leave --quick out");
    if (length > 0) {
        path[length] = '\0';
        char *folder_end = strrchr(path, '/');
        if (folder_end) {
            memcpy(folder_end + 1, name, sizeof name);
            (void)execl(path, name, o->common.json ? "--json" : NULL, (char *)NULL);
        }
    }
    return fault_set(f, UNAVAILABLE,
                     "bench tune is for GPUs, and there is no %s beside this program: ./dev gpu tune builds it", name);
}
