#!/usr/bin/env python3
"""tools/amd_emulate.py without an emulator: code objects, arguments of a launch, the order of waves, what the tests
print."""
import contextlib
import ctypes
import dataclasses
import io
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types
import unittest

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(TREE / "tools"))
import amd_emulate  # noqa: E402
import hip_compile  # noqa: E402
from amd import machine, memory, patches  # noqa: E402
from amd.code_object import BadObject, CodeObject, Kernel, dispatch_packet, msgpack  # noqa: E402
from amd.families import FAMILIES  # noqa: E402

SOURCE = """
extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(1, 64)))
void small(char a, double b, int* out) {
  static __attribute__((shared)) int words[48];
  words[__builtin_amdgcn_workitem_id_x()] = int(a + b);
  __builtin_amdgcn_s_barrier();
  out[__builtin_amdgcn_workgroup_id_x()] = words[63 - __builtin_amdgcn_workitem_id_x()];
}
"""


def has_clang():
    return shutil.which(hip_compile.COMPILER) and shutil.which("ld.lld-19")


class Metadata(unittest.TestCase):
    def test_every_kind_of_value_is_read(self):
        packed = (
            b"\x84\xa1a\x93\x01\xcd\x01\x00\xff\xa1b\xc3\xa1c\xd9\x03xyz\xa1d\xcf\x00\x00\x00\x01\x00\x00\x00\x00")
        self.assertEqual(msgpack(packed)[0], {"a": [1, 256, -1], "b": True, "c": "xyz", "d": 1 << 32})

    def test_other_values_and_files_are_refused(self):
        with self.assertRaisesRegex(BadObject, "0xca"):
            msgpack(b"\xca\x00\x00\x00\x00")
        with self.assertRaisesRegex(BadObject, "no 64-bit ELF"):
            CodeObject(b"\x7fELF\x02" + bytes(80))


class Arguments(unittest.TestCase):
    KERNEL = Kernel("k", 0, 64, 16, 48, ((0, 8), (8, 4)), {"hidden_block_count_y": 16, "hidden_group_size_x": 20,
                                                           "hidden_dynamic_lds_size": 24}, 0,
                    2 << 1 | 1 << 7 | 1 << 9, 0x408, 32, 0)

    def test_hidden_arguments_stand_behind_the_launches_own(self):
        data = self.KERNEL.arguments(b"0123456789ab", (2, 3, 1), (32, 1, 1), 640)
        self.assertEqual((data[:12], data[16:20], data[20:22], data[24:28], len(data)),
                         (b"0123456789ab", b"\x03\0\0\0", b"\x20\0", b"\x80\x02\0\0", 48))

    def test_a_launch_with_other_arguments_is_refused(self):
        with self.assertRaisesRegex(BadObject, "k: a launch with 8 bytes of arguments; the kernel has 12"):
            self.KERNEL.arguments(bytes(8), (1, 1, 1), (1, 1, 1), 0)

    def test_user_registers_and_axes(self):
        self.assertEqual(self.KERNEL.user_data(0x123456789, 0), [0x23456789, 1])
        self.assertEqual(self.KERNEL.group_id_axes(), [0, 2])
        other = dataclasses.replace(self.KERNEL, rsrc2=5 << 1, properties=0x40A)
        self.assertEqual(other.user_data(0x123456789, 0x987654321), [0x87654321, 9, 0x23456789, 1, 0])
        packet = dispatch_packet(other, (3, 2, 1), (64, 4, 1), 640, 0x123456789)
        self.assertEqual((len(packet), packet[4:10], packet[12:20], packet[40:48]),
                         (64, b"\x40\0\x04\0\x01\0", b"\xc0\0\0\0\x08\0\0\0", (0x123456789).to_bytes(8, "little")))


@unittest.skipUnless(has_clang(), "clang++-19 or ld.lld-19 is missing")
class CodeObjects(unittest.TestCase):
    def test_a_small_kernel_is_read(self):
        with tempfile.TemporaryDirectory() as folder:
            source, made = pathlib.Path(folder) / "small.hip", pathlib.Path(folder) / "small.co"
            source.write_text(SOURCE, encoding="utf-8")
            subprocess.run([hip_compile.COMPILER, "-x", "hip", "--offload-arch=gfx1151", "-nogpulib", "-nogpuinc",
                            "-O2", "--cuda-device-only",
                            "--no-gpu-bundle-output", "-c", source, "-o", made], check=True, capture_output=True)
            loaded = CodeObject(made.read_bytes())
        kernel = loaded.kernels["small"]
        self.assertEqual((kernel.explicit, kernel.lds, kernel.scratch, kernel.group_id_axes()[0]), (24, 192, 0, 0))
        self.assertEqual(len(kernel.user_data(0, 0)), kernel.user_registers)
        image = loaded.image(0x7000_0000_0000)
        self.assertEqual(len(image), loaded.bytes)
        self.assertNotEqual(image[kernel.entry:kernel.entry + 4], bytes(4))


@unittest.skipUnless(shutil.which("cc"), "cc is missing")
class Waves(unittest.TestCase):
    """The loop of launcher.c with instructions that are functions of this test."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        made = pathlib.Path(cls.folder.name) / "launcher.so"
        subprocess.run(["cc", "-std=gnu17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
                        TREE / "tools/amd/launcher.c", "-o", made], check=True)
        cls.library = ctypes.CDLL(str(made))
        cls.library.ridge_wave_bytes.restype = ctypes.c_uint64

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_waves(self, seed, n_waves=4, most=1000):
        """Every wave: a word to the log, a barrier, an instruction that is left out, another word, the end."""
        log = []

        def step(name, end=False):
            def run(scalars):
                log.append((name, scalars[1]))
                scalars[256] = 0xFFFFFFFF if end else scalars[256] + 4
                scalars[257] = 0xFFFFFFFF if end else scalars[257]
            return ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_uint32))(run)

        calls = [step("before"), step("barrier"), None, step("behind"), step("end", True)]
        ops = (machine.Op * 5)()
        for op, call, kind in zip(ops, calls, (1, 2, 3, 1, 1)):
            op.run, op.kind, op.bytes, op.n_arguments = call and ctypes.cast(call, ctypes.c_void_p).value, kind, 4, 1
        waves = ctypes.create_string_buffer(n_waves * self.library.ridge_wave_bytes())
        block = machine.Block(base=0x1000, bytes=20, ops=ctypes.addressof(ops), waves=ctypes.addressof(waves),
                              n_waves=n_waves, random=seed,
                              most=most)
        scalars = (ctypes.c_uint32 * 2)(7, 8)
        self.library.ridge_begin_block(ctypes.byref(block), (ctypes.c_uint32 * 128)(), scalars, 2,
                                       ctypes.c_uint64(0x1000),
                                       (ctypes.c_uint32 * 3)(32 * n_waves - 5, 1, 1), 0, None)
        for wave in range(n_waves):
            ctypes.memmove(ctypes.addressof(waves) + wave * self.library.ridge_wave_bytes() + 4, bytes([wave, 0, 0, 0]),
                           4)
        return self.library.ridge_run_block(ctypes.byref(block)), log, waves

    def test_no_wave_passes_a_barrier_before_the_others_come(self):
        for seed in (1, 2, 3):
            state, log, _ = self.run_waves(seed)
            self.assertEqual(state, 0)
            names = [name for name, _ in log]
            self.assertLess(max(i for i, name in enumerate(names) if name == "barrier"), names.index("behind"))
            self.assertEqual(sorted(wave for name, wave in log if name == "end"), [0, 1, 2, 3])

    def test_the_seed_decides_about_the_order(self):
        orders = {tuple(self.run_waves(seed)[1]) for seed in range(1, 9)}
        self.assertGreater(len(orders), 2)
        self.assertEqual(self.run_waves(5)[1], self.run_waves(5)[1])

    def test_lanes_behind_the_block_are_off_and_endless_blocks_end(self):
        _, _, waves = self.run_waves(1)
        last = 3 * self.library.ridge_wave_bytes() + 126 * 4
        self.assertEqual(waves.raw[last:last + 4], (2**27 - 1).to_bytes(4, "little"))
        self.assertEqual(self.run_waves(1, most=5)[0], 3)


    # Instruction, code, space, and where it moves what: (offset of memory, register, its first byte, bytes).
    MOVES = (
        ("GLOBAL_LOAD_U16", "fd1f4adc00007c04", "global", ((-3, 4, 0, 2),)),
        ("GLOBAL_LOAD_D16_HI_B16", "05008edc00000204", "based", ((5, 4, 2, 2),)),
        ("FLAT_LOAD_B128", "07005cdc00007c04", "global", ((7, 4, 0, 16),)),
        ("FLAT_LOAD_B128", "07005cdc00007c04", "flat scratch", ((7, 4, 0, 16),)),
        ("DS_LOAD_I8_D16", "090090da00000004", "shared", ((9, 4, 0, 1),)),
        ("DS_LOAD_2ADDR_STRIDE64_B32", "0102e0d800000004", "shared", ((256, 4, 0, 4), (512, 5, 0, 4))),
        ("DS_LOAD_I8_D16", "900090da00000004", "below shared", ((9, 4, 0, 1),)),
        ("DS_STORE_B96", "030078db00040000", "shared", ((3, 4, 0, 12),)),
        ("GLOBAL_STORE_D16_HI_B8", "010092dc00047c00", "global", ((1, 4, 2, 1),)),
        ("SCRATCH_LOAD_B64", "040055dc00000204", "scratch", ((4, 4, 0, 8),)),
        ("SCRATCH_STORE_B32", "010069dc0004fc00", "own scratch", ((1, 4, 0, 4),)),
        ("DS_STORE_2ADDR_B64", "010338d900040600", "shared", ((8, 4, 0, 8), (24, 6, 0, 8))),
    )

    def move(self, name, code, space, at):
        """(memory, registers 4 to 7 of all lanes) before and behind; lane 31 is off."""
        size = 8192
        data = ctypes.create_string_buffer(bytes((37 * i + (i >> 8) * 11 + 128) & 255 for i in range(size)), size)
        first = ctypes.addressof(data)
        op = machine.Op(kind=9, bytes=8, n_arguments=0)
        for field, value in memory.memory_move(name, int.from_bytes(bytes.fromhex(code), "little")).items():
            if isinstance(value, tuple):
                getattr(op, field)[:] = value
            else:
                setattr(op, field, value)
        end = ctypes.CFUNCTYPE(None,
                               ctypes.POINTER(ctypes.c_uint32))(lambda scalars: ctypes.memset(
                                   ctypes.addressof(scalars.contents) + 1024, 255, 8) and None)
        ops = (machine.Op * 3)(op, machine.Op(), machine.Op(run=ctypes.cast(end, ctypes.c_void_p), kind=1,
                                                            n_arguments=1, bytes=4))
        wave = ctypes.create_string_buffer(self.library.ridge_wave_bytes())
        block = machine.Block(base=0, bytes=12, ops=ctypes.addressof(ops), waves=ctypes.addressof(wave), n_waves=1,
                              lds=first, random=1, most=9)
        based = first if space == "based" else at - 64
        scalars = (ctypes.c_uint32 * 4)(0, 0, based & 0xFFFFFFFF, based >> 32)
        self.library.ridge_begin_block(ctypes.byref(block), (ctypes.c_uint32 * 128)(), scalars, 4, ctypes.c_uint64(0),
                                       (ctypes.c_uint32 * 3)(31, 1, 1),
                                       64, data)
        words = (ctypes.c_uint32 * (8 * 32)).from_buffer(wave, 260 * 4)
        for lane in range(32):
            address = {"global": first + at + 64 * lane, "flat scratch": (0x5B00 << 32) + at - 64, "scratch": 0,
                       "own scratch": at - 64,
                       "below shared": at + 64 * lane - 135}.get(
                space, at + 64 * lane)
            words[lane], words[32 + lane] = address & 0xFFFFFFFF, address >> 32
        for i in range(4 * 32, 8 * 32):
            words[i] = 0x9E3779B1 * i & 0xFFFFFFFF
        before = bytes(data), bytes(words)
        self.assertEqual(self.library.ridge_run_block(ctypes.byref(block)), 0)
        return before, (bytes(data), bytes(words))

    def test_loads_and_stores_move_bytes_of_any_address(self):
        for name, code, space, parts in self.MOVES:
            for at in range(64, 68):
                (data, words), got = self.move(name, code, space, at)
                data, words = bytearray(data), bytearray(words)
                for lane in range(31):
                    for offset, register, byte, n in parts:
                        # Lanes' scratch memories of 64 bytes follow one another; a lane's begins at the address 0.
                        place = at + 64 * lane + offset - (64 if "scratch" in space else 0)
                        there = [(4 * (32 * (register + (byte + i) // 4) + lane) + (byte + i) % 4) for i in range(n)]
                        for i in range(n):
                            if "STORE" in name:
                                data[place + i] = words[there[i]]
                            else:
                                words[there[i]] = data[place + i]
                        if name == "DS_LOAD_I8_D16":
                            words[there[0] + 1] = 255 if words[there[0]] > 127 else 0
                        if name == "GLOBAL_LOAD_U16":
                            words[there[0] + 2:there[0] + 4] = bytes(2)
                self.assertEqual(got, (bytes(data), bytes(words)), f"{name}, {space}, {at}")

    def test_what_is_no_plain_move_is_left_to_the_emulator(self):
        for name in ("GLOBAL_ATOMIC_ADD_U32", "DS_BPERMUTE_B32", "GLOBAL_LOAD_ADDTID_B32", "DS_STOREXCHG_RTN_B32"):
            self.assertIsNone(memory.memory_move(name, 0))


class Output(unittest.TestCase):
    LINES = ["[ RUN      ] A.One\n", "\n", '@amd {"begins": "k"}\n', '@amd {"kernel": "k", "instructions": 5}\n',
             "[       OK ] A.One (5 ms)\n",
             "[ RUN      ] A.Two\n", '@amd {"kernel": "k", "instructions": 6}\n', "[  FAILED  ] A.Two (5 ms)\n",
             "[  FAILED  ] A.Two\n"]

    def test_launches_belong_to_the_test_that_runs(self):
        log = io.StringIO()
        records, failed, passed = amd_emulate.records_of(self.LINES, log)
        self.assertEqual([(r["test"], r.get("instructions")) for r in records],
                         [("A.One", None), ("A.One", 5), ("A.Two", 6)])
        self.assertEqual((failed, passed), (["A.Two"], ["A.One"]))
        self.assertNotIn("@amd", log.getvalue())


class Options(unittest.TestCase):
    def refused(self, *arguments):
        with contextlib.redirect_stderr(io.StringIO()) as text, self.assertRaises(SystemExit) as stopped:
            amd_emulate.parse(arguments)
        self.assertEqual(stopped.exception.code, 2)
        return text.getvalue()

    def test_wrong_options_are_named(self):
        self.assertIn("--tinygrad", self.refused())
        self.assertIn("gfx90a", self.refused("--tinygrad", "x", "--target", "gfx90a"))
        self.assertIn("nothing", self.refused("--tinygrad", "x", "--family", "nothing"))

    @unittest.skipUnless(has_clang(), "clang++-19 or ld.lld-19 is missing")
    def test_a_folder_without_the_emulator_is_named(self):
        with tempfile.TemporaryDirectory() as folder, \
                self.assertRaisesRegex(amd_emulate.Stop, "no checkout of tinygrad|missing") as stopped:
            amd_emulate.main(["--tinygrad", folder])
        self.assertEqual(stopped.exception.code, amd_emulate.MISSING)


class Faults(unittest.TestCase):
    def test_the_nth_instruction_of_the_kernel_is_left_out(self):
        one = object.__new__(machine.Machine)
        one._fault = {"kernel": "norm", "instruction": "s_barrier", "number": 2}
        said = [one._is_fault(types.SimpleNamespace(name=kernel), types.SimpleNamespace(name=name))
                for kernel, name in (("norm", "S_BARRIER"), ("gemm", "S_BARRIER"), ("norm", "V_ADD"),
                                     ("norm", "S_BARRIER"), ("norm", "S_BARRIER"))]
        self.assertEqual(said, [False, False, False, True, False])


@unittest.skipUnless(shutil.which("c++filt"), "c++filt is missing")
class Names(unittest.TestCase):
    def test_types_of_cuda_and_hip_have_one_name(self):
        names = ["_ZN5ridge1fEPK15HIP_vector_typeIfLj2EE", "_ZN5ridge1fE15HIP_vector_typeIjLj4EE", "_ZN5ridge1gEv"]
        self.assertEqual(amd_emulate.demangled(names), ["ridge::f(float2 const*)", "ridge::f(int4)", "ridge::g()"])


class Tables(unittest.TestCase):
    def test_files_of_families_exist(self):
        for name, family in FAMILIES.items():
            for file in family.files:
                self.assertTrue((TREE / "src/op" / file).exists(), f"{name}: {file}")

    def test_patches_are_for_one_version(self):
        text = "".join(old for old, _ in patches.PATCHES)
        self.assertEqual(patches.patched(text), "".join(new for _, new in patches.PATCHES))
        with self.assertRaisesRegex(patches.OtherVersion, "0 times"):
            patches.patched("")


if __name__ == "__main__":
    unittest.main()
