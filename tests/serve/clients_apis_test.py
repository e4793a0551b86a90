#!/usr/bin/env python3
"""ridge serve with clients of its newer APIs: the packages `anthropic`, `openai` (responses), `litellm` and
`langchain-openai`.

Usage: clients_apis_test.py RIDGE [--install]

Packages are taken as clients_test.py takes `openai`. The part of a package that is missing is skipped.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import struct
import sys
import tempfile

from agent import TOOLS, Chat, Messages, Responses, edit_files
from clients_test import KEY, TEMPLATE, gguf_with_text, in_environment_with
from ridge_server import STORIES, Failed, RidgeServer, check, run

PACKAGES = ["openai", "anthropic", "litellm", "langchain-openai"]
USER = [{"role": "user", "content": "Once upon a time"}]
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, "old": {"type": "boolean"}},
          "required": ["city", "old"],
          "additionalProperties": False}


def raises(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise Failed(f"no {kind.__name__}")


# ---- anthropic

class Anthropic:
    def __init__(self, server):
        import anthropic  # only here: it may be missing
        self.anthropic, self.url = anthropic, server.url
        self.client = anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0)

    def ask(self, **fields):
        return {"model": "stories", "max_tokens": 16, "messages": USER, **fields}


def anthropic_messages_stream_and_count(api):
    fields = api.ask(system="Tell stories.", extra_body={"seed": 3})
    whole = api.client.messages.create(**fields)
    check(whole.role == "assistant" and whole.stop_reason == "max_tokens" and whole._request_id.startswith("req_"),
          whole)
    with api.client.messages.stream(**fields) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    check(text == whole.content[0].text == final.content[0].text and final.stop_reason == "max_tokens", (text, final))
    check(final.usage.output_tokens == 16 == whole.usage.output_tokens, final.usage)
    counted = api.client.messages.count_tokens(model="stories", system="Tell stories.", messages=USER)
    check(counted.input_tokens == final.usage.input_tokens + final.usage.cache_read_input_tokens,
          (counted, final.usage))


def anthropic_tools_are_called(api):
    edit_files(Messages, lambda body: api.client.messages.create(model="stories", **body).model_dump(exclude_none=True))
    body = {**Messages("Write a note.").body("write_file"), "model": "stories"}
    with api.client.messages.stream(**body) as stream:
        final = stream.get_final_message()
    check(final.stop_reason == "tool_use" and final.content[-1].input == {"path": "notes.txt", "text": "one line\n"},
          final)


def anthropic_documents_follow_their_schema(api):
    answer = api.client.messages.create(**api.ask(
        max_tokens=60, extra_body={"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}))
    check(set(json.loads(answer.content[0].text)) == {"city", "old"}, answer)


def anthropic_models_are_listed(api):
    check([(model.id, model.created_at.year > 2000) for model in api.client.models.list()] == [("stories", True)],
          "list")


def anthropic_errors_are_the_packages_own(api):
    error = raises(api.anthropic.BadRequestError,
                   lambda: api.client.messages.create(**api.ask(extra_body={"temperature": 1000})))
    check(error.body["error"]["type"] == "invalid_request_error" and error.request_id.startswith("req_"), error.body)
    image = [{"role": "user",
              "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}]}]
    error = raises(api.anthropic.BadRequestError, lambda: api.client.messages.create(**api.ask(messages=image)))
    check('"image" is not supported' in str(error), error)
    with api.anthropic.Anthropic(base_url=api.url, api_key="wrong", max_retries=0) as stranger:
        raises(api.anthropic.AuthenticationError, lambda: stranger.messages.create(**api.ask()))


# ---- openai: responses

class OpenAi:
    def __init__(self, server):
        import openai  # only here: it may be missing
        self.openai = openai
        self.client = openai.OpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0)

    def ask(self, **fields):
        return {"model": "stories", "input": "Once upon a time", "max_output_tokens": 16, "extra_body": {"seed": 3},
                **fields}


def responses_stream_and_count(api):
    whole = api.client.responses.create(**api.ask())
    check(whole.status == "incomplete" and whole.usage.output_tokens == 16, whole)
    events = list(api.client.responses.create(**api.ask(stream=True)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    check(text == whole.output_text and events[-1].response.usage == whole.usage, (text, events[-1]))
    ending = api.ask(text={"format": {"type": "json_schema", "name": "city", "schema": SCHEMA}}, max_output_tokens=60)
    with api.client.responses.stream(**ending) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        check(text == stream.get_final_response().output_text and set(json.loads(text)) == {"city", "old"}, text)


def responses_go_on_from_stored_ones(api):
    first = api.client.responses.create(**api.ask())
    check(api.client.responses.retrieve(first.id).output_text == first.output_text, "retrieve")
    second = api.client.responses.create(**api.ask(input="And then?", previous_response_id=first.id))
    check(second.usage.input_tokens > first.usage.total_tokens and second.previous_response_id == first.id,
          second.usage)
    api.client.responses.delete(first.id)
    raises(api.openai.NotFoundError, lambda: api.client.responses.retrieve(first.id))
    hidden = api.client.responses.create(**api.ask(store=False))
    raises(api.openai.NotFoundError, lambda: api.client.responses.retrieve(hidden.id))


def responses_are_parsed_as_classes(api):
    from pydantic import BaseModel  # the package needs it, so it is there

    class City(BaseModel):
        old: bool
        rank: int

    answer = api.client.responses.parse(**api.ask(text_format=City, max_output_tokens=60))
    check(isinstance(answer.output_parsed, City), answer)


def responses_call_tools(api):
    edit_files(Responses, lambda body: api.client.responses.create(model="stories",
                                                                   **body).model_dump(exclude_none=True))
    edit_files(Chat, lambda body: api.client.chat.completions.create(model="stories",
                                                                     **body).model_dump(exclude_none=True))
    with api.client.responses.stream(model="stories", **Responses("Write a note.").body("write_file")) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    check("response.function_call_arguments.done" in kinds and final.output[0].name == "write_file", (kinds, final))


def responses_are_refused_with_the_packages_errors(api):
    error = raises(api.openai.BadRequestError,
                   lambda: api.client.responses.create(**api.ask(tools=[{"type": "web_search"}])))
    check(error.param == "tools[0].type", error.body)
    error = raises(api.openai.BadRequestError,
                   lambda: api.client.responses.create(**api.ask(previous_response_id="resp_x")))
    check(error.code == "previous_response_not_found", error.body)


def texts_are_embedded(api):
    answer = api.client.embeddings.create(model="stories", input=["The dog", "The cat"])  # the package asks for base64
    floats = api.client.embeddings.create(model="stories", input="The cat", encoding_format="float")
    check(answer.data[1].embedding == [struct.unpack("f", struct.pack("f", value))[0]
                                       for value in floats.data[0].embedding], "base64 and floats differ")
    check(abs(sum(value * value for value in answer.data[0].embedding) - 1) < 1e-4 and answer.usage.prompt_tokens > 0,
          answer.usage)


def models_are_listed(api):
    check([model.id for model in api.client.models.list()] == ["stories"], "list")


# ---- litellm

class LiteLlm:
    def __init__(self, server):
        os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # asks no other server
        import litellm  # only here: it may be missing
        self.litellm = litellm
        litellm.suppress_debug_info = True
        self.ways = [{"model": "openai/stories", "api_base": server.url + "/v1", "api_key": KEY},
                     {"model": "anthropic/stories", "api_base": server.url, "api_key": KEY}]


def litellm_chats_over_both_apis(api):
    for way in api.ways:
        whole = api.litellm.completion(messages=USER, max_tokens=16, temperature=0, **way)
        check(whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 16, whole)
        chunks = list(api.litellm.completion(messages=USER, max_tokens=16, temperature=0, stream=True, **way))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        check(text == whole.choices[0].message.content, (way, text, whole))


def litellm_calls_tools_over_both_apis(api):
    for way in api.ways:
        edit_files(Chat, lambda body: api.litellm.completion(**body, **way).model_dump(exclude_none=True))


def litellm_answers_responses(api):
    answer = api.litellm.responses(input="Once upon a time", max_output_tokens=16, **api.ways[0])
    check(answer.usage.output_tokens == 16, answer)


# ---- langchain-openai

class LangChain:
    def __init__(self, server):
        import langchain_openai  # only here: it may be missing
        self.chats = [langchain_openai.ChatOpenAI(model="stories", base_url=server.url + "/v1", api_key=KEY,
                                                  max_tokens=150, temperature=0, max_retries=0,
                                                  use_responses_api=responses) for responses in (False, True)]


def langchain_chats_over_both_apis(api):
    for chat in api.chats:
        whole = chat.invoke("Once upon a time")
        check(whole.usage_metadata["output_tokens"] > 0, whole)
        check("".join(str(part.text) for part in chat.stream("Once upon a time")) == str(whole.text), whole)


def langchain_calls_tools_and_structures(api):
    name = "write_file"
    about, schema = TOOLS[name]
    tool = {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}
    for chat in api.chats:
        calls = chat.bind_tools([tool], tool_choice=name).invoke("Write a note.").tool_calls
        check([(call["name"], call["args"]) for call in calls] == [(name, {"path": "notes.txt", "text": "one line\n"})],
              calls)
        city = chat.with_structured_output({**SCHEMA, "title": "city", "description": "A city."},
                                           method="json_schema").invoke("Where?")
        check(set(city) == {"city", "old"}, city)


PARTS = {
    "anthropic": (Anthropic, [anthropic_messages_stream_and_count, anthropic_tools_are_called,
                              anthropic_documents_follow_their_schema,
                              anthropic_models_are_listed, anthropic_errors_are_the_packages_own]),
    "openai": (OpenAi, [responses_stream_and_count, responses_go_on_from_stored_ones, responses_are_parsed_as_classes,
                        responses_call_tools, texts_are_embedded, models_are_listed,
                        responses_are_refused_with_the_packages_errors]),
    "litellm": (LiteLlm, [litellm_chats_over_both_apis, litellm_calls_tools_over_both_apis, litellm_answers_responses]),
    "langchain-openai": (LangChain, [langchain_chats_over_both_apis, langchain_calls_tools_and_structures]),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ridge", help="the program")
    parser.add_argument("--install", action="store_true", help="install the packages in a virtual environment")
    options = parser.parse_args()
    in_environment_with(PACKAGES, options.install)
    found = [name for name in PARTS if importlib.util.find_spec(name.replace("-", "_"))]
    for name in PARTS.keys() - set(found):
        print(f"skipped: no Python package {name} here or in $RIDGE_OPENAI_VENV (--install makes one), and so its part")
    if not found:
        return 77
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        with_template, keys = pathlib.Path(folder) / "stories.gguf", pathlib.Path(folder) / "keys"
        with_template.write_bytes(gguf_with_text(STORIES.read_bytes(), "tokenizer.chat_template", TEMPLATE))
        keys.write_text(KEY + "\n")
        with RidgeServer(options.ridge, with_template, "--ctx-size", 2048, "--api-key-file", keys, "--alias",
                         "stories") as server:
            for name in found:
                make, tests = PARTS[name]
                failures += run(tests, make(server))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
