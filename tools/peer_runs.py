#!/usr/bin/env python3
"""Ridge and another engine on the same files, in turns: rows of both, and ratios with quartiles.

    tools/peer_runs.py [OPTION...] RIDGE LLAMA_BENCH MODEL... >> ROWS.jsonl

RIDGE and LLAMA_BENCH are two programs: this engine's, and llama-bench of llama.cpp or of a tree that comes from it. Each
round runs `ridge bench decode` and `llama-bench` on each file, one after the other, with the same tests: so both meet the
same moods of a machine. Rows go to stdout, a line each, with `engine`, `peer`, `command`, `round` and the load of the machine.
Ratios go to stderr: the median over rounds of Ridge's speed through the peer's, with quartiles.

  --rounds N          rounds (5)
  -p, -n, -d, -t      as both programs have them (512, 64, 0, all processors)
  --peer NAME         the peer's name in rows (llama.cpp)
  --gp                the peer's llama-bench has no -d, but -gp DEPTH,N (ik_llama.cpp)
  --peer-options OPT  more options of LLAMA_BENCH, as one text ('-rtr 1 -fa 1')
  --ridge-options OPT more options of `ridge bench decode` ('--kv rotor-3')
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys

LIMIT_S = 1800


def parse_arguments(words):
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-p", default="512")
    parser.add_argument("-n", default="64")
    parser.add_argument("-d", default="0")
    parser.add_argument("-t", default=str(os.cpu_count()))
    parser.add_argument("--peer", default="llama.cpp")
    parser.add_argument("--gp", action="store_true")
    parser.add_argument("--peer-options", default="")
    parser.add_argument("--ridge-options", default="")
    parser.add_argument("programs", nargs="*")
    options = parser.parse_args(words)
    if options.help or len(options.programs) < 3 or options.rounds < 1:
        print(__doc__)
        sys.exit(0 if options.help else 2)
    return options


def run(command):
    """The rows that a bench prints. A bench that fails ends the tool: a missing side would make ratios of nothing."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.stdout.lstrip().startswith("["):
        rows = json.loads(done.stdout)
    else:
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not rows:
        sys.exit(f"{shlex.join(command)}: exit {done.returncode}, {len(rows)} rows\n{done.stderr.strip()}")
    return rows


def test_of(row):
    return row["n_prompt"], row["n_gen"], row.get("n_depth", 0)


def test_name(test):
    prompt, gen, depth = test
    return (f"pp{prompt}" if prompt else f"tg{gen}") + (f" at {depth}" if depth else "")


def ratio_lines(rows, peer):
    """A line a model and test: medians of both and the ratio of each round's pair."""
    speeds = {}
    for row in rows:
        key = os.path.basename(row["model_filename"]), test_of(row)
        speeds.setdefault(key, {}).setdefault(row["engine"], {})[row["round"]] = row["avg_ts"]
    for (model, test), by in speeds.items():
        ours, theirs = by.get("ridge", {}), by.get(peer, {})
        ratios = sorted(ours[i] / theirs[i] for i in ours if theirs.get(i))
        if not ratios:
            yield f"{model} {test_name(test)}: only one engine ran it"
            continue
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        yield (f"{model} {test_name(test)}: ridge {statistics.median(ours.values()):.1f}, {peer} "
               f"{statistics.median(theirs.values()):.1f} tok/s, {middle:.2f}x ({low:.2f} to {high:.2f})")


def measure(engine, command, options):
    """Rows of one program with what a stored row must name; paths are of this machine alone and stay out."""
    named = shlex.join(os.path.basename(word) if os.path.isabs(word) else word for word in command)
    facts = {"kind": "peer_run", "engine": engine, "peer": options.peer, "ridge_options": options.ridge_options, "command": named,
             "load_1min": os.getloadavg()[0]}
    for row in run(command):
        known = {"date": row.get("test_time"), "checked": "by the peer itself", **row}
        if options.gp and row["n_prompt"] and row["n_gen"]:
            known |= {"n_depth": row["n_prompt"], "n_prompt": 0}
        yield {**known, **facts, "model_filename": os.path.basename(row["model_filename"])}


def tests_of(options, has_depth):
    tests = ["-t", options.t, "-r", "1", "-o", "json"]
    if has_depth or options.d == "0":
        return ["-p", options.p, "-n", options.n, *(["-d", options.d] if has_depth else []), *tests]
    return ["-p", options.p, "-n", "0", "-gp", f"{options.d},{options.n}", *tests]


def main():
    options = parse_arguments(sys.argv[1:])
    ridge, bench, *models = options.programs
    ours, theirs = tests_of(options, True), tests_of(options, not options.gp)
    rows = []
    for i in range(options.rounds):
        for model in models:
            for engine, command in (
                    ("ridge", [ridge, "bench", "decode", "-m", model, *ours, "--quiet", *shlex.split(options.ridge_options)]),
                    (options.peer, [bench, "-m", model, *theirs, *shlex.split(options.peer_options)])):
                for row in measure(engine, command, options):
                    rows.append({**row, "round": i})
                    print(json.dumps(rows[-1]), flush=True)
    print("\n".join(ratio_lines(rows, options.peer)), file=sys.stderr)


if __name__ == "__main__":
    main()
