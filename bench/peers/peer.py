"""The protocol of README.md for peers written in Python."""

import os
import sys
import time
from dataclasses import dataclass

import numpy as np


@dataclass
class Shape:
    directory: str
    b: int
    hq: int
    hk: int
    q: int
    k: int
    d: int
    dv: int
    dtype: str
    causal: bool
    threads: int

    def read(self, name):
        """A tensor as it lies in its file, [batch][token][head][dim]: float32, float16, or uint16 for bf16."""
        heads, tokens = (self.hq, self.q) if name == "q" else (self.hk, self.k)
        dtype = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}[self.dtype]
        dim = self.dv if name == "v" else self.d
        return np.fromfile(f"{self.directory}/{name}", dtype).reshape(self.b, tokens, heads, dim)


class No(Exception):
    """Why a peer, or a shape, is not run."""


def widen(bf16):
    """uint16 holding bf16, as float32."""
    return (bf16.astype(np.uint32) << 16).view(np.float32)


def serve(hello, open_shape):
    """hello(threads) gives the version; open_shape(shape) gives (kernel, run, output): run() computes, output() is the last
    result as a float32 array [batch][token][head][dim]. Either may raise: its text is the reason."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to stderr
    threads, shape, run, output = 1, None, None, None
    for line in iter(sys.stdin.readline, ""):
        what, *words = line.split()
        facts = dict(word.split("=", 1) for word in words if "=" in word)
        try:
            answer = ""
            if what == "hello":
                threads = int(facts["threads"])
                answer = hello(threads)
            elif what == "open":
                numbers = {name: int(facts[name]) for name in ("b", "hq", "hk", "q", "k", "d", "dv")}
                shape = Shape(words[0], **numbers, dtype=facts["dtype"], causal=facts["causal"] == "1", threads=threads)
                answer, run, output = open_shape(shape)
            elif what == "check":
                run()
                np.ascontiguousarray(output(), dtype=np.float32).tofile(f"{shape.directory}/o")
            elif what == "time":
                times = int(words[0])
                if times > 1:
                    run()
                start = time.perf_counter()
                for _ in range(times):
                    run()
                answer = f"{time.perf_counter() - start:.9f}"
            elif what == "close":
                run = output = None
            else:
                raise No("unknown request")
            reply = f"ok {answer}"
        except Exception as error:  # whatever the library says is the reason
            text = " ".join(str(error).split()) or type(error).__name__
            print(f"{line.strip()}: {text}", file=sys.stderr, flush=True)
            reply = f"no {text[:200]}"
        out.write(reply.replace("\n", " ") + "\n")
