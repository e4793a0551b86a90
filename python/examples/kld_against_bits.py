#!/usr/bin/env python3
"""Draws what cache formats cost on your model and your text: divergence from the f16 cache against bits a value.

    python kld_against_bits.py model.gguf text.txt --out kld.png
"""
import argparse
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

import ridge  # noqa: E402

# %% What to compare
parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model", help="GGUF file or Hugging Face directory")
parser.add_argument("text", type=pathlib.Path, help="a text like those that the model will read")
parser.add_argument("--formats", default="q8_0,rotor-4,q4_0,rotor-3",
                    help="comma list of caches as `ridge eval kld --kv` takes it")
parser.add_argument("--ctx", type=int, default=512, help="tokens of a window")
parser.add_argument("--chunks", type=int, default=8, help="windows; 0: the whole text")
parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("kld.png"))
args = parser.parse_args()

# %% Measure: all formats run beside f16, window by window
with ridge.Model(args.model) as model:
    rows = model.kld(args.text.read_text(), args.formats, n_ctx=args.ctx, max_chunks=args.chunks,
                     on_progress=lambda done, total: print(f"\r{100 * done // total} %", end="", file=sys.stderr))
    name = model.info.name
print(file=sys.stderr)

# %% A table
print(f"{'format':16} {'bits':>6} {'KLD':>10} {'error':>9} {'PPL':>9} {'same top':>9}")
for row in rows:
    print(f"{row.format:16} {row.bits:6.2f} {row.kld:10.6f} {row.kld_error:9.6f} {row.ppl:9.3f} {row.same_top:9.1%}")

# %% A figure: lower and further left is better
figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
axes.errorbar([row.bits for row in rows], [row.kld for row in rows], yerr=[2 * row.kld_error for row in rows],
              fmt="o", capsize=3, color="#1f5fa8")
for row in rows:
    axes.annotate(row.format, (row.bits, row.kld), textcoords="offset points", xytext=(7, 5), fontsize=9)
axes.set_yscale("log")
axes.set_xlim(min(row.bits for row in rows) - 0.5, max(row.bits for row in rows) + 1)
axes.set_xlabel("bits a cached value at 4096 tokens")
axes.set_ylabel("KL divergence from f16 (nats)")
axes.set_title(f"{name}: {rows[0].n_scored} tokens of {args.text.name}")
axes.grid(True, which="both", alpha=0.25)
figure.savefig(args.out, dpi=150)
print(f"figure: {args.out}")
