#!/usr/bin/env python3
"""Runs `ridge --tp` and `--pp` as processes under mpirun: equal text, files of caches, benches and evaluations, and
faults: ranks that are killed, stopped, late or missing, that have another program, file or flags, or too few
companions.

Usage: ranks_test.py RIDGE MODELS   exits 77 where there is no mpirun or the build has no MPI
"""
import array
import concurrent.futures
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


def hurt(ridge, model, sign, marker, victim, n=2, shared=("--tp", "2")):
    """Sends a signal to one of n ranks in the middle of a long text; mpirun's outcome and the seconds it then took."""
    words = MPIRUN + ["-np", str(n), ridge, "run", "-m", model, "-p", "Once", "-n", "3000", "--ignore-eos", "--seed",
                      marker,
                      *shared, "--rank-timeout", "3", "--quiet"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        begin = time.monotonic()
        while len(children_of_ranks(marker)) < n and time.monotonic() - begin < LIMIT_S:
            time.sleep(0.1)
        time.sleep(2)
        os.kill(children_of_ranks(marker)[victim], sign)
        start = time.monotonic()
        out, err = job.communicate(timeout=LIMIT_S)
        seconds = time.monotonic() - start
    time.sleep(1)
    return subprocess.CompletedProcess(words, job.returncode, out, err), seconds


def check_differences(ridge, text, model, other):
    """Ranks that are not alike end before the first step, with the first difference and whose it is. Models may lie
    elsewhere."""
    def together(second, second_ridge=ridge):
        begin = time.monotonic()
        got = run(MPIRUN + ["-np", "1", ridge] + text + ["--tp", "2", "--rank-timeout", "5", ":", "-np", "1",
                                                         second_ridge] +
                  second + ["--tp", "2", "--rank-timeout", "5"])
        expect("    within 30 s, without a text", time.monotonic() - begin < 30 and not got.stdout.strip(), got)
        return got

    second = [other if word == model else word for word in text]
    got = together(second)
    expect("another model is named", got.returncode == 2 and "the model of rank 1" in got.stderr, got)
    with tempfile.TemporaryDirectory() as folder:
        elsewhere = str(shutil.copy(model, pathlib.Path(folder) / "elsewhere.gguf"))
        second = [elsewhere if word == model else word for word in text]
        got = run(MPIRUN + ["-np", "1", ridge] + text + ["--tp", "2", ":", "-np", "1", ridge] + second + ["--tp", "2"])
        expect("a model may lie elsewhere on another rank", got.returncode == 0 and got.stdout.strip(), got)
    got = together([model + ".gone" if word == model else word for word in text])
    expect("a model that one rank does not have is named", got.returncode != 0 and ".gone" in got.stderr, got)
    got = together(["17" if word == "16" else word for word in text])
    expect("other flags are named", got.returncode == 2 and "the command line of rank 1" in got.stderr, got)
    with tempfile.TemporaryDirectory() as folder:
        changed = str(shutil.copy(ridge, pathlib.Path(folder) / "ridge"))
        with open(changed, "ab") as file:
            file.write(b"another build")
        got = together(text, changed)
        expect("another program is named", got.returncode == 2 and "the program of rank 1" in got.stderr, got)
    begin = time.monotonic()
    got = run(MPIRUN + ["-np", "1", ridge] + text + ["--tp", "2", "--rank-timeout", "3", ":", "-np", "1", "sleep",
                                                     "50"])
    expect("a rank that never starts is not waited for", time.monotonic() - begin < 30 and got.returncode != 0 and
           "the job's other ranks had not started after 3 s" in got.stderr, got)


def logits_in(path):
    data = path.read_bytes()
    n_header = int.from_bytes(data[:8], "little")
    begin, end = json.loads(data[8:8 + n_header])["logits"]["data_offsets"]
    return array.array("f", data[8 + n_header + begin:8 + n_header + end])


def check_measures(ridge, model, corpus, folder):
    """Commands that measure: the first rank prints one result and writes one file."""
    def ask(words, n=2):
        words = [ridge] + words
        return run(words if n == 1 else MPIRUN + ["-np", str(n)] + words + ["--tp", str(n)])

    rows = folder / "rows.jsonl"
    got = ask(["bench", "decode", "-m", model, "-p", "8", "-n", "4", "-r", "1", "-o", "json", "--results", str(rows)])
    shown = json.loads(got.stdout) if got.returncode == 0 else []
    expect("a bench of 2 ranks is checked, shown and stored once",
           len(shown) == 2 and all(row["checked"] and row["n_ranks"] == 2 for row in shown) and
           len(rows.read_text().splitlines()) == 2, got)
    got = ask(["bench", "batch", "-m", model, "-npp", "8", "-ntg", "4", "-npl", "2", "-o", "json"])
    shown = json.loads(got.stdout) if got.returncode == 0 else []
    expect("so is one of a batch", len(shown) == 1 and shown[0]["checked"] and shown[0]["n_ranks"] == 2, got)
    trace = folder / "trace.json"
    got = ask(["profile", "-m", model, "-r", "2", "--json", "--trace", str(trace)])
    row = json.loads(got.stdout) if got.returncode == 0 else {"parts": []}
    parts = {part["op"]: part["calls"] for part in row["parts"]}
    expect("a profile has two sums a layer and one gather", parts.get("all_reduce") == 16 and parts.get("gather") == 1
           and
           json.loads(trace.read_text())["traceEvents"], got)

    base = folder / "base.kld"
    windows = ["-m", model, "-f", str(corpus), "-c", "64", "--chunks", "1", "--isa", "scalar"]
    means = []
    for n in (1, 2):
        got = ask(["eval", "kld"] + windows + ["--kv", "q8_0", "--json", "--save-base", str(base)], n)
        means.append(json.loads(got.stdout) if got.returncode == 0 else [])
    expect("divergences of 2 ranks are near those of one", len(means[0]) == 2 == len(means[1]) and
           abs(means[0][1]["ppl_base"]["value"] - means[1][1]["ppl_base"]["value"]) < 0.01 and base.exists(), got)
    got = ask(["eval", "kld"] + windows + ["--kv", "q8_0", "--json", "--base", str(base)])
    expect("a base file of 2 ranks is read by 2", got.returncode == 0 and len(json.loads(got.stdout)) == 2, got)
    many = ["eval", "kld"] + windows + ["--kv", "q8_0,p8", "--json", "--results", str(folder / "many.jsonl")]
    for _ in range(2):  # the second one finds rows, where the build has a commit
        got = ask(many)
        expect("many caches of 2 ranks have a row each", got.returncode == 0 and len(json.loads(got.stdout)) == 3, got)
    ids = folder / "ids.json"
    ids.write_text("[1, 2, 3, 4, 5]")
    logits = {}
    for n in (1, 2):
        out = folder / f"logits-{n}.safetensors"
        got = ask(["eval", "logits", "-m", model, "--ids", str(ids), "-o", str(out), "--isa", "scalar", "--quiet"], n)
        logits[n] = logits_in(out)
    worst = max(abs(a - b) for a, b in zip(logits[1], logits[2]))
    expect("logits of 2 ranks are those of one but for the order of sums", len(logits[1]) == len(logits[2]) and
           worst < 1e-3, got)
    got = ask(["bench", "decode", "-m", model, "--spec-type", "lookup", "--force-accept", "0.5"])
    expect("speculation is refused by name", got.returncode == 2 and "ranks have no speculation" in got.stderr, got)


def check_states(ridge, model, folder):
    """Files of caches under mpirun: one rank writes, all go on, and the number of ranks may change."""
    def ask(n, prompt, flags):
        words = [ridge, "run", "-m", model, "-p", prompt, "-n", "8", "--temp", "0", "--isa", "scalar",
                 "--quiet"] + flags
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
            expect(f"a {kv} state of {writers} goes on with {readers}", got.returncode == 0 and got.stdout.strip()
                   == expected.stdout.strip(), got)
    got = ask(2, " and", ["--load-state", states[2]])
    expect("a state of another cache is refused once", got.returncode == 4 and got.stderr.count("this cache has f16")
           == 1, got)

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


def check_stages(ridge, model, corpus, folder):
    """Layers split over stages: what one process says, and files that go on with any layout."""
    jobs = {"alone": (1, []), "tp": (2, ["--tp", "2"]), "pp": (2, ["--pp", "2"]),
            "both": (4, ["--tp", "2", "--pp", "2"])}

    def ask(job, words):
        n, flags = jobs[job]
        return run([ridge] + words if n == 1 else MPIRUN + ["-np", str(n), ridge] + words + flags)

    text = ["run", "-m", model, "-n", "8", "--temp", "0", "--isa", "scalar", "--quiet"]
    first, then = text + ["-p", "The capital of France is"], text + ["-p", " and"]
    states = {job: str(folder / f"stages-{job}.kv") for job in jobs}
    written = {job: ask(job, first + ["--save-state", states[job]]) for job in jobs}
    expected = ask("alone", then + ["--load-state", states["alone"]])
    for job in ("pp", "both"):
        expect(f"{job}: one rank's text, once", written[job].returncode == 0 and
               written[job].stdout.strip() == written["alone"].stdout.strip(), written[job])
    expect("a state of stages is that of one process, byte for byte",
           pathlib.Path(states["pp"]).read_bytes() == pathlib.Path(states["alone"]).read_bytes(), written["pp"])
    for writer, reader in (("tp", "pp"), ("pp", "both"), ("both", "alone"), ("alone", "pp")):
        got = ask(reader, then + ["--load-state", states[writer]])
        expect(f"a state of {writer} goes on with {reader}", got.returncode == 0 and
               got.stdout.strip() == expected.stdout.strip(), got)

    ids = folder / "stage-ids.json"
    ids.write_text("[1, 2, 3, 4, 5]")
    logits = {}
    for job in ("alone", "pp"):
        out = folder / f"stages-{job}.safetensors"
        got = ask(job, ["eval", "logits", "-m", model, "--ids", str(ids), "-o", str(out), "--quiet"])
        logits[job] = logits_in(out) if got.returncode == 0 else None
    expect("logits of stages are those of one process, bit for bit", logits["alone"] == logits["pp"], got)

    values = {}
    for job in ("alone", "pp"):
        got = ask(job, ["eval", "kld", "-m", model, "-f", str(corpus), "-c", "64", "--chunks", "1", "--kv", "q8_0",
                        "--json"])
        values[job] = [(row["ppl"], row["kld"]) for row in json.loads(got.stdout)] if got.returncode == 0 else None
    expect("divergences of stages are those of one process", values["alone"] == values["pp"], got)

    got = ask("both", ["bench", "decode", "-m", model, "-p", "8", "-n", "4", "-r", "1", "-o", "json"])
    rows = json.loads(got.stdout) if got.returncode == 0 else []
    expect("a bench of stages is checked, and its rows say so", len(rows) == 2 and
           all(row["checked"] and row["n_ranks"] == 4 and row["pp"] == 2 for row in rows), got)
    got = ask("pp", ["bench", "batch", "-m", model, "-npp", "8", "-ntg", "4", "-npl", "2", "-o", "json"])
    rows = json.loads(got.stdout) if got.returncode == 0 else []
    expect("so is one of a batch", len(rows) == 1 and rows[0]["checked"] and rows[0]["pp"] == 2, got)
    got = ask("both", ["profile", "-m", model, "-r", "2", "--json"])
    parts = {part["op"]: part["calls"] for part in (json.loads(got.stdout) if got.returncode == 0
                                                    else {"parts": []})["parts"]}
    expect("a profile has the border, and the sums of the first stage", parts.get("border") == 2 and
           parts.get("all_reduce") == 8 and parts.get("gather") == 1, got)
    got = ask("both", first + ["--spec-type", "lookup"])
    expect("speculation over stages writes the same text", got.returncode == 0 and
           got.stdout.strip() == written["alone"].stdout.strip(), got)
    got = ask("alone", ["plan", "-m", model, "--tp", "2", "--pp", "2", "-c", "256", "--kv", "f16", "--json"])
    row = json.loads(got.stdout)[0] if got.returncode == 0 else {}
    expect("a plan of stages", row.get("n_ranks") == 4 and row.get("pp") == 2, got)

    got = run([ridge] + first + ["--pp", "2"])
    expect("a process alone has no stages", got.returncode == 2 and "--pp 2: this process is alone" in got.stderr, got)
    got = run(MPIRUN + ["-np", "3", ridge] + first + ["--tp", "2", "--pp", "2"])
    expect("3 ranks of 4 are usage", got.returncode == 2 and "--tp 2 --pp 2: the job has 3 ranks" in got.stderr, got)
    got = run(MPIRUN + ["-np", "2", ridge] + first + ["--tp", "1", "--pp", "1"])
    expect("2 ranks of 1 are usage", got.returncode == 2 and "--tp 1: the job has 2 ranks" in got.stderr, got)
    got = run(MPIRUN + ["-np", "1", ridge] + first + ["--pp", "2", ":", "-np", "1", ridge] + first + ["--tp", "2"])
    expect("ranks of another layout are named", got.returncode == 2 and "the command line of rank 1" in got.stderr, got)
    got = run(MPIRUN + ["-np", "2", ridge] + first + ["--pp", "2", "--device", "cuda:0,1"])
    expect("GPUs of processes form no stages",
           got.returncode == 2 and "layers are not split over GPUs of several processes" in got.stderr, got)


def check_faults(ridge, model):
    """A rank that is killed or stopped ends its job, whose processes are gone then. The jobs wait side by side."""
    pairs = (4, ("--tp", "2", "--pp", "2"))  # ranks 2 and 3 are the second stage
    cases = ((signal.SIGKILL, "77001", 1), (signal.SIGKILL, "77003", 0), (signal.SIGSTOP, "77002", 1),
             (signal.SIGSTOP, "77006", 0),
             (signal.SIGKILL, "77004", 3, *pairs), (signal.SIGSTOP, "77005", 2, *pairs))
    with concurrent.futures.ThreadPoolExecutor(len(cases)) as pool:
        outcomes = list(pool.map(lambda case: hurt(ridge, model, *case), cases))
    for (sign, marker, victim, *_), (got, seconds) in zip(cases, outcomes):
        # between passes the first rank has ten times the time
        most = 45 if (sign, victim) == (signal.SIGSTOP, 0) else 30
        expect(f"{sign.name} of process {victim}: the job ends in bounded time", got.returncode != 0 and seconds < most,
               got)
        if sign == signal.SIGKILL:
            expect("the signal is named", "signal 9" in got.stderr or "no answer from rank" in got.stderr, got)
        if sign == signal.SIGSTOP:
            expect("the rank that hangs is named", "no answer from rank" in got.stderr, got)
        expect(f"{sign.name}: no process is left", not children_of_ranks(marker), got)


def main():
    ridge, models = sys.argv[1], pathlib.Path(sys.argv[2])
    os.environ["RIDGE_THREADS"] = "1"  # threads of several ranks would wait for each other's turns
    model, other = str(models / "ridge-ref-q8_0.gguf"), str(models / "stories260K.gguf")
    alone = run([ridge, "run", "-m", other, "-p", "Once", "-n", "2", "--tp", "2"])
    if shutil.which("mpirun") is None or alone.returncode == 6:
        print("skipped: no mpirun, or a build without MPI (apt-get install libopenmpi-dev openmpi-bin)")
        return 77
    expect("a process alone is no job: usage", alone.returncode == 2 and "mpirun -np N" in alone.stderr, alone)

    text = ["run", "-m", model, "-p", "The capital of France is", "-n", "16", "--temp", "0", "--isa", "scalar",
            "--quiet"]
    expected = run([ridge] + text)
    for n in ("2", "4"):
        got = run(MPIRUN + ["-np", n, ridge] + text + ["--tp", n])
        expect(f"{n} ranks write one rank's text, once", got.returncode == 0 and got.stdout.strip()
               == expected.stdout.strip(), got)

    for n, says in ((1, "the job has 1 rank "), (3, "the job has 3 ranks ")):
        got = run(MPIRUN + ["-np", str(n), ridge] + text + ["--tp", "2"])
        expect(f"{n} ranks of 2 are usage", got.returncode == 2 and says in got.stderr and not got.stdout.strip(), got)
    os.environ["RIDGE_SEED"] = "7"
    reordered = 'sleep 3; exec env -u RIDGE_THREADS RIDGE_THREADS=1 "$@"'
    late = run(MPIRUN + ["-np", "1", ridge] + text + ["--tp", "2", ":", "-np", "1", "sh", "-c", reordered, "sh",
                                                      ridge] + text +
               ["--tp", "2"])
    del os.environ["RIDGE_SEED"]
    expect("a rank that starts late is waited for, and its variables may be in another order",
           late.stdout.strip() == expected.stdout.strip(), late)
    check_differences(ridge, text, model, other)
    got = run(MPIRUN + ["-np", "2", ridge] + text[:-3] + ["--quiet", "--tp", "2", "--device", "cuda:0,1"])
    expect("several GPUs for each process are refused", got.returncode == 2 and "every process has one GPU"
           in got.stderr, got)
    if run([ridge] + text[:-3] + ["--device", "cuda"]).returncode == 6:  # no GPU, or a build without CUDA
        got = run(MPIRUN + ["-np", "2", ridge] + text[:-3] + ["--quiet", "--tp", "2", "--device", "cuda"])
        expect("a rank without a GPU is named", got.returncode == 6 and "rank 0 (" in got.stderr and "no GPU"
               in got.stderr, got)

    bench = ["bench", "collective", "--bytes", "4096,400000", "-r", "3", "--max-seconds", "1", "--roof-size", "1", "-o",
             "jsonl",
             "--quiet"]
    got = run(MPIRUN + ["-np", "3", ridge] + bench + ["--tp", "3"])
    rows = [json.loads(line) for line in got.stdout.splitlines()]
    expect("sums of three ranks are timed, once", got.returncode == 0 and [row["bytes"] for row in rows]
           == [4096, 400000]
           and all(row["checked"] and row["n_ranks"] == 3 and len(row["samples_us"]) == 3 for row in rows), got)

    with tempfile.TemporaryDirectory() as folder:
        check_states(ridge, model, pathlib.Path(folder))
        check_measures(ridge, model, models / "wikitext-2-excerpt.txt", pathlib.Path(folder))
        check_stages(ridge, model, models / "wikitext-2-excerpt.txt", pathlib.Path(folder))

    check_faults(ridge, model)
    return 0


if __name__ == "__main__":
    sys.exit(main())
