/* Devices by number: each of them gives the same bits, the one after the last is refused, and so is every one where there is
 * none; a refused call touches no output. Usage: device_numbers [none], none where the runtime was told to see no device. */
#include <stdio.h>
#include <string.h>

#include "tilelamp/tilelamp.h"

enum { L = 70, D = 24, N = L * D, UNTOUCHED = 0x5a };

static float q[N], k[N], v[N], o[N];
static int failures;

static void expect(int ok, const char *what, int device)
{
    if (ok) return;
    printf("FAIL device %d: %s\n", device, what);
    failures++;
}

static tlamp_status run(int32_t device, tlamp_memory memory, tlamp_error *err)
{
    tlamp_problem p;
    tlamp_tensors t;
    tlamp_exec e;
    tlamp_problem_init(&p, sizeof p);
    tlamp_tensors_init(&t, sizeof t);
    tlamp_exec_init(&e, sizeof e);
    p.max_seqlen_q = p.max_seqlen_k = L;
    p.num_heads_q = p.num_heads_k = 1;
    p.head_dim_qk = p.head_dim_v = D;
    p.mask = TLAMP_MASK_CAUSAL;
    (void)tlamp_set_strides(&p, TLAMP_TENSOR_BSHD, NULL);
    t.q = q;
    t.k = k;
    t.v = v;
    t.o = o;
    e.device = device;
    e.memory = memory;
    memset(o, UNTOUCHED, sizeof o);
    return tlamp_attention(&p, &t, &e, err);
}

static void expect_refused(int32_t device, tlamp_memory memory)
{
    static unsigned char untouched[sizeof o];
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    memset(untouched, UNTOUCHED, sizeof untouched);
    const tlamp_status status = run(device, memory, &err);
    expect(status == TLAMP_UNSUPPORTED_HARDWARE && strcmp(err.field, "device") == 0, tlamp_status_string(status),
           device);
    expect(memcmp(o, untouched, sizeof o) == 0, "an output was touched", device);
}

int main(int argc, char **argv)
{
    const int none = argc > 1 && strcmp(argv[1], "none") == 0;
    const int32_t devices = tlamp_num_devices();
    uint32_t state = 1;
    float *const inputs[] = {q, k, v};
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < N; i++) {
            state = state * 1664525u + 1013904223u;
            inputs[t][i] = (float)(state >> 8) * 0x1p-23f - 1.f;
        }
    if (none) expect(devices == 0, "is there all the same", 0);
    if (!none && devices == 0) {
        puts("skipped: no device that this library has code for");
        return 77;
    }
    static float first[N];
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    for (int32_t d = 0; d < devices; d++) {
        expect(run(d, TLAMP_MEMORY_HOST, &err) == TLAMP_OK, err.text, d);
        if (d == 0) memcpy(first, o, sizeof o);
        expect(memcmp(o, first, sizeof o) == 0, "other bits than device 0", d);
    }
    expect_refused(devices, TLAMP_MEMORY_HOST);
    expect_refused(devices + 1000, TLAMP_MEMORY_DEVICE);
    if (none) expect_refused(-1, TLAMP_MEMORY_DEVICE);
    printf("%d devices, %d failures\n", (int)devices, failures);
    return failures != 0;
}
