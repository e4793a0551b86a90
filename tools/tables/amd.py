"""Kernels for AMD GPUs in an emulator (tools/amd_emulate.py), and times that follow from what they do there."""

import re

from tables.rows import stored, table

HARDWARE_LDS = 64 << 10


def emulated():
    """What ran, for each family and target; and what the tests said to a planted fault."""
    cells, faults = {}, {}
    for r in stored("checks/amd-emulated"):
        key = r["family"], r["target"]
        if r["kind"] == "amd_emulated_fault":
            faults[key] = r
        else:
            cells.setdefault(key, []).append(r)
    lines = []
    for key, rows in sorted(cells.items()):
        lds = max(r["lds_bytes"] for r in rows)
        fault = faults.get(key)
        told = f"`{fault['instruction']}`: {'found' if fault['found'] else 'not found'}" if fault else ""
        lines.append([*key, len({r["test"] for r in rows}), len({r["kernel"] for r in rows}), sum(r["launches"] for r in rows), f"{sum(r['instructions'] for r in rows):,}",
                      f"{lds / 1024:.1f}" + (", too much" if lds > HARDWARE_LDS else ""), max(r["spills"] for r in rows), told])
    return table(["family", "target", "tests", "kernels", "launches", "wave instructions", "most LDS, KiB", "most spilled registers", "an instruction left out"], lines)


def programs():
    """Texts that the whole program made in the emulator."""
    lines = []
    for r in stored("checks/amd-programs"):
        words = r["command"].split(" -- ", 1)[1]
        lines.append([r["target"], f"`ridge {words}`", r["kernels"], f"{r['launches']:,}", f"{r['instructions']:,}", f"{r['lds_bytes'] / 1024:.1f}",
                      "the CPU's" if r["equal"] else "not compared"])
    return table(["target", "command", "kernels", "launches", "wave instructions", "most LDS, KiB", "text"], lines)


# Compute units, GHz, GB/s of memory: published figures of the chips.
CHIPS = {"gfx1100": ("RX 7900 XTX", 96, 2.5, 960), "gfx1151": ("Strix Halo", 40, 2.9, 256)}
SIMDS = 2  # of a compute unit, which share one LDS unit
TILE = 32  # positions
KINDS = {1: ("f16", 2), 3: ("q8_0", 1 + 2 / 32), 5: ("q4_0", 0.5 + 2 / 32), 7: ("rotor-3", 3 / 8)}  # number of TileKind: name, bytes a value
ROW_SCALE = {7: 2}  # bytes of a row besides
SHAPES = {128: (20, 5), 256: (24, 4)}  # head_dim: heads, kv heads
LENGTHS = (512, 4096, 32768)
NOTE = {("gfx1151", 128, 1): (68.1, 184.7), ("gfx1151", 128, 7): (81.0, 208.0)}  # us at 512 and 4096 that the rotor note published


def per_tile(rows):
    """{(target, head_dim, kind of K, kind of V): clocks of a tile by unit}, from runs over 17 and 33 tiles."""
    runs = {}
    for r in rows:
        kernel, test = re.search(r"attn_split_kernel<(\d+), (\d+), (\d+)", r["kernel"]), re.search(r"TilesOfPublishedShapes(\d+)$", r["test"] or "")
        if kernel and test:
            runs.setdefault((r["target"], *map(int, kernel.groups())), {})[int(test[1])] = r["clocks"]
    return {key: {unit: (both[33].get(unit, 0) - both[17].get(unit, 0)) / 16 for unit in both[33]} for key, both in runs.items() if len(both) == 2}


def predicted_us(target, dim, k, v, clocks, n):
    """(us of arithmetic, us of LDS, us of memory) of one layer behind n positions, each alone; launches and the joining kernel are left out."""
    _, units, ghz, gb_s = CHIPS[target]
    _, kv_heads = SHAPES[dim]
    tiles = n / TILE * kv_heads / units / ghz / 1000
    row = sum(dim * KINDS[kind][1] + ROW_SCALE.get(kind, 0) for kind in (k, v))
    return (tiles * (clocks["vector"] + clocks["dot"]) / SIMDS, tiles * clocks["lds"], n * kv_heads * row / gb_s / 1000)


def predicted():
    """Decode attention at the shapes of two notes: what a tile keeps busy, and the time that follows from it."""
    lines = []
    rows = [r for r in stored("checks/amd-emulated") if r["kind"] == "amd_emulated" and r["family"] == "attention_notes"]
    for (target, dim, k, v), clocks in sorted(per_tile(rows).items()):
        heads, kv_heads = SHAPES[dim]
        cells = []
        for n in LENGTHS:
            bounds = dict(zip(("arithmetic", "LDS", "memory"), predicted_us(target, dim, k, v, clocks, n)))
            worst = max(bounds, key=bounds.get)
            cells.append(f"{bounds[worst]:.0f} ({worst})")
        note = NOTE.get((target, dim, k)) if k == v else None
        lines.append([f"{CHIPS[target][0]}, {target}", f"{heads}/{kv_heads} x {dim}", f"{KINDS[k][0]}/{KINDS[v][0]}",
                      *(f"{clocks.get(unit, 0):,.0f}" for unit in ("vector", "dot", "lds", "global", "scratch")), *cells,
                      f"{note[0]}; {note[1]}" if note else ""])
    return table(["chip", "heads x head_dim", "cache", "vector", "dot", "LDS", "global", "scratch", *(f"predicted us, {n}" for n in LENGTHS), "the note's us, 512; 4096"], lines)


TABLES = {"amd-emulated": emulated, "amd-programs": programs, "amd-predicted": predicted}
