"""The page of one decision record (docs/formats/decision-record.md): what to use, what to type, the gates, where the crossovers are."""

import json
import shlex

import search
from page import CSS, Markup, esc, table
from rows import BadFile, clip, number, objects, positive, text, whole_text

VERSION = 2
MAX_BYTES = 1 << 24  # as ridge itself reads
FIELDS = ["gate", "name", "kv", "depth", "speedup", "speedup_lower", "speedup_upper", "verdict", "noise"]
COMPARED = {1: "cached tokens", 2: "cached tokens", 3: "tokens of the prompt"}


def read(path):
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadFile(f"cannot read the record: {path}: larger than {MAX_BYTES >> 20} MiB (is it a record of ridge decide?)")
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadFile(f"cannot read the record: {path}: {error.strerror} (ridge decide writes records)") from None
    except (ValueError, RecursionError):
        raise BadFile(f"cannot read the record: {path}: no JSON (run ridge decide again)") from None
    if not isinstance(record, dict) or record.get("format") != "ridge-decision":
        raise BadFile(f"cannot read the record: {path}: not a decision record (ridge decide writes them)")
    if record.get("version") != VERSION:
        raise BadFile(f"cannot read the record: {path}: version {record.get('version')}, this page knows {VERSION} (run ridge decide again)")
    return record


def crossovers(record):
    """One line per gate, candidate and depth: how many times as fast as f16."""
    out = []
    for candidate in objects(record, "candidates"):
        for gate in objects(candidate, "gates"):
            numbers = gate.get("numbers")
            for point in objects(numbers, "depths") if isinstance(numbers, dict) else []:
                line = {"gate": number(gate, "number"), "name": text(gate, "name"), "kv": text(candidate, "kv", default="?"), "depth": positive(point, "depth"),
                        "speedup": positive(point, "comparison", "ratio"), "speedup_lower": positive(point, "comparison", "ratio_low_95"),
                        "speedup_upper": positive(point, "comparison", "ratio_high_95"), "verdict": text(point, "comparison", "verdict"),
                        "noise": number(point, "comparison", "noise")}
                if line["gate"] in COMPARED and line["depth"] and line["speedup"]:
                    out.append({**line, "gate": int(line["gate"]), "depth": int(line["depth"])})
    return out


def draw(lines, look):
    """Speed-up by depth, a panel a gate; above 1 a format is faster than f16."""
    gates = sorted({d["gate"] for d in lines})
    f = look.Figure("decision", 1, len(gates), 10.4, 4.3)
    f.figure.subplots_adjust(left=0.06, right=0.9, top=0.84, bottom=0.13, wspace=0.42)
    for ax, gate in zip(f.axes, gates):
        found = [d for d in lines if d["gate"] == gate]
        ax.set_xscale("log", base=2)
        ax.axhline(1, color=look.INK, lw=1)
        depths = sorted({d["depth"] for d in found})
        ax.set_xticks(depths, [f"{n // 1024}k" if n % 1024 == 0 else str(n) for n in depths])
        ends = []
        for kv in dict.fromkeys(d["kv"] for d in found):
            line = sorted((d for d in found if d["kv"] == kv), key=lambda d: d["depth"])
            shade = look.colour(kv)
            ax.plot([d["depth"] for d in line], [d["speedup"] for d in line], "-", color=shade, lw=1.6)
            for d in line:
                known = d["verdict"] in ("FASTER", "SLOWER")
                low, high = d["speedup_lower"] or d["speedup"], d["speedup_upper"] or d["speedup"]
                dot = ax.errorbar([d["depth"]], [d["speedup"]], yerr=[[max(d["speedup"] - low, 0)], [max(high - d["speedup"], 0)]], fmt="o", color=shade,
                                  markerfacecolor=shade if known else look.PAPER, capsize=2, zorder=3)
                f.tip(dot.lines[0], f"{kv} at {d['depth']}: {d['speedup']:.3f}x, {d['verdict'] or 'no verdict'}")
            ends.append((line[-1]["depth"], line[-1]["speedup"], clip(kv, 18), shade))
        look.label_ends(ax, ends)
        look.title(ax, f"gate {gate}", clip(found[0]["name"], 52))
        ax.set_xlabel(COMPARED[gate])
    return f


def gates_table(record):
    """A line a gate of each candidate: as many columns for any number of gates."""
    shades = {"PASS": "good", "FAIL": "bad"}
    lines = []
    for candidate in objects(record, "candidates"):
        on = candidate.get("on") is True
        cache = Markup(f"<code>{esc(text(candidate, 'kv', default='?'))}</code>")
        lines.append((cache, "", Markup(f"<span class={'good' if on else 'how'}>{'ON' if on else 'opt-in'}</span>"), text(candidate, "why")))
        for gate in objects(candidate, "gates"):
            n, verdict = number(gate, "number"), text(gate, "verdict", default="?")
            lines.append(("", f"{'' if n is None else int(n)} {text(gate, 'name')}", Markup(f"<span class={shades.get(verdict, 'how')}>{esc(verdict)}</span>"), text(gate, "why")))
    return table([(name, lambda line, i=i: line[i], None) for i, name in enumerate(("cache", "gate", "verdict", "why"))], lines, sortable=False)


def to_type(record):
    """Command lines for the reader: the choice, and what would fill gaps."""
    model, choice = text(record, "subject", "model_path", default="MODEL"), whole_text(record, "choice", default="f16")
    start = int(number(record, "from_depth") or 0)
    lines = [f"ridge run -m {shlex.quote(model)} --kv-quant auto"]
    if choice != "f16":
        lines.append(f"ridge run -m {shlex.quote(model)} --kv-quant {shlex.quote(choice)}" + (f"   # from {start} tokens on" if start else ""))
    commands = [whole_text({"c": c}, "c") for candidate in objects(record, "candidates") for gate in objects(candidate, "gates") if isinstance(gate.get("commands"), list) for c in gate["commands"]]
    return lines, [c for c in dict.fromkeys(commands) if c], any(text(g, "verdict") == "NO VERDICT" for c in objects(record, "candidates") for g in objects(c, "gates"))


def search_lines(record):
    found = record.get("search")
    if not isinstance(found, dict):
        return []
    rows = [{"kind": "search_point", "uniform": uniform, "model": text(record, "subject", "model_path"), "kv": text(p, "kv"), "bits": number(p, "bits"),
             "limit": "" if uniform else f"KLD <= {number(p, 'kld_limit'):g}" if positive(p, "kld_limit") else f"bits <= {number(p, 'bits_limit') or 0:g}",
             "predicted_kld": number(p, "predicted"), "kld": {"value": number(p, "kld"), "error": number(p, "kld_error")},
             "line": {"value": number(p, "line"), "error": number(p, "line_error")}, "verdict": text(p, "verdict")}
            for uniform, name in ((True, "uniform"), (False, "points")) for p in objects(found, name)]
    return search.data(rows)


def search_html(record, lines, svg):
    import page
    found = record.get("search")
    if not isinstance(found, dict):
        return ""
    why = text(found, "why")
    picture = f"<figure>{svg}</figure>" if svg else ""
    return (f"<h2 id=search>{esc(search.TITLE)}</h2><p>{esc(search.sentence(lines) if lines else why or 'Nothing was found.')}</p>{picture}"
            + (page.search_table(lines, None) if lines else ""))


def render(record, figure_svg, search_svg):
    subject = record.get("subject") if isinstance(record.get("subject"), dict) else {}
    commands, measured, gaps = to_type(record)
    chosen = whole_text(record, "choice", default="f16")
    facts = [("model", f"{text(subject, 'model_path')} ({text(subject, 'model_hash')})"), ("machine", f"{text(subject, 'device_name')}, {text(subject, 'device')}"),
             ("build", f"{text(subject, 'build')}, {text(record, 'date')}"), ("asked", f"{int(number(record, 'n_ctx') or 0)} tokens, {int(number(record, 'n_sessions') or 0)} session(s)")]
    said = "<br>".join(f"{esc(name)}: {esc(value)}" for name, value in facts)
    gap = "<p class=how>Gates without a verdict want rows: the command of the decision, run again, measures what is missing, and with <code>--again</code> what was too noisy.</p>" if gaps else ""
    crossing = (f"<figure>{figure_svg}</figure><p class=how>Above 1 a format is faster than f16. Hollow points are inside the noise; bars are 95 % intervals.</p>" if figure_svg else
                "<div class=none><p>No times are in this record: gates 1 to 3 have no rows.</p></div>")
    return (f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width,initial-scale=1'><title>Ridge: decision</title>"
            f"<link rel=icon href=data:,><style>{CSS}</style><header><div><h1>{esc('Stay with f16' if chosen == 'f16' else 'Use ' + chosen)}</h1><div class=sub>{said}</div></div></header>"
            f"<main><p>{esc(whole_text(record, 'sentence'))}</p>"
            f"<h2 id=type>What to type</h2><pre>{esc(chr(10).join(commands))}</pre><h2 id=gates>Gates</h2>{gates_table(record)}{gap}"
            f"<h2 id=crossover>Crossovers</h2>{crossing}{search_html(record, search_lines(record), search_svg)}"
            f"<h2 id=commands>Measured by</h2><pre>{esc(chr(10).join(measured) or text(record, 'command'))}</pre>"
            "<footer>Written by <code>ridge decide --show RECORD --page DIR</code> from the record only.</footer></main></html>\n")
