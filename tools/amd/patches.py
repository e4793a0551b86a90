"""What is mended in tinygrad's emulator before it is used: in a copy in memory, its files stay as they are."""
import importlib.util
import pathlib
import sys

SCRATCH, PRIVATE_BASE = 210, 0x5B00  # as launcher.c has them: an operand that is none, high bits of flat addresses

# Halves of words at odd addresses, and words that do not lie at a multiple of 4.
LOADS_OF_HALVES = ("""      elif dt in (dtypes.uint16, dtypes.int16):
        val = (val >> (((addr >> _const(adt, 1)) & _const(adt, 1)).cast(dtypes.uint32) * _u32(16))) & _u32(0xFFFF)
""", """      elif dt in (dtypes.uint16, dtypes.int16):
        byte = (addr & _const(adt, 3)).cast(dtypes.uint32)
        here, behind = (addr >> _const(adt, 2)).cast(dtypes.int64), ((addr + _const(adt, 4)) >> _const(adt, 2)).cast(dtypes.int64)
        high = mindex(byte.eq(_u32(3)).where(behind, here))
        both = val.cast(dtypes.uint64) | (high.cast(dtypes.uint64) << UOp.const(32, dtypes.uint64))
        val = (both >> (byte.cast(dtypes.uint64) * UOp.const(8, dtypes.uint64))).cast(dtypes.uint32) & _u32(0xFFFF)
""")
STORES_OF_WORDS = ("""  if data_bits == 32: return [idx.store(active.where(_to_u32(val), idx))]
""", """  if data_bits == 32:
    bits, word = (addr.cast(dtypes.uint32) & _c(3)) * _c(8), _to_u32(val)
    crosses, low = bits.ne(_c(0)), (_c(1) << bits) - _c(1)
    behind = mem.index((word_addr + UOp.const(1, adt)).valid(active & crosses))
    upper = (word >> _c(1)) >> (_c(31) - bits)
    return [idx.store(active.where(crosses.where((idx & low) | (word << bits), word), idx)),
            behind.store((active & crosses).where((behind & (low ^ _c(0xFFFFFFFF))) | upper, behind))]
""")
# Lanes that are off must not touch LDS: their addresses are anything.
STORES_TO_LDS = ("""    if data_bits < 32:
      # Sub-dword LDS write: read-modify-write within the uint32 slot
""", """    return UOp.group(*_mem_store(mem, addr, val, active, 32 if is_lds else 64, data_bits))
    if data_bits < 32:
      # Sub-dword LDS write: read-modify-write within the uint32 slot
""")
LOADS_FROM_LDS = ("'_lds': mem, 'laneId': lane,", "'_lds': mem, '_active': _lane_active(exec_mask, lane), 'laneId': lane,")
# A flat address may be one of the lane's scratch memory.
FLAT_ADDRESSES = ("""    return base_addr + offset64
""", f"""    address = base_addr + offset64
    if not isinstance(inst, ir3.FLAT): return address
    scratch = _u64(ctx.rsgpr_dyn(_c({SCRATCH})), ctx.rsgpr_dyn(_c({SCRATCH + 1})))
    own = scratch + lane.cast(dtypes.uint64) * ctx.rsgpr_dyn(_c(SCRATCH_STRIDE_IDX)).cast(dtypes.uint64)
    is_private = (address >> UOp.const(32, dtypes.uint64)).eq(UOp.const({PRIVATE_BASE}, dtypes.uint64))
    return is_private.where(own + (address & UOp.const(0xFFFFFFFF, dtypes.uint64)), address)
""")
PATCHES = {
    "test.mockgpu.amd.pcode": (LOADS_OF_HALVES,),
    "test.mockgpu.amd.emu": (STORES_OF_WORDS, STORES_TO_LDS, LOADS_FROM_LDS, FLAT_ADDRESSES),
}


class OtherVersion(Exception):
    """The emulator is not the one that the patches are for."""


def patched(text, patches):
    """The text; each patch replaces what stands in it once."""
    for old, new in patches:
        if text.count(old) != 1:
            raise OtherVersion(f"this version of tinygrad has {text.count(old)} times, and not once: {old.strip().splitlines()[0]}")
        text = text.replace(old, new)
    return text


def patched_emulator():
    """The emulator's module."""
    for name, patches in PATCHES.items():
        spec = importlib.util.find_spec(name)
        text = patched(pathlib.Path(spec.origin).read_text(encoding="utf-8"), patches)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        exec(compile(text, spec.origin, "exec"), module.__dict__)
    return module
