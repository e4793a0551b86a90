"""Perplexity of the public models by float32 in numpy, apart from Ridge: weights are decoded by the gguf package, ids
come from a base file of `ridge eval kld --save-base`.

    ridge eval kld -m MODEL -f models/wikitext-2-excerpt.txt -c 512 --chunks 2 --kv f16 --save-base BASE
    tests/golden/public-models/make.py MODEL BASE        # needs numpy and gguf from PyPI
"""
import pathlib
import struct
import sys

import numpy as np
from gguf import GGUFReader, dequantize


def ids_of(base):
    data = pathlib.Path(base).read_bytes()
    assert data[:8] == b"_logits_"
    n_ctx, n_vocab, n_chunks = struct.unpack("<Iii", data[8:20])
    return np.frombuffer(data, np.int32, n_ctx * n_chunks, 20).reshape(n_chunks, n_ctx)


class Weights:
    def __init__(self, path):
        self.reader = GGUFReader(path)
        self.tensors = {t.name: t for t in self.reader.tensors}
        self.arch = self.field("general.architecture")

    def __call__(self, name):
        t = self.tensors[name]
        return np.asarray(dequantize(t.data, t.tensor_type), np.float32).reshape([int(n) for n in t.shape][::-1])

    def field(self, key, default=None):
        f = self.reader.fields.get(key)
        return default if f is None else f.contents()

    def of_arch(self, key, default=None):
        return self.field(f"{self.arch}.{key}", default)


def rms(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps)) * w


def rope(x, theta, halves):
    """x [T, heads, d]; pairs are neighbours, or halves of a head."""
    n, _, d = x.shape
    angle = np.arange(n)[:, None] * theta ** (-np.arange(0, d, 2) / d)
    cos, sin = np.cos(angle).astype(np.float32)[:, None], np.sin(angle).astype(np.float32)[:, None]
    a, b = (x[..., : d // 2], x[..., d // 2 :]) if halves else (x[..., ::2], x[..., 1::2])
    out = np.empty_like(x)
    if halves:
        out[..., : d // 2], out[..., d // 2 :] = a * cos - b * sin, a * sin + b * cos
    else:
        out[..., ::2], out[..., 1::2] = a * cos - b * sin, a * sin + b * cos
    return out


def attention(q, k, v, window):
    """q [T, heads, d], k and v [T, kv heads, d] -> [T, heads d]."""
    n, heads, d = q.shape
    k, v = (np.repeat(x, heads // k.shape[1], 1) for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.float32(np.sqrt(d))
    back = np.arange(n)[:, None] - np.arange(n)[None]
    scores[:, (back < 0) | (back >= window)] = -np.inf
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v).reshape(n, heads * d)


def logits(w, ids):
    """float32 logits [T, vocabulary] of ids [T]."""
    gemma = w.arch.startswith("gemma")
    eps, heads, kv_heads = w.of_arch("attention.layer_norm_rms_epsilon"), w.of_arch("attention.head_count"), w.of_arch(
        "attention.head_count_kv")
    width = w.of_arch("embedding_length")
    d = w.of_arch("attention.key_length", width // heads)
    embedding = w("token_embd.weight")
    x = embedding[ids]
    if gemma:
        x = x * np.float32(np.sqrt(width))
    for i in range(w.of_arch("block_count")):
        of = lambda name: w(f"blk.{i}.{name}.weight")
        full = not gemma or i % 6 == 5
        theta = w.of_arch("rope.freq_base") if full else 10000.0
        h = rms(x, of("attn_norm"), eps)
        q, k, v = ((h @ of(f"attn_{name}").T).reshape(len(ids), -1, d) for name in "qkv")
        if gemma:
            q, k = rms(q, of("attn_q_norm"), eps), rms(k, of("attn_k_norm"), eps)
        a = attention(rope(q, theta, gemma), rope(k, theta, gemma), v,
                      1 << 30 if full else w.of_arch("attention.sliding_window"))
        assert q.shape[1] == heads and k.shape[1] == kv_heads
        a = a @ of("attn_output").T
        x = x + (rms(a, of("post_attention_norm"), eps) if gemma else a)
        h = rms(x, of("ffn_norm"), eps)
        g = h @ of("ffn_gate").T
        g = g * (0.5 * (1 + np.tanh(0.7978845608 * (g + 0.044715 * g**3)))) if gemma else g / (1 + np.exp(-g))
        f = (g * (h @ of("ffn_up").T)) @ of("ffn_down").T
        x = x + (rms(f, of("post_ffw_norm"), eps) if gemma else f)
    head = w("output.weight") if "output.weight" in w.tensors else embedding
    return rms(x, w("output_norm.weight"), eps) @ head.T


def main(model, base):
    w = Weights(model)
    nll = []
    for ids in ids_of(base):
        ids = ids.copy()
        if w.field("tokenizer.ggml.add_bos_token", False):
            ids[0] = w.field("tokenizer.ggml.bos_token_id")
        first = len(ids) // 2
        rows = logits(w, ids)[first:-1].astype(np.float64)
        top = rows.max(-1)
        nll += list(np.log(np.exp(rows - top[:, None]).sum(-1)) + top - rows[np.arange(len(rows)), ids[first + 1 :]])
        print(len(nll), np.exp(np.mean(nll)))


main(*sys.argv[1:])
