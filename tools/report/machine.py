"""Section: the machine and its ceilings."""

import re

from rows import amount, clip, date, kind, machine, newest, objects, positive, rate, text, whole

TITLE = "The machine and its ceilings"
COMMAND = "ridge bench bandwidth --results results/bandwidth-cpu.jsonl"
FIELDS = ["machine", "ceiling", "unit", "median", "lower_quartile", "upper_quartile", "max", "bytes", "date", "build_commit"]


def ceilings_rows(rows):
    found = [r for r in rows if kind(r) in ("bandwidth", "bandwidth-device") and machine(r)
             and any(positive(s, "median_gb_s") for s in objects(r, "streams"))]
    return newest(found, lambda r: (machine(r), kind(r)))


def data(rows):
    """One line per measured ceiling of the newest row of each machine: streams, cache-resident reads, compute rates."""
    out = []
    for row in ceilings_rows(rows):
        where = {"machine": machine(row), "date": date(row), "build_commit": text(row, "build_commit")}
        for group in ("streams", "caches"):
            for s in objects(row, group):
                median = positive(s, "median_gb_s")
                if median is not None:
                    out.append({**where, "ceiling": text(s, "name", default="?"), "unit": "GB/s", "median": median,
                                "lower_quartile": positive(s, "lower_quartile_gb_s"), "upper_quartile": positive(s, "upper_quartile_gb_s"),
                                "max": positive(s, "max_gb_s"), "bytes": whole(s, "bytes_moved")})
        for s in objects(row, "rates"):
            median = positive(s, "median_gop_s")
            name = " ".join(t for t in (text(s, "number"), text(s, "kernel")) if t) or "?"
            if text(s, "kernel").startswith(text(s, "number")):
                name = text(s, "kernel") or "?"
            if median is not None:
                out.append({**where, "ceiling": name, "unit": "Gop/s", "median": median,
                            "lower_quartile": positive(s, "lower_quartile_gop_s"), "upper_quartile": positive(s, "upper_quartile_gop_s"),
                            "max": positive(s, "max_gop_s"), "bytes": None})
    return out


def is_cache(name):
    """read-l1, or whatever a GPU's row calls what stays in its cache."""
    return re.search(r"\bl[123]\b|resident|cache", name.lower()) is not None


def read_bandwidth(data_of_machine):
    """Memory bandwidth of read-mostly work: the best read of memory, as other tenants only ever take away. None when not measured."""
    reads = [d["max"] or d["median"] for d in data_of_machine
             if d["unit"] == "GB/s" and d["ceiling"].split()[0:1] == ["read"] and not is_cache(d["ceiling"])]
    return max(reads, default=None)


def by_machine(lines):
    out = {}
    for line in lines:
        out.setdefault(line["machine"], []).append(line)
    return out


def sentence(lines):
    parts = []
    for name, found in by_machine(lines).items():
        bandwidth = read_bandwidth(found)
        if bandwidth is None:
            continue
        rates = [d for d in found if d["unit"] == "Gop/s"]
        best = max(rates, key=lambda d: d["median"], default=None)
        parts.append(f"{name} reads memory at {amount(bandwidth)} GB/s at best; decode is held against that" + (
            f", and its fastest product runs at {rate(best['median'])} ({best['ceiling']})" if best else "") + ".")
    return " ".join(parts)


GROUPS = [("memory", lambda d: d["unit"] == "GB/s" and not is_cache(d["ceiling"])), ("caches", lambda d: d["unit"] == "GB/s" and is_cache(d["ceiling"])),
          ("arithmetic", lambda d: d["unit"] == "Gop/s")]
SHADES = {"memory": "#a9b8c9", "caches": "#8fb3d9", "arithmetic": "#c9a450"}


def draw(lines, look):
    """A row of panels for every machine: memory, caches and arithmetic, each on its own scale."""
    machines = list(by_machine(lines).items())[:4]
    groups = [(name, test) for name, test in GROUPS if any(test(d) for d in lines)]
    heights = [max(sum(test(d) for d in found) for _, test in groups) for _, found in machines]
    f = look.Figure("ceilings", len(machines), len(groups), 10.4, 1.05 * len(machines) + 0.3 * sum(heights), gridspec_kw={"height_ratios": heights})
    for i, (name, found) in enumerate(machines):
        for j, (group, test) in enumerate(groups):
            ax, members = f.axes[i * len(groups) + j], [d for d in found if test(d)]
            if not members:
                ax.set_visible(False)
                continue
            top = max(d["max"] or d["median"] for d in members)
            for k, d in enumerate(members):
                is_read = group == "memory" and d["ceiling"].split()[0] == "read"
                bar = ax.barh(k, d["median"], height=0.62, color="#2b6cb0" if is_read else SHADES[group])[0]
                f.tip(bar, f"{d['ceiling']}: {amount(d['median'], 4)} {d['unit']} (median), quartiles {amount(d['lower_quartile'], 4)} to "
                           f"{amount(d['upper_quartile'], 4)}, best {amount(d['max'], 4)}")
                if d["lower_quartile"] and d["upper_quartile"]:
                    ax.plot([d["lower_quartile"], d["upper_quartile"]], [k, k], color=look.INK, lw=1.4, solid_capstyle="butt")
                shown = rate(d["median"]) if d["unit"] == "Gop/s" else f"{amount(d['median'])} GB/s"
                ax.text(max(d["median"], d["upper_quartile"] or 0) + top * 0.02, k, shown, va="center", fontsize=9)
            ax.set_yticks(range(len(members)), [clip(d["ceiling"], 24) for d in members])
            ax.tick_params(axis="y", length=0)
            ax.set_xticks([])
            ax.spines["bottom"].set_visible(False)
            ax.set_ylim(heights[i] - 0.4, -0.6)
            ax.grid(visible=False)
            ax.set_xlim(0, top * (1.16 if len(groups) == 1 else 1.42))
            look.title(ax, clip(name, 60) if j == 0 else "", group + {"memory": ", the ceiling of decode in blue", "caches": ", data that stays there", "arithmetic": " in registers"}[group])
    f.figure.tight_layout()
    return f
