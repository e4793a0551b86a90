"""Tables of the server under load (results/serve-*.jsonl), for render_docs.py."""

import json
import pathlib

import speed_tables

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "results"


def spread(row, name):
    values = row[name]
    return " / ".join(f"{values[p]:.3g}" if values[p] < 100 else f"{values[p]:.0f}" for p in ("p50", "p95", "p99"))


def load():
    out = ["| machine | model | cache | clients | prompt | answer | TTFT ms, p50 / p95 / p99 | between tokens ms, p50 / p95 / p99 | generated tok/s | prompt tok/s | cached % | good req/s | KV MB |",
           "|---|---|---|---:|---|---|---|---|---:|---:|---:|---:|---:|"]
    for name in ("serve-cpu.jsonl", "serve-cuda.jsonl"):
        path = RESULTS / name
        for r in map(json.loads, path.read_text().splitlines() if path.exists() else []):
            prompt = r["prompt_tokens"] if r["shared_prefix"] == 0 else f"{r['shared_prefix']} shared + {r['prompt_tokens']}"
            cached = 100 * r["prompt_tokens_cached"] / max(1, r["prompt_tokens_sent"])
            where = f"{r['processors']} processors" if r["server_device"] == "cpu" else r["server_device"].split(" ", 1)[1]
            out.append(f"| {where} | {r['model']} {r['server_weight_format']} | {r['kv']} | {r['clients']} | {prompt} | {r['answer_tokens']} | {spread(r, 'ttft_ms')} | {spread(r, 'itl_ms')} "
                       f"| {r['gen_tok_s']:.0f} | {r['prompt_tok_s']:.0f} | {cached:.0f} | {r['goodput_req_s']:.2f} | {r['kv_bytes_peak'] / 1e6:.0f} |")
    return out


def mask_cost():
    out = ["| grammar | documents | masks | first document us, p50 / p99 / max | steady us, p50 / p99 / max | taking a token us, p50 / p99 | cache KiB | prepared in ms |", "|---|---|---:|---|---|---|---:|---:|"]
    for r in map(json.loads, (RESULTS / "checks" / "mask-cost.jsonl").read_text().splitlines()):
        out.append(f"| {r['grammar']} | {r['documents']} | {r['n_masks']} | {r['first_p50_us']} / {r['first_p99_us']} / {r['first_max_us']} | {r['p50_us']} / {r['p99_us']} / {r['max_us']} "
                   f"| {r['accept_p50_us']} / {r['accept_p99_us']} | {r['cache_kib']:.0f} | {r['prepare_ms']} |")
    return out


def crowd():
    out = ["| machine | model | cache | clients | requests | different prompts | other text than alone |", "|---|---|---|---:|---:|---:|---:|"]
    for r in map(json.loads, (RESULTS / "checks" / "crowd-cuda.jsonl").read_text().splitlines()):
        out.append(f"| {r['device_name']} | {r['model']} {r['weight_format']} | {r['kv']} | {r['clients']} | {r['requests']} | {r['prompts']} | {r['differ']} |")
    return out


def speculation():
    out = ["| text | who guesses | temperature | cache | tok/s without | with | ratio | accepted a step | generated text that repeats % |", "|---|---|---:|---|---:|---:|---:|---:|---:|"]
    for r in map(json.loads, (RESULTS / "checks" / "spec-cpu.jsonl").read_text().splitlines()):
        out.append(f"| {r['text']} | {r['spec_type']} | {r['temperature']:g} | {r['type_k']} | {r['plain_avg_ts']:.0f} ± {r['plain_stddev_ts']:.0f} | {r['avg_ts']:.0f} ± {r['stddev_ts']:.0f} "
                   f"| {r['speedup']:.2f} | {r['accepted_per_step']:.2f} | {100 * r['repeated_share']:.0f} |")
    return out


def speculation_texts():
    """A line a proposer and pair of caches, over both temperatures."""
    out = ["| who guesses | cache | cache of the draft or head | prompts | texts | tokens | tokens that differ | guesses that hold %, greedy | at 0.8 |", "|---|---|---|---:|---:|---:|---:|---:|---:|"]
    lines = {}
    for r in map(json.loads, (RESULTS / "checks" / "speculation-text.jsonl").read_text().splitlines()):
        lines.setdefault((r["proposer"], r["kv"], r["draft_kv"]), []).append(r)
    for (proposer, kv, draft_kv), found in lines.items():
        held = {r["temperature"]: f"{100 * r['accepted'] / r['proposed']:.0f}" for r in found}
        total = {name: sum(r[name] for r in found) for name in ("prompts", "tokens", "differing_tokens")}
        out.append(f"| {proposer} | {kv} | {draft_kv} | {found[0]['prompts']} | {total['prompts']} | {total['tokens']} | {total['differing_tokens']} | {held[0]} | {held[0.8]} |")
    return out


def mtp_head():
    """A line an evaluated set of texts: the head before its training and behind it."""
    out = ["| prompts | temperature | counted | texts | proposals of 3 that hold %, before | after | tokens a step at 3 proposals, before | after | at 5, before | after |", "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|"]
    counted = {"with": "whole texts", "none": "texts without loops", "front": "up to the first repetition"}
    pairs = {}
    for r in map(json.loads, (RESULTS / "checks" / "mtp-head.jsonl").read_text().splitlines()):
        if r["kind"] == "mtp_head":
            pairs.setdefault((r["text"], r["temperature"], r["loops"]), {})[r["head"]] = r
    for (text, temperature, loops), found in pairs.items():
        before, after = found["before"], found["after"]
        cells = [f"{100 * r['accepted_of_proposed']:.0f}" for r in (before, after)]
        cells += [f"{r[name]:.2f}" for name in ("tokens_per_step_3", "tokens_per_step_5") for r in (before, after)]
        out.append(f"| {text} | {temperature:g} | {counted[loops]} | {after['texts']} | {' | '.join(cells)} |")
    return out


def speculation_cuda():
    """A step's cost is what the ratio and the tokens a step leave: a proposer that guesses for nothing costs verification alone."""
    out = ["| machine | model | who guesses | guesses a step | right | cache | depth | tok/s without | with | ratio | accepted a step | a step with guesses, in steps without |",
           "|---|---|---|---:|---:|---|---:|---:|---:|---:|---:|---:|"]
    for r in speed_tables.last_guesses():
        model = r["model_filename"].removeprefix("synth:").split("@")[0]
        kv = r["type_k"] if r["type_k"] == r["type_v"] else f"{r['type_k']}/{r['type_v']}"
        out.append(f"| {r['gpu_info']} | {model} int4_g128 | {r['spec_type']} | {r['spec_depth']} | {r['forced_accept']:g} | {kv} | {r['n_depth']} | {r['plain_avg_ts']:.0f} | {r['avg_ts']:.0f} "
                   f"| {r['speedup']:.2f} | {r['accepted_per_step']:.2f} | {speed_tables.verified_step(r):.2f} |")
    return out


def decisions():
    """Verdicts of stored decision records (docs/formats/decision-record.md), a line a candidate."""
    paths = sorted((RESULTS / "decisions").glob("*.json"))
    out = ["| model | machine | cache | 1 crossover | 2 target | 3 requests | 4 quality | 5 bound | 6 memory | 7 promotion | requests, times f16 | decided |",
           "|---|---|---|---|---|---|---|---|---|---|---:|---|"]
    for record in (json.loads(path.read_text()) for path in paths):
        who = record["subject"]
        machine = f"{who['device_name']}, {who['n_threads']} threads, {who['build'].split(',')[0]}"
        for candidate in record["candidates"]:
            verdicts = {gate["number"]: gate["verdict"] for gate in candidate["gates"]}
            on = f"on from {candidate['from_depth']} tokens" if candidate["on"] else "off"
            speedup = f"{candidate['speedup']:.2f}" if candidate["speedup"] else ""
            name = pathlib.Path(who["model_path"]).name
            out.append(f"| {name} | {machine} | {candidate['kv']} | " + " | ".join(verdicts.get(i, "") for i in range(1, 8)) + f" | {speedup} | {on} |")
        out.append(f"| | | | | | | | | | | | {record['sentence']} |")
    return out


TABLES = {"decisions": decisions, "spec-cpu": speculation, "spec-cuda": speculation_cuda, "speculation-text": speculation_texts, "mtp-head": mtp_head, "crowd-cuda": crowd, "serve-load": load, "mask-cost": mask_cost}
