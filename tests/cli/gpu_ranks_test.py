#!/usr/bin/env python3
"""Runs `ridge --device cuda --tp` as processes under mpirun, a GPU each: text and logits of one GPU, files of caches,
benches, a server, which GPU a process takes, and processes that are killed or stopped in the middle of a step.

Usage: gpu_ranks_test.py RIDGE MODELS   exits 77 where there is no mpirun, no NCCL, or fewer than two GPUs
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "serve"))

from ranks_test import MPIRUN, children_of_ranks, expect, logits_in  # noqa: E402
from ridge_server import RidgeServer  # noqa: E402

LIMIT_S = 180
GPUS = ["--device", "cuda"]


def run(words):
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def n_gpus():
    """As nvidia-smi lists them."""
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"])
    return len(listed.stdout.split()) if listed.returncode == 0 else 0


class Job:
    """The same words with one GPU and with several processes."""

    def __init__(self, ridge):
        self.ridge = ridge

    def __call__(self, n, words, device="cuda"):
        words = [self.ridge, *words, "--device", device]
        return run(words if n == 1 else MPIRUN + ["-np", str(n)] + words + ["--tp", str(n)])


def check_texts(ask, model, folder, most):
    def text(n_tokens, prompt):
        return ["run", "-m", model, "-n", str(n_tokens), "--temp", "0", "--quiet", "-p", prompt]

    first = text(16, "The capital of France is")
    expected = ask(1, first)
    for n in (2, 2, most):
        got = ask(n, first)
        expect(f"{n} processes write one GPU's text, once", got.returncode == 0 and got.stdout.strip()
               == expected.stdout.strip(), got)
    got = ask(2, first + ["--spec-type", "lookup"])
    expect("and so they do with speculation", got.returncode == 0 and got.stdout.strip() == expected.stdout.strip(),
           got)

    ids = folder / "ids.json"
    ids.write_text(json.dumps([(7 + 31 * i) % 500 for i in range(40)]))
    logits = {}
    for n in (1, 2):
        out = folder / f"logits-{n}.safetensors"
        got = ask(n, ["eval", "logits", "-m", model, "--ids", str(ids), "-o", str(out), "--quiet"])
        logits[n] = logits_in(out) if got.returncode == 0 else []
    square = sum(a * a for a in logits[1])
    error = sum((a - b) ** 2 for a, b in zip(logits[1], logits[2]))
    expect("logits are one GPU's but for the order of sums", len(logits[1]) == len(logits[2]) > 0 and error < 2e-4
           * square, got)

    for kv in ("f16", "rotor-3:rounding=nearest"):
        then = text(4, " and") + ["--kv-quant", kv]  # few: texts may part where two tokens are nearly as likely
        states = {n: str(folder / f"{n}-{kv[:5]}.kv") for n in (1, 2)}
        for n, state in states.items():
            got = ask(n, first + ["--kv-quant", kv, "--save-state", state])
            expect(f"{n} write the state of a {kv} cache", got.returncode == 0 and os.path.exists(state), got)
        for writers in (1, 2):
            texts = [ask(readers, then + ["--load-state", states[writers]]) for readers in (1, 2)]
            expect(f"a {kv} state of {writers} goes on with 1 and 2", all(got.returncode == 0 for got in texts) and
                   texts[0].stdout.strip() == texts[1].stdout.strip(), texts[1])


def check_measures(ask, model, corpus):
    got = ask(2, ["bench", "decode", "-m", model, "-p", "8", "-n", "4", "-r", "1", "-o", "json"])
    rows = json.loads(got.stdout) if got.returncode == 0 else []
    expect("a bench is checked, and shown once", len(rows) == 2 and all(row["checked"] and row["n_ranks"] == 2
                                                                        for row in rows), got)
    got = ask(2, ["bench", "batch", "-m", model, "-npp", "8", "-ntg", "4", "-npl", "4", "-o", "json"])
    rows = json.loads(got.stdout) if got.returncode == 0 else []
    expect("so is one of a batch", len(rows) == 1 and rows[0]["checked"] and rows[0]["n_ranks"] == 2, got)
    got = ask(2, ["profile", "-m", model, "-r", "4", "--json"])
    parts = {part["op"] for part in (json.loads(got.stdout) if got.returncode == 0 else {"parts": []})["parts"]}
    expect("a profile has sums and a gather", {"all_reduce", "gather"} <= parts, got)
    for command in (["kld", "--kv", "q8_0"], ["ppl"]):
        values = []
        for n in (1, 2):
            got = ask(n, ["eval", *command, "-m", model, "-f", str(corpus), "-c", "64", "--chunks", "2", "--json"])
            values.append(json.loads(got.stdout) if got.returncode == 0 else None)
        expect(f"eval {command[0]} of 2 processes has the rows of one GPU", values[0] and values[1] and
               len(values[0]) == len(values[1]), got)


def check_server(ridge, model):
    name = f"gpus-{os.getpid()}"
    request = {"prompt": "The capital of France is", "max_tokens": 12, "temperature": 0}
    texts = []
    for launcher, flags in (((), ()), ((*MPIRUN, "-np", "2"), ("--tp", "2", "--rank-timeout", "5"))):
        with RidgeServer(ridge, model, *GPUS, *flags, "--alias", name, launcher=launcher) as server:
            texts.append([server.complete(**request) for _ in range(2)])
            if not flags:
                continue
            os.kill(children_of_ranks(name)[-1], signal.SIGKILL)
            start = time.monotonic()
            code = server.process.wait(30)
            print("ok   a server whose second process is killed ends:", code, f"{time.monotonic() - start:.1f} s")
            time.sleep(1)
            if code == 0 or children_of_ranks(name):
                sys.exit(f"FAILED: code {code}, left {children_of_ranks(name)}\n{server.errors()}")
    if texts[0] != texts[1] or texts[0][0] != texts[0][1]:
        sys.exit(f"FAILED: a server of 2 processes answers {texts[1]}, one GPU {texts[0]}")
    print("ok   a server of 2 processes answers as one GPU")


def check_places(ask, model, n_here):
    text = ["run", "-m", model, "-p", "Once", "-n", "2", "--quiet"]
    got = ask(2, text, "cuda:1")
    expect("one GPU for two processes is refused", got.returncode == 2 and "have one GPU" in got.stderr, got)
    got = ask(2, text, "cuda:0,1")
    expect("so are two for each", got.returncode == 2 and "every process has one GPU" in got.stderr, got)
    got = ask(n_here + 1, text)
    expect("and more processes than GPUs: exit code 6", got.returncode == 6 and "has no GPU" in got.stderr, got)
    got = ask(2, text + ["--kernel", "all_reduce=one-shot"])
    expect("one-shot sums are refused", got.returncode == 2 and "belong to several processes" in got.stderr, got)


def hurt(ridge, model, n, sign, marker, victim):
    """Sends a signal to one of n processes while they take steps; the outcome, and the seconds until the job ended."""
    words = MPIRUN + ["-np", str(n), ridge, "bench", "decode", "-m", model, "-p", "0", "-n", "256", "-r", "100000",
                      "--no-check",
                      "--seed", marker, *GPUS, "--tp", str(n), "--rank-timeout", "4", "-o", "jsonl"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        begin = time.monotonic()
        while len(children_of_ranks(marker)) < n and job.poll() is None and time.monotonic() - begin < LIMIT_S:
            time.sleep(0.1)
        time.sleep(20)  # models are loaded, and NCCL has started
        ranks = children_of_ranks(marker)
        if len(ranks) == n:
            os.kill(ranks[victim], sign)
        start = time.monotonic()
        out, err = job.communicate(timeout=LIMIT_S)
        seconds = time.monotonic() - start
    return subprocess.CompletedProcess(words, job.returncode, out, err), seconds


def main():
    ridge, models = sys.argv[1], pathlib.Path(sys.argv[2])
    model = str(models / "ridge-ref-q8_0.gguf")
    n_here = n_gpus()
    if shutil.which("mpirun") is None or n_here < 2:
        print(f"skipped: {n_here} GPUs, two are needed, and mpirun")
        return 77
    ask = Job(ridge)
    most = 4 if n_here >= 4 else 2  # GPUs that the shipped model's heads can share
    got = ask(2, ["run", "-m", model, "-p", "Once", "-n", "2", "--quiet"])
    if got.returncode == 6:  # a build without CUDA or MPI, or no NCCL
        print("skipped:", got.stderr.splitlines()[0] if got.stderr else got.returncode)
        return 77
    with tempfile.TemporaryDirectory() as folder:
        check_texts(ask, model, pathlib.Path(folder), most)
    check_measures(ask, model, models / "wikitext-2-excerpt.txt")
    check_places(ask, model, n_here)
    check_server(ridge, model)
    for n, sign, marker, victim in ((2, signal.SIGKILL, "78001", 1), (2, signal.SIGKILL, "78002", 0),
                                    (2, signal.SIGSTOP, "78003", 1),
                                    *[(most, signal.SIGKILL, "78004", 2)] * (most > 2)):
        got, seconds = hurt(ridge, model, n, sign, marker, victim)
        expect("    it ran until then", "n_gen" not in got.stdout and "error: --" not in got.stderr, got)
        expect(f"{sign.name} of process {victim} of {n}: the job ends in bounded time",
               got.returncode != 0 and seconds < 30, got)
        if sign == signal.SIGSTOP:
            expect("the one that hangs is named", "no answer from rank 1" in got.stderr, got)
        time.sleep(1)
        expect(f"{sign.name}: no process is left", not children_of_ranks(marker), got)
    return 0


if __name__ == "__main__":
    sys.exit(main())
