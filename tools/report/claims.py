"""Section: the row behind every claim."""

from rows import amount, cache_name, date, kind, machine, number, passed, positive, text, whole

TITLE = "The rows behind every figure"
FIELDS = ["kind", "what", "result", "check", "machine", "build", "date", "command"]


def what(row):
    k = kind(row)
    if k == "op":
        import ops
        keys = whole(row, "n_keys")
        return (f"{text(row, 'op')} {ops.shape(row)}, {ops.batch(row) or '?'}" + (f" x {keys} keys" if keys else " tokens")
                + f", {ops.name_of(row)} ({text(row, 'kernel')})")
    if k == "decode":
        return f"{text(row, 'model_filename')} {text(row, 'test')}" + (f" at depth {whole(row, 'n_depth')}" if whole(row, "n_depth") else "") + f", {cache_name(row)}"
    if k.startswith("bandwidth"):
        return f"ceilings with {text(row, 'kernel') or text(row, 'device')}"
    if k == "profile":
        return f"{text(row, 'model')}, {text(row, 'kv')} at depth {whole(row, 'depth')}, {text(row, 'phase')}"
    name = f"{text(row, 'model_name') or text(row, 'model')} {text(row, 'weight_format')}".strip()
    return ", ".join(t for t in (name, text(row, "path"), text(row, "kv")) if t)


def result(row):
    if text(row, "state") == "skipped":
        return f"skipped: {text(row, 'reason', default='no reason stored')}"
    if passed(row) is False:
        return f"FAILED: {text(row, 'reason', default='its check did not pass')}; no speed counts"
    parts = []
    if positive(row, "median_us"):
        parts.append(f"{amount(positive(row, 'median_us'))} µs")
    if positive(row, "avg_ts"):
        parts.append(f"{amount(positive(row, 'avg_ts'))} tok/s")
    if positive(row, "step_us"):
        parts.append(f"{amount(positive(row, 'step_us') / 1000)} ms a step")
    if positive(row, "pct_of_roof"):
        parts.append(f"{positive(row, 'pct_of_roof'):.1f} % of memory bandwidth")
    if number(row, "kld", "mean", "value") is not None:
        parts.append(f"KLD {amount(number(row, 'kld', 'mean', 'value'))}")
    if positive(row, "ppl", "value"):
        parts.append(f"PPL {positive(row, 'ppl', 'value'):.4f}")
    if number(row, "identical") is not None:
        parts.append(f"{100 * number(row, 'identical'):.1f} % identical")
    if number(row, "attention", "relative_l2") is not None:
        parts.append(f"relative L2 {amount(number(row, 'attention', 'relative_l2'))}")
    return ", ".join(parts)


def check(row):
    outcome, error, bound = passed(row), number(row, "check_error"), number(row, "check_bound")
    if outcome is None:
        return ""
    shown = f"{amount(error)} of at most {amount(bound)}" if error is not None and bound is not None else ""
    return f"{'passed' if outcome else 'FAILED'}{': ' if shown else ''}{shown}"


def data(rows):
    return [{"kind": kind(r), "what": what(r), "result": result(r), "check": check(r), "machine": machine(r),
             "build": text(r, "build_commit"), "date": date(r), "command": text(r, "command", default="not stored")} for r in rows]


def left_out(rows):
    """Speed rows that no figure shows, and why: [(count, reason)]."""
    skipped = sum(1 for r in rows if text(r, "state") == "skipped")
    speed = [r for r in rows if kind(r) in ("op", "decode") and text(r, "state") != "skipped"]
    failed = sum(1 for r in speed if passed(r) is False)
    unchecked = sum(1 for r in speed if passed(r) is None)
    timeless = sum(1 for r in speed if passed(r) is True and not (positive(r, "median_us") or positive(r, "avg_ts")))
    unfinished = sum(1 for r in rows if kind(r) == "eval_kld" and whole(r, "chunks") != whole(r, "chunks_planned"))
    unknown = sum(1 for r in rows if kind(r) == "unknown")
    reasons = [(skipped, "a sweep skipped"), (failed, "failed their check"), (unchecked, "do not say that they were checked"), (timeless, "have no time"),
               (unfinished, "of evaluations that were not finished"), (unknown, "of a kind unknown here")]
    return [(n, why) for n, why in reasons if n]
