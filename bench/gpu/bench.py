"""The device path beside PyTorch's FlashAttention-2 and cuDNN, interleaved in one run, on the same random f16 tensors.

usage: bench.py gpubench.so [speed|table2|table18] [--quick] [--json FILE]

speed    TFLOP/s at 0, 25, 50, 75 and 100 % INT8 (row_rand), 1k to 16k tokens, causal and not
table2   TFLOP/s of HIGH, One, SpTrans and BigBird and their ratio to FlashAttention-2, laid out as TileMix's Table 2. KERNEL LEVEL:
         the attention kernel alone, where the paper times a whole model's prefill
table18  how far the output is from FlashAttention-2's, per layout and coverage (TileMix's Table 18)
Without a name: all three.

`call` is whole calls by the host's clock, launches and (for INT8) quantising included: amortised over four calls in a row, and one
by one with a wait after each. `kernel` is the attention kernel alone, the median by CUPTI. TFLOP/s count 4 B H L^2 d, halved for
causal. Ratios are the peer's time / ours; of calls the median over the rounds, with least and most.
"""

import ctypes
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

if len(sys.argv) < 2:
    sys.exit(__doc__)
torch.cuda.init()  # first: an OpenMP runtime that finds no context makes one whose waits sleep, tens of microseconds a call
torch.zeros(1, device="cuda")
lib = ctypes.CDLL(sys.argv[1])
lib.gpubench_open_layout.restype = ctypes.c_void_p
lib.gpubench_open_layout.argtypes = [ctypes.c_int] * 7 + [ctypes.c_char_p, ctypes.c_int]
lib.gpubench_run.argtypes = [ctypes.c_void_p] * 5
lib.gpubench_close.argtypes = [ctypes.c_void_p]
arguments = sys.argv[2:]
json_file = arguments.pop(arguments.index("--json") + 1) if "--json" in arguments else None
quick = "--quick" in arguments
names = [a for a in arguments if not a.startswith("--")]
COVERAGES = (25, 50, 75)


class Ours:
    """One plan of the library's on a case's tensors."""

    def __init__(self, case, layout, percent):
        batch, heads, kv_heads, length, d = case.shape
        self.case, self.o = case, torch.zeros_like(case.q)
        self.handle = lib.gpubench_open_layout(
            batch, heads, kv_heads, length, length, d, int(case.causal), layout.encode(), percent
        )
        if not self.handle:
            sys.exit(1)
        torch.cuda.synchronize()  # the library does not wait for PyTorch's stream

    def __call__(self):
        c = self.case
        if lib.gpubench_run(self.handle, c.q.data_ptr(), c.k.data_ptr(), c.v.data_ptr(), self.o.data_ptr()):
            sys.exit(1)

    def close(self):
        lib.gpubench_close(self.handle)


class Case:
    """Random tensors of one shape, and PyTorch's attention on them."""

    def __init__(self, shape, causal):
        batch, heads, kv_heads, length, d = self.shape = shape
        self.causal = causal
        torch.manual_seed(1)
        sizes = ((batch, heads, length, d), (batch, kv_heads, length, d), (batch, kv_heads, length, d))
        self.q, self.k, self.v = (torch.randn(n, device="cuda", dtype=torch.float16) for n in sizes)
        self.flops = 4 * batch * heads * length * length * d * (0.5 if causal else 1)
        self.text = f"{batch} x {heads}/{kv_heads} x {length}, d={d}, {'causal' if causal else 'full'}"

    def peer(self, backend):
        def run():
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(
                    self.q, self.k, self.v, is_causal=self.causal, enable_gqa=self.shape[1] != self.shape[2]
                )

        return run

    def fa2(self):
        return self.peer(SDPBackend.FLASH_ATTENTION)

    def record(self):
        return {"shape": list(self.shape), "causal": self.causal}


def timed(run, repeats, wait_after_each=False):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        run()
        if wait_after_each:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def kernel_times(runs, rounds=9):
    """Microseconds of the kernels of one call, by CUPTI: {run: {"quantise" or "attention": median}}, interleaved."""
    samples = {}
    for _ in range(rounds):
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


def warm(runs):
    for run in runs.values():
        for _ in range(3):
            run()


# ---- speed


def speed(case, rounds):
    peers = {"fa2": case.fa2(), "cudnn": case.peer(SDPBackend.CUDNN_ATTENTION)}
    mine = {f"{p} %": Ours(case, "row_rand", p) for p in (0, *COVERAGES, 100)}
    runs = {**peers, **mine}
    truth = peers["fa2"]().float()
    warm(runs)
    times, single = {name: [] for name in runs}, {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(timed(run, 4))
            single[name].append(timed(run, 2, wait_after_each=True))
    kernels = kernel_times(runs)
    print(case.text)
    records = []
    for name in runs:
        call, one = statistics.median(times[name]), statistics.median(single[name])
        attention = kernels[name]["attention"] * 1e-6
        r = {**case.record(), "run": name, "call_ms": call * 1e3, "single_call_ms": one * 1e3}
        r.update(kernel_ms=attention * 1e3, call_tflops=case.flops / call / 1e12)
        r.update(single_call_tflops=case.flops / one / 1e12, kernel_tflops=case.flops / attention / 1e12)
        line = f"  {name:>6}: call {r['call_tflops']:6.1f}  one by one {r['single_call_tflops']:6.1f}"
        line += f"  kernel {attention * 1e6:6.0f} us {r['kernel_tflops']:6.1f}"
        if name in mine:
            ratios = sorted(a / b for a, b in zip(times["fa2"], times[name]))
            r["call_ratio_fa2"] = statistics.median(ratios)
            r["kernel_ratio_fa2"] = kernels["fa2"]["attention"] * 1e-6 / attention
            r["kernel_ratio_cudnn"] = kernels["cudnn"]["attention"] * 1e-6 / attention
            r["quantise_us"] = kernels[name].get("quantise", 0)
            r["max_deviation_fa2"] = (mine[name].o.float() - truth).abs().max().item()
            line += f"  call x fa2 {r['call_ratio_fa2']:.3f} ({ratios[0]:.3f}-{ratios[-1]:.3f})"
            line += f"  kernel x fa2 {r['kernel_ratio_fa2']:.3f} x cudnn {r['kernel_ratio_cudnn']:.3f}"
            line += f"  quantise {r['quantise_us']:.0f} us  max |o - fa2| {r['max_deviation_fa2']:.1e}"
        records.append(r)
        print(line, flush=True)
    for run in mine.values():
        run.close()
    return records


def all_speed():
    main = [(1, 64, 64, 4096, 128), (1, 32, 32, 8192, 128)]
    more = [(4, 64, 64, 1024, 128), (2, 64, 64, 2048, 128), (1, 16, 16, 16384, 128)]
    more += [(1, 64, 64, 4096, 64), (1, 32, 8, 8192, 128)]
    records = []
    print("speed, TFLOP/s; share of INT8 by row_rand")
    for shape in main if quick else main + more:
        for causal in (False, True):
            records += speed(Case(shape, causal), 5 if quick else 9)
    return records


# ---- TileMix's Table 2


def table2():
    """8 sequences, 24 query and 8 KV heads of 128: the attention of LLaMA-3.2-3B-Instruct, as the paper has it."""
    lengths = (4096,) if quick else (1024, 2048, 4096, 8192, 16384)
    columns = [("FA2", None), ("HIGH", ("row_rand", 0)), ("One", ("row_rand", 100))]
    columns += [(f"SpT-{p}", ("sptrans", p)) for p in COVERAGES] + [(f"BB-{p}", ("bigbird", p)) for p in COVERAGES]
    print("\nTable 2's layouts at KERNEL LEVEL (no model around it): TFLOP/s, and FlashAttention-2's time / ours")
    print("causal, 8 x 24/8 heads, d=128".ljust(30) + "".join(f"{name:>14}" for name, _ in columns))
    records = []
    for length in lengths:
        case = Case((8, 24, 8, length, 128), True)
        runs = {name: Ours(case, *how) if how else case.fa2() for name, how in columns}
        warm(runs)
        kernels = kernel_times(runs, 7)
        line = f"L = {length}".ljust(30)
        for name, _ in columns:
            us = kernels[name]["attention"]
            ratio = kernels["FA2"]["attention"] / us
            line += f"{case.flops / us / 1e6:7.0f} {ratio:5.2f}x"
            record = {**case.record(), "run": name, "kernel_ms": us * 1e-3, "kernel_tflops": case.flops / us / 1e6}
            records.append({**record, "kernel_ratio_fa2": ratio})
        print(line, flush=True)
        for name, how in columns:
            if how:
                runs[name].close()
    return records


# ---- TileMix's Table 18


def table18():
    shape = (1, 16, 16, 4096, 128)
    print("\nTable 18: |o - FlashAttention-2's o|, largest and mean, random normal data")
    records = []
    for causal in (False, True):
        case = Case(shape, causal)
        truth = case.fa2()().float()
        print(f"{case.text}\n  {'layout':<14}" + "".join(f"{p:>13} % INT8   " for p in (0, *COVERAGES, 100)))
        for layout in ("band", "global", "row_rand", "align_sparse", "bigbird", "sptrans", "sptrans_scaled"):
            line = f"  {layout:<14}"
            for percent in (0, *COVERAGES, 100):
                run = Ours(case, layout, percent)
                run()
                difference = (run.o.float() - truth).abs()
                largest, mean = difference.max().item(), difference.mean().item()
                run.close()
                line += f"{largest:10.2e} {mean:9.2e} "
                record = {**case.record(), "layout": layout, "percent": percent}
                records.append({**record, "max_deviation_fa2": largest, "mean_deviation_fa2": mean})
            print(line, flush=True)
    return records


parts = {"speed": all_speed, "table2": table2, "table18": table18}
for name in names:
    if name not in parts:
        sys.exit(f"bench.py: {name} is none of {', '.join(parts)}")
print(torch.__version__, torch.cuda.get_device_name())
results = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
for name, part in parts.items():
    if not names or name in names:
        results[name] = part()
if json_file:
    with open(json_file, "w") as f:
        json.dump(results, f, indent=1)
