"""Stored rows and the parts that all tables of the documents are made of."""

import pathlib
import re

from report.rows import cache_name as cache, counted, read_jsonl

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
NO_ROWS = ["No rows yet."]
NUMBER = re.compile(r"[<>]?=? ?[-+]?\d.*")


def stored(*names):
    """Rows of results/NAME.jsonl, one file after another; a file that does not exist has none."""
    found = []
    for name in names:
        path = RESULTS / f"{name}.jsonl"
        if path.exists():
            found += read_jsonl(path)
    return counted(found)


def last(found, *fields):
    """The last row of each combination of fields, in the order in which the combinations first came."""
    cells = {}
    for r in found:
        cells[tuple(str(r.get(field)) for field in fields)] = r
    return list(cells.values())


def card(r):
    """The GPU of a row, its processor with the number of threads, or what was emulated."""
    if r.get("device") == "emulator":
        return f"emulated {r['target']}"
    on_gpu = [r.get("gpu_info"), r.get("device_name"), r.get("server_device")]
    gpu = next((m[1] for name in on_gpu if name and (m := re.search(r"NVIDIA (\w+)", name))), None)
    if gpu:
        return gpu
    if str(r.get("device")).startswith("cuda"):
        return "GPU, not recorded"
    processor = re.search("EPYC|Xeon", str(r.get("cpu_info") or r.get("cpu") or r.get("device_name")))
    counted = re.search(r"(\d+) threads", str(r.get("device_name")))
    threads = r.get("n_threads") or (int(counted[1]) if counted else r.get("processors"))
    return f"{processor[0]}, {threads} thread{'' if threads == 1 else 's'}" if processor and threads else "not recorded"


def n_gpus(r):
    """GPUs of one process: "cuda:0,1 NVIDIA H200" names two."""
    devices = r.get("devices") or r.get("server_device") or r["device"]
    return str(devices).split(" ")[0].count(",") + 1


def model(name):
    """('llama-3.1-8b', 'int4_g128', 'layers=8') of the name of a synthetic model; a file's name and two empty texts otherwise."""
    shape, *options = name.removeprefix("synth:").split("@")
    options = dict(o.partition("=")[::2] for o in options)
    weights = options.pop("weights", "")
    kept = [f"{key}={value}" for key, value in options.items() if key not in ("shared", "distinct")]
    return shape, weights, " ".join(kept)


def model_text(name):
    return " ".join(part for part in model(name) if part)


def rate(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def estimate(e, digits):
    return f"{e['value']:.{digits}f} ± {e['error']:.{digits}f}"


def percent(e, digits=2):
    return f"{100 * e['value']:.{digits}f} ± {100 * e['error']:.{digits}f}"


def table(head, lines):
    """Markdown. Columns whose cells are all numbers are aligned to the right."""
    lines = [["" if cell is None else str(cell) for cell in line] for line in lines]
    if not lines:
        return NO_ROWS
    numeric = [any(line[i] for line in lines) and all(NUMBER.fullmatch(line[i]) or not line[i] for line in lines) for i in range(len(head))]
    out = ["| " + " | ".join(head) + " |", "|" + "|".join("---:" if right else "---" for right in numeric) + "|"]
    return out + ["| " + " | ".join(line) + " |" for line in lines]
