#!/usr/bin/env python3
"""tools/amd_run.py without an emulator: bundles of device code, arguments by their places, and the runtime's streams
and graphs."""
import ctypes
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(TREE / "tools"))
import amd_emulate  # noqa: E402
import amd_run  # noqa: E402
from amd import machine  # noqa: E402
from amd.code_object import BadObject, Kernel  # noqa: E402

# A launcher whose only kernel has an int and a double; it writes the int to where the address in the double's place
# points.
LAUNCHER = """
#include "launcher.h"
#include <cstring>
extern "C" int run(const ridge_launch* l) __asm__("ridge_run");
int run(const ridge_launch* l) {
  if (l->packed) {
    std::memcpy(l->packed, l->places[0], 4);
    std::memcpy(static_cast<char*>(l->packed) + 8, l->places[1], 8);
    return 16;
  }
  int value;
  int* to;
  std::memcpy(&value, l->arguments, 4);
  std::memcpy(&to, static_cast<const char*>(l->arguments) + 8, 8);
  *to += l->argument_bytes == 16 && !std::strcmp(l->name, "k") ? value : -1;
  return 1;
}
"""


class Dim3(ctypes.Structure):
    _fields_ = [(axis, ctypes.c_uint32) for axis in "xyz"]


class Bundles(unittest.TestCase):
    def test_the_targets_code_is_found_or_named(self):
        host, name = b"host-x86_64-unknown-linux--", b"hipv4-amdgcn-amd-amdhsa--gfx1100"
        entries = struct.pack("<3Q", 200, 0, len(host)) + host + struct.pack("<3Q", 200, 9, len(name)) + name
        data = (b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", 2) + entries).ljust(200, b"\0") + b"\x7fELF\x02bad!"
        kept = ctypes.create_string_buffer(data, len(data))
        with self.assertRaisesRegex(BadObject, "no 64-bit ELF"):
            machine.of_bundle(ctypes.addressof(kept), "gfx1100")
        with self.assertRaisesRegex(BadObject, "no device code for gfx1151"):
            machine.of_bundle(ctypes.addressof(kept), "gfx1151")
        with self.assertRaisesRegex(BadObject, "no bundle"):
            machine.of_bundle(ctypes.addressof(ctypes.create_string_buffer(64)), "gfx1100")


class Arguments(unittest.TestCase):
    def test_arguments_go_to_their_offsets(self):
        kernel = Kernel("k", 0, 0, 0, 16, ((0, 1), (8, 8)), {}, 0, 0, 0, 0, 0)
        small, wide, packed = ctypes.c_uint8(7), ctypes.c_uint64(1 << 40), ctypes.create_string_buffer(b"\xff" * 24, 24)
        places = (ctypes.c_void_p * 2)(ctypes.addressof(small), ctypes.addressof(wide))
        self.assertEqual(kernel.pack(places, ctypes.addressof(packed)), 16)
        self.assertEqual(packed.raw, b"\x07" + b"\xff" * 7 + (1 << 40).to_bytes(8, "little") + b"\xff" * 8)


@unittest.skipUnless(shutil.which("c++") and pathlib.Path("/usr/include/hip/hip_runtime_api.h").exists(),
                     "libamdhip64-dev is missing")
class Runtime(unittest.TestCase):
    """In a process of its own: RIDGE_LAUNCHER is read once."""

    def test_recorded_work_runs_with_its_graph(self):
        with tempfile.TemporaryDirectory() as folder:
            launcher, source, library = (pathlib.Path(folder) / name
                                         for name in ("launcher.so", "launcher.cpp", "runtime.so"))
            source.write_text(LAUNCHER, encoding="utf-8")
            for command in (["-I" + str(TREE / "tests/emulate"), source, "-o", launcher],
                            ["-Wall", "-Wextra", "-Werror", "-D__HIP_PLATFORM_AMD__", TREE / "tools/amd/runtime.cpp",
                             "-o", library]):
                subprocess.run(["c++", "-std=c++20", "-O1", "-shared", "-fPIC", *command], check=True)
            code = (f"import sys; sys.path.insert(0, {str(TREE / 'tests/tools')!r}); import amd_run_test; "
                    f"amd_run_test.record_and_replay({str(library)!r})")
            done = subprocess.run([sys.executable, "-B", "-c", code],
                                  env={"RIDGE_LAUNCHER": str(launcher), "PATH": "/usr/bin:/bin"}, check=False,
                                  capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)


def record_and_replay(path):
    hip = ctypes.CDLL(path)
    word, first, second, event, graph, runs, device = (ctypes.c_void_p() for _ in range(7))

    def call(name, *arguments):
        assert getattr(hip, name)(*arguments) == 0, name

    host = ctypes.c_int(0)  # its address stands for the host function of the kernel
    bundle = ctypes.create_string_buffer(64)
    wrapper = ctypes.create_string_buffer(struct.pack("<2IQQ", 0x48495046, 1, ctypes.addressof(bundle), 0), 24)
    getattr(hip, "__hipRegisterFatBinary").restype = ctypes.c_void_p
    handle = ctypes.c_void_p(getattr(hip, "__hipRegisterFatBinary")(wrapper))
    getattr(hip, "__hipRegisterFunction")(handle, ctypes.byref(host), None, b"k", -1, None, None, None, None, None)
    call("hipMalloc", ctypes.byref(device), ctypes.c_size_t(4))
    call("hipMemset", device, 0, ctypes.c_size_t(4))
    value, result = ctypes.c_int(5), ctypes.c_int(-1)
    places = (ctypes.c_void_p * 2)(ctypes.addressof(value), ctypes.addressof(device))

    def launch(stream):
        call("hipLaunchKernel", ctypes.byref(host), Dim3(1, 1, 1), Dim3(32, 1, 1), places, ctypes.c_size_t(0), stream)

    for stream in (first, second):
        call("hipStreamCreateWithFlags", ctypes.byref(stream), 1)
    call("hipEventCreateWithFlags", ctypes.byref(event), 2)
    call("hipStreamBeginCapture", first, 1)
    launch(first)
    call("hipEventRecord", event, first)
    call("hipStreamWaitEvent", second, event, 0)
    launch(second)  # recorded too: it waits for the other
    call("hipMemcpyAsync", ctypes.byref(result), device, ctypes.c_size_t(4), 2, second)
    call("hipStreamEndCapture", first, ctypes.byref(graph))
    call("hipGraphInstantiate", ctypes.byref(runs), graph, None, None, ctypes.c_size_t(0))
    call("hipGraphDestroy", graph)
    assert result.value == -1, "recorded work ran"
    value.value = 100  # a graph keeps the arguments of its recording
    call("hipGraphLaunch", runs, first)
    assert result.value == 10, result.value
    call("hipGraphLaunch", runs, first)
    assert result.value == 20, result.value
    launch(second)  # neither is recorded any more
    call("hipMemcpyAsync", ctypes.byref(result), device, ctypes.c_size_t(4), 2, second)
    assert result.value == 120, result.value
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("hipMemGetInfo", ctypes.byref(free), ctypes.byref(total))
    assert total.value - free.value == 256
    assert hip.hipMalloc(ctypes.byref(word), total) == 2, "more than there is"
    call("hipFree", device)
    assert hip.hipFree(device) == 1, "freed twice"
    assert hip.hipSetDevice(1) == 101


class Options(unittest.TestCase):
    def test_a_program_without_hip_is_refused(self):
        with self.assertRaisesRegex(amd_emulate.Stop, "not linked with libamdhip64"):
            amd_run.library_of(shutil.which("true"))


if __name__ == "__main__":
    unittest.main()
