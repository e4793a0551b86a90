#!/usr/bin/env python3
"""Decode beside other programs: `ridge bench decode` with 0, 1 and 2 processes that never sleep, on one and on all threads.

    tools/busy_threads.py BEFORE NOW MODEL ROUNDS >> results/checks/busy-threads-cpu.jsonl

BEFORE and NOW are two builds of ridge. They take turns, so that both meet the same moods of a machine. Every bench gives a
row with the number of neighbours and `pool`, before or now. Nothing else may run.
"""
import json
import os
import subprocess
import sys

NEIGHBOURS = (0, 1, 2)


def bench(ridge, model, threads):
    command = [ridge, "bench", "decode", "-m", model, "-p", "0", "-n", "128", "-t", str(threads), "-r", "4", "-o", "jsonl", "--quiet"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    return [json.loads(line) for line in found.splitlines() if line.startswith("{")]


def measure(pool, ridge, model, neighbours):
    busy = [subprocess.Popen(["timeout", "300", "sh", "-c", "while :; do :; done"]) for _ in range(neighbours)]
    try:
        for threads in sorted({1, os.cpu_count()}):
            for row in bench(ridge, model, threads):
                print(json.dumps({**row, "pool": pool, "neighbours": neighbours}), flush=True)
    finally:
        for process in busy:
            process.terminate()  # which `timeout` hands on
            process.wait()


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    before, now, model, rounds = sys.argv[1:]
    for neighbours in NEIGHBOURS:
        for _ in range(int(rounds)):
            measure("before", before, model, neighbours)
            measure("now", now, model, neighbours)


if __name__ == "__main__":
    main()
