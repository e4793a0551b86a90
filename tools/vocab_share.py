#!/usr/bin/env python3
"""How many tokens of texts have one of the first N ids: what `--spec-vocab N` leaves an MTP head to propose.

  tools/vocab_share.py VOCAB.gguf TEXT... >> results/checks/vocab-share.jsonl

Prints a row a text. Needs the Python packages gguf and tokenizers; VOCAB.gguf has a byte-level BPE vocabulary of the
llama-bpe or qwen2 kind, as models/vocab/qwen2.gguf.
"""

import datetime
import json
import os
import pathlib
import subprocess
import sys

import gguf
import tokenizers
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

# How both kinds split a text into words; they differ in how many digits stay together.
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%d}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
NUMBERS = (8192, 16384, 32768, 65536)


def tokenizer_of(path):
    fields = gguf.GGUFReader(path).fields
    texts = lambda key: [bytes(fields[key].parts[i]).decode() for i in fields[key].data]
    digits = 1 if texts("tokenizer.ggml.pre") == ["qwen2"] else 3
    merges = [tuple(merge.split(" ", 1)) for merge in texts("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(texts("tokenizer.ggml.tokens"))}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(WORDS % digits), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    return tokenizer


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    tokenizer = tokenizer_of(sys.argv[1])
    build = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True)
    cpu = next(line.split(": ")[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8") if "model name" in line)
    about = {"build_commit": build.stdout.strip(), "device": "cpu", "cpu": cpu, "n_threads": 1,
             "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
             "load_1min": os.getloadavg()[0], "tokenizers": tokenizers.__version__,
             "command": " ".join(["tools/vocab_share.py", *sys.argv[1:]])}
    for path in map(pathlib.Path, sys.argv[2:]):
        ids = tokenizer.encode(path.read_text()).ids
        print(json.dumps({"kind": "vocab_share", "vocab": pathlib.Path(sys.argv[1]).stem,
                          "n_vocab": tokenizer.get_vocab_size(), "text": path.name, "n_tokens": len(ids),
                          "shares": {str(n): round(sum(i < n for i in ids) / len(ids), 4) for n in NUMBERS},
                          **about}))


if __name__ == "__main__":
    main()
