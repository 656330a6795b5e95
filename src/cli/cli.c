#define _GNU_SOURCE /* argp */
#include "cli.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "file.h"
#include "parse.h"
#include "policy.h"
#include "problem.h"

/* ------------------------------------------------------------------------------------------------ arguments */

enum { KEY_ISA = 0x1000, KEY_DEVICE, KEY_SEED, KEY_JSON };

static const struct argp_option common_arguments[] = {
    {"threads", 't', "N", 0, "Use N threads (default: all)", 90},
    {"isa", KEY_ISA, "NAME", 0, "Use the kernels of instruction set NAME (`tilelamp info` lists them)", 90},
    {"device", KEY_DEVICE, "host|gpu[:N]", 0, "Run on the host (default) or on a GPU", 90},
    {"seed", KEY_SEED, "N", 0, "Seed of random data and random layouts", 90},
    {"json", KEY_JSON, NULL, 0, "Print one JSON object and nothing else", 90},
    {"help", '?', NULL, 0, "Print this help", -1},
    {NULL, 0, NULL, 0, NULL, 0},
};

error_t cli_wrong(common_options *options, const char *format, ...)
{
    char text[sizeof options->error.text];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)fault_set(&options->error, BAD_INPUT, "%s", text);
    return EINVAL;
}

static bool parse_device(const char *text, int32_t *device)
{
    *device = -1;
    if (strcmp(text, "host") == 0) return true;
    *device = 0;
    if (strcmp(text, "gpu") == 0) return true;
    return strncmp(text, "gpu:", 4) == 0 && parse_int32(text + 4, 0, 1 << 16, device);
}

static error_t parse_common(int key, char *value, struct argp_state *state)
{
    common_options *o = state->input;
    switch (key) {
    case '?': argp_help(state->root_argp, stdout, ARGP_HELP_STD_HELP, state->name); exit(DONE);
    case ARGP_KEY_ERROR: o->stopped_at = state->next; return 0;
    case 't':
        if (parse_int32(value, 1, 4096, &o->threads)) return 0;
        return cli_wrong(o, "--threads %.40s: write a number from 1 to 4096", value);
    case KEY_ISA: o->isa = value; return 0;
    case KEY_DEVICE:
        if (parse_device(value, &o->device)) return 0;
        return cli_wrong(o, "--device %.40s: write host, gpu or gpu:N", value);
    case KEY_SEED:
        o->has_seed = true;
        if (parse_uint64(value, &o->seed)) return 0;
        return cli_wrong(o, "--seed %.40s: write a whole number, 0 or more", value);
    case KEY_JSON: o->json = true; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp common_argp = {common_arguments, parse_common, NULL, NULL, NULL, NULL, NULL};

/* The option that argp could not use: it stopped right behind it. */
static int blame_argument(const struct argp *argp, char *const *argv, common_options *options)
{
    const char *word = argv[options->stopped_at > 1 ? options->stopped_at - 1 : 0];
    const char *name = strncmp(word, "--", 2) == 0 ? word + 2 : "";
    const struct argp_option *const tables[] = {argp->options, common_arguments};
    for (int i = 0; i < 2; i++)
        for (const struct argp_option *o = tables[i]; o && (o->name || o->doc); o++)
            if (o->name && strcmp(o->name, name) == 0)
                return fault_set(&options->error, BAD_INPUT, "%s needs a value: write %s %s", word, word, o->arg);
    return fault_set(&options->error, BAD_INPUT, "'%.80s' cannot be used like this: see `%s --help`", word, argv[0]);
}

int cli_parse(const struct argp *argp, int argc, char **argv, common_options *options)
{
    options->device = -1;
    /* argp's own messages have several lines, and with ARGP_NO_ERRS its --help prints nothing */
    const error_t error = argp_parse(argp, argc, argv, ARGP_NO_ERRS | ARGP_NO_HELP, NULL, options);
    if (!error || options->error.code) return options->error.code;
    return blame_argument(argp, argv, options);
}

/* The library would say it of the first plan. */
static int check_environment(fault *f)
{
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    const char *isa = getenv("TLAMP_MAX_ISA");
    if (!isa || !*isa || !tlamp_set_max_isa(isa, &err)) return DONE;
    return fault_set(f, BAD_INPUT, "TLAMP_MAX_ISA: %s", err.text);
}

const char *common_isa(const common_options *o)
{
    const char *isa = o->isa ? o->isa : getenv("TLAMP_MAX_ISA");
    return isa && *isa ? isa : NULL;
}

int common_apply(const common_options *o, fault *f)
{
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    if (o->isa && tlamp_set_max_isa(o->isa, &err)) return fault_from_library(f, &err);
    if (!o->isa && check_environment(f)) return f->code;
    if (!file_takes_output(STDOUT_FILENO)) /* said before the work, not after it */
        return fault_set(f, BAD_INPUT, "stdout: cannot be written: choose another place");
    if (o->isa && strcmp(tlamp_isa(), o->isa) != 0)
        return fault_set(f, UNAVAILABLE, "this machine has no %.40s kernels: the best it runs are %s", o->isa,
                         tlamp_isa());
    const int32_t devices = tlamp_num_devices();
    if (o->device < devices) return DONE;
    return fault_set(f, UNAVAILABLE, "there is no device gpu:%d (found: %d): run on the host", o->device, devices);
}

char *join_arguments(char *const *arguments, int count)
{
    size_t size = 1;
    for (int i = 0; i < count; i++) size += strlen(arguments[i]) + 1;
    char *text = calloc(size, 1);
    for (int i = 0; text && i < count; i++) {
        if (i) strcat(text, " ");
        strcat(text, arguments[i]);
    }
    return text;
}

/* argv[0] is our own name for the command and is not quoted. */
char *quote_arguments(char *const *arguments, int count)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,%@";
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out) return NULL;
    for (int i = 0; i < count; i++) {
        const char *a = arguments[i];
        if (i) (void)putc(' ', out);
        if (i == 0 || (*a && strspn(a, plain) == strlen(a))) {
            (void)fputs(a, out);
            continue;
        }
        (void)putc('\'', out);
        for (; *a; a++) (void)fputs(*a == '\'' ? "'\\''" : (char[]){*a, '\0'}, out);
        (void)putc('\'', out);
    }
    return fclose(out) == 0 ? text : NULL;
}

/* ------------------------------------------------------------------------------------------------ progress */

void progress_begin(progress *p, int total)
{
    const char *terminal = getenv("TERM");
    *p = (progress){.total = total > 0 ? total : 1};
    p->shown = isatty(STDERR_FILENO) && terminal && strcmp(terminal, "dumb") != 0;
}

void progress_step(progress *p, const char *what)
{
    if (p->shown) {
        static const char full[] = "####################", empty[] = "--------------------";
        const int filled = p->done >= p->total ? 20 : 20 * p->done / p->total;
        (void)fprintf(stderr, "\r\033[K[%.*s%.*s] %.50s", filled, full, 20 - filled, empty, what);
        (void)fflush(stderr);
    }
    p->done++;
}

void progress_clear(const progress *p)
{
    if (p->shown) (void)fputs("\r\033[K", stderr);
}

/* ------------------------------------------------------------------------------------------------ JSON */

json_t *json_number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

json_t *json_text(const char *text)
{
    if (!text) return json_null();
    json_t *string = json_string(text);
    if (string) return string;
    char *copy = strdup(text);
    for (char *at = copy; at && *at; at++)
        if ((unsigned char)*at > 126) *at = '?';
    string = copy ? json_string(copy) : json_null();
    free(copy);
    return string;
}

char *cli_filter_help(int key, const char *text, void *options)
{
    (void)options;
    if (key != ARGP_KEY_HELP_POST_DOC) return (char *)(uintptr_t)text;
    char *all = NULL;
    return asprintf(&all, "%s\n%s%s", text, problem_help, policy_help) < 0 ? NULL : all;
}

int print_json(json_t *object, fault *f)
{
    const int failed = json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) != 0;
    json_decref(object);
    if (failed || putchar('\n') == EOF || fflush(stdout) != 0)
        return fault_set(f, BAD_INPUT, "the output cannot be written: choose another place");
    return DONE;
}
