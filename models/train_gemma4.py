#!/usr/bin/env python3
"""Trains a small dense model of Gemma 4's shape on a CPU: sliding and full layers, full layers with wider heads whose values are
their keys, norms of q, k and v, scores without a scale.

    python3 models/train_gemma4.py --text TEXT.xz --tokenizer tokenizer.json --minutes 50 --out FOLDER

It serves to ask what compressed caches cost a trained model of that shape (docs/gemma-4-caches.md). Needs jax, numpy, safetensors
and tokenizers; no GPU. The folder loads as a Hugging Face directory (`gemma4_text`). The vocabulary is the first --vocab entries of
the tokenizer, a byte-level BPE. The schedule follows the clock: a new run gives a similar model, not the same bits. Documents of the
text are separated by lines of <|endoftext|>; the last hundredth of them is held out, and written beside the model as held-out.txt.
"""
import argparse
import functools
import json
import lzma
import math
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy
from safetensors.numpy import load_file, save_file

END = "<|endoftext|>"


class Shape:
    def __init__(self, d=192, n_layers=8, d_ff=384, heads=4, kv_heads=2, head_dim=64, full_kv_heads=1, full_head_dim=128, period=4,
                 window=64, vocab=2048, context=4096, rope_share=0.25, theta=1e6, window_theta=1e4, cap=30.0, eps=1e-6):
        self.__dict__.update({k: v for k, v in locals().items() if k != "self"})

    def is_full(self, layer):
        return layer % self.period == self.period - 1

    def heads_of(self, layer):
        """KV heads and head_dim."""
        return (self.full_kv_heads, self.full_head_dim) if self.is_full(layer) else (self.kv_heads, self.head_dim)

    def config(self):
        kinds = ["full_attention" if self.is_full(i) else "sliding_attention" for i in range(self.n_layers)]
        return {"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "dtype": "bfloat16", "hidden_size": self.d,
                "num_hidden_layers": self.n_layers, "intermediate_size": self.d_ff, "hidden_activation": "gelu_pytorch_tanh",
                "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim,
                "num_global_key_value_heads": self.full_kv_heads, "global_head_dim": self.full_head_dim, "attention_k_eq_v": True,
                "layer_types": kinds, "sliding_window": self.window, "final_logit_softcapping": self.cap, "vocab_size": self.vocab,
                "max_position_embeddings": self.context, "rms_norm_eps": self.eps, "tie_word_embeddings": True, "attention_bias": False,
                "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "use_double_wide_mlp": False, "enable_moe_block": False,
                "bos_token_id": 0, "eos_token_id": 0,
                "rope_parameters": {"full_attention": {"rope_type": "proportional", "rope_theta": self.theta,
                                                       "partial_rotary_factor": self.rope_share},
                                    "sliding_attention": {"rope_type": "default", "rope_theta": self.window_theta}}}

    def sizes(self):
        """Names and shapes of all tensors, as Hugging Face names them."""
        out = {"model.embed_tokens.weight": (self.vocab, self.d), "model.norm.weight": (self.d,)}
        for i in range(self.n_layers):
            kv, dim = self.heads_of(i)
            own = {f"{name}_layernorm.weight": (self.d,) for name in ("input", "post_attention", "pre_feedforward", "post_feedforward")}
            own |= {"layer_scalar": (1,), "self_attn.q_norm.weight": (dim,), "self_attn.k_norm.weight": (dim,),
                    "self_attn.q_proj.weight": (self.heads * dim, self.d), "self_attn.k_proj.weight": (kv * dim, self.d),
                    "self_attn.o_proj.weight": (self.d, self.heads * dim), "mlp.gate_proj.weight": (self.d_ff, self.d),
                    "mlp.up_proj.weight": (self.d_ff, self.d), "mlp.down_proj.weight": (self.d, self.d_ff)}
            if not self.is_full(i):
                own["self_attn.v_proj.weight"] = (kv * dim, self.d)
            out |= {f"model.layers.{i}.{name}": size for name, size in own.items()}
        return out


def first_weights(shape, seed, score_scale):
    """Weights to begin with. score_scale: weight of q_norm times weight of k_norm, as nothing else divides the scores."""
    random = numpy.random.default_rng(seed)
    out = {}
    for name, size in shape.sizes().items():
        if len(size) == 2:
            out[name] = random.standard_normal(size, dtype=numpy.float32) * size[1]**-0.5
        elif name.endswith(("q_norm.weight", "k_norm.weight")):
            out[name] = numpy.full(size, math.sqrt(score_scale), numpy.float32)
        else:
            out[name] = numpy.ones(size, numpy.float32)
    return {name: jnp.asarray(value) for name, value in out.items()}


def norm(x, weight=None, eps=1e-6):
    x = x.astype(jnp.float32)
    x = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps)
    return x if weight is None else x * weight


def product(a, b, contract):
    return jax.lax.dot_general(a, b, (contract, ((), ())), preferred_element_type=jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def linear(x, w, dtype):
    """x w^T with float32 sums: inputs of type dtype forward and back to x, float32 for the gradient of w (CPUs' fastest ways)."""
    return product(x.reshape(-1, x.shape[-1]).astype(dtype), w.astype(dtype), ((1,), (1,))).reshape(*x.shape[:-1], -1)


def linear_forward(x, w, dtype):
    return linear(x, w, dtype), (x.astype(dtype), w.astype(dtype))


def linear_backward(dtype, kept, g):
    x, w = kept
    flat = g.reshape(-1, g.shape[-1])
    back = product(flat.astype(dtype), w, ((1,), (0,))).reshape(x.shape)
    return back, product(flat, x.reshape(-1, x.shape[-1]).astype(jnp.float32), ((0,), (0,)))


linear.defvjp(linear_forward, linear_backward)


def turn(x, shape, full):
    """RoPE of [..., T, dim]: pair (i, i + dim / 2). Full layers turn the first pairs only."""
    dim, half = x.shape[-1], x.shape[-1] // 2
    frequency = (shape.theta if full else shape.window_theta) ** (-jnp.arange(half, dtype=jnp.float32) * 2 / dim)
    if full:
        frequency = jnp.where(jnp.arange(half) < int(shape.rope_share * half), frequency, 0)
    angle = jnp.arange(x.shape[-2], dtype=jnp.float32)[:, None] * frequency
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attend(q, k, v, window):
    """q [B, KV heads, group, T, dim], k and v [B, KV heads, T, dim]. A window's keys are those of two blocks."""
    n = q.shape[-2]
    i, j = jnp.arange(n)[:, None], jnp.arange(n)[None]
    if window and n > window:
        q = q.reshape(*q.shape[:3], n // window, window, -1)
        blocks = lambda x: x.reshape(*x.shape[:2], n // window, window, -1)
        two = lambda x: jnp.concatenate([jnp.pad(x, ((0, 0), (0, 0), (1, 0), (0, 0), (0, 0)))[:, :, :-1], x], 3)
        k, v = two(blocks(k)), two(blocks(v))
        i, j = jnp.arange(window)[:, None] + window, jnp.arange(2 * window)[None]
        seen = (j <= i) & (i - j < window)
        first = (jnp.arange(n // window) == 0)[:, None, None]  # no block in front of it
        rule, rule_v = "bhgcid,bhcjd->bhgcij", "bhgcij,bhcjd->bhgcid"
        seen = seen & ~(first & (j < window))
    else:
        seen = (j <= i) & (i - j < window) if window else j <= i
        rule, rule_v = "bhgid,bhjd->bhgij", "bhgij,bhjd->bhgid"
    p = jax.nn.softmax(jnp.where(seen, jnp.einsum(rule, q, k), -1e30), -1)  # scale 1
    out = jnp.einsum(rule_v, p, v)
    return out.reshape(*out.shape[:3], n, -1)


def layer(x, w, shape, i, dtype, keep=None):
    kv, dim = shape.heads_of(i)
    full = shape.is_full(i)
    matmul = lambda y, name: linear(y, w[name + ".weight"], dtype)
    heads = lambda y, n: y.reshape(*y.shape[:2], n, dim).transpose(0, 2, 1, 3)
    h = norm(x, w["input_layernorm.weight"])
    q, raw = heads(matmul(h, "self_attn.q_proj"), shape.heads), heads(matmul(h, "self_attn.k_proj"), kv)
    v = norm(raw if full else heads(matmul(h, "self_attn.v_proj"), kv))
    q = turn(norm(q, w["self_attn.q_norm.weight"]), shape, full)
    k = turn(norm(raw, w["self_attn.k_norm.weight"]), shape, full)
    if keep is not None:
        keep.append((q, k, v))
    q = q.reshape(q.shape[0], kv, shape.heads // kv, *q.shape[2:])
    out = attend(q, k, v, 0 if full else shape.window)
    out = out.reshape(out.shape[0], shape.heads, *out.shape[3:]).transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1)
    x = x + norm(matmul(out, "self_attn.o_proj"), w["post_attention_layernorm.weight"])
    h = norm(x, w["pre_feedforward_layernorm.weight"])
    h = jax.nn.gelu(matmul(h, "mlp.gate_proj"), approximate=True) * matmul(h, "mlp.up_proj")
    return (x + norm(matmul(h, "mlp.down_proj"), w["post_feedforward_layernorm.weight"])) * w["layer_scalar"]


def logits_of(weights, ids, shape, dtype, keep=None):
    """Logits [B, T, vocab] of ids [B, T]; keep: a list that gets q, k and v of every layer."""
    x = weights["model.embed_tokens.weight"][ids] * math.sqrt(shape.d)
    for i in range(shape.n_layers):
        front = f"model.layers.{i}."
        w = {name[len(front):]: value for name, value in weights.items() if name.startswith(front)}
        x = layer(x, w, shape, i, dtype, keep)
    h = norm(x, weights["model.norm.weight"])
    out = linear(h, weights["model.embed_tokens.weight"], dtype)
    return shape.cap * jnp.tanh(out / shape.cap)


def loss_of(weights, window, shape, dtype):
    """Cross entropy of the next token; window [B, T + 1]."""
    logits = logits_of(weights, window[:, :-1], shape, dtype)
    target = jnp.take_along_axis(logits, window[:, 1:, None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - target)


@functools.partial(jax.jit, static_argnums=(4, 5), donate_argnums=(0,))
def train_step(state, window, rate, step, shape, dtype):
    """AdamW (0.9, 0.95, 1e-8), weight decay 0.1 of matrices, gradients clipped to a norm of 1."""
    weights, mean, square = state
    loss, g = jax.value_and_grad(loss_of)(weights, window, shape, dtype)
    size = jnp.sqrt(sum(jnp.sum(x * x) for x in g.values()))
    shrink = jnp.minimum(1, 1 / (size + 1e-6))
    for name, x in g.items():
        x = x * shrink
        mean[name] = 0.9 * mean[name] + 0.1 * x
        square[name] = 0.95 * square[name] + 0.05 * x * x
        update = mean[name] / (1 - 0.9**step) / (jnp.sqrt(square[name] / (1 - 0.95**step)) + 1e-8)
        if x.ndim == 2:
            update = update + 0.1 * weights[name]
        weights[name] = weights[name] - rate * update
    return (weights, mean, square), loss


def small_tokenizer(path, n):
    """The first n entries of a byte-level BPE and the merges that make them, as a tokenizer.json."""
    document = json.loads(path.read_text())
    model = document["model"]
    model["vocab"] = {piece: i for piece, i in model["vocab"].items() if i < n}
    whole = lambda merge: merge.replace(" ", "", 1) if isinstance(merge, str) else "".join(merge)
    model["merges"] = [merge for merge in model["merges"] if whole(merge) in model["vocab"]]
    return json.dumps(document, ensure_ascii=False)


def read_tokens(text_path, tokenizer_json, ids_path):
    """Ids to train on, ids held out and the text of the latter; ids from ids_path where it exists, else encoded and kept there."""
    from tokenizers import Tokenizer

    text = (lzma.open(text_path, "rt", encoding="utf-8") if text_path.suffix == ".xz" else open(text_path, encoding="utf-8")).read()
    documents = [d.strip("\n") for d in text.split(END) if d.strip()]
    n_held = max(1, len(documents) // 100)
    held_text = "\n\n".join(documents[-n_held:]) + "\n"
    if ids_path and ids_path.exists():
        kept = numpy.load(ids_path)
        return kept["train"].astype(numpy.int32), kept["held"].astype(numpy.int32), held_text
    tokenizer = Tokenizer.from_str(tokenizer_json)
    ids = [[0, *e.ids] for e in tokenizer.encode_batch(documents, add_special_tokens=False)]
    flat = lambda parts: numpy.array([i for part in parts for i in part], dtype=numpy.int32)
    train, held = flat(ids[:-n_held]), flat(ids[-n_held:])
    if ids_path:
        numpy.savez_compressed(ids_path, train=train.astype(numpy.uint16), held=held.astype(numpy.uint16))
    return train, held, held_text


def save(weights, shape, folder, tokenizer_json, facts):
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: numpy.asarray(value.astype(jnp.bfloat16)) for name, value in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(shape.config(), indent=1) + "\n")
    (folder / "tokenizer.json").write_text(tokenizer_json)
    (folder / "training.json").write_text(json.dumps(facts, indent=1) + "\n")


def load(folder):
    """Weights and shape of a saved folder."""
    config = json.loads((folder / "config.json").read_text())
    ropes = config["rope_parameters"]
    shape = Shape(d=config["hidden_size"], n_layers=config["num_hidden_layers"], d_ff=config["intermediate_size"],
                  heads=config["num_attention_heads"], kv_heads=config["num_key_value_heads"], head_dim=config["head_dim"],
                  full_kv_heads=config["num_global_key_value_heads"], full_head_dim=config["global_head_dim"],
                  period=config["layer_types"].index("full_attention") + 1, window=config["sliding_window"], vocab=config["vocab_size"],
                  context=config["max_position_embeddings"], rope_share=ropes["full_attention"]["partial_rotary_factor"],
                  theta=ropes["full_attention"]["rope_theta"], window_theta=ropes["sliding_attention"]["rope_theta"],
                  cap=config["final_logit_softcapping"], eps=config["rms_norm_eps"])
    return {name: jnp.asarray(value, jnp.float32) for name, value in load_file(folder / "model.safetensors").items()}, shape


def held_out_loss(weights, ids, length, shape, dtype):
    n = min(64, (len(ids) - 1) // length)
    loss = jax.jit(loss_of, static_argnums=(2, 3))
    return round(float(numpy.mean([loss(weights, ids[None, i * length: (i + 1) * length + 1], shape, dtype) for i in range(n)])), 4)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=pathlib.Path, required=True)
    parser.add_argument("--ids", type=pathlib.Path, help="token ids of the text (.npz), made where it does not exist: encoding takes a minute or two")
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True)
    parser.add_argument("--vocab", type=int, default=2048)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--minutes", type=float, default=50)
    parser.add_argument("--batch", type=int, default=2048, help="tokens a step")
    parser.add_argument("--length", type=int, default=512, help="tokens a sequence in the last part of the time")
    parser.add_argument("--short-length", type=int, default=128, help="tokens a sequence before: shorter ones cost less")
    parser.add_argument("--short-share", type=float, default=0.6, help="part of the time with short sequences")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--score-scale", type=float, default=0.1, help="weight of q_norm times weight of k_norm to begin with: 0.1 is about 1 / sqrt(head_dim)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    begun = time.time()
    tokenizer_json = small_tokenizer(options.tokenizer, options.vocab)
    train, held, held_text = read_tokens(options.text, tokenizer_json, options.ids)
    shape = Shape(vocab=options.vocab)
    weights = first_weights(shape, options.seed, options.score_scale)
    print(f"{sum(w.size for w in weights.values())} parameters, {len(train)} tokens, {len(held)} held out", flush=True)
    state = (weights, {n: jnp.zeros_like(w) for n, w in weights.items()}, {n: jnp.zeros_like(w) for n, w in weights.items()})
    random = numpy.random.default_rng(options.seed)
    start, budget, step, losses, tenth = None, 60 * options.minutes, 0, [], 1
    while True:
        elapsed = 0 if start is None else time.time() - start
        if elapsed > budget:
            break
        rate = options.rate * min(1, (step + 1) / 100) * 0.5 * (1 + math.cos(math.pi * min(1, elapsed / budget)))
        length = options.short_length if elapsed < options.short_share * budget else options.length
        at = random.integers(0, len(train) - length - 1, options.batch // length)
        window = train[at[:, None] + numpy.arange(length + 1)]
        state, loss = train_step(state, window, rate, float(step + 1), shape, jnp.bfloat16)
        losses.append(float(loss))
        step += 1
        if step == 2:  # compiled: the budget counts from here
            start = time.time()
            print(f"compiled, {start - begun:.0f} s after the start", flush=True)
        if step % 50 == 0:
            size = numpy.mean([float(jnp.mean(jnp.abs(state[0][f"model.layers.{i}.self_attn.q_norm.weight"]
                                                      * state[0][f"model.layers.{i}.self_attn.k_norm.weight"]))) for i in range(shape.n_layers)])
            print(f"step {step} {elapsed:.0f} s length {length} loss {numpy.mean(losses[-50:]):.4f} q_norm k_norm {size:.3f}", flush=True)
        if elapsed > tenth / 10 * budget:
            tenth += 1
            save(state[0], shape, options.out, tokenizer_json, {"steps": step, "unfinished": True})
    weights = state[0]
    facts = {"steps": step, "tokens": step * options.batch, "seconds": round(time.time() - start), "batch": options.batch,
             "length": options.length, "short_length": options.short_length, "short_share": options.short_share, "rate": options.rate,
             "score_scale": options.score_scale, "seed": options.seed,
             "held_out_nll": held_out_loss(weights, held, options.length, shape, jnp.float32)}
    save(weights, shape, options.out, tokenizer_json, facts)
    (options.out / "held-out.txt").write_text(held_text, encoding="utf-8")
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
