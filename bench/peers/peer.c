#define _POSIX_C_SOURCE 200809L
#include "peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

size_t peer_element(const peer_shape *shape) { return strcmp(shape->dtype, "f32") == 0 ? 4 : 2; }

void peer_swap_heads(void *to, const void *from, int64_t batch, int64_t heads, int64_t tokens, int64_t dim, size_t size)
{
    const size_t row = (size_t)dim * size;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < tokens; i++)
                memcpy((char *)to + (size_t)((b * tokens + i) * heads + h) * row,
                       (const char *)from + (size_t)((b * heads + h) * tokens + i) * row, row);
}

void *peer_read(const peer_shape *s, const char *name)
{
    const int64_t heads = *name == 'q' ? s->heads_q : s->heads_k, tokens = *name == 'q' ? s->lq : s->lk;
    const int64_t dim = *name == 'v' ? s->dv : s->d;
    const size_t bytes = (size_t)(s->batch * heads * tokens * dim) * peer_element(s);
    char path[300];
    (void)snprintf(path, sizeof path, "%s/%s", s->directory, name);
    FILE *in = fopen(path, "r");
    char *read = malloc(bytes + 1), *data = malloc(bytes + 1);
    const int good = in && read && data && fread(read, 1, bytes, in) == bytes;
    /* the same exchange the other way round: tokens and heads change places */
    if (good) peer_swap_heads(data, read, s->batch, tokens, heads, dim, peer_element(s));
    if (in) (void)fclose(in);
    free(read);
    if (good) return data;
    free(data);
    return NULL;
}

/* "b=1 hq=8 ...": the number behind a name. */
static int64_t number(const char *line, const char *name)
{
    char pattern[16];
    (void)snprintf(pattern, sizeof pattern, " %s=", name);
    const char *at = strstr(line, pattern);
    return at ? strtoll(at + strlen(pattern), NULL, 10) : 0;
}

static void parse_shape(peer_shape *s, const char *line, int threads)
{
    *s = (peer_shape){.threads = threads};
    (void)sscanf(line, "open %255s", s->directory);
    s->batch = number(line, "b");
    s->heads_q = number(line, "hq");
    s->heads_k = number(line, "hk");
    s->lq = number(line, "q");
    s->lk = number(line, "k");
    s->d = number(line, "d");
    s->dv = number(line, "dv");
    s->causal = (int)number(line, "causal");
    const char *dtype = strstr(line, " dtype=");
    if (dtype) (void)sscanf(dtype, " dtype=%7s", s->dtype);
}

static const char *check(const peer_program *p, const peer_shape *s)
{
    const size_t count = (size_t)(s->batch * s->lq * s->heads_q * s->dv);
    const char *reason = p->run();
    if (reason) return reason;
    float *o = calloc(count + 1, sizeof *o);
    char path[300];
    (void)snprintf(path, sizeof path, "%s/o", s->directory);
    FILE *out = o ? fopen(path, "w") : NULL;
    if (o) p->output(o);
    const int good = out && fwrite(o, sizeof *o, count, out) == count;
    if (out && fclose(out) != 0) reason = "its result cannot be written";
    free(o);
    return good ? reason : "its result cannot be written";
}

static const char *measure(const peer_program *p, int64_t times, double *seconds)
{
    const char *reason = times > 1 ? p->run() : NULL;
    const double start = now();
    for (int64_t i = 0; i < times && !reason; i++) reason = p->run();
    *seconds = now() - start;
    return reason;
}

int peer_serve(const peer_program *p)
{
    char line[1024];
    peer_shape shape = {.threads = 1};
    int threads = 1;
    FILE *out = fdopen(dup(STDOUT_FILENO), "w"); /* what libraries print goes to stderr */
    if (!out || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) return 1;
    while (fgets(line, sizeof line, stdin)) {
        char answer[160] = "";
        const char *reason = NULL;
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "hello ", 6) == 0) {
            threads = (int)number(line, "threads");
            reason = p->hello(threads, answer);
        } else if (strncmp(line, "open ", 5) == 0) {
            parse_shape(&shape, line, threads);
            reason = p->open(&shape, answer);
        } else if (strcmp(line, "check") == 0) {
            reason = check(p, &shape);
        } else if (strncmp(line, "time ", 5) == 0) {
            double seconds = 0;
            reason = measure(p, strtoll(line + 5, NULL, 10), &seconds);
            (void)snprintf(answer, sizeof answer, "%.9f", seconds);
        } else if (strcmp(line, "close") == 0) {
            p->close();
        } else {
            reason = "unknown request";
        }
        (void)fprintf(out, "%s %s\n", reason ? "no" : "ok", reason ? reason : answer);
        if (fflush(out) != 0) return 1;
    }
    return 0;
}
