#!/usr/bin/env python3
"""Writes weight_blocks.json: blocks of GGUF weight types and their values as the Python package gguf decodes them (pip
install gguf).

Per type: where scales stand (`scales`: byte, bits to keep, bits to set); some blocks with random codes and their
values, float32 in hex; SHA-256 of the values of 2048 random blocks, in which every code occurs. Random bytes are the
low bytes of SplitMix64 with seed 1.
"""

import hashlib
import json
import pathlib

import gguf
import numpy as np

D = [0x66, 0x2E]  # fp16 0.1
D_MIN = [0x23, 0xB1]  # fp16 -0.16
SCALES = {"Q2_K": {80: D, 82: D_MIN}, "Q3_K": {108: D}, "MXFP4": {0: [120]}, "IQ1_M": {}}


def random_bytes(n):
    mask, state = (1 << 64) - 1, 1
    out = bytearray()
    for _ in range(n):
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        out.append((z ^ (z >> 31)) & 0xFF)
    return np.frombuffer(out, dtype=np.uint8)


def entry(name):
    kind = gguf.GGMLQuantizationType[name]
    group, size = gguf.GGML_QUANT_SIZES[kind]
    scales = [(first + i, 0, byte) for first, half in SCALES.get(name, {0: D}).items() for i, byte in enumerate(half)]
    if name == "IQ1_M":  # the fp16 number is in the top bits of four 16-bit words
        scales = [(49 + 2 * i, 0x0F, (D[i // 2] >> (4 * (i % 2)) & 0xF) << 4) for i in range(4)]
    blocks = random_bytes(2048 * size).reshape(2048, size).copy()
    for at, keep, bits in scales:
        blocks[:, at] = blocks[:, at] & keep | bits
    values = gguf.quants.dequantize(blocks, kind).astype("<f4")
    assert np.isfinite(values).all()
    n = 2 if group == 256 else 4
    return {"name": name.lower(), "gguf_type": int(kind), "group": group, "block_bytes": size, "scales": scales,
            "blocks": blocks[:n].tobytes().hex(),
            "values": values[:n].tobytes().hex(), "sha256": hashlib.sha256(values.tobytes()).hexdigest()}


def main():
    names = ["Q2_K", "Q3_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS",
             "MXFP4"]
    text = ",\n".join(json.dumps(entry(name)) for name in names)
    pathlib.Path(__file__).with_suffix(".json").write_text(
        f'{{"source": "gguf {gguf_version()}", "types": [\n{text}\n]}}\n', encoding="utf-8")


def gguf_version():
    import importlib.metadata
    return importlib.metadata.version("gguf")


if __name__ == "__main__":
    main()
