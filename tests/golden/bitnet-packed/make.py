#!/usr/bin/env python3
"""Writes a small BitNet checkpoint with packed weights, as transformers packs and reads it, and the logits it computes.

    python3 -m venv venv && venv/bin/pip install torch==2.15.0 transformers==5.23.0 accelerate
    TORCHDYNAMO_DISABLE=1 venv/bin/python tests/golden/bitnet-packed/make.py

Weights are random. One file serves both linear classes: "autobitlinear" multiplies by weight_scale, "bitlinear"
divides.
"""
import json
import pathlib
import shutil
import tempfile

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, BitNetConfig
from transformers.integrations.bitnet import pack_weights

HERE = pathlib.Path(__file__).resolve().parent
CONFIG = dict(architectures=["BitNetForCausalLM"], hidden_size=128, intermediate_size=256, num_hidden_layers=1,
              num_attention_heads=2,
              num_key_value_heads=1, vocab_size=96, max_position_embeddings=64, rope_theta=10000.0, hidden_act="relu2",
              rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=0, eos_token_id=1, pad_token_id=0,
              torch_dtype="bfloat16")
SHAPES = {"self_attn.q_proj": (128, 128), "self_attn.k_proj": (64, 128), "self_attn.v_proj": (64, 128),
          "self_attn.o_proj": (128, 128),
          "mlp.gate_proj": (256, 128), "mlp.up_proj": (256, 128), "mlp.down_proj": (128, 256)}
NORMS = {"input_layernorm": 128, "post_attention_layernorm": 128, "self_attn.attn_sub_norm": 128,
         "mlp.ffn_sub_norm": 256}


def tensors():
    torch.manual_seed(1)
    out = {"model.embed_tokens.weight": torch.randn(96, 128), "model.norm.weight": 1 + 0.1 * torch.randn(128)}
    for layer in range(1):
        for name, size in NORMS.items():
            out[f"model.layers.{layer}.{name}.weight"] = 1 + 0.1 * torch.randn(size)
    out = {name: tensor.to(torch.bfloat16) for name, tensor in out.items()}
    for layer in range(1):
        for name, shape in SHAPES.items():
            full = f"model.layers.{layer}.{name}.weight"
            out[full] = pack_weights(torch.randint(-1, 2, shape))
            out[full + "_scale"] = (0.5 + torch.rand(1)).to(torch.bfloat16)
    return out


def load(linear_class):
    quantization = {"quant_method": "bitnet", "linear_class": linear_class, "quantization_mode": "offline"}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(HERE / "model.safetensors", folder)
        config = BitNetConfig(**CONFIG).to_dict() | {"quantization_config": quantization}
        pathlib.Path(folder, "config.json").write_text(json.dumps(config))
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    torch.nn.Module.float(model)  # AutoBitLinear's unpacked weights and the scales come in the file's bfloat16
    for module in model.modules():
        if type(module).__name__ == "BitLinear":
            module.dtype = torch.float32
    products = [module for module in model.modules() if type(module).__name__.lower() == linear_class]
    assert len(products) == len(SHAPES)
    margins = []

    def note_margin(_, inputs):
        codes = inputs[0] * (127 / inputs[0].abs().amax(dim=-1, keepdim=True))
        margins.append((codes - codes.floor() - 0.5).abs().min().item())

    for module in products:
        module.register_forward_pre_hook(note_margin)
    return model, margins


def logits(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].tolist()


def main():
    """Int8 codes of activations jump: ids are drawn until none of them lies near a tie, so that every order of sums
    rounds alike."""
    save_file(tensors(), HERE / "model.safetensors", metadata={"format": "pt"})
    models = {name: load(name) for name in ("autobitlinear", "bitlinear")}
    for _ in range(1000):
        ids = [int(i) for i in torch.randint(2, 96, (6,))]
        golden = {"ids": ids} | {name: [[round(x, 6) for x in row] for row in logits(model, ids)] for name,
                                 (model, _) in models.items()}
        margin = min(min(margins) for _, margins in models.values())
        for _, margins in models.values():
            margins.clear()
        if margin > 3e-4:
            break
    assert margin > 3e-4
    (HERE / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    (HERE / "config.json").write_text(json.dumps(CONFIG | {"model_type": "bitnet"}, indent=1) + "\n")


if __name__ == "__main__":
    main()
