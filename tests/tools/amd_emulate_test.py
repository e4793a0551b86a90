#!/usr/bin/env python3
"""tools/amd_emulate.py without an emulator: code objects, arguments of a launch, the order of waves, what the tests print."""
import contextlib
import ctypes
import io
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(TREE / "tools"))
import amd_emulate  # noqa: E402
import hip_compile  # noqa: E402
from amd import machine, patches  # noqa: E402
from amd.code_object import BadObject, CodeObject, Kernel, msgpack  # noqa: E402
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
        packed = (b"\x84\xa1a\x93\x01\xcd\x01\x00\xff\xa1b\xc3\xa1c\xd9\x03xyz\xa1d\xcf\x00\x00\x00\x01\x00\x00\x00\x00")
        self.assertEqual(msgpack(packed)[0], {"a": [1, 256, -1], "b": True, "c": "xyz", "d": 1 << 32})

    def test_other_values_and_files_are_refused(self):
        with self.assertRaisesRegex(BadObject, "0xca"):
            msgpack(b"\xca\x00\x00\x00\x00")
        with self.assertRaisesRegex(BadObject, "no 64-bit ELF"):
            CodeObject(b"\x7fELF\x02" + bytes(80))


class Arguments(unittest.TestCase):
    KERNEL = Kernel("k", 0, 64, 16, 48, 12, {"hidden_block_count_y": 16, "hidden_group_size_x": 20, "hidden_dynamic_lds_size": 24}, 0,
                    2 << 1 | 1 << 7 | 1 << 9, 0x408, 32, 0)

    def test_hidden_arguments_stand_behind_the_launches_own(self):
        data = self.KERNEL.arguments(b"0123456789ab", (2, 3, 1), (32, 1, 1), 640)
        self.assertEqual((data[:12], data[16:20], data[20:22], data[24:28], len(data)),
                         (b"0123456789ab", b"\x03\0\0\0", b"\x20\0", b"\x80\x02\0\0", 48))

    def test_a_launch_with_other_arguments_is_refused(self):
        with self.assertRaisesRegex(BadObject, "k: a launch with 8 bytes of arguments; the kernel has 12"):
            self.KERNEL.arguments(bytes(8), (1, 1, 1), (1, 1, 1), 0)

    def test_user_registers_and_axes(self):
        self.assertEqual(self.KERNEL.user_data(0x123456789), [0x23456789, 1])
        self.assertEqual(self.KERNEL.group_id_axes(), [0, 2])


@unittest.skipUnless(has_clang(), "clang++-19 or ld.lld-19 is missing")
class CodeObjects(unittest.TestCase):
    def test_a_small_kernel_is_read(self):
        with tempfile.TemporaryDirectory() as folder:
            source, made = pathlib.Path(folder) / "small.hip", pathlib.Path(folder) / "small.co"
            source.write_text(SOURCE, encoding="utf-8")
            subprocess.run([hip_compile.COMPILER, "-x", "hip", "--offload-arch=gfx1151", "-nogpulib", "-nogpuinc", "-O2", "--cuda-device-only",
                            "--no-gpu-bundle-output", "-c", source, "-o", made], check=True, capture_output=True)
            loaded = CodeObject(made.read_bytes())
        kernel = loaded.kernels["small"]
        self.assertEqual((kernel.explicit, kernel.lds, kernel.scratch, kernel.group_id_axes()[0]), (24, 192, 0, 0))
        self.assertEqual(len(kernel.user_data(0)), kernel.user_registers)
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
        subprocess.run(["cc", "-std=gnu17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", TREE / "tools/amd/launcher.c", "-o", made], check=True)
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
        block = machine.Block(base=0x1000, bytes=20, ops=ctypes.addressof(ops), waves=ctypes.addressof(waves), n_waves=n_waves, random=seed,
                              most=most)
        scalars = (ctypes.c_uint32 * 2)(7, 8)
        self.library.ridge_begin_block(ctypes.byref(block), (ctypes.c_uint32 * 128)(), scalars, 2, ctypes.c_uint64(0x1000),
                                       (ctypes.c_uint32 * 3)(32 * n_waves - 5, 1, 1), 0, None)
        for wave in range(n_waves):
            ctypes.memmove(ctypes.addressof(waves) + wave * self.library.ridge_wave_bytes() + 4, bytes([wave, 0, 0, 0]), 4)
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


class Output(unittest.TestCase):
    LINES = ["[ RUN      ] A.One\n", "\n", '@amd {"begins": "k"}\n', '@amd {"kernel": "k", "instructions": 5}\n', "[       OK ] A.One (5 ms)\n",
             "[ RUN      ] A.Two\n", '@amd {"kernel": "k", "instructions": 6}\n', "[  FAILED  ] A.Two (5 ms)\n", "[  FAILED  ] A.Two\n"]

    def test_launches_belong_to_the_test_that_runs(self):
        log = io.StringIO()
        records, failed, passed = amd_emulate.records_of(self.LINES, log)
        self.assertEqual([(r["test"], r.get("instructions")) for r in records], [("A.One", None), ("A.One", 5), ("A.Two", 6)])
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
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(amd_emulate.Stop, "no checkout of tinygrad|missing") as stopped:
            amd_emulate.main(["--tinygrad", folder])
        self.assertEqual(stopped.exception.code, amd_emulate.MISSING)


class Tables(unittest.TestCase):
    def test_files_of_families_exist(self):
        for name, family in FAMILIES.items():
            for file in family.files:
                self.assertTrue((TREE / "src/op" / file).exists(), f"{name}: {file}")

    def test_patches_are_for_one_version(self):
        for pairs in patches.PATCHES.values():
            text = "".join(old for old, _ in pairs)
            self.assertEqual(patches.patched(text, pairs), "".join(new for _, new in pairs))
            with self.assertRaisesRegex(patches.OtherVersion, "0 times"):
                patches.patched("", pairs)


if __name__ == "__main__":
    unittest.main()
