#!/usr/bin/env python3
"""Writes a small DeepSeek-V2 checkpoint of random weights, and the logits that transformers computes with each of its
routers.

    python3 -m venv venv && venv/bin/pip install torch==2.15.0 transformers==5.23.0
    venv/bin/python tests/golden/deepseek-v2/make.py

config.json says "group_limited_greedy", as DeepSeek-V2 does; "greedy" is DeepSeek-V2-Lite's.
"""
import json
import pathlib
import shutil
import tempfile

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
CONFIG = {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 96,
    "max_position_embeddings": 64,
    "kv_lora_rank": 24, "q_lora_rank": None, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
    "n_routed_experts": 12,
    "num_experts_per_tok": 3, "moe_intermediate_size": 16, "n_shared_experts": 2, "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy", "scoring_func": "softmax",
    "norm_topk_prob": False,
    "routed_scaling_factor": 4.0, "hidden_act": "silu", "rms_norm_eps": 1e-6, "attention_bias": False,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
                                            "beta_fast": 32,
                                            "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707},
    "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16"}


def tensors():
    torch.manual_seed(1)
    c, out = CONFIG, {}
    width = c["hidden_size"]

    def matrix(name, rows, columns, size=1.0):
        out[name + ".weight"] = torch.randn(rows, columns) * size / columns**0.5

    def feed_forward(name, rows):
        matrix(name + ".gate_proj", rows, width)
        matrix(name + ".up_proj", rows, width)
        matrix(name + ".down_proj", width, rows, 2.0)

    def norm(name, size):
        out[name + ".weight"] = 1 + 0.1 * torch.randn(size)

    out["model.embed_tokens.weight"] = torch.randn(c["vocab_size"], width)
    for layer in range(c["num_hidden_layers"]):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        heads = c["num_attention_heads"]
        norm(f"model.layers.{layer}.input_layernorm", width)
        norm(f"model.layers.{layer}.post_attention_layernorm", width)
        matrix(attention + ".q_proj", heads * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"]), width, 2.0)
        matrix(attention + ".kv_a_proj_with_mqa", c["kv_lora_rank"] + c["qk_rope_head_dim"], width, 2.0)
        norm(attention + ".kv_a_layernorm", c["kv_lora_rank"])
        matrix(attention + ".kv_b_proj", heads * (c["qk_nope_head_dim"] + c["v_head_dim"]), c["kv_lora_rank"])
        matrix(attention + ".o_proj", width, heads * c["v_head_dim"], 2.0)
        if layer < c["first_k_dense_replace"]:
            feed_forward(mlp, c["intermediate_size"])
            continue
        matrix(mlp + ".gate", c["n_routed_experts"], width)
        for expert in range(c["n_routed_experts"]):
            feed_forward(f"{mlp}.experts.{expert}", c["moe_intermediate_size"])
        feed_forward(mlp + ".shared_experts", c["n_shared_experts"] * c["moe_intermediate_size"])
    norm("model.norm", width)
    matrix("lm_head", c["vocab_size"], width, 2.0)
    return {name: tensor.to(torch.bfloat16) for name, tensor in out.items()}


def logits(method, ids):
    """The logits of the router `method`, the experts of every token, and the smallest distance between one chosen and
    one not."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(HERE / "model.safetensors", folder)
        pathlib.Path(folder, "config.json").write_text(json.dumps(CONFIG | {"topk_method": method}))
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    chosen, margins = [], []

    def note(_, __, out):
        scores = out[0].softmax(dim=-1)
        chosen.append(out[2].sort().values)
        kept = scores
        if method == "group_limited_greedy":
            groups = scores.view(len(scores), CONFIG["n_group"], -1)
            best = groups.max(dim=-1).values.sort(descending=True).values
            used = CONFIG["topk_group"]
            margins.append((best[:, used - 1] - best[:, used]).min().item())
            kept = groups.masked_fill((groups.max(dim=-1).values < best[:, used - 1:used]).unsqueeze(-1),
                                      0.0).reshape(scores.shape)
        ranks = kept.sort(descending=True).values
        used = CONFIG["num_experts_per_tok"]
        margins.append((ranks[:, used - 1] - ranks[:, used]).min().item())

    for name, module in model.named_modules():
        if name.endswith("mlp.gate"):
            module.register_forward_hook(note)
    with torch.no_grad():
        rows = model(torch.tensor([ids])).logits[0]
    print(f"{method}: standard deviation {rows.std():.2f}, smallest margin of the router {min(margins):.2e}")
    return rows, torch.cat(chosen)


def main():
    torch.set_num_threads(1)
    save_file(tensors(), HERE / "model.safetensors", metadata={"format": "pt"})
    (HERE / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    ids = [(17 * i + 5) % CONFIG["vocab_size"] for i in range(20)]
    golden = {"ids": ids}
    experts = []
    for method in ("greedy", "group_limited_greedy"):
        rows, chosen = logits(method, ids)
        golden[method] = [[float(f"{value:.6f}") for value in row] for row in rows.tolist()]
        experts.append(chosen)
    print("tokens whose experts differ:", int((experts[0] != experts[1]).any(dim=-1).sum()), "of", len(ids))
    (HERE / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


main()
