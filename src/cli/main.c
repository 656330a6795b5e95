/* `tilelamp`: attention with mixed precision from the command line. A client of the public header only. */
#define _GNU_SOURCE /* argp */
#include <argp.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"

static int command_cache(int argc, char **argv, fault *f)
{
    (void)argc;
    (void)argv;
    return fault_set(f, UNAVAILABLE, "cache is not in this version: it comes with KV caches");
}

/* `full` is the name that --help shows as the program's. */
static const struct command {
    const char *name;
    char full[20];
    int (*run)(int argc, char **argv, fault *f);
} commands[] = {
    {"info", "tilelamp info", command_info},          {"run", "tilelamp run", command_run},
    {"compare", "tilelamp compare", command_compare}, {"mask", "tilelamp mask", command_mask},
    {"bench", "tilelamp bench", command_bench},       {"cache", "tilelamp cache", command_cache},
};
enum { NUM_COMMANDS = sizeof commands / sizeof commands[0] };

static const char help[] =
    "usage: tilelamp COMMAND [OPTIONS]\n"
    "\n"
    "Attention whose numerical precision is decided tile by tile.\n"
    "\n"
    "  info      what this library and this machine can do\n"
    "  run       compute one attention and compare it with the exact result\n"
    "  compare   compute it under many precision policies: accuracy and speed side by side\n"
    "  mask      build and draw a routing map\n"
    "  bench     measure speed: of attentions, beside other libraries too, and of this machine\n"
    "  cache     look into a saved KV cache (not in this version)\n"
    "\n"
    "`tilelamp COMMAND --help` explains a command. Exit status: 0 done; 1 a result is worse than its\n"
    "bound; 2 bad input or usage; 3 not available in this version or on this machine.\n"
    "\n"
    "Examples:\n"
    "  tilelamp run \"hq8 q1024 d64 causal\" --policy int8\n"
    "  tilelamp compare --qkv tests/data/*.safetensors\n"
    "  tilelamp mask --layout band --coverage 0.5 --lq 1024 --lk 1024 --block-m 64 --block-n 64 --causal\n";

static int dispatch(int argc, char **argv, fault *f)
{
    if (argc < 2) return fault_set(f, BAD_INPUT, "no command: see `tilelamp --help`");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
        (void)fputs(help, stdout);
        return DONE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("tilelamp %s\n", tlamp_version_string());
        return DONE;
    }
    for (int i = 0; i < NUM_COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) != 0) continue;
        char name[sizeof commands[i].full];
        memcpy(name, commands[i].full, sizeof name);
        argv[1] = name;
        return commands[i].run(argc - 1, argv + 1, f);
    }
    return fault_set(f, BAD_INPUT, "'%.80s' is no command: see `tilelamp --help`", argv[1]);
}

int main(int argc, char **argv)
{
    fault f = {.code = DONE};
    int code = dispatch(argc, argv, &f);
    if ((fflush(stdout) != 0 || ferror(stdout)) && code != BAD_INPUT)
        code = fault_set(&f, BAD_INPUT, "stdout: cannot be written: choose another place");
    if (code) (void)fprintf(stderr, "tilelamp: %s\n", f.text);
    return code;
}
