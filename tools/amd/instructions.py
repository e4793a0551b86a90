"""RDNA3's instructions as functions of this process, made by tinygrad's emulator (test/mockgpu/amd), and what it lacks.

tinygrad's repository must be on sys.path. Its emulator makes a function of each kind of instruction from the pseudocode in
AMD's manual; operands are read from the instruction at run time.
"""
import ctypes
import dataclasses
import re

from amd.memory import memory_move
from amd.patches import patched_emulator
from tinygrad.codegen import to_program
from tinygrad.device import Device
from tinygrad.dtype import dtypes
from tinygrad.engine.realize import get_runtime
from tinygrad.helpers import Context
from tinygrad.renderer.amd import decode_inst
from tinygrad.runtime.autogen.amd.rdna3 import ins
from tinygrad.uop.ops import KernelInfo, UOp

emu = patched_emulator()
# As launcher.c has them.
PLAIN, BARRIER, SKIP, GET_PC, SET_PC, SWAP_PC, SHARED_BASE, PRIVATE_BASE, MEMORY = range(1, 10)
WAVE = 32
M0 = 125
COPIED = UOp.param(5, dtypes.uint32, (WAVE,))
ROW_SHARE, ROW_XMASK, EACH_ITSELF = 0x150, 0x160, 0xE4  # of DPP: lanes' sources
BASES = {235: SHARED_BASE, 237: PRIVATE_BASE}  # operands that are bases of flat addresses
SRC_SHARED_BASE, SRC_POPS = 235, 239
INVALIDATIONS = {0xE0AC0000: "BUFFER_GL0_INV", 0xE0B00000: "BUFFER_GL1_INV"}  # of caches, which are not emulated
MARKS_OF_DPP = (233, 234, 250)  # in the place of the first operand
# What an instruction keeps busy, as far as a wave of 32 lanes is concerned. VECTOR: a SIMD's arithmetic. LDS: its unit, which the two
# SIMDs of a compute unit share and which moves 128 bytes a clock.
GROUPS = ("scalar", "vector", "dot", "matrix", "lds", "global", "scratch")
SLOW = re.compile(r"V_(EXP|LOG|RCP|RSQ|SQRT|SIN|COS)_")  # a quarter of the rate
DOUBLE = re.compile(r"V_\w*F64")  # a sixteenth and less
SPACE_GROUPS = ("global", "global", "scratch", "lds")  # of memory.SPACES
PC_KINDS = {"S_GETPC_B64": GET_PC, "S_SETPC_B64": SET_PC, "S_SWAPPC_B64": SWAP_PC}


@dataclasses.dataclass(frozen=True)
class Instruction:
    name: str
    bytes: int
    kind: int
    function: int = 0  # address
    arguments: tuple = ()  # indices of buffers; for kinds of program counters and bases: registers
    copied: int = 0  # 1 + the register whose copy the function reads, or 0
    memory: dict = dataclasses.field(default_factory=dict)  # of a load or store: fields of launcher.c's op

    @property
    def work(self):
        """(group, clocks): the unit that a wave keeps busy, and for how long."""
        if self.memory:
            group = SPACE_GROUPS[self.memory["space"]]
            return group, max(1, self.memory["size"] // 4) * self.memory["n_places"]
        if self.name.startswith("DS_"):
            return "lds", 1
        if not self.name.startswith("V_"):
            return "global" if self.name.startswith(("GLOBAL_", "FLAT_")) else "scalar", 1
        if self.name.startswith("V_WMMA"):
            return "matrix", 32
        return "dot" if self.name.startswith("V_DOT") else "vector", 4 if SLOW.match(self.name) else 16 if DOUBLE.match(self.name) else 1


def constants():
    """Values of the scalar operands 128 to 255."""
    values = [0xDEADBEEF] * 128
    values[:65] = range(65)
    values[65:81] = [-i & 0xFFFFFFFF for i in range(1, 17)]
    for operand, bits in emu.F32_INLINE.items():
        values[operand - 128] = bits
    return (ctypes.c_uint32 * 128)(*values)


def move_to_relative(inst, ctx):
    """v_movreld_b32: the register is vdst + M0."""
    lane, active = ctx.range(), ctx.rexec()
    value = ctx.rsrc_dyn(ctx.inst_field(type(inst).src0), lane, 32, ctx.optional_field(inst, "literal"))
    register = ctx.inst_field(type(inst).vdst) + ctx.rsgpr_dyn(UOp.const(M0, dtypes.uint32))
    return UOp.sink(ctx.wvgpr_dyn(register, lane, value, active).end(lane), *ctx.inc_pc())


def dpp_lanes(lane, control, row_mask, bank_mask, wave_size, original=emu._dpp16_ctrl):
    """row_share and row_xmask, which the emulator lacks: it takes their codes for those of other chips."""
    kind, argument = control & 0x1F0, control & 0xF
    if kind not in (ROW_SHARE, ROW_XMASK):
        return original(lane, control, row_mask, bank_mask, wave_size)
    _, enabled, valid = original(lane, EACH_ITSELF, row_mask, bank_mask, wave_size)
    number = lane.cast(dtypes.int)
    row = number & UOp.const(~15, dtypes.int)
    share = UOp.const(argument, dtypes.int)
    return (row + share if kind == ROW_SHARE else number ^ share), enabled, valid


def dpp_source(ctx, inst, lane, fallback):
    """The emulator's own reads a register that lanes before may have written; this one reads the copy."""
    source, enabled, valid = emu._dpp16_ctrl(lane, emu._iattr(inst, "dpp"), emu._iattr(inst, "row_mask", 0xF),
                                             emu._iattr(inst, "bank_mask", 0xF), ctx.wave_size)
    value = COPIED.index((enabled & valid).where(source, UOp.const(0, dtypes.int))).load()
    outside = UOp.const(0, fallback.dtype) if emu._iattr(inst, "bc") else fallback
    return enabled.where(valid.where(value, outside), fallback)


def pcode_of_24_bits(operation, original=emu.get_pcode):
    """The emulator takes factors of 24 bits whole."""
    text = original(operation)
    for operand in ("S0", "S1"):
        text = text.replace(f"{operand}.u24", f"({operand}.u32 & 0xffffffU)").replace(f"{operand}.i24", f"((32'I({operand}.u32 << 8U)) >> 8U)")
    return text


emu.get_pcode = pcode_of_24_bits
emu._dpp16_ctrl = dpp_lanes
emu._load_dpp16_src0 = dpp_source


class Instructions:
    """Makes each kind of instruction once."""

    def __init__(self):
        self._made = []  # (type, base, mask, function, arguments)

    def at(self, address):
        """The instruction at an address of memory. Raises an error that names it when the emulator has no function."""
        data = ctypes.string_at(address, 16)
        if (first := int.from_bytes(data[:4], "little")) in INVALIDATIONS:
            return Instruction(INVALIDATIONS[first], 8, SKIP)
        inst = decode_inst(data, "rdna3")
        name, size = emu._op_name(inst), inst.size()
        word = int.from_bytes(data[:size], "little")
        if isinstance(inst, ins.SOP1):
            source, target = word & 0xFF, word >> 16 & 0x7F
            if name in PC_KINDS:
                return Instruction(name, size, PC_KINDS[name], 0, (target, source))
            if SRC_SHARED_BASE <= source <= SRC_POPS:
                if name != "S_MOV_B64" or source not in BASES:
                    raise NotImplementedError(f"{name} of the hardware's operand {source}")
                return Instruction(name, size, BASES[source], 0, (target,))
        if memory := memory_move(name, word):
            return Instruction(name, size, MEMORY, memory=memory)
        self._refuse_unknown_lanes(inst, name, word)
        copied = 1 + (word >> 32 & 0xFF) if hasattr(type(inst), "dpp") else 0
        kind = BARRIER if isinstance(inst, ins.SOPP) and inst.op in emu._BARRIER_OPS else PLAIN
        return Instruction(name, size, kind, *self._function(inst, name, data[:size], word), copied)

    @staticmethod
    def _refuse_unknown_lanes(inst, name, word):
        """The emulator takes the marks of DPP that it does not decode for scalar operands."""
        kind = type(inst).__name__
        if "DPP" in kind:
            unknown = type(inst) not in emu._INST_HANDLERS
        else:
            unknown = kind.startswith("VOP") and (word >> (32 if kind.startswith("VOP3") else 0) & 0x1FF) in MARKS_OF_DPP
        if unknown:
            raise NotImplementedError(f"{name} with DPP")
        if kind in ("VOP3", "VOP3_SDST", "VOP3SD") and word >> 59 & 3:
            raise NotImplementedError(f"{name} with a factor for its result")

    def _function(self, inst, name, data, word):
        for made_type, base, mask, function, arguments in self._made:
            if type(inst) is made_type and word & mask == base:
                return function, arguments
        ctx = emu._Ctx(len(data), WAVE)
        sink = self._handler(inst, name)(inst, ctx)
        base, mask, _ = ctx.canonical_mask(data)
        sink = sink.replace(arg=KernelInfo(name=f"{name.lower()}_{base:x}")).rtag(1)
        with Context(NOOPT=1, CHECK_OOB=0, TUPLE_ORDER=0, EMULATED_DTYPES="", CAPTURE_PROCESS_REPLAY=0, PROFILE=0):
            program = to_program(sink, Device["CPU"].renderer)
            runtime = get_runtime("CPU", program)
        made = (ctypes.cast(runtime.fxn, ctypes.c_void_p).value, tuple(program.arg.globals))
        self._keep = [*getattr(self, "_keep", []), runtime]
        self._made.append((type(inst), base, mask, *made))
        return made

    @staticmethod
    def _handler(inst, name):
        if name.startswith("V_MOVRELD_B32"):
            return move_to_relative
        for kind in type(inst).__mro__:
            if kind in emu._INST_HANDLERS:
                return emu._INST_HANDLERS[kind]
        raise NotImplementedError(f"{type(inst).__name__} {name}")

    def __len__(self):
        return len(self._made)
