#!/usr/bin/env python3
"""Runs `ridge --tp` as processes under mpirun: equal text, a killed rank, a stopped one, a late one, another model.

Usage: ranks_test.py RIDGE MODELS   exits 77 where there is no mpirun or the build has no MPI
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

MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
LIMIT_S = 60


def children_of_ranks(marker):
    """Ids of processes of this test's ridge with `marker` on their command line."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"ridge") and marker.encode() in words:
            found.append(int(entry.name))
    return sorted(found)


def run(words):
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def expect(what, holds, outcome):
    if not holds:
        sys.exit(f"FAILED: {what}\ncode {outcome.returncode}\n{outcome.stdout}\n{outcome.stderr}")
    print("ok  ", what)


def hurt(ridge, model, sign, marker):
    """Sends a signal to one rank of two in the middle of a long text; mpirun's outcome and the seconds it then took."""
    words = MPIRUN + ["-np", "2", ridge, "run", "-m", model, "-p", "Once", "-n", "3000", "--ignore-eos", "--seed", marker,
                      "--tp", "2", "--rank-timeout", "3", "--quiet"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        begin = time.monotonic()
        while len(children_of_ranks(marker)) < 2 and time.monotonic() - begin < LIMIT_S:
            time.sleep(0.1)
        time.sleep(2)
        os.kill(children_of_ranks(marker)[-1], sign)
        start = time.monotonic()
        out, err = job.communicate(timeout=LIMIT_S)
        seconds = time.monotonic() - start
    return subprocess.CompletedProcess(words, job.returncode, out, err), seconds


def check_states(ridge, model, folder):
    """Files of caches under mpirun: one rank writes, all go on, and the number of ranks may change."""
    def ask(n, prompt, flags):
        words = [ridge, "run", "-m", model, "-p", prompt, "-n", "8", "--temp", "0", "--isa", "scalar", "--quiet"] + flags
        return run(words if n == 1 else MPIRUN + ["-np", str(n)] + words + ["--tp", str(n)])

    for kv in ("f16", "rotor-3:rounding=nearest"):
        cache = ["--kv-quant", kv]
        states = {n: str(folder / f"{n}-{kv[:5]}.kv") for n in (1, 2)}
        for n, state in states.items():
            got = ask(n, "The capital of France is", cache + ["--save-state", state])
            expect(f"{n} ranks write the state of a {kv} cache", got.returncode == 0 and os.path.exists(state), got)
        expected = ask(1, " and", cache + ["--load-state", states[1]])
        for writers, readers in ((2, 1), (2, 4), (2, 2), (1, 4)):
            got = ask(readers, " and", cache + ["--load-state", states[writers]])
            expect(f"a {kv} state of {writers} goes on with {readers}", got.returncode == 0 and got.stdout.strip() == expected.stdout.strip(), got)
    got = ask(2, " and", ["--load-state", states[2]])
    expect("a state of another cache is refused once", got.returncode == 4 and got.stderr.count("this cache has f16") == 1, got)

    held = str(folder / "prompt.kv")
    prompt = ["-p", "The capital of France is the biggest city", "-n", "4", "--temp", "0", "--isa", "scalar"]
    lines = []
    for n in (2, 4, 1):
        words = [ridge, "run", "-m", model] + prompt + ["--prompt-cache", held]
        got = run(words if n == 1 else MPIRUN + ["-np", str(n)] + words + ["--tp", str(n)])
        lines.append(next((line for line in got.stderr.splitlines() if line.startswith("prompt cache")), ""))
        expect(f"a prompt cache with {n} ranks", got.returncode == 0, got)
    expect("it begins afresh, and is found by other numbers of ranks",
           "begins afresh" in lines[0] and all(" tokens from " in line for line in lines[1:]), got)


def main():
    ridge, models = sys.argv[1], pathlib.Path(sys.argv[2])
    model, other = str(models / "ridge-ref-q8_0.gguf"), str(models / "stories260K.gguf")
    alone = run([ridge, "run", "-m", other, "-p", "Once", "-n", "2", "--tp", "2"])
    if shutil.which("mpirun") is None or alone.returncode == 6:
        print("skipped: no mpirun, or a build without MPI (apt-get install libopenmpi-dev openmpi-bin)")
        return 77
    expect("a process alone is no job: usage", alone.returncode == 2 and "mpirun -np N" in alone.stderr, alone)

    text = ["run", "-m", model, "-p", "The capital of France is", "-n", "16", "--temp", "0", "--isa", "scalar", "--quiet"]
    expected = run([ridge] + text)
    for n in ("2", "4"):
        got = run(MPIRUN + ["-np", n, ridge] + text + ["--tp", n])
        expect(f"{n} ranks write one rank's text, once", got.returncode == 0 and got.stdout.strip() == expected.stdout.strip(), got)

    late = run(MPIRUN + ["-np", "1", ridge] + text + ["--tp", "2", ":", "-np", "1", "sh", "-c", 'sleep 3; exec "$@"',
                                                      "sh", ridge] + text + ["--tp", "2"])
    expect("a rank that starts late is waited for", late.stdout.strip() == expected.stdout.strip(), late)
    second = text.copy()
    second[second.index(model)] = other
    got = run(MPIRUN + ["-np", "1", ridge] + text + ["--tp", "2", ":", "-np", "1", ridge] + second + ["--tp", "2"])
    expect("another model is named", got.returncode == 2 and "the model of rank 1" in got.stderr, got)

    bench = ["bench", "collective", "--bytes", "4096,400000", "-r", "3", "--max-seconds", "1", "--roof-size", "1", "-o", "jsonl",
             "--quiet"]
    got = run(MPIRUN + ["-np", "3", ridge] + bench + ["--tp", "3"])
    rows = [json.loads(line) for line in got.stdout.splitlines()]
    expect("sums of three ranks are timed, once", got.returncode == 0 and [row["bytes"] for row in rows] == [4096, 400000]
           and all(row["checked"] and row["n_ranks"] == 3 and len(row["samples_us"]) == 3 for row in rows), got)

    with tempfile.TemporaryDirectory() as folder:
        check_states(ridge, model, pathlib.Path(folder))

    for sign, marker in ((signal.SIGKILL, "77001"), (signal.SIGSTOP, "77002")):
        got, seconds = hurt(ridge, model, sign, marker)
        expect(f"{sign.name}: the job ends in bounded time", got.returncode != 0 and seconds < 30, got)
        if sign == signal.SIGSTOP:
            expect("the rank that hangs is named", "no answer from rank" in got.stderr, got)
        time.sleep(1)
        expect(f"{sign.name}: no process is left", not children_of_ranks(marker), got)
    return 0


if __name__ == "__main__":
    sys.exit(main())
