/* The machine that a result comes from. */
#ifndef TL_CLI_MACHINE_H
#define TL_CLI_MACHINE_H

enum { MACHINE_MAX_KERNELS = 256 };

typedef struct machine {
    char processor[128];
    char features[512]; /* those flags of the processor that kernels of this library may use */
    long threads;
} machine;

void machine_read(machine *m);
const char *machine_compiler(void);

#endif
