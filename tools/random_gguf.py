#!/usr/bin/env python3
"""Writes a GGUF file of random weights at the shape of a published model of experts, for speed alone.

    tools/random_gguf.py [--layers N] SHAPE VOCAB.gguf OUT.gguf

Other engines read the file too, so that both can be timed on the same bytes. The tokenizer is VOCAB's, and so is the size of
the vocabulary. SHAPE: qwen3-30b-a3b (Q4_0), gpt-oss-120b (experts in MXFP4, others in Q8_0), tiny (Q4_0, for tests).
"""
import argparse
import math
import random
import struct

F32, Q4_0, Q8_0, MXFP4 = 0, 2, 8, 39
BLOCK_BYTES = {F32: 128, Q4_0: 18, Q8_0: 34, MXFP4: 17}  # of 32 values
SHAPES = {
    "qwen3-30b-a3b": dict(arch="qwen3moe", layers=48, d=2048, heads=32, kv_heads=4, head_dim=128, experts=128, used=8, d_ff=768, rope=1e6),
    "gpt-oss-120b": dict(arch="gpt-oss", layers=36, d=2880, heads=64, kv_heads=8, head_dim=64, experts=128, used=4, d_ff=2880, rope=1.5e5),
    "tiny": dict(arch="qwen3moe", layers=2, d=64, heads=4, kv_heads=2, head_dim=32, experts=8, used=2, d_ff=32, rope=1e4),
}
FIXED_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of GGUF's kinds of values
STRING, ARRAY = 8, 9


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def field(key, value):
    if isinstance(value, str):
        return text(key) + struct.pack("<I", STRING) + text(value)
    if isinstance(value, float):
        return text(key) + struct.pack("<If", 6, value)
    return text(key) + struct.pack("<II", 4, value)


def end_of(kind, data, at):
    """Where a value that begins at `at` ends."""
    if kind == STRING:
        return at + 8 + struct.unpack_from("<Q", data, at)[0]
    if kind != ARRAY:
        return at + FIXED_SIZES[kind]
    of, n = struct.unpack_from("<IQ", data, at)
    at += 12
    if of in FIXED_SIZES:
        return at + n * FIXED_SIZES[of]
    for _ in range(n):
        at = end_of(of, data, at)
    return at


def metadata(data):
    """The fields of a GGUF file: (key, where the field begins, kind of the value, where the value begins, where it ends)."""
    at = 24
    for _ in range(struct.unpack_from("<Q", data, 16)[0]):
        start, length = at, struct.unpack_from("<Q", data, at)[0]
        kind = struct.unpack_from("<I", data, at + 8 + length)[0]
        value = at + 12 + length
        at = end_of(kind, data, value)
        yield data[start + 8:start + 8 + length].decode(), start, kind, value, at


def tokenizer_of(path):
    """The tokenizer's fields of a GGUF file as they are there, and how many tokens it has."""
    with open(path, "rb") as file:
        data = file.read()
    fields, n_tokens = [], 0
    for key, start, _, value, end in metadata(data):
        if key.startswith("tokenizer."):
            fields.append(data[start:end])
        if key == "tokenizer.ggml.tokens":
            n_tokens = struct.unpack_from("<Q", data, value + 4)[0]
    return fields, n_tokens


def fields_of(shape, n_tokens):
    arch = shape["arch"]
    values = {"block_count": shape["layers"], "context_length": 32768, "embedding_length": shape["d"], "feed_forward_length": shape["d_ff"],
              "attention.head_count": shape["heads"], "attention.head_count_kv": shape["kv_heads"], "attention.key_length": shape["head_dim"],
              "attention.value_length": shape["head_dim"], "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": float(shape["rope"]),
              "expert_count": shape["experts"], "expert_used_count": shape["used"], "expert_feed_forward_length": shape["d_ff"], "vocab_size": n_tokens}
    if arch == "gpt-oss":
        values |= {"attention.sliding_window": 128, "rope.dimension_count": shape["head_dim"], "rope.scaling.type": "yarn",
                   "rope.scaling.factor": 32.0, "rope.scaling.original_context_length": 4096}
    return [field("general.architecture", arch), field("general.name", "random weights"), *(field(f"{arch}.{k}", v) for k, v in values.items())]


def tensors_of(shape, n_tokens):
    """(name, dimensions, kind), innermost dimension first."""
    d, head_dim, experts, d_ff, is_oss = shape["d"], shape["head_dim"], shape["experts"], shape["d_ff"], shape["arch"] == "gpt-oss"
    kind, of_experts = (Q8_0, MXFP4) if is_oss else (Q4_0, Q4_0)
    tensors = [("token_embd.weight", [d, n_tokens], kind), ("output_norm.weight", [d], F32), ("output.weight", [d, n_tokens], kind)]

    def add(name, dims, of):
        tensors.append((f"{block}.{name}.weight", dims, of))
        if is_oss and "norm" not in name:
            tensors.append((f"{block}.{name}.bias", dims[1:], F32))

    for i in range(shape["layers"]):
        block = f"blk.{i}"
        q, kv = shape["heads"] * head_dim, shape["kv_heads"] * head_dim
        for name, dims in (("attn_q", [d, q]), ("attn_k", [d, kv]), ("attn_v", [d, kv]), ("attn_output", [q, d])):
            add(name, dims, kind)
        add("ffn_gate_inp", [d, experts], F32)
        for name, dims in (("ffn_gate_exps", [d, d_ff, experts]), ("ffn_up_exps", [d, d_ff, experts]), ("ffn_down_exps", [d_ff, d, experts])):
            add(name, dims, of_experts)
        norms = {"attn_norm": d, "post_attention_norm": d} if is_oss else {"attn_norm": d, "ffn_norm": d, "attn_q_norm": head_dim, "attn_k_norm": head_dim}
        for name, n in norms.items():
            add(name, [n], F32)
        if is_oss:
            tensors.append((f"{block}.attn_sinks.weight", [shape["heads"]], F32))
    return tensors


def n_bytes(dims, kind):
    return math.prod(dims) * BLOCK_BYTES[kind] // 32


def random_blocks(rng, kind):
    """A mebibyte or more of blocks; their scales keep products near 1."""
    size, n = BLOCK_BYTES[kind], 1 << 16
    data = bytearray(rng.randbytes(size * n))
    for at in range(0, len(data), size):
        if kind == MXFP4:
            data[at] = rng.randrange(118, 122)
        else:
            data[at:at + 2] = struct.pack("<e", rng.uniform(0.5, 1.5) * (4e-3 if kind == Q4_0 else 4e-4))
    return bytes(data)


def write(path, shape, vocab):
    fields, n_tokens = tokenizer_of(vocab)
    fields = fields_of(shape, n_tokens) + fields
    tensors = tensors_of(shape, n_tokens)
    rng = random.Random(1)
    blocks = {kind: random_blocks(rng, kind) for kind in {kind for _, _, kind in tensors} - {F32}}
    with open(path, "wb") as out:
        out.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields)) + b"".join(fields))
        at = 0
        for name, dims, kind in tensors:
            out.write(text(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims) + struct.pack("<IQ", kind, at))
            at += (n_bytes(dims, kind) + 31) // 32 * 32
        out.write(bytes(-out.tell() % 32))
        for name, dims, kind in tensors:
            size = n_bytes(dims, kind)
            if kind == F32:
                middle, width = (1, 0.1) if name.endswith("norm.weight") else (0, 0.02)
                out.write(struct.pack(f"<{size // 4}f", *(rng.gauss(middle, width) for _ in range(size // 4))))
            else:
                data, skip = blocks[kind], rng.randrange(1000) * BLOCK_BYTES[kind]
                whole, rest = divmod(size, len(data))
                data = data[skip:] + data[:skip]
                for _ in range(whole):
                    out.write(data)
                out.write(data[:rest])
            out.write(bytes(-size % 32))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("vocab")
    parser.add_argument("out")
    options = parser.parse_args()
    shape = dict(SHAPES[options.shape])
    if options.layers:
        shape["layers"] = options.layers
    write(options.out, shape, options.vocab)


if __name__ == "__main__":
    main()
