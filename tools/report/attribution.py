"""Section: where the time of a step goes."""

from rows import amount, clip, date, kind, machine, newest, number, objects, positive, text, whole

TITLE = "Where a step spends its time"
COMMAND = "ridge profile -m synth:qwen2.5-1.5b@weights=q4_0 -d 4096 --kv-quant rotor-3 --results results/profile-cpu.jsonl"
FIELDS = ["step", "machine", "model", "kv", "depth", "phase", "name", "op", "kernel", "calls", "us", "share_of_step", "read_bytes", "write_bytes",
          "gb_s", "pct_of_roof", "bound", "step_us", "parts_us", "date", "build_commit"]
CLASSES = ["gemv", "gemm", "attention", "append", "norm", "rope", "rotation", "residual", "embed", "activation", "sample", "other", "gaps"]


def data(rows):
    """One line per part of every profiled step (the newest of each), and one "gaps" line: the step's time in no part."""
    found = [r for r in rows if kind(r) == "profile" and positive(r, "step_us") and objects(r, "parts")]
    key = lambda r: (machine(r), text(r, "model"), text(r, "weight_format"), text(r, "kv"), whole(r, "depth"), text(r, "phase"), whole(r, "n_tokens"))
    out = []
    for i, r in enumerate(newest(found, key)):
        step_us = positive(r, "step_us")
        head = {"step": i, "machine": machine(r), "model": text(r, "model", default="?"), "kv": text(r, "kv", default="?"),
                "depth": whole(r, "depth"), "phase": text(r, "phase", default="decode"), "step_us": step_us,
                "date": date(r), "build_commit": text(r, "build_commit")}
        parts = [(p, positive(p, "us")) for p in objects(r, "parts")]
        parts = [(p, us) for p, us in parts if us]
        parts_us = sum(us for _, us in parts)
        head["parts_us"] = parts_us
        for p, us in sorted(parts, key=lambda x: -x[1]):
            op = text(p, "op", default="other")
            out.append({**head, "name": text(p, "name", default="?"), "op": op if op in CLASSES else "other", "kernel": text(p, "kernel"),
                        "calls": whole(p, "calls"), "us": us, "share_of_step": us / step_us, "read_bytes": whole(p, "read_bytes"),
                        "write_bytes": whole(p, "write_bytes"), "gb_s": positive(p, "gb_s"), "pct_of_roof": positive(p, "pct_of_roof"),
                        "bound": text(p, "bound"), "flops": positive(p, "flops"), "roof_gb_s": positive(r, "roof_gb_s")})
        gap = step_us - parts_us
        if gap > 0:
            out.append({**head, "name": "between the parts", "op": "gaps", "kernel": "", "calls": None, "us": gap, "share_of_step": gap / step_us,
                        "read_bytes": None, "write_bytes": None, "gb_s": None, "pct_of_roof": None, "bound": ""})
    return out


def steps(lines):
    out = {}
    for line in lines:
        out.setdefault(line["step"], []).append(line)
    return list(out.values())


def label(part):
    depth = f" at depth {part['depth']}" if part["depth"] is not None else ""
    return f"{clip(part['model'].split('/')[-1], 44)}, {clip(part['kv'], 30)}{depth}" + (f" ({part['phase']})" if part["phase"] != "decode" else "")


def shares(step):
    """Share of the step by class, in the order of CLASSES."""
    out = {}
    for name in CLASSES:
        share = sum(p["share_of_step"] for p in step if p["op"] == name)
        if share > 0:
            out[name] = share
    return out


def sentence(lines):
    out = []
    for step in steps(lines)[:3]:
        by_class = shares(step)
        top = max(by_class, key=by_class.get)
        memory = sum(p["share_of_step"] for p in step if p["bound"] == "memory")
        out.append(f"{label(step[0])}: {100 * by_class[top]:.0f} % of {amount(step[0]['step_us'] / 1000)} ms is {top}"
                   + (f", {100 * memory:.0f} % is bound by memory" if memory else "")
                   + f"; the parts add up to {100 * step[0]['parts_us'] / step[0]['step_us']:.1f} % of the step.")
    return " ".join(out)


def draw(lines, look):
    found = steps(lines)[:12]
    f = look.Figure("attribution", 1, 1, 10.4, 1.7 + 0.62 * len(found))
    ax = f.axes[0]
    seen = []
    for i, step in enumerate(found):
        left = 0.0
        for name, share in shares(step).items():
            us = share * step[0]["step_us"]
            bar = ax.barh(i, 100 * share, left=left, height=0.6, color=look.CLASSES[name], edgecolor=look.PAPER, linewidth=1)[0]
            f.tip(bar, f"{label(step[0])}: {name} {100 * share:.1f} %, {amount(us)} µs")
            if share >= 0.05:
                dark = name in ("gemv",)
                ax.text(left + 50 * share, i, f"{name}\n{100 * share:.0f} %" if share >= 0.09 else f"{100 * share:.0f} %", ha="center", va="center",
                        fontsize=8.5, color="white" if dark else look.INK, linespacing=1.1)
            if share < 0.09 and name not in seen:
                seen.append(name)
            left += 100 * share
        ax.text(max(left, 100) + 0.8, i, f"{amount(step[0]['step_us'] / 1000)} ms", va="center", fontsize=9)
    # Two texts a step: browsers have other widths of letters, and lines of one text would not end together.
    ax.set_yticks(range(len(found)), [""] * len(found))
    for i, step in enumerate(found):
        for words, at in ((clip(label(step[0]), 66), -0.14), (clip(step[0]["machine"], 44), 0.14)):
            ax.annotate(words, (0, i + at), xytext=(-8, 0), textcoords="offset points", ha="right", va="center", fontsize=8.5, color=look.SOFT,
                        annotation_clip=False)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    longest = max(100 * sum(shares(step).values()) for step in found)  # parts that overlap are longer than their step
    ax.set_xlim(0, max(100, longest) * 1.1)
    ax.set_xticks(range(0, 101, 20), [f"{x} %" for x in range(0, 101, 20)])
    if seen:  # classes too thin for their own name
        from matplotlib.patches import Patch
        ax.legend([Patch(color=look.CLASSES[n]) for n in seen], seen, loc="upper left", bbox_to_anchor=(0, -0.12 - 0.22 / len(found)), ncols=min(len(seen), 6),
                  frameon=False, fontsize=8.5, handlelength=1, handleheight=1, columnspacing=1.4)
    f.figure.subplots_adjust(left=0.37, right=0.98, top=0.99, bottom=1.55 / (1.7 + 0.62 * len(found)))
    return f
