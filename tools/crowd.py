#!/usr/bin/env python3
"""How often the greedy text of a request differs between alone and in a crowd: one row of JSON a width of crowd, on stdout.

    tools/crowd.py URL [N_PROMPTS]        of a running `ridge serve`; prompts are pieces of docs/

On the CPU the answer is never, which a test holds; on a GPU sums are ordered by the shape of a step.
"""
import concurrent.futures
import datetime
import json
import os
import pathlib
import sys
import urllib.request

WIDTHS, TOKENS = (1, 8, 32, 96), 128


def call(url, body=None):
    request = urllib.request.Request(url, json.dumps(body).encode() if body else None, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    url, n = sys.argv[1].rstrip("/"), int(sys.argv[2]) if len(sys.argv) > 2 else 96
    docs = pathlib.Path(__file__).resolve().parent.parent / "docs"
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(docs.glob("*.md")))
    stride = len(text) // n
    prompts = [text[i * stride:i * stride + min(stride, 200 + 7 * i)] for i in range(n)]
    props = call(url + "/props")

    def ask(prompt):
        answer = call(url + "/v1/completions", {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True})
        return answer["choices"][0]["text"]

    alone = [ask(prompt) for prompt in prompts]
    for width in WIDTHS:
        with concurrent.futures.ThreadPoolExecutor(width) as clients:
            texts = list(clients.map(ask, prompts))
        print(json.dumps({"kind": "crowd", "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "build_commit": props["commit"],
                          "command": "tools/crowd.py " + " ".join(sys.argv[1:]), "load_1min": os.getloadavg()[0], "model": props["model"],
                          "weight_format": props["weight_format"], "device_name": props["device"], "kv": props["kv_quant"], "clients": width, "requests": n,
                          "prompts": len(set(prompts)), "answer_tokens": TOKENS, "differ": sum(a != b for a, b in zip(alone, texts))}), flush=True)


if __name__ == "__main__":
    main()
