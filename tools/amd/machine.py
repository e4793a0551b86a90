"""In the process of the tests: launches become runs of a code object in the emulator. launcher.c starts it."""
import ctypes
import json
import mmap
import os
import re
import struct
import sys
import threading
import time
import traceback

from amd.code_object import BadObject, CodeObject, dispatch_packet

LDS_BASES = range(0x5A5A << 32, 0x5AFF << 32, 1 << 32)  # flat addresses of LDS: no low bits
MOST_LDS = 256 << 10
FLOAT_MODE_DENORMALS = 0xF0 << 12  # in rsrc1
MOST_INSTRUCTIONS = 100_000_000  # of a block


class Launch(ctypes.Structure):
    _fields_ = [("kernel", ctypes.c_void_p), ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3),
                ("shared_bytes", ctypes.c_uint32), ("argument_bytes", ctypes.c_uint32), ("arguments", ctypes.c_void_p),
                ("bundle", ctypes.c_void_p), ("name", ctypes.c_char_p), ("places", ctypes.POINTER(ctypes.c_void_p)),
                ("packed", ctypes.c_void_p)]


class Op(ctypes.Structure):
    _fields_ = [("run", ctypes.c_void_p), ("kind", ctypes.c_uint8), ("n_arguments", ctypes.c_uint8), ("bytes", ctypes.c_uint8),
                ("argument", ctypes.c_uint8 * 5), ("copied", ctypes.c_uint16), ("group", ctypes.c_uint8), ("clocks", ctypes.c_uint8),
                *((name, ctypes.c_uint8) for name in ("space", "is_store", "is_signed", "half", "size", "address")),
                ("data", ctypes.c_uint8 * 2), *((name, ctypes.c_uint8) for name in ("target", "base", "has_vector", "n_places")),
                ("offset", ctypes.c_int32 * 2)]


class Block(ctypes.Structure):
    _fields_ = [("base", ctypes.c_uint64), ("bytes", ctypes.c_uint64), ("ops", ctypes.c_void_p), ("waves", ctypes.c_void_p),
                *((name, ctypes.c_uint64) for name in ("n_waves", "lds", "random", "most", "count", "pc")),
                ("group_clocks", ctypes.c_uint64 * 8), ("group_counts", ctypes.c_uint64 * 8)]


class Loaded:
    """A code object in memory, and what is known of its instructions."""

    def __init__(self, data, name):
        self.object = CodeObject(data)
        self._memory = mmap.mmap(-1, (self.object.bytes + 4095) // 4096 * 4096 + 4096)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        image = self.object.image(self.base)
        self._memory[:len(image)] = image
        self.ops = (Op * (self.object.bytes // 4 + 1))()
        self.name = name


def of_file(path):
    with open(path, "rb") as file:
        return Loaded(file.read(), os.path.basename(path))


def of_bundle(address, target):
    """The code object for a target of a bundle in memory, as clang puts it into a program."""
    magic = b"__CLANG_OFFLOAD_BUNDLE__"
    if ctypes.string_at(address, len(magic)) != magic:
        raise BadObject("the program's device code is no bundle of clang's, or a compressed one")
    at = address + len(magic)
    count, = struct.unpack("<Q", ctypes.string_at(at, 8))
    at += 8
    for _ in range(count):
        offset, size, length = struct.unpack("<3Q", ctypes.string_at(at, 24))
        name = ctypes.string_at(at + 24, length).decode()
        at += 24 + length
        if name.endswith(f"-{target}"):
            return Loaded(ctypes.string_at(address + offset, size), hex(address))
    raise BadObject(f"the program has no device code for {target}")


class Machine:
    def __init__(self, config, instructions, library):
        self._instructions, self._library, self._config = instructions, library, config
        self._objects = [of_file(path) for path in config["objects"]]
        self._bundles = {}
        self._kernels = {}
        for loaded in self._objects:
            for name, kernel in loaded.object.kernels.items():
                if name in self._kernels:
                    raise BadObject(f"{name} is in {self._kernels[name][0].name} and in {loaded.name}")
                self._kernels[name] = (loaded, kernel)
        first = min(int(line.split("-")[0], 16) for line in open("/proc/self/maps") if line.rstrip().endswith(os.path.realpath("/proc/self/exe")))
        self._names = {first + int(offset): name for offset, name in config["symbols"].items()}
        self._libc = ctypes.CDLL(None)
        self._lds = self._map_lds()
        self._random = config["seed"] * 0x9E3779B97F4A7C15 & (1 << 64) - 1 or 1
        library.ridge_wave_bytes.restype = ctypes.c_uint64
        self._wave_bytes = library.ridge_wave_bytes()
        self._constants, self._groups = instructions_facts()
        self._lock = threading.Lock()
        self._fault = config.get("fault")
        self._planted = None

    def _map_lds(self):
        """Addresses for LDS: the low 32 bits of the first are 0, as in the flat addresses of LDS."""
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        for base in LDS_BASES:
            if self._libc.mmap(base, MOST_LDS, 0, 0x22 | 0x100000, -1, 0) == base:  # private, of no file, at no used place
                return base
        raise MemoryError("no free address for LDS")

    def _of_bundle(self, launch):
        if launch.bundle not in self._bundles:
            self._bundles[launch.bundle] = of_bundle(launch.bundle, self._config["target"])
        loaded = self._bundles[launch.bundle]
        return loaded, loaded.object.kernels[launch.name.decode()]

    def run(self, launch):
        """1 when the kernel has run here, 0 when no code object has it. The bytes of the arguments where they are only packed."""
        with self._lock:
            if launch.packed:
                return self._of_bundle(launch)[1].pack(launch.places, launch.packed)
            name = launch.name.decode() if launch.name else self._names.get(launch.kernel)
            if not launch.bundle and name not in self._kernels:
                say({"fibers": name or hex(launch.kernel)})
                return 0
            say({"begins": name})
            say(self._run(*(self._of_bundle(launch) if launch.bundle else self._kernels[name]), launch))
        return 1

    def _run(self, loaded, kernel, launch):
        grid, dim = tuple(launch.grid), tuple(launch.block)
        lds = kernel.lds + launch.shared_bytes
        if lds > self._config["lds"]:
            raise BadObject(f"{kernel.name}: {lds} bytes of LDS; a block has {self._config['lds']}")
        if kernel.rsrc1 & FLOAT_MODE_DENORMALS != FLOAT_MODE_DENORMALS:
            raise BadObject(f"{kernel.name} flushes denormal numbers, which the emulator keeps")
        arguments = kernel.arguments(ctypes.string_at(launch.arguments, launch.argument_bytes), grid, dim, launch.shared_bytes)
        segment = ctypes.create_string_buffer(arguments, len(arguments) + 64)
        n_waves = (dim[0] * dim[1] * dim[2] + 31) // 32
        waves = ctypes.create_string_buffer(n_waves * self._wave_bytes + 64)
        scratch = ctypes.create_string_buffer(max(n_waves * 32 * kernel.scratch, 1))
        block = Block(base=loaded.base, bytes=loaded.object.bytes, ops=ctypes.addressof(loaded.ops),
                      waves=(ctypes.addressof(waves) + 63) // 64 * 64, n_waves=n_waves, lds=self._lds, random=self._random,
                      most=MOST_INSTRUCTIONS)
        axes = kernel.group_id_axes()
        packet = ctypes.create_string_buffer(dispatch_packet(kernel, grid, dim, lds, ctypes.addressof(segment)))
        user = kernel.user_data(ctypes.addressof(segment), ctypes.addressof(packet))
        whole = (lds + 4095) // 4096 * 4096
        self._libc.mprotect(ctypes.c_void_p(self._lds), ctypes.c_size_t(whole), 3)
        self._libc.mprotect(ctypes.c_void_p(self._lds + whole), ctypes.c_size_t(MOST_LDS - whole), 0)
        began, count = time.monotonic(), 0
        for index in self._order(grid):
            ctypes.memset(self._lds, 0xFF, whole)  # NaN, -1
            ctypes.memset(scratch, 0xA5, len(scratch))
            scalars = user + [index[axis] for axis in axes]
            self._library.ridge_begin_block(
                ctypes.byref(block), self._constants, (ctypes.c_uint32 * len(scalars))(*scalars), len(scalars),
                ctypes.c_uint64(loaded.base + kernel.entry), (ctypes.c_uint32 * 3)(*dim), kernel.scratch, scratch)
            block.count = 0
            self._run_block(loaded, kernel, block)
            count += block.count
        self._random = block.random
        return {"kernel": kernel.name, "object": loaded.name, "grid": grid, "block": dim, "instructions": count, "lds": lds,
                "scratch": kernel.scratch, "vgprs": kernel.vgprs, "spills": kernel.spills,
                "clocks": self._by_group(block.group_clocks), "counts": self._by_group(block.group_counts),
                "seconds": round(time.monotonic() - began, 3), "kinds": len(self._instructions), "fault": self._planted}

    def _by_group(self, numbers):
        return {group: numbers[i] for i, group in enumerate(self._groups) if numbers[i]}

    def _order(self, grid):
        """All blocks, shuffled."""
        blocks = [(x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0])]
        for i in range(len(blocks), 1, -1):
            self._random = (self._random * 6364136223846793005 + 1442695040888963407) & (1 << 64) - 1
            k = (self._random >> 33) % i
            blocks[i - 1], blocks[k] = blocks[k], blocks[i - 1]
        return blocks

    def _run_block(self, loaded, kernel, block):
        done, needs, outside, _ = range(4)
        while (state := self._library.ridge_run_block(ctypes.byref(block))) == needs:
            self._learn(loaded, kernel, block.pc)
        if state != done:
            raise BadObject(f"{kernel.name} at {block.pc - loaded.base:#x}: " +
                            ("jumped out of its code" if state == outside else f"still runs after {MOST_INSTRUCTIONS} instructions"))

    def _learn(self, loaded, kernel, pc):
        try:
            inst = self._instructions.at(pc)
        except Exception as error:
            raise BadObject(f"{kernel.name} at {pc - loaded.base:#x}: {type(error).__name__}: {error}") from error
        op = loaded.ops[(pc - loaded.base) // 4]
        if self._is_fault(kernel, inst):
            self._planted = f"{inst.name.lower()} at {pc - loaded.base:#x} of {kernel.name} left out"
            op.bytes, op.kind = inst.bytes, 3
            return
        op.run, op.bytes, op.n_arguments = inst.function or None, inst.bytes, len(inst.arguments)
        for i, argument in enumerate(inst.arguments):
            op.argument[i] = argument
        for name, value in inst.memory.items():
            if isinstance(value, tuple):
                getattr(op, name)[:] = value
            else:
                setattr(op, name, value)
        group, op.clocks = inst.work
        op.copied, op.kind, op.group = inst.copied, inst.kind, self._groups.index(group)

    def _is_fault(self, kernel, inst):
        """Whether this instruction is the one to leave out: instructions count when they are met first."""
        fault = self._fault
        if not fault or not re.search(fault["kernel"], kernel.name) or not re.search(fault["instruction"], inst.name.lower()):
            return False
        fault["number"] -= 1
        return fault["number"] == 0


def instructions_facts():
    from amd import instructions
    return instructions.constants(), instructions.GROUPS


def say(record):
    """A record of a launch: a line of the file that RIDGE_AMD_LOG names, or of the tests' output."""
    if path := os.environ.get("RIDGE_AMD_LOG"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    else:
        print(f"\n@amd {json.dumps(record)}", flush=True)


RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Launch))
kept = []


def start():
    with open(os.environ["RIDGE_AMD_CONFIG"], encoding="utf-8") as file:
        config = json.load(file)
    sys.path.insert(0, config["tinygrad"])
    os.environ["DEV"] = "CPU"
    from amd.instructions import Instructions
    library = ctypes.CDLL(os.environ["RIDGE_LAUNCHER"])
    machine = Machine(config, Instructions(), library)

    def run(launch):
        try:
            return machine.run(launch.contents)
        except BaseException as error:  # nothing may be run elsewhere by mistake
            say({"error": str(error)})
            if not isinstance(error, BadObject):
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(70)

    kept.append(RUN(run))
    library.ridge_set_run(kept[0])
