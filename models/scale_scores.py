#!/usr/bin/env python3
"""Multiplies the scores of attention in a GGUF file by a factor: the weights of q_norm, which are float32, and nothing else.

    python3 models/scale_scores.py IN.gguf OUT.gguf FACTOR

A model whose queries are normed (Gemma 4) has scores of any size by this. What a cache format costs can then be measured by the size of
the scores (docs/gemma-4-caches.md).
"""
import array
import math
import pathlib
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
from random_gguf import F32, metadata  # noqa: E402


def tensors_of(data, at):
    """(name, values, kind, offset) of the tensors that are listed from `at` on, and where the list ends."""
    tensors = []
    for _ in range(struct.unpack_from("<Q", data, 8)[0]):
        length = struct.unpack_from("<Q", data, at)[0]
        name, at = data[at + 8:at + 8 + length].decode(), at + 8 + length
        n_dims = struct.unpack_from("<I", data, at)[0]
        *sizes, kind, offset = struct.unpack_from(f"<{n_dims}QIQ", data, at + 4)
        at += 4 + 8 * n_dims + 12
        tensors.append((name, math.prod(sizes), kind, offset))
    return tensors, at


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    data, factor = bytearray(open(sys.argv[1], "rb").read()), float(sys.argv[3])
    if data[:4] != b"GGUF":
        sys.exit(f"{sys.argv[1]} is no GGUF file")
    alignment, end = 32, 24
    for key, _, _, value, end in metadata(data):
        if key == "general.alignment":
            alignment = struct.unpack_from("<I", data, value)[0]
    tensors, end = tensors_of(data, end)
    first = -(-end // alignment) * alignment
    scaled = 0
    for name, n, kind, offset in tensors:
        if not name.endswith("attn_q_norm.weight"):
            continue
        if kind != F32:
            sys.exit(f"{name} is not float32")
        at = first + offset
        values = array.array("f", bytes(data[at:at + 4 * n]))
        data[at:at + 4 * n] = array.array("f", [factor * x for x in values]).tobytes()
        scaled += 1
    if not scaled:
        sys.exit(f"{sys.argv[1]} has no attn_q_norm.weight")
    open(sys.argv[2], "wb").write(data)
    print(f"{sys.argv[2]}: queries of {scaled} layers times {factor:g}")


if __name__ == "__main__":
    main()
