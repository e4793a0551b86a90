"""An agent that edits files by tools, over any of the server's APIs. Standard library only.

A dialect says how one API writes tools, calls and results; `send` takes the body of a request and gives the answer as a
dict. The model is made to call by tool_choice, and schemas leave it one way to write the arguments: small models can be
agents so.
"""
import json
import pathlib
import tempfile

from ridge_server import check


def one_way(**values):
    return {"type": "object", "properties": {name: {"const": value} for name, value in values.items()},
            "required": list(values),
            "additionalProperties": False}


TOOLS = {"write_file": ("Writes a file.", one_way(path="notes.txt", text="one line\n")),
         "replace": ("Replaces a text in a file.", one_way(path="notes.txt", old="one", new="another"))}


def run_tool(folder, name, arguments):
    path = pathlib.Path(folder) / arguments["path"]
    check(path.resolve().parent == pathlib.Path(folder).resolve(), f"{path} is outside of the sandbox")
    if name == "write_file":
        path.write_text(arguments["text"])
        return f"wrote {len(arguments['text'])} characters"
    path.write_text(path.read_text().replace(arguments["old"], arguments["new"]))
    return "replaced"


class Chat:
    """OpenAI's chat completions."""
    path = "/v1/chat/completions"

    def __init__(self, prompt):
        self.messages = [{"role": "system", "content": "You edit files."}, {"role": "user", "content": prompt}]

    def body(self, tool):
        tools = [{"type": "function", "function": {"name": name, "description": about, "parameters": schema}} for name,
                 (about, schema) in TOOLS.items()]
        choice = {"type": "function", "function": {"name": tool}} if tool else "none"
        return {"messages": self.messages, "tools": tools, "tool_choice": choice, "max_tokens": 120 if tool else 12}

    def take(self, answer):
        choice = answer["choices"][0]
        calls = choice["message"].get("tool_calls") or []
        check(choice["finish_reason"] == "tool_calls" or not calls, choice)
        self.messages.append({name: value for name, value in choice["message"].items() if value is not None})
        return [(call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]

    def give(self, results):
        self.messages += [{"role": "tool", "tool_call_id": call, "content": text} for call, text in results]


class Messages:
    """Anthropic's messages."""
    path = "/v1/messages"

    def __init__(self, prompt):
        self.messages = [{"role": "user", "content": [{"type": "text", "text": prompt}]}]

    def body(self, tool):
        tools = [{"name": name, "description": about, "input_schema": schema} for name,
                 (about, schema) in TOOLS.items()]
        choice = {"type": "tool", "name": tool} if tool else {"type": "none"}
        return {"system": [{"type": "text", "text": "You edit files."}], "messages": self.messages, "tools": tools,
                "tool_choice": choice,
                "max_tokens": 120 if tool else 12}

    def take(self, answer):
        calls = [block for block in answer["content"] if block["type"] == "tool_use"]
        check(answer["stop_reason"] == "tool_use" or not calls, answer)
        self.messages.append({"role": "assistant", "content": answer["content"]})
        return [(call["id"], call["name"], call["input"]) for call in calls]

    def give(self, results):
        self.messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": text}
                                                          for call, text in results]})


class Responses:
    """OpenAI's responses: the server keeps the conversation."""
    path = "/v1/responses"

    def __init__(self, prompt):
        self.input, self.previous = prompt, None

    def body(self, tool):
        tools = [{"type": "function", "name": name, "description": about, "parameters": schema} for name,
                 (about, schema) in TOOLS.items()]
        choice = {"type": "function", "name": tool} if tool else "none"
        more = {"previous_response_id": self.previous} if self.previous else {}
        return {"instructions": "You edit files.", "input": self.input, "tools": tools, "tool_choice": choice,
                "max_output_tokens": 120 if tool else 12, **more}

    def take(self, answer):
        check(answer["status"] == "completed" or answer["output"][-1]["type"] == "message", answer)
        self.previous = answer["id"]
        return [(item["call_id"], item["name"], json.loads(item["arguments"])) for item in answer["output"]
                if item["type"] == "function_call"]

    def give(self, results):
        self.input = [{"type": "function_call_output", "call_id": call, "output": text} for call, text in results]


DIALECTS = [Chat, Messages, Responses]


def edit_files(dialect, send):
    """Two edits, each by a call of the model, then its last word."""
    talk = dialect("Write a note, then change it.")
    with tempfile.TemporaryDirectory() as folder:
        for tool in ("write_file", "replace"):
            calls = talk.take(send(talk.body(tool)))
            check([name for _, name, _ in calls] == [tool], (tool, calls))
            talk.give([(call, run_tool(folder, name, arguments)) for call, name, arguments in calls])
        check(talk.take(send(talk.body(None))) == [], "a call that nobody asked for")
        text = (pathlib.Path(folder) / "notes.txt").read_text()
    check(text == "another line\n", text)
