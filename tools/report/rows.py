"""Stored rows, as results/*.jsonl and the files of --results hold them, read as what they are: files that anything may stand in.

A file that is not what it should be stops the report (BadFile); a row in which a field is missing, null or of another
type is a row without that field. Readers below never raise for what a row holds.
"""

import json
import math
import pathlib
import re

MAX_FILE_BYTES = 1 << 28  # as ridge itself reads
MAX_TEXT = 300  # characters of a field that are shown
ABSURD = 1e30  # no measurement is larger, and none but 0 smaller than its inverse


class BadFile(Exception):
    """what: where: why (what next)"""


def parse(line, where):
    try:
        row = json.loads(line, parse_constant=lambda _: None)  # NaN and Infinity are no numbers here
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise BadFile(f"cannot read the results: {where}: not a JSON object (was its write cut off? delete the line)")
    return row


def read_jsonl(path):
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise BadFile(f"cannot read the results: {path}: larger than {MAX_FILE_BYTES >> 20} MiB (name smaller files)")
        lines = path.read_bytes().decode("utf-8", "replace").split("\n")
    except OSError as error:
        raise BadFile(f"cannot read the results: {path}: {error.strerror} (name a file or directory with --results)") from None
    return [parse(line, f"{path}: line {i + 1}") for i, line in enumerate(lines) if line.strip()]


def counted(rows):
    """Without the rows that a later one of the same cell replaces; the later one stands in the place of the first."""
    kept = {}
    for i, row in enumerate(rows):
        kept[json.dumps(row["cell"], sort_keys=True) if "cell" in row else i] = row
    return list(kept.values())


def read_all(paths):
    """Every row that counts of files and directories. Same inputs, same order."""
    rows = []
    for path in map(pathlib.Path, paths):
        for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
            rows += read_jsonl(file)
    return counted(rows)


# Fields. Everything returns None (or the default) for what is missing, null, of another type, or not finite.


def number(row, *path):
    value = row
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        value = float(value)
    except OverflowError:
        return None
    if not math.isfinite(value) or abs(value) > ABSURD:
        return None
    return value if abs(value) > 1 / ABSURD else 0.0


def positive(row, *path):
    value = number(row, *path)
    return value if value is not None and value > 0 else None


def whole(row, *path):
    value = number(row, *path)
    return int(value) if value is not None and value >= 0 and value == int(value) else None


def whole_text(row, *path, default=""):
    """A text of any length, without what XML cannot hold."""
    value = row
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    if not isinstance(value, str):
        return default
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", " ", value).strip() or default


def text(row, *path, default=""):
    value = whole_text(row, *path, default=default)
    return (value if len(value) <= MAX_TEXT else value[:MAX_TEXT] + "…") or default


def objects(row, key):
    value = row.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def numbers(row, key):
    value = row.get(key)
    if not isinstance(value, list):
        return []
    return [x for x in (positive({"x": item}, "x") for item in value) if x is not None]


def kind(row):
    """The row's kind; rows of bench decode have llama-bench's fields and none."""
    return text(row, "kind") or ("decode" if "n_gen" in row and "avg_ts" in row else "unknown")


def on_gpu(row):
    return text(row, "device").startswith("cuda") or kind(row) == "bandwidth-device"


def machine(row):
    """What was measured: a GPU's name, or the processor with the number of threads. Empty when the row does not say."""
    if on_gpu(row):
        name = text(row, "device_name") or text(row, "gpu_info") or text(row, "device")
        return re.sub(r"^cuda(:\d+)? ", "", name)
    cpu = text(row, "cpu") or text(row, "cpu_info")
    threads = whole(row, "n_threads")
    return f"{cpu}, {threads} thread{'' if threads == 1 else 's'}" if cpu and threads else cpu


def date(row):
    """"2026-07-28T12:34:56Z", or nothing for what does not look like that."""
    found = text(row, "date") or text(row, "test_time")
    return found if re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]{4,12}Z?", found) else ""


def passed(row):
    """The outcome of the row's own check: True, False, or None when it says nothing. A cell that a sweep skipped says nothing."""
    if text(row, "state") in ("failed", "skipped"):
        return False if text(row, "state") == "failed" else None
    return row.get("checked") if isinstance(row.get("checked"), bool) else None


def is_control(row):
    """A cell that a sweep measured a second time, to know its noise."""
    return isinstance(row.get("cell"), dict) and row["cell"].get("control") is True


def newest(rows, key):
    """One row per key(row): the last by date, of equal dates the last read. Keeps the order of first appearance."""
    cells = {}
    for row in rows:
        name = key(row)
        if name not in cells or date(row) >= date(cells[name]):
            cells[name] = row
    return list(cells.values())


def quartiles(samples):
    """(lower, median, upper) by linear interpolation; None when there are none."""
    if not samples:
        return None
    ordered = sorted(samples)

    def at(share):
        place = share * (len(ordered) - 1)
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (place - below) * (ordered[above] - ordered[below])

    return at(0.25), at(0.5), at(0.75)


def cache_name(row):
    """The cache of a row as people write it: "rotor-3", "p8/q4_0"."""
    name = text(row, "kv") or "/".join(t for t in (text(row, "type_k"), text(row, "type_v")) if t)
    k, _, v = name.partition("/")
    return k if v in ("", k) else name


def clip(text, n):
    return text if len(text) <= n else text[: n - 1] + "…"


def amount(value, digits=3):
    """A number for people: digits that mean something, no exponent where none is needed."""
    if value is None:
        return "?"
    if value != 0 and (abs(value) >= 1e7 or abs(value) < 1e-4):
        return f"{value:.{digits - 1}e}"
    shown = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e" in shown or abs(value) >= 10 ** digits else shown


def rate(gop_s, unit="op/s"):
    """Operations a second for people, from 10^9 of them: "370 Gop/s", "1.45 Top/s"."""
    for factor, letter in ((1e6, "P"), (1e3, "T"), (1, "G"), (1e-3, "M")):
        if gop_s >= factor or letter == "M":
            return f"{amount(gop_s / factor)} {letter}{unit}"
