#!/usr/bin/env python3
"""The APIs of ridge serve over plain HTTP: events, errors and heads as their clients expect them, and an agent that
edits files.

Usage: apis_test.py RIDGE
"""
import http.client
import json
import pathlib
import sys
import tempfile

from agent import DIALECTS, edit_files
from clients_test import KEY, TEMPLATE, gguf_with_text
from ridge_server import STORIES, RidgeServer, check, run

USER = [{"role": "user", "content": "Once upon a time"}]


def post(server, path, body, headers={}):
    """Status, head and text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    try:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path, data, {"Content-Type": "application/json", "x-api-key": KEY, **headers})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def ask(server, path, body):
    status, _, text = post(server, path, body)
    check(status == 200, (status, text))
    return json.loads(text)


def events(server, path, body):
    """Name and data of every event; the name is the type that the data says."""
    status, headers, text = post(server, path, {**body, "stream": True})
    check(status == 200 and headers.get_content_type() == "text/event-stream", (status, text))
    made = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        data = json.loads(data.removeprefix("data: "))
        check(name == f"event: {data['type']}", block)
        made.append(data)
    return made


def messages_stream_as_they_answer(server):
    body = {"model": "claude", "max_tokens": 16, "seed": 3, "system": "Tell stories.", "messages": USER}
    whole, stream = ask(server, "/v1/messages", body), events(server, "/v1/messages", body)
    check([event["type"] for event in stream[:3]] == ["message_start", "ping", "content_block_start"], stream[:3])
    check([event["type"] for event in stream[-3:]] == ["content_block_stop", "message_delta", "message_stop"],
          stream[-3:])
    text = "".join(event["delta"]["text"] for event in stream if event["type"] == "content_block_delta")
    check([{"type": "text", "text": text}] == whole["content"], (text, whole))
    check(stream[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}, stream[-2])
    usage = stream[-2]["usage"]
    check(usage["output_tokens"] == 16 == whole["usage"]["output_tokens"], usage)
    counted = ask(server, "/v1/messages/count_tokens", {name: body[name] for name in ("model", "system", "messages")})
    check(counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}, (counted, usage))


def messages_are_refused_in_their_form(server):
    def refused(status, kind, body, headers={}, path="/v1/messages"):
        got, head, text = post(server, path, body, headers)
        error = json.loads(text)
        check(got == status and error["type"] == "error" and error["error"]["type"] == kind
              and error["error"]["message"], (got, text))
        check(head["request-id"] == error["request_id"] and error["request_id"].startswith("req_"), (head, text))
        return error["error"]["message"]

    body = {"model": "m", "max_tokens": 4, "messages": USER}
    refused(401, "authentication_error", body, {"x-api-key": "wrong"})
    refused(400, "invalid_request_error", b"{no json")
    refused(400, "invalid_request_error", b"[" * 100_000)
    for part in ("image", "document"):
        message = refused(400, "invalid_request_error",
                          {**body, "messages": [{"role": "user", "content": [{"type": part, "source": {}}]}]})
        check(message.startswith(f'messages[0].content[0].type: "{part}" is not supported'), message)
    long = {**body, "messages": [{"role": "user", "content": "word " * 5000}]}
    check(refused(400, "invalid_request_error", long).startswith("prompt is too long: "), "too long")
    check(ask(server, "/v1/messages/count_tokens", long)["input_tokens"] > 5000, "a long prompt is counted")
    refused(400, "invalid_request_error", {**body, "thinking": {"type": "enabled"}}, path="/v1/messages/count_tokens")


def responses_stream_as_they_answer(server):
    body = {"input": "Once upon a time", "instructions": "Tell stories.", "max_output_tokens": 16, "seed": 3}
    whole, stream = ask(server, "/v1/responses", body), events(server, "/v1/responses", body)
    check([event["sequence_number"] for event in stream] == list(range(len(stream))), stream)
    kinds = [event["type"].removeprefix("response.") for event in stream]
    check(kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"], kinds)
    check(kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"], kinds)
    text = "".join(event["delta"] for event in stream if event["type"] == "response.output_text.delta")
    check(text == whole["output"][0]["content"][0]["text"] and whole["status"] == "incomplete", (text, whole))
    check(whole["usage"]["output_tokens"] == 16 and whole["instructions"] == "Tell stories.", whole)


def responses_are_stored(server):
    first = ask(server, "/v1/responses", {"input": "Once upon a time", "max_output_tokens": 8, "seed": 3})
    url, key = f"/v1/responses/{first['id']}", {"Authorization": f"Bearer {KEY}"}

    def call(method):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        connection.request(method, url, headers=key)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    check(call("GET") == (200, first), "get")
    second = ask(server, "/v1/responses", {"input": "And then?", "previous_response_id": first["id"],
                                           "max_output_tokens": 8})
    check(second["usage"]["input_tokens"] > first["usage"]["total_tokens"], (first["usage"], second["usage"]))
    check(call("DELETE") == (200, {"id": first["id"], "object": "response", "deleted": True}), "delete")
    check(call("GET")[0] == 404, "deleted")
    status, _, text = post(server, "/v1/responses", {"input": "x", "previous_response_id": first["id"]})
    check(status == 400 and json.loads(text)["error"]["code"] == "previous_response_not_found", text)


def structured_answers_follow_their_schema(server):
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, "old": {"type": "boolean"}},
              "required": ["city", "old"],
              "additionalProperties": False}
    form = {"type": "json_schema", "schema": schema}
    answer = ask(server, "/v1/responses", {"input": "Where?", "text": {"format": {**form, "name": "city"}},
                                           "max_output_tokens": 60})
    texts = [answer["output"][0]["content"][0]["text"]]
    answer = ask(server, "/v1/messages", {"max_tokens": 60, "messages": USER, "output_config": {"format": form}})
    texts.append(answer["content"][0]["text"])
    for text in texts:
        document = json.loads(text)
        check(document["city"] in ("Paris", "Rome") and isinstance(document["old"], bool), text)


def agents_edit_files(server):
    for dialect in DIALECTS:
        edit_files(dialect, lambda body: ask(server, dialect.path, body))


def several_models_take_turns(program):
    size = STORIES.stat().st_size / 2**30
    flags = ["--kv-gib", 0.05, "--memory-gib", 2.5 * (0.05 + size), "--ctx-size", 512, "--parallel", 2, "--model",
             f"second={STORIES}", "--model", f"third={STORIES}"]
    with RidgeServer(program, f"first={STORIES}", *flags) as server:
        def loaded():
            return [model["id"] for model in server.get("/v1/models")["data"] if model["status"]["value"] == "loaded"]

        check(loaded() == ["first"], loaded())
        texts = []
        for name in ("first", "second", "third", "first"):
            status, answer = server.call("POST", "/v1/completions", {"model": name, "prompt": "Once", "max_tokens": 8,
                                                                     "seed": 1})
            check(status == 200 and answer["model"] == name, answer)
            texts.append(answer["choices"][0]["text"])
        check(len(set(texts)) == 1 and loaded() == ["first", "third"], (texts, loaded()))
        status, answer = server.call("POST", "/v1/completions", {"model": "fourth", "prompt": "Once"})
        check(status == 404 and answer["error"]["code"] == "model_not_found", answer)
        code, _ = server.stop(20)
        check(code == 0, server.errors())


TESTS = [messages_stream_as_they_answer, messages_are_refused_in_their_form, responses_stream_as_they_answer,
         responses_are_stored,
         structured_answers_follow_their_schema, agents_edit_files]


def main():
    with tempfile.TemporaryDirectory() as folder:
        with_template, keys = pathlib.Path(folder) / "stories.gguf", pathlib.Path(folder) / "keys"
        with_template.write_bytes(gguf_with_text(STORIES.read_bytes(), "tokenizer.chat_template", TEMPLATE))
        keys.write_text(KEY + "\n")
        with RidgeServer(sys.argv[1], with_template, "--ctx-size", 2048, "--api-key-file", keys, "--alias",
                         "stories") as server:
            failures = run(TESTS, server)
    return 1 if failures + run([several_models_take_turns], sys.argv[1]) else 0


if __name__ == "__main__":
    sys.exit(main())
