#!/usr/bin/env python3
"""ridge serve under clients that vanish, crawl, flood and lie, and under signals.

Usage: faults_test.py RIDGE [--long]

After each fault the server must live, run nothing, hold no page but those of checkpoints, and give the same text as
before for the same request. --long repeats the faults thousands of times; its memory must not grow with them.
"""
import argparse
import concurrent.futures
import contextlib
import json
import random
import resource
import socket
import struct
import sys
import tempfile
import threading
import time

from ridge_server import STORIES, RidgeServer, check, run

PROBE = {"prompt": "Once upon a time", "max_tokens": 40, "seed": 11}
MODEL_FLAGS = ("--ctx-size", 2048, "--quiet")


class Faults:
    def __init__(self, server, long):
        self.server, self.long = server, long
        self.random = random.Random(1)
        self.text = server.complete(**PROBE)

    def count(self, short, long):
        return long if self.long else short

    def connect(self, receive_bytes=None):
        connection = socket.socket()
        connection.settimeout(30)
        if receive_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.connect(("127.0.0.1", self.server.port))
        return connection

    def send(self, body, path="/v1/completions", receive_bytes=None):
        """A connection on which a request was sent."""
        return self.send_raw(request_bytes(body, path), receive_bytes)

    def send_raw(self, data, receive_bytes=None):
        connection = self.connect(receive_bytes)
        with contextlib.suppress(OSError):  # the server may answer and close before it has read all
            connection.sendall(data)
        return connection

    def is_well(self):
        check(self.server.alive(), f"the server ended with {self.server.process.returncode}: {self.server.errors()}")
        self.server.wait_idle(120)
        text = self.server.complete(**PROBE)
        check(text == self.text, f"another text than before: {text!r}, {self.text!r}")


def request_bytes(body, path="/v1/completions"):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data


def long_stream(seed):
    return {"prompt": "Once", "max_tokens": 1900, "ignore_eos": True, "stream": True, "seed": seed}


def reset(connection):
    """Closes with RST instead of FIN."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def status_of(connection):
    """The status of one answer; None when the connection was closed without."""
    connection.settimeout(60)
    try:
        data = connection.recv(1 << 16)
    except ConnectionError:
        data = b""
    connection.close()
    return int(data.split()[1]) if data.startswith(b"HTTP/1.1 ") else None


def clients_vanish(faults):
    """At every moment of a stream, with FIN and RST; some never read a byte."""
    def vanish(number):
        rng = random.Random(number)
        connection = faults.send(long_stream(number))
        kind = number % 4
        if kind != 0:
            connection.recv(rng.choice((1, 100, 10_000)))
        time.sleep(rng.random() * 0.02)
        if kind == 2:
            connection.shutdown(socket.SHUT_WR)
            time.sleep(0.005)
        reset(connection) if number % 2 else connection.close()

    count = faults.count(200, 5000)
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        list(pool.map(vanish, range(count)))
    return f"{count} clients"


def slow_readers_slow_nobody(faults):
    """Two of the streams are of many MB, more than the server keeps for one client: those it must give up."""
    texts = [faults.server.complete("The dog", max_tokens=60, seed=seed) for seed in range(8)]
    cancelled = faults.server.get("/status")["totals"]["cancelled"]
    readers = [faults.send(long_stream(seed) | ({"logprobs": 20, "n": 8} if seed % 4 == 1 else {}), receive_bytes=4096)
               for seed in range(8)]
    done = threading.Event()

    def crawl(connection):
        with contextlib.suppress(OSError):
            while not done.wait(1) and connection.recv(1):
                pass

    threads = [threading.Thread(target=crawl, args=(connection,)) for connection in readers]
    for thread in threads:
        thread.start()
    end = time.monotonic() + faults.count(4, 40)
    rounds = 0
    try:
        while time.monotonic() < end:
            again = [faults.server.complete("The dog", max_tokens=60, seed=seed) for seed in range(8)]
            check(again == texts, "other texts beside slow readers")
            rounds += 1
        given_up = faults.server.get("/status")["totals"]["cancelled"] - cancelled
        check(given_up >= 8 or not faults.long, f"only {given_up} sequences of clients that do not read were given up")
    finally:
        done.set()
        for thread, connection in zip(threads, readers):
            thread.join()
            connection.close()
    return f"8 readers, {rounds} rounds of 8 texts, {given_up} sequences given up"


def slow_senders_are_cut(faults):
    """Heads that grow by a byte: cut after ten seconds."""
    senders = [faults.connect() for _ in range(faults.count(20, 200))]
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100
    start, cut = time.monotonic(), set()
    for at in range(len(head)):
        for number, sender in enumerate(senders):
            if number in cut:
                continue
            try:
                sender.send(head[at:at + 1])
            except OSError:
                cut.add(number)
        if len(cut) == len(senders):
            break
        check(time.monotonic() - start < 40, f"{len(senders) - len(cut)} senders are still served")
        if at == 10:
            faults.is_well()
        time.sleep(0.5)
    seconds = time.monotonic() - start
    check(len(cut) == len(senders) and seconds > 5, (len(cut), seconds))
    for sender in senders:
        sender.close()
    return f"{len(senders)} senders cut after {seconds:.0f} s"


def idle_connections_stop_nobody(faults):
    wanted = min(faults.count(1000, 10_000), resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200)
    connections = []
    try:
        for number in range(wanted):
            connections.append(faults.connect())
            if number % 3 == 0:
                connections[-1].sendall(b"GET /hea")
        for _ in range(3):
            check(faults.server.complete(**PROBE) == faults.text, "another text beside idle connections")
    finally:
        for connection in connections:
            connection.close()
    return f"{len(connections)} connections"


def nonsense_is_refused(faults):
    """Random bytes, bytes changed in a good request, and heads that are no HTTP."""
    good = request_bytes(PROBE)
    heads = [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
             b"GET / HTTP/0.9\r\n\r\n", b"GET /\r\n\r\n",
             b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
             b"GET /%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
             b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
             b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
             good.replace(b"Content-Length: ", b"Content-Length: -"),
             good.replace(b"Content-Length: ", b"Content-Length: 99999999999999999999"),
             good.replace(b"Host:", b"Transfer-Encoding: chunked\r\nHost:"),
             good.replace(b"Content-Length", b"Content-Length: 3\r\nContent-Length")]
    count = faults.count(200, 5000)
    wrong = []
    for number in range(count):
        kind = number % 3
        if kind == 0:
            data = faults.random.randbytes(faults.random.randrange(1, 3000))
        elif kind == 1:
            data = bytearray(good)
            for _ in range(faults.random.randrange(1, 4)):
                data[faults.random.randrange(len(data))] = faults.random.randrange(256)
        else:
            data = heads[number // 3 % len(heads)]
        connection = faults.send_raw(bytes(data))
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        status = status_of(connection)
        if kind != 1 and status is not None and status not in (501, 505) and not 400 <= status < 500:
            wrong.append((bytes(data[:60]), status))
    check(not wrong, wrong[:5])
    return f"{count} requests"


def bodies_too_large_are_refused(faults):
    before = faults.server.rss_mib()
    for _ in range(faults.count(2, 10)):
        connection = faults.connect()
        size = 100 << 20
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size)
        sent, piece = 0, b" " * (1 << 20)
        with contextlib.suppress(OSError):
            while sent < size:
                sent += connection.send(piece)
        check(status_of(connection) in (413, None), "a body of 100 MB was taken")
        chunked = faults.connect()
        chunked.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(OSError):
            for _ in range(100):
                chunked.sendall(b"100000\r\n" + piece + b"\r\n")
        check(status_of(chunked) in (413, None), "a chunked body of 100 MB was taken")
    refused = faults.connect()
    refused.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (100 << 20))
    check(status_of(refused) == 413, "no 413")
    check(faults.server.rss_mib() < before + 64, (before, faults.server.rss_mib()))


def documents_of_all_kinds_end_in_a_status(faults):
    deep = lambda depth: b'{"prompt": ' + b"[" * depth + b"]" * depth + b"}"
    numbers = ["1e999", "-1e999", "1e308", "99999999999999999999999999", "-9223372036854775809", "18446744073709551616",
               "0.1e-400", "-0", "1" * 5000]
    bodies = [deep(63), deep(100), deep(100_000), b"[" * 4_000_000, b'{"a":' * 1_000_000, b'{"prompt": "\xc3\x28"}',
              b'{"prompt": "\xed\xa0\x80"}',
              b'{"prompt": "\\ud800"}', b'{"prompt": "\\u0000"}', b"\xff\xfe{\x00}", b"", b"null", b'{"prompt": "a"',
              b'{"prompt": "a"}{"b": 1}',
              b'{"prompt": [-1]}', b'{"prompt": [99999]}', b'{"prompt": [1e300]}', b'{"prompt": []}',
              b'{"prompt": [[]]}', b'{"prompt": [[1], "a", {}]}',
              json.dumps({"prompt": "a", "stop": ["x" * 1_000_000]}).encode(),
              json.dumps({"prompt": "a", "logit_bias": {str(i): 1 for i in range(500)}}).encode(),
              json.dumps({"prompt": ["a"] * 129}).encode(),
              json.dumps({"prompt": "a", "grammar": "root ::= " + "(" * 10_000}).encode(),
              json.dumps({"prompt": "a", "grammar": "root ::= root"}).encode(),
              json.dumps({"prompt": "a", "kv_quant": "f16" + "/" * 10_000}).encode()]
    for field in ("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "n", "repeat_penalty",
                  "repeat_last_n", "presence_penalty", "logprobs"):
        bodies += [f'{{"prompt": "a", "max_tokens": 2, "{field}": {number}}}'.encode() for number in numbers]
    for schema in ({"$ref": "#"}, {"$ref": "#/x"}, {"pattern": "(a*)*b"}, {"type": "string", "maxLength": 10**9},
                   {"minItems": 10**9, "type": "array"}, {"enum": []}):
        bodies.append(json.dumps({"messages": [{"role": "user", "content": "a"}], "max_tokens": 2,
                                  "response_format": {"type": "json_schema",
                                                      "json_schema": {"name": "x", "schema": schema}}}).encode())
    paths = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/apply-template", "/kv")
    seen = {}
    for number, body in enumerate(bodies):
        for path in paths if number < 26 or faults.long else paths[:2]:
            status = status_of(faults.send(body, path))
            seen[status] = seen.get(status, 0) + 1
            check(status is not None and status < 500, (path, body[:100], status))
    return ", ".join(f"{count} times {status}" for status, count in sorted(seen.items()))


def all_end_well_when_pages_run_out(faults):
    """On a server with a cache for half of them, and room to park the others."""
    requests = [{"prompt": f"Story number {number}.", "max_tokens": 300, "seed": number, "ignore_eos": True}
                for number in range(faults.count(12, 48))]
    with RidgeServer(faults.server.process.args[0], STORIES, *MODEL_FLAGS, "--kv-gib", 0.0016, "--parallel", 12,
                     "--checkpoints", 4) as small:
        with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
            together = list(pool.map(lambda request: small.complete(**request), requests))
        small.wait_idle()
        parked, pages = small.get("/status")["totals"]["parked"], small.get("/kv")["pages"]["total"]
        check(parked > 0, f"nothing was parked: {pages} pages are too many")
        for request, text in zip(requests[:faults.count(6, 48)], together):
            check(small.complete(**request) == text, f"another text than alone: {request}")
        check(small.alive(), small.errors())
    return f"{len(requests)} requests of 300 tokens, {pages} pages, parked {parked} times"


def sigterm_ends_a_busy_server(faults):
    seconds = []
    for number in range(faults.count(1, 10)):
        with RidgeServer(faults.server.process.args[0], STORIES, *MODEL_FLAGS, "--patience", number % 2) as server:
            other = Faults(server, faults.long)
            clients = [other.send(long_stream(seed)) for seed in range(40)]
            clients[0].recv(1)
            clients += [other.connect() for _ in range(20)]
            code, took = server.stop(30)
            check(code == 0, f"exit code {code}: {server.errors()}")
            seconds.append(took)
            for client in clients:
                client.close()
    return f"40 streams, {len(seconds)} times, at most {max(seconds):.1f} s"


def a_kill_loses_nothing_but_checkpoints(faults):
    """kill -9 at any moment, also while the prefixes are written, and a new start on the same folder."""
    cached = []
    with tempfile.TemporaryDirectory() as folder:
        flags = (*MODEL_FLAGS, "--state-dir", folder, "--patience", 0, "--checkpoint-every", 64)
        prompt = {"prompt": "Once upon a time there was a little girl. " * 20, "max_tokens": 30, "seed": 5}
        text = None
        for number in range(faults.count(3, 20)):
            with RidgeServer(faults.server.process.args[0], STORIES, *flags) as server:
                status, answer = server.call("POST", "/v1/completions", prompt)
                check(status == 200, answer)
                text = text or answer["choices"][0]["text"]
                check(answer["choices"][0]["text"] == text, "another text after a restart")
                cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
                stream = Faults(server, faults.long).send(long_stream(number))
                stream.recv(1)
                if number % 2 == 0:
                    server.stop(30)  # this one saves
                elif number % 4 == 1:
                    server.kill()
                else:
                    server.process.terminate()
                    time.sleep(faults.random.random() * 0.1)
                    server.kill()
                stream.close()
    check(cached[0] == 0 and min(cached[1:]) > 0, cached)
    return f"{len(cached)} starts, cached tokens {cached[:4]}"


TESTS = [clients_vanish, slow_readers_slow_nobody, slow_senders_are_cut, idle_connections_stop_nobody,
         nonsense_is_refused, bodies_too_large_are_refused,
         documents_of_all_kinds_end_in_a_status]
OTHER_SERVERS = [all_end_well_when_pages_run_out, sigterm_ends_a_busy_server, a_kill_loses_nothing_but_checkpoints]


def and_is_well(test):
    """The test, and the server's state and memory after it."""
    def tested(faults):
        before = faults.server.rss_mib()
        note = test(faults) or ""
        faults.is_well()
        return f"{note}; {before:.0f} MiB before, {faults.server.rss_mib():.0f} after"
    tested.__name__ = test.__name__
    return tested


def memory_does_not_grow(faults):
    """What the first round needs stays; two rounds more must not need more."""
    rounds = [faults.server.rss_mib()]
    for _ in range(2):
        clients_vanish(faults)
        nonsense_is_refused(faults)
        documents_of_all_kinds_end_in_a_status(faults)
        faults.is_well()
        rounds.append(faults.server.rss_mib())
    check(rounds[-1] < rounds[0] + 48, f"MiB after each round: {rounds}")
    return " ".join(f"{mib:.0f}" for mib in rounds) + " MiB"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ridge", help="the program")
    parser.add_argument("--long", action="store_true", help="thousands of each")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with RidgeServer(options.ridge, STORIES, *MODEL_FLAGS, "--patience", 0) as server:
        faults = Faults(server, options.long)
        failures = run([*map(and_is_well, TESTS), memory_does_not_grow, *OTHER_SERVERS], faults)
        code, seconds = server.stop(30)
        if code != 0:
            print(f"FAILED  the server ended with {code}: {server.errors()}")
            failures += 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
