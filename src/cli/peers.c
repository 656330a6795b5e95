#define _GNU_SOURCE /* mkdtemp, asprintf */
#include "peers.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "parse.h"
#include "pin.h"

/* ------------------------------------------------------------------------------------------------ talking */

/* A peer that says nothing for so long is given up: its libraries may have to be compiled or loaded first. */
enum { PATIENCE_MS = 120 * 1000, LEAST_PATIENCE_MS = 5 * 1000, MAX_LINE = 400 };

static void end_child(peer *p)
{
    if (p->to) (void)fclose(p->to);
    if (p->from) (void)fclose(p->from);
    p->to = p->from = NULL;
    if (!p->child) return;
    (void)kill(p->child, SIGKILL);
    (void)waitpid(p->child, NULL, 0);
    p->child = 0;
}

static void give_up(peer *p, const char *reason)
{
    if (!p->reason[0]) (void)snprintf(p->reason, sizeof p->reason, "%s", reason);
    end_child(p);
}

/* Beyond the end of all some seconds are left for what a peer has begun. */
static int patience_ms(const peer *p)
{
    const double left = 1e3 * (p->until - samples_now());
    return (int)fmin(fmax(left, (double)LEAST_PATIENCE_MS), (double)PATIENCE_MS);
}

/* One line without its end; control characters become blanks. */
static bool read_line(peer *p, char line[MAX_LINE])
{
    struct pollfd ready = {.fd = fileno(p->from), .events = POLLIN};
    if (poll(&ready, 1, patience_ms(p)) <= 0 || !fgets(line, MAX_LINE, p->from)) return false;
    line[strcspn(line, "\r\n")] = '\0';
    for (char *at = line; *at; at++)
        if ((unsigned char)*at < ' ') *at = ' ';
    return true;
}

/* Sends a line, and reads "ok REST" or "no REASON": *rest is behind that word. False after "no", or where the peer is gone. */
#if defined __GNUC__
__attribute__((format(printf, 4, 5)))
#endif
static bool
ask(peer *p, char reply[MAX_LINE], const char **rest, const char *format, ...)
{
    *rest = "it ended, or took too long: its messages are in the log beside the list of peers";
    if (!p->child) return false;
    va_list args;
    va_start(args, format);
    const bool sent = vfprintf(p->to, format, args) > 0 && putc('\n', p->to) != EOF && fflush(p->to) == 0;
    va_end(args);
    if (!sent || !read_line(p, reply)) {
        give_up(p, *rest);
        return false;
    }
    const bool good = strncmp(reply, "ok", 2) == 0, answered = good || strncmp(reply, "no", 2) == 0;
    *rest = reply + (answered ? 2 : 0);
    *rest += strspn(*rest, " ");
    if (!answered) give_up(p, "it does not keep to the protocol of bench/peers");
    return good;
}

/* ------------------------------------------------------------------------------------------------ starting */

/* What each instruction set of ours is called by oneDNN (and by what contains it), ATen, MKL and OpenBLAS, from the top down. A
 * library that has no such name has the next lower one; it has no more than what it is held to. */
static const struct limit {
    const char *isa, *onednn, *aten, *mkl, *openblas;
} limits[] = {
    {"avx512fp16", "AVX512_CORE_FP16", "avx512", "AVX512_E4", "SAPPHIRERAPIDS"},
    {"avx512bf16", "AVX512_CORE_BF16", "avx512", "AVX512_E1", "COOPERLAKE"},
    {"avx512vnni", "AVX512_CORE_VNNI", "avx512", "AVX512_E1", "SKYLAKEX"},
    {"avx512", "AVX512_CORE", "avx512", "AVX512", "SKYLAKEX"},
    {"avxvnni", "AVX2_VNNI", "avx2", "AVX2", "HASWELL"},
    {"avx2", "AVX2", "avx2", "AVX2", "HASWELL"},
    {"scalar", "SSE41", "default", "SSE4_2", "NEHALEM"},
};

/* Where ours is held to an instruction set, so are the others: a fair table of that set on a machine that has more. What the
 * user has set stays. */
static void limit_isa(const char *isa)
{
    for (size_t i = 0; isa && i < sizeof limits / sizeof limits[0]; i++) {
        if (strcmp(limits[i].isa, isa) != 0) continue;
        (void)setenv("ONEDNN_MAX_CPU_ISA", limits[i].onednn, 0);
        (void)setenv("ATEN_CPU_CAPABILITY", limits[i].aten, 0);
        (void)setenv("MKL_ENABLE_INSTRUCTIONS", limits[i].mkl, 0);
        (void)setenv("OPENBLAS_CORETYPE", limits[i].openblas, 0);
    }
}

static void be_peer(const char *command, const int to[2], const int from[2], int log, const peers *p)
{
    char text[16];
    (void)snprintf(text, sizeof text, "%d", p->threads);
    (void)setenv("OMP_NUM_THREADS", text, 1);
    (void)setenv("OMP_PROC_BIND", "true", 1);
    limit_isa(p->isa);
    (void)signal(SIGPIPE, SIG_DFL);
    pin_release();
    if (dup2(to[0], STDIN_FILENO) < 0 || dup2(from[1], STDOUT_FILENO) < 0) _exit(127);
    if (log >= 0) (void)dup2(log, STDERR_FILENO);
    (void)execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

static bool start_child(peer *p, const char *command, int log, const peers *all)
{
    int to[2], from[2];
    if (pipe2(to, O_CLOEXEC)) return false;
    if (pipe2(from, O_CLOEXEC)) {
        (void)close(to[0]);
        (void)close(to[1]);
        return false;
    }
    (void)fflush(NULL);
    const pid_t child = fork();
    if (child == 0) be_peer(command, to, from, log, all);
    (void)close(to[0]);
    (void)close(from[1]);
    p->to = fdopen(to[1], "w");
    p->from = fdopen(from[0], "r");
    if (child > 0) p->child = child;
    return child > 0 && p->to && p->from;
}

static int add_peer(peers *p, char *line, int log, fault *f)
{
    line[strcspn(line, "#\r\n")] = '\0';
    char *command = line + strspn(line, " \t");
    if (!*command) return DONE;
    const char *name = next_piece(&command, ' ');
    if (!command) return fault_set(f, BAD_INPUT, "'%.80s' has no command: write NAME COMMAND", name);
    if (p->count == PEERS_MAX) return fault_set(f, BAD_INPUT, "more than %d peers: leave some out", PEERS_MAX);
    peer *new = &p->list[p->count++];
    (void)snprintf(new->name, sizeof new->name, "%s", name);
    new->until = p->until;
    char *whole = NULL;
    if (asprintf(&whole, "exec %s", command) < 0) return fault_no_memory(f);
    if (!start_child(new, whole, log, p)) give_up(new, "no process could be started");
    free(whole);
    return DONE;
}

static int read_list(peers *p, FILE *in, const char *list, int log, fault *f)
{
    char *line = NULL;
    size_t size = 0;
    int code = DONE;
    for (int number = 1; !code && getline(&line, &size, in) > 0; number++) {
        char where[320];
        (void)snprintf(where, sizeof where, "%.300s:%d", list, number);
        if ((code = add_peer(p, line, log, f))) (void)fault_prefix(f, where);
    }
    free(line);
    return code;
}

/* All of them load their libraries at once; each says when it is ready. */
static void greet(peer *p, int threads)
{
    char reply[MAX_LINE];
    const char *rest;
    if (ask(p, reply, &rest, "hello threads=%d", threads))
        (void)snprintf(p->version, sizeof p->version, "%.150s", rest);
    else
        give_up(p, rest);
}

/* Messages of peers go to the list's name with .log behind it. */
static int open_log(const char *list)
{
    char *path = NULL;
    if (asprintf(&path, "%s.log", list) < 0) return -1;
    const int log = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    free(path);
    return log;
}

static int start_all(peers *p, FILE *in, const char *list, fault *f)
{
    (void)snprintf(p->directory, sizeof p->directory, "%s/tilelamp-XXXXXX",
                   access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    if (!mkdtemp(p->directory)) {
        p->directory[0] = '\0';
        return fault_set(f, UNAVAILABLE, "--peers: no temporary directory: free some space in /tmp");
    }
    const int log = open_log(list), code = read_list(p, in, list, log, f);
    if (log >= 0) (void)close(log);
    for (int i = 0; !code && i < p->count; i++) greet(&p->list[i], p->threads);
    return code;
}

int peers_start(peers *p, const char *list, int threads, const char *isa, double until, fault *f)
{
    *p = (peers){.threads = threads, .isa = isa, .until = until};
    (void)signal(SIGPIPE, SIG_IGN);
    FILE *in = fopen(list, "re");
    const int first = in ? getc(in) : EOF; /* a directory can be opened, but not read */
    if (!in || ferror(in)) {
        if (in) (void)fclose(in);
        return fault_set(f, BAD_INPUT,
                         "--peers %.300s: cannot be read: ./dev bench --peers installs peers and lists them", list);
    }
    (void)ungetc(first, in);
    const int code = start_all(p, in, list, f);
    (void)fclose(in);
    return code;
}

static void remove_file(const peers *p, const char *name)
{
    char path[300];
    (void)snprintf(path, sizeof path, "%s/%s", p->directory, name);
    (void)unlink(path);
}

void peers_close(peers *p)
{
    static const char *const names[] = {"q", "k", "v", "o"};
    char reply[MAX_LINE];
    const char *rest;
    for (int i = 0; i < p->count; i++) (void)ask(&p->list[i], reply, &rest, "close");
    for (int i = 0; i < 4; i++) remove_file(p, names[i]);
}

void peers_stop(peers *p)
{
    for (int i = 0; i < p->count; i++) end_child(&p->list[i]);
    if (p->directory[0]) (void)rmdir(p->directory);
}

/* ------------------------------------------------------------------------------------------------ tensors */

/* Dense [batch][token][head][width], whatever the strides are. */
static bool write_tensor(const peers *p, const char *name, const void *data, const tlamp_strides *stride,
                         tlamp_dtype dtype, const int64_t shape[4])
{
    char path[300];
    (void)snprintf(path, sizeof path, "%s/%s", p->directory, name);
    FILE *out = fopen(path, "we");
    bool good = out != NULL;
    const size_t size = dtype_size(dtype), count = (size_t)shape[3];
    for (int64_t b = 0; b < shape[0]; b++)
        for (int64_t i = 0; i < shape[1] && good; i++)
            for (int64_t h = 0; h < shape[2]; h++) {
                const int64_t at = input_offset(stride, NULL, b, i, h);
                good = fwrite((const char *)data + (size_t)at * size, size, count, out) == count && good;
            }
    if (out) good = fclose(out) == 0 && good;
    return good;
}

static bool write_tensors(const peers *p, const subject *s)
{
    const problem_spec *x = &s->in.spec;
    const tlamp_problem *problem = &s->in.problem;
    const int64_t q[] = {x->batch, x->lq, x->heads_q, x->d}, k[] = {x->batch, x->lk, x->heads_k, x->d};
    const int64_t v[] = {x->batch, x->lk, x->heads_k, x->dv};
    return write_tensor(p, "q", s->in.q, &problem->q_stride, x->q_dtype, q) &&
           write_tensor(p, "k", s->in.k, &problem->k_stride, x->k_dtype, k) &&
           write_tensor(p, "v", s->in.v, &problem->v_stride, x->v_dtype, v);
}

/* Peers are given what all of them know: dense tensors of one type, causal squares or no mask. */
static const char *too_special(const problem_spec *s)
{
    if (s->varlen || s->num_used) return "packed sequences and used lengths are not given to peers";
    if (s->pattern || s->has_bias || s->has_alibi || s->num_sinks || s->softcap > 0 || s->scale > 0 ||
        s->window_left >= 0 || s->window_right >= 0)
        return "masks beyond causal, bias, ALiBi, sinks, caps and scales are not given to peers";
    if (s->mask && s->lq != s->lk) return "causal masks that are not square are not given to peers";
    if (s->q_dtype != s->k_dtype || s->q_dtype != s->v_dtype) return "mixed types are not given to peers";
    return NULL;
}

/* ------------------------------------------------------------------------------------------------ checking */

/* The largest relative L2 error that passes for an attention of that type: far above what any arithmetic makes of these
 * inputs, far below what a wrong mask, layout or scale makes. */
static double largest_error(tlamp_dtype dtype) { return dtype == TLAMP_F32 ? 1e-3 : 3e-2; }

static void check_output(const subject *s, const float *o, peer_result *r)
{
    const problem_spec *x = &s->in.spec;
    double squares = 0, exact_squares = 0, max = 0;
    for (int64_t row = 0; row < s->in.rows; row++)
        for (int64_t h = 0; h < x->heads_q; h++) {
            if (!subject_has_row(s, row, h)) continue;
            for (int64_t c = 0; c < x->dv; c++) {
                const int64_t at = (row * x->heads_q + h) * x->dv + c;
                const double error = fabs((double)o[at] - s->o[at]);
                if (!(error <= max)) max = error; /* a NaN stays */
                squares += error * error;
                exact_squares += s->o[at] * s->o[at];
            }
        }
    r->max_abs_error = max;
    r->rel_l2_error = squares == 0 ? 0 : sqrt(squares / exact_squares);
    r->ran = r->rel_l2_error <= largest_error(x->q_dtype);
    if (!r->ran)
        (void)snprintf(r->reason, sizeof r->reason, "its result is wrong: relative error %.2g", r->rel_l2_error);
}

static int read_and_check(const peers *p, const subject *s, peer_result *r, fault *f)
{
    const size_t count = (size_t)(s->in.rows * s->in.spec.heads_q * s->in.spec.dv);
    char path[300];
    (void)snprintf(path, sizeof path, "%s/o", p->directory);
    float *o = malloc((count + 1) * sizeof *o);
    if (!o) return fault_no_memory(f);
    FILE *in = fopen(path, "re");
    if (in && fread(o, sizeof *o, count, in) == count)
        check_output(s, o, r);
    else
        (void)snprintf(r->reason, sizeof r->reason, "it wrote no result");
    if (in) (void)fclose(in);
    free(o);
    remove_file(p, "o");
    return DONE;
}

static int open_peer(peers *p, peer *one, const subject *s, peer_result *r, fault *f)
{
    const problem_spec *x = &s->in.spec;
    char reply[MAX_LINE];
    const char *rest;
    if (!one->child) {
        (void)snprintf(r->reason, sizeof r->reason, "%s", one->reason);
        return DONE;
    }
    const bool opened = ask(
        one, reply, &rest, "open %s b=%lld hq=%lld hk=%lld q=%lld k=%lld d=%lld dv=%lld dtype=%s causal=%d",
        p->directory, (long long)x->batch, (long long)x->heads_q, (long long)x->heads_k, (long long)x->lq,
        (long long)x->lk, (long long)x->d, (long long)x->dv, dtype_name(x->q_dtype), x->mask != TLAMP_MASK_NONE);
    (void)snprintf(opened ? r->kernel : r->reason, opened ? sizeof r->kernel : sizeof r->reason, "%.99s", rest);
    if (!opened) return DONE;
    if (ask(one, reply, &rest, "check")) return read_and_check(p, s, r, f);
    (void)snprintf(r->reason, sizeof r->reason, "%s", rest);
    return DONE;
}

static bool is_late(const peers *p) { return samples_now() > p->until; }

int peers_open(peers *p, const subject *s, peer_result *results, fault *f)
{
    const char *special = too_special(&s->in.spec);
    for (int i = 0; i < p->count; i++) results[i] = (peer_result){.ran = false};
    if (!special && !write_tensors(p, s)) return fault_set(f, UNAVAILABLE, "%s: no room for tensors", p->directory);
    int code = DONE;
    for (int i = 0; i < p->count && !code; i++) {
        if (special || is_late(p))
            (void)snprintf(results[i].reason, sizeof results[i].reason, "%s", special ? special : "the time was up");
        else
            code = open_peer(p, &p->list[i], s, &results[i], f);
    }
    return code;
}

/* ------------------------------------------------------------------------------------------------ timing */

/* Threads of ours that wait for work spin for a while, on the processors that the peer wants. */
static void be_quiet(void)
{
#if defined _OPENMP && _OPENMP >= 201811
    (void)omp_pause_resource_all(omp_pause_soft);
#endif
    const struct timespec pause = {.tv_nsec = 3 * 1000 *
                                              1000}; /* the other runtime's spin for less; so do the peers' */
    (void)nanosleep(&pause, NULL);
}

static bool time_peer(peer *p, int repeats, double *seconds)
{
    char reply[MAX_LINE];
    const char *rest;
    return ask(p, reply, &rest, "time %d", repeats) && parse_real(rest, false, seconds) && *seconds > 0;
}

void peers_round(peers *p, peer_result *results)
{
    for (int i = 0; i < p->count; i++) {
        peer_result *r = &results[i];
        double seconds = 0;
        if (!r->ran || (r->repeats && is_late(p))) continue;
        be_quiet();
        bool good = r->repeats || time_peer(&p->list[i], 1, &seconds);
        if (good && !r->repeats) r->repeats = samples_repeats(seconds);
        good = good && time_peer(&p->list[i], r->repeats, &seconds);
        if (good) samples_add(&r->times, seconds / r->repeats);
        if (good) continue;
        r->ran = r->times.count > 0; /* at least so many rounds */
        (void)snprintf(r->reason, sizeof r->reason, "it stopped while it was timed");
    }
    be_quiet();
}
