#!/usr/bin/env python3
"""Decode beside other programs: `ridge bench decode` with 0, 1 and 2 processes that never sleep, on one and on all threads.

    tools/busy_threads.py RIDGE MODEL POOL REPEATS >> results/checks/busy-threads-cpu.jsonl

A row of `bench decode` each, with the number of neighbours and the name POOL of what is compared. Nothing else may run.
"""
import json
import os
import subprocess
import sys

NEIGHBOURS = (0, 1, 2)


def bench(ridge, model, threads, repeats):
    command = [ridge, "bench", "decode", "-m", model, "-p", "0", "-n", "128", "-t", str(threads), "-r", str(repeats), "--no-check", "-o", "jsonl", "--quiet"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    return [json.loads(line) for line in found.splitlines() if line.startswith("{")]


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    ridge, model, pool, repeats = sys.argv[1:]
    for neighbours in NEIGHBOURS:
        busy = [subprocess.Popen(["timeout", "300", "sh", "-c", "while :; do :; done"]) for _ in range(neighbours)]
        try:
            for threads in sorted({1, os.cpu_count()}):
                for row in bench(ridge, model, threads, repeats):
                    print(json.dumps({**row, "pool": pool, "neighbours": neighbours}), flush=True)
        finally:
            for process in busy:
                process.terminate()  # which `timeout` hands on
                process.wait()


if __name__ == "__main__":
    main()
