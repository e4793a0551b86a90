"""What is mended in tinygrad's emulator before it is used: in a copy in memory, its files stay as they are."""
import importlib.util
import pathlib
import sys

MODULE = "test.mockgpu.amd.emu"
# Lanes that are off must not touch LDS: their addresses are anything.
PATCHES = (
    ("""    idx = mem.index(addr >> addr_shift)
    return idx.store(active.where(val, idx.load()))
""", """    return mem.index((addr >> addr_shift).valid(active)).store(val)
"""),
    ("'_lds': mem, 'laneId': lane,", "'_lds': mem, '_active': _lane_active(exec_mask, lane), 'laneId': lane,"),
)


class OtherVersion(Exception):
    """The emulator is not the one that the patches are for."""


def patched(text):
    """The text; each patch replaces what stands in it once."""
    for old, new in PATCHES:
        if text.count(old) != 1:
            raise OtherVersion(f"this version of tinygrad has {text.count(old)} times, and not once: {old.strip().splitlines()[0]}")
        text = text.replace(old, new)
    return text


def patched_emulator():
    """The emulator's module."""
    spec = importlib.util.find_spec(MODULE)
    text = patched(pathlib.Path(spec.origin).read_text(encoding="utf-8"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    exec(compile(text, spec.origin, "exec"), module.__dict__)
    return module
