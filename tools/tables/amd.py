"""Kernels for AMD GPUs in an emulator (tools/amd_emulate.py)."""

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


TABLES = {"amd-emulated": emulated}
