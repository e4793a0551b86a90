"""Loads and stores, which launcher.c does: the emulator rounds some addresses down and has halves of registers wrong."""
import re

SPACES = {"GLOBAL": 0, "FLAT": 1, "SCRATCH": 2, "DS": 3}
MOVES = re.compile(r"(GLOBAL|FLAT|SCRATCH|DS)_(LOAD|STORE)_(2ADDR_)?(STRIDE64_)?(D16_HI_|D16_)?([BUI])(8|16|32|64|96|128)(_D16_HI|_D16)?")


def memory_move(name, word):
    """Fields of a load or store, or None: for atomics and what is neither."""
    found = MOVES.fullmatch(name)
    if not found:
        return None
    space, what, two, stride, before, kind, bits, behind = found.groups()
    half = {"D16_HI": 2, "D16": 1}.get((before or behind or "").strip("_"), 0)
    size = int(bits) // 8
    offset = (word & 0x1FFF ^ 0x1000) - 0x1000
    if space == "DS":
        step = size * (64 if stride else 1) if two else 1
        offset = step * (word & 0xFF) if two else word & 0xFFFF
    return {"space": SPACES[space], "is_store": what == "STORE", "is_signed": kind == "I", "half": half, "size": size,
            "address": word >> 32 & 0xFF, "data": (word >> 40 & 0xFF, word >> 48 & 0xFF), "target": word >> 56 & 0xFF,
            "base": word >> 48 & 0x7F, "has_vector": word >> 55 & 1, "n_places": 2 if two else 1,
            "offset": (offset, step * (word >> 8 & 0xFF) if two else 0)}
