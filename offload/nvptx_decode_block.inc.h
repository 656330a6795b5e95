/* A block of a decoding kernel: which rows and keys it has, and how states are joined: those of its warps in shared memory,
 * then those of the parts of a sequence by whichever block leaves its state last, always in the order of the parts
 * (nvptx_kernel.inc.h includes it where TL_DECODE is 1). */

/* Rows are (query head, token) pairs of a KV head, head by head: row r is token r % tokens of head r / tokens. The block has
 * [row, row + rows) of them, and part `part` of the keys. */
typedef struct {
    tl_device_sequence seq;
    int32_t kv_head, row, rows, part;
    int32_t first, apart; /* blocks: that of part 0, and from part to part */
    int32_t join;         /* which of the row blocks whose parts are joined */
} place;

/* The sequence in the table that owns unit `unit`, by all lanes of a warp at once. */
TL_INLINE tl_device_sequence sequence_of_unit(const tl_device_sequence *table, int32_t batch, int32_t unit)
{
    const int32_t lane = tl_thread() % 32;
    int32_t low = 0, count = batch;
    while (count > 1) {
        const int32_t apart = (count + 31) / 32, mine = lane * apart;
        const uint32_t from = tl_ballot(mine < count &&
                                        table[low + mine].row_tiles <= unit); /* of lane 0 in any case */
        const int32_t last = 31 - __builtin_clz(from);
        low += last * apart;
        count = count - last * apart < apart ? count - last * apart : apart;
    }
    return table[low];
}

/* A unit is a part of a sequence's keys with a row block, for all KV heads: those run side by side, as their keys may lie, and
 * next to them those that read the same keys. */
TL_INLINE place place_of(const launch *a, int32_t block)
{
    place p;
    const int32_t heads = a->kv_heads, unit = tl_divide(block, a->kv_heads_inverse);
    p.kv_head = block - unit * heads;
    if (a->sequences)
        p.seq = sequence_of_unit(a->sequences, a->batch, unit);
    else {
        const int32_t batch = tl_divide(unit, a->units_inverse);
        p.seq = (tl_device_sequence){.batch = batch,
                                     .lq = a->lq,
                                     .lk = a->lk,
                                     .reach = a->reach,
                                     .row_tiles = batch * a->row_blocks * a->parts,
                                     .k_blocks = batch * a->scales_each,
                                     .row_blocks = a->row_blocks,
                                     .parts = a->parts,
                                     .part_keys = a->part_keys};
    }
    const int32_t within = unit - p.seq.row_tiles;
    p.part = a->sequences ? within / p.seq.row_blocks : tl_divide(within, a->row_blocks_inverse);
    const int32_t row_block = within - p.part * p.seq.row_blocks,
                  left = p.seq.lq * a->group_heads - row_block * TL_DECODE_ROWS;
    p.row = row_block * TL_DECODE_ROWS;
    p.rows = left < TL_DECODE_ROWS ? left : TL_DECODE_ROWS;
    p.apart = p.seq.row_blocks * heads;
    p.first = block - p.part * p.apart;
    p.join = (p.seq.batch * a->row_blocks + row_block) * heads + p.kv_head;
    return p;
}

/* Where a row's query or output lies in a tensor. */
typedef struct {
    int32_t head, token;
} row_place;

TL_INLINE row_place row_at(const launch *a, const place *p, int32_t row)
{
    const float inverse = tl_reciprocal_fast((float)p->seq.lq);
    const int32_t at = p->row + row, head = (int32_t)(((float)at + 0.5f) * inverse); /* exact: few tokens, at < 2^15 */
    return (row_place){p->kv_head * a->group_heads + head, at - head * p->seq.lq};
}

TL_INLINE const uint16_t *q_at(const launch *a, const place *p, row_place row)
{
    return a->q + p->seq.batch * a->q_batch + row.head * a->q_head + (p->seq.q_start + row.token) * a->q_seq;
}

TL_INLINE uint16_t *o_at(const launch *a, const place *p, row_place row)
{
    return (uint16_t *)a->o + p->seq.batch * a->o_batch + row.head * a->o_head +
           (p->seq.q_start + row.token) * a->o_seq;
}

TL_INLINE int32_t end_of(const place *p, int32_t token)
{
    const int32_t end = token + p->seq.reach;
    return end < p->seq.lk ? end : p->seq.lk;
}

/* The states of the warps' rows. Their V was scrubbed of a NaN or Inf: 1. */
TL_INLINE int attend(const launch *a, const place *at)
{
    const int32_t warp = tl_uniform(tl_thread() / 32), part = at->part * at->seq.part_keys, first = part + warp * KEYS;
    tl_ctx x;
    x.a = a;
    x.scrub = !TL_CODES && a->causal && at->seq.lq > 1; /* one token sees all there is */
    place_lane(&x, warp);
    x.lk = at->seq.lk - first;

    /* Rows that there are not hold zeros and see everything. */
    TL_FULLY
    for (int r = 0; r < TL_ROWS; r++) {
        const int32_t row = r * 8 + (x.lane >> 2), has = row < at->rows;
        const row_place place = row_at(a, at, has ? row : 0);
        const TL_GLOBAL_SPACE uint32_t *q = /* codes: the fragments' channels come in the order of key_fragments */
            (const TL_GLOBAL_SPACE uint32_t *)(q_at(a, at, place) + (x.lane & 3) * (TL_CODES ? 4 : 2));
        x.ends[r] = (has ? end_of(at, place.token) : at->seq.lk) - first;
        TL_FULLY
        for (int step = 0; step < TL_D / 16; step++) {
            TL_FULLY
            for (int half = 0; half < 2; half++)
                x.q[step][half * 2 + r] = has ? q[step * 8 + half * (TL_CODES ? 1 : 4)] : 0u;
        }
    }

    /* Tokens of the rows: the first one sees least, the last one most. */
    const row_place low = row_at(a, at, 0), high = row_at(a, at, at->rows - 1);
    const int one_head = low.head == high.head;
    const int32_t least = end_of(at, one_head ? low.token : 0),
                  most = end_of(at, one_head ? high.token : at->seq.lq - 1);
    const int32_t end = most < part + at->seq.part_keys ? most : part + at->seq.part_keys;
    x.task.all_see = least - first;
    x.task.tile_end = tl_uniform(end > first ? (end - first + KEY_STEP - 1) / KEY_STEP : 0);
#if TL_CODES
    const int64_t key = at->seq.k_start + first + copier() / LANES8;
    x.k8 = (const int8_t *)a->k + at->seq.batch * a->k_batch + at->kv_head * a->k_head + key * a->k_seq;
    x.v8 = (const int8_t *)a->v + at->seq.batch * a->v_batch + at->kv_head * a->v_head + key * a->v_seq;
    x.k8 += copier() % LANES8 * 16;
    x.v8 += copier() % LANES8 * 16;
    x.first = first;
    x.scales = (int64_t)at->seq.k_blocks * a->kv_heads + at->kv_head;
#else
    const int32_t chunk = copier() % LANES16;
    const int64_t key = at->seq.k_start + first + x.chunk_row;
    x.k = a->k + at->seq.batch * a->k_batch + at->kv_head * a->k_head + key * a->k_seq + chunk * 8;
    x.v = a->v + at->seq.batch * a->v_batch + at->kv_head * a->v_head + key * a->v_seq + chunk * 8;
#endif
    tl_tile_loop(&x);
    return x.bad != 0;
}

/* ---- joining */

/* What a thread joins: four channels of a row. */
enum { UNITS = TL_D / 4 };

typedef struct {
    float o[4];
} unit;

TL_INLINE void add_unit(unit *u, float weight, tl_chunk o)
{
    TL_FULLY
    for (int e = 0; e < 4; e++) u->o[e] += weight * tl_float(o[e]);
}

/* Outputs of a row from its whole state: O of the thread's channels from `channel` on. */
TL_INLINE void store_unit(const launch *a, const place *at, int32_t row, int32_t channel, const unit *u, float m,
                          float l)
{
    typedef uint32_t pairs __attribute__((vector_size(8)));
    const row_place place = row_at(a, at, row);
    const float inverse = l == 0.f ? 0.f : 1.f / l;
    *(TL_GLOBAL_SPACE pairs *)(o_at(a, at, place) + channel) = (pairs){
        tl_pack_half(u->o[0] * inverse, u->o[1] * inverse), tl_pack_half(u->o[2] * inverse, u->o[3] * inverse)};
    if (a->lse && channel == 0)
        a->lse[at->seq.batch * a->lse_batch + place.head * a->lse_head + (at->seq.q_start + place.token) * a->lse_seq] =
            lse_of(m, l);
}

/* Slot of a row that block `block` leaves in the workspace. */
TL_INLINE int64_t slot_of(const launch *a, int32_t block, int32_t row) { return (int64_t)block * a->part_rows + row; }

/* The warps' states, in the order of the warps: to the outputs where the block has all keys, else to the workspace. */
TL_INLINE void join_warps(const launch *a, const place *at, int bad)
{
    const uint32_t shared = tl_shared_base();
    for (int32_t i = tl_thread(); i < at->rows * UNITS; i += THREADS) {
        const int32_t row = i / UNITS, channel = i % UNITS * 4;
        float m[WARPS], top = TL_NEVER, l = 0.f;
        unit u = {{0.f}};
        TL_FULLY
        for (int w = 0; w < WARPS; w++) {
            m[w] = tl_float(tl_shared_load4(shared + (uint32_t)(w * WARP_BYTES + STATE_M + row * 4)));
            top = tl_max(m[w], top);
        }
        TL_FULLY
        for (int w = 0; w < WARPS; w++) {
            const uint32_t from = shared + (uint32_t)(w * WARP_BYTES);
            const float weight = tl_exp2(m[w] - tl_reference(top));
            l += weight * tl_float(tl_shared_load4(from + (uint32_t)(STATE_L + row * 4)));
            add_unit(&u, weight, tl_shared_load(from + (uint32_t)(row * STATE_PITCH + channel * 4)));
        }
        if (at->seq.parts == 1) {
            store_unit(a, at, row, channel, &u, top, l);
            continue;
        }
        const int64_t slot = slot_of(a, at->first + at->part * at->apart, row);
        *(TL_GLOBAL_SPACE tl_chunk *)(a->part_o + slot * TL_D + channel) = (tl_chunk){tl_bits(u.o[0]), tl_bits(u.o[1]),
                                                                                      tl_bits(u.o[2]), tl_bits(u.o[3])};
        if (channel) continue;
        ((TL_GLOBAL_SPACE float *)a->part_m)[slot] = top;
        ((TL_GLOBAL_SPACE float *)a->part_l)[slot] = bad ? tl_float(tl_bits(l) | 0x80000000u) : l;
    }
}

/* How many blocks have left their parts of each row block, for TL_DECODE_LAUNCHES launches. Zeros between launches. */
static TL_GLOBAL_SPACE uint32_t arrived[TL_DECODE_LAUNCHES * TL_DECODE_JOINS];

/* Is this the last block of its row block to leave its part? Then it sees what the others have left. */
TL_INLINE int is_last(const launch *a, const place *at)
{
    TL_GLOBAL_SPACE uint32_t *count = &arrived[a->turn * TL_DECODE_JOINS + at->join];
    int last = 0;
    tl_barrier();
    if (tl_thread() == 0) {
        tl_device_fence();
        last = tl_count_up(count) == (uint32_t)at->seq.parts - 1;
        if (last) *count = 0;
        tl_device_fence();
    }
    return tl_barrier_any(last);
}

/* The parts' states to the outputs. Rows have JOINERS threads each for what is known once a row: m, l, and the weights of the
 * parts, which all threads then find in shared memory. Returns whether some V was scrubbed. */
TL_INLINE int join_parts(const launch *a, const place *at)
{
    enum { JOINERS = THREADS < 256 ? THREADS / TL_DECODE_ROWS : 16, AT_ONCE = 16 };
    const uint32_t shared = tl_shared_base(), totals = shared + TL_DECODE_PARTS * TL_DECODE_ROWS * 4;
    const int32_t mine = tl_thread() / JOINERS, joiner = tl_thread() % JOINERS;
    float top = TL_NEVER, sum = 0.f;
    uint32_t bad = 0;
    if (mine < at->rows)
        for (int32_t p = joiner; p < at->seq.parts; p += JOINERS)
            top = tl_max(((TL_GLOBAL_SPACE float *)a->part_m)[slot_of(a, at->first + p * at->apart, mine)], top);
    TL_FULLY
    for (int with = 1; with < JOINERS; with *= 2) top = tl_max(top, tl_swap(top, with));
    if (mine < at->rows)
        for (int32_t p = joiner; p < at->seq.parts; p += JOINERS) {
            const int64_t slot = slot_of(a, at->first + p * at->apart, mine);
            const float weight = tl_exp2(((TL_GLOBAL_SPACE float *)a->part_m)[slot] - tl_reference(top)),
                        l = ((TL_GLOBAL_SPACE float *)a->part_l)[slot];
            bad |= tl_bits(l) >> 31;
            sum += weight * tl_abs(l);
            tl_shared_store4(shared + (uint32_t)((p * TL_DECODE_ROWS + mine) * 4), tl_bits(weight));
        }
    TL_FULLY
    for (int with = 1; with < JOINERS; with *= 2) sum += tl_swap(sum, with);
    if (joiner == 0 && mine < at->rows) {
        tl_shared_store4(totals + (uint32_t)(mine * 8), tl_bits(top));
        tl_shared_store4(totals + (uint32_t)(mine * 8 + 4), tl_bits(sum));
    }
    const int any_bad = tl_barrier_any(bad != 0);
    for (int32_t i = tl_thread(); i < at->rows * UNITS; i += THREADS) {
        const int32_t row = i / UNITS, channel = i % UNITS * 4;
        const TL_GLOBAL_SPACE float *o = (const TL_GLOBAL_SPACE float *)a->part_o + slot_of(a, at->first, row) * TL_D +
                                         channel;
        const int64_t apart = slot_of(a, at->apart, 0) * TL_D;
        unit u = {{0.f}};
        for (int32_t first = 0; first < at->seq.parts; first += AT_ONCE) {
            tl_chunk held[AT_ONCE];
            TL_FULLY
            for (int p = 0; p < AT_ONCE; p++)
                held[p] = first + p < at->seq.parts ? *(const TL_GLOBAL_SPACE tl_chunk *)(o + (first + p) * apart)
                                                    : (tl_chunk){0u, 0u, 0u, 0u};
            TL_FULLY
            for (int p = 0; p < AT_ONCE; p++) {
                const uint32_t weight = tl_shared_load4(shared + (uint32_t)(((first + p) * TL_DECODE_ROWS + row) * 4));
                if (first + p < at->seq.parts) add_unit(&u, tl_float(weight), held[p]);
            }
        }
        store_unit(a, at, row, channel, &u, tl_float(tl_shared_load4(totals + (uint32_t)(row * 8))),
                   tl_float(tl_shared_load4(totals + (uint32_t)(row * 8 + 4))));
    }
    return any_bad;
}

#if !TL_CODES
/* The NaN and Inf of V's that were scrubbed, back into the columns of the rows that see them. */
static __attribute__((noinline)) void rows_again(const launch *a, int32_t block)
{
    const place at = place_of(a, block);
    const uint16_t *k = a->k + at.seq.batch * a->k_batch + at.kv_head * a->k_head + at.seq.k_start * a->k_seq;
    const uint16_t *v = a->v + at.seq.batch * a->v_batch + at.kv_head * a->v_head + at.seq.k_start * a->v_seq;
    tl_barrier();
    for (int32_t row = tl_thread() / 32; row < at.rows; row += WARPS) {
        const row_place place = row_at(a, &at, row);
        row_again(q_at(a, &at, place), k, v, o_at(a, &at, place), NULL, a->k_seq, a->v_seq, end_of(&at, place.token),
                  a->logit_scale, 0);
    }
}

#endif

TL_INLINE void run(const launch *a)
{
    int32_t block = tl_block();
    const place first = place_of(a, block);
    int bad = tl_barrier_any(attend(a, &first));
    TL_OPAQUE(block); /* nothing of it need be kept over the loop */
    const place at = place_of(a, block);
    join_warps(a, &at, bad);
    if (at.seq.parts > 1) {
        if (!is_last(a, &at)) return;
        bad = join_parts(a, &at);
    }
#if !TL_CODES
    if (!bad) return;
    const launch copy = *a; /* the address of *a itself must not leave, or it would lie in memory for the loop, too */
    rows_again(&copy, block);
#endif
}
