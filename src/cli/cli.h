/* What every command of `tilelamp` shares. */
#ifndef TL_CLI_CLI_H
#define TL_CLI_CLI_H

#include <argp.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "fault.h"
#include "tilelamp/tilelamp.h"

/* --threads, --isa, --device, --seed, --json: every command has them. */
typedef struct common_options {
    int32_t threads; /* 0: as the problem or OpenMP says */
    const char *isa;
    int32_t device; /* -1: the host */
    bool has_seed;
    uint64_t seed;
    bool json;
    fault error;    /* what a parser found wrong */
    int stopped_at; /* the argument behind the one that is no option */
} common_options;

/* A child parser for argp; its input is a common_options. */
extern const struct argp common_argp;

/* Parses a command's arguments: `argp` has common_argp as its first child, and its input starts with a common_options. On
 * failure one line is in options->error. */
int cli_parse(const struct argp *argp, int argc, char **argv, common_options *options);

/* For parsers: notes what is wrong and stops. */
#if defined __GNUC__
__attribute__((format(printf, 2, 3)))
#endif
error_t
cli_wrong(common_options *options, const char *format, ...);

/* argp's help filter of commands that take a problem and a policy: their two languages follow the text. */
char *cli_filter_help(int key, const char *text, void *options);

/* Applies --isa and --device, and checks TLAMP_MAX_ISA and stdout: what can be said before any work. UNAVAILABLE where this
 * machine lacks what is asked for. */
int common_apply(const common_options *options, fault *f);

/* The instruction set that --isa or else TLAMP_MAX_ISA names, or NULL. */
const char *common_isa(const common_options *options);

/* Several arguments joined by blanks; from malloc. */
char *join_arguments(char *const *arguments, int count);

/* The same as one would type it in a shell. */
char *quote_arguments(char *const *arguments, int count);

/* A bar on stderr, and only where that is a terminal. Steps are named as they begin. */
typedef struct progress {
    int done, total;
    bool shown;
} progress;
void progress_begin(progress *p, int total);
void progress_step(progress *p, const char *what);
void progress_clear(const progress *p); /* before other output */

/* A JSON number, or null where x is no finite number; a JSON string, with ? for what is no UTF-8, or null for NULL. */
json_t *json_number(double x);
json_t *json_text(const char *text);

/* Prints an object and a newline on stdout, and drops it. */
int print_json(json_t *object, fault *f);

/* The commands. They print, and return an exit code with one line in *f where that is not DONE. */
int command_info(int argc, char **argv, fault *f);
int command_run(int argc, char **argv, fault *f);
int command_compare(int argc, char **argv, fault *f);
int command_mask(int argc, char **argv, fault *f);
int command_bench(int argc, char **argv, fault *f);

#endif
