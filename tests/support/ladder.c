#define _POSIX_C_SOURCE 200809L
#include "ladder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tilelamp/tilelamp.h"

enum { MOST_KERNELS = 64 };

/* The distinct instruction sets of the kernels that run here, slow ones too: run_here names them. */
static int find_isas(const char *isas[MOST_KERNELS])
{
    tlamp_kernel_info kernels[MOST_KERNELS] = {{.struct_size = sizeof kernels[0]}};
    const int count = tlamp_kernels(kernels, MOST_KERNELS);
    int found = 0;
    for (int i = 0; i < count && i < MOST_KERNELS; i++) {
        int known = !kernels[i].available && !kernels[i].slow;
        for (int j = 0; j < found; j++) known = known || strcmp(isas[j], kernels[i].isa) == 0;
        if (!known) isas[found++] = kernels[i].isa;
    }
    return found;
}

static tally run_here(const char *isa, tally (*body)(void *), void *context)
{
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    if (tlamp_set_max_isa(isa, &err)) {
        fprintf(stderr, "test: %s\n", err.text);
        return (tally){0, 1};
    }
    if (strcmp(tlamp_isa(), isa) != 0) {
        fprintf(stderr, "test: no kernel for %s on this machine\n", isa);
        return (tally){0, 1};
    }
    return body(context);
}

static tally run_in_child(const char *isa, tally (*body)(void *), void *context)
{
    int ends[2];
    tally result = {0, 1};
    fflush(NULL);
    if (pipe(ends)) return result;
    const pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        result = run_here(isa, body, context);
        fflush(NULL);
        _exit(write(ends[1], &result, sizeof result) == (ssize_t)sizeof result ? 0 : 1);
    }
    close(ends[1]);
    int status = 1;
    const int whole = child > 0 && read(ends[0], &result, sizeof result) == (ssize_t)sizeof result;
    close(ends[0]);
    if (child > 0) waitpid(child, &status, 0);
    if (whole && status == 0) return result;
    printf("FAIL the process for %s ended early (status %d)\n", isa, status);
    return (tally){0, 1};
}

tally ladder_run(const char *isa, tally (*body)(void *context), void *context)
{
    const char *isas[MOST_KERNELS];
    const int count = find_isas(isas);
    if (isa) return run_here(isa, body, context);
    if (count == 1) return run_here(isas[0], body, context);
    tally sum = {0, 0};
    for (int i = 0; i < count; i++) {
        printf("-- %s\n", isas[i]);
        const tally one = run_in_child(isas[i], body, context);
        sum.passed += one.passed;
        sum.failed += one.failed;
    }
    return sum;
}
