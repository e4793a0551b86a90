#!/usr/bin/env python3
"""Attempts to break Ridge, by the thousand: requests, model files, states, results, kills and signals.

Usage: attempts.py RIDGE [--scale X] [--seed N] [--only NAME]

Not part of the tests: --scale 1 takes some minutes on two processors. What must hold: no process ends by a signal that
was not sent, nothing hangs, no answer is a 500 or later, an innocent request beside all of it gives the same text bit
for bit, memory is flat, and the time for a body grows with its length alone. Prints a line an attempt and a JSON object
of counts; exits 1 where something broke, with the input that did it in a file of the temporary folder.
"""
import argparse
import collections
import concurrent.futures
import copy
import http.client
import json
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from ridge_server import REFERENCE, ROOT, STORIES, RidgeServer, check, run

PROBE = {"prompt": "Once upon a time", "max_tokens": 24, "seed": 11}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": [1, 2, {\"y\": null}]}"}}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {
    "type": "object", "properties": {"x": {"type": "integer"}, "s": {"type": "string", "maxLength": 4}},
    "required": ["x"]}}}
CHAT = {"messages": [{"role": "system", "content": "Be brief."},
                     {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                     {"role": "assistant", "content": None, "tool_calls": [CALL]},
                     {"role": "tool", "tool_call_id": "call_1", "content": "7"}, {"role": "user", "content": "and?"}],
        "tools": [TOOL], "tool_choice": "auto", "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "seed": 1, "n": 1,
        "stop": ["x"], "logit_bias": {"3": -1}, "stream": False, "parallel_tool_calls": True}
SEEDS = [
    ("/v1/completions", {"prompt": "The dog", "max_tokens": 3, "temperature": 0.7, "top_k": 5, "logprobs": 2,
                         "echo": True}),
    ("/v1/completions", {"prompt": ["a", [1, 2, 3]], "max_tokens": 2, "stream": True,
                         "stream_options": {"include_usage": True}}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 3, "grammar": "root ::= \"a\" [b-d]* | \"e\""}),
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "tools": [TOOL],
                              "tool_choice": "required"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "response_format": {
        "type": "json_schema", "json_schema": {"name": "n", "schema": TOOL["function"]["parameters"]}}}),
    ("/v1/messages", {"max_tokens": 3, "system": [{"type": "text", "text": "s"}], "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"},
                                          {"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "7"}]}],
        "tools": [{"name": "f", "input_schema": TOOL["function"]["parameters"]}], "tool_choice": {"type": "any"},
                      "stream": True}),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "a"}]}),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                                 {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                                 {"type": "function_call_output", "call_id": "c", "output": "7"}],
                       "instructions": "i", "max_output_tokens": 3, "tools": [{"type": "function", **TOOL["function"]}],
                       "stream": True}),
    ("/completion", {"prompt": "a", "n_predict": 3, "logit_bias": [[5, 1], [6, False]],
                     "json_schema": {"type": "object"}, "stop": ["x"], "stream": True}),
    ("/v1/embeddings", {"input": ["a", [1, 2, 3]], "dimensions": 8, "encoding_format": "base64", "pooling": "last"}),
    ("/apply-template", CHAT), ("/tokenize", {"content": "a b", "add_special": True}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
]


def nested(depth, inside="1", pair="[]"):
    return pair[0] * depth + inside + pair[1] * depth


def odd_values(rng):
    return rng.choice([None, True, 0, -1, 7, 1e308, -1e-320, 2**63, 2**64, "", "x", "é\ud83d", "\u0000", "a" * 5000, [],
                       {}, [[]], [None], {"type": 5},
                       {"a": {}}, ["x"] * 300, {str(i): i for i in range(200)}, "{" * 300, nested(2000),
                       '{"a":' + nested(3000) + "}",
                       [{"type": 5, "text": "x"}], [{"type": "text", "text": 3}], {"$ref": "#"}, {"anyOf": [{}] * 50},
                       "root ::= root", "<|im_end|>"])


def places(value, path=()):
    """Every place of a document, the root left out."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def changed(body, rng):
    """The document with one to three of its places changed."""
    body = copy.deepcopy(body)
    for _ in range(rng.randrange(1, 4)):
        where = list(places(body))
        if not where:
            return body
        *path, key = rng.choice(where)
        holder = body
        for step in path:
            holder = holder[step]
        kind = rng.randrange(6)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, list):
            holder.extend([holder[key]] * rng.randrange(1, 40))
        elif kind == 2 and isinstance(holder, dict):
            holder[rng.choice(["", "type", "role", "content", "x" * 500, "schema", "n", "min_p",
                               "thinking"])] = odd_values(rng)
        elif kind == 3 and isinstance(holder[key], str):
            text = holder[key]
            at = rng.randrange(len(text) + 1)
            holder[key] = text[:at] + rng.choice(["\"", "\\", "{", "]", "<", "\n", "\u200b",
                                                  "(" * 100]) + text[at + rng.randrange(3):]
        else:
            holder[key] = odd_values(rng)
    return body


def mutated(rng):
    path, body = rng.choice(SEEDS)
    if rng.random() < 0.75:
        body = changed(body, rng)
    data = json.dumps(body).encode("utf-8", "surrogatepass")
    if rng.random() < 0.4:
        data = bytearray(data)
        for _ in range(rng.randrange(1, 5)):
            at, kind = rng.randrange(len(data) + 1), rng.randrange(3)
            if kind == 0:
                data[at:at + 1] = bytes([rng.randrange(256)])
            elif kind == 1:
                del data[at:at + rng.randrange(1, 20)]
            else:
                data[at:at] = rng.choice([b"[" * 200, b'{"a":' * 100, b"1e999", b"\xff", b"null,", b'"'])
        data = bytes(data)
    return path, data


def post(server, path, data, timeout=120):
    """Status and text of one request; fails on silence."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout)
    try:
        connection.request("POST", path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def keep(data, name):
    """A file with what broke it."""
    path = pathlib.Path(tempfile.gettempdir()) / f"ridge-attempt-{name}"
    path.write_bytes(data)
    return path


class Attempts:
    def __init__(self, program, scale, seed):
        self.program, self.scale, self.seed = program, scale, seed
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ridge-attempts-"))
        self.third = self.folder / "third.gguf"
        subprocess.run([program, "quantize", STORIES, self.third, "--type", "q4_0", "--quiet"], check=True,
                       stdout=subprocess.DEVNULL)
        self.counts = {}

    def n(self, count):
        return max(4, int(count * self.scale))

    def ridge(self, *words, timeout=120, **options):
        return subprocess.run([self.program, *map(str, words)], capture_output=True, text=True, errors="replace",
                              timeout=timeout, check=False,
                              stdin=subprocess.DEVNULL, **options)

    def serve(self, model, *flags):
        return RidgeServer(self.program, model, "--ctx-size", 2048, "--quiet", *flags)


class Innocent(threading.Thread):
    """One request again and again, and the server's health, while others attack: the same text each time, health at
    once."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.done, self.wrong = server, threading.Event(), []
        self.text, self.texts, self.slowest = server.complete(**PROBE), 0, 0.0

    def run(self):
        while not self.done.wait(0.1):
            try:
                start = time.monotonic()
                self.server.get("/health")
                self.slowest = max(self.slowest, time.monotonic() - start)
                status, answer = self.server.call("POST", "/v1/completions", PROBE)
                if status != 429 and (status != 200 or answer["choices"][0]["text"] != self.text):
                    self.wrong.append(f"{status} {answer}")
                self.texts += 1
            except OSError as error:
                self.wrong.append(repr(error))

    def finish(self):
        self.done.set()
        self.join(120)
        check(not self.is_alive(), "the innocent request hangs")
        check(not self.wrong, f"{len(self.wrong)} innocent answers differ: {self.wrong[:1]}, not {self.text!r}")
        check(self.texts > 0, "no innocent answer")
        return f"{self.texts} innocent texts equal, /health within {self.slowest:.1f} s"


def requests(a):
    """Mutated requests of many clients to three models."""
    notes = []
    for model in (STORIES, REFERENCE, a.third):
        with a.serve(model) as server:
            seen, bad = collections.Counter(), []

            def attempt(number):
                path, data = mutated(random.Random(a.seed * 1_000_003 + number))
                try:
                    status, answer = post(server, path, data)
                except http.client.HTTPException as error:
                    status, answer = 599, repr(error).encode()
                except OSError as error:
                    status, answer = 598, repr(error).encode()
                seen[status] += 1
                if status >= 500:
                    bad.append((status, path, keep(data, f"request-{number}"), answer[:300]))

            def storm(numbers):
                with concurrent.futures.ThreadPoolExecutor(24) as clients:
                    list(clients.map(attempt, numbers))

            count = a.n(1500 if model != REFERENCE else 500)
            innocent = Innocent(server)
            innocent.start()
            storm(range(count // 3))
            server.wait_idle(120)
            before = server.rss_mib()
            storm(range(count // 3, count))
            server.wait_idle(120)
            note = innocent.finish()
            check(server.alive(), f"ended with {server.process.returncode}: {server.errors()}")
            check(not bad, f"{len(bad)} of {count}: {bad[:3]}")
            check(server.rss_mib() < before + 48, f"memory grew from {before:.0f} to {server.rss_mib():.0f} MiB")
            check(server.complete(**PROBE) == innocent.text, "another text afterwards")
            a.counts[f"requests {model.stem}"] = dict(sorted(seen.items()))
            notes.append(f"{model.stem}: {count}, {note}, {before:.0f} then {server.rss_mib():.0f} MiB")
            code, seconds = server.stop(30)
            check(code == 0, f"exit {code} after SIGTERM")
    return "; ".join(notes)


def mixed_load(a):
    """Requests over all APIs for a minute (--scale 30: half an hour): every answer is good, and memory is flat."""
    end, seen, bad = time.monotonic() + 60 * a.scale, collections.Counter(), []
    with a.serve(STORIES, "--parallel", 8) as server:
        def client(number):
            rng = random.Random(a.seed + number)
            while time.monotonic() < end:
                path, body = rng.choice(SEEDS)
                status, answer = post(server, path, json.dumps({**body, "seed": rng.randrange(99)}).encode())
                seen[path] += 1
                if status not in (200, 429):
                    bad.append((status, path, answer[:300]))

        with concurrent.futures.ThreadPoolExecutor(8) as clients:
            running = [clients.submit(client, number) for number in range(8)]
            time.sleep(20 * a.scale)  # caches and stored answers fill
            before = server.rss_mib()
            for one in running:
                one.result()
        after = server.rss_mib()
        check(not bad, f"{len(bad)} of {seen.total()}: {bad[:3]}")
        check(after < before + 48, f"memory grew from {before:.0f} to {after:.0f} MiB")
        a.counts["mixed load"] = dict(sorted(seen.items()))
        check(server.stop(30)[0] == 0, "no clean end")
    return f"{seen.total()} requests, {before:.0f} then {after:.0f} MiB"


def crowds(a):
    """Hundreds of clients at once, each with an answer of its own: nothing is mixed up."""
    with a.serve(STORIES, "--parallel", 8) as server:
        prompts = [{"prompt": f"Story {i}.", "max_tokens": 8, "seed": i} for i in range(40)]
        alone = [server.complete(**prompt) for prompt in prompts]
        count, seen = a.n(4000), collections.Counter()

        def ask(number):
            status, answer = server.call("POST", "/v1/completions", prompts[number % 40])
            seen[status] += 1
            return status != 200 or answer["choices"][0]["text"] == alone[number % 40]

        before = server.rss_mib()
        with concurrent.futures.ThreadPoolExecutor(200) as clients:
            same = list(clients.map(ask, range(count)))
        check(all(same), f"{same.count(False)} of {count} texts differ")
        check(set(seen) <= {200, 429, 503}, dict(seen))
        check(server.rss_mib() < before + 64, f"memory grew from {before:.0f} to {server.rss_mib():.0f} MiB")
        a.counts["crowd"] = dict(seen)
    return f"{count} requests of 200 clients, {seen[200]} texts equal"


def deep_documents(a):
    """Nesting wherever JSON is read: in bodies, in strings of bodies, in schemas and grammars."""
    def call(arguments):
        return {"messages": [{"role": "user", "content": "a"},
                             {"role": "assistant",
                              "tool_calls": [{**CALL, "function": {"name": "f", "arguments": arguments}}]},
                             {"role": "tool", "tool_call_id": "call_1", "content": arguments}], "max_tokens": 2}

    bodies = []
    for depth in (60, 1000, 75_500, 400_000):
        for text in ('{"a":' + nested(depth) + "}", nested(depth, "1", "{}"), '{"a":' * depth + "1" + "}" * depth,
                     "[" * depth):
            bodies += [("/v1/chat/completions", json.dumps(call(text))), ("/apply-template", json.dumps(call(text))),
                       ("/v1/completions", json.dumps({"prompt": "a", "max_tokens": 1, "grammar": "root ::= " + text}))]
        for key in ("messages", "tools", "response_format", "prompt", "stop", "logit_bias", "chat_template_kwargs"):
            bodies.append(("/v1/chat/completions",
                           f'{{"messages": [{{"role": "user", "content": "a"}}], "{key}": {nested(depth)}}}'))
        bodies.append(("/v1/completions", json.dumps({"prompt": "a", "max_tokens": 1,
                                                      "grammar": "root ::= " + nested(depth, '"a"', "()")})))
    bodies = bodies if a.scale >= 1 else bodies[::3]
    seen = collections.Counter()
    with a.serve(STORIES) as server:
        innocent = Innocent(server)
        for number, (path, body) in enumerate(bodies):
            status, answer = post(server, path, body.encode())
            seen[status] += 1
            if status >= 500:
                check(False, f"{status} for {path}: {keep(body.encode(), f'deep-{number}')}: {answer[:200]}")
        check(server.complete(**PROBE) == innocent.text, "another text afterwards")
    a.counts["deep"] = dict(seen)
    return f"{len(bodies)} documents"


def long_documents(a):
    """Time grows with the length: eight times the bytes may take 24 times as long, not 64. /health answers beside
    them."""
    many = {
        "objects in a list": lambda n: '{"content": "x", "y": [' + "{}," * (n // 3) + "{}]}",
        "keys of an object": lambda n: '{"content": "x", "y": {' + ",".join(f'"{i:07}":1' for i in range(n // 12))
        + "}}",
        "fields of a request": lambda n: '{"content": "x", ' + ",".join(f'"{i:07}":1' for i in range(n // 12)) + "}",
        "messages": lambda n: '{"messages": [' + ",".join(['{"role":"user","content":"a"}'] * (n // 31)) + "]}",
        "tools": lambda n: json.dumps({"messages": [{"role": "user", "content": "a"}], "tools": [TOOL] * (n // 250)}),
        "escapes": lambda n: '{"content": "' + "\\u00e9" * (n // 6) + '"}',
        "arguments": lambda n: json.dumps({"messages": [{"role": "assistant", "tool_calls": [{**CALL, "function": {
            "name": "f", "arguments": '{"a": [' + "{}," * (n // 4) + "{}]}"}}]}]}),
        "stops": lambda n: json.dumps({"prompt": "a", "max_tokens": 1, "stop": ["a" * (n // 2)] * 2}),
        "brackets of text": lambda n: json.dumps({"messages": [{"role": "user", "content": "<|" * (n // 2)}]}),
    }
    paths = {"messages": "/apply-template", "tools": "/apply-template", "arguments": "/apply-template",
             "stops": "/v1/completions",
             "brackets of text": "/apply-template"}
    slow, times = [], {}
    with a.serve(STORIES) as server:
        innocent = Innocent(server)
        innocent.start()
        for name, make in many.items():
            seconds = []
            for size in (1 << 17, 1 << 20):
                body = make(size).encode()
                start = time.monotonic()
                status, answer = post(server, paths.get(name, "/tokenize"), body, timeout=300)
                seconds.append(time.monotonic() - start)
                check(status < 500, f"{name}: {status} {answer[:200]}")
            times[name] = [round(s, 3) for s in seconds]
            if seconds[1] > 24 * max(seconds[0], 0.05):
                slow.append(f"{name}: {seconds[0]:.2f} s for 128 KiB, {seconds[1]:.2f} s for 1 MiB")
        note = innocent.finish()
    a.counts["seconds of 128 KiB and 1 MiB"] = times
    check(not slow, "; ".join(slow))
    check(innocent.slowest < 5, f"/health took {innocent.slowest:.1f} s")
    return note


def models(a):
    """Mutated model files: an answer or an exit code of its own, never a signal, never a hang."""
    good = STORIES.read_bytes()
    head = good.index(b"general.alignment") + 4096 if b"general.alignment" in good else 150_000
    codes, file = collections.Counter(), a.folder / "mutated.gguf"
    for number in range(a.n(400)):
        rng, data = random.Random(a.seed + number), bytearray(good)
        kind = rng.randrange(5)
        if kind == 0:
            data = data[:rng.randrange(len(data))]
        for _ in range(rng.choice((1, 1, 2, 8, 64))):
            at = rng.randrange(64 if kind == 1 else head if kind < 4 else len(data)) % max(len(data), 1)
            data[at:at + 1] = bytes([rng.randrange(256)])
        if kind == 2:
            at = rng.randrange(head)
            data[at:at + 8] = rng.choice([0, 1, 2**31, 2**32, 2**63, 2**64 - 1]).to_bytes(8, "little")
        file.write_bytes(data)
        try:
            done = a.ridge("run", "-m", file, "-p", "Once", "-n", 4, "--temp", 0, "-c", 64, "--quiet", timeout=60)
        except subprocess.TimeoutExpired:
            check(False, f"a model hangs: {keep(bytes(data), f'model-{number}.gguf')}")
        codes[done.returncode] += 1
        if done.returncode not in (0, 2, 4, 5):
            check(False, f"exit {done.returncode}: {keep(bytes(data), f'model-{number}.gguf')}: {done.stderr[-300:]}")
        check(done.returncode == 0 or done.stderr.strip(), "an exit without a word")
    a.counts["models"] = dict(codes)
    return f"{sum(codes.values())} files"


def states(a):
    """Damaged prompt caches and folders of prefixes: used whole or not at all, the text stays."""
    words = ("run", "-m", STORIES, "-p", "Once upon a time there was a dog. The dog", "-n", 12, "--temp", 0, "--quiet")
    text = a.ridge(*words).stdout
    cache = a.folder / "prompt.kv"
    check(a.ridge(*words, "--prompt-cache", cache).stdout == text, "another text with a new cache")
    files = {path: path.read_bytes() for path in a.folder.glob("prompt.kv*")}
    check(len(files) == 2, f"{list(files)}")
    count = a.n(200)
    for number in range(count):
        rng = random.Random(a.seed + number)
        for path, data in files.items():
            path.write_bytes(data)
        path = rng.choice(list(files))
        data = bytearray(files[path])
        for _ in range(rng.choice((1, 1, 4, 100))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        if rng.random() < 0.3:
            data = data[:rng.randrange(len(data))]
        path.write_bytes(data)
        done = a.ridge(*words, "--prompt-cache", cache)
        if done.returncode != 0 or done.stdout != text:
            check(False, f"exit {done.returncode}, {done.stdout!r} with {keep(bytes(data), f'state-{number}')}: "
                         f"{done.stderr[-300:]}")
    folder, n_starts = a.folder / "states", a.n(8)
    prompt = {"prompt": "Once upon a time there was a little girl. " * 10, "max_tokens": 12, "seed": 5}
    for number in range(n_starts):
        rng = random.Random(a.seed + number)
        with a.serve(STORIES, "--state-dir", folder, "--checkpoint-every", 64, "--patience", 0) as server:
            answer = server.complete(**prompt)
            check(number == 0 or answer == first, f"another text from damaged prefixes: {answer!r}")
            first = answer
            check(server.stop(30)[0] == 0, "no clean end")
        for path in folder.rglob("*.kv"):
            data = bytearray(path.read_bytes())
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(data[:rng.randrange(1, len(data))] if rng.random() < 0.3 else data)
    a.counts["states"] = {"prompt caches": count, "starts": n_starts}
    return f"{count} prompt caches, {n_starts} starts over damaged prefixes"


def kills(a):
    """Writers killed at any moment: what they write appears whole or not at all, and the next one is not disturbed."""
    rows, made = a.folder / "rows.jsonl", a.folder / "made.gguf"
    measure = ("eval", "ppl", "-m", STORIES, "-f", ROOT / "README.md", "-c", 64, "--chunks", 1, "--quiet", "--results",
               rows)
    quantize = ("quantize", REFERENCE, made, "--type", "q4_0", "--allow-requantize", "--force", "--quiet")
    check(a.ridge(*quantize).returncode == 0, "quantize fails")
    wanted, count = made.read_bytes(), a.n(60)
    for number in range(count):
        rng = random.Random(a.seed + number)
        process = subprocess.Popen([a.program, *map(str, measure if number % 2 else quantize)],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.random() * (0.06 if number % 2 else 1.5))  # about as long as they take
        process.send_signal(rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM)))
        process.wait(60)
        check(made.read_bytes() == wanted, "a file that is neither the old nor the new one")
        if number % 8 == 1 and rows.exists():
            with rows.open("ab") as file:  # as a killed writer of another program would leave it
                file.write(b'{"cut": [1, ')
    with rows.open("ab") as file:
        file.write(b'{"cut": [1, ')
    done = a.ridge(*measure)
    check(done.returncode == 0 and "cut" in done.stderr, f"exit {done.returncode}: {done.stderr[-300:]}")
    lines = rows.read_text().splitlines()
    check(all(isinstance(json.loads(line), dict) for line in lines), "a row that is no object")
    check(not any("cut" in json.loads(line) for line in lines), "a cut row was joined")
    check(a.ridge(*quantize).returncode == 0, "quantize fails after kills")
    left = [path.name for path in a.folder.iterdir() if path.name.endswith(".part")]
    check(not left, f"temporaries stay: {left}")
    a.counts["kills"] = {"processes": count, "rows": len(lines)}
    return f"{count} processes, {len(lines)} rows"


def signals(a):
    """SIGTERM while long bodies are read and streams run: a clean end, at once."""
    slowest = 0
    for number in range(a.n(6)):
        with a.serve(STORIES, "--patience", 1) as server:
            body = ('{"content": "x", "y": [' + "{}," * 2_000_000 + "{}]}").encode()
            for path, data in [("/tokenize", body)] * 4 + [("/v1/completions",
                                                            json.dumps({"prompt": "a", "max_tokens": 1500,
                                                                        "stream": True}).encode())] * 8:
                connection = socket.create_connection(("127.0.0.1", server.port))
                threading.Thread(target=swallow, args=(connection, b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: "
                                                                   b"%d\r\n\r\n" % (path.encode(), len(data)) + data),
                                 daemon=True).start()
            time.sleep(0.2 * number)
            code, seconds = server.stop(30)
            check(code == 0, f"exit {code}: {server.errors()}")
            slowest = max(slowest, seconds)
    a.counts["signals"] = {"slowest end, s": round(slowest, 1)}
    return f"ends within {slowest:.1f} s"


def swallow(connection, data):
    try:
        connection.sendall(data)
        while connection.recv(1 << 16):
            pass
    except OSError:
        pass
    connection.close()


TESTS = [requests, mixed_load, crowds, deep_documents, long_documents, models, states, kills, signals]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ridge")
    parser.add_argument("--scale", type=float, default=1, help="times as many attempts as by default")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", choices=[test.__name__ for test in TESTS])
    options = parser.parse_args()
    print(f"seed    {options.seed}", flush=True)
    attempts = Attempts(options.ridge, options.scale, options.seed)
    try:
        failures = run([test for test in TESTS if options.only in (None, test.__name__)], attempts)
    finally:
        shutil.rmtree(attempts.folder, ignore_errors=True)
    print(json.dumps(attempts.counts))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
