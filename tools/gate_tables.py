"""Tables of what a decision is held against, for render_docs.py: whole requests through the server, baselines, planned memory, real text on a GPU."""

import json
import pathlib
import re
import statistics

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "results"
NO_ROWS = ["No rows yet."]


def rows(name):
    path = RESULTS / name
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()] if path.exists() else []


def service():
    """A line a load: f16 in front of the other caches and behind them, seconds of the same requests."""
    loads = {}
    for r in rows("service-cuda.jsonl"):
        key = (r["server_device"].split(" ", 1)[1], f"{r['model']} {r['server_weight_format']}", r["clients"], r["prompt_tokens"], r["answer_tokens"])
        loads.setdefault(key, {}).setdefault(r["kv"], []).append(r)
    if not loads:
        return NO_ROWS
    out = ["| machine | model | sessions | prompt + answer | cache | seconds a request | times f16 | f16 against itself | generated tok/s | TTFT ms, median | KV MB |",
           "|---|---|---:|---|---|---:|---:|---:|---:|---:|---:|"]
    seconds = lambda r: r["total_ms"]["p50"] / 1e3
    for (machine, model, clients, prompt, answer), caches in loads.items():
        base = [seconds(r) for r in caches.get("f16", [])]
        for kv, found in caches.items():
            mean = lambda of: statistics.mean(of(r) for r in found)
            ratio = f"{statistics.mean(base) / mean(seconds):.3f}" if base and kv != "f16" else ""
            same = f"{max(base) / min(base):.3f}" if len(base) > 1 and kv == "f16" else ""
            out.append(f"| {machine} | {model} | {clients} | {prompt} + {answer} | {kv} | {mean(seconds):.3f} | {ratio} | {same} | {mean(lambda r: r['gen_tok_s']):.0f} |"
                       f" {mean(lambda r: r['ttft_ms']['p50']):.0f} | {mean(lambda r: r['kv_bytes_peak']) / 1e6:.0f} |")
    return out


def baselines():
    """A line a problem and state of its buffers; a column a kernel or cache, microseconds."""
    problems, columns = {}, []
    for r in rows("checks/baselines-cuda.jsonl"):
        if r["kind"] != "op" or r.get("median_us") is None:
            continue
        if r["op"] == "gemv":
            what, column = f"product {r['n_out']} x {r['n_in']}, {r['n_tokens']} token{'s' if r['n_tokens'] > 1 else ''}", f"{r['weight_format']}, `{r['kernel']}`"
        else:
            what, column = f"attention {r['n_heads']}/{r['n_kv_heads']}/{r['head_dim']} x {r['n_keys']}", r["kv"]
        problems.setdefault((r["op"], what, "cold" if r["cold"] else "warm"), {})[column] = r["median_us"]
        if (r["op"], column) not in columns:
            columns.append((r["op"], column))
    if not problems:
        return NO_ROWS
    out = []
    for op in dict.fromkeys(op for op, _ in columns):
        names = [name for of, name in columns if of == op]
        out += [*([""] if out else []), f"| problem | buffers | {' | '.join(names)} |", "|---|---|" + "---:|" * len(names)]
        for (of, what, state), us in problems.items():
            if of == op:
                out.append(f"| {what} | {state} |" + "".join(f" {us[name]:.1f} |" if name in us else " |" for name in names))
    return out


def plans():
    """A line a configuration: total as planned, and as the driver counts it."""
    found = [r for r in rows("checks/plan-cuda.jsonl") if r.get("found")]
    if not found:
        return NO_ROWS
    out = ["| model | cache | context | sessions | planned MB | found MB | difference % | largest difference of a component |", "|---|---|---:|---:|---:|---:|---:|---|"]
    for r in found:
        gaps = {part: r["found"][part] - planned for part, planned in r["parts"].items() if part in r["found"]}
        worst = max(gaps, key=lambda part: abs(gaps[part]))
        says = f"{worst} {gaps[worst] / 1e6:+.2f} MB" if gaps[worst] else "none"
        model = re.search("synth:([^ ]*)", r["command"])[1].replace("@weights=", " ")
        out.append(f"| {model} | {r['kv']} | {r['n_ctx']} | {r['n_sessions']} | {r['total_bytes'] / 1e6:.1f} | {r['found_bytes'] / 1e6:.1f} | {100 * r['difference']:.2f} | {says} |")
    return out


def real_text():
    """ridge-ref with its own head and with look-up on a GPU."""
    found = rows("checks/spec-text-cuda.jsonl")
    if not found:
        return NO_ROWS
    out = ["| text | tokens | who guesses | temperature | cache | tok/s without | with | ratio | accepted a step | generated text that repeats % | texts that differ |", "|---|---:|---|---:|---|---:|---:|---:|---:|---:|---:|"]
    for r in found:
        out.append(f"| {r['text']} | {r['n_gen']} | {r['spec_type']} | {r['temperature']:g} | {r['type_k']} | {r['plain_avg_ts']:.0f} ± {r['plain_stddev_ts']:.0f} | {r['avg_ts']:.0f} ± {r['stddev_ts']:.0f} |"
                   f" {r['speedup']:.2f} | {r['accepted_per_step']:.2f} | {100 * r['repeated_share']:.0f} | {r['texts_differ']} of {len(r['samples_ts'])} |")
    return out


TABLES = {"service": service, "baselines": baselines, "plan-cuda": plans, "spec-text-cuda": real_text}
