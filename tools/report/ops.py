"""Rows of single ops (kind "op"), as the roofline and the regimes read them."""

from rows import date, is_control, kind, machine, newest, number, passed, positive, text, whole

BASELINES = ("two-op", "cublaslt", "plain-f32")  # kernels that are there to be compared with, never what a format stands for


def shape(row):
    """"8960x1536" of a product, "12/2 x 128" of attention."""
    wanted = ("n_out", "n_in") if text(row, "op") == "gemv" else ("n_kv_heads", "head_dim")
    first, second = (whole(row, field) or "?" for field in wanted)
    if text(row, "op") == "gemv":
        return f"{first}x{second}"
    return f"{whole(row, 'n_heads')}/{first} x {second}" if whole(row, "n_heads") else f"{first} x {second}"


def batch(row):
    return whole(row, "n_tokens") or whole(row, "n_seq")


def name_of(row):
    """"rotor-3", "p8/q4_0", "int4_g128": how the format is written everywhere."""
    name = text(row, "weight_format") or text(row, "kv")
    k, _, v = name.partition("/")
    return k if v in ("", k) else name


def quartiles_us(row):
    median = positive(row, "median_us")
    return positive(row, "lower_quartile_us") or median, positive(row, "upper_quartile_us") or median


def data(rows):
    """One line per (machine, op, shape, tokens or sequences, keys, format, kernel): the newest row whose check passed."""
    found = [r for r in rows if kind(r) == "op" and passed(r) is True and positive(r, "median_us") and machine(r) and name_of(r)
             and "?" not in shape(r) and batch(r)]
    key = lambda r: (machine(r), text(r, "op"), shape(r), batch(r), whole(r, "n_keys"), whole(r, "n_new"), name_of(r),
                     text(r, "kernel"))
    again = {key(r): r for r in newest([r for r in found if is_control(r)], key)}
    out = []
    for r in newest([r for r in found if not is_control(r)], key):
        median = positive(r, "median_us")
        spread = quartiles_us(r)
        control = again.get(key(r))
        if control and text(control, "build_commit") == text(r, "build_commit"):  # what A and A differ by is noise
            spread = min(spread[0], quartiles_us(control)[0]), max(spread[1], quartiles_us(control)[1])
        out.append({"machine": machine(r), "op": text(r, "op"), "shape": shape(r), "batch": batch(r),
                    "keys": whole(r, "n_keys"), "format": name_of(r), "kernel": text(r, "kernel", default="?"), "median_us": median,
                    "lower_us": spread[0], "upper_us": spread[1],
                    "bytes": (number(r, "read_bytes") or 0) + (number(r, "write_bytes") or 0), "flops": positive(r, "flops"),
                    "roof_gb_s": positive(r, "roof_gb_s"), "pct_of_roof": positive(r, "pct_of_roof"), "cold": r.get("cold") is True,
                    "date": date(r), "build_commit": text(r, "build_commit")})
    return out


def best_kernels(lines):
    """The fastest kernel that is no baseline, of each cell; baselines stay, as formats of their own."""
    best = {}
    for d in lines:
        name = f"{d['format']} ({d['kernel']})" if d["kernel"] in BASELINES else d["format"]
        cell = (d["machine"], d["op"], d["shape"], d["batch"], d["keys"], name)
        if cell not in best or d["median_us"] < best[cell]["median_us"]:
            best[cell] = {**d, "series": name}
    return list(best.values())
