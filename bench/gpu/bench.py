"""The device path beside PyTorch's FlashAttention-2 and cuDNN, interleaved in one run, on the same random tensors.

usage: bench.py gpubench.so [speed|problems|decode|overhead|quantise|table2|table18]... [--quick] [--int8 0,50,100] [--json FILE]

speed     TFLOP/s at 0, 25, 50, 75 and 100 % INT8 (row_rand; or those of --int8), 1k to 16k tokens, causal and not, head
          dimensions 128 and 64, grouped heads, bf16, packed sequences
problems  the same for what the general kernel runs: windows, softcap, a bias, d_v != d, other head dimensions, state f16
decode    few queries, many keys: all kernels of a call and the bytes of K and V that they read per second, beside
          FlashAttention-2, which splits keys, too; whole calls, complete on return; deviation of both from f32
overhead  what a call takes more than its kernels
quantise  bytes per second of the codes' launch, beside copying in device memory
table2    TFLOP/s of HIGH, One, SpTrans and BigBird and their ratio to FlashAttention-2, laid out as TileMix's Table 2. KERNEL
          LEVEL: the attention kernel alone, where the paper times a whole model's prefill
table18   how far the output is from FlashAttention-2's, per layout and coverage (TileMix's Table 18)
Without a name: all of them.

`call` is whole calls by the host's clock, launches and (for INT8) quantising included: amortised over four calls in a row, and one
by one with a wait after each. `kernel` is the attention kernel alone, the median by CUPTI. TFLOP/s count 2 (d + d_v) for each score
that is seen; causal, half of them. Ratios are the peer's time / ours; of calls the median over the rounds, with least and most.
"""

import ctypes
import json
import statistics
import sys
import time
import warnings

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

if len(sys.argv) < 2:
    sys.exit(__doc__)
warnings.filterwarnings("ignore", category=UserWarning)  # a peer that cannot run a problem says why, several times
torch.cuda.init()  # first: an OpenMP runtime that finds no context makes one whose waits sleep, tens of microseconds a call
torch.zeros(1, device="cuda")


class Description(ctypes.Structure):
    """As in gpubench.c."""

    _fields_ = [(name, ctypes.c_int32) for name in ("batch", "heads_q", "heads_k", "length", "d", "dv")]
    _fields_ += [(name, ctypes.c_int32) for name in ("queries", "codes", "bf16", "causal", "window_left", "state_f16", "bias", "percent")]
    _fields_ += [("softcap", ctypes.c_float), ("layout", ctypes.c_char_p), ("cu_seqlens", ctypes.POINTER(ctypes.c_int32))]


lib = ctypes.CDLL(sys.argv[1])
lib.gpubench_open.restype = ctypes.c_void_p
lib.gpubench_open.argtypes = [ctypes.POINTER(Description)]
lib.gpubench_run.argtypes = [ctypes.c_void_p] * 8
lib.gpubench_close.argtypes = [ctypes.c_void_p]
arguments = sys.argv[2:]


def option(name, default=None):
    return arguments.pop(arguments.index(name) + 1) if name in arguments else default


json_file = option("--json")
percents = [int(p) for p in option("--int8", "0,25,50,75,100").split(",")]
quick = "--quick" in arguments
names = [a for a in arguments if not a.startswith("--")]
COVERAGES = (25, 50, 75)


class Case:
    """Random tensors of one problem, and PyTorch's attention on them. lengths: of packed sequences; queries: where there are fewer
    than keys; codes: K and V are INT8 codes with a scale per 64 tokens, and PyTorch's what these stand for."""

    def __init__(self, heads=64, length=4096, d=128, causal=False, batch=1, kv_heads=None, dv=None, dtype="f16", lengths=None,
                 window=-1, softcap=0.0, bias=False, state16=False, queries=None, codes=False):
        self.kv_heads, self.dv = kv_heads or heads, dv or d
        self.heads, self.d, self.causal, self.window, self.softcap = heads, d, causal, window, softcap
        self.lengths, self.batch = lengths, len(lengths) if lengths else batch
        self.length = max(lengths) if lengths else length
        self.state16, self.bf16, self.queries = state16, dtype == "bf16", queries or self.length
        torch.manual_seed(1)
        kind = {"device": "cuda", "dtype": torch.bfloat16 if self.bf16 else torch.float16}

        def tensor(heads, d, tokens=length):
            return torch.randn((sum(lengths), heads, d) if lengths else (batch, heads, tokens, d), **kind)

        self.q = tensor(heads, d, self.queries)
        self.k, self.v = tensor(self.kv_heads, d), tensor(self.kv_heads, self.dv)
        self.codes = [self.quantise("k"), self.quantise("v")] if codes else None
        self.bias = torch.randn(1, 1, length, length, device="cuda") if bias else None
        each = lengths or [length] * batch
        if window >= 0:
            scores = sum(min(i, window) + 1 for n in each for i in range(n))
        elif queries:
            scores = batch * queries * length
        else:
            scores = sum(n * n for n in each) * (0.5 if causal else 1)
        self.flops = 2 * (d + self.dv) * heads * scores
        self.cu_seqlens = None
        if lengths:
            sums = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
            self.cu_seqlens = (ctypes.c_int32 * len(sums))(*sums)
            self.device_sums = torch.tensor(sums, dtype=torch.int32, device="cuda")
        tokens = f"{queries} of {length}" if queries else f"{self.length}"
        words = [f"{self.batch} x {heads}/{self.kv_heads} x {tokens}", f"d={d}" + (f"/{dv}" if dv else "")]
        words += ["causal" if causal else "full"]
        words += ["bf16"] if self.bf16 else []
        words += ["INT8 K and V"] if codes else []
        words += [f"packed, {sum(lengths)} tokens"] if lengths else []
        words += [f"window {window}"] if window >= 0 else []
        words += [f"softcap {softcap:g}"] if softcap else []
        words += (["bias"] if bias else []) + (["state f16"] if state16 else [])
        self.text = ", ".join(words)

    def description(self, layout, percent):
        return Description(self.batch, self.heads, self.kv_heads, self.length, self.d, self.dv,
                           self.queries if self.queries < self.length else 0, self.codes is not None, self.bf16, self.causal,
                           self.window, self.state16, self.bias is not None, percent, self.softcap, layout.encode(),
                           self.cu_seqlens)  # fmt: skip

    def quantise(self, name):
        """Codes and scales [batch, block, KV head] of a tensor, which becomes what they stand for; exact: in f32."""
        x = getattr(self, name)
        blocks = x.float().reshape(self.batch, self.kv_heads, -1, 64 * x.shape[3])
        scale = blocks.abs().amax(3, keepdim=True) / 127
        codes = torch.round(blocks / scale)
        setattr(self, f"exact_{name}", (codes * scale).reshape(x.shape))
        setattr(self, name, getattr(self, f"exact_{name}").to(x.dtype))
        return codes.to(torch.int8).reshape(x.shape), scale[..., 0].transpose(1, 2).contiguous()

    def output(self):
        return torch.zeros(*self.q.shape[:-1], self.dv, device="cuda", dtype=self.q.dtype)

    def sdpa(self, backend):
        bias = None if self.bias is None else self.bias.to(self.q.dtype)

        def run():
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(
                    self.q, self.k, self.v, bias, is_causal=self.causal, enable_gqa=self.heads != self.kv_heads
                )

        return run

    def flash(self):
        """FlashAttention-2 below SDPA, which knows neither windows nor packed sequences."""
        window = {"window_size_left": self.window, "window_size_right": 0} if self.window >= 0 else {}

        def run():
            if self.lengths:
                sums = self.device_sums
                return torch.ops.aten._flash_attention_forward(
                    self.q, self.k, self.v, sums, sums, self.length, self.length, 0.0, self.causal, False, **window
                )[0]
            q, k, v = (x.transpose(1, 2) for x in (self.q, self.k, self.v))
            return torch.ops.aten._flash_attention_forward(
                q, k, v, None, None, self.queries, self.length, 0.0, self.causal, False, **window
            )[0].transpose(1, 2)

        return run

    def peers(self):
        """Those that run it; with softcap or state f16 the same without. The first is what ratios are to."""
        if self.lengths or self.window >= 0:
            found = {"fa2": self.flash()}
        else:
            kinds = {"fa2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
            kinds["efficient"] = SDPBackend.EFFICIENT_ATTENTION
            found = {name: self.sdpa(kind) for name, kind in kinds.items()}
        for name in list(found):
            try:
                found[name]()
            except (RuntimeError, TypeError):
                del found[name]
        if "fa2" in found:
            found.pop("efficient", None)
        return found

    def record(self):
        return {"problem": self.text, "shape": [self.batch, self.heads, self.kv_heads, self.length, self.d], "causal": self.causal}


class Ours:
    """One plan of the library's on a case's tensors."""

    def __init__(self, case, layout, percent):
        self.case, self.o = case, case.output()
        self.handle = lib.gpubench_open(ctypes.byref(case.description(layout, percent)))
        if not self.handle:
            sys.exit(1)
        torch.cuda.synchronize()  # the library does not wait for PyTorch's stream

    def __call__(self):
        c = self.case
        bias = None if c.bias is None else c.bias.data_ptr()
        (k, k_scale), (v, v_scale) = c.codes or ((c.k, None), (c.v, None))
        scales = [None if x is None else x.data_ptr() for x in (k_scale, v_scale)]
        if lib.gpubench_run(self.handle, c.q.data_ptr(), k.data_ptr(), v.data_ptr(), *scales, bias, self.o.data_ptr()):
            sys.exit(1)

    def close(self):
        lib.gpubench_close(self.handle)


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
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        for _ in range(rounds):
            for run in runs.values():
                torch.cuda._sleep(1)  # its kernel says where a run begins
                torch.cuda.synchronize()
                run()
                torch.cuda.synchronize()
    kernels = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    samples, turn = {name: {} for name in runs}, -1
    for e in sorted(kernels, key=lambda e: e.time_range.start):
        if "spin_kernel" in e.name:
            turn += 1
            continue
        before = any(word in e.name for word in ("quantise", "survey", "mean", "Memcpy"))
        part, name = "quantise" if before else "attention", list(runs)[turn % len(runs)]
        of_round = samples[name].setdefault(part, {})
        of_round[turn] = of_round.get(turn, 0) + e.device_time_total
    return {name: {part: statistics.median(x.values()) for part, x in parts.items()} for name, parts in samples.items()}


def warm(runs):
    for run in runs.values():
        for _ in range(3):
            run()


# ---- speed


def speed(case, percents, rounds):
    peers = case.peers()
    mine = {f"{p} %": Ours(case, "row_rand", p) for p in percents}
    runs = {**peers, **mine}
    first = next(iter(peers))
    truth = peers[first]().float()
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
        line = f"  {name:>9}: call {r['call_tflops']:6.1f}  one by one {r['single_call_tflops']:6.1f}"
        line += f"  kernel {attention * 1e6:6.0f} us {r['kernel_tflops']:6.1f}"
        if name in mine:
            ratios = sorted(a / b for a, b in zip(times[first], times[name]))
            r[f"call_ratio_{first}"] = statistics.median(ratios)
            line += f"  call x {first} {statistics.median(ratios):.3f} ({ratios[0]:.3f}-{ratios[-1]:.3f})  kernel"
            for peer in peers:
                r[f"kernel_ratio_{peer}"] = kernels[peer]["attention"] * 1e-6 / attention
                line += f" x {peer} {r[f'kernel_ratio_{peer}']:.3f}"
            r["quantise_us"] = kernels[name].get("quantise", 0)
            line += f"  quantise {r['quantise_us']:.0f} us"
            if not case.softcap:
                r["max_deviation"] = (mine[name].o.float() - truth).abs().max().item()
                line += f"  max |o - {first}| {r['max_deviation']:.1e}"
        records.append(r)
        print(line, flush=True)
    for run in mine.values():
        run.close()
    return records


MIXED = [4096, 300, 1500, 77, 2048, 1000, 3000, 513, 128, 3700]


def all_speed():
    cases = [{"heads": 64, "length": 4096}, {"heads": 32, "length": 8192}]
    if not quick:
        cases += [{"heads": 64, "length": 1024, "batch": 4}, {"heads": 64, "length": 2048, "batch": 2}]
        cases += [{"heads": 16, "length": 16384}]
        cases += [{**c, "d": 64} for c in cases]
        cases += [{"heads": 32, "kv_heads": 8, "length": n, "batch": b} for n, b in ((1024, 8), (4096, 2), (8192, 1))]
        cases += [{"heads": 32, "kv_heads": 8, "length": 4096, "batch": 2, "d": 64}]
        cases += [{"heads": 64, "length": 4096, "dtype": "bf16"}, {"heads": 64, "length": 4096, "d": 64, "dtype": "bf16"}]
        cases += [{"heads": 32, "lengths": MIXED}, {"heads": 32, "kv_heads": 8, "lengths": MIXED, "dtype": "bf16"}]
        cases += [{"heads": 32, "lengths": MIXED, "d": 64}, {"heads": 64, "length": 1024}, {"heads": 16, "length": 1024}]
    print("speed, TFLOP/s; share of INT8 by row_rand")
    return [r for case in cases for causal in (False, True) for r in speed(Case(causal=causal, **case), percents, 5)]


def all_problems():
    cases = [{"d": 96}, {"d": 96, "causal": True}, {"d": 256, "heads": 32}, {"d": 256, "heads": 32, "causal": True}]
    cases += [{"causal": True, "window": 1023, "heads": 32, "length": 8192}, {"causal": True, "window": 1023, "d": 64}]
    cases += [{"bias": True}, {"softcap": 30.0, "causal": True}, {"state16": True, "causal": True}]
    cases += [{"d": 192, "dv": 128, "heads": 32, "causal": True}, {"d": 80}, {"d": 112, "causal": True, "dtype": "bf16"}]
    print("\nproblems of the general kernel, TFLOP/s")
    return [r for case in cases for r in speed(Case(**case), [p for p in percents if p in (0, 100)], 3)]


# ---- decoding


def all_decode():
    cases = [{"batch": b, "length": n} for b, n in ((1, 1024), (1, 4096), (1, 16384), (1, 65536), (8, 4096), (32, 2048), (32, 8192))]
    cases += [{"length": 16384, "dtype": "bf16"}, {"length": 16384, "queries": 4}, {"length": 16384, "queries": 16}]
    cases += [{"codes": True, **c} for c in ({"length": 16384}, {"length": 65536}, {"batch": 32, "length": 8192})]
    if not quick:
        cases += [{"kv_heads": 32, **c} for c in ({"length": 1024}, {"length": 8192}, {"batch": 4, "length": 2048}, {"batch": 32, "length": 4096})]
        cases += [{"heads": 64, **c} for c in ({"length": 2048}, {"length": 32768}, {"batch": 16, "length": 4096})]
        cases += [{"d": 64, **c} for c in ({"length": 1024}, {"length": 4096}, {"length": 16384}, {"batch": 16, "length": 8192})]
        cases += [{"d": 64, "kv_heads": 32, **c} for c in ({"length": 8192}, {"batch": 32, "length": 2048, "dtype": "bf16"})]
        cases += [{"codes": True, **c} for c in ({"length": 4096}, {"length": 65536, "dtype": "bf16"}, {"d": 64, "batch": 16, "length": 8192})]
        cases += [{"heads": 8, "kv_heads": 1, "length": 32768}, {"batch": 8, "length": 8192, "queries": 2}]
        cases += [{"batch": 8, "kv_heads": 32, "length": 4096, "queries": 8, "dtype": "bf16"}]
    print("\ndecoding: microseconds of all kernels of a call (TB/s of K and V) and of the call; largest deviation from f32")
    return [decode(Case(**{"heads": 32, "kv_heads": 8, "queries": 1, "causal": c.get("queries", 1) > 1, **c})) for c in cases]


def exact(case):
    """The output in f32, by PyTorch's products."""
    q = case.q.float().reshape(case.batch, case.kv_heads, -1, case.d)  # heads that share a KV head are rows
    k, v = (case.exact_k, case.exact_v) if case.codes else (case.k.float(), case.v.float())
    scores = q @ k.transpose(2, 3) / case.d**0.5
    if case.causal:
        token = torch.arange(q.shape[2], device="cuda")[:, None] % case.queries
        hidden = torch.arange(case.length, device="cuda")[None] > token + case.length - case.queries
        scores.masked_fill_(hidden, float("-inf"))
    return (torch.softmax(scores, 3) @ v).reshape(case.output().shape)


def decode(case):
    mine = Ours(case, "row_rand", 0)
    runs = {"fa2": case.flash(), "ours": mine}
    truth = exact(case)
    warm(runs)
    deviation = {"fa2": (runs["fa2"]().float() - truth).abs().max().item(), "ours": (mine.o.float() - truth).abs().max().item()}
    del truth
    kernels = {name: sum(parts.values()) for name, parts in kernel_times(runs, 15).items()}
    calls = {name: [] for name in runs}
    for _ in range(30):
        for name, run in runs.items():
            calls[name].append(timed(run, 1, wait_after_each=True) * 1e6)
    r, line = case.record(), f"  {case.text:<52}"
    for name in runs:
        call, size = statistics.median(calls[name]), 1e-6 if case.codes and name == "ours" else 2e-6
        rate = (case.k.numel() + case.v.numel()) * size / kernels[name]
        r[name] = {"kernels_us": kernels[name], "tb_per_s": rate, "call_us": call, "max_deviation": deviation[name]}
        line += f"{name} {kernels[name]:6.1f} ({rate:.2f}), call {call:4.0f}, {deviation[name]:.1e};  "
    r["kernel_ratio"], r["call_ratio"] = (r["fa2"][x] / r["ours"][x] for x in ("kernels_us", "call_us"))
    print(f"{line}kernels x {r['kernel_ratio']:.2f}, call x {r['call_ratio']:.2f}", flush=True)
    mine.close()
    return r


# ---- what a call costs beside its kernels


def overhead():
    cases = [{"heads": 1, "length": 128}, {"heads": 32, "length": 1024}, {"heads": 1, "length": 128, "d": 96}]
    cases += [{"heads": 4, "lengths": [128] * 32}]
    print("\noverhead, microseconds: from call to return, less its kernels (and copies)")
    records = []
    for case in map(lambda c: Case(**c), cases):
        for percent in (0, 100):
            run = Ours(case, "row_rand", percent)
            warm({"": run})
            times = []
            for _ in range(200):
                start = time.perf_counter()
                run()  # complete on return
                times.append(time.perf_counter() - start)
            kernels = sum(kernel_times({"run": run}, 20)["run"].values())
            r = {**case.record(), "percent": percent, "call_us": statistics.median(times) * 1e6, "kernels_us": kernels}
            records.append(r)
            print(f"  {case.text}, {percent} %: call {r['call_us']:.1f} (least {min(times) * 1e6:.1f}), kernels {kernels:.1f}, "
                  f"more {r['call_us'] - kernels:.1f}", flush=True)  # fmt: skip
            run.close()
    return records


def quantise():
    print("\nquantise: Q and K of a call to codes, GB/s of all that is read and written; beside copying 256 MiB")
    records = []
    for words in ({"heads": 64, "length": 8192}, {"heads": 32, "length": 8192}, {"heads": 64, "length": 8192, "d": 96}):
        case = Case(**words)
        source = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        run = Ours(case, "row_rand", 100)
        runs = {"codes": run, "copy": lambda: target.copy_(source)}
        warm(runs)
        us = kernel_times(runs)
        codes, copy = us["codes"]["quantise"], sum(us["copy"].values())
        operands = case.q.numel() + case.k.numel()
        rate, limit = 3e-3 * operands / codes, 2e-3 * source.numel() / copy
        records.append({**case.record(), "quantise_us": codes, "gb_per_s": rate, "copy_gb_per_s": limit})
        share = codes / (codes + us["codes"]["attention"])
        print(f"  {case.text}: {operands * 2 >> 20} MiB in {codes:.1f} us, {rate:.0f} GB/s; copy {limit:.0f}: "
              f"{rate / limit:.2f}; of the call {100 * share:.1f} %", flush=True)  # fmt: skip
        run.close()
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
        case = Case(24, length, causal=True, batch=8, kv_heads=8)
        runs = {name: Ours(case, *how) if how else case.sdpa(SDPBackend.FLASH_ATTENTION) for name, how in columns}
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
    print("\nTable 18: |o - FlashAttention-2's o|, largest and mean, random normal data")
    records = []
    for causal in (False, True):
        case = Case(16, 4096, causal=causal)
        truth = case.sdpa(SDPBackend.FLASH_ATTENTION)().float()
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


parts = {"speed": all_speed, "problems": all_problems, "decode": all_decode, "overhead": overhead, "quantise": quantise}
parts.update(table2=table2, table18=table18)
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
