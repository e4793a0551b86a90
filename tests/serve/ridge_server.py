"""A `ridge serve` process for tests, and what they ask it. Standard library only."""
import http.client
import json
import pathlib
import re
import signal
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "models/ridge-ref-q8_0.gguf"
STORIES = ROOT / "models/stories260K.gguf"


class Failed(AssertionError):
    pass


def check(condition, message):
    if not condition:
        raise Failed(message)


class RidgeServer:
    """Runs until stop() or kill(); as a context it is killed at the end. `launcher`: words in front of the
    program's."""

    def __init__(self, program, model, *flags, launcher=()):
        self.log = tempfile.NamedTemporaryFile(prefix="ridge-serve-", suffix=".log")
        self.process = subprocess.Popen([*launcher, program, "serve", "-m", str(model), "--port", "0",
                                         *map(str, flags)], text=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log)
        self.start_lines = []
        for line in self.process.stdout:  # the last line that it prints says how to call it from Python
            self.start_lines.append(line.rstrip("\n"))
            if line.startswith("python"):
                break
        found = re.search(r"^page +(http://127\.0\.0\.1:(\d+))/$", "\n".join(self.start_lines), re.MULTILINE)
        if not found:
            self.process.kill()
            raise Failed(f"the server did not start: {self.errors()}")
        self.url, self.port = found[1], int(found[2])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def errors(self):
        """What it wrote to standard error, the end of it."""
        return pathlib.Path(self.log.name).read_text(errors="replace")[-4000:]

    def alive(self):
        return self.process.poll() is None

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def stop(self, seconds):
        """SIGTERM. The exit code and how long it took; fails beyond the given seconds."""
        start = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds), time.monotonic() - start
        except subprocess.TimeoutExpired:
            raise Failed(f"still there {seconds} s after SIGTERM: {self.errors()}") from None

    def call(self, method, path, body=None, timeout=120):
        """Status and parsed answer of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, None if body is None else json.dumps(body),
                               {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(
                text) if answer.headers.get_content_type() == "application/json" else text.decode()
        finally:
            connection.close()

    def get(self, path):
        status, answer = self.call("GET", path)
        check(status == 200, (path, status, answer))
        return answer

    def complete(self, prompt, **fields):
        """The text of a completion."""
        status, answer = self.call("POST", "/v1/completions", {"prompt": prompt, **fields})
        check(status == 200, (status, answer))
        return answer["choices"][0]["text"]

    def wait_idle(self, seconds=60):
        """Until nothing runs or waits and only checkpoints hold pages."""
        end = time.monotonic() + seconds
        while True:
            slots, pages = self.get("/status"), self.get("/kv")["pages"]
            if not slots["running"] and slots["queue"] == 0 and pages["used"] == 0:
                return
            check(time.monotonic() < end,
                  f"not idle after {seconds} s: {slots['queue']} wait, {slots['running']}, {pages}")
            time.sleep(0.05)

    def rss_mib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


def run(tests, *arguments):
    """Calls the tests in turn, prints how each went; the number that failed."""
    failures = 0
    for test in tests:
        start = time.monotonic()
        try:
            note = test(*arguments)
            print(f"ok      {test.__name__} ({time.monotonic() - start:.1f} s){': ' + note if note else ''}",
                  flush=True)
        except Exception as error:  # one test's trouble must not hide the others
            failures += 1
            print(f"FAILED  {test.__name__}: {type(error).__name__}: {error}", flush=True)
    return failures
