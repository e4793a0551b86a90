"""A code object of an AMD GPU (ELF, code object version 5): its kernels and its image in memory."""
import ctypes
import dataclasses
import struct

RELATIVE64, ABS64 = 13, 3  # relocations
NOTE_OF_METADATA = 32
CODE_PROPERTY_WAVE32 = 1 << 10
DYNAMIC_STACK = 1 << 11
LDS_TABLE = b"llvm.amdgcn.dynlds.offset.table"
# User registers at the start of a wave, in this order: bit of the properties, name, registers.
USER_REGISTERS = ((1, "private_segment_buffer", 4), (2, "dispatch_ptr", 2), (4, "queue_ptr", 2), (8, "kernarg_ptr", 2),
                  (16, "dispatch_id", 2), (32, "flat_scratch_init", 2), (64, "private_segment_size", 1))


class BadObject(Exception):
    """What is wrong with a code object."""


def msgpack(data, at=0):
    """(value, end) of one MessagePack value, of the kinds that metadata has."""
    kind = data[at]
    at += 1
    if kind < 0x80:
        return kind, at
    if kind >= 0xE0:
        return kind - 256, at
    if kind in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[kind], at
    numbers = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
    if kind in numbers:
        return struct.unpack_from(numbers[kind], data, at)[0], at + struct.calcsize(numbers[kind])
    lengths = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}
    if kind in lengths:
        length, = struct.unpack_from(lengths[kind], data, at)
        at += struct.calcsize(lengths[kind])
    elif kind < 0xC0:
        length = kind & (0x1F if kind >= 0xA0 else 0x0F)
    else:
        raise BadObject(f"metadata with a value of kind {kind:#x}")
    if 0xA0 <= kind < 0xC0 or 0xD9 <= kind <= 0xDB:
        return data[at:at + length].decode(), at + length
    values = []
    for _ in range(2 * length if kind < 0x90 or kind >= 0xDE else length):
        value, at = msgpack(data, at)
        values.append(value)
    return (dict(zip(values[::2], values[1::2])) if kind < 0x90 or kind >= 0xDE else values), at


@dataclasses.dataclass(frozen=True)
class Kernel:
    name: str
    entry: int  # in the image
    lds: int  # static bytes
    scratch: int  # bytes a lane
    kernarg: int  # bytes
    places: tuple  # (offset, bytes) of the arguments that the source has
    hidden: dict  # offsets of the arguments that the compiler adds
    rsrc1: int
    rsrc2: int
    properties: int
    vgprs: int
    spills: int

    @property
    def explicit(self):
        """End of the last argument that the source has."""
        return max((offset + size for offset, size in self.places), default=0)

    def pack(self, values, to):
        """Copies the arguments from the addresses `values` to where the kernel expects them, behind the address `to`. Returns the bytes."""
        for (offset, size), value in zip(self.places, values[:len(self.places)]):
            ctypes.memmove(to + offset, value, size)
        return self.explicit

    @property
    def user_registers(self):
        return self.rsrc2 >> 1 & 31

    def group_id_axes(self):
        """The axes whose group index stands in registers behind the user registers."""
        return [axis for axis in range(3) if self.rsrc2 >> 7 + axis & 1]

    def user_data(self, kernarg, packet):
        """Values of the user registers, of the addresses of the arguments and of the dispatch packet."""
        values = []
        for bit, name, count in USER_REGISTERS:
            if self.properties & bit:
                values += {"kernarg_ptr": [kernarg & 0xFFFFFFFF, kernarg >> 32], "dispatch_ptr": [packet & 0xFFFFFFFF, packet >> 32],
                           "private_segment_size": [self.scratch]}.get(name, [0] * count)
        return values + [0] * (self.user_registers - len(values))

    def arguments(self, explicit, grid, block, dynamic_lds):
        """The kernarg segment: the launch's own bytes, then what the compiler asks for. Raises BadObject where the
        launch has other arguments than the kernel."""
        if len(explicit) != self.explicit:
            raise BadObject(f"{self.name}: a launch with {len(explicit)} bytes of arguments; the kernel has {self.explicit}")
        data = bytearray(max(self.kernarg, self.explicit))
        data[:len(explicit)] = explicit
        known = {f"hidden_block_count_{a}": ("<I", grid[i]) for i, a in enumerate("xyz")}
        known |= {f"hidden_group_size_{a}": ("<H", block[i]) for i, a in enumerate("xyz")}
        known["hidden_grid_dims"] = ("<H", 1 + max([i for i in range(3) if grid[i] > 1 or block[i] > 1], default=0))
        known["hidden_dynamic_lds_size"] = ("<I", dynamic_lds)
        for kind, offset in self.hidden.items():
            if kind in known:
                struct.pack_into(known[kind][0], data, offset, known[kind][1])
        return bytes(data)


def dispatch_packet(kernel, grid, block, lds, kernarg):
    """What a queue of the hardware gets for a launch."""
    items = [blocks * threads for blocks, threads in zip(grid, block)]
    return struct.pack("<6H5I4Q", 2, 3, *block, 0, *items, kernel.scratch, lds, 0, kernarg, 0, 0)


class CodeObject:
    """Raises BadObject when the file is none, or has what the loader does not do."""

    def __init__(self, data):
        if data[:5] != b"\x7fELF\x02" or len(data) < 64 or struct.unpack_from("<H", data, 18)[0] != 224:
            raise BadObject("no 64-bit ELF file for AMD GPUs")
        self._data = data
        program, sections = struct.unpack_from("<QQ", data, 32)
        n_program, = struct.unpack_from("<H", data, 56)
        n_sections, = struct.unpack_from("<H", data, 60)
        self._segments = [struct.unpack_from("<IIQQQQQQ", data, program + 56 * i) for i in range(n_program)]
        self._sections = [struct.unpack_from("<IIQQQQIIQQ", data, sections + 64 * i) for i in range(n_sections)]
        self.bytes = max(s[3] + s[6] for s in self._segments if s[0] == 1)
        self._symbols, self._relocations = [], []
        for kind, offset, size, link in ((s[1], s[4], s[5], s[6]) for s in self._sections):
            if kind == 11:
                names = self._sections[link][4]
                for at in range(offset, offset + size, 24):
                    name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", data, at)
                    self._symbols.append((data[names + name:data.index(b"\0", names + name)].decode(), value))
            if kind == 3 and LDS_TABLE in data[offset:offset + size]:
                raise BadObject("a function that is called looks up dynamic LDS by its kernel's number, which clang 19's kernels do not pass")
            if kind == 4:
                self._relocations += [struct.unpack_from("<QQq", data, at) for at in range(offset, offset + size, 24)]
        self.kernels = {k.name: k for k in map(self._kernel, self._metadata()["amdhsa.kernels"])}

    def _metadata(self):
        for kind, _, offset, _, _, size, _, _ in self._segments:
            at = offset
            while kind == 4 and at < offset + size:
                n_name, n_text, note = struct.unpack_from("<III", self._data, at)
                text = at + 12 + (n_name + 3) // 4 * 4
                if note == NOTE_OF_METADATA:
                    return msgpack(self._data[text:text + n_text])[0]
                at = text + (n_text + 3) // 4 * 4
        raise BadObject("no metadata")

    def _file_offset(self, address):
        for kind, _, offset, first, _, size, _, _ in self._segments:
            if kind == 1 and first <= address < first + size:
                return offset + address - first
        raise BadObject(f"address {address:#x} is not in the file")

    def _kernel(self, meta):
        descriptor = dict(self._symbols)[meta[".symbol"]]
        at = self._file_offset(descriptor)
        lds, scratch, kernarg = struct.unpack_from("<III", self._data, at)
        entry, = struct.unpack_from("<q", self._data, at + 16)
        _, rsrc1, rsrc2 = struct.unpack_from("<III", self._data, at + 44)
        properties, = struct.unpack_from("<H", self._data, at + 56)
        name = meta[".name"]
        if not properties & CODE_PROPERTY_WAVE32:
            raise BadObject(f"{name}: waves of 64 lanes")
        if properties & DYNAMIC_STACK:
            scratch = max(scratch, 16 << 10)
        arguments = meta.get(".args", [])
        explicit = [a for a in arguments if not a[".value_kind"].startswith("hidden_")]
        return Kernel(name, descriptor + entry, lds, scratch, kernarg,
                      tuple((a[".offset"], a[".size"]) for a in explicit),
                      {a[".value_kind"]: a[".offset"] for a in arguments if a[".value_kind"].startswith("hidden_")},
                      rsrc1, rsrc2, properties, meta[".vgpr_count"], meta.get(".vgpr_spill_count", 0))

    def image(self, base):
        """Its bytes when it is loaded at the address `base`."""
        memory = bytearray(self.bytes)
        for kind, _, offset, first, _, size, _, _ in self._segments:
            if kind == 1:
                memory[first:first + size] = self._data[offset:offset + size]
        for at, info, add in self._relocations:
            kind, symbol = info & 0xFFFFFFFF, info >> 32
            if kind not in (RELATIVE64, ABS64):
                raise BadObject(f"relocation of kind {kind}")
            struct.pack_into("<Q", memory, at, base + add + (self._symbols[symbol][1] if kind == ABS64 else 0))
        return bytes(memory)
