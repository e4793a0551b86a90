#!/usr/bin/env python3
"""Trains a small hybrid model, Gated DeltaNet in three of four layers and gated attention with heads of 256, and an MTP head.

    python3 models/train_hybrid.py --text TEXT.xz --tokenizer tokenizer.json --minutes 8 --out FOLDER

Its shape is that of Qwen3.5, small: it serves to ask what compressed caches cost a trained model of that kind. Needs torch with CUDA,
tokenizers and safetensors. The folder loads as a Hugging Face directory (`qwen3_5_text`). The schedule follows the clock: a new run
gives a similar model, not the same bits. Documents of the text are separated by lines of <|endoftext|>; the last ones are held out.
"""
import argparse
import json
import lzma
import math
import pathlib
import shutil
import time

import numpy
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

CHUNK = 64  # positions of the delta rule that are solved together
END = "<|endoftext|>"


class Shape:
    def __init__(self, d=384, n_layers=8, d_ff=1152, heads=4, kv_heads=2, head_dim=256, key_heads=4, value_heads=8, key_dim=64, value_dim=64,
                 conv=4, vocab=8192, context=4096, rope_share=0.25, theta=1e6, eps=1e-6):
        self.__dict__.update({k: v for k, v in locals().items() if k != "self"})

    def is_full(self, layer):
        return layer % 4 == 3

    def config(self):
        kinds = ["full_attention" if self.is_full(i) else "linear_attention" for i in range(self.n_layers)]
        return {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "torch_dtype": "bfloat16", "hidden_size": self.d,
                "num_hidden_layers": self.n_layers, "intermediate_size": self.d_ff, "hidden_act": "silu", "num_attention_heads": self.heads,
                "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim, "linear_num_key_heads": self.key_heads,
                "linear_num_value_heads": self.value_heads, "linear_key_head_dim": self.key_dim, "linear_value_head_dim": self.value_dim,
                "linear_conv_kernel_dim": self.conv, "full_attention_interval": 4, "layer_types": kinds, "attn_output_gate": True,
                "vocab_size": self.vocab, "max_position_embeddings": self.context, "rms_norm_eps": self.eps, "tie_word_embeddings": True,
                "attention_bias": False, "bos_token_id": 0, "eos_token_id": 0, "mtp_num_hidden_layers": 1,
                "rope_parameters": {"rope_type": "default", "rope_theta": self.theta, "partial_rotary_factor": self.rope_share}}


class Norm(nn.Module):
    """x / rms(x) * (1 + w)"""

    def __init__(self, n, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(n)), eps

    def forward(self, x):
        return (F.rms_norm(x.float(), x.shape[-1:], eps=self.eps) * (1 + self.weight)).to(x.dtype)


def linear(n_in, n_out):
    return nn.Linear(n_in, n_out, bias=False)


def delta_rule(q, k, v, log_decay, beta):
    """Outputs [B, H, T, value dim] of S_t = a_t S_{t-1} (I - b_t k_t k_t^T) + b_t v_t k_t^T, o_t = S_t q_t, in chunks of CHUNK positions.

    q, k [B, H, T, key dim], v [B, H, T, value dim], log_decay and beta [B, H, T], all float32; a_t = exp(log_decay). Inside a chunk the
    values that are written solve a triangular system; the state goes from chunk to chunk.
    """
    n_batch, n_heads, n, _ = k.shape
    q, k, v = (x.reshape(n_batch, n_heads, n // CHUNK, CHUNK, -1) for x in (q, k, v))
    decay = log_decay.reshape(n_batch, n_heads, n // CHUNK, CHUNK).cumsum(-1)
    beta = beta.reshape(decay.shape)[..., None]
    later = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=k.device).triu(1)
    between = (decay[..., :, None] - decay[..., None, :]).masked_fill(later, -math.inf).exp()
    system = beta * (k @ k.mT) * between  # its diagonal is taken as ones
    written, read = torch.linalg.solve_triangular(system, torch.cat([beta * v, beta * k * decay.exp()[..., None]], -1), upper=False,
                                                  unitriangular=True).split([v.shape[-1], k.shape[-1]], -1)
    inside = (q @ k.mT) * between
    q, k_end, whole = q * decay.exp()[..., None], k * (decay[..., -1:] - decay).exp()[..., None], decay[..., -1].exp()
    state = torch.zeros(n_batch, n_heads, k.shape[-1], v.shape[-1], device=k.device)
    out = []
    for c in range(k.shape[2]):
        new = written[:, :, c] - read[:, :, c] @ state
        out.append(q[:, :, c] @ state + inside[:, :, c] @ new)
        state = state * whole[:, :, c, None, None] + k_end[:, :, c].mT @ new
    return torch.stack(out, 2).reshape(n_batch, n_heads, n, -1)


class DeltaNet(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s, self.keys, self.values = s, s.key_heads * s.key_dim, s.value_heads * s.value_dim
        width = 2 * self.keys + self.values
        self.in_proj_qkv, self.in_proj_z = linear(s.d, width), linear(s.d, self.values)
        self.in_proj_b, self.in_proj_a = linear(s.d, s.value_heads), linear(s.d, s.value_heads)
        self.conv1d = nn.Conv1d(width, width, s.conv, groups=width, bias=False)
        self.A_log = nn.Parameter(torch.empty(s.value_heads).uniform_(1, 16).log())
        step = torch.empty(s.value_heads).uniform_(math.log(1e-3), math.log(0.1)).exp()
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.norm = nn.ParameterDict({"weight": torch.ones(s.value_dim)})
        self.out_proj = linear(self.values, s.d)

    def forward(self, x):
        s, (n_batch, n, _) = self.s, x.shape
        mixed = self.in_proj_qkv(x).transpose(1, 2)
        mixed = F.silu(F.conv1d(F.pad(mixed, (s.conv - 1, 0)), self.conv1d.weight.to(mixed.dtype), groups=mixed.shape[1])).transpose(1, 2)
        q, k, v = mixed.float().split([self.keys, self.keys, self.values], -1)
        heads = lambda y, size: y.reshape(n_batch, n, -1, size).transpose(1, 2)
        q, k, v = heads(q, s.key_dim), heads(k, s.key_dim), heads(v, s.value_dim)
        unit = lambda y: y * torch.rsqrt(y.pow(2).sum(-1, keepdim=True) + 1e-6)
        repeat = lambda y: y.repeat_interleave(s.value_heads // s.key_heads, 1)
        q, k = repeat(unit(q) * s.key_dim**-0.5), repeat(unit(k))
        beta = self.in_proj_b(x).float().sigmoid().transpose(1, 2)
        log_decay = (-self.A_log.float().exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)).transpose(1, 2)
        with torch.autocast(x.device.type, enabled=False):
            out = delta_rule(q, k, v, log_decay, beta).transpose(1, 2)
        out = F.rms_norm(out, out.shape[-1:], eps=s.eps) * self.norm["weight"]
        out = out * F.silu(self.in_proj_z(x).float()).reshape(out.shape)
        return self.out_proj(out.reshape(n_batch, n, -1).to(x.dtype))


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.q_proj, self.o_proj = linear(s.d, 2 * s.heads * s.head_dim), linear(s.heads * s.head_dim, s.d)
        self.k_proj, self.v_proj = linear(s.d, s.kv_heads * s.head_dim), linear(s.d, s.kv_heads * s.head_dim)
        self.q_norm, self.k_norm = Norm(s.head_dim, s.eps), Norm(s.head_dim, s.eps)

    def turn(self, x):
        n_rope = int(self.s.head_dim * self.s.rope_share)
        frequency = self.s.theta ** (-torch.arange(0, n_rope, 2, device=x.device, dtype=torch.float32) / n_rope)
        angle = torch.arange(x.shape[2], device=x.device, dtype=torch.float32)[:, None] * frequency
        cos, sin = angle.cos(), angle.sin()
        a, b, rest = x.float().split([n_rope // 2, n_rope // 2, x.shape[-1] - n_rope], -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1).to(x.dtype)

    def forward(self, x):
        s, (n_batch, n, _) = self.s, x.shape
        q, gate = self.q_proj(x).reshape(n_batch, n, s.heads, 2 * s.head_dim).chunk(2, -1)
        heads = lambda y: y.reshape(n_batch, n, -1, s.head_dim).transpose(1, 2)
        q, k, v = self.turn(self.q_norm(heads(q))), self.turn(self.k_norm(heads(self.k_proj(x)))), heads(self.v_proj(x))
        repeat = lambda y: y.repeat_interleave(s.heads // s.kv_heads, 1)
        out = F.scaled_dot_product_attention(q, repeat(k), repeat(v), is_causal=True).transpose(1, 2).reshape(n_batch, n, -1)
        return self.o_proj(out * gate.reshape(out.shape).sigmoid())


class Mlp(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linear(s.d, s.d_ff), linear(s.d, s.d_ff), linear(s.d_ff, s.d)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, s, is_full):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(s.d, s.eps), Norm(s.d, s.eps)
        self.mixer = "self_attn" if is_full else "linear_attn"
        setattr(self, self.mixer, Attention(s) if is_full else DeltaNet(s))
        self.mlp = Mlp(s)

    def forward(self, x):
        x = x + getattr(self, self.mixer)(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Hybrid(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.embed_tokens = nn.Embedding(s.vocab, s.d)
        self.layers = nn.ModuleList(Layer(s, s.is_full(i)) for i in range(s.n_layers))
        self.norm = Norm(s.d, s.eps)
        self.mtp = nn.ModuleDict({"fc": linear(2 * s.d, s.d), "pre_fc_norm_embedding": Norm(s.d, s.eps), "pre_fc_norm_hidden": Norm(s.d, s.eps),
                                  "layers": nn.ModuleList([Layer(s, True)]), "norm": Norm(s.d, s.eps)})
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02 / (math.sqrt(2 * s.n_layers) if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")) else 1))

    def hidden(self, ids):
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)

    def logits(self, h):
        return F.linear(h, self.embed_tokens.weight.to(h.dtype))

    def mtp_hidden(self, h, following):
        m = self.mtp
        u = m["fc"](torch.cat([m["pre_fc_norm_embedding"](self.embed_tokens(following)), m["pre_fc_norm_hidden"](h)], -1))
        return m["norm"](m["layers"][0](u))

    def losses(self, window):
        """Cross entropy of the next token and of the one behind it; window [B, T + 2]."""
        h = self.hidden(window[:, :-2])
        loss = lambda hidden, target: F.cross_entropy(self.logits(hidden).flatten(0, 1).float(), target.flatten())
        return loss(h, window[:, 1:-1]), loss(self.mtp_hidden(h, window[:, 1:-1]), window[:, 2:])

    def tensors(self):
        out = {}
        for name, p in self.state_dict().items():
            name = name if name.startswith("mtp.") else "model." + name
            out[name] = p.detach().cpu() if name.endswith("A_log") else p.detach().cpu().to(torch.bfloat16)
        return {name: tensor.contiguous() for name, tensor in out.items()}


def read_tokens(text_path, tokenizer_path, ids_path):
    """Ids to train on and ids held out, from ids_path where it exists; else encoded, and kept there."""
    if ids_path and ids_path.exists():
        kept = numpy.load(ids_path)
        return tuple(torch.from_numpy(kept[name].astype(numpy.int32)) for name in ("train", "held"))
    from tokenizers import Tokenizer

    text = (lzma.open(text_path, "rt", encoding="utf-8") if text_path.suffix == ".xz" else open(text_path, encoding="utf-8")).read()
    documents = [d.strip("\n") for d in text.split(END) if d.strip()]
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    ids = [[0, *e.ids] for e in tokenizer.encode_batch(documents, add_special_tokens=False)]
    n_held = max(1, len(ids) // 100)
    flat = lambda parts: torch.tensor([i for part in parts for i in part], dtype=torch.int32)
    train, held = flat(ids[:-n_held]), flat(ids[-n_held:])
    if ids_path:
        numpy.savez_compressed(ids_path, train=train.numpy().astype(numpy.uint16), held=held.numpy().astype(numpy.uint16))
    return train, held


def save(model, shape, folder, tokenizer_path, facts):
    folder.mkdir(parents=True, exist_ok=True)
    shards, size = [{}], 0
    for name, tensor in model.tensors().items():
        if size + tensor.nbytes > 15e6:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards):
        save_file(shard, folder / name, metadata={"format": "pt"})
    weight_map = {tensor: name for name, shard in zip(names, shards) for tensor in shard}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": facts, "weight_map": weight_map}, indent=1))
    (folder / "config.json").write_text(json.dumps(shape.config(), indent=1))
    shutil.copy(tokenizer_path, folder / "tokenizer.json")


@torch.no_grad()
def held_out_loss(model, ids, length, device):
    n = min(32, (len(ids) - 2) // length)
    windows = torch.stack([ids[i * length: i * length + length + 2] for i in range(n)]).long().to(device)
    pairs = [torch.stack(model.losses(w[None])) for w in windows]
    return [round(x, 4) for x in torch.stack(pairs).mean(0).tolist()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=pathlib.Path, required=True)
    parser.add_argument("--ids", type=pathlib.Path, help="token ids of the text (.npz), made where it does not exist: encoding takes a minute or two")
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--rate", type=float, default=2.5e-3)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    begun = time.time()
    train, held = read_tokens(options.text, options.tokenizer, options.ids)
    shape = Shape()
    model = Hybrid(shape).to(device)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(train)} tokens, {len(held)} held out", flush=True)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=options.rate,
                                  betas=(0.9, 0.95), eps=1e-8, fused=device == "cuda")
    losses = model.losses
    if device == "cuda":  # layers alone: as one graph the loops over chunks take minutes to compile
        for layer in [*model.layers, *model.mtp["layers"]]:
            layer.compile()
    train, start, budget, step = train.to(device), None, 60 * options.minutes, 0
    while True:
        elapsed = 0 if start is None else time.time() - start
        if elapsed > budget:
            break
        rate = options.rate * min(1, (step + 1) / 200) * max(0.0, 1 - elapsed / budget)
        for group in optimizer.param_groups:
            group["lr"] = rate
        at = torch.randint(0, len(train) - options.length - 2, (options.batch,), device=device)
        window = train[at[:, None] + torch.arange(options.length + 2, device=device)].long()
        with torch.autocast(device, dtype=torch.bfloat16):
            next_token, second = losses(window)
        (next_token + 0.3 * second).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step == 3:  # compiled: the budget counts from here
            torch.cuda.synchronize() if device == "cuda" else None
            start = time.time()
            print(f"compiled, {start - begun:.0f} s after the start", flush=True)
        if step % 100 == 0:
            print(f"step {step} {elapsed:.0f} s loss {next_token.item():.4f} mtp {second.item():.4f}", flush=True)
    facts = {"steps": step, "tokens": step * options.batch * options.length, "seconds": round(time.time() - start),
             "held_out_nll": held_out_loss(model.eval(), held, options.length, device)}
    save(model, shape, options.out, options.tokenizer, facts)
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
