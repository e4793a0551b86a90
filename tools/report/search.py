"""Section: formats by layer and side, found on one text and measured on another, against formats for all layers."""

from rows import amount, clip, date, kind, newest, number, positive, text

TITLE = "Formats by layer and side"
COMMAND = "ridge decide -m models/ridge-ref-q8_0.gguf -c 4096 -f wiki.test.raw --search wiki.valid.raw --only-quality --results lab.jsonl"
FIELDS = ["model", "uniform", "limit", "kv", "bits", "predicted_kld", "kld", "kld_error", "line", "line_error", "verdict", "searched_on", "searched_windows",
          "verified_windows", "date", "build_commit"]


def line_of(r, model):
    return {"model": model, "uniform": int(r.get("uniform") is True), "limit": text(r, "limit"), "kv": text(r, "kv", default="?"), "bits": positive(r, "bits"),
            "predicted_kld": number(r, "predicted_kld"), "kld": number(r, "kld", "value"), "kld_error": number(r, "kld", "error"), "line": number(r, "line", "value"),
            "line_error": number(r, "line", "error"), "verdict": text(r, "verdict"), "searched_on": text(r, "searched_on"),
            "searched_windows": text(r, "searched_windows"), "verified_windows": text(r, "verified_windows"), "date": date(r),
            "build_commit": text(r, "build_commit")}


def data(rows):
    """One line per point and uniform pair that was measured, by rising bits."""
    found = [r for r in rows if kind(r) == "search_point"]
    name = lambda r: (text(r, "model", default="?"), text(r, "limit"), text(r, "kv") if r.get("uniform") is True else "")
    out = [line_of(r, name(r)[0]) for r in newest(found, name)]
    return sorted((d for d in out if d["bits"] and d["kld"] is not None), key=lambda d: (d["model"], -d["uniform"], d["bits"], d["kv"]))


def sentence(lines):
    points = [d for d in lines if not d["uniform"] and d["line"]]
    below = [d for d in points if d["verdict"] == "PASS"]
    if not points:
        return ""
    said = f"{len(below)} of {len(points)} allocations lie below the line between formats for all layers by more than two standard errors"
    if below:
        most = max(below, key=lambda d: d["line"] / d["kld"] if d["kld"] > 0 else 0)
        said += f"; at {most['bits']:.2f} bits the divergence is {amount(most['kld'])}, the line has {amount(most['line'])}"
    return said + "."


def draw(lines, look):
    model = lines[0]["model"]
    shown = [d for d in lines if d["model"] == model]
    uniform, points = [d for d in shown if d["uniform"]], [d for d in shown if not d["uniform"]]
    f = look.Figure("search", 1, 1, 10.4, 4.4)
    f.figure.subplots_adjust(left=0.075, right=0.965, top=0.86, bottom=0.13)
    ax = f.axes[0]
    right = max([d["bits"] for d in points] or [d["bits"] for d in uniform]) + 0.35
    near = [d for d in uniform if d["bits"] <= right] or uniform[:1]
    ax.plot([d["bits"] for d in uniform], [d["kld"] for d in uniform], "-", color=look.SOFT, lw=1.4, zorder=2)
    for d in [*near, *points]:
        shade = look.SOFT if d["uniform"] else {"PASS": look.GOOD, "FAIL": look.BAD}.get(d["verdict"], look.UNSURE)
        dot = ax.errorbar([d["bits"]], [d["kld"]], yerr=[2 * (d["kld_error"] or 0)], fmt="o", color=shade, markersize=6 if d["uniform"] else 8, capsize=3, zorder=3)
        f.tip(dot.lines[0], f"{d['kv']}: {d['bits']:.3f} bits, mean KLD {amount(d['kld'])} ± {amount(d['kld_error'])}"
              + ("" if d["uniform"] else f"; the line has {amount(d['line'])}; {d['verdict']} ({d['limit']})"))
    ax.set_xlim(min(d["bits"] for d in [*near, *points]) - 0.1, right)
    ax.set_ylim(0, 1.12 * max(d["kld"] + 2 * (d["kld_error"] or 0) for d in [*near, *points]) or 1)
    labels = look.Labels(ax, overhang=6)
    for d in [*near, *points]:
        labels.block(d["bits"], d["kld"], 5)
    for d in near:
        labels.put(d["bits"], d["kld"], clip(d["kv"], 30), look.SOFT, must=True)
    for d in points:
        labels.put(d["bits"], d["kld"], f"{d['bits']:.2f} bits", look.GOOD if d["verdict"] == "PASS" else look.UNSURE)
    look.title(ax, clip(model, 60), "mean KL divergence from f16 in nats on a text that was not searched on, two standard errors; grey: one pair of formats for all layers")
    ax.set_xlabel("bits per value of K and V with window and sinks")
    return f
