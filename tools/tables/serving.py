"""Tables of the server, of speculation, of planned memory and of decisions."""

import json
import pathlib
import re
import statistics

from tables.rows import RESULTS, cache, card, last, model_text, n_gpus, stored, table


def spread(row, name):
    values = row[name]
    return " / ".join(f"{values[p]:.3g}" if values[p] < 100 else f"{values[p]:.0f}" for p in ("p50", "p95", "p99"))


def load():
    """A line a load; generated tokens a second, first tokens and bytes with an f16 cache and with rotor-3."""
    loads = {}
    for r in stored("serve-cpu", "serve-cuda"):
        prompt = r["prompt_tokens"] if r["shared_prefix"] == 0 else f"{r['shared_prefix']} shared + {r['prompt_tokens']}"
        key = (f"{n_gpus(r)} x {card(r)}" if n_gpus(r) > 1 else card(r), f"{r['model']} {r['server_weight_format']}", f"{prompt} + {r['answer_tokens']}", r["clients"])
        loads.setdefault(key, {})[r["kv"]] = r
    lines = []
    for key, by in loads.items():
        f16, rotor = by.get("f16"), by.get("rotor-3")
        both = lambda of: [of(r) if r else "" for r in (f16, rotor)]
        times = f"{rotor['gen_tok_s'] / f16['gen_tok_s']:.2f}x" if f16 and rotor else ""
        lines.append([*key, *both(lambda r: f"{r['gen_tok_s']:.0f}"), times, *both(lambda r: spread(r, "ttft_ms")), *both(lambda r: spread(r, "itl_ms")),
                      *both(lambda r: f"{r['kv_bytes_peak'] / 1e6:.0f}")])
    pair = lambda what: [f"{what}, f16", "rotor-3"]
    return table(["device", "model", "prompt + answer", "clients", *pair("generated tok/s"), "ratio", *pair("TTFT ms (p50 / p95 / p99)"), *pair("between tokens ms"), *pair("peak KV MB")], lines)


def service():
    """A line a load: seconds of whole requests with an f16 cache, in front of and behind rotor-3, and with rotor-3."""
    loads = {}
    for r in stored("service-cuda"):
        key = (card(r), f"{r['model']} {r['server_weight_format']}", f"{r['prompt_tokens']} + {r['answer_tokens']}", r["clients"])
        loads.setdefault(key, {}).setdefault(r["kv"], []).append(r)
    seconds = lambda r: r["total_ms"]["p50"] / 1e3
    lines = []
    for key, by in loads.items():
        both = lambda of: [statistics.mean(of(r) for r in by[kv]) for kv in ("f16", "rotor-3")]
        times = both(seconds)
        base = [seconds(r) for r in by["f16"]]
        lines.append([*key, *(f"{t:.3f}" for t in times), f"{times[0] / times[1]:.3f}x", f"{max(base) / min(base):.3f}", *(f"{t:.0f}" for t in both(lambda r: r["ttft_ms"]["p50"])),
                      *(f"{t / 1e6:.0f}" for t in both(lambda r: r["kv_bytes_peak"]))])
    return table(["device", "model", "prompt + answer", "sessions", "median seconds a request, f16", "rotor-3", "ratio", "f16 against itself", "TTFT ms (median), f16", "rotor-3",
                  "peak KV MB, f16", "rotor-3"], lines)


def mask_cost():
    lines = []
    for r in stored("checks/mask-cost"):
        lines.append([r["grammar"], r["documents"], r["n_masks"], f"{r['first_p50_us']} / {r['first_p99_us']} / {r['first_max_us']}", f"{r['p50_us']} / {r['p99_us']} / {r['max_us']}",
                      f"{r['accept_p50_us']} / {r['accept_p99_us']}", f"{r['cache_kib']:.0f}", r["prepare_ms"]])
    return table(["grammar", "documents", "masks", "first document us, p50 / p99 / max", "steady us, p50 / p99 / max", "taking a token us, p50 / p99", "cache KiB", "prepared in ms"], lines)


def speculation(name, with_texts=False):
    """Tokens a second of real text with and without draft tokens, in turns."""
    lines = []
    for r in stored(f"checks/{name}"):
        line = [card(r), r["text"], r["n_gen"], r["spec_type"], f"{r['temperature']:g}", r["type_k"], f"{r['plain_avg_ts']:.0f} ± {r['plain_stddev_ts']:.0f}",
                f"{r['avg_ts']:.0f} ± {r['stddev_ts']:.0f}", f"{r['speedup']:.2f}", f"{r['accepted_per_step']:.2f}", f"{100 * r['repeated_share']:.0f}"]
        lines.append(line + ([f"{r['texts_differ']} of {len(r['samples_ts'])}"] if with_texts else []))
    head = ["card", "text", "tokens", "proposer", "temperature", "cache", "tok/s without", "with", "ratio", "accepted a step", "repeated text %"]
    return table(head + (["texts that differ"] if with_texts else []), lines)


def speculation_vocab():
    """Real text with a head that proposes among the first token ids."""
    lines = [[card(r), f"{r['temperature']:g}", r.get("spec_vocab") or "all", r["spec_proposed"], r["spec_accepted"], f"{r['accepted_per_step']:.2f}", f"{r['plain_avg_ts']:.0f} ± {r['plain_stddev_ts']:.0f}",
              f"{r['avg_ts']:.0f} ± {r['stddev_ts']:.0f}", f"{r['speedup']:.2f}"] for r in stored("checks/spec-vocab-cpu")]
    return table(["device", "temperature", "among token ids", "draft tokens", "accepted", "accepted a step", "tok/s without", "with", "ratio"], lines)


def vocab_shares():
    numbers = ("8192", "16384", "32768", "65536")
    return table(["vocabulary", "text", "tokens", *(f"% among {int(n):,}" for n in numbers)],
                 [[f"{r['vocab']}, {r['n_vocab']:,}", r["text"], r["n_tokens"], *(f"{100 * r['shares'][n]:.1f}" for n in numbers)] for r in stored("checks/vocab-share")])


def speculation_texts():
    """A line a proposer and pair of caches, over both temperatures."""
    by = {}
    for r in stored("checks/speculation-text"):
        by.setdefault((r["proposer"], r["kv"], r["draft_kv"]), []).append(r)
    lines = []
    for key, found in by.items():
        held = {r["temperature"]: f"{100 * r['accepted'] / r['proposed']:.0f}" for r in found}
        total = [sum(r[name] for r in found) for name in ("prompts", "tokens", "differing_tokens")]
        lines.append([*key, found[0]["prompts"], *total, held[0], held[0.8]])
    return table(["proposer", "cache", "cache of the draft or head", "prompts", "texts", "tokens", "tokens that differ", "accepted %, greedy", "at 0.8"], lines)


def mtp_head():
    """A line an evaluated set of texts: the head before its training and after it."""
    counted = {"with": "whole texts", "none": "texts without loops", "front": "up to the first repetition"}
    pairs = {}
    for r in stored("checks/mtp-head"):
        if r["kind"] == "mtp_head":
            pairs.setdefault((r["text"], r["temperature"], r["loops"]), {})[r["head"]] = r
    lines = []
    for (text, temperature, loops), found in pairs.items():
        both = [found["before"], found["after"]]
        lines.append([text, f"{temperature:g}", counted[loops], both[1]["texts"], *(f"{100 * r['accepted_of_proposed']:.0f}" for r in both),
                      *(f"{r[name]:.2f}" for name in ("tokens_per_step_3", "tokens_per_step_5") for r in both)])
    return table(["prompts", "temperature", "counted", "texts", "accepted of 3 %, before", "after", "tokens a step at 3 draft tokens, before", "after", "at 5, before", "after"], lines)


def verified_step(r):
    """A step with draft tokens in steps without: what a row's ratio leaves when its steps without draft tokens cost one. Where draft tokens are forced
    to be right every step has as many, else the row says only what its mixture of steps costs."""
    cost = (r["spec_steps"] + r["spec_accepted"]) / r["speedup"]
    with_drafts = r["spec_proposed"] / r["spec_depth"] if r["forced_accept"] == 1 else r["spec_steps"]
    return (cost - (r["spec_steps"] - with_drafts)) / with_drafts


def last_drafts():
    """The newest row of each card, model, proposer, depth and cache of checks/spec-cuda.jsonl."""
    found = {}
    for r in stored("checks/spec-cuda"):
        found[tuple(r[f] for f in ("gpu_info", "model_filename", "spec_type", "spec_depth", "forced_accept", "n_depth", "type_k", "type_v")) + (r.get("spec_vocab", 0),)] = r
    return sorted(found.values(), key=lambda r: (r["spec_type"], r["model_type"], r["spec_depth"], r.get("spec_vocab", 0), r["n_depth"]))


def speculation_cuda():
    """A step's cost is what the ratio and the tokens a step leave: a proposer that costs nothing leaves verification alone."""
    lines = [[card(r), model_text(r["model_filename"]), r["spec_type"], r["spec_depth"], r.get("spec_vocab") or "all", f"{r['forced_accept']:g}", cache(r), r["n_depth"], f"{r['plain_avg_ts']:.0f}",
              f"{r['avg_ts']:.0f}", f"{r['speedup']:.2f}", f"{r['accepted_per_step']:.2f}", f"{verified_step(r):.2f}"] for r in last_drafts()]
    return table(["device", "model", "proposer", "draft tokens a step", "among token ids", "forced acceptance", "cache", "depth", "tok/s without", "with", "ratio", "accepted a step",
                  "time of a step with draft tokens, relative to one without"], lines)


def speculation_memory():
    """Prompts of the runs above that say what they took: the head reads a prompt too."""
    lines = [[card(r), model_text(r["model_filename"]), r["spec_depth"], cache(r), r["n_depth"], r["n_prompt"], f"{r['plain_prompt_ts']:.0f}", f"{r['prompt_ts']:.0f}",
              f"{r['plain_device_bytes'] / 1e6:.0f}", f"{r['device_bytes'] / 1e6:.0f}"] for r in last_drafts() if r.get("device_bytes") and r["n_prompt"] >= 512]
    return table(["device", "model", "draft tokens a step", "cache", "depth", "tokens of the prompt", "prompt tok/s without", "with", "device memory, MB, without", "with"], lines)


def exact_passes():
    """A line a test, run as usual and with --exact (kernel rows=four)."""
    tests = {}
    for r in stored("checks/exact-cuda", "checks/spec-cuda", "checks/spec-text-cuda"):
        key = (card(r), model_text(r["model_filename"]), r["text"], r["n_gen"], r["spec_type"], f"{r['temperature']:g}", cache(r), r["n_depth"], r["spec_depth"], r["forced_accept"])
        tests.setdefault(key, {})["rows=four" in r["kernels"]] = r
    lines = []
    for key, by in tests.items():
        if True not in by:
            continue
        both = lambda of: [of(by[exact]) if exact in by else "" for exact in (False, True)]
        differ = lambda r: "not compared" if r["texts_differ"] is None else f"{r['texts_differ']} of {len(r['samples_ts'])}"
        lines.append([*key[:8], *both(lambda r: f"{r['plain_avg_ts']:.0f}"), *both(lambda r: f"{r['avg_ts']:.0f}"), *both(differ)])
    return table(["device", "model", "text", "tokens", "proposer", "temperature", "cache", "depth", "tok/s without draft tokens", "with --exact", "tok/s with draft tokens", "with --exact",
                  "texts that differ", "with --exact"], lines)


def speculation_batch():
    """A line a model and a number of sequences: tokens a second of all with and without draft tokens, in one run."""
    lines = [[card(r), model_text(r["model_filename"]), r["n_seq"], cache(r), r["n_prompt"][0], r["spec_depth"], f"{r['forced_accept']:g}", f"{r['speed_tg']:.0f}", f"{r['speed_tg_spec']:.0f}",
              f"{r['speedup']:.2f}", f"{r['accepted_per_step']:.2f}", f"{100 * r['spec_steps_ahead'] / r['spec_steps']:.0f}"]
             for r in last(stored("checks/spec-batch-cuda"), "gpu_info", "model_filename", "n_seq", "type_k", "type_v", "n_prompt", "spec_depth")]
    return table(["device", "model", "texts", "cache", "tokens in front", "draft tokens, at most", "forced acceptance", "tok/s without", "with", "ratio", "accepted a step", "steps without the host %"], lines)


def plans():
    """A line a configuration, a column a cache: total as planned, and how far the driver's count lies from it."""
    found, caches = {}, []
    for r in stored("checks/plan-cuda"):
        if r.get("found"):
            key = (card(r), model_text(re.search("synth:[^ ]*", r["command"])[0]), r["n_ctx"], r["n_sessions"])
            found.setdefault(key, {})[r["kv"]] = f"{r['total_bytes'] / 1e6:.0f} ({100 * (r['found_bytes'] / r['total_bytes'] - 1):+.2f} %)"
            if r["kv"] not in caches:
                caches.append(r["kv"])
    return table(["device", "model", "context", "sessions", *(f"{kv}, MB" for kv in caches)], [[*key] + [by.get(kv, "") for kv in caches] for key, by in found.items()])


def plans_with_a_head():
    """A model with an MTP head: what both caches, everything and a decode pass's reads take as planned, and everything as allocated."""
    lines = []
    for r in last(stored("checks/plan-cpu"), "model_name", "n_ctx", "kv", "draft"):
        cache = sum(size for part, size in r["parts"].items() if part.startswith("KV "))
        lines.append([card(r), model_text(re.search("synth:[^ ]*", r["command"])[0]), r["n_ctx"], r["kv"], r["draft"]["kv"], f"{cache / 1e6:.0f}", f"{r['parts']['draft KV'] / 1e6:.0f}",
                      f"{r['total_bytes'] / 1e6:.0f}", f"{r['found_bytes'] / 1e6:.0f}" if r.get("found") else "", f"{(r['step_weight_bytes'] + r['step_kv_bytes']) / 1e6:.0f}"])
    return table(["device", "model", "context", "cache K/V", "head's cache K/V", "cache, MB", "head's cache, MB", "total, MB", "total as allocated, MB", "read by a decode pass, MB"], lines)


def decisions():
    """Verdicts of stored decision records (docs/formats/decision-record.md), a line a candidate."""
    lines = []
    for path in sorted((RESULTS / "decisions").glob("*.json")):
        record = json.loads(path.read_text())
        who = record["subject"]
        for candidate in record["candidates"]:
            verdicts = {gate["number"]: gate["verdict"] for gate in candidate["gates"]}
            lines.append([card(who), model_text(pathlib.Path(who["model_path"]).name), candidate["kv"], *(verdicts.get(i, "") for i in range(1, 8)),
                          f"{candidate['speedup']:.2f}" if candidate["speedup"] else "", f"on from {candidate['from_depth']} tokens" if candidate["on"] else "off", who["build"].split(",")[0]])
    return table(["device", "model", "cache", "1 crossover", "2 target", "3 requests", "4 quality", "5 bandwidth", "6 memory", "7 promotion", "speed of requests, relative to f16", "decided", "build"], lines)


TABLES = {
    "serve-load": load,
    "service": service,
    "mask-cost": mask_cost,
    "spec-cpu": lambda: speculation("spec-cpu"),
    "spec-text-cuda": lambda: speculation("spec-text-cuda", with_texts=True),
    "spec-hybrid-cuda": lambda: speculation("spec-hybrid-cuda", with_texts=True),
    "spec-hybrid-cpu": lambda: speculation("spec-hybrid-cpu", with_texts=True),
    "spec-cuda": speculation_cuda,
    "spec-memory-cuda": speculation_memory,
    "spec-vocab-cpu": speculation_vocab,
    "vocab-share": vocab_shares,
    "exact-cuda": exact_passes,
    "spec-batch-cuda": speculation_batch,
    "speculation-text": speculation_texts,
    "mtp-head": mtp_head,
    "plan-cuda": plans,
    "plan-cpu": plans_with_a_head,
    "decisions": decisions,
}
