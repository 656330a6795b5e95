/* Q and K of a general problem to INT8 codes, scales and flags (ALGORITHMS A2), and before that the mean of K under smooth_k.
 * And Q and K of a plain problem, to codes and scales. They are those of the CPU. The including file says TL_BF16, and the
 * functions' names: TL_MEAN, TL_QUANTISE, TL_NONFINITE, TL_QUANTISE_PLAIN. */
#include "nvptx.h"

enum { THREADS = 256, WARPS = THREADS / 32, MOST = 256 / 32 }; /* MOST: channels of a lane, lane + 32 i */

static volatile int ran_on_host;

#ifdef __NVPTX__
#pragma omp begin declare target device_type(nohost)
#include "nvptx_scores.h"

/* One token of an operand in a warp's registers, without the mean where there is one. Not finite: amax says so. */
typedef struct {
    float x[MOST], amax;
} token;

TL_INLINE token load_token(const uint16_t *row, const float *mean, int32_t d)
{
    token t;
    uint32_t top = 0;
    TL_FULLY
    for (int i = 0; i < MOST; i++) {
        const int32_t c = tl_thread() % 32 + 32 * i;
        t.x[i] = c < d ? tl_load_half(row + c) : 0.f;
        if (mean && c < d) t.x[i] -= mean[c];
        const uint32_t magnitude = tl_bits(t.x[i]) & 0x7fffffffu; /* these order like magnitudes, NaN on top */
        top = magnitude > top ? magnitude : top;
    }
    TL_FULLY
    for (int with = 16; with; with >>= 1) {
        const uint32_t other = tl_swap_bits(top, with);
        top = other > top ? other : top;
    }
    t.amax = tl_float(top);
    return t;
}

/* The tokens of one head of one sequence. */
typedef struct {
    const uint16_t *x; /* its first token */
    int64_t stride;
    int32_t count;       /* tokens */
    int32_t first, end;  /* those outside are not seen */
    const uint8_t *seen; /* or NULL */
    const float *mean;   /* to be taken off; NULL: none */
    int32_t unit;        /* tokens of a scale; 0: one each */
    int8_t *codes;       /* of its first token, as the next ones; NULL: not wanted, but the inverse is */
    float *scale, *inverse;
    uint8_t *flags;
} operand;

TL_INLINE int is_used(const operand *o, int32_t t)
{
    return t < o->count && t >= o->first && t < o->end && (!o->seen || o->seen[t]);
}

TL_INLINE tl_quant quant_of(const tl_general_launch *a, float amax)
{
    return a->scales_f16 ? tl_quant_make_f16(amax) : tl_quant_make(amax);
}

/* The largest of what the warps of the block hold. */
TL_INLINE float block_max(float x)
{
    static TL_SHARED_SPACE float of_warp[WARPS];
    if (tl_thread() % 32 == 0) of_warp[tl_thread() / 32] = x;
    tl_barrier();
    TL_FULLY
    for (int w = 0; w < WARPS; w++) x = tl_max(of_warp[w], x);
    return x;
}

/* Tokens [begin, begin + rows) of the operand, 16 to a warp. Their scale's block may reach beyond them. dots: of each token
 * with `with`; NULL: none. */
TL_INLINE void quantise(const tl_general_launch *a, const operand *o, int32_t begin, int32_t rows, const float *with,
                        float *dots)
{
    const int32_t warp = tl_thread() / 32, lane = tl_thread() % 32, code_row = (a->d + 31) / 32 * 32;
    tl_quant shared = {0.f, 0.f};
    if (o->unit) {
        const int32_t unit = begin / o->unit * o->unit;
        float top = 0.f;
        for (int32_t t = unit + warp; t < unit + o->unit && t < o->count; t += WARPS) {
            if (!is_used(o, t)) continue;
            const float amax = load_token(o->x + t * o->stride, o->mean, a->d).amax;
            if (tl_is_finite(amax)) top = tl_max(amax, top);
        }
        shared = quant_of(a, block_max(top));
    }
    if (warp * 16 >= rows) return;
    int flagged = 0;
    for (int32_t t = begin + warp * 16; t < begin + warp * 16 + 16; t++) {
        const int used = is_used(o, t);
        token x = {{0.f}, 0.f};
        if (used) x = load_token(o->x + t * o->stride, o->mean, a->d);
        const int finite = tl_is_finite(x.amax);
        flagged |= !finite;
        const tl_quant z = o->unit ? shared : quant_of(a, finite ? x.amax : 0.f);
        TL_FULLY
        for (int i = 0; i < MOST; i++)
            if (o->codes && lane + 32 * i < code_row)
                o->codes[(int64_t)t * code_row + lane + 32 * i] = (int8_t)(finite ? tl_code(x.x[i], z.inverse) : 0);
        float dot = 0.f;
        TL_FULLY
        for (int i = 0; i < MOST; i++)
            if (with && lane + 32 * i < a->d) dot += x.x[i] * with[lane + 32 * i];
        TL_FULLY
        for (int by = 16; by; by >>= 1) dot += tl_swap(dot, by);
        if (lane == 0) {
            o->scale[t] = z.scale != 0.f ? z.scale : 1.f;
            if (o->inverse) o->inverse[t] = used && finite ? z.inverse : 0.f;
            if (dots) dots[t] = dot;
        }
    }
    if (lane == 0) o->flags[begin / 16 + warp] = (uint8_t)flagged;
}

TL_INLINE operand keys_of(const tl_general_launch *a, const tl_device_sequence *s, int32_t head)
{
    const int64_t at = ((int64_t)head * a->all_k_blocks + s->k_blocks) * TL_DEVICE_KEYS;
    const int32_t heads = a->heads_q / a->group_heads, code_row = (a->d + 31) / 32 * 32;
    operand o = {.x = a->k + s->batch * a->k_batch + head * a->k_head + s->k_start * a->k_seq,
                 .stride = a->k_seq,
                 .count = s->lk,
                 .unit = a->quant_k,
                 .codes = a->k_codes ? a->k_codes + at * code_row : NULL,
                 .inverse = a->k_inverse ? a->k_inverse + at : NULL,
                 .scale = a->k_scale + at,
                 .flags = a->k_flags + at / 16};
    if (s->lq > 0) {
        o.first = row_begins(s, 0);
        o.end = row_ends(s, s->lq - 1);
    }
    if (a->k_seen) o.seen = a->k_seen + at;
    if (a->mean) o.mean = a->mean + ((int64_t)s->batch * heads + head) * a->d;
    return o;
}

TL_INLINE operand queries_of(const tl_general_launch *a, const tl_device_sequence *s, int32_t head)
{
    const int64_t at = ((int64_t)head * a->all_q_blocks + s->q_blocks) * TL_DEVICE_ROWS;
    operand o = {.x = a->q + s->batch * a->q_batch + head * a->q_head + s->q_start * a->q_seq,
                 .stride = a->q_seq,
                 .count = s->lq,
                 .first = queries_begin(s),
                 .end = queries_end(s),
                 .unit = a->quant_q,
                 .codes = a->q_codes ? a->q_codes + at * ((a->d + 31) / 32 * 32) : NULL,
                 .inverse = a->q_inverse ? a->q_inverse + at : NULL,
                 .scale = a->q_scale + at,
                 .flags = a->q_flags + at / 16};
    if (a->q_seen) o.seen = a->q_seen + at;
    return o;
}

TL_INLINE void run_quantise(const tl_general_launch *a)
{
    const int32_t q_count = a->heads_q * a->all_q_blocks;
    if (tl_block() >= q_count) {
        const int32_t at = tl_block() - q_count, head = at / a->all_k_blocks, block = at - head * a->all_k_blocks;
        const tl_device_sequence s = sequence_of(a, block, OF_K_BLOCKS);
        const operand o = keys_of(a, &s, head);
        quantise(a, &o, (block - s.k_blocks) * TL_DEVICE_KEYS, TL_DEVICE_KEYS, NULL, NULL);
        return;
    }
    const int32_t head = tl_block() / a->all_q_blocks, block = tl_block() - head * a->all_q_blocks;
    const tl_device_sequence s = sequence_of(a, block, OF_Q_BLOCKS);
    const operand o = queries_of(a, &s, head);
    const float *mean = a->mean ? keys_of(a, &s, head / a->group_heads).mean : NULL;
    float *dots = a->q_mean ? a->q_mean + ((int64_t)head * a->all_q_blocks + s.q_blocks) * TL_DEVICE_ROWS : NULL;
    quantise(a, &o, (block - s.q_blocks) * TL_DEVICE_ROWS, TL_DEVICE_ROWS, mean, dots);
}

/* One KV head of one sequence. Sums in a fixed order: each warp's tokens, then the warps. */
TL_INLINE void run_mean(const tl_general_launch *a)
{
    static TL_SHARED_SPACE float sums[WARPS][256];
    static TL_SHARED_SPACE int32_t counts[WARPS];
    const int32_t heads = a->heads_q / a->group_heads, b = tl_block() / heads, head = tl_block() - b * heads;
    const int32_t warp = tl_thread() / 32, lane = tl_thread() % 32;
    const tl_device_sequence s = sequence_at(a, b);
    operand o = keys_of(a, &s, head);
    o.mean = NULL;
    float sum[MOST] = {0.f};
    int32_t count = 0;
    for (int32_t t = warp; t < o.count; t += WARPS) {
        if (!is_used(&o, t)) continue;
        const token x = load_token(o.x + t * o.stride, NULL, a->d);
        if (!tl_is_finite(x.amax)) continue;
        TL_FULLY
        for (int i = 0; i < MOST; i++) sum[i] += x.x[i];
        count++;
    }
    TL_FULLY
    for (int i = 0; i < MOST; i++) sums[warp][lane + 32 * i] = sum[i];
    if (lane == 0) counts[warp] = count;
    tl_barrier();
    const int32_t c = tl_thread();
    if (c >= a->d) return;
    float all = 0.f;
    int32_t n = 0;
    for (int w = 0; w < WARPS; w++) {
        all += sums[w][c];
        n += counts[w];
    }
    const float mean = n ? all / (float)n : 0.f;
    a->mean[(int64_t)tl_block() * a->d + c] = tl_is_finite(mean) ? mean : 0.f; /* overflow: any constant will do */
}

/* The tokens of a block of 128 queries or 64 keys that hold a NaN or Inf, of those that see a key or are seen. */
TL_INLINE void run_nonfinite(const tl_general_launch *a, int32_t *counts)
{
    static TL_SHARED_SPACE int32_t of_warp[WARPS];
    const int32_t q_count = a->heads_q * a->all_q_blocks, is_q = tl_block() < q_count, warp = tl_thread() / 32;
    const int32_t at = is_q ? tl_block() : tl_block() - q_count, each = is_q ? a->all_q_blocks : a->all_k_blocks;
    const int32_t head = at / each, block = at - head * each, rows = is_q ? TL_DEVICE_ROWS : TL_DEVICE_KEYS;
    const tl_device_sequence s = sequence_of(a, block, is_q ? OF_Q_BLOCKS : OF_K_BLOCKS);
    const operand o = is_q ? queries_of(a, &s, head) : keys_of(a, &s, head);
    const int32_t begin = (block - begin_of(&s, is_q ? OF_Q_BLOCKS : OF_K_BLOCKS)) * rows;
    int32_t count = 0;
    for (int32_t t = begin + warp; t < begin + rows && s.lk > 0; t += WARPS)
        count += is_used(&o, t) && !tl_is_finite(load_token(o.x + t * o.stride, NULL, a->d).amax);
    if (tl_thread() % 32 == 0) of_warp[warp] = count;
    tl_barrier();
    if (tl_thread() > 0) return;
    count = 0;
    for (int w = 0; w < WARPS; w++) count += of_warp[w];
    counts[tl_block()] = count;
}

/* ---- one scale for each block of 128 queries and 64 keys: a block of threads for each, one read, one write */

/* A block of 128 queries or 64 keys. */
typedef struct {
    const uint16_t *x; /* its first token */
    int64_t stride;
    int32_t rows, first,
        end; /* rows outside [first, end) are not there, see no key or are seen by none: they count as zeros */
    const uint8_t *seen; /* of each row; or NULL */
    int32_t d, code_row; /* channels that there are, and bytes of a row of codes, behind which are zeros */
    int8_t *codes;
    float *scale; /* negative: it holds a NaN or Inf and has no codes. Its tiles are computed high, which is closer */
} code_block;

enum { CHUNKS = 8 }; /* that a thread holds at once */

/* Of the block's chunks of 8 channels, `each` to a row, those that the thread has in a round. */
TL_INLINE void load_chunks(tl_chunk c[CHUNKS], const code_block *b, int32_t round, int32_t each)
{
    TL_FULLY
    for (int i = 0; i < CHUNKS; i++) {
        const int32_t at = (round * CHUNKS + i) * THREADS + tl_thread(), row = at / each, channel = at % each * 8;
        c[i] = (tl_chunk){0, 0, 0, 0};
        if (row >= b->first && row < b->end && row < b->rows && channel < b->d && (!b->seen || b->seen[row]))
            c[i] = *(const TL_GLOBAL_SPACE tl_chunk *)(b->x + row * b->stride + channel);
    }
}

/* each: a constant. What a thread cannot hold is read again, from the cache. */
TL_INLINE void quantise_whole(const code_block *b, int32_t each)
{
    static TL_SHARED_SPACE uint32_t of_warp[WARPS];
    const int32_t rounds = (b->rows * each / THREADS + CHUNKS - 1) / CHUNKS;
    tl_chunk c[CHUNKS];
    uint32_t top = 0;
    for (int32_t round = 0; round < rounds; round++) {
        load_chunks(c, b, round, each);
        TL_FULLY
        for (int i = 0; i < CHUNKS; i++) top = tl_max_magnitudes(top, c[i]);
        if (each <= 16) break; /* one round */
    }
    const float amax = tl_block_amax(top, WARPS, (uint32_t)(uintptr_t)of_warp);
    const tl_quant z = tl_quant_make(amax);
    const int finite = tl_is_finite(amax);
    if (tl_thread() == 0) *b->scale = !finite ? -1.f : z.scale > 0.f ? z.scale : 1.f;
    if (!finite) return;
    uint64_t *codes = (uint64_t *)b->codes;
    for (int32_t round = each <= 16 ? 0 : rounds - 1; round >= 0; round--) {
        if (each > 16 && round < rounds - 1) load_chunks(c, b, round, each);
        TL_FULLY
        for (int i = 0; i < CHUNKS; i++) {
            const int32_t at = (round * CHUNKS + i) * THREADS + tl_thread();
            if (at < b->rows * each)
                codes[at] = tl_codes_of_pairs(c[i][0], c[i][1], z.inverse) |
                            (uint64_t)tl_codes_of_pairs(c[i][2], c[i][3], z.inverse) << 32;
        }
    }
}

TL_INLINE void run_quantise_plain(const tl_general_launch *a, int32_t code_row)
{
    const int32_t q_count = a->heads_q * a->all_row_tiles, is_q = tl_block() < q_count;
    const int32_t index = is_q ? tl_block() : tl_block() - q_count, each = is_q ? a->all_row_tiles : a->all_k_blocks;
    const int32_t head = index / each, block = index - head * each, rows = is_q ? TL_DEVICE_ROWS : TL_DEVICE_KEYS;
    const tl_device_sequence s = sequence_of(a, block, is_q ? OF_ROW_TILES : OF_K_BLOCKS);
    const int32_t token = (block - begin_of(&s, is_q ? OF_ROW_TILES : OF_K_BLOCKS)) * rows;
    const uint8_t *seen = is_q ? a->q_seen : a->k_seen;
    code_block b = {.rows = rows, .d = a->d, .code_row = code_row};
    b.codes = (is_q ? a->q_codes : a->k_codes) + (int64_t)index * rows * code_row;
    if (seen) b.seen = seen + (int64_t)index * rows;
    b.scale = (is_q ? a->q_scale : a->k_scale) + index;
    b.stride = is_q ? a->q_seq : a->k_seq;
    b.x = is_q ? a->q + s.batch * a->q_batch + head * a->q_head : a->k + s.batch * a->k_batch + head * a->k_head;
    b.x += ((is_q ? s.q_start : s.k_start) + token) * b.stride;
    b.first = (is_q ? queries_begin(&s) : s.lq > 0 ? row_begins(&s, 0) : 0) - token;
    b.end = (is_q ? queries_end(&s) : s.lq > 0 ? row_ends(&s, s.lq - 1) : 0) - token;
    if (code_row == 64)
        quantise_whole(&b, 8);
    else if (code_row == 96)
        quantise_whole(&b, 12);
    else if (code_row == 128)
        quantise_whole(&b, 16);
    else if (code_row == 192)
        quantise_whole(&b, 24);
    else
        quantise_whole(&b, 32);
}
#pragma omp end declare target
#else
static void run_quantise(const tl_general_launch *a)
{
    (void)a;
    ran_on_host = 1;
}
static void run_mean(const tl_general_launch *a)
{
    (void)a;
    ran_on_host = 1;
}
static void run_nonfinite(const tl_general_launch *a, int32_t *counts)
{
    (void)a;
    (void)counts;
    ran_on_host = 1;
}
static void run_quantise_plain(const tl_general_launch *a, int32_t code_row)
{
    (void)a;
    (void)code_row;
    ran_on_host = 1;
}
#endif

int TL_QUANTISE(const tl_device_call *call)
{
    const int32_t blocks = call->heads_q * call->all_q_blocks + call->heads_q / call->group_heads * call->all_k_blocks;
    TL_PLAIN_FIELDS(TL_CAPTURE)
    TL_GENERAL_FIELDS(TL_CAPTURE)
#pragma omp target teams ompx_bare num_teams(blocks) thread_limit(THREADS) device(call->device)                        \
    is_device_ptr(TL_PLAIN_POINTERS, TL_GENERAL_POINTERS)
    {
        const tl_general_launch a = {TL_PLAIN_FIELDS(TL_PASS) TL_GENERAL_FIELDS(TL_PASS)};
        run_quantise(&a);
    }
    return ran_on_host;
}

int TL_MEAN(const tl_device_call *call)
{
    const int32_t blocks = call->heads_q / call->group_heads * call->batch;
    TL_PLAIN_FIELDS(TL_CAPTURE)
    TL_GENERAL_FIELDS(TL_CAPTURE)
#pragma omp target teams ompx_bare num_teams(blocks) thread_limit(THREADS) device(call->device)                        \
    is_device_ptr(TL_PLAIN_POINTERS, TL_GENERAL_POINTERS)
    {
        const tl_general_launch a = {TL_PLAIN_FIELDS(TL_PASS) TL_GENERAL_FIELDS(TL_PASS)};
        run_mean(&a);
    }
    return ran_on_host;
}

int TL_NONFINITE(const tl_device_call *call, int32_t *counts)
{
    const int32_t blocks = call->heads_q * call->all_q_blocks + call->heads_q / call->group_heads * call->all_k_blocks;
    TL_PLAIN_FIELDS(TL_CAPTURE)
    TL_GENERAL_FIELDS(TL_CAPTURE)
#pragma omp target teams ompx_bare num_teams(blocks) thread_limit(THREADS) device(call->device)                        \
    is_device_ptr(TL_PLAIN_POINTERS, TL_GENERAL_POINTERS, counts)
    {
        const tl_general_launch a = {TL_PLAIN_FIELDS(TL_PASS) TL_GENERAL_FIELDS(TL_PASS)};
        run_nonfinite(&a, counts);
    }
    return ran_on_host;
}

int TL_QUANTISE_PLAIN(const tl_device_call *call)
{
    const int32_t blocks = call->heads_q * call->all_row_tiles + call->heads_q / call->group_heads * call->all_k_blocks;
    const int32_t d = call->d, code_row = call->code_row;
    const uint8_t *const q_seen = call->q_seen, *const k_seen = call->k_seen;
    TL_PLAIN_FIELDS(TL_CAPTURE)
#pragma omp target teams ompx_bare num_teams(blocks) thread_limit(THREADS) device(call->device)                        \
    is_device_ptr(TL_PLAIN_POINTERS, q_seen, k_seen)
    {
        const tl_general_launch a = {TL_PLAIN_FIELDS(TL_PASS).d = d, .tile_rows = TL_DEVICE_ROWS,
                                     .q_seen = (uint8_t *)q_seen, .k_seen = (uint8_t *)k_seen};
        run_quantise_plain(&a, code_row);
    }
    return ran_on_host;
}
