#!/usr/bin/env python3
"""ridge serve with clients that people use: curl, and the `openai` package of Python.

Usage: clients_test.py RIDGE [--install]

The package is taken from this Python, or from the virtual environment $RIDGE_OPENAI_VENV. --install makes one there, or
in a temporary folder, with pip. Without the package, or without curl, their part is skipped.
"""
import argparse
import asyncio
import importlib.util
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import venv

from ridge_server import REFERENCE, STORIES, Failed, RidgeServer, check, run

KEY = "sk-of-the-test"
PROMPT = "The history of Paris"
# Hermes' way to show tools and to write calls, as small as it gets.
TEMPLATE = """{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>
<tool_call>{"name": NAME, "arguments": {}}</tool_call>
{% endif %}{% for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"unit": {"enum": ["C", "F"]},
                                     "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["unit", "days"], "additionalProperties": False}}}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {
    "type": "object", "properties": {}, "additionalProperties": False}}}


def gguf_with_text(source, key, value):
    """The bytes of a GGUF file with one more text among its metadata."""
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def number(at, form="<Q"):
        return struct.unpack_from(form, source, at)[0]

    def after_value(at, kind):
        if kind == 8:
            return at + 8 + number(at)
        if kind != 9:
            return at + sizes[kind]
        kind, count, at = number(at, "<I"), number(at + 4), at + 12
        for _ in range(count):
            at = after_value(at, kind)
        return at

    n_tensors, n_values, at, alignment = number(8), number(16), 24, 32
    for _ in range(n_values):
        name = source[at + 8:at + 8 + number(at)]
        at += 8 + number(at)
        if name == b"general.alignment":
            alignment = number(at + 4, "<I")
        at = after_value(at + 4, number(at, "<I"))
    end_of_values = at
    for _ in range(n_tensors):
        at += 8 + number(at)
        at += 4 + 8 * number(at, "<I") + 4 + 8
    data = -(-at // alignment) * alignment
    key, value = key.encode(), value.encode()
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(value)) + value
    head = source[:16] + struct.pack("<Q", n_values + 1) + source[24:end_of_values] + entry + source[end_of_values:at]
    return head + bytes(-len(head) % alignment) + source[data:]


# ---- curl

class Curl:
    def __init__(self, server, tools_server):
        self.server, self.tools_server = server, tools_server

    def raw(self, path, *flags, body=None, server=None):
        """Status and body as bytes. A body is posted."""
        data = [] if body is None else ["--data-binary", "@-"]
        done = subprocess.run(["curl", "-sS", "--max-time", "300", "-w", "\n%{http_code}", *flags, *data,
                               (server or self.server).url + path],
                              input=body if body is None or isinstance(body, bytes) else json.dumps(body).encode(),
                              capture_output=True)
        check(done.returncode == 0, f"curl ended with {done.returncode}: {done.stderr.decode()}")
        text, status = done.stdout.rsplit(b"\n", 1)
        return int(status), text

    def json(self, path, *flags, body=None, server=None, status=200):
        got, text = self.raw(path, *flags, body=body, server=server)
        check(got == status, (got, text[:400]))
        return json.loads(text)

    def refused(self, status, path, *flags, body=None, server=None, **fields):
        """Checks OpenAI's shape of an error, and some of its fields."""
        error = self.json(path, *flags, body=body, server=server, status=status)["error"]
        check(set(error) == {"message", "type", "param", "code"} and error["message"], error)
        check({name: error[name] for name in fields} == fields, error)

    def events(self, path, body):
        """The events of a stream, which must end with [DONE]."""
        status, text = self.raw(path, "-N", body={**body, "stream": True})
        check(status == 200, text)
        check(text.endswith(b"\n\ndata: [DONE]\n\n"), text[-200:])
        return [json.loads(line[6:]) for line in text.decode().split("\n\n") if line.startswith("data: {")]


def curl_completes_a_text(curl):
    answer = curl.json("/v1/completions", body={"prompt": PROMPT, "max_tokens": 12, "temperature": 0})
    choice, usage = answer["choices"][0], answer["usage"]
    check(answer["object"] == "text_completion" and choice["text"] and choice["finish_reason"] == "length", answer)
    check(usage["completion_tokens"] == 12 and usage["total_tokens"] == usage["prompt_tokens"] + 12, usage)


def the_command_that_the_server_prints_works(curl):
    line = next(line for line in curl.server.start_lines if line.startswith("curl"))
    done = subprocess.run(["sh", "-c", line[9:] + " -sS"], capture_output=True, text=True)
    check(done.returncode == 0 and json.loads(done.stdout)["choices"][0]["text"], done)


def curl_streams_a_text(curl):
    fields = {"prompt": PROMPT, "max_tokens": 12, "seed": 3}
    events = curl.events("/v1/completions", {**fields, "stream_options": {"include_usage": True}})
    whole = curl.json("/v1/completions", body=fields)
    check("".join(choice["text"] for event in events for choice in event["choices"]) == whole["choices"][0]["text"],
          events)
    check(events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 12, events[-1])
    check(len({event["id"] for event in events}) == 1, "one answer, several ids")


def curl_chats(curl):
    fields = {"messages": [{"role": "user", "content": "Where is Paris?"}], "max_tokens": 12, "seed": 3}
    answer = curl.json("/v1/chat/completions", body=fields)
    message = answer["choices"][0]["message"]
    check(answer["object"] == "chat.completion" and message["role"] == "assistant" and message["content"], answer)
    events = curl.events("/v1/chat/completions", fields)
    check(events[0]["choices"][0]["delta"]["role"] == "assistant", events[0])
    check("".join(event["choices"][0]["delta"].get("content", "") for event in events) == message["content"], events)
    check(events[-1]["choices"][0]["finish_reason"] == answer["choices"][0]["finish_reason"], events[-1])


def errors_have_a_status_and_openais_shape(curl):
    text, chat = "/v1/completions", "/v1/chat/completions"
    curl.refused(400, text, body=b"{no json", type="invalid_request_error")
    curl.refused(400, text, body=b"[]")
    curl.refused(400, text, body=b'{"prompt": "\xff\xfe"}')
    curl.refused(400, text, body=b"[" * 100_000)
    curl.refused(400, text, body={}, param="prompt")
    curl.refused(400, chat, body={"prompt": PROMPT}, param="messages")
    for name, value in {"temperature": 1e9, "max_tokens": 0.5, "n": 1000, "stop": [""], "seed": 0.5,
                        "logit_bias": {"x": 1}, "stream": "yes",
                        "kv_quant": "nothing-3", "best_of": 3, "top_p": "0.5"}.items():
        curl.refused(400, text, body={"prompt": PROMPT, name: value}, param=name)
    # curl asks before it sends so much
    curl.refused(400, text, body={"prompt": "word " * 400_000}, param="prompt", code="context_length_exceeded")
    curl.refused(404, "/v2/completions", code="not_found")
    curl.refused(400, "/v1/embeddings", body={"input": "x", "pooling": "cls"}, param="pooling")
    curl.refused(405, text)
    curl.refused(403, text, "-H", "Host: example.org", body={"prompt": PROMPT})


def keys_open_the_server(curl):
    server, body = curl.tools_server, {"prompt": "Once", "max_tokens": 4}
    curl.refused(401, "/v1/completions", body=body, server=server, code="invalid_api_key")
    curl.refused(401, "/v1/models", "-H", "Authorization: Bearer wrong", server=server, code="invalid_api_key")
    curl.json("/v1/completions", "-H", f"Authorization: Bearer {KEY}", body=body, server=server)
    check(curl.json("/health", server=server) == {"status": "ok"}, "health")
    check(curl.raw("/", server=server)[0] == 200, "the page needs no key: it asks for it")


def health_models_and_metrics_answer(curl):
    check(curl.json("/health") == {"status": "ok"}, "health")
    check(curl.raw("/health", "-I")[0] == 200, "HEAD")
    check([model["id"] for model in curl.json("/v1/models")["data"]] == ["ridge-ref-q8_0"], "models")
    status, text = curl.raw("/metrics")
    rows = [line for line in text.decode().splitlines() if not line.startswith("# ")]
    wrong = [row for row in rows if not re.fullmatch(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [-+0-9.e]+', row)]
    check(status == 200 and not wrong, wrong)
    values = dict(row.rsplit(" ", 1) for row in rows)
    check(float(values["ridge_generated_tokens_total"]) > 0 and float(values["ridge_requests_failed_total"]) == 0,
          values)
    check(values["ridge_first_token_seconds_count"] == values['ridge_first_token_seconds_bucket{le="+Inf"}'], values)


def every_request_chooses_its_cache(curl):
    body = {"prompt": PROMPT, "max_tokens": 8}
    curl.json("/v1/completions", body={**body, "kv_quant": "rotor-3"})
    check(sorted(curl.json("/kv")["pools"]) == ["f16", "rotor-3"], "two pools")
    curl.refused(400, "/v1/completions", body={**body, "kv_quant": "q8_0"}, param="kv_quant")
    check(curl.json("/kv", body={"kv_quant": "rotor-3"}) == {"kv_quant": "rotor-3"}, "set")
    check(curl.json("/props")["kv_quant"] == "rotor-3", "props")
    curl.json("/kv", body={"kv_quant": "f16"})


def connections_are_kept_and_upgrades_ignored(curl):
    url = curl.server.url + "/health"
    done = subprocess.run(["curl", "-sS", "-o", os.devnull, "-w", "%{num_connects} ", url, "-o", os.devnull, url],
                          capture_output=True, text=True)
    check(done.stdout == "1 0 ", done)
    if "HTTP2" in subprocess.run(["curl", "--version"], capture_output=True, text=True).stdout:
        check(curl.raw("/health", "--http2")[0] == 200, "with an Upgrade to h2c that the server need not follow")
    check(curl.raw("/health", "--compressed")[0] == 200, "with Accept-Encoding")


CURL_TESTS = [curl_completes_a_text, the_command_that_the_server_prints_works, curl_streams_a_text, curl_chats,
              errors_have_a_status_and_openais_shape,
              keys_open_the_server, health_models_and_metrics_answer, every_request_chooses_its_cache,
              connections_are_kept_and_upgrades_ignored]


def sigterm_ends_the_server(server):
    """With an answer under way, that --patience does not wait for."""
    body = {"prompt": PROMPT, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    client = subprocess.Popen(["curl", "-sSN", server.url + "/v1/completions", "-d", json.dumps(body)],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    client.stdout.readline()
    code, seconds = server.stop(30)
    client.communicate(timeout=10)
    check(code == 0, f"exit code {code}: {server.errors()}")
    return f"{seconds:.1f} s"


# ---- The openai package

class OpenAi:
    def __init__(self, server, tools_server):
        import openai  # only here: it may be missing
        self.openai, self.server, self.tools_server = openai, server, tools_server
        self.options = {"base_url": server.url + "/v1", "api_key": "none", "max_retries": 0, "timeout": 300}
        self.client = openai.OpenAI(**self.options)
        self.tools = openai.OpenAI(**{**self.options, "base_url": tools_server.url + "/v1", "api_key": KEY})

    def text(self, **fields):
        return self.client.completions.create(**{"model": "ridge-ref", "prompt": PROMPT, "max_tokens": 10, **fields})

    def chat(self, **fields):
        messages = [{"role": "system", "content": "Answer."},
                    {"role": "user", "content": [{"type": "text", "text": "Where is Paris?"}]}]
        return self.client.chat.completions.create(**{"model": "ridge-ref", "messages": messages,
                                                      "max_completion_tokens": 10, **fields})

    def refused(self, kind, call, **fields):
        try:
            call()
        except kind as error:
            check({name: getattr(error, name) for name in fields} == fields, (error, error.body))
        else:
            raise Failed(f"no {kind.__name__}")


def the_script_that_the_server_prints_works(api):
    line = next(line for line in api.server.start_lines if line.startswith("python"))
    command = line[9:].replace("python3", sys.executable, 1)
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    check(done.returncode == 0 and done.stdout.strip(), done)


def texts_stream_and_count(api):
    whole = api.text(seed=1)
    chunks = list(api.text(seed=1, stream=True, stream_options={"include_usage": True}))
    check("".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text, chunks)
    check(chunks[-1].choices == [] and chunks[-1].usage.total_tokens == whole.usage.total_tokens, chunks[-1])
    check(all(chunk.usage is None for chunk in chunks[:-1]), "usage before the last chunk")
    check(whole.usage.completion_tokens == 10 and whole.choices[0].finish_reason == "length", whole)


def chats_stream_and_count(api):
    whole = api.chat(seed=1)
    chunks = list(api.chat(seed=1, stream=True, stream_options={"include_usage": True}))
    check("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
          == whole.choices[0].message.content, chunks)
    check([chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
          == [whole.choices[0].finish_reason], chunks)
    check(chunks[-1].usage.total_tokens == whole.usage.total_tokens, chunks[-1])
    check(whole.choices[0].message.role == "assistant" and whole.choices[0].message.tool_calls is None, whole)


def documents_follow_their_schema(api):
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12},
                                               "people": {"type": "integer"}, "old": {"type": "boolean"}},
              "required": ["city", "people", "old"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": schema}}
    for stream in (False, True):
        answer = api.chat(response_format=form, max_completion_tokens=80, stream=stream)
        text = "".join(chunk.choices[0].delta.content or ""
                       for chunk in answer) if stream else answer.choices[0].message.content
        document = json.loads(text)
        check(list(document) == ["city", "people", "old"] and [type(value) for value in document.values()]
              == [str, int, bool], document)
    check(isinstance(json.loads(api.chat(response_format={"type": "json_object"},
                                         max_completion_tokens=40).choices[0].message.content), dict), "json_object")
    api.refused(api.openai.BadRequestError,
                lambda: api.chat(response_format={"type": "json_schema",
                                                  "json_schema": {"name": "x", "schema": {"type": "cat"}}}),
                param="response_format")


def classes_are_parsed(api):
    import pydantic  # comes with openai
    river = pydantic.create_model("River", name=(str, ...), km=(int, ...))
    answer = api.client.chat.completions.parse(model="ridge-ref", messages=[{"role": "user", "content": "A river?"}],
                                               response_format=river, max_tokens=80)
    parsed = answer.choices[0].message.parsed
    check(isinstance(parsed, river) and isinstance(parsed.km, int), answer)
    with api.client.chat.completions.stream(model="ridge-ref", messages=[{"role": "user", "content": "A river?"}],
                                            response_format=river, max_tokens=80) as stream:
        kinds = [event.type for event in stream]
        check("content.delta" in kinds and "content.done" in kinds, kinds)
        check(isinstance(stream.get_final_completion().choices[0].message.parsed, river), "the last event")


def log_probabilities_add_up(api):
    answer = api.chat(logprobs=True, top_logprobs=3, temperature=0, max_completion_tokens=8)
    tokens = answer.choices[0].logprobs.content
    check(len(tokens) == answer.usage.completion_tokens, answer)
    for token in tokens:
        check(token.logprob <= 0 and len(token.top_logprobs) == 3 and token.bytes == list(token.token.encode()), token)
        check(token.top_logprobs[0].token == token.token and token.top_logprobs[0].logprob == token.logprob, token)
    chunks = list(api.chat(logprobs=True, top_logprobs=3, temperature=0, max_completion_tokens=8, stream=True))
    streamed = [token for chunk in chunks if chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.content]
    check([token.token for token in streamed] == [token.token for token in tokens], streamed)
    old = api.text(logprobs=2, temperature=0).choices[0].logprobs
    check(len(old.tokens) == len(old.token_logprobs) == len(old.top_logprobs) == 10
          and all(len(top) == 2 for top in old.top_logprobs), old)


def choices_sample_with_seeds_of_their_own(api):
    answer = api.text(n=3, seed=5)
    alone = [api.text(seed=seed).choices[0].text for seed in (5, 6, 7)]
    check([choice.text for choice in answer.choices] == alone and [choice.index for choice in answer.choices]
          == [0, 1, 2], (answer, alone))
    check(answer.usage.completion_tokens == 30, answer.usage)
    texts = ["", "", ""]
    for chunk in api.text(n=3, seed=5, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    check(texts == alone, texts)
    check([choice.text for choice in api.text(prompt=[PROMPT, "Water is"], seed=5).choices][0] == alone[0],
          "two prompts")


def answers_end_before_a_stop(api):
    text = api.text(seed=9, max_tokens=20).choices[0].text
    stop = text.split()[3]
    answer = api.text(seed=9, max_tokens=20, stop=[stop, "never in a text"]).choices[0]
    check(answer.text == text[:text.index(stop)] and answer.finish_reason == "stop", (text, stop, answer))
    streamed = "".join(chunk.choices[0].text for chunk in api.text(seed=9, max_tokens=20, stop=stop, stream=True))
    check(streamed == answer.text, streamed)


def seeds_repeat_texts_in_a_crowd(api):
    async def crowd():
        client = api.openai.AsyncOpenAI(**api.options)
        async with client:
            return await asyncio.gather(*(client.completions.create(model="ridge-ref", prompt=PROMPT, max_tokens=10,
                                                                    seed=seed % 4) for seed in range(12)))

    alone = [api.text(seed=seed).choices[0].text for seed in range(4)]
    together = [answer.choices[0].text for answer in asyncio.run(crowd())]
    check(together == alone * 3 and len(set(alone)) > 1, (alone, together))


def errors_are_the_packages_own(api):
    bad = api.openai.BadRequestError
    api.refused(bad, lambda: api.text(temperature=1000), status_code=400, param="temperature",
                type="invalid_request_error")
    api.refused(bad, lambda: api.text(stream=True, top_p=7), param="top_p")
    api.refused(bad, lambda: api.text(prompt="word " * 5000), code="context_length_exceeded", param="prompt")
    api.refused(bad, lambda: api.chat(messages=[{"role": "user", "content": "word " * 5000}]),
                code="context_length_exceeded", param="messages")
    api.refused(bad,
                lambda: api.chat(messages=[{"role": "user",
                                            "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]),
                param="messages[0].content[0].type")
    with api.openai.OpenAI(**{**api.options, "base_url": api.tools_server.url + "/v1", "api_key": "wrong"}) as stranger:
        api.refused(api.openai.AuthenticationError, stranger.models.list, status_code=401, code="invalid_api_key")


def models_are_listed(api):
    check([model.id for model in api.client.models.list()] == ["ridge-ref-q8_0"], "list")
    check(api.client.models.retrieve("ridge-ref-q8_0").id == "ridge-ref-q8_0", "retrieve")
    api.refused(api.openai.NotFoundError, lambda: api.client.models.retrieve("gpt-9"), code="model_not_found")


def closing_a_stream_frees_its_sequence(api):
    cancelled = api.server.get("/status")["totals"]["cancelled"]
    stream = api.text(max_tokens=3000, stream=True, n=2, extra_body={"ignore_eos": True})
    for _ in range(3):
        next(stream)
    check(len(api.server.get("/status")["running"]) == 2, "two choices run")
    stream.close()
    start = time.monotonic()
    api.server.wait_idle(30)
    check(api.server.get("/status")["totals"]["cancelled"] == cancelled + 2, "not counted as cancelled")
    return f"{1e3 * (time.monotonic() - start):.0f} ms"


def full_queues_refuse_with_a_time(api):
    with RidgeServer(api.server.process.args[0], STORIES, "--parallel", 1, "--queue", 1) as server:
        client = api.openai.OpenAI(**{**api.options, "base_url": server.url + "/v1"})
        more = {"model": "stories", "prompt": "Once", "max_tokens": 500, "extra_body": {"ignore_eos": True},
                "stream": True}
        first = client.completions.create(**more)
        next(first)  # it runs, and does not wait
        second = client.completions.create(**more)
        try:
            client.completions.create(**more)
        except api.openai.RateLimitError as error:
            check(error.code == "queue_full" and int(error.response.headers["retry-after"]) > 0, error)
        else:
            raise Failed("no RateLimitError")
        first.close(), second.close()


def tools_are_called(api):
    def ask(**fields):
        return api.tools.chat.completions.create(**{"model": "stories",
                                                    "messages": [{"role": "user", "content": "Rain?"}],
                                                    "tools": [CLOCK, WEATHER],
                                                    "max_tokens": 150, "seed": 4, **fields})

    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        answer = ask(tool_choice=choice).choices[0]
        check(answer.finish_reason == "tool_calls" and len(answer.message.tool_calls) == 1
              and answer.message.content is None, answer)
        call = answer.message.tool_calls[0]
        arguments = json.loads(call.function.arguments)
        check(call.type == "function" and call.id and call.function.name in ("weather", "clock"), call)
        if choice != "required":
            check(call.function.name == "weather" and arguments["unit"] in ("C", "F") and 1 <= arguments["days"] <= 9,
                  call)
        parts = [chunk.choices[0] for chunk in ask(tool_choice=choice, stream=True)]
        streamed = [call for part in parts for call in part.delta.tool_calls or []]
        check([(one.index, one.function.name, one.function.arguments) for one in streamed]
              == [(0, call.function.name, call.function.arguments)], streamed)
        check(parts[-1].finish_reason == "tool_calls" and not any(part.delta.content for part in parts), parts)
    # The call and its result go back to the model.
    messages = [{"role": "user", "content": "Rain?"}, answer.message, {"role": "tool", "tool_call_id": call.id,
                                                                       "content": "no"}]
    check(ask(messages=messages, tool_choice="none").choices[0].message.tool_calls is None, "none")
    api.refused(api.openai.BadRequestError, lambda: ask(tool_choice={"type": "function", "function": {"name": "cat"}}),
                param="tool_choice")


OPENAI_TESTS = [the_script_that_the_server_prints_works, texts_stream_and_count, chats_stream_and_count,
                documents_follow_their_schema, classes_are_parsed,
                log_probabilities_add_up, choices_sample_with_seeds_of_their_own, answers_end_before_a_stop,
                seeds_repeat_texts_in_a_crowd,
                errors_are_the_packages_own, models_are_listed, closing_a_stream_frees_its_sequence,
                full_queues_refuse_with_a_time, tools_are_called]


def in_environment_with(packages, install):
    """Goes on in the Python of a virtual environment that has the packages, where this one lacks all of them."""
    folder = os.environ.get("RIDGE_OPENAI_VENV")
    if any(importlib.util.find_spec(name.replace("-", "_")) for name in packages) or not (folder or install):
        return
    folder = pathlib.Path(folder or tempfile.mkdtemp(prefix="ridge-openai-")).resolve()
    python = folder / "bin/python"
    missing = [name for name in packages if not list(folder.glob(f"lib/*/site-packages/{name.replace('-', '_')}"))]
    if install and missing:
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *missing], check=True)
    if python.exists() and pathlib.Path(sys.prefix).resolve() != folder:
        os.execv(python, [str(python), *sys.argv])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ridge", help="the program")
    parser.add_argument("--install", action="store_true", help="install the openai package in a virtual environment")
    options = parser.parse_args()
    in_environment_with(["openai"], options.install)
    has_curl, has_openai = bool(shutil.which("curl")), bool(importlib.util.find_spec("openai"))
    if not has_curl:
        print("skipped: no curl, and so its part")
    if not has_openai:
        print("skipped: no Python package openai here or in $RIDGE_OPENAI_VENV (--install makes one), and so its part")
    if not (has_curl or has_openai):
        return 77
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        with_template, keys = pathlib.Path(folder) / "stories.gguf", pathlib.Path(folder) / "keys"
        with_template.write_bytes(gguf_with_text(STORIES.read_bytes(), "tokenizer.chat_template", TEMPLATE))
        keys.write_text(KEY + "\n")
        with RidgeServer(options.ridge, REFERENCE, "--kv-pools", 2, "--kv-gib", 0.5, "--patience", 1) as server, \
             RidgeServer(options.ridge, with_template, "--ctx-size", 2048, "--api-key-file", keys, "--alias",
                         "stories") as tools_server:
            if has_curl:
                failures += run(CURL_TESTS, Curl(server, tools_server))
            if has_openai:
                failures += run(OPENAI_TESTS, OpenAi(server, tools_server))
            server.wait_idle()
            if has_curl:
                failures += run([sigterm_ends_the_server], server)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
