#!/usr/bin/env python3
"""`ridge serve`, `chat` and speculation of two ranks under mpirun: the texts of `ridge run` and of one process, and
what clients and processes see when ranks end, die or stop.

Usage: ranks_test.py RIDGE   exits 77 where there is no mpirun or the build has no MPI
"""
import concurrent.futures
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from ridge_server import REFERENCE, STORIES, RidgeServer, check, run

MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2"]
TWO = ["--tp", "2"]
GREEDY = ["--temp", "0", "--isa", "scalar", "--quiet"]
LIMIT_S = 60


def command(ridge, *words, ranks=2, stdin="", layout=TWO):
    """What a command that succeeds prints."""
    words = [ridge, *map(str, words)]
    done = subprocess.run(words if ranks == 1 else MPIRUN + words + list(layout), capture_output=True, text=True,
                          timeout=LIMIT_S, check=False, input=stdin)
    check(done.returncode == 0, (words, done.returncode, done.stderr))
    return done.stdout.rstrip("\n")


def served(ridge, model, *flags, ranks=2):
    name = f"two-{os.getpid()}-{time.monotonic_ns()}"
    flags = (*flags, "--isa", "scalar", "-t", 1, "--alias", name)
    server = (RidgeServer(ridge, model, *flags) if ranks == 1
              else RidgeServer(ridge, model, *flags, *TWO, launcher=MPIRUN))
    server.name = name
    return server


def together(server, requests):
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda request: server.complete(**request), requests))


def ended(process, name, seconds=30):
    """The exit code of a job; no process of it may be left."""
    code = process.wait(seconds)
    end = time.monotonic() + 5
    while ranks_of(name):
        check(time.monotonic() < end, f"left: {ranks_of(name)}")
        time.sleep(0.1)
    return code


def ranks_of(name):
    """Processes of the ranks that have this word on their command line, the first one first."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else [b""]
            environment = (entry / "environ").read_bytes() if words[0].endswith(b"ridge") else b""
        except OSError:
            continue
        if name.encode() not in words:
            continue
        for variable in environment.split(b"\0"):
            if variable.startswith(b"OMPI_COMM_WORLD_RANK="):
                found.append((int(variable.split(b"=")[1]), int(entry.name)))
    return [process for _, process in sorted(found)]


def clients_get_the_text_of_run(ridge):
    """Several at once, while pages are shared and prefixes are found."""
    prompts = ["The capital of France is", "The capital of Italy is", "The history of", "Water is"]
    requests = [{"prompt": prompt, "max_tokens": 12, "temperature": 0} for prompt in prompts]
    with served(ridge, REFERENCE) as server:
        texts = together(server, requests * 2)
    for prompt, text in list(zip(prompts, texts))[:2]:
        for ranks in (1, 2):
            check(command(ridge, "run", "-m", REFERENCE, "-p", prompt, "-n", 12, *GREEDY, ranks=ranks) == text,
                  (prompt, ranks, text))
    check(texts[:4] == texts[4:], texts)


def stages_answer_as_one_process(ridge):
    requests = [{"prompt": prompt, "max_tokens": 12, "temperature": 0}
                for prompt in ("The capital of France is", "The history of")]
    texts = []
    for flags in ((), ("--pp", "2")):
        launcher = MPIRUN if flags else ()
        with RidgeServer(ridge, REFERENCE, "--isa", "scalar", "-t", 1, "--spec-type", "lookup", *flags,
                         launcher=launcher) as server:
            texts.append(together(server, requests))
    check(texts[0] == texts[1], texts)
    lines, words = "Hello\n/regen\nWhat is Paris?\n", ["chat", "-m", REFERENCE, "-n", 10, *GREEDY]
    check(command(ridge, *words, stdin=lines, layout=("--pp", "2")) == command(ridge, *words, stdin=lines, ranks=1),
          "another conversation")


def bitnet_is_bit_for_bit_that_of_one_process(ridge):
    """Ranks of BitNet cut no row: also what is generated, with caches of several formats, is the same."""
    requests = [{"prompt": [1 + (seed * 31 + i * 7) % 500 for i in range(20 + 30 * seed)], "max_tokens": 40,
                 "seed": seed, "kv_quant": kv}
                for seed in range(3) for kv in ("q8_0", "rotor-3:rounding=nearest")]
    texts = []
    for ranks in (1, 2):
        with served(ridge, "synth:tiny-bitnet", "--kv-pools", 3, "--kv-gib", 0.1, ranks=ranks) as server:
            texts.append(together(server, requests))
            pools = server.get("/kv?by=layer")["pools"]
            check(len(pools) == 3 and sum(pool["checkpoints"] for pool in pools.values()) > 0, pools)
    check(texts[0] == texts[1], texts)


def parked_sequences_go_on(ridge):
    """A cache for half of the requests: pages go to the first rank's memory and back to all."""
    requests = [{"prompt": f"Story number {number}.", "max_tokens": 250, "seed": number, "ignore_eos": True}
                for number in range(8)]
    with served(ridge, STORIES, "--kv-gib", 0.0012, "--parallel", 8, "--checkpoints", 4, "-c", 512) as server:
        texts = together(server, requests)
        server.wait_idle()
        parked = server.get("/status")["totals"]["parked"]
        check(parked > 0, "nothing was parked")
        for request, text in list(zip(requests, texts))[:3]:
            check(server.complete(**request) == text, f"another text than alone: {request}")
    return f"parked {parked} times"


def prefixes_outlive_the_server(ridge):
    """What two ranks kept, one process goes on with, and the other way round."""
    request = {"prompt": "Once upon a time there was a little girl. " * 12, "max_tokens": 20, "temperature": 0}
    cached = []
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (2, 1, 2):
            with served(ridge, STORIES, "--state-dir", folder, "--checkpoint-every", 64, "-c", 512,
                        ranks=ranks) as server:
                status, answer = server.call("POST", "/v1/completions", request)
                check(status == 200, answer)
                cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
                os.kill(ranks_of(server.name)[0] if ranks > 1 else server.process.pid, signal.SIGTERM)
                check(ended(server.process, server.name) == 0, server.errors())
    check(cached[0] == 0 and min(cached[1:]) > 64, cached)


def draft_tokens_change_no_text(ridge):
    words = ["-m", REFERENCE, "-p", "The capital of France is", "-n", 24, *GREEDY]
    with tempfile.TemporaryDirectory() as folder:
        expected = command(ridge, "run", *words, "--save-state", f"{folder}/alike.kv")
        kinds = (["lookup"], ["draft-mtp"], ["draft", "--draft-model", REFERENCE])
        for kind in kinds:
            text = command(ridge, "run", *words, "--spec-type", *kind, "--save-state", f"{folder}/led.kv")
            check(text == expected, (kind, text, expected))
            check(pathlib.Path(f"{folder}/led.kv").read_bytes() == pathlib.Path(f"{folder}/alike.kv").read_bytes(),
                  f"{kind}: another state")
        more = ["-m", REFERENCE, "-p", " and", "-n", 6, *GREEDY, "--load-state"]
        check(command(ridge, "run", *more, f"{folder}/led.kv", "--spec-type",
                      "lookup") == command(ridge, "run", *more, f"{folder}/alike.kv", ranks=1),
              "a loaded state goes on otherwise")
    row = json.loads(command(ridge, "run", *words, "--spec-type", "draft-mtp", "--json"))
    check(row["spec_proposed"] > 0, row)
    # states go back by checkpoints
    delta = ["-m", "synth:tiny-delta@weights=f32", "--prompt-ids", "1,2,3,1,2,3,1,2,3", "-n", 30, *GREEDY]
    check(command(ridge, "run", *delta, "--spec-type", "lookup") == command(ridge, "run", *delta),
          "a model with states")
    requests = [{"prompt": "a b c a b c a b c", "max_tokens": 24, "temperature": 0, "speculative": spec}
                for spec in (True, False)]
    with served(ridge, STORIES, "--spec-type", "lookup") as server:
        texts = together(server, requests)
        check(texts[0] == texts[1], texts)


def conversations_are_those_of_one_process(ridge):
    lines = "Hello\n/regen\nWhat is Paris?\n/kv q8_0\n/undo\nAnd Rome?\n"
    words = ["chat", "-m", REFERENCE, "-n", 10, *GREEDY]
    check(command(ridge, *words, stdin=lines) == command(ridge, *words, stdin=lines, ranks=1), "another conversation")
    debate = ["chat", "-m", STORIES, "--debate", "Ann: brave", "Bob: shy", "--turns", 3, "-n", 8, *GREEDY]
    check(command(ridge, *debate) == command(ridge, *debate, ranks=1), "another debate")


def what_ranks_cannot_do_is_refused(ridge):
    for words, why in ((["chat", "--debate", str(REFERENCE), str(STORIES)], "ranks share one model"),
                       (["serve", "-m", str(STORIES), "--device", "cuda:0"], ""),
                       (["bench", "decode", "-m", str(STORIES), "--spec-type", "lookup"], "ranks have no speculation")):
        done = subprocess.run(MPIRUN + [ridge, *words, *TWO], capture_output=True, text=True, timeout=LIMIT_S,
                              check=False)
        check(done.returncode != 0 and why in done.stderr and not done.stdout.strip(),
              (words, done.returncode, done.stderr))


def stream(server):
    """A client in the middle of a long answer: its socket's reader."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "The", "max_tokens": 3900, "ignore_eos": True,
                                                              "stream": True}),
                       {"Content-Type": "application/json"})
    answer = connection.getresponse()
    check(answer.readline().startswith(b"data: "), "no event came")
    return answer


def hurt(ridge, sign, victim):
    """Sends a signal to a rank, or to mpirun, while a client reads; the exit code, the client's last lines and the
    log."""
    with served(ridge, REFERENCE, "--rank-timeout", 3) as server:
        answer = stream(server)
        os.kill(server.process.pid if victim == "mpirun" else ranks_of(server.name)[victim], sign)
        start = time.monotonic()
        code = ended(server.process, server.name)
        seconds = time.monotonic() - start
        check(seconds < 20, f"{sign.name} of {victim}: {seconds:.1f} s")
        try:
            events = answer.read()
        except http.client.IncompleteRead as read:  # the first rank itself was killed
            events = read.partial
        return code, events.decode(), server.errors()


def sigterm_ends_all_cleanly(ridge):
    code, events, log = hurt(ridge, signal.SIGTERM, 0)
    check(code == 0 and events.rstrip().endswith("data: [DONE]") and "stopped" in log, (code, events[-300:], log))
    code, events, log = hurt(ridge, signal.SIGTERM, "mpirun")
    check(code != 0 and events.rstrip().endswith("data: [DONE]"), (code, events[-300:], log))


def a_dead_rank_ends_answers_with_its_name(ridge):
    code, events, log = hurt(ridge, signal.SIGKILL, 1)
    check(code != 0 and '"error"' in events and "rank 1 (host" in events and "has ended" in events,
          (code, events[-300:], log))


def a_dead_first_rank_leaves_nothing(ridge):
    code, _, log = hurt(ridge, signal.SIGKILL, 0)
    check(code != 0, (code, log))


def a_stopped_rank_is_named(ridge):
    code, events, log = hurt(ridge, signal.SIGSTOP, 1)
    check(code == 1 and '"error"' in events and "no answer from rank 1 (host" in log and "within 3 s" in events,
          (code, events[-300:], log))


def a_conversation_ends_with_its_ranks(ridge):
    """A rank that stops between two messages is named at the second one."""
    seed = str(time.monotonic_ns())
    words = [*MPIRUN, ridge, "chat", "-m", str(STORIES), "-n", "4", "--json", "--quiet", "--seed", seed,
             "--rank-timeout", "2", *TWO]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as job:
        job.stdin.write("Hello\n")
        job.stdin.flush()
        check("content" in job.stdout.readline(), "no answer")
        os.kill(ranks_of(seed)[1], signal.SIGSTOP)
        job.stdin.write("More\n")
        job.stdin.flush()
        code = ended(job, seed)
        log = job.stderr.read()
        check(code == 1 and "no answer from rank 1 (host" in log, (code, log))


def idle_ranks_wait_in_peace(ridge):
    """Longer than --rank-timeout, and without work for the processor."""
    with served(ridge, STORIES, "--rank-timeout", 1) as server:
        server.complete("Once", max_tokens=2)
        time.sleep(0.5)
        used = [sum(float(field)
                    for field in pathlib.Path(f"/proc/{ranks_of(server.name)[1]}/stat").read_text().split()[13:15])]
        time.sleep(3)
        used.append(sum(float(field)
                        for field in pathlib.Path(f"/proc/{ranks_of(server.name)[1]}/stat").read_text().split()[13:15]))
        share = (used[1] - used[0]) / os.sysconf("SC_CLK_TCK") / 3
        check(share < 0.3, f"{share:.2f} of a processor")
        check(server.complete("Once", max_tokens=2), "nothing after the pause")
    return f"{100 * share:.0f} % of a processor"


TESTS = [clients_get_the_text_of_run, stages_answer_as_one_process, bitnet_is_bit_for_bit_that_of_one_process,
         parked_sequences_go_on, prefixes_outlive_the_server,
         draft_tokens_change_no_text, conversations_are_those_of_one_process, what_ranks_cannot_do_is_refused,
         sigterm_ends_all_cleanly,
         a_dead_rank_ends_answers_with_its_name, a_dead_first_rank_leaves_nothing, a_stopped_rank_is_named,
         a_conversation_ends_with_its_ranks, idle_ranks_wait_in_peace]


def main():
    ridge = sys.argv[1]
    os.environ["RIDGE_THREADS"] = "1"  # threads of several ranks would wait for each other's turns
    alone = subprocess.run([ridge, "run", "-m", STORIES, "-p", "Once", "-n", "2", *TWO], capture_output=True, text=True,
                           timeout=LIMIT_S, check=False)
    if shutil.which("mpirun") is None or alone.returncode == 6:
        print("skipped: no mpirun, or a build without MPI (apt-get install libopenmpi-dev openmpi-bin)")
        return 77
    chosen = [test for test in TESTS if test.__name__ in sys.argv[2:] or len(sys.argv) == 2]
    return 1 if run(chosen, ridge) else 0


if __name__ == "__main__":
    sys.exit(main())
