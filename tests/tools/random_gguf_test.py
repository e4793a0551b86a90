#!/usr/bin/env python3
"""tools/random_gguf.py writes files that Ridge reads, and whose blocks pass the check of benches. usage:
random_gguf_test.py RIDGE"""
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "tiny.gguf"
        subprocess.run([sys.executable, ROOT / "tools/random_gguf.py", "--layers", "3", "tiny",
                        ROOT / "models/vocab/qwen2.gguf", path], check=True)
        done = subprocess.run([sys.argv[1], "bench", "decode", "-m", path, "-p", "8", "-n", "2", "-r", "1", "-t", "2",
                               "-o", "jsonl", "--quiet"],
                              check=True, capture_output=True, text=True)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert [row["test"] for row in rows] == ["pp8", "tg2"], rows
        assert all(row["checked"] and "qwen3moe" in row["model_type"] and "q4_0" in row["model_type"]
                   for row in rows), rows


if __name__ == "__main__":
    main()
