#!/usr/bin/env python3
"""Brings new rows into a stored file: a row replaces the one of the same measurement, all others stay.

  tools/merge_rows.py NEW.jsonl STORED.jsonl     STORED is rewritten, whole or not at all

What makes a measurement: the cell of a sweep, else model, text, windows, cache, shape; not machine, build or date.
Of whole models on GPUs also the card, how many GPUs and in how many stages or processes.
"""

import json
import os
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
from report.rows import BadFile, counted, read_jsonl  # noqa: E402


def measurement(row):
    """Rows with equal ones are of the same measurement."""
    fields = ("kind", "model_filename", "weight_format", "path", "corpus_xxh64", "n_ctx", "base", "kv", "type_k", "type_v",
              "n_prompt", "n_gen", "n_depth", "depth", "phase", "n_tokens", "n_windows", "n_seq", "prompts", "n_prompts", "prompt_tokens", "n_generate", "needle", "cue", "task", "size", "label")
    if "cell" in row:
        return json.dumps({k: v for k, v in row["cell"].items() if k != "build"}, sort_keys=True)
    if row.get("kind") == "collective":
        return json.dumps([row.get(f) for f in ("kind", "kernel", "n_ranks", "bytes", "device", "device_name")])
    gpus = ("device", "pp", "n_ranks") if row.get("gpu_info") else ()  # a device names its cards and how many there are
    return json.dumps([row.get("model_name", row.get("model"))] + [row.get(f) for f in fields + gpus])


def merged(stored, new):
    fresh = {measurement(r) for r in new}
    return [r for r in stored if measurement(r) not in fresh] + new


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    new, stored = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    try:
        rows = merged(read_jsonl(stored) if stored.exists() else [], counted(read_jsonl(new)))
    except BadFile as error:
        sys.exit(str(error))
    with tempfile.NamedTemporaryFile("w", dir=stored.parent, prefix=stored.name, delete=False) as part:
        part.write("".join(json.dumps(r, ensure_ascii=False, separators=(",", ":")) + "\n" for r in rows))
    os.chmod(part.name, stored.stat().st_mode if stored.exists() else 0o644)
    os.replace(part.name, stored)


if __name__ == "__main__":
    main()
