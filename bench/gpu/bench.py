"""Speed of the device path beside PyTorch's FlashAttention-2 and cuDNN, interleaved in one run.

usage: bench.py gpubench.so [--quick]

`call` is whole calls by the host's clock, launches and (for INT8) quantising included; `kernel` the attention kernel alone,
median by CUPTI. TFLOP/s count 4 B H L^2 d, halved for causal. Ratios are peer's time / ours; of calls the median over the
rounds, with least and most.
"""

import ctypes
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

torch.cuda.init()  # first: an OpenMP runtime that finds no context makes one whose waits sleep, tens of microseconds a call
torch.zeros(1, device="cuda")
lib = ctypes.CDLL(sys.argv[1])
lib.gpubench_open.restype = ctypes.c_void_p
lib.gpubench_run.argtypes = [ctypes.c_void_p] * 5
lib.gpubench_close.argtypes = [ctypes.c_void_p]
quick = "--quick" in sys.argv
PERCENTS = (0, 50, 75, 100)


def ours(shape, causal, percent, q, k, v, o):
    batch, heads, kv_heads, length, d = shape
    handle = lib.gpubench_open(batch, heads, kv_heads, length, length, d, int(causal), percent)
    if not handle:
        sys.exit(1)

    def run():
        if lib.gpubench_run(handle, q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr()):
            sys.exit(1)

    return run, handle


def peer(backend, causal, q, k, v):
    def run():
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])

    return run


def timed(run, repeats):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def kernel_times(runs):
    """Microseconds of the kernels of one call, by CUPTI: {run: {"quantise" or "attention": median}}, interleaved."""
    samples = {}
    for _ in range(9):
        for name, run in runs.items():
            torch.cuda.synchronize()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
                run()
                torch.cuda.synchronize()
            parts = {}
            for e in profile.key_averages():
                part = "quantise" if "quantise" in e.key else "attention"
                parts[part] = parts.get(part, 0) + e.device_time_total
            for part, us in parts.items():
                samples.setdefault(name, {}).setdefault(part, []).append(us)
    return {name: {part: statistics.median(x) for part, x in parts.items()} for name, parts in samples.items()}


def bench(shape, causal, rounds):
    batch, heads, kv_heads, length, d = shape
    torch.manual_seed(1)
    q = torch.randn(batch, heads, length, d, device="cuda", dtype=torch.float16)
    k = torch.randn(batch, kv_heads, length, d, device="cuda", dtype=torch.float16)
    v = torch.randn(batch, kv_heads, length, d, device="cuda", dtype=torch.float16)
    runs, handles, deviations = {}, [], {}
    runs["fa2"] = peer(SDPBackend.FLASH_ATTENTION, causal, q, k, v)
    runs["cudnn"] = peer(SDPBackend.CUDNN_ATTENTION, causal, q, k, v)
    truth = runs["fa2"]().float()
    for percent in PERCENTS:
        o = torch.zeros_like(q)
        runs[percent], handle = ours(shape, causal, percent, q, k, v, o)
        handles.append(handle)
        torch.cuda.synchronize()  # the library does not wait for PyTorch's stream
        runs[percent]()
        deviations[percent] = (o.float() - truth).abs().max().item()
    flops = 4 * batch * heads * length * length * d * (0.5 if causal else 1)
    times = {name: [] for name in runs}
    for name in runs:
        for _ in range(3):
            runs[name]()
    for _ in range(rounds):
        for name in runs:
            times[name].append(timed(runs[name], 4))
    mask = "causal" if causal else "full"
    print(f"{batch} x {heads}/{kv_heads} x {length}, d={d}, {mask}")
    kernels = kernel_times(runs)
    for name in runs:
        best, median = min(times[name]), statistics.median(times[name])
        line = f"  {name!s:>6}: call best {flops / best / 1e12:6.1f} median {flops / median / 1e12:6.1f} TFLOP/s"
        attention = kernels[name]["attention"]
        line += f"  kernel {attention:6.0f} us {flops / attention / 1e6:6.1f}"
        if name in PERCENTS:
            ratios = sorted(a / b for a, b in zip(times["fa2"], times[name]))
            line += f"  call x fa2 {statistics.median(ratios):.3f} ({ratios[0]:.3f}-{ratios[-1]:.3f})"
            line += f"  kernel x fa2 {kernels['fa2']['attention'] / attention:.3f}"
            line += f" x cudnn {kernels['cudnn']['attention'] / attention:.3f}"
            line += f"  quantise {kernels[name].get('quantise', 0):.0f} us  max |o - fa2| {deviations[name]:.1e}"
        print(line, flush=True)
    for handle in handles:
        lib.gpubench_close(handle)


print(torch.__version__, torch.cuda.get_device_name())
SHAPES = [(1, 64, 64, 4096, 128), (1, 32, 32, 8192, 128)]
MORE = [(1, 64, 64, 4096, 64), (1, 32, 8, 8192, 128), (4, 64, 64, 1024, 128), (1, 16, 16, 16384, 128)]
for shape in SHAPES if quick else SHAPES + MORE:
    for causal in (False, True):
        bench(shape, causal, 7 if quick else 11)
