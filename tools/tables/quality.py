"""Tables of what cache formats do to a model: divergence, perplexity, probes, tasks, formats by layer and side."""

import pathlib
import re

from report.limits import KLD, PPL_RISE, kept
from tables.rows import NO_ROWS, card, estimate, last, percent, stored, table

LIMITS = f"PPL - f16 (limits: +{PPL_RISE}, KLD {KLD})"
BARE = {"rotation", "window", "sinks", "centre", "scale", "rounding"}  # nothing but rotation, codes and a norm


def options_of(kv):
    """'rotor-3:planar:window=0' -> ('rotor-3', {'rotation', 'window'})."""
    name, *options = kv.split(":")
    return name, {o.split("=")[0] if "=" in o else "rotation" for o in options}


def plain(kv):
    return ":" not in kv


def rotor_3_but(*fields):
    """Caches of rotor-3 on both sides in which only these options may differ from the default."""
    return lambda k, v, kv: k == v and options_of(k)[0] == "rotor-3" and options_of(k)[1] <= set(fields)


# Which caches a part of the matrix shows, from (K, V, K/V as typed).
PARTS = {
    "both": lambda k, v, kv: plain(kv) and k == v,
    "k": lambda k, v, kv: plain(kv) and v == "f16",
    "v": lambda k, v, kv: plain(kv) and k == "f16",
    "mixed": lambda k, v, kv: plain(kv) and ";" not in kv and k != v and "f16" not in (k, v),
    "plain": lambda k, v, kv: plain(kv) and "f16/" not in kv and "/f16" not in kv,
    "layer": lambda k, v, kv: kv.startswith("f16;"),
    "split": lambda k, v, kv: ";" in kv and not kv.startswith("f16;") or kv in ("rotor-3", "rotor-4", "rotor-4/rotor-3"),
    "rotation": lambda k, v, kv: rotor_3_but("rotation")(k, v, kv) or k == v and options_of(k)[1] == BARE,
    "window": rotor_3_but("window", "sinks", "recent"),
    "rounding": rotor_3_but("rounding"),
    "scale": lambda k, v, kv: k == v and options_of(k)[1] <= {"scale"},
    "before": lambda k, v, kv: kv == "rotor-3" or "rounding=nearest" in k and "window=32" in k,
}


def sides(kv):
    k, _, v = kv.partition("/")
    return k, v or k


def finished(name, *fields):
    """Finished rows of a study, the last one of each cell."""
    return last([r for r in stored(name) if r.get("chunks") == r.get("chunks_planned")],
                *(fields or ("model", "weight_format", "path", "n_ctx", "base", "kv")))


def rise(r):
    """What a cache adds to perplexity, and whether it keeps the limits."""
    of, kld = r["difference"], r["kld"]["mean"]
    return f"{of['value']:+.3f} ± {of['error']:.3f} {kept(of['value'], of['error'], kld['value'], kld['error'])}"


def weights(r):
    return f"{r['model_name']} {r['weight_format']}"


def matrix(part, path, name="", without=()):
    """One part of the rows of `ridge eval kld` over many caches, of one model or all; runs in the order of the file, their caches beside each other."""
    found = [r for r in finished("kv-matrix") if r["path"] == path and r["model_name"].startswith(name) and PARTS[part](*sides(r["kv"]), r["kv"]) and r["kv"] not in without]
    run = lambda r: (r["model_name"], r["n_ctx"])
    if part == "scale":  # a format with one rule has nothing to compare
        several = {options_of(sides(r["kv"])[0])[0] for r in found if "scale=" in r["kv"]}
        found = [r for r in found if options_of(sides(r["kv"])[0])[0] in several]
    alone = {"split": lambda r: ";" in r["kv"], "k": lambda r: r["kv"] != "f16", "v": lambda r: r["kv"] != "f16"}.get(part)
    if alone:  # a run in which nothing was varied says nothing
        varied = {run(r) for r in found if alone(r)}
        found = [r for r in found if run(r) in varied]
    order = list(dict.fromkeys(map(run, found)))
    found.sort(key=lambda r: order.index(run(r)))
    lines = []
    for r in found:
        lines.append([card(r), weights(r), r["n_ctx"], f"`{r['kv']}`" if ":" in r["kv"] else r["kv"],
                      f"{r['kv_k']['bits_per_value']:g} / {r['kv_v']['bits_per_value']:g}", f"{r['effective_bits_4k']:.2f}",
                      estimate(r["kld"]["mean"], 6), f"{r['kld']['percentiles']['99.0%']:.4f}", percent(r["same_top"]), f"{r['ppl']['value']:.3f}",
                      rise(r)])
    return table(["device", "weights", "window", "K/V cache", "bits K / V", "bits at 4k", "mean KLD", "99 % KLD", "same top %", "PPL",
                  LIMITS], lines)


def stem(r):
    """The file of a model, without folder and ending: public files have names of their own."""
    return pathlib.PurePath(r["model"]).stem


def policy_of(side):
    """(window, sinks) of a compressed side of a row; nothing of a side in 16 or 32 bits."""
    return None if side["bits_per_value"] >= 16 else (side["window"], side["sinks"])


def bits_at(r, n):
    """Bits a value at n cached tokens that all layers hold: coded rows, sinks in f16, the window in f16 or i8r, whose scale is as large as that of the coded rows."""
    def of(side):
        bits = side["bits_per_value"]
        recent = 16 if side["recent"] == "f16" else 8 + bits % 1
        exact = side["window"] * recent + side["sinks"] * 16
        return bits if policy_of(side) is None else (bits * (n - side["window"] - side["sinks"]) + exact) / n
    return (of(r["kv_k"]) + of(r["kv_v"])) / 2


def policies(window, sinks):
    """Caches of one policy, and those without one: every codec beside the others with as many exact rows."""
    found = [r for r in finished("kv-policy") if {policy_of(r["kv_k"]), policy_of(r["kv_v"])} <= {None, (window, sinks)}]
    others = {(r["model_name"], r["n_ctx"]) for r in found if r["kv"] not in ("f16", "f32")}
    lines = []
    for r in found:
        if (r["model_name"], r["n_ctx"]) not in others:
            continue
        percentiles = r["kld"]["percentiles"]
        name = re.sub(":(window|sinks)=[0-9]+", "", r["kv"])
        windows = f"{r['chunks']} x {r['n_ctx']}" + (", prefill" if r["path"] == "prefill" else "")
        lines.append([card(r), stem(r), windows, f"`{name}`" if ":" in name else name, f"{bits_at(r, r['n_ctx']):.2f}", estimate(r["kld"]["mean"], 5),
                      f"{percentiles['Median']:.5f}", f"{percentiles['99.0%']:.4f}", f"{percentiles['99.9%']:.3f}", f"{r['kld']['maximum']:.3f}", percent(r["same_top"]),
                      f"{r['ppl']['value']:.3f}", rise(r)])
    return table(["device", "weights", "windows", "K/V cache", "bits there", "mean KLD", "median", "99 %", "99.9 %", "largest", "same top %", "PPL", LIMITS], lines)


def centre():
    """What the centre that turns changed: rows of the build before it beside today's, rotated q4_0 beside both."""
    today = {(stem(r), r["n_ctx"], r["kv"]): r for r in finished("kv-policy") if card(r) == "H200" and r["path"] == "decode"}
    lines = []
    for r in stored("checks/kv-centre-before"):
        now, peer = today[stem(r), r["n_ctx"], r["kv"]], today[stem(r), r["n_ctx"], "q4_0:hadamard:window=96:sinks=4"]
        kld = [x["kld"]["mean"] for x in (r, now, peer)]
        lines.append([card(r), stem(r), f"{r['chunks']} x {r['n_ctx']}", re.sub(":(window|sinks)=[0-9]+", "", r["kv"]), *(estimate(k, 5) for k in kld[:2]),
                      f"{kld[0]['value'] / kld[1]['value']:.2f}", estimate(kld[2], 5), rise(r), rise(now)])
    return table(["device", "weights", "windows", "K/V cache", "mean KLD, no centre", "with", "ratio", "rotated q4_0", f"{LIMITS}, no centre", "with"], lines)


def centre_speed():
    """An 8B model with an f16 cache, and with rotor-3 without and with the centre of keys."""
    cells = {}
    for r in stored("checks/centre-cuda"):
        what = f"{'a prompt of ' + str(r['n_prompt']) if r['n_prompt'] else 'a token'} behind {r['n_depth']}"
        cells.setdefault((card(r), what), {})["f16" if r["type_k"] == "f16" else "centre=on" in r["kv_k"]] = r["avg_ts"]
    return table(["device", "test", "f16, tok/s", "rotor-3, no centre", "with", "with / without"],
                 [[*key, *(f"{by[k]:.0f}" for k in ("f16", False, True)), f"{by[True] / by[False]:.2f}x"] for key, by in cells.items()])


def alone(path):
    """Each side of a cache by itself, the other in f16."""
    lines = [[card(r), stem(r), f"{r['chunks']} x {r['n_ctx']}", f"`{r['kv']}`" if ":" in r["kv"] else r["kv"], estimate(r["kld"]["mean"], 5), percent(r["same_top"]),
              rise(r)] for r in finished("kv-sides") if r["path"] == path and ";" not in r["kv"]]
    return table(["device", "weights", "windows", "K/V cache", "mean KLD", "same top %", LIMITS], lines)


def some_layers():
    """rotor-3 with rotor-4 for the K of some layers."""
    return table(["device", "weights", "windows", "rotor-4 for K of", "bits at 4k", "mean KLD", "same top %", LIMITS],
                 [[card(r), stem(r), f"{r['chunks']} x {r['n_ctx']}", "all layers" if r["kv"] == "rotor-4/rotor-3" else "layers " + ", ".join(re.findall(r";(\d+):", r["kv"])) if ";" in r["kv"] else
                   "no layer", f"{r['effective_bits_4k']:.2f}", estimate(r["kld"]["mean"], 5), percent(r["same_top"]), rise(r)] for r in finished("kv-split") if r["kv"] != "f16"])


def layers_alone():
    """One layer's K at a time, by a line of layers in their order: thousandths of a nat."""
    found = [r for r in finished("kv-sides") if ";" in r["kv"]]
    if not found:
        return NO_ROWS
    kld = {int(r["kv"].split(";")[1].split(":")[0]): 1000 * r["kld"]["mean"]["value"] for r in found}
    tens = range(0, max(kld) + 1, 10)
    return table(["device", "weights", "layers"] + [str(i) for i in range(10)], [[card(found[0]), stem(found[0]), f"{ten} to {min(ten + 9, max(kld))}"] +
                                                                     [f"{kld[ten + i]:.2f}" if ten + i in kld else "" for i in range(10)] for ten in tens])


def hybrid():
    return table(["device", "weights", "K/V cache", "bits at 4k", "mean KLD", "same top %", "PPL - f16"],
                 [[card(r), weights(r), r["kv"], f"{r['effective_bits_4k']:.2f}", estimate(r["kld"]["mean"], 6), percent(r["same_top"]),
                   f"{r['difference']['value']:+.3f} ± {r['difference']['error']:.3f}"] for r in stored("checks/kv-hybrid")])


def gemma4_cell(kv):
    """(codec, layers, sides) of a cache that codes some layers or sides of ridge-gemma4 by one codec and leaves f16 elsewhere; nothing of other caches. Its layers 3 and 7 are full."""
    front, *rest = kv.split(";")
    ranges = [[int(n) for n in part.split(":", 1)[0].split("-")] for part in rest]
    layers = {layer for ends in ranges for layer in range(ends[0], ends[-1] + 1)}
    pairs = {sides(part.split(":", 1)[1]) for part in rest} if rest else {sides(front)}
    if len(pairs) != 1 or rest and front != "f16":
        return None
    k, v = pairs.pop()
    side = "K and V" if k == v else "K" if v == "f16" else "V" if k == "f16" else None
    kind = {(): "all", (3, 7): "full", (0, 1, 2, 4, 5, 6): "sliding"}.get(tuple(sorted(layers)))
    return (k if v == "f16" else v, kind, side) if side and kind else None


def codec_name(codec):
    """Without the options that say that no row stays exact."""
    return codec.replace(":window=0", "").replace(":sinks=0", "")


def gemma4_rows():
    """Rows of the models as they were trained."""
    return sorted((r for r in finished("checks/kv-gemma4") if stem(r).endswith("-bf16")), key=stem)


def gemma4_formats():
    """One cache for all layers."""
    found = [r for r in gemma4_rows() if ";" not in r["kv"] and sides(r["kv"])[0] == sides(r["kv"])[1]]
    return table(["device", "weights", "windows", "K/V cache", "exact rows", "bits at 4k", "mean KLD", "99 % KLD", "same top %", "PPL", LIMITS],
                 [[card(r), stem(r), f"{r['chunks']} x {r['n_ctx']}", f"`{codec_name(r['kv'])}`" if ":" in codec_name(r["kv"]) else codec_name(r["kv"]), exact_rows(r),
                   f"{r['effective_bits_4k']:.2f}", estimate(r["kld"]["mean"], 6), f"{r['kld']['percentiles']['99.0%']:.4f}", percent(r["same_top"]),
                   f"{r['ppl']['value']:.3f}", rise(r)] for r in found])


def gemma4_kinds():
    """Which layers and sides of a cache carry its divergence: thousandths of a nat."""
    columns = [(kind, side) for kind in ("all", "sliding", "full") for side in ("K and V", "K", "V")]
    cells = {}
    for r in gemma4_rows():
        if (cell := gemma4_cell(r["kv"])) and cell[0] != "f16":
            cells.setdefault((stem(r), cell[0]), {})[cell[1:]] = f"{1000 * r['kld']['mean']['value']:.4f}"
    return table(["weights", "coded"] + [f"{kind}: {side}" for kind, side in columns],
                 [[weights_name, codec_name(codec)] + [of.get(c, "") for c in columns] for (weights_name, codec), of in cells.items() if len(of) == len(columns)])


def gemma4_mixes():
    """Caches with formats by kind of layer and side, beside rotor-4 everywhere."""
    found = [r for r in gemma4_rows() if not (cell := gemma4_cell(r["kv"])) or cell in (("rotor-4:window=0:sinks=0", kind, "K and V") for kind in ("all", "full"))]
    found.sort(key=lambda r: (stem(r), r["effective_bits_4k"]))
    return table(["device", "weights", "K/V cache", "exact rows", "bits at 4k", "mean KLD", "99 % KLD", "same top %", LIMITS],
                 [[card(r), stem(r), f"`{codec_name(r['kv'])}`", "96 + 4" if r["kv"] == "rotor-4/rotor-3" else "none", f"{r['effective_bits_4k']:.2f}", estimate(r["kld"]["mean"], 6),
                   f"{r['kld']['percentiles']['99.0%']:.4f}", percent(r["same_top"]), rise(r)] for r in found])


def gemma4_scores():
    """What errors of keys make of scores, by model and kind of layer; of caches without exact rows."""
    lines = []
    for r in sorted(stored("checks/kv-gemma4-attention"), key=lambda r: (not r["arch"] == "gemma4", stem(r))):
        layers = r["attention"]["layers"]
        is_gemma4 = r["arch"] == "gemma4"
        for kind, of in (("sliding", [x for i, x in enumerate(layers) if i % 4 != 3]), ("full", [x for i, x in enumerate(layers) if i % 4 == 3])) if is_gemma4 else (("all", layers),):
            mean = lambda field: sum(x[field] for x in of) / len(of)
            lines.append([card(r), stem(r), kind, codec_name(r["kv"]), f"{mean('rms_logit'):.2f}", f"{mean('mean_query'):.2f}", f"{mean('mean_key'):.2f}",
                          f"{100 * mean('mean_top_weight'):.0f}", f"{100 * mean('key_relative_l2'):.2f}", f"{100 * mean('value_relative_l2'):.2f}", f"{mean('rms_logit_error'):.4f}",
                          f"{100 * mean('relative_l2'):.2f}"])
    return table(["device", "weights", "layers", "cache", "spread of scores", "query length x scale", "key length", "largest weight %", "error of keys %", "of values %", "error of scores",
                  "error of output %"], lines)


# Which layers of a study of published shapes are alike: (model, name, layers). Every sixth layer of Gemma 4 is a full one, the last 18 of E4B share K and V.
ALIKE = (
    ("gemma-4-26b-a4b", "26B-A4B: sliding, heads of 256", lambda i: i % 6 != 5),
    ("gemma-4-26b-a4b", "26B-A4B: full, heads of 512, K = V", lambda i: i % 6 == 5),
    ("gemma-4-e4b", "E4B: full, heads of 512, own K and V", lambda i: i == 5),
    ("gemma-4-e4b", "E4B: full, heads of 512, shared K and V", lambda i: i > 5 and i % 6 == 5),
    ("glm-4.7-flash", "GLM-4.7-Flash: latent rows of 576", lambda i: True),
)


def attentions():
    """Errors of caches by the attention that reads them, at published shapes; of caches without exact rows."""
    found = [r for r in stored("checks/kv-attentions-cpu") if r["kv"] not in ("f16", "rotor-3", "rotor-4", "p8") and "rounding" not in r["kv"]]
    lines = []
    for model_name, name, of_kind in ALIKE:
        for r in (r for r in found if r["model_name"] == model_name):
            of = [x for i, x in enumerate(r["attention"]["layers"]) if of_kind(i)]
            mean = lambda field: sum(x[field] for x in of) / len(of)
            codec = codec_name(r["kv"])
            lines.append([card(r), name, len(of), f"`{codec}`" if ":" in codec else codec, f"{mean('rms_logit'):.1f}", f"{100 * mean('mean_top_weight'):.0f}", f"{100 * mean('key_relative_l2'):.2f}",
                          f"{100 * mean('value_relative_l2'):.2f}", f"{mean('rms_logit_error'):.3f}", f"{100 * mean('relative_l2'):.1f}", f"{mean('norm_ratio'):.2f}"])
    return table(["device", "attention", "layers", "cache", "spread of scores", "largest weight %", "error of keys %", "of values %", "error of scores", "error of output %", "length of output, of the exact one"], lines)


def attention_bytes():
    """What a cache without exact rows takes at published shapes, as the plan says."""
    by = {}
    for r in stored("checks/plan-attentions-cpu"):
        by.setdefault(r["model_name"], {})[r["kv"], r["n_ctx"]] = r["session_bytes"]
    kvs = ["f16", "q8_0", "p8/q4_0", "q4_0", "rotor-4:window=0:sinks=0", "rotor-3:window=0:sinks=0"]
    lines = []
    for model_name, of in by.items():
        cells = lambda what: [what(kv) if (kv, 65536) in of else "refused" for kv in kvs]
        lines.append([model_name, "bytes of a further token"] + cells(lambda kv: f"{(of[kv, 65536] - of[kv, 32768]) / 32768:.0f}"))
        for n in (4096, 32768):
            lines.append([model_name, f"MiB of {n} tokens"] + cells(lambda kv: f"{of[kv, n] / 2**20:.0f}"))
    return table(["model", "cache"] + [codec_name(kv) for kv in kvs], lines)


def gemma4_factors():
    """The model with its scores multiplied: a line a factor, a column a cache."""
    by = {}
    for r in finished("checks/kv-gemma4"):
        if match := re.fullmatch(r"ridge-gemma4-(?:bf16|x([\d.]+))", stem(r)):
            by.setdefault(float(match[1] or 1), {})[r["kv"]] = r
    kvs = [kv for kv in by.get(2.0, {}) if kv != "f16"]
    return table(["scores times", "PPL, f16"] + [codec_name(kv) for kv in kvs],
                 [[f"{factor:g}", f"{of['f16']['ppl']['value']:.2f}"] + [estimate(of[kv]["kld"]["mean"], 6) if kv in of else "" for kv in kvs] for factor, of in sorted(by.items()) if "f16" in of]
                 if kvs else [])


def gemma4_held_out():
    """The main caches on held-out text."""
    return table(["device", "weights", "windows", "K/V cache", "bits at 4k", "mean KLD", "99 % KLD", "same top %", "PPL", LIMITS],
                 [[card(r), stem(r), f"{r['chunks']} x {r['n_ctx']}", f"`{codec_name(r['kv'])}`", f"{r['effective_bits_4k']:.2f}", estimate(r["kld"]["mean"], 6),
                   f"{r['kld']['percentiles']['99.0%']:.4f}", percent(r["same_top"]), f"{r['ppl']['value']:.3f}", rise(r)] for r in finished("checks/kv-gemma4-held-out")])


def gemma4_search():
    lines = []
    for r in sorted((r for r in stored("checks/kv-gemma4-search") if r["kind"] == "search_point"), key=lambda r: (not r["uniform"], r["bits"])):
        lines.append(["one pair" if r["uniform"] else r["limit"], f"`{codec_name(r['kv'])}`", f"{r['bits']:.3f}", f"{r['predicted_kld']:.5f}", estimate(r["kld"], 5),
                      "" if r["uniform"] else estimate(r["line"], 5), r["verdict"]])
    return table(["limit", "K/V cache", "bits", "expected KLD", "mean KLD", "the line there", "verdict"], lines)


def runs():
    """What the matrix was run on: one line per model, path and window."""
    found = last(finished("kv-matrix"), "model_name", "weight_format", "path", "n_ctx", "device")
    return table(["device", "weights", "text", "path", "windows", "scored tokens", "build"],
                 [[card(r), weights(r), r["corpus"], r["path"], f"{r['chunks']} x {r['n_ctx']}", r["tokens_scored"], r["build_commit"]] for r in found])


def side_by_side(pairs, names):
    """Caches measured in two ways, (row, row) a cache: quality of each beside the other's."""
    head = ["cache"] + [f"{what}, {name}" for what in ("mean KLD", "same top %", "PPL") for name in names]
    lines = []
    for pair in pairs:
        lines.append([pair[0]["kv"], *(estimate(r["kld"]["mean"], 6) for r in pair), *(percent(r["same_top"]) for r in pair),
                      *(f"{r['ppl']['value']:.3f}" for r in pair)])
    return table(head, lines)


def pairs_of(found, is_second):
    by = {}
    for r in found:
        by.setdefault(r["kv"], {})[is_second(r)] = r
    return [(pair[False], pair[True]) for pair in by.values() if len(pair) == 2]


def devices():
    """The same caches on the CPU and on a GPU."""
    pairs = pairs_of(stored("checks/kv-device"), lambda r: r["device"] == "cuda")
    return side_by_side(pairs, [card(r) for r in pairs[0]])


def integers():
    """The same caches by the CPU's kernel of floats and by that of integers."""
    return side_by_side(pairs_of(stored("checks/kv-integers"), lambda r: "split-avx512" not in r["command"]), ("floats", "integers"))


def planes():
    return table(["device", "int8 planes", "mean KLD", "same top %", "ln PPL ratio"],
                 [[card(r), r["planes"], estimate(r["kld"]["mean"], 6), percent(r["same_top"]), estimate(r["ln_ratio"], 5)]
                  for r in stored("checks/int4-planes-cuda")])


def curve():
    """Mean divergence by position in the window, prefill path, one format on both sides."""
    found = [r for r in finished("kv-matrix")
             if r["path"] == "prefill" and PARTS["both"](*sides(r["kv"]), r["kv"]) and r["kld"]["mean"]["value"] > 0]
    parts = found[0]["kld_by_position"]
    found = [r for r in found if [p["from"] for p in r["kld_by_position"]] == [p["from"] for p in parts]]
    return table(["device", "weights", "K/V cache"] + [f"{p['from']} to {p['to'] - 1}" for p in parts],
                 [[card(r), weights(r), r["kv"]] + [f"{p['kld']['value']:.5f}" for p in r["kld_by_position"]] for r in found])


def search_points():
    """Formats by layer and side beside pairs for all layers, by rising bits."""
    found = sorted((r for r in stored("kv-search") if r["kind"] == "search_point"), key=lambda r: (stem(r), not r["uniform"], r["bits"]))
    lines = []
    for r in found:
        kld, line = r["kld"], r["line"]
        front = [stem(r), "one pair" if r["uniform"] else r["limit"], r["kv"] if r["uniform"] else f"`{r['kv']}`", f"{r['bits']:.3f}", f"{r['predicted_kld']:.5f}", estimate(kld, 5)]
        if not r["uniform"]:
            below = {"value": line["value"] - kld["value"], "error": (kld["error"] ** 2 + line["error"] ** 2) ** 0.5}
            front += [estimate(line, 5), f"{estimate(below, 5)} ({100 * (1 - kld['value'] / line['value']):.0f} %)", r["verdict"]]
        lines.append(front + [""] * (9 - len(front)))
    return table(["weights", "limit", "K/V cache", "bits", "expected KLD", "mean KLD", "the line there", "below the line", "verdict"], lines)


def search_sides():
    """Sensitivities: a line a layer, a column a side and format."""
    cells = {}
    for r in stored("kv-search"):
        if r["kind"] == "sensitivity":
            layer, pair = r["kv"].split(";")[1].split(":", 1)
            k, v = pair.split("/")
            cells[int(layer), "K" if v == "f16" else "V", k if v == "f16" else v] = r
    columns = sorted(dict.fromkeys((side, kv) for _, side, kv in cells), key=lambda c: c[0])
    lines = []
    for layer in sorted({layer for layer, _, _ in cells}):
        of_layer = [cells[layer, side, kv] for side, kv in columns]
        lines.append([layer] + [f"{1000 * r['kld_mean']:.3f} ± {1000 * r['kld_error']:.3f}" for r in of_layer] + [of_layer[0]["tokens_scored"]])
    return table(["layer"] + [f"{side} {kv}" for side, kv in columns] + ["scored tokens"], lines)


def probe(name, base):
    """Of one model and base: a line a probe, a column a cache; the last row of each cache. Probes that no cache could run share a line."""
    found = [r for r in last(stored("kv-probe"), "model_name", "base", "kv") if stem(r).startswith(name) and r["base"] == base]
    if not found:
        return NO_ROWS
    lines, too_long, left_out = [], [], []
    for i, of_probe in enumerate(found[0]["probes"]):
        verdicts = [r["probes"][i] for r in found]
        if any(p["verdict"] != "NOT APPLICABLE" for p in verdicts):
            lines.append([of_probe["name"]] + [f"{p['verdict']}: {p['says']}" for p in verdicts])
        elif "was trained for" in of_probe["says"]:
            too_long.append(of_probe["name"])
        else:
            left_out.append(f"{of_probe['name']} ({of_probe['says']})")
    out = table(["probe"] + [r["kv"] for r in found], lines)
    says = [f"NOT APPLICABLE, beyond the trained context: {'; '.join(too_long)}."] * bool(too_long) + [f"NOT APPLICABLE: {'; '.join(left_out)}."] * bool(left_out)
    return out + ["", *says] if says else out


def exact_rows(r):
    """Newest and first rows that a cache keeps exact."""
    policies = {policy_of(r["kv_k"]), policy_of(r["kv_v"])} - {None}
    return " or ".join("none" if p == (0, 0) else f"{p[0]} + {p[1]}" for p in sorted(policies)) or "all"


def task_rows(texts):
    """The last row of each task and cache that was applicable: of texts that are compared with f16's, or of the others."""
    found = last(stored("kv-tasks"), "model_name", "task", "size", "base", "kv")
    return [r for r in found if "share" in r and r["task"].startswith("continuation") == texts]


def by_cache(found):
    """{(card, weights, cache, exact rows): rows}"""
    caches = {}
    for r in found:
        name = re.sub(":(window|sinks)=[0-9]+", "", r["kv"])
        caches.setdefault((card(r), stem(r), f"`{name}`" if ":" in name else name, exact_rows(r)), []).append(r)
    return caches


def share(of, digits=0):
    return f"{100 * of['value']:.{digits}f} ({100 * of['low']:.{digits}f} to {100 * of['high']:.{digits}f})"


def tasks():
    """A line a cache, a column a task: % right with its interval, items that only f16 has right (-), that only the cache has right (+)."""
    found = task_rows(texts=False)
    if not found:
        return NO_ROWS
    name = lambda r: f"{r['task']} {r['size']}" if r["task"] == "needle" else r["task"]
    columns = {name(r): r for r in sorted(found, key=lambda r: (r["task"] != "needle", r["size"] if r["task"] == "needle" else 0))}
    def cell(r):
        beside = "" if r["kv"] == r["base"] else f", -{r['lost']} +{r['gained']}" + ("" if r["p"] > 0.05 else f", p {r['p']:.2g}")
        return f"{share(r['share'])} of {r['n_items']}{beside}"
    lines = []
    for cache, rows in by_cache(found).items():
        cells = {name(r): cell(r) for r in rows}
        lines.append([*cache] + [cells.get(column, "") for column in columns])
    return table(["device", "weights", "K/V cache", "exact rows", *columns], lines)


def continuations():
    """Greedy texts beside f16's."""
    lines = []
    for cache, rows in by_cache(task_rows(texts=True)).items():
        for r in rows:
            at = [r["first_difference"][q] for q in ("25%", "median", "75%")]
            lines.append([*cache, r["n_items"], r["n_generate"], share(r["equal"], 1)] + [f"> {x:.0f}" if x >= r["n_generate"] else f"{x:.0f}" for x in at])
    return table(["device", "weights", "K/V cache", "exact rows", "texts", "tokens", "equal %", "first difference: 25 %", "median", "75 %"], lines) if lines else NO_ROWS


def texts():
    """Caches over texts that are no prose."""
    lines = []
    for r in finished("kv-texts", "model_name", "corpus", "n_ctx", "base", "kv"):
        name = re.sub(":(window|sinks)=[0-9]+", "", r["kv"])
        lines.append([card(r), stem(r), pathlib.PurePath(r["corpus"]).stem, f"{r['chunks']} x {r['n_ctx']}", f"`{name}`" if ":" in name else name, exact_rows(r),
                      f"{bits_at(r, r['n_ctx']):.2f}", estimate(r["kld"]["mean"], 5), f"{r['kld']['percentiles']['99.0%']:.4f}", percent(r["same_top"]), f"{r['ppl']['value']:.3f}", rise(r)])
    return table(["device", "weights", "text", "windows", "K/V cache", "exact rows", "bits there", "mean KLD", "99 %", "same top %", "PPL", LIMITS], lines)


def attention():
    figures = ["relative L2", "cosine", "norm ratio", "RMS logit error"]
    lines = []
    for r in finished("kv-attention", "model", "weight_format", "n_ctx", "n_windows", "kv"):
        cells = [f"{e[f]:.4f}" for e in (r["attention"], r["attention_outlier"]) for f in ("relative_l2", "cosine", "norm_ratio", "rms_logit_error")]
        lines.append([f"`{r['kv']}`" if ":" in r["kv"] else r["kv"]] + cells)
    return table(["K/V cache", *figures, *(f"{f}, K outlier" for f in figures)], lines)


def perplexity():
    found = [(r, "prefill") for r in stored("ppl-cpu")] + [(r, r["path"]) for r in stored("checks/ppl-bitnet")]
    return table(["device", "weights", "windows", "path", "cache", "PPL", "build"],
                 [[card(r), weights(r), f"{r['chunks']} x {r['n_ctx']}", path, r["kv"], estimate(r["ppl"], 4), r["build_commit"]] for r, path in found])


TABLES = {
    **{f"kv-matrix-{part}": lambda part=part: matrix(part, "prefill") for part in PARTS if part != "plain"},
    "kv-matrix-decode": lambda: matrix("plain", "decode"),
    "kv-matrix-first": lambda: matrix("plain", "decode", "ridge-ref", ("p8",)),
    "kv-matrix-runs": runs,
    "kv-policy-same": lambda: policies(96, 4),
    "kv-policy-none": lambda: policies(0, 0),
    "kv-centre": centre,
    "centre-cuda": centre_speed,
    "kv-policy-sides": lambda: alone("prefill"),
    "kv-policy-layers": layers_alone,
    "kv-policy-split": some_layers,
    "kv-hybrid": hybrid,
    "kv-gemma4-formats": gemma4_formats,
    "kv-gemma4-kinds": gemma4_kinds,
    "kv-gemma4-mixes": gemma4_mixes,
    "kv-gemma4-scores": gemma4_scores,
    "kv-gemma4-factors": gemma4_factors,
    "kv-attentions": attentions,
    "kv-attentions-bytes": attention_bytes,
    "kv-gemma4-search": gemma4_search,
    "kv-gemma4-held-out": gemma4_held_out,
    "kv-device": devices,
    "kv-integers": integers,
    "planes-cuda": planes,
    "kv-curve": curve,
    "kv-attention": attention,
    "kv-search": search_points,
    "kv-search-sides": search_sides,
    "kv-probe": lambda: probe("ridge-ref", "f16"),
    "kv-probe-long": lambda: probe("gemma-3", "q8_0"),
    "kv-texts": texts,
    "kv-tasks": tasks,
    "kv-continuations": continuations,
    "perplexity": perplexity,
}
