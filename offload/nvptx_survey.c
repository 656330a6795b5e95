/* Which queries see a key and which keys are seen, where boolean masks or a bias hide single ones: what nothing sees must not
 * reach a scale that others share. One token per thread. */
#include "nvptx.h"

enum { THREADS = 64 };

static volatile int ran_on_host;

#ifdef __NVPTX__
#pragma omp begin declare target device_type(nohost)
#define TL_BF16 0 /* of no consequence: Q and K are not read */
#include "nvptx_scores.h"

TL_INLINE int sees_a_key(const tl_general_launch *a, const tl_device_sequence *s, int32_t head, int32_t row)
{
    for (int32_t key = row_begins(s, row); key < row_ends(s, row); key++)
        if (!is_hidden(a, s->batch, head, row, key)) return 1;
    return 0;
}

TL_INLINE int is_seen(const tl_general_launch *a, const tl_device_sequence *s, int32_t kv_head, int32_t key)
{
    for (int32_t head = kv_head * a->group_heads; head < (kv_head + 1) * a->group_heads; head++)
        for (int32_t row = 0; row < s->lq; row++)
            if (key >= row_begins(s, row) && key < row_ends(s, row) && !is_hidden(a, s->batch, head, row, key))
                return 1;
    return 0;
}

TL_INLINE void run(const tl_general_launch *a)
{
    const int32_t q_count = a->heads_q * a->all_q_blocks * (TL_DEVICE_ROWS / THREADS);
    if (tl_block() < q_count) {
        const int32_t head = tl_block() / (a->all_q_blocks * 2), half = tl_block() - head * a->all_q_blocks * 2;
        const tl_device_sequence s = sequence_of(a, half / 2, OF_Q_BLOCKS);
        const int32_t row = half * THREADS + tl_thread() - s.q_blocks * TL_DEVICE_ROWS;
        a->q_seen[(int64_t)tl_block() * THREADS + tl_thread()] = (uint8_t)(row < s.lq && sees_a_key(a, &s, head, row));
    } else {
        const int32_t at = tl_block() - q_count, head = at / a->all_k_blocks, block = at - head * a->all_k_blocks;
        const tl_device_sequence s = sequence_of(a, block, OF_K_BLOCKS);
        const int32_t key = (block - s.k_blocks) * TL_DEVICE_KEYS + tl_thread();
        a->k_seen[(int64_t)at * THREADS + tl_thread()] = (uint8_t)(key < s.lk && is_seen(a, &s, head, key));
    }
}
#pragma omp end declare target
#else
static void run(const tl_general_launch *a)
{
    (void)a;
    ran_on_host = 1;
}
#endif

int tl_nvptx_survey(const tl_device_call *call)
{
    const int32_t blocks = call->heads_q * call->all_q_blocks * (TL_DEVICE_ROWS / THREADS) +
                           call->heads_q / call->group_heads * call->all_k_blocks;
    TL_PLAIN_FIELDS(TL_CAPTURE)
    TL_GENERAL_FIELDS(TL_CAPTURE)
#pragma omp target teams ompx_bare num_teams(blocks) thread_limit(THREADS) device(call->device)                        \
    is_device_ptr(TL_PLAIN_POINTERS, TL_GENERAL_POINTERS)
    {
        const tl_general_launch a = {TL_PLAIN_FIELDS(TL_PASS) TL_GENERAL_FIELDS(TL_PASS)};
        run(&a);
    }
    return ran_on_host;
}
