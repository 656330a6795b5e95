#define _GNU_SOURCE /* strdup, getdelim */
#include "shapes.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "parse.h"
#include "problem.h"

/* One more element, zeroed; NULL where memory is out. */
static void *grow(void **list, int *count, size_t size)
{
    char *more = realloc(*list, ((size_t)*count + 1) * size);
    if (!more) return NULL;
    *list = more;
    return memset(more + (size_t)(*count)++ * size, 0, size);
}

/* All shapes are checked before the first is measured. */
static int check_problem(const char *text, fault *f)
{
    problem_spec spec;
    const int code = problem_parse(&spec, text, f);
    if (code) return code;
    if (spec.threads)
        return fault_set(f, BAD_INPUT, "problem: threads: all shapes run on those of --threads: leave it out");
    return input_check(&spec, f);
}

static int add_problem(shapes *s, const char *text, fault *f)
{
    const int code = check_problem(text, f);
    if (code) return code;
    void *list = s->list;
    shape *new = grow(&list, &s->count, sizeof *new);
    s->list = list;
    if (!new || !(new->problem = strdup(text))) return fault_no_memory(f);
    new->line = s->line;
    new->first_policy = s->num_policies;
    return DONE;
}

static int fault_at(const char *name, int line, fault *f)
{
    char where[300];
    (void)snprintf(where, sizeof where, "%.280s:%d", name, line);
    return fault_prefix(f, where);
}

int shapes_fault(const shapes *s, const shape *which, fault *f) { return fault_at(s->name, which->line, f); }

/* For the problems from `first` on. What is no policy is kept with its reason. */
static int add_policy(shapes *s, int first, const char *text, fault *f)
{
    if (first == s->count)
        return fault_set(f, BAD_INPUT, "a policy without a problem: write the problem above it, in the first column");
    void *list = s->policies;
    policy_spec *new = grow(&list, &s->num_policies, sizeof *new);
    s->policies = list;
    if (!new) return fault_no_memory(f);
    for (int i = first; i < s->count; i++) s->list[i].num_policies++;
    if (!policy_parse(new, text, f)) return DONE;
    (void)snprintf(new->text, sizeof new->text, "%s", text);
    (void)fault_at(s->name, s->line, f);
    (void)snprintf(new->wrong, sizeof new->wrong, "%.*s", (int)sizeof new->wrong - 1, f->text);
    return DONE;
}

/* Cuts comments and blanks at the end. */
static void trim(char *line)
{
    line[strcspn(line, "#\r\n")] = '\0';
    size_t length = strlen(line);
    while (length && isspace((unsigned char)line[length - 1])) line[--length] = '\0';
}

/* *first: where the group of problems begins that policies belong to. */
static int add_line(shapes *s, int *first, char *line, fault *f)
{
    trim(line);
    const char *text = line + strspn(line, " \t");
    if (!*text) return DONE;
    if (text > line) return add_policy(s, *first, text, f);
    if (s->count && s->list[s->count - 1].num_policies) *first = s->count; /* a new group */
    return add_problem(s, text, f);
}

static int parse_lines(shapes *s, char *text, fault *f)
{
    int first = 0, code = DONE;
    for (char *line; !code && (line = next_piece(&text, '\n'));) {
        s->line++;
        code = add_line(s, &first, line, f);
    }
    if (!code) s->line = s->count ? s->list[s->count - 1].line : 1; /* what is wrong with the whole is wrong there */
    if (!code && !s->count) code = fault_set(f, BAD_INPUT, "no problem in it: see bench/shapes for examples");
    if (!code && !s->list[s->count - 1].num_policies)
        code = fault_set(f, BAD_INPUT, "a problem without a policy: write policies below it, indented");
    return code ? fault_at(s->name, s->line, f) : DONE;
}

/* One wrong policy is left out; where there is no other, its fault is that of the whole. */
static int check_policies(const shapes *s, fault *f)
{
    for (int i = 0; i < s->num_policies; i++)
        if (!s->policies[i].wrong[0]) return DONE;
    return fault_set(f, BAD_INPUT, "%s", s->policies[0].wrong);
}

int shapes_parse(shapes *s, const char *name, const char *text, fault *f)
{
    *s = (shapes){.name = name};
    char *copy = strdup(text);
    int code = copy ? parse_lines(s, copy, f) : fault_no_memory(f);
    if (!code) code = check_policies(s, f);
    free(copy);
    return code;
}

int shapes_read(shapes *s, const char *path, fault *f)
{
    *s = (shapes){.count = 0};
    FILE *in = fopen(path, "r");
    char *text = NULL;
    size_t size = 0;
    const bool some = in && getdelim(&text, &size, '\0', in) > 0, whole = in && feof(in);
    if (in) (void)fclose(in);
    const int code = whole ? shapes_parse(s, path, some ? text : "", f)
                           : fault_set(f, BAD_INPUT,
                                       some ? "%.300s: has a NUL byte, and is no text: name a file of shapes"
                                            : "%.300s: cannot be read: name a file of shapes",
                                       path);
    free(text);
    return code;
}

void shapes_free(shapes *s)
{
    for (int i = 0; i < s->count; i++) free(s->list[i].problem);
    free(s->list);
    free(s->policies);
    *s = (shapes){.count = 0};
}
