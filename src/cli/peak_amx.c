#define _GNU_SOURCE /* syscall */
#include "peak.h"

#if defined __AMX_INT8__ && defined __AMX_BF16__ && defined __linux__
#include <immintrin.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Four tiles of sums cover the latency of the one unit; two tiles on each side. Full tiles: 16 rows of 64 bytes. */
enum { SUMS = 4, ROWS = 16, COLUMNS = 16, ROW_BYTES = 64 };
enum { INT8_OPERATIONS = 2 * SUMS * ROWS * COLUMNS * ROW_BYTES, BF16_OPERATIONS = INT8_OPERATIONS / 2 };

/* Linux gives a process the tile registers when it asks for them. */
static bool ready(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static void configure(void)
{
    /* palette 1; bytes per row of the eight tiles at 16, rows at 48 */
    unsigned char configuration[64] = {1};
    for (int tile = 0; tile < 8; tile++) {
        configuration[16 + 2 * tile] = ROW_BYTES;
        configuration[48 + tile] = ROWS;
    }
    _tile_loadconfig(configuration);
    unsigned char zeros[ROWS * ROW_BYTES];
    memset(zeros, 0, sizeof zeros);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, zeros, ROW_BYTES);
    _tile_loadd(5, zeros, ROW_BYTES);
    _tile_loadd(6, zeros, ROW_BYTES);
    _tile_loadd(7, zeros, ROW_BYTES);
}

static float finish(void)
{
    float sums[ROWS * COLUMNS];
    _tile_stored(0, sums, ROW_BYTES);
    _tile_release();
    return sums[0];
}

static float run_int8(int64_t steps)
{
    configure();
    for (int64_t step = 0; step < steps; step++) {
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    }
    return finish();
}

static float run_bf16(int64_t steps)
{
    configure();
    for (int64_t step = 0; step < steps; step++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    return finish();
}

const peak_loop peak_int8_amx = {"dpbusd_tile", "amx", "amx_tile amx_int8", 200000, INT8_OPERATIONS, run_int8, ready};
const peak_loop peak_bf16_amx = {"dpbf16_tile", "amx", "amx_tile amx_bf16", 200000, BF16_OPERATIONS, run_bf16, ready};
#else
const peak_loop peak_int8_amx = {"dpbusd_tile", "amx", "amx_tile amx_int8", 1, 0, NULL, NULL};
const peak_loop peak_bf16_amx = {"dpbf16_tile", "amx", "amx_tile amx_bf16", 1, 0, NULL, NULL};
#endif
