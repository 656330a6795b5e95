#define _GNU_SOURCE /* open_memstream, strdup */
#include "problem.h"

#include <ctype.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parse.h"

const char problem_help[] = "PROBLEM is one token per fact, in any order, for example\n"
                            "\"b1 hq9 hk3 q1024 k1024 d64 f16 causal\". Only q (or varlen) and d are needed:\n"
                            "  b1 hq9 hk3          sequences, query heads, key heads (1, 1, as hq)\n"
                            "  q1024 k1024         queries and keys of a sequence (default of k: as q)\n"
                            "  d64 dv64            head dimension of q and k, and of v (default: as d)\n"
                            "  f32 f16 bf16        type of q, k, v and o (default f32); or f16/bf16/f32:\n"
                            "                      of q, k and v\n"
                            "  out:f32             type of o, where it differs from q's\n"
                            "  causal causal-tl    causal: aligned to the last key, or to the first\n"
                            "  window:127,0        keys a row sees left and right of its diagonal (-1: all)\n"
                            "  mask:KIND           boolean mask: random, rowempty (first, middle and last\n"
                            "                      row see nothing), padding (keys padded on the right),\n"
                            "                      block (four documents)\n"
                            "  bias:f16            random bias of that type, added to the logits\n"
                            "  alibi               ALiBi slopes 2^(-8(h+1)/hq)\n"
                            "  sinks:0.5           sink logit of every head, or a list of hq\n"
                            "  softcap:30          cap on the logits\n"
                            "  scale:0.125         scale of the logits (default 1/sqrt(d))\n"
                            "  used:100,64         used key length of each sequence\n"
                            "  varlen:5,7/9,3      packed sequences: query lengths / key lengths\n"
                            "  layout:bshd         or bhsd, thd (packed), fused (q, k, v are views of one\n"
                            "                      buffer)\n"
                            "  pad:3               unused elements between the rows of every tensor\n"
                            "  splits:2            parts that the keys are split into, merged at the end\n"
                            "                      (default auto: 512 keys each for few queries)\n"
                            "  cache:int8          keys and values in a cache, int8 or f16\n"
                            "  threads:4           as --threads\n"
                            "  data:normal         what the tensors hold: normal, qknorm (rows of RMS 1\n"
                            "                      times a gain per channel), outlier (every 32nd channel\n"
                            "                      ten times larger), onehot (only the last column\n"
                            "                      counts), ramp (q=k=0, v[j]=j), zeros, minus5 (every\n"
                            "                      logit -5), pm127 (q, k are +-127), bigchannel (1000\n"
                            "                      added to one channel of k), spread (one logit 1e30,\n"
                            "                      others -1e30), subnormal, nanhidden (NaN wherever no\n"
                            "                      row looks)\n"
                            "  seed:7              seed of the random data (default 0)\n";

static const char *const layout_names[NUM_LAYOUTS] = {"bshd", "bhsd", "thd", "fused"};
static const char *const pattern_names[NUM_PATTERNS] = {"none", "random", "rowempty", "padding", "block"};
static const char *const cache_names[NUM_CACHES] = {"none", "int8", "f16"};
static const char *const data_names[NUM_DATA] = {
    "normal", "qknorm", "outlier",    "onehot", "ramp",      "zeros",
    "minus5", "pm127",  "bigchannel", "spread", "subnormal", "nanhidden",
};

/* ------------------------------------------------------------------------------------------------ values of tokens */

static bool take_causal(problem_spec *spec, char *value)
{
    (void)value;
    spec->mask = TLAMP_MASK_CAUSAL;
    return true;
}

static bool take_causal_top_left(problem_spec *spec, char *value)
{
    (void)value;
    spec->mask = TLAMP_MASK_CAUSAL_TOP_LEFT;
    return true;
}

static bool take_alibi(problem_spec *spec, char *value)
{
    (void)value;
    spec->has_alibi = true;
    return true;
}

static bool take_window(problem_spec *spec, char *value)
{
    const char *left = next_piece(&value, ',');
    return value && parse_integer(left, -1, INT64_MAX, &spec->window_left) &&
           parse_integer(value, -1, INT64_MAX, &spec->window_right);
}

static bool take_mask(problem_spec *spec, char *value)
{
    const int found = find_name(pattern_names, NUM_PATTERNS, value);
    spec->pattern = (problem_pattern)found;
    return found > PATTERN_NONE;
}

static bool take_bias(problem_spec *spec, char *value)
{
    spec->has_bias = true;
    return parse_dtype(value, &spec->bias_dtype);
}

static bool take_sinks(problem_spec *spec, char *value)
{
    for (const char *piece; (piece = next_piece(&value, ','));) {
        double x;
        if (spec->num_sinks == PROBLEM_MAX_LIST || !parse_real(piece, true, &x)) return false;
        spec->sinks[spec->num_sinks++] = (float)x;
    }
    return true;
}

static bool take_float(const char *text, double low, double high, float *value)
{
    double x;
    if (!parse_real(text, false, &x) || x < low || x > high) return false;
    *value = (float)(x + 0.0); /* -0 is 0 */
    return true;
}

static bool take_softcap(problem_spec *spec, char *value) { return take_float(value, 0, 1e30, &spec->softcap); }

static bool take_scale(problem_spec *spec, char *value) { return take_float(value, 1e-30, 1e30, &spec->scale); }

/* A list of lengths; -1 where it is malformed or too long. */
static int64_t take_lengths(char *text, int64_t lengths[PROBLEM_MAX_LIST])
{
    int64_t count = 0;
    for (const char *piece; (piece = next_piece(&text, ',')); count++)
        if (count == PROBLEM_MAX_LIST || !parse_integer(piece, 0, INT32_MAX, &lengths[count])) return -1;
    return count;
}

static bool take_used(problem_spec *spec, char *value)
{
    spec->num_used = take_lengths(value, spec->used);
    return spec->num_used > 0;
}

static bool take_varlen(problem_spec *spec, char *value)
{
    char *queries = next_piece(&value, '/');
    if (!value) return false;
    spec->varlen = true;
    spec->num_lengths = take_lengths(queries, spec->lengths_q);
    return spec->num_lengths > 0 && take_lengths(value, spec->lengths_k) == spec->num_lengths;
}

static bool take_layout(problem_spec *spec, char *value)
{
    const int found = find_name(layout_names, NUM_LAYOUTS, value);
    spec->layout = (problem_layout)found;
    return found >= 0;
}

static bool take_out(problem_spec *spec, char *value) { return parse_dtype(value, &spec->o_dtype); }

static bool take_cache(problem_spec *spec, char *value)
{
    const int found = find_name(cache_names, NUM_CACHES, value);
    spec->cache = (problem_cache)found;
    return found > CACHE_NONE;
}

static bool take_data(problem_spec *spec, char *value)
{
    const int found = find_name(data_names, NUM_DATA, value);
    spec->data = (problem_data)found;
    return found >= 0;
}

static bool take_seed(problem_spec *spec, char *value) { return parse_uint64(value, &spec->seed); }

static bool take_pad(problem_spec *spec, char *value) { return parse_integer(value, 0, 1 << 20, &spec->pad); }

static bool take_splits(problem_spec *spec, char *value) { return parse_splits(value, &spec->splits); }

static bool take_threads(problem_spec *spec, char *value) { return parse_integer(value, 1, 4096, &spec->threads); }

/* ------------------------------------------------------------------------------------------------ tokens */

/* "hq9": a name and a number. */
typedef struct number_token {
    const char *name;
    size_t field; /* an int64_t of problem_spec */
    int64_t low, high;
} number_token;

static const number_token number_tokens[] = {
    {"b", offsetof(problem_spec, batch), 0, 1 << 20},    {"hq", offsetof(problem_spec, heads_q), 0, 1 << 16},
    {"hk", offsetof(problem_spec, heads_k), 0, 1 << 16}, {"q", offsetof(problem_spec, lq), 0, INT32_MAX},
    {"k", offsetof(problem_spec, lk), 0, INT32_MAX},     {"d", offsetof(problem_spec, d), 1, 1 << 16},
    {"dv", offsetof(problem_spec, dv), 1, 1 << 16},
};
enum { NUM_NUMBERS = sizeof number_tokens / sizeof number_tokens[0] };

/* "causal" or "window:127,0": a word, or a name, a colon and a value. */
typedef struct word_token {
    const char *name;
    bool (*take)(problem_spec *spec, char *value);
    const char *form; /* NULL: a word without a value */
} word_token;

static const word_token word_tokens[] = {
    {"causal", take_causal, NULL},
    {"causal-tl", take_causal_top_left, NULL},
    {"alibi", take_alibi, NULL},
    {"window", take_window, "window:LEFT,RIGHT, each 0 or more, or -1 for unlimited"},
    {"mask", take_mask, "mask:random, rowempty, padding or block"},
    {"bias", take_bias, "bias:f32, f16 or bf16"},
    {"sinks", take_sinks, "sinks:VALUE or a list of one value per query head"},
    {"softcap", take_softcap, "softcap:VALUE, 0 (off) to 1e30"},
    {"scale", take_scale, "scale:VALUE, 1e-30 to 1e30"},
    {"used", take_used, "used:N,N with one length per sequence, at most 1024"},
    {"varlen", take_varlen, "varlen:Q,Q/K,K with one length per sequence, as many as b says, at most 1024"},
    {"layout", take_layout, "layout:bshd, bhsd, thd or fused"},
    {"out", take_out, "out:f32, f16 or bf16"},
    {"cache", take_cache, "cache:int8 or f16"},
    {"data", take_data, "data:KIND, one that `tilelamp run --help` lists"},
    {"seed", take_seed, "seed:N, 0 or more"},
    {"pad", take_pad, "pad:N, 0 to 1048576"},
    {"splits", take_splits, "splits:N, 1 to 1048576, or splits:auto"},
    {"threads", take_threads, "threads:N, 1 to 4096"},
};
enum { NUM_WORDS = sizeof word_tokens / sizeof word_tokens[0] };

/* Tokens of one group exclude each other: number tokens come first, then word tokens, then the dtypes. */
static int group_of_word(int index)
{
    return NUM_NUMBERS + (word_tokens[index].take == take_causal_top_left ? index - 1 : index);
}

enum { GROUP_DTYPE = NUM_NUMBERS + NUM_WORDS };

/* Marks a group as given; false where it was already. */
static bool first_of_group(uint32_t *given, int group)
{
    const uint32_t bit = (uint32_t)1 << group;
    const bool first = !(*given & bit);
    *given |= bit;
    return first;
}

static int given_twice(const char *token, fault *f)
{
    return fault_set(f, BAD_INPUT, "problem: '%s' says again what another token said: leave one of them out", token);
}

/* "f16", or "f16/bf16/f32" for q, k and v. False where the token is no dtype at all. */
static bool take_dtypes(problem_spec *spec, char *token)
{
    const char *q = next_piece(&token, '/');
    if (!parse_dtype(q, &spec->q_dtype)) return false;
    spec->k_dtype = spec->v_dtype = spec->q_dtype;
    if (!token) return true;
    const char *k = next_piece(&token, '/');
    return token && parse_dtype(k, &spec->k_dtype) && parse_dtype(token, &spec->v_dtype);
}

static const number_token *find_number(const char *token, const char **digits)
{
    size_t letters = 0;
    while (isalpha((unsigned char)token[letters])) letters++;
    *digits = token + letters;
    if (!isdigit((unsigned char)**digits) && **digits != '-') return NULL;
    for (int i = 0; i < NUM_NUMBERS; i++)
        if (strlen(number_tokens[i].name) == letters && strncmp(number_tokens[i].name, token, letters) == 0)
            return &number_tokens[i];
    return NULL;
}

static int take_number(problem_spec *spec, const number_token *number, const char *digits, fault *f)
{
    int64_t *field = (int64_t *)(void *)((char *)spec + number->field);
    if (parse_integer(digits, number->low, number->high, field)) return DONE;
    return fault_set(f, BAD_INPUT, "problem: '%s%.80s': write %s and a whole number from %lld to %lld", number->name,
                     digits, number->name, (long long)number->low, (long long)number->high);
}

static int take_word(problem_spec *spec, const word_token *word, char *value, const char *token, fault *f)
{
    if (!word->form != !value || !word->take(spec, value))
        return fault_set(f, BAD_INPUT, "problem: '%.80s' is not understood: write %s", token,
                         word->form ? word->form : word->name);
    return DONE;
}

static int take_token(problem_spec *spec, uint32_t *given, const char *token, fault *f)
{
    const char *digits;
    const number_token *number = find_number(token, &digits);
    if (number) {
        if (!first_of_group(given, (int)(number - number_tokens))) return given_twice(token, f);
        return take_number(spec, number, digits, f);
    }
    char *name = strdup(token);
    if (!name) return fault_no_memory(f);
    int code = -1;
    if (take_dtypes(spec, name)) {
        code = first_of_group(given, GROUP_DTYPE) ? DONE : given_twice(token, f);
    } else {
        strcpy(name, token); /* take_dtypes may have cut it */
        char *value = name;
        (void)next_piece(&value, ':');
        for (int i = 0; i < NUM_WORDS; i++) {
            if (strcmp(word_tokens[i].name, name) != 0) continue;
            code = first_of_group(given, group_of_word(i)) ? take_word(spec, &word_tokens[i], value, token, f)
                                                           : given_twice(token, f);
        }
    }
    free(name);
    if (code >= 0) return code;
    return fault_set(f, BAD_INPUT, "problem: '%.80s' is no known token: see `tilelamp run --help`", token);
}

/* ------------------------------------------------------------------------------------------------ whole strings */

static int64_t largest(const int64_t *values, int64_t count)
{
    int64_t top = 0;
    for (int64_t i = 0; i < count; i++)
        if (values[i] > top) top = values[i];
    return top;
}

/* The maxima of packed sequences: as given, or the longest; and packed lists for layout:thd alone. */
static int finish_lengths(problem_spec *spec, fault *f)
{
    if (spec->batch < 0) spec->batch = spec->varlen ? spec->num_lengths : 1;
    if (spec->layout == NUM_LAYOUTS) spec->layout = spec->varlen ? LAYOUT_THD : LAYOUT_BSHD;
    if (spec->varlen) {
        if (spec->batch != spec->num_lengths)
            return fault_set(f, BAD_INPUT, "problem: b%lld and %lld varlen sequences: leave b out",
                             (long long)spec->batch, (long long)spec->num_lengths);
        const int64_t lq = largest(spec->lengths_q, spec->batch), lk = largest(spec->lengths_k, spec->batch);
        if (spec->lq < 0) spec->lq = lq;
        if (spec->lk < 0) spec->lk = lk;
        if (spec->lq < lq || spec->lk < lk)
            return fault_set(f, BAD_INPUT,
                             "problem: q and k are less than the longest varlen sequence: leave them out");
        return DONE;
    }
    if (spec->lq < 0) return fault_set(f, BAD_INPUT, "problem: the number of queries is missing: add, say, q1024");
    if (spec->lk < 0) spec->lk = spec->lq;
    if (spec->layout != LAYOUT_THD) return DONE;
    if (spec->batch > PROBLEM_MAX_LIST)
        return fault_set(f, BAD_INPUT, "problem: layout:thd takes at most %d sequences", PROBLEM_MAX_LIST);
    for (int64_t b = 0; b < spec->batch; b++) {
        spec->lengths_q[b] = spec->lq;
        spec->lengths_k[b] = spec->lk;
    }
    spec->varlen = true;
    spec->num_lengths = spec->batch;
    return DONE;
}

static int finish_used(const problem_spec *spec, fault *f)
{
    if (spec->num_used && spec->num_used != spec->batch)
        return fault_set(f, BAD_INPUT, "problem: used: has %lld lengths for %lld sequences: give one each",
                         (long long)spec->num_used, (long long)spec->batch);
    for (int64_t b = 0; b < spec->num_used; b++)
        if (spec->used[b] > problem_length_k(spec, b))
            return fault_set(f, BAD_INPUT, "problem: used:%lld is more than the %lld keys of sequence %lld: lower it",
                             (long long)spec->used[b], (long long)problem_length_k(spec, b), (long long)b);
    return DONE;
}

static int finish_layout(const problem_spec *spec, fault *f)
{
    if (spec->varlen && (spec->layout == LAYOUT_BSHD || spec->layout == LAYOUT_BHSD))
        return fault_set(f, BAD_INPUT, "problem: varlen is packed: leave layout:%s out", layout_names[spec->layout]);
    if (spec->layout != LAYOUT_FUSED) return DONE;
    bool same = spec->d == spec->dv && spec->q_dtype == spec->k_dtype && spec->q_dtype == spec->v_dtype;
    for (int64_t b = 0; b < (spec->varlen ? spec->batch : 1); b++)
        same = same && problem_length_q(spec, b) == problem_length_k(spec, b);
    if (!same)
        return fault_set(f, BAD_INPUT,
                         "problem: layout:fused needs equal lengths, head dimensions and types of q, k and v: take "
                         "layout:bshd");
    return DONE;
}

/* Totals of packed rows are int32 in cu_seqlens; the same limit keeps dense sizes sane. */
static int finish_totals(const problem_spec *spec, fault *f)
{
    int64_t total_q = 0, total_k = 0;
    for (int64_t b = 0; b < (spec->varlen ? spec->batch : 1); b++) {
        total_q += problem_length_q(spec, b);
        total_k += problem_length_k(spec, b);
    }
    const int64_t copies = spec->varlen || spec->batch == 0 ? 1 : spec->batch;
    if (total_q > INT32_MAX / copies || total_k > INT32_MAX / copies)
        return fault_set(f, BAD_INPUT, "problem: more than 2147483647 rows in all: take a smaller one");
    return DONE;
}

static int finish(problem_spec *spec, fault *f)
{
    if (spec->d < 0) return fault_set(f, BAD_INPUT, "problem: the head dimension is missing: add, say, d64");
    if (spec->dv < 0) spec->dv = spec->d;
    if (spec->heads_q < 0) spec->heads_q = spec->heads_k < 0 ? 1 : spec->heads_k;
    if (spec->heads_k < 0) spec->heads_k = spec->heads_q;
    if (spec->o_dtype < 0) spec->o_dtype = spec->q_dtype;
    if (spec->num_sinks > 1 && spec->num_sinks != spec->heads_q)
        return fault_set(f, BAD_INPUT, "problem: sinks: has %d values for %lld query heads: give one, or one each",
                         spec->num_sinks, (long long)spec->heads_q);
    int code = finish_lengths(spec, f);
    if (!code) code = finish_totals(spec, f);
    if (!code) code = finish_used(spec, f);
    if (!code) code = finish_layout(spec, f);
    return code;
}

int problem_parse(problem_spec *spec, const char *text, fault *f)
{
    *spec = (problem_spec){.batch = -1, .heads_q = -1, .heads_k = -1, .lq = -1, .lk = -1, .d = -1, .dv = -1};
    spec->o_dtype = -1;
    spec->window_left = spec->window_right = -1;
    spec->layout = NUM_LAYOUTS; /* not given */
    char *copy = strdup(text);
    if (!copy) return fault_no_memory(f);
    uint32_t given = 0;
    int code = DONE;
    char *rest = NULL;
    for (char *token = strtok_r(copy, " \t\n", &rest); token && !code; token = strtok_r(NULL, " \t\n", &rest))
        code = take_token(spec, &given, token, f);
    free(copy);
    return code ? code : finish(spec, f);
}

static void print_list(FILE *out, const int64_t *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++) fprintf(out, "%s%lld", i ? "," : "", (long long)values[i]);
}

static void print_dtypes(FILE *out, const problem_spec *s)
{
    fprintf(out, " %s", dtype_name(s->q_dtype));
    if (s->k_dtype != s->q_dtype || s->v_dtype != s->q_dtype)
        fprintf(out, "/%s/%s", dtype_name(s->k_dtype), dtype_name(s->v_dtype));
    if (s->o_dtype != s->q_dtype) fprintf(out, " out:%s", dtype_name(s->o_dtype));
}

/* As few digits as give the same number back. */
static void print_float(FILE *out, const char *before, float x)
{
    char text[32];
    int digits = 6;
    do (void)snprintf(text, sizeof text, "%.*g", digits++, (double)x);
    while (digits <= 9 && strtof(text, NULL) != x);
    fprintf(out, "%s%s", before, text);
}

static void print_logits(FILE *out, const problem_spec *s)
{
    if (s->mask) fputs(s->mask == TLAMP_MASK_CAUSAL ? " causal" : " causal-tl", out);
    if (s->window_left >= 0 || s->window_right >= 0)
        fprintf(out, " window:%lld,%lld", (long long)s->window_left, (long long)s->window_right);
    if (s->pattern) fprintf(out, " mask:%s", pattern_names[s->pattern]);
    if (s->has_bias) fprintf(out, " bias:%s", dtype_name(s->bias_dtype));
    if (s->has_alibi) fputs(" alibi", out);
    for (int i = 0; i < s->num_sinks; i++) print_float(out, i ? "," : " sinks:", s->sinks[i]);
    if (s->softcap > 0) print_float(out, " softcap:", s->softcap);
    if (s->scale > 0) print_float(out, " scale:", s->scale);
}

static void print_lengths(FILE *out, const problem_spec *s)
{
    if (s->num_used) {
        fputs(" used:", out);
        print_list(out, s->used, s->batch);
    }
    if (s->varlen && s->batch > 0) {
        fputs(" varlen:", out);
        print_list(out, s->lengths_q, s->batch);
        fputc('/', out);
        print_list(out, s->lengths_k, s->batch);
    }
}

char *problem_print(const problem_spec *s)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out) return NULL;
    fprintf(out, "b%lld hq%lld hk%lld q%lld k%lld d%lld dv%lld", (long long)s->batch, (long long)s->heads_q,
            (long long)s->heads_k, (long long)s->lq, (long long)s->lk, (long long)s->d, (long long)s->dv);
    print_dtypes(out, s);
    print_logits(out, s);
    print_lengths(out, s);
    fprintf(out, " layout:%s", layout_names[s->layout]);
    if (s->pad) fprintf(out, " pad:%lld", (long long)s->pad);
    if (s->splits > 0) fprintf(out, " splits:%d", (int)s->splits);
    if (s->splits == SPLITS_AUTO) fprintf(out, " splits:auto");
    if (s->threads) fprintf(out, " threads:%lld", (long long)s->threads);
    if (s->cache) fprintf(out, " cache:%s", cache_names[s->cache]);
    if (s->data != DATA_FILE) fprintf(out, " seed:%llu data:%s", (unsigned long long)s->seed, data_names[s->data]);
    return fclose(out) == 0 ? text : NULL;
}

/* ------------------------------------------------------------------------------------------------ what a problem means */

int64_t problem_length_q(const problem_spec *spec, int64_t b) { return spec->varlen ? spec->lengths_q[b] : spec->lq; }

int64_t problem_length_k(const problem_spec *spec, int64_t b) { return spec->varlen ? spec->lengths_k[b] : spec->lk; }

int64_t problem_used_k(const problem_spec *spec, int64_t b)
{
    return spec->num_used ? spec->used[b] : problem_length_k(spec, b);
}

static int64_t clamp(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

void problem_visible_keys(const problem_spec *spec, int64_t b, int64_t i, int64_t *begin, int64_t *end)
{
    const int64_t lq = problem_length_q(spec, b), lk = problem_used_k(spec, b);
    const int64_t all = lq + lk; /* a wider window changes nothing, and sums cannot overflow */
    const int64_t diagonal = i + (spec->mask == TLAMP_MASK_CAUSAL_TOP_LEFT ? 0 : lk - lq);
    *begin = 0;
    *end = lk;
    if (spec->window_left >= 0) *begin = clamp(diagonal - clamp(spec->window_left, 0, all), 0, lk);
    if (spec->window_right >= 0) *end = clamp(diagonal + clamp(spec->window_right, 0, all) + 1, 0, lk);
    if (spec->mask) *end = clamp(diagonal + 1, 0, *end);
    if (*end < *begin) *end = *begin;
}

double problem_visible_cells(const problem_spec *spec)
{
    double cells = 0;
    for (int64_t b = 0; b < spec->batch; b++) {
        const bool repeated = b > 0 && !spec->varlen && !spec->num_used;
        if (repeated) return cells * (double)spec->batch * (double)spec->heads_q;
        for (int64_t i = 0; i < problem_length_q(spec, b); i++) {
            int64_t begin, end;
            problem_visible_keys(spec, b, i, &begin, &end);
            cells += (double)(end - begin);
        }
    }
    return cells * (double)spec->heads_q;
}
