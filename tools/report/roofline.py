"""Section: the roofline. Work per byte against work per second, under ceilings that were measured."""

import math

import attribution
import machine as ceilings
import ops
from rows import amount, clip, rate

TITLE = "Roofline"
COMMAND = "ridge sweep quick --results lab.jsonl  # then ridge report --results lab.jsonl"
FEW = 8  # operations per byte that any processor here has time for while it waits for memory
FIELDS = ["machine", "source", "name", "format", "kernel", "flop_per_byte", "gflop_s", "gb_s", "pct_of_roof", "cold", "date", "build_commit"]


def data(rows):
    """One line per point: kernels of op rows and parts of profiled steps that have bytes, flops and a time."""
    out = []
    for d in ops.data(rows):
        if d["flops"] and d["bytes"] > 0:
            size = f"{d['batch']} token{'s' if d['batch'] > 1 else ''}" if d["op"] == "gemv" else f"{d['batch']} x {d['keys']} keys"
            out.append(point(d, "op", f"{d['op']} {d['shape']}, {size}", d["format"], d["kernel"], d["flops"], d["bytes"], d["median_us"]))
    for d in attribution.data(rows):
        moved = (d["read_bytes"] or 0) + (d["write_bytes"] or 0)
        if d["op"] != "gaps" and d.get("flops") and moved > 0:
            # the part's time is of all its calls, and so are bytes and flops
            words = d["name"].split()
            out.append(point(d, "profile", f"{d['name']} ({attribution.label(d)})", words[-1] if d["op"] in ("gemv", "gemm") and words else d["kv"],
                             d["kernel"], d["flops"], moved, d["us"]))
    return out


def point(d, source, name, fmt, kernel, flops, moved, us):
    return {"machine": d["machine"], "source": source, "name": name, "format": fmt, "kernel": kernel, "flop_per_byte": flops / moved,
            "gflop_s": flops / us * 1e-3, "gb_s": moved / us * 1e-3, "pct_of_roof": d["pct_of_roof"], "cold": d.get("cold", True),
            "roof_gb_s": d.get("roof_gb_s"), "date": d["date"], "build_commit": d["build_commit"]}


def ceilings_of(lines, ceiling_lines):
    """(slopes {name: GB/s}, heights {name: Gop/s}) of the machine of `lines`; memory comes first."""
    here = [d for d in ceiling_lines if d["machine"] == lines[0]["machine"]] if lines else []
    memory = ceilings.read_bandwidth(here) or max((d["roof_gb_s"] for d in lines if d["roof_gb_s"]), default=None)
    slopes = {"memory read": memory} if memory else {}
    slopes.update({d["ceiling"]: d["median"] for d in here if d["unit"] == "GB/s" and ceilings.is_cache(d["ceiling"])})
    return slopes, {d["ceiling"]: d["median"] for d in here if d["unit"] == "Gop/s"}


def machines(lines):
    out = {}
    for d in lines:
        out.setdefault(d["machine"], []).append(d)
    return list(out.values())


def sentence(lines):
    cold = [d for d in lines if d["cold"] and d["pct_of_roof"]]
    if not cold:
        return "Points on the slope wait for memory; points below every ceiling lose time elsewhere."
    near = sum(1 for d in cold if d["pct_of_roof"] >= 80)
    low = min((d for d in cold if d["flop_per_byte"] <= FEW), key=lambda d: d["pct_of_roof"], default=None)
    return (f"{near} of {len(cold)} points reach 80 % of memory bandwidth: they wait for memory, and fewer bytes is what helps them." + (
        f" Of work with at most {FEW} operations per byte the furthest from it is {low['name']}, {low['format']} ({low['kernel']}), at "
        f"{low['pct_of_roof']:.0f} %." if low else ""))


def draw(lines, look, ceiling_lines):
    panels = machines(lines)[:3]
    f = look.Figure("roofline", len(panels), 1, 10.4, 5.2 * len(panels))
    f.figure.subplots_adjust(left=0.07, right=0.87, hspace=0.32, top=1 - 0.5 / (5.2 * len(panels)), bottom=0.55 / (5.2 * len(panels)))
    for ax, found in zip(f.axes, panels):
        slopes, heights = ceilings_of(found, ceiling_lines)
        xs, ys = [d["flop_per_byte"] for d in found], [d["gflop_s"] for d in found]
        memory = slopes.get("memory read")
        x0, x1 = min(xs) / 2, max(xs) * 2
        if memory and heights:
            x1 = max(x1, max(heights.values()) / memory * 2)
        y1 = max(ys + list(heights.values()) + ([memory * min(x1, max(xs) * 2)] if memory and not heights else [])) * 1.7
        y0 = min(ys) / 2
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xlim(x0, x1)
        ax.set_ylim(y0, y1)
        ax.xaxis.set_major_formatter(lambda v, _: f"{v:g}" if v >= 1 else f"1/{1 / v:g}")
        ax.yaxis.set_major_formatter(lambda v, _: rate(v, ""))
        top = max(heights.values(), default=math.inf)
        labels = look.Labels(ax, overhang=70)
        taken = []  # slopes that have a name; one close above gets none, its line and the table of ceilings say it
        for name, slope in slopes.items():
            end = min(x1, top / slope)
            main = name == "memory read"
            named_already = any(slope / other < 1.3 and other / slope < 1.3 for other in taken)
            if not named_already:
                taken.append(slope)
            ax.plot([x0, end], [slope * x0, slope * end], color=look.INK if main else look.SOFT, lw=1.8 if main else 1, ls="-" if main else (0, (4, 3)))
            at = max(x0 * 1.15, y0 / slope * 1.3)
            if at < end and not named_already:
                ax.text(at, slope * at * 1.09, f"{name} {amount(slope)} GB/s", fontsize=8.5, color=look.INK if main else look.SOFT, rotation=angle(ax, at, slope),
                        rotation_mode="anchor", va="bottom")
        merged = []  # ceilings of equal height share a label
        for name, height in heights.items():
            for group in merged:
                if abs(math.log(group[1] / height)) < 0.1:
                    group[0].append(name)
                    break
            else:
                merged.append(([name], height))
        for names, height in merged:
            name = names[0] if len(names) == 1 else " and ".join(n.split()[0] for n in names)
            start = height / max(slopes.values()) if slopes else x0
            ax.plot([max(x0, start), x1], [height, height], color="#b8892b", lw=1.6)
            labels.block_margin(x1, height)
            ax.annotate(f"{name}\n{rate(height)}", (1, height), xycoords=("axes fraction", "data"), xytext=(5, 0), textcoords="offset points",
                        fontsize=8.5, color="#8a6314", va="center", annotation_clip=False)
            if memory and x0 < height / memory < x1:
                ax.plot([height / memory], [height], "o", color="#b8892b", markersize=5)
                ax.annotate(f"ridge point {amount(height / memory)}", (height / memory, height), xytext=(-4, 5), textcoords="offset points", ha="right",
                            fontsize=8, color="#8a6314", bbox=dict(facecolor=look.PAPER, edgecolor="none", pad=0.5))
        for d in found:
            labels.block(d["flop_per_byte"], d["gflop_s"])
        for d in sorted(found, key=lambda d: -d["gflop_s"]):
            shade = look.colour(d["format"])
            dot = ax.plot([d["flop_per_byte"]], [d["gflop_s"]], look.marker(d["format"]), color=shade, markersize=6.5, alpha=0.9,
                          markerfacecolor=shade if d["cold"] else look.PAPER, markeredgecolor=look.PAPER if d["cold"] else shade, markeredgewidth=0.8)[0]
            f.tip(dot, f"{d['name']}, {d['format']} ({d['kernel']}): {amount(d['flop_per_byte'])} flop/byte, {amount(d['gflop_s'])} GFLOP/s, "
                       f"{amount(d['gb_s'])} GB/s" + (f", {d['pct_of_roof']:.0f} % of memory bandwidth" if d["pct_of_roof"] else "")
                       + ("" if d["cold"] else ", data in cache"))
        named = set()
        for d in sorted(found, key=lambda d: -d["gflop_s"]):
            if d["format"] not in named:
                named.add(d["format"])
                labels.put(d["flop_per_byte"], d["gflop_s"], clip(d["format"], 30), look.colour(d["format"]), must=True)
        for d in sorted(found, key=lambda d: d["pct_of_roof"] or 0)[:3]:  # the losses by name
            labels.put(d["flop_per_byte"], d["gflop_s"], clip(d["name"].split(" (")[0], 44), look.SOFT, 7.5)
        ax.set_xlabel("operations per byte of declared work (flop/byte)")
        look.title(ax, clip(found[0]["machine"], 100), "operations a second, by operations per byte")
    return f


def angle(ax, x, slope):
    """Of a line of this slope on the logarithmic axes, in degrees on the page."""
    (x0, y0), (x1, y1) = ax.transData.transform((x, slope * x)), ax.transData.transform((2 * x, slope * 2 * x))
    return math.degrees(math.atan2(y1 - y0, x1 - x0))
