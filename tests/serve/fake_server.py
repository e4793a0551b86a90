"""Answers like ridge serve, with numbers that a test sets: the page, the live view's paths, and a slow stream of
words."""
import http.server
import json
import pathlib
import re
import socket
import threading
import time

SRC = pathlib.Path(__file__).resolve().parents[2] / "src/serve"
TYPES = {"": ("index.html", "text/html; charset=utf-8"), "style.css": ("style.css", "text/css; charset=utf-8"),
         **{name: (name, "text/javascript; charset=utf-8") for name in ("page.js", "markdown.js", "conversations.js")},
         "icon.svg": ("icon.svg", "image/svg+xml")}
POLICY = re.search(r'kPagePolicy =\s+"([^"]+)"', (SRC / "page.h").read_text(encoding="utf-8"))[1]
FIRST = ["Here ", "is ", "<b>no ", "bold</b> ", "<img src=x onerror=alert(1)> ", "and code:\n", "```cpp\n",
         "int x = 1;  // ", "<i>\n", "```\n", "Then ", "words: "]


class FakeServer:
    def __init__(self):
        self.key, self.pause, self.n_words = "", 0.05, 40
        self.cut_after, self.refuse = None, None  # words before the connection is cut; the message of a 400
        # (name, pieces of the arguments) of every answer to a chat with tools that does not follow their results
        self.calls = []
        self.models = []  # names beside the model's own
        self.script, self.reasoning = None, []  # words in place of the usual ones, and those of reasoning in front
        self.requests, self.cancelled = [], 0
        self.props = {"model": "ridge-test-1b-q8_0.gguf", "device": "CPU (test)",
                      "kv_formats": {"k": "rotor-3", "v": "q8_0"},
                      "kv_bytes_per_token": 1234, "kv_bytes_per_token_f16": 4936, "n_ctx": 4096, "template": "model",
                      "version": "0.1.0"}
        self.status = {"queue": 3, "running": [{"id": 7, "state": "decode", "n_prompt": 1200, "n_cached": 1024,
                                                "n_generated": 55, "tok_s": 21.5},
                                              {"id": 9, "state": "prompt", "n_prompt": 3000, "n_cached": 0,
                                               "n_generated": 0, "tok_s": 0}],
                      "step": {"ms_p50": 12.34, "parts_ms_p50": {"planning": 0.25, "model": 11, "sampling": 1,
                                                                 "events": 0.09},
                                "decode_seqs": 5, "prompt_tokens": 96, "tok_s": 123.4}}
        self.kv = {"pages": {"total": 400, "free": 150, "used": 120, "shared": 50, "cached": 80}, "page_bytes": 65536,
                   "slot_bytes": 8192,
                   "tokens": 4200, "sequence_bytes": 16 << 20, "sequence_f16_bytes": 64 << 20,
                   # checkpoints of short prompts take more than f16 would
                   "used_bytes": 80 << 20, "f16_bytes": 64 << 20}
        self.server, self.port = None, 0
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/"

    def start(self):
        fake, open_sockets = self, set()

        class Handler(http.server.BaseHTTPRequestHandler):
            def setup(self):
                open_sockets.add(self.request)
                super().setup()

            def finish(self):
                open_sockets.discard(self.request)
                super().finish()

            def log_message(self, *_):
                pass

            def do_GET(self):
                fake.get(self)

            def do_POST(self):
                fake.post(self)

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass

        self.server = Server(("127.0.0.1", self.port), Handler)
        self.port, self.open_sockets = self.server.server_port, open_sockets
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self):
        """Nobody listens, and what is open is cut."""
        self.server.shutdown()
        self.server.server_close()
        for one in list(self.open_sockets):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def answer(self, handler, status, body, kind="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        handler.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(data))),
                            ("Content-Security-Policy", POLICY)):
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)

    def error(self, handler, status, message, code):
        self.answer(handler, status, {"error": {"message": message, "type": "invalid_request_error", "code": code,
                                                "param": None}})

    def allowed(self, handler):
        if not self.key or handler.headers.get("Authorization") == f"Bearer {self.key}":
            return True
        self.error(handler, 401, "wrong key", "invalid_api_key")
        return False

    def get(self, handler):
        name, _, query = handler.path[1:].partition("?")
        if query and query != f"model={self.props['model']}":
            return self.error(handler, 503, "the model is not loaded: a request to it loads it", "model_not_loaded")
        if name in TYPES:
            file, kind = TYPES[name]
            return self.answer(handler, 200, (SRC / "page" / file).read_bytes(), kind)
        state = {"props": self.props, "status": self.status, "kv": self.kv,
                 "v1/models": {"data": [{"id": one} for one in [self.props["model"], *self.models]]}}.get(name)
        if state is None:
            return self.error(handler, 404, f"no {handler.path}", "not_found")
        if self.allowed(handler):
            return self.answer(handler, 200, state)
        return None

    def post(self, handler):
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        if not self.allowed(handler):
            return
        self.requests.append((handler.path, body))
        if self.refuse:
            self.error(handler, 400, self.refuse, "invalid_value")
            return
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        chat, number = handler.path.endswith("/chat/completions"), len(self.requests)
        words = self.script or FIRST + [f"r{number}w{i} " for i in range(self.n_words)]
        calls = self.calls if body.get("tools") and body["messages"][-1]["role"] != "tool" else []
        if calls:
            words = ["Let me ask. "]
        n = min(len(words), body.get("max_tokens", len(words)))

        def event(data):
            handler.wfile.write(f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode())

        def choice(word, reason=None):
            if self.props["template"] == "none":
                return {"index": 0, "text": "", "token_ids": [len(word)] if word else [], "finish_reason": reason}
            return {"index": 0, "finish_reason": reason, **({"delta": {"content": word} if word else {}} if chat
                                                            else {"text": word})}

        try:
            handler.wfile.write(b": comment\n\n")
            for word in self.reasoning if chat else []:
                event({"id": "x", "choices": [{"index": 0, "delta": {"reasoning_content": word},
                                               "finish_reason": None}]})
            for i, word in enumerate(words[:n]):
                if i == self.cut_after:
                    return
                event({"id": "x", "choices": [choice(word)]})
                time.sleep(self.pause)
            for i, (name, pieces) in enumerate(calls):
                for j, piece in enumerate(pieces):
                    head = {"id": f"call-{i}", "type": "function"} if j == 0 else {}
                    call = {"index": i, **head, "function": {**({"name": name} if j == 0 else {}), "arguments": piece}}
                    event({"id": "x", "choices": [{"index": 0, "delta": {"tool_calls": [call]},
                                                   "finish_reason": None}]})
            event({"id": "x",
                   "choices": [choice("", "tool_calls" if calls else "length" if n < len(words) else "stop")]})
            if body.get("stream_options", {}).get("include_usage"):
                event({"id": "x", "choices": [], "usage": {"prompt_tokens": 1234, "completion_tokens": n,
                                                           "total_tokens": 1234 + n,
                                                            "prompt_tokens_details": {"cached_tokens": 1000}}})
            event("[DONE]")
        except OSError:
            self.cancelled += 1
