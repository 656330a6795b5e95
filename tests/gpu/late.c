/* Runs a program that was built as a library: late LIBRARY [ARGUMENT]...
 *
 * A library with device code starts CUDA while it is loaded. compute-sanitizer prepares itself at about the same time, and sees
 * nothing of a CUDA that was there first. Opened from main, the library comes after it. */
#include <dlfcn.h>
#include <stdio.h>

typedef int program(int argc, char **argv);

int main(int argc, char **argv)
{
    if (argc < 2) {
        fputs("usage: late LIBRARY [ARGUMENT]...\n", stderr);
        return 2;
    }
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
    void *symbol = library ? dlsym(library, "main") : NULL;
    if (!symbol) {
        fprintf(stderr, "late: %s\n", dlerror());
        return 2;
    }
    program *run;
    *(void **)&run = symbol; /* as POSIX has it: C knows no way from void * to a function */
    return run(argc - 1, argv + 1);
}
