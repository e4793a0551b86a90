#!/usr/bin/env python3
"""Multiplies the scores of attention in a GGUF file by a factor: the weights of q_norm, which are float32, and nothing else.

    python3 models/scale_scores.py IN.gguf OUT.gguf FACTOR

A model whose queries are normed (Gemma 4) has scores of any size by this. What a cache format costs can then be measured by the size of
the scores (docs/gemma-4-caches.md).
"""
import array
import math
import struct
import sys

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of GGUF's types of values
STRING, ARRAY, F32 = 8, 9, 0


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, form):
        value = struct.unpack_from("<" + form, self.data, self.at)[0]
        self.at += struct.calcsize(form)
        return value

    def text(self):
        n = self.number("Q")
        self.at += n
        return self.data[self.at - n:self.at].decode()

    def value(self, kind):
        """Skips a value; numbers of 4 bytes are returned."""
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            inner, n = self.number("I"), self.number("Q")
            return [self.value(inner) for _ in range(n)]
        if SIZES[kind] == 4:
            return self.number("I")
        self.at += SIZES[kind]
        return None


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    data, factor = bytearray(open(sys.argv[1], "rb").read()), float(sys.argv[3])
    if data[:4] != b"GGUF":
        sys.exit(f"{sys.argv[1]} is no GGUF file")
    reader = Reader(data)
    reader.at = 8
    n_tensors, n_keys = reader.number("Q"), reader.number("Q")
    keys = {}
    for _ in range(n_keys):
        name = reader.text()
        keys[name] = reader.value(reader.number("I"))
    tensors = []
    for _ in range(n_tensors):
        name = reader.text()
        sizes = [reader.number("Q") for _ in range(reader.number("I"))]
        tensors.append((name, math.prod(sizes), reader.number("I"), reader.number("Q")))
    alignment = keys.get("general.alignment", 32)
    first = -(-reader.at // alignment) * alignment
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
