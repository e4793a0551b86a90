#!/usr/bin/env python3
"""Hardware counters of a GPU's kernels, as rows: bytes of memory, hits in L2, shares of pipes, why warps wait.

  tools/counters.py --kernel REGEX [--skip N] [--count N] [--label TEXT] --build COMMIT --results FILE -- COMMAND...

Runs COMMAND under Nsight Compute (`ncu`, part of the CUDA toolkit), which repeats each kernel it measures several times, so
that the command's own times mean nothing. Needs the right to read counters: without it ncu says ERR_NVGPUCTRPERM, and this
script ends with 6. FILE gets a JSON line a kernel: `pipe_pct` of the most that a pipe can do while its processor is active;
`stall_pct` of the time of a warp that has not ended, by what it waits for; `dram_pct` of the memory's rate.
"""

import argparse
import csv
import datetime
import fcntl
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "MemoryWorkloadAnalysis_Tables", "ComputeWorkloadAnalysis",
            "WarpStateStats", "LaunchStats", "Occupancy")
PIPE = re.compile(r"sm__inst_executed_pipe_(\w+)\.avg\.pct_of_peak_sustained_active")
STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active\.ratio")
SINGLE = {
    "us": ("gpu__time_duration.sum", 1e-3),
    "dram_read_bytes": ("dram__bytes_read.sum", 1),
    "dram_write_bytes": ("dram__bytes_write.sum", 1),
    "dram_pct": ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", 1),
    "l2_hit_pct": ("lts__t_sector_hit_rate.pct", 1),
    "sm_pct": ("sm__throughput.avg.pct_of_peak_sustained_elapsed", 1),
    "registers": ("launch__registers_per_thread", 1),
    "blocks": ("launch__grid_size", 1),
    "threads": ("launch__block_size", 1),
    "warps_active_pct": ("sm__warps_active.avg.pct_of_peak_sustained_active", 1),
}


def number(text):
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def gpu_name():
    """The name of the first GPU; nothing where nvidia-smi does not say."""
    try:
        listed = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return listed.stdout.splitlines()[0].strip() if listed.returncode == 0 and listed.stdout else None


def rows_of(text, label, build, command):
    """Rows of what `ncu --csv --page raw` prints: a line of names, a line of units, a line a kernel."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    rows = []
    for record in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        if not record["ID"]:  # units
            continue
        values = {name: number(value) for name, value in record.items() if value}
        row = {"kind": "counters", "label": label, "build_commit": build, "kernel": re.split(r"[ :]+", re.split(r"[<(](?!unnamed)", record["Kernel Name"])[0].strip())[-1],
               "command": " ".join(command), "device_name": gpu_name(), "load_1min": os.getloadavg()[0],
               "test_time": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")}
        for field, (name, factor) in SINGLE.items():
            value = values.get(name)
            row[field] = None if value is None else value * factor
        row["pipe_pct"] = {m[1]: values[name] for name in values if (m := PIPE.fullmatch(name)) and values[name]}
        stalls = {m[1]: values[name] for name in values if (m := STALL.fullmatch(name)) and values[name]}
        total = sum(stalls.values())
        row["stall_pct"] = {reason: 100 * value / total for reason, value in sorted(stalls.items(), key=lambda s: -s[1])}
        rows.append(row)
    return rows


def append(path, rows):
    """Adds rows under the file's lock, as ridge does, behind a line end."""
    with path.open("a+b") as out:
        fcntl.flock(out, fcntl.LOCK_EX)
        size = out.seek(0, os.SEEK_END)
        if size and os.pread(out.fileno(), 1, size - 1) != b"\n":
            sys.exit(f"{path}: its last line has no end (was its write cut off? delete the line, or end it)")
        out.write("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows).encode())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", required=True, help="kernels whose names match")
    parser.add_argument("--skip", type=int, default=0, help="matching launches before the first one that is measured")
    parser.add_argument("--count", type=int, default=1, help="launches that are measured")
    parser.add_argument("--label", default="", help="what the rows are of")
    parser.add_argument("--build", required=True, help="the commit that COMMAND was built from")
    parser.add_argument("--results", required=True, type=pathlib.Path, help="rows are appended to this file")
    parser.add_argument("command", nargs="+", help="what to run, behind --")
    flags = parser.parse_args()
    ncu = shutil.which("ncu")
    if not ncu:
        print("tools/counters.py: ncu is missing (it comes with the CUDA toolkit)", file=sys.stderr)
        return 6
    call = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "-k", f"regex:{flags.kernel}",
            "--launch-skip", str(flags.skip), "--launch-count", str(flags.count)]
    for section in SECTIONS:
        call += ["--section", section]
    run = subprocess.run(call + flags.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    rows = rows_of(run.stdout, flags.label, flags.build, flags.command)
    if not rows:
        print(run.stdout[-3000:], file=sys.stderr)
        denied = "ERR_NVGPUCTRPERM" in run.stdout
        print("tools/counters.py: this user may not read counters" if denied else "tools/counters.py: no kernel was measured",
              file=sys.stderr)
        return 6 if denied else 1
    append(flags.results, rows)
    print(f"{len(rows)} rows in {flags.results}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
