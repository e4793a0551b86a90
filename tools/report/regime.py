"""Sections: speed-up over f16 by batch and by depth, and where it turns."""

import decode
import ops
from rows import clip

TITLE_BATCH = "Batch: when does a weight format beat f16?"
TITLE_DEPTH = "Depth: when does a cache format beat f16?"
COMMAND_BATCH = "ridge sweep regime --results lab.jsonl  # then ridge report --results lab.jsonl"
COMMAND_DEPTH = "ridge sweep depth --results lab.jsonl  # then ridge report --results lab.jsonl"
FIELDS = ["machine", "panel", "format", "x", "speedup", "speedup_lower", "speedup_upper", "verdict", "base_us", "us", "kernel", "date", "build_commit"]
BASE = "f16"


def compared(cells):
    """Lines of speed-up over f16 from cells {panel, x, format, us (lower, median, upper), ...}: only where f16 was measured too.

    The interval is from quartile to quartile: [f16's lower / the other's upper, f16's upper / the other's lower]."""
    base = {(c["machine"], c["panel"], c["x"]): c for c in cells if c["format"] == BASE}
    out = []
    for c in cells:
        b = base.get((c["machine"], c["panel"], c["x"]))
        if c["format"] == BASE or not b:
            continue
        (b0, b1, b2), (c0, c1, c2) = b["us"], c["us"]
        lower, upper = b0 / c2, b2 / c0
        out.append({"machine": c["machine"], "panel": c["panel"], "format": c["format"], "x": c["x"], "speedup": b1 / c1, "speedup_lower": lower,
                    "speedup_upper": upper, "verdict": "faster" if lower > 1 else "slower" if upper < 1 else "undecided", "base_us": b1, "us": c1,
                    "kernel": c["kernel"], "date": c["date"], "build_commit": c["build_commit"]})
    return sorted(out, key=lambda d: (d["machine"], d["panel"], d["format"], d["x"]))


def batch_data(rows):
    cells = [{**d, "panel": d["shape"], "x": d["batch"], "format": d["series"], "us": (d["lower_us"], d["median_us"], d["upper_us"])}
             for d in ops.best_kernels(ops.data(rows)) if d["op"] == "gemv"]
    return compared(cells)


def depth_data(rows):
    cells = [{**d, "panel": f"attention {d['shape']}, {d['batch']} sequence{'s' if d['batch'] > 1 else ''}", "x": d["keys"], "format": d["series"],
              "us": (d["lower_us"], d["median_us"], d["upper_us"])}
             for d in ops.best_kernels(ops.data(rows)) if d["op"] == "attention" and d["keys"]]
    cells += [{"machine": d["machine"], "panel": f"whole step of {d['model']}", "x": d["depth"], "format": d["kv"], "kernel": "",
               "us": tuple(1e6 / t for t in (d["tok_s_upper"], d["tok_s"], max(d["tok_s_lower"], 1e-9))), "date": d["date"],
               "build_commit": d["build_commit"]} for d in decode.data(rows)]
    return compared(cells)


def panels(lines):
    out = {}
    for d in lines:
        out.setdefault((d["machine"], d["panel"]), {}).setdefault(d["format"], []).append(d)
    return out


def crossing(line):
    """Between which measured places a verdict turns: (last of one kind, first of the other), or None."""
    decided = [d for d in line if d["verdict"] != "undecided"]
    for a, b in zip(decided, decided[1:]):
        if a["verdict"] != b["verdict"]:
            return a, b
    return None


def words(fmt, line, what):
    """What a line says: where the format wins and where it loses, from decided cells only."""
    turn = crossing(line)
    kinds = {d["verdict"] for d in line} - {"undecided"}
    if turn:
        a, b = turn
        return f"{fmt} is {a['verdict']} than f16 up to {what} {a['x']} ({a['speedup']:.2f}x) and {b['verdict']} from {b['x']} ({b['speedup']:.2f}x)"
    if not kinds:
        return f"{fmt} and f16 cannot be told apart at any measured {what}"
    verdict = kinds.pop()
    strongest = max(line, key=lambda d: d["speedup"] if verdict == "faster" else -d["speedup"])
    open_cells = [str(d["x"]) for d in line if d["verdict"] == "undecided"]
    return f"{fmt} is {verdict} than f16 at every measured {what}" * (not open_cells) + (
        f"{fmt} is {verdict} than f16 where it can be told, undecided at {what} {', '.join(open_cells)}" if open_cells else "") + (
        f" (most at {strongest['x']}: {strongest['speedup']:.2f}x)")


def sentences(lines, what):
    return [f"{panel}: {words(fmt, line, what)}." for (_, panel), formats in panels(lines).items() for fmt, line in formats.items()]


def draw(lines, look, name, x_label, most=12):
    shown = list(panels(lines).items())
    shown = sorted(shown, key=lambda item: -sum(map(len, item[1].values())))[:most]
    columns = 2 if len(shown) > 1 else 1
    n_rows = (len(shown) + columns - 1) // columns
    f = look.Figure(name, n_rows, columns, 10.4, 3.7 * n_rows)
    height = 3.7 * n_rows
    f.figure.subplots_adjust(left=0.06, right=0.875, wspace=0.5, hspace=0.52, top=1 - 0.5 / height, bottom=0.6 / height)
    for ax in f.axes[len(shown):]:
        ax.set_visible(False)
    for ax, ((machine, panel), formats) in zip(f.axes, shown):
        xs = sorted({d["x"] for line in formats.values() for d in line})
        place = {x: i for i, x in enumerate(xs)}  # measured places, evenly: 0 has no logarithm
        values = [v for line in formats.values() for d in line for v in (d["speedup"], d["speedup_lower"], d["speedup_upper"])]
        low, high = min(values + [0.8]), max(values + [1.1])
        logarithmic = high / low > 5
        ax.set_ylim(low * 0.9, high * 1.08)
        if logarithmic:
            ax.set_yscale("log")
            ticks = [m * 10.0 ** e for e in range(-9, 9) for m in (1, 2, 5)]
            ax.set_yticks([t for t in ticks if low * 0.9 <= t <= high * 1.08])
            ax.minorticks_off()
        ax.set_xlim(-0.25, len(xs) - 1 + 0.25)
        ax.yaxis.set_major_formatter(lambda v, _: f"{v:g}x")
        ax.axhspan(low * 0.9, 1, color=look.BAD, alpha=0.055, lw=0)
        ax.plot([-0.25, len(xs) - 1], [1, 1], color=look.colour(BASE), lw=1.4)
        ends, turns = [(len(xs) - 1, 1.0, "f16 = 1", look.colour(BASE))], 0
        for fmt, line in formats.items():
            base_format = fmt.split(" (")[0]
            shade = look.colour(base_format)
            at = [place[d["x"]] for d in line]
            ax.fill_between(at, [d["speedup_lower"] for d in line], [d["speedup_upper"] for d in line], color=shade, alpha=0.13, lw=0)
            ax.plot(at, [d["speedup"] for d in line], color=shade, lw=1.8, ls="-" if base_format == fmt else (0, (3, 2)))
            for d in line:
                dot = ax.plot([place[d["x"]]], [d["speedup"]], look.marker(base_format), color=shade, markersize=5.5,
                              markerfacecolor=look.PAPER if d["verdict"] == "undecided" else shade)[0]
                f.tip(dot, f"{fmt} at {d['x']}: {d['speedup']:.3f}x f16, quartiles {d['speedup_lower']:.3f} to {d['speedup_upper']:.3f}: {d['verdict']}")
            ends.append((at[-1], line[-1]["speedup"], f"{clip(fmt, 24) if fmt == base_format else fmt[len(base_format) + 2:-1]} {line[-1]['speedup']:.2f}x", shade))
            turn = crossing(line)
            if turn:
                a, b = turn
                ax.axvspan(place[a["x"]], place[b["x"]], color=shade, alpha=0.09, lw=0)
                turns += 1  # one below another
                ax.annotate(f"turns between {a['x']} and {b['x']}", (0.02, 0.98), xycoords="axes fraction", xytext=(0, 2 - 11 * turns),
                            textcoords="offset points", ha="left", fontsize=7.5, color=shade)
        ax.set_xticks(range(len(xs)), [f"{x // 1024}k" if x >= 1024 and x % 1024 == 0 else str(x) for x in xs])
        ax.set_xlabel(x_label)
        look.title(ax, clip(panel, 46), f"{clip(machine, 44)}; speed relative to f16")
        look.label_ends(ax, ends)
    return f
