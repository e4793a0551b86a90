"""The page: one HTML file with everything in it, readable without scripts and without a network."""

import html

import attribution
import claims
import decode
import machine
import quality
import regime
from rows import amount

CSS = """
:root{--ink:#1f2733;--soft:#5d6878;--line:#dfe3e8;--paper:#fff;--page:#f5f4f0;--good:#0f7b5f;--bad:#b3362b;--open:#8a6d1f;--accent:#2b6cb0}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--soft:#9aa5b4;--line:#343c48;--paper:#1d232c;--page:#14181f;--good:#4fc29f;--bad:#ef8075;--open:#d9b957;--accent:#7db4ea}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15.5px/1.55 system-ui,'Segoe UI','Helvetica Neue',Arial,sans-serif}
main,header>div{max-width:1120px;margin:0 auto;padding:0 24px}
header{border-bottom:1px solid var(--line);background:var(--paper);padding:30px 0 22px}
h1{font-size:27px;margin:0 0 2px;letter-spacing:-.01em}
h2{font-size:20px;margin:52px 0 6px;letter-spacing:-.005em}
h3{font-size:14px;margin:0 0 8px}
p{margin:4px 0 12px;max-width:80ch}
.sub,.how,small{color:var(--soft)}.how{font-size:13.5px}
nav{margin-top:14px;display:flex;flex-wrap:wrap;gap:4px 18px;font-size:14px}
a{color:var(--accent);text-decoration:none}a:hover{text-decoration:underline}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(190px,1fr));gap:14px;margin:26px 0 0}
.tile,.card{background:var(--paper);border:1px solid var(--line);border-radius:10px;padding:16px 18px}
.tile b{display:block;font-size:28px;line-height:1.2;letter-spacing:-.02em;font-weight:650}
.tile span{display:block;font-size:13.5px;color:var(--soft);line-height:1.4}
.cols{display:grid;grid-template-columns:repeat(auto-fit,minmax(300px,1fr));gap:14px;margin-top:16px}
.card ul{margin:0;padding-left:17px;font-size:14px}.card li{margin:0 0 5px}
.win{border-top:3px solid var(--good)}.loss{border-top:3px solid var(--bad)}.open{border-top:3px solid var(--open)}
.win h3{color:var(--good)}.loss h3{color:var(--bad)}.open h3{color:var(--open)}
figure{margin:14px 0;background:#fff;border:1px solid var(--line);border-radius:10px;padding:12px 14px}
figure svg{display:block;width:100%;height:auto}.tip{cursor:default}.tip:hover{opacity:.6}
.none{border:1px dashed var(--line);border-radius:10px;padding:14px 18px;background:var(--paper)}
code,pre{font:13px/1.5 ui-monospace,'SF Mono',Menlo,Consolas,monospace}
pre{background:var(--paper);border:1px solid var(--line);border-radius:8px;padding:10px 14px;overflow-x:auto;margin:8px 0}
.scroll{overflow-x:auto;margin:10px 0;background:var(--paper);border:1px solid var(--line);border-radius:10px}
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}
th,td{padding:6px 12px;text-align:left;border-bottom:1px solid var(--line);vertical-align:top}
tr:last-child td{border-bottom:0}th{font-weight:600;color:var(--soft);white-space:nowrap}
td.n,th.n{text-align:right;white-space:nowrap}td code{font-size:12px;overflow-wrap:anywhere}
th[data-sort]{cursor:pointer}th[data-sort]:hover{color:var(--ink)}th[aria-sort=ascending]::after{content:' ▲'}th[aria-sort=descending]::after{content:' ▼'}
details{margin:10px 0}summary{cursor:pointer;color:var(--accent);font-size:14.5px;padding:2px 0}
.bad{color:var(--bad);font-weight:600}.good{color:var(--good)}
.swatch{display:inline-block;width:.75em;height:.75em;border-radius:3px;margin-right:.5em}
footer{margin:60px 0 40px;color:var(--soft);font-size:13.5px}
input{font:inherit;padding:5px 10px;border:1px solid var(--line);border-radius:7px;background:var(--paper);color:var(--ink);width:min(420px,100%)}
@media print{body{background:#fff}details{display:block}}
"""

SCRIPT = """
for(const table of document.querySelectorAll('table.sortable')){
  table.querySelectorAll('th').forEach((th,column)=>{
    th.dataset.sort='';th.tabIndex=0;
    const sort=()=>{
      const down=th.getAttribute('aria-sort')!=='descending';
      table.querySelectorAll('th').forEach(t=>t.removeAttribute('aria-sort'));
      th.setAttribute('aria-sort',down?'descending':'ascending');
      const body=table.tBodies[0],value=row=>row.cells[column].dataset.value??row.cells[column].textContent;
      const order=(a,b)=>{const x=value(a),y=value(b),n=parseFloat(x),m=parseFloat(y);
        if(x===''||y==='')return x===y?0:x===''?1:-1;
        const sign=isNaN(n)||isNaN(m)?x.localeCompare(y):n-m;return down?-sign:sign};
      [...body.rows].sort(order).forEach(row=>body.append(row))};
    th.addEventListener('click',sort);
    th.addEventListener('keydown',e=>{if(e.key==='Enter'||e.key===' '){e.preventDefault();sort()}})})}
const box=document.getElementById('filter');
if(box){box.hidden=false;box.addEventListener('input',()=>{
  const words=box.value.toLowerCase().split(/\\s+/).filter(Boolean);
  document.querySelectorAll('#rows tbody tr').forEach(tr=>{const t=tr.textContent.toLowerCase();tr.hidden=!words.every(w=>t.includes(w))});
  if(words.length)document.querySelectorAll('#rows details').forEach(d=>{d.open=true})})}
"""


def esc(value):
    return html.escape(str(value), quote=True)


def table(columns, lines, sortable=True):
    """columns: [(heading, line -> shown text, line -> number to sort by or None)]. A number means right-aligned."""
    head = "".join(f'<th{" class=n" if value else ""}>{esc(name)}</th>' for name, _, value in columns)
    body = []
    for line in lines:
        cells = []
        for _, shown, value in columns:
            text = shown(line)
            text = text if isinstance(text, Markup) else esc(text)
            if value:
                number = value(line)
                cells.append(f'<td class=n data-value="{"" if number is None else f"{number:.9g}"}">{text}</td>')
            else:
                cells.append(f"<td>{text}</td>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class=scroll><table class="{"sortable" if sortable else ""}"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


class Markup(str):
    """HTML that is already escaped."""


def format_cell(name, look):
    return Markup(f'<span class=swatch style="background:{look.colour(name)}"></span>{esc(name)}')


def shown(value, digits=3):
    return "" if value is None else amount(value, digits)


# What was found, sorted by whom it speaks for.


def findings(data):
    """{"win": [...], "loss": [...], "open": [...]}: every verdict of the sections, as sentences."""
    out = {"win": [], "open": [], "loss": []}
    for section, what in (("depth", "depth"), ("batch", "batch")):
        groups = {}
        for (where, panel), formats in regime.panels(data[section]).items():
            for fmt, line in formats.items():
                verdicts = {d["verdict"] for d in line} - {"undecided"}
                place = "win" if verdicts == {"faster"} else "loss" if verdicts == {"slower"} else "open"
                if "(" not in fmt:  # a baseline is there to lose
                    groups.setdefault((place, where, fmt, panel.split()[0] if section == "depth" else "products"), []).append((panel, line))
        for (place, where, fmt, _), panels in groups.items():
            if len(panels) == 1 or place == "open":
                out[place] += [f"{regime.words(fmt, line, what)}: {panel}, {where}." for panel, line in panels]
                continue
            ratios = [d["speedup"] for _, line in panels for d in line if d["verdict"] != "undecided"]
            names = ", ".join(panel.removeprefix("attention ").removesuffix(", 1 sequence") for panel, _ in panels)
            out[place].append(f"{fmt} is {'faster' if place == 'win' else 'slower'} than f16 wherever it can be told, {min(ratios):.2f}x to {max(ratios):.2f}x: "
                              f"{'attention ' if section == 'depth' else ''}{names}; {where}.")
    for d in data["quality"]:
        if d["gate"] in ("pass", "FAIL") and d["kv"] != "f16" and d["bits_per_value"]:
            what = (f"{d['kv']} at {d['bits_per_value']:g} bits {'passes' if d['gate'] == 'pass' else 'fails'}: "
                    f"perplexity {d['ppl_rise']:+.4g} against f16, mean KLD {amount(d['kld'])}: {d['model']}.")
            if d["gate"] == "FAIL":
                out["loss"].append(what + f" The limits are +{quality.PPL_RISE} and {quality.KLD}.")
            elif d["bits_per_value"] <= 8.5:
                out["win"].append(what)
    slow = [d for d in data["decode"] if d["pct_of_roof"] and d["pct_of_roof"] < 60 and not d["in_cache"]]
    for d in sorted(slow, key=lambda d: d["pct_of_roof"])[:3]:
        out["loss"].append(f"{d['kv']} at depth {d['depth']} decodes at {d['pct_of_roof']:.0f} % of memory bandwidth: {d['model']}.")
    return out


def tiles(data):
    out = []
    bandwidths = [(name, machine.read_bandwidth(lines)) for name, lines in machine.by_machine(data["ceilings"]).items()]
    for name, bandwidth in [b for b in bandwidths if b[1]][:2]:
        out.append((f"{amount(bandwidth)} GB/s", f"read bandwidth of {name}"))
    known = [d for d in data["decode"] if d["pct_of_roof"] and not d["in_cache"]]
    if known:
        best = max(known, key=lambda d: d["pct_of_roof"])
        out.append((f"{best['pct_of_roof']:.0f} %", f"of memory bandwidth: best decode, {best['kv']} at depth {best['depth']}, {amount(best['tok_s'])} tok/s"))
        deep = [d for d in data["depth"] if d["panel"].startswith("whole step") and d["verdict"] != "undecided" and d["x"] > 0]
        if deep:
            most = max(deep, key=lambda d: d["speedup"])
            out.append((f"{most['speedup']:.2f}x f16", f"{most['format']} cache at depth {most['x']}, whole step"))
    small = [d for d in data["quality"] if d["gate"] == "pass" and d["bits_per_value"]]
    if small:
        least = min(small, key=lambda d: (d["bits_per_value"], d["kld"]))
        out.append((f"{least['bits_per_value']:g} bits", f"smallest cache within +{quality.PPL_RISE} perplexity and {quality.KLD} nats: {least['kv']}, mean KLD {amount(least['kld'])}"))
    return "".join(f"<div class=tile><b>{esc(a)}</b><span>{esc(b)}</span></div>" for a, b in out)


def listing(name, heading, lines, most=7):
    items = "".join(f"<li>{esc(line)}</li>" for line in lines[:most])
    rest = lines[most:]
    if rest:
        items += f"</ul><details><summary>{len(rest)} more</summary><ul>" + "".join(f"<li>{esc(line)}</li>" for line in rest) + "</ul></details><ul>"
    return f'<div class="card {name}"><h3>{heading} ({len(lines)})</h3><ul>{items or "<li>Nothing stored says so.</li>"}</ul></div>'


# Tables of the sections.


def parts_table(lines, look):
    return "".join(f"<details{' open' if i == 0 else ''}><summary>Parts of {esc(attribution.label(step[0]))} ({esc(step[0]['machine'])}): they add up to "
                   f"{100 * step[0]['parts_us'] / step[0]['step_us']:.1f} % of {amount(step[0]['step_us'] / 1000)} ms</summary>" + table([
        ("part", lambda d: d["name"], None), ("class", lambda d: Markup(f'<span class=swatch style="background:{look.CLASSES[d["op"]]}"></span>{d["op"]}'), None),
        ("kernel", lambda d: d["kernel"], None), ("calls", lambda d: shown(d["calls"]), lambda d: d["calls"]), ("µs", lambda d: shown(d["us"], 4), lambda d: d["us"]),
        ("share", lambda d: f"{100 * d['share_of_step']:.1f} %", lambda d: d["share_of_step"]),
        ("MB", lambda d: shown(d["read_bytes"] and (d["read_bytes"] + (d["write_bytes"] or 0)) / 1e6), lambda d: d["read_bytes"]),
        ("GB/s", lambda d: shown(d["gb_s"]), lambda d: d["gb_s"]), ("% of bandwidth", lambda d: shown(d["pct_of_roof"]), lambda d: d["pct_of_roof"]),
        ("bound by", lambda d: d["bound"], None)], step) + "</details>" for i, step in enumerate(attribution.steps(lines)))


def quality_table(lines, look):
    speed = next((d for d in lines if d["tok_s"]), None)
    note = (f"<p class=how>tok/s: {esc(speed['tok_s_model'])} at depth {speed['tok_s_depth']} on {esc(speed['tok_s_machine'])}.</p>" if speed else
            "<p class=how>No speed at depth is stored for these caches: <code>ridge bench decode</code>.</p>")
    error = lambda d: "" if d["kld_error"] is None else f" ± {amount(d['kld_error'], 2)}"
    return "<details><summary>Every cache as a table</summary>" + table([
        ("model", lambda d: d["model"], None), ("cache", lambda d: format_cell(d["kv"], look), None), ("path", lambda d: f"{d['path']}, {d['n_ctx']}", None),
        ("bits", lambda d: shown(d["bits_per_value"], 4), lambda d: d["bits_per_value"]), ("bits at 4k", lambda d: shown(d["bits_at_4k"]), lambda d: d["bits_at_4k"]),
        ("mean KLD", lambda d: amount(d["kld"]) + error(d), lambda d: d["kld"]),
        ("PPL − f16", lambda d: "" if d["ppl_rise"] is None else f"{d['ppl_rise']:+.4f}", lambda d: d["ppl_rise"]),
        ("gate", lambda d: Markup(f'<span class={"bad" if d["gate"] == "FAIL" else "good" if d["gate"] == "pass" else "how"}>{d["gate"]}</span>'), None),
        ("same top", lambda d: "" if d["same_top"] is None else f"{100 * d['same_top']:.2f} %", lambda d: d["same_top"]),
        ("tok/s", lambda d: shown(d["tok_s"]), lambda d: d["tok_s"]), ("vs f16", lambda d: f"{d['tok_s_vs_f16']:.2f}x" if d["tok_s_vs_f16"] else "",
                                                                       lambda d: d["tok_s_vs_f16"])], lines) + note + "</details>"


def search_table(lines, look):
    error = lambda value, e: "" if value is None else amount(value) + ("" if e is None else f" ± {amount(e, 2)}")
    return "<details><summary>Every allocation as a table</summary>" + table([
        ("limit", lambda d: d["limit"] or "one pair for all layers", None), ("cache", lambda d: Markup(f"<code>{esc(d['kv'])}</code>"), None),
        ("bits", lambda d: f"{d['bits']:.3f}", lambda d: d["bits"]), ("mean KLD", lambda d: error(d["kld"], d["kld_error"]), lambda d: d["kld"]),
        ("the line", lambda d: error(d["line"], d["line_error"]), lambda d: d["line"]), ("expected", lambda d: amount(d["predicted_kld"]), lambda d: d["predicted_kld"]),
        ("verdict", lambda d: Markup(f'<span class={ {"PASS": "good", "FAIL": "bad"}.get(d["verdict"], "how") }>{esc(d["verdict"])}</span>'), None)], lines) + "</details>"


def regime_table(lines, look, what):
    said = regime.sentences(lines, what)
    items = "".join(f"<li>{esc(s)}</li>" for s in said)
    head = f"<ul>{items}</ul>" if len(said) <= 6 else f"<details><summary>In words ({len(said)})</summary><ul>{items}</ul></details>"
    return head + "<details><summary>Every point as a table</summary>" + table([
        ("shape", lambda d: d["panel"], None), ("format", lambda d: format_cell(d["format"], look), None), (what, lambda d: str(d["x"]), lambda d: d["x"]),
        ("speed-up", lambda d: f"{d['speedup']:.3f}x", lambda d: d["speedup"]),
        ("quartiles", lambda d: f"{d['speedup_lower']:.3f} – {d['speedup_upper']:.3f}", lambda d: d["speedup_lower"]),
        ("verdict", lambda d: Markup(f'<span class={ {"faster": "good", "slower": "bad"}.get(d["verdict"], "how") }>{d["verdict"]}</span>'), None),
        ("µs", lambda d: shown(d["us"], 4), lambda d: d["us"]), ("f16 µs", lambda d: shown(d["base_us"], 4), lambda d: d["base_us"]),
        ("kernel", lambda d: d["kernel"], None), ("machine", lambda d: d["machine"], None)], lines) + "</details>"


def decode_table(lines, look):
    return "<details><summary>As a table</summary>" + table([
        ("model", lambda d: d["model"], None), ("cache", lambda d: format_cell(d["kv"], look), None), ("depth", lambda d: str(d["depth"]), lambda d: d["depth"]),
        ("tok/s", lambda d: shown(d["tok_s"], 4), lambda d: d["tok_s"]), ("quartiles", lambda d: f"{shown(d['tok_s_lower'])} – {shown(d['tok_s_upper'])}", None),
        ("MB read", lambda d: shown(d["read_bytes"] and d["read_bytes"] / 1e6, 4), lambda d: d["read_bytes"]), ("GB/s", lambda d: shown(d["gb_s"]), lambda d: d["gb_s"]),
        ("bandwidth", lambda d: shown(d["roof_gb_s"]), lambda d: d["roof_gb_s"]), ("% of bandwidth", lambda d: shown(d["pct_of_roof"]), lambda d: d["pct_of_roof"]),
        ("error / bound", lambda d: f"{shown(d['check_error'], 2)} / {shown(d['check_bound'], 2)}", None)], lines) + "</details>"


def machines_table(rows):
    lines = [r for r in claims.data(machine.ceilings_rows(rows))]
    return table([("machine", lambda d: d["machine"], None), ("date", lambda d: d["date"], None), ("build", lambda d: d["build"], None),
                  ("command", lambda d: Markup(f"<code>{esc(d['command'])}</code>"), None)], lines, sortable=False)


TABLES = {
    "ceilings": lambda lines, look, rows: machines_table(rows),
    "decode": lambda lines, look, rows: decode_table(lines, look),
    "roofline": lambda lines, look, rows: "",
    "attribution": lambda lines, look, rows: parts_table(lines, look),
    "batch": lambda lines, look, rows: regime_table(lines, look, "batch"),
    "depth": lambda lines, look, rows: regime_table(lines, look, "depth"),
    "quality": lambda lines, look, rows: quality_table(lines, look),
    "search": lambda lines, look, rows: search_table(lines, look),
}


def claims_section(rows):
    lines = claims.data(rows)
    kinds = {}
    for d in lines:
        kinds.setdefault(d["kind"], []).append(d)
    columns = [("what", lambda d: d["what"], None), ("result", lambda d: Markup(f'<span class=bad>{esc(d["result"])}</span>') if d["result"].startswith("FAILED") else d["result"], None),
               ("check: error and bound", lambda d: d["check"], None), ("machine", lambda d: d["machine"], None), ("build", lambda d: d["build"], None), ("date", lambda d: d["date"], None),
               ("command", lambda d: Markup(f"<code>{esc(d['command'])}</code>"), None)]
    left = claims.left_out(rows)
    note = "<p class=bad>Not in any figure: " + esc("; ".join(f"{n} row{'s' if n > 1 else ''} that {why}" for n, why in left)).replace("rows that of", "rows of").replace("row that of", "row of") + ".</p>" if left else ""
    return (f"<h2 id=claims>{esc(claims.TITLE)}</h2><p>{len(lines)} stored rows, each with its command line, build, machine and date. Speeds count only with a passed check in the same run.</p>{note}"
            "<input id=filter hidden placeholder='filter rows: words in any order' aria-label='filter rows'><div id=rows>" + "".join(
                f"<details><summary>{esc(name)}: {len(found)} row{'s' if len(found) > 1 else ''}</summary>{table(columns, found)}</details>" for name, found in sorted(kinds.items())) + "</div>")


def section_html(section, lines, figure_svg, rows, look):
    head = f"<h2 id={section.name}>{esc(section.title)}</h2>"
    if not lines:
        return head + (f"<div class=none><p>No rows of this kind are stored. This command makes them:</p><pre>{esc(section.command)}</pre></div>")
    said = section.say(lines)
    picture = f"<figure>{figure_svg}</figure>" if figure_svg else ""
    return (head + (f"<p>{esc(said)}</p>" if said else "") + f"<p class=how>{esc(section.how)}</p>{picture}{TABLES[section.name](lines, look, rows)}"
            + f"<p class=how>Data: <a href={section.name}.csv>{section.name}.csv</a>. Rows come from <code>{esc(section.command)}</code></p>")


def render(sections, data, figures, rows, look):
    """The whole page. figures: {section name: svg text}."""
    found = findings(data)
    dates = sorted(d for d in (c["date"] for c in claims.data(rows)) if d)
    builds = sorted({c["build"] for c in claims.data(rows)} - {""})
    span = f"measured {dates[0][:10]} to {dates[-1][:10]}" if dates else "no row has a date"
    nav = "".join(f"<a href=#{s.name}>{esc(s.title.split(':')[0])}</a>" for s in sections) + "<a href=#claims>Rows</a>"
    body = "".join(section_html(s, data[s.name], figures.get(s.name), rows, look) for s in sections)
    return (f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width,initial-scale=1'><title>Ridge: report</title>"
            f"<link rel=icon href=data:,><style>{CSS}</style><header><div><h1>Ridge: what was measured</h1>"
            f"<div class=sub>{len(rows)} stored rows, {esc(span)}, builds {esc(', '.join(builds[:6]) or 'unknown')}{' and others' if len(builds) > 6 else ''}</div><nav>{nav}</nav></div></header>"
            f"<main><div class=tiles>{tiles(data)}</div><div class=cols>{listing('win', 'Where compression pays', found['win'])}"
            f"{listing('loss', 'Where it loses', found['loss'])}{listing('open', 'It depends, or undecided', found['open'])}</div>{body}{claims_section(rows)}"
            "<footer>Written by <code>ridge report</code> from stored rows only. Every figure has a CSV, an SVG and a PNG beside this file.</footer></main>"
            f"<script>{SCRIPT}</script></html>\n")
