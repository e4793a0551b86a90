"""A small Llama of a GGUF file and its MTP head in PyTorch, for models/train_mtp_head.py: files, forward passes, and checks of them."""
import json
import math
import struct

import numpy
import torch
import torch.nn.functional as F

# A layer's tensors in the order of the tuples below: names of safetensors and of GGUF files.
LAYER = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down"}
OUTER = ("eh_proj", "enorm", "hnorm", "shared_head_norm")


# ---- files

def read_gguf(path):
    """Metadata and float32 tensors of a GGUF file whose tensors are f32 or q8_0."""
    data = memoryview(path.read_bytes())
    at = 4

    def take(kind):
        nonlocal at
        value = struct.unpack_from("<" + kind, data, at)[0]
        at += struct.calcsize("<" + kind)
        return value

    def text():
        nonlocal at
        n = take("Q")
        at += n
        return bytes(data[at - n:at]).decode("utf-8", "replace")

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            of = take("I")
            return [value(of) for _ in range(take("Q"))]
        return take({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}[kind])

    take("I")
    n_tensors, n_keys = take("Q"), take("Q")
    metadata = {}
    for _ in range(n_keys):
        key = text()
        metadata[key] = value(take("I"))
    infos = []
    for _ in range(n_tensors):
        name = text()
        shape = [take("Q") for _ in range(take("I"))][::-1]
        infos.append((name, shape, take("I"), take("Q")))
    alignment = metadata.get("general.alignment", 32)
    begin = (at + alignment - 1) // alignment * alignment
    tensors = {}
    for name, shape, kind, offset in infos:
        n = math.prod(shape)
        if kind == 0:
            values = numpy.frombuffer(data, "<f4", n, begin + offset)
        elif kind == 8:
            blocks = numpy.frombuffer(data, numpy.dtype([("scale", "<f2"), ("codes", "i1", 32)]), n // 32, begin + offset)
            values = blocks["codes"].astype(numpy.float32) * blocks["scale"].astype(numpy.float32)[:, None]
        else:
            raise SystemExit(f"{path}: {name} has GGUF type {kind}; only f32 (0) and q8_0 (8) are read")
        tensors[name] = torch.from_numpy(values.reshape(shape).astype(numpy.float32))
    return metadata, tensors


def read_safetensors(path):
    """float32 tensors of a bf16 or f32 safetensors file."""
    data = path.read_bytes()
    n = struct.unpack_from("<Q", data)[0]
    tensors = {}
    for name, info in json.loads(data[8:8 + n]).items():
        if name == "__metadata__":
            continue
        raw = torch.frombuffer(bytearray(data[8 + n + info["data_offsets"][0]:8 + n + info["data_offsets"][1]]),
                               dtype={"BF16": torch.bfloat16, "F32": torch.float32}[info["dtype"]])
        tensors[name] = raw.reshape(info["shape"]).float()
    return tensors


def write_safetensors(path, tensors, metadata):
    """As bf16."""
    header, parts, offset = {"__metadata__": metadata}, [], 0
    for name, tensor in tensors.items():
        part = tensor.detach().cpu().to(torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes()
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [offset, offset + len(part)]}
        parts.append(part)
        offset += len(part)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(parts))


class Shape:
    def __init__(self, metadata):
        key = lambda name: metadata["llama." + name]
        self.n_layers = key("block_count") - metadata.get("llama.nextn_predict_layers", 0)
        self.d, self.heads, self.kv_heads, self.head_dim = (key("embedding_length"), key("attention.head_count"), key("attention.head_count_kv"),
                                                            key("attention.key_length"))
        self.eps, self.theta = key("attention.layer_norm_rms_epsilon"), key("rope.freq_base")

    def halves(self, name, tensor):
        """GGUF files of this architecture keep the rows of a RoPE pair side by side; safetensors keep them half a head apart."""
        if not name.endswith(("attn_q", "attn_k")):
            return tensor
        return tensor.reshape(-1, self.head_dim // 2, 2, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)

    def layer_of(self, tensors, i):
        return tuple(self.halves(name, tensors[f"blk.{i}.{name}.weight"]) for name in LAYER.values())

    def head_of(self, tensors):
        i = self.n_layers
        head = {f"layer.{name}.weight": tensor for name, tensor in zip(LAYER, self.layer_of(tensors, i))}
        return head | {f"{name}.weight": tensors[f"blk.{i}.nextn.{name}.weight"] for name in OUTER}


def as_engine_holds(head):
    """A head as the engine runs it: read from bf16, its matrices made q8_0."""
    out = {}
    for name, tensor in head.items():
        values = tensor.detach().to(torch.bfloat16).float()
        if values.dim() == 2:
            blocks = values.reshape(-1, 32)
            scale = blocks.abs().amax(1, keepdim=True) / 127
            codes = torch.where(scale > 0, blocks / scale, 0).round()
            values = (codes * scale.half().float()).reshape(values.shape)
        out[name] = values
    return out


# ---- the model and its head

def norm(x, weight, eps):
    return F.rms_norm(x.float(), (x.shape[-1],), weight.float(), eps)


def linear(x, weight, dtype):
    return F.linear(x.to(dtype), weight.to(dtype))


def turn(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def layer_in(x, w, cos, sin, s, dtype):
    """Queries, keys and values [B, heads, n, head_dim]; w is a layer's tuple."""
    y = norm(x, w[0], s.eps).to(dtype)
    heads = lambda m: linear(y, m, dtype).unflatten(-1, (-1, s.head_dim)).transpose(1, 2)
    return turn(heads(w[1]), cos, sin), turn(heads(w[2]), cos, sin), heads(w[3])


def layer_out(x, attended, w, s, dtype):
    x = x + linear(attended.transpose(1, 2).flatten(2), w[4], dtype).float()
    y = norm(x, w[5], s.eps).to(dtype)
    return x + linear(F.silu(linear(y, w[6], dtype)) * linear(y, w[7], dtype), w[8], dtype).float()


def base_layer(x, w, cos, sin, s, dtype):
    q, k, v = layer_in(x, w, cos, sin, s, dtype)
    return layer_out(x, F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), w, s, dtype)


def head_in(embedded, state, outer, w, cos, sin, s, dtype):
    """The joined input of a row, and its queries, keys and values."""
    x = linear(torch.cat([norm(embedded, outer[1], s.eps), norm(state, outer[2], s.eps)], -1), outer[0], dtype).float()
    return x, *layer_in(x, w, cos, sin, s, dtype)


def chain_attend(q, k, v, starts, own_k, own_v):
    """Attention of row c of a depth: keys k, v of the first depth's rows 0 to c, and row c of each further depth (own_k, own_v).

    That is what the engine's cache has then: rows of hidden states of the model, and those of this step's proposals. Rows from starts[b]
    on do not see rows in front of it, as where the head begins anew in the middle of a text.
    """
    n_batch, n_kv, n, size = k.shape
    q = q.reshape(n_batch, n_kv, -1, n, size)
    c, begin = torch.arange(n, device=q.device), starts[:, None, None]
    seen = (c <= c[:, None]) & ((c >= begin) | (c[:, None] < begin))
    scores = (q.flatten(2, 3) @ k.mT).reshape(n_batch, n_kv, -1, n, n).float() * size**-0.5
    scores = scores.masked_fill(~seen[:, None, None], -math.inf)
    own = [(q.float() * key[:, :, None].float()).sum(-1) * size**-0.5 for key in own_k]
    top = scores.detach().amax(-1)
    for one in own:
        top = torch.maximum(top, one.detach())
    shares = (scores - top[..., None]).exp()
    total = shares.sum(-1)
    out = (shares.to(v.dtype).flatten(2, 3) @ v).reshape(q.shape).float()
    for one, value in zip(own, own_v):
        share = (one - top).exp()
        total = total + share
        out = out + share[..., None] * value[:, :, None].float()
    return (out / total[..., None]).to(v.dtype).flatten(1, 2)


def proposal_loss(state, target, weight, norm_weight, embedding, hard, eps, dtype):
    """Weighted cross entropy against the model's probabilities and, with weight `hard`, its likeliest token; and the proposals."""
    logits = linear(norm(state, norm_weight, eps), embedding, dtype).float()
    target = target.float()
    whole = logits.logsumexp(-1)
    soft = whole - (target.softmax(-1) * logits).sum(-1)
    likeliest = target.argmax(-1)
    sure = whole - logits.gather(-1, likeliest[..., None])[..., 0]
    proposals = logits.detach().argmax(-1)
    return (((1 - hard) * soft + hard * sure) * weight).sum(), proposals, proposals == likeliest


class Base:
    """The frozen model in one arithmetic."""

    def __init__(self, s, tensors, device, dtype):
        move = lambda tensor: tensor.to(device, dtype)
        self.s, self.dtype, self.device = s, dtype, device
        self.embedding, self.output_norm = move(tensors["token_embd.weight"]), tensors["output_norm.weight"].to(device)
        self.layers = [tuple(move(w) for w in s.layer_of(tensors, i)) for i in range(s.n_layers)]
        angle = torch.arange(4096, dtype=torch.float64)[:, None] * s.theta ** (-torch.arange(0, s.head_dim, 2, dtype=torch.float64) / s.head_dim)
        self.cos, self.sin = angle.cos().float().to(device), angle.sin().float().to(device)

    def hidden(self, ids):
        """What the last layer gives, in front of the norm."""
        n = ids.shape[1]
        x = F.embedding(ids, self.embedding).float()
        for w in self.layers:
            x = base_layer(x, w, self.cos[:n], self.sin[:n], self.s, self.dtype)
        return x

    def logits(self, hidden):
        """bf16 has too few digits to tell which of two logits is larger; f16 has three more."""
        dtype = torch.float16 if self.dtype == torch.bfloat16 else self.dtype
        return linear(norm(hidden, self.output_norm, self.s.eps), self.embedding, dtype)

    @torch.no_grad()
    def generate(self, prompts, n, temperatures, generator):
        """Prompts [B, P] and n tokens behind each; temperature 0 is greedy."""
        (n_rows, n_prompt), s = prompts.shape, self.s
        cache = [tuple(torch.empty(n_rows, s.kv_heads, n_prompt + n, s.head_dim, device=self.device, dtype=self.dtype) for _ in "kv")
                 for _ in self.layers]
        x = torch.empty(n_rows, s.d, device=self.device)
        at_once = max(1, 100_000 // n_prompt)
        for i in range(0, n_rows, at_once):
            y = F.embedding(prompts[i:i + at_once], self.embedding).float()
            for w, (keys, values) in zip(self.layers, cache):
                q, k, v = layer_in(y, w, self.cos[:n_prompt], self.sin[:n_prompt], s, self.dtype)
                keys[i:i + at_once, :, :n_prompt], values[i:i + at_once, :, :n_prompt] = k, v
                y = layer_out(y, F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), w, s, self.dtype)
            x[i:i + at_once] = y[:, -1]
        drawn, divisor = (temperatures > 0)[:, None].float(), torch.where(temperatures > 0, temperatures, 1.0)[:, None]
        ids = [prompts]
        for at in range(n_prompt, n_prompt + n):
            logits = self.logits(x).float() / divisor
            logits -= drawn * torch.empty_like(logits).exponential_(generator=generator).log_()
            token = logits.argmax(-1, keepdim=True)
            ids.append(token)
            if at + 1 == n_prompt + n:
                break
            y = F.embedding(token, self.embedding).float()
            for w, (keys, values) in zip(self.layers, cache):
                q, k, v = layer_in(y, w, self.cos[at:at + 1], self.sin[at:at + 1], s, self.dtype)
                keys[:, :, at:at + 1], values[:, :, at:at + 1] = k, v
                # The query heads of a KV head are as many queries at the same position.
                grouped = q.reshape(n_rows, s.kv_heads, -1, s.head_dim)
                attended = F.scaled_dot_product_attention(grouped, keys[:, :, :at + 1], values[:, :, :at + 1])
                y = layer_out(y, attended.reshape(q.shape), w, s, self.dtype)
            x = y[:, 0]
        return torch.cat(ids, 1)


def chain(head, base, ids, hidden, depth, starts):
    """The head's hidden states, one [B, n, d] a depth, for rows of hidden states [B, n, d] of the text ids [B, n + depth].

    Row c of depth 0 is the head's position c: it reads token c + 1 and proposes token c + 2. Row c of depth e goes on from there, at position
    c + e, with its own hidden state and token c + e + 1. The text's token stands for the proposal: where they differ the step has ended.
    """
    s, n, dtype = base.s, hidden.shape[1], base.dtype
    w, outer = tuple(head[f"layer.{name}.weight"] for name in LAYER), tuple(head[f"{name}.weight"] for name in OUTER)
    state, own_k, own_v = hidden, [], []
    for e in range(depth):
        embedded = F.embedding(ids[:, e + 1:e + 1 + n], base.embedding)
        x, q, k, v = head_in(embedded, state, outer, w, base.cos[e:e + n], base.sin[e:e + n], s, dtype)
        if e == 0:
            first_k, first_v = k, v
        else:
            own_k, own_v = own_k + [k], own_v + [v]
        state = layer_out(x, chain_attend(q, first_k, first_v, starts, own_k, own_v), w, s, dtype)
        yield state


def head_logits(head, base, state):
    return linear(norm(state, head["shared_head_norm.weight"], base.s.eps), base.embedding, base.dtype)


# ---- checks of the arithmetic above

@torch.no_grad()
def check(base, head, kept, golden):
    """Golden logits, text by the cache against text without, and a chain of proposals against one row at a time."""
    text = next(iter(kept.values()))[0][:40].to(base.device)[None]
    if golden:
        facts = json.loads(golden.read_text())
        ids = torch.tensor(facts["ids"], device=base.device)[None]
        hidden = base.hidden(ids)
        logits = base.logits(hidden)[0].float()
        nll = F.cross_entropy(logits[:-1], ids[0, 1:]).item()
        worst = max((logits[t["pos"], t["ids"]].cpu() - torch.tensor(t["logits"])).abs().max().item() for t in facts["top10"])
        starts = torch.zeros(1, dtype=torch.long, device=base.device)
        state = next(chain(head, base, ids, hidden[:, :-1], 1, starts))
        head_nll = F.cross_entropy(head_logits(head, base, state)[0, :-1].float(), ids[0, 2:]).item()
        print(f"golden: NLL {nll:.4f} (f32 weights {facts['mean_nll']:.4f}), largest difference of a top logit {worst:.3f}, "
              f"NLL of the head {head_nll:.4f} (the golden file's, f32 weights: {facts['mtp']['mean_nll']:.4f})", flush=True)
        if abs(nll - facts["mean_nll"]) > 0.03:
            raise SystemExit("the model's NLL is not that of the golden file: its forward pass or its weights differ")
    generated = base.generate(text, 24, torch.zeros(1, device=base.device), torch.Generator(base.device))
    same = base.logits(base.hidden(generated))[0, 39:-1].argmax(-1) == generated[0, 40:]
    if same.float().mean() < 0.9:
        raise SystemExit("text by the cache differs from text without it")
    depth, c = 3, 20
    n = generated.shape[1] - depth
    hidden = base.hidden(generated)
    states = list(chain(head, base, generated, hidden[:, :n], depth, torch.zeros(1, dtype=torch.long, device=base.device)))
    w, outer = tuple(head[f"layer.{name}.weight"] for name in LAYER), tuple(head[f"{name}.weight"] for name in OUTER)
    given = hidden[:, :c + 1]
    for e in range(depth):
        embedded = F.embedding(generated[:, 1:c + 2 + e], base.embedding)
        x, q, k, v = head_in(embedded, given, outer, w, base.cos[:c + 1 + e], base.sin[:c + 1 + e], base.s, base.dtype)
        alone = layer_out(x, F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), w, base.s, base.dtype)[:, -1:]
        off = (alone[:, 0] - states[e][:, c]).norm() / alone.norm()
        if off > 1e-3:
            raise SystemExit(f"proposal {e + 1} of a chain differs from one row at a time by {off:.4f}")
        given = torch.cat([given, alone], 1)
    print("checks passed", flush=True)
