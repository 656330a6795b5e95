/* Routing maps written on a device are those written on the host, word for word: every layout, many geometries and seeds, into
 * memory of either. Usage: device_layout [random geometries, default 300]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"
#include "support/geometry.h"
#include "tilelamp/tilelamp.h"

enum { KINDS = TLAMP_LAYOUT_SPTRANS_SCALED + 1 };

static int failures;
static uint32_t state = 1;

static int64_t pick(int64_t n) /* 0 .. n-1 */
{
    state = state * 1664525u + 1013904223u;
    return (int64_t)(state >> 8) % n;
}

static tlamp_geometry random_geometry(void)
{
    static const int32_t blocks_m[] = {16, 32, 64, 128}, blocks_n[] = {16, 32, 64};
    static const int64_t windows[] = {-1, -1, -1, 0, 3, 17, 40, 100};
    const int64_t most = pick(4) ? 300 : 3000;
    tlamp_geometry g = geometry(pick(most), pick(most), blocks_m[pick(4)], blocks_n[pick(3)], (int32_t)pick(4),
                                (tlamp_mask_kind)pick(3));
    if (pick(3) == 0) g.seqlen_k = g.seqlen_q;
    g.window_left = windows[pick(8)];
    g.window_right = windows[pick(8)];
    return g;
}

static void fail(const tlamp_layout *l, const tlamp_geometry *g, const char *what)
{
    printf(
        "FAIL %s coverage %g seed %u retarget %d, lq %lld lk %lld tile %dx%d group %d mask %d window %lld,%lld: %s\n",
        tlamp_layout_name(l->kind), l->coverage, (unsigned)l->seed, (int)l->retarget, (long long)g->seqlen_q,
        (long long)g->seqlen_k, (int)g->block_m, (int)g->block_n, (int)g->group, (int)g->mask,
        (long long)g->window_left, (long long)g->window_right, what);
    failures++;
}

static void *allocate(size_t bytes)
{
    void *p = malloc(bytes + 1);
    if (!p) abort();
    return p;
}

static void compare(const tlamp_layout *l, const tlamp_geometry *g)
{
    const int64_t count = tlamp_layout_words(g);
    const size_t bytes = (size_t)count * sizeof(uint64_t);
    uint64_t *host = allocate(bytes), *words = allocate(bytes);
    tlamp_layout_report wanted = {.struct_size = sizeof wanted};
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    if (tlamp_layout_build(l, g, host, count, &wanted, &err)) fail(l, g, err.text);
    for (int i = 0; i < 2; i++) {
        tlamp_layout_report report = {.struct_size = sizeof report};
        tlamp_exec exec;
        tlamp_exec_init(&exec, sizeof exec);
        exec.device = 0;
        exec.memory = i ? TLAMP_MEMORY_DEVICE : TLAMP_MEMORY_HOST;
        memset(words, 0xa5, bytes);
        void *there = i ? device_copy(0, words, bytes) : NULL;
        if (tlamp_layout_build_on(l, g, &exec, i ? there : words, count, &report, &err)) fail(l, g, err.text);
        if (!device_take(0, there, words, bytes)) fail(l, g, "wrote beside the words");
        if (bytes && memcmp(words, host, bytes) != 0) fail(l, g, i ? "other words in device memory" : "other words");
        if (memcmp(&report, &wanted, sizeof report) != 0) fail(l, g, "another report");
    }
    free(host);
    free(words);
}

static void all_layouts(const tlamp_geometry *g)
{
    static const double coverages[] = {0, 0.25, 0.4, 0.5, 0.75, 1};
    for (int32_t kind = 0; kind < KINDS; kind++) {
        tlamp_layout l;
        tlamp_layout_init(&l, sizeof l);
        l.kind = kind;
        l.coverage = coverages[pick(6)];
        l.seed = pick(2) ? (uint32_t)pick(1 << 20) : 42u;
        l.retarget = pick(4) == 0;
        compare(&l, g);
    }
}

/* Where the device is not there, nothing is touched. */
static void refuse(void)
{
    const tlamp_geometry g = geometry(1000, 1000, 0, 0, 0, TLAMP_MASK_CAUSAL);
    uint64_t words[8], untouched[8];
    tlamp_layout l;
    tlamp_exec exec;
    tlamp_layout_report report = {.struct_size = sizeof report}, same = report;
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    tlamp_layout_init(&l, sizeof l);
    tlamp_exec_init(&exec, sizeof exec);
    memset(words, 0xa5, sizeof words);
    memcpy(untouched, words, sizeof words);
    exec.device = tlamp_num_devices();
    if (tlamp_layout_build_on(&l, &g, &exec, words, 8, &report, &err) != TLAMP_UNSUPPORTED_HARDWARE ||
        strcmp(err.field, "device") != 0)
        fail(&l, &g, "a device that is not there is not refused");
    exec.device = 0;
    if (tlamp_layout_build_on(&l, &g, &exec, words, 7, &report, &err) != TLAMP_INVALID_ARGUMENT ||
        strcmp(err.field, "count") != 0)
        fail(&l, &g, "too few words are not refused");
    if (memcmp(words, untouched, sizeof words) != 0 || memcmp(&report, &same, sizeof report) != 0)
        fail(&l, &g, "a refused call touched the words or the report");
}

int main(int argc, char **argv)
{
    const int count = argc > 1 ? atoi(argv[1]) : 300;
    if (tlamp_num_devices() == 0) {
        puts("skipped: no device that this library has code for");
        return 77;
    }
    refuse();
    const tlamp_geometry picked[] = {
        geometry(0, 0, 0, 0, 0, TLAMP_MASK_NONE), geometry(0, 300, 0, 0, 0, TLAMP_MASK_CAUSAL),
        geometry(8192, 8192, 0, 0, 0, TLAMP_MASK_CAUSAL), geometry(2000, 30000, 0, 0, 1, TLAMP_MASK_CAUSAL_TOP_LEFT),
        geometry(20000, 4000, 0, 0, 0, TLAMP_MASK_NONE)};
    enum { PICKED = sizeof picked / sizeof picked[0] };
    for (int i = 0; i < PICKED + count; i++) {
        const tlamp_geometry g = i < PICKED ? picked[i] : random_geometry();
        all_layouts(&g);
    }
    printf("%d layouts on %d geometries, %d failures\n", (int)KINDS, PICKED + count, failures);
    return failures != 0;
}
