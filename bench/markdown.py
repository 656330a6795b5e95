#!/usr/bin/env python3
"""Markdown tables from what `tilelamp bench prefill|decode|quant|peak --json` prints.

usage: markdown.py RESULT.json                     to the terminal
       markdown.py RESULT.json FILE.md NAME        into FILE.md, between <!-- NAME --> and <!-- /NAME -->
"""

import json
import re
import sys


def number(x, digits):
    return "–" if x is None else f"{x:.{digits}f}"


def milliseconds(x):
    return "–" if x is None else f"{x:.3f}" if x < 10 else f"{x:.1f}"


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join(["---"] * 2 + ["---:"] * (len(header) - 2)) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def peaks(data):
    units = {"gflops": "GFLOP/s", "gops": "GOP/s", "gelems": "Gelem/s", "gbs": "GB/s"}
    parts = []
    for name, value in data["peak"].items():
        what, unit, *one = name.split("_")
        if value is not None and unit in units:
            parts.append(f"{what}{' (1 thread)' if one else ''} {value:.4g} {units[unit]}")
    return parts


def describe(data):
    machine, results = data["machine"], data["results"]
    threads = f", measured with {results[0]['threads']}" if results else ""
    lines = [f"{machine['processor']}, {machine['threads']} processors{threads}; kernels up to {machine['isa']}; "
             f"{machine['compiler'].split(' (')[0]}.", "", "Peaks: " + ", ".join(peaks(data)) + "."]
    if data.get("peers"):
        versions = [f"{p['name']} ({p['version'] or p['reason']})" for p in data["peers"]]
        lines += ["", "Peers: " + ", ".join(versions) + "."]
    return lines + [""]


def rate_of(result):
    if result.get("unit") == "Gelem/s":
        return f"{number(result['gflops'], 2)} ({number(result.get('gbs'), 1)} GB/s)"
    if "gbs" in result:
        return number(result["gbs"], 1)
    return number(result["gflops"], 0)


def results(data):
    """A row for each mode; a column for each peer that ran somewhere: its time over ours."""
    rows, last = [], None
    peers = [p["name"] for p in data.get("peers", [])
             if any(r["peers"].get(p["name"], {}).get("ratio") for r in data["results"])]
    unit = data["results"][0].get("unit", "GB/s" if "gbs" in data["results"][0] else "GFLOP/s")
    for r in data["results"]:
        share = "–" if r["roofline_fraction"] is None else f"{100 * r['roofline_fraction']:.0f} %"
        spread = f"{milliseconds(r['ms_median'])} ({milliseconds(r['ms_min'])}–{milliseconds(r.get('ms_max'))})"
        row = ["" if r["shape"] == last else f"`{r['shape']}`", f"`{r['mode']}`", spread, rate_of(r), share]
        rows.append(row + [number(r["peers"].get(p, {}).get("ratio"), 2) for p in peers])
        last = r["shape"]
    return table(["shape", "mode", "ms, median (min–max)", unit, "of bound"] + [f"{p} / ours" for p in peers], rows)


def peer_times(data):
    seen, rows = set(), []
    for r in data["results"]:
        if r["shape"] in seen:
            continue
        seen.add(r["shape"])
        for name, p in r["peers"].items():
            if p["ratio"] is not None:
                spread = f"{milliseconds(p['ms_median'])} ({milliseconds(p['ms_min'])}–{milliseconds(p['ms_max'])})"
                rows.append([f"`{r['shape']}`", name, spread, f"{p['rel_l2_error']:.1e}", p["kernel"]])
    return table(["shape", "peer", "ms, median (min–max)", "relative error", "kernel"], rows) if rows else []


def skipped(data):
    reasons = {}
    for s in data.get("skipped", []):
        reasons.setdefault(s["reason"], set()).add(s["mode"] or s["shape"])
    for r in data["results"]:
        for name, p in r["peers"].items():
            if p["ratio"] is None:
                reasons.setdefault(p["reason"], set()).add(name)
    return [f"- not run: {', '.join(sorted(names))}: {reason}" for reason, names in reasons.items()]


def document(data):
    lines = describe(data)
    checked = any("passed" in r for r in data["results"])  # peaks are in the description
    for part in (results(data) if checked else [], skipped(data), peer_times(data)):
        lines += part + [""] if part else []
    return "\n".join(lines)


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"{path}: {getattr(error, 'strerror', None) or 'is no text'}")


def main():
    if len(sys.argv) not in (2, 4):
        sys.exit(__doc__)
    try:
        text = document(json.loads(read(sys.argv[1])))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        sys.exit(f"{sys.argv[1]}: is not what `tilelamp bench prefill|decode|quant|peak --json` prints")
    if len(sys.argv) == 2:
        print(text)
        return
    path, name = sys.argv[2:]
    whole = read(path)
    new, found = re.subn(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", lambda m: f"{m[1]}\n{text}\n{m[2]}", whole, flags=re.S)
    if not found:
        sys.exit(f"{path}: there is no <!-- {name} --> with a <!-- /{name} --> behind it")
    with open(path, "w") as file:
        file.write(new)


main()
