#define _GNU_SOURCE /* open_memstream, strdup */
#include "qkv.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parse.h"
#include "safetensors.h"

typedef struct qkv {
    st_file file;
    problem_layout layout;
    st_tensor q, k, v, cu_q, cu_k;
} qkv;

static int wrong(const qkv *x, fault *f, const char *what)
{
    return fault_set(f, BAD_INPUT, "%s: %s", x->file.path, what);
}

static int read_required(qkv *x, const char *name, st_tensor *tensor, fault *f)
{
    int found;
    const int code = st_read(&x->file, name, tensor, &found, f);
    if (code || found) return code;
    return fault_set(f, BAD_INPUT, "%s: tensor %s is missing: write it with that name", x->file.path, name);
}

static int read_layout(qkv *x, fault *f)
{
    static const char *const names[] = {"bshd", "bhsd", "thd"};
    const char *layout = st_metadata(&x->file, "layout");
    const int found = layout ? find_name(names, 3, layout) : LAYOUT_BSHD;
    x->layout = (problem_layout)found;
    return found >= 0 ? DONE : wrong(x, f, "its metadata layout is none of bshd, bhsd, thd: correct it");
}

static int read_tensors(qkv *x, fault *f)
{
    int code = read_layout(x, f);
    if (!code) code = read_required(x, "q", &x->q, f);
    if (!code) code = read_required(x, "k", &x->k, f);
    if (!code) code = read_required(x, "v", &x->v, f);
    if (!code && x->layout == LAYOUT_THD) code = read_required(x, "cu_seqlens_q", &x->cu_q, f);
    if (!code && x->layout == LAYOUT_THD) code = read_required(x, "cu_seqlens_k", &x->cu_k, f);
    return code;
}

/* ------------------------------------------------------------------------------------------------ shapes */

/* A tensor's sizes by meaning. */
typedef struct sizes {
    int64_t batch, length, heads, dim;
} sizes;

static sizes sizes_of(const st_tensor *t, problem_layout layout)
{
    const int64_t *s = t->shape;
    if (layout == LAYOUT_THD) return (sizes){.batch = 1, .length = s[0], .heads = s[1], .dim = s[2]};
    if (layout == LAYOUT_BHSD) return (sizes){.batch = s[0], .length = s[2], .heads = s[1], .dim = s[3]};
    return (sizes){.batch = s[0], .length = s[1], .heads = s[2], .dim = s[3]};
}

static int check_shapes(const qkv *x, fault *f)
{
    const int rank = x->layout == LAYOUT_THD ? 3 : 4;
    if (x->q.rank != rank || x->k.rank != rank || x->v.rank != rank)
        return wrong(x, f, "q, k and v do not all have the rank of their layout (4; thd: 3): reshape them");
    if (x->q.dtype == ST_I32 || x->k.dtype == ST_I32 || x->v.dtype == ST_I32)
        return wrong(x, f, "q, k and v must be F32, F16 or BF16: convert them");
    const sizes q = sizes_of(&x->q, x->layout), k = sizes_of(&x->k, x->layout), v = sizes_of(&x->v, x->layout);
    if (q.batch != k.batch || q.batch != v.batch)
        return wrong(x, f, "q, k and v have different batch sizes: correct them");
    if (k.length != v.length || k.heads != v.heads)
        return wrong(x, f, "k and v have different lengths or heads: correct them");
    return q.dim == k.dim ? DONE : wrong(x, f, "q and k have different head dimensions: correct them");
}

/* The end of a tensor of prefix sums must be the number of rows. */
static int check_cu_seqlens(const qkv *x, const st_tensor *cu, int64_t rows, fault *f)
{
    const int32_t *at = cu->data;
    bool good = cu->dtype == ST_I32 && cu->rank == 1 && cu->elements >= 2 && cu->elements == x->cu_q.elements;
    good = good && at[0] == 0 && at[cu->elements - 1] == rows;
    for (int64_t b = 1; good && b < cu->elements; b++) good = at[b - 1] <= at[b];
    if (good) return DONE;
    return wrong(x, f,
                 "cu_seqlens_q and _k must be I32, start at 0, never fall and end at the number of rows: correct them");
}

static void print_lengths(FILE *out, const st_tensor *cu)
{
    const int32_t *at = cu->data;
    for (int64_t b = 1; b < cu->elements; b++) fprintf(out, "%s%d", b > 1 ? "," : "", at[b] - at[b - 1]);
}

/* The file as a problem string: the string's own parser then checks every limit. */
static char *problem_string(const qkv *x)
{
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    const sizes q = sizes_of(&x->q, x->layout), k = sizes_of(&x->k, x->layout), v = sizes_of(&x->v, x->layout);
    const char *causal = st_metadata(&x->file, "causal"), *scale = st_metadata(&x->file, "softmax_scale");
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out) return NULL;
    fprintf(out, "hq%lld hk%lld d%lld dv%lld %s/%s/%s", (long long)q.heads, (long long)k.heads, (long long)q.dim,
            (long long)v.dim, dtypes[x->q.dtype], dtypes[x->k.dtype], dtypes[x->v.dtype]);
    if (x->layout == LAYOUT_THD) {
        fputs(" varlen:", out);
        print_lengths(out, &x->cu_q);
        fputc('/', out);
        print_lengths(out, &x->cu_k);
    } else {
        fprintf(out, " b%lld q%lld k%lld layout:%s", (long long)q.batch, (long long)q.length, (long long)k.length,
                x->layout == LAYOUT_BHSD ? "bhsd" : "bshd");
    }
    if (causal && strcmp(causal, "true") == 0) fputs(" causal", out);
    if (scale) fprintf(out, " scale:%.40s", scale);
    return fclose(out) == 0 ? text : NULL;
}

static int describe(const qkv *x, problem_spec *spec, fault *f)
{
    int code = check_shapes(x, f);
    if (!code && x->layout == LAYOUT_THD) code = check_cu_seqlens(x, &x->cu_q, x->q.shape[0], f);
    if (!code && x->layout == LAYOUT_THD) code = check_cu_seqlens(x, &x->cu_k, x->k.shape[0], f);
    if (code) return code;
    const char *causal = st_metadata(&x->file, "causal"), *scale = st_metadata(&x->file, "softmax_scale");
    if (causal && strcmp(causal, "true") != 0 && strcmp(causal, "false") != 0)
        return wrong(x, f, "its metadata causal is neither true nor false: correct it");
    double value;
    if (scale && (!parse_real(scale, false, &value) || value <= 0))
        return wrong(x, f, "its metadata softmax_scale is no positive number: correct it");
    char *text = problem_string(x);
    if (!text) return fault_no_memory(f);
    code = problem_parse(spec, text, f);
    if (code) (void)fault_prefix(f, x->file.path);
    free(text);
    spec->data = DATA_FILE;
    return code;
}

static void copy_tensor(void *to, const st_tensor *from)
{
    memcpy(to, from->data, (size_t)from->elements * (from->dtype == ST_F32 ? 4 : 2));
}

static int load(input *in, qkv *x, char **source, fault *f)
{
    problem_spec spec;
    int code = read_tensors(x, f);
    if (!code) code = describe(x, &spec, f);
    if (!code) code = input_create(in, &spec, f);
    if (code) return code;
    copy_tensor(in->q, &x->q);
    copy_tensor(in->k, &x->k);
    copy_tensor(in->v, &x->v);
    const char *text = st_metadata(&x->file, "source");
    *source = text ? strdup(text) : NULL;
    for (char *c = *source; c && *c; c++) /* a file's text must not drive the terminal */
        if ((unsigned char)*c < ' ' || *c == 0x7f) *c = ' ';
    return DONE;
}

int qkv_load(input *in, const char *path, char **source, fault *f)
{
    qkv x = {.layout = LAYOUT_BSHD};
    int code = st_open(&x.file, path, f);
    if (code) return code;
    code = load(in, &x, source, f);
    st_tensor *const tensors[] = {&x.q, &x.k, &x.v, &x.cu_q, &x.cu_k};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) free(tensors[i]->data);
    st_close(&x.file);
    return code;
}
