#!/usr/bin/env python3
"""What cmake/hip.cmake refuses, by name. Argument: cmake."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

TREE = pathlib.Path(__file__).resolve().parents[2]
CMAKE = sys.argv.pop(1) if len(sys.argv) > 1 else "cmake"
SCRIPT = f"""
set(PROJECT_SOURCE_DIR {TREE})
set(PROJECT_BINARY_DIR ${{CMAKE_CURRENT_BINARY_DIR}})
include({TREE}/cmake/hip.cmake)
ridge_find_hip()
"""


class HipConfigure(unittest.TestCase):
    def refused(self, *definitions):
        """The message of a configuration that fails, in one line."""
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder, "configure.cmake")
            script.write_text(SCRIPT)
            words = [f"-D{one}" for one in ("CMAKE_GENERATOR=Ninja", *definitions)]
            done = subprocess.run([CMAKE, *words, "-P", script], capture_output=True, text=True, check=False,
                                  cwd=folder)
            self.assertNotEqual(done.returncode, 0, done.stderr)
            return " ".join(done.stderr.split())

    def test_two_makers(self):
        self.assertIn("RIDGE_CUDA and RIDGE_HIP are both on", self.refused("RIDGE_CUDA=ON"))

    def test_generators_without_files_of_dependencies(self):
        self.assertIn("not Xcode", self.refused("CMAKE_GENERATOR=Xcode"))

    def test_a_compiler_that_is_not_there(self):
        message = self.refused("CMAKE_HIP_COMPILER=/nowhere/clang++")
        self.assertIn("there is no /nowhere/clang++. Install ROCm 6 or 7", message)
        self.assertIn("rocm-device-libs", message)

    def test_gpus_without_the_instructions(self):
        for name in ("gfx906", "gfx942", "gfx1030", "gfx1201"):
            self.assertIn(f"{name} is no RDNA3 GPU", self.refused(f"CMAKE_HIP_ARCHITECTURES=gfx1100;{name}"))

    def test_a_compiler_without_a_device_library(self):
        with tempfile.TemporaryDirectory() as folder:
            compiler = pathlib.Path(folder, "clang++")
            compiler.write_text("#!/bin/sh\nexit 1\n")
            compiler.chmod(0o755)
            message = self.refused(f"CMAKE_HIP_COMPILER={compiler}")
        self.assertRegex(message,
                         "RIDGE_HIP: hip_compile: .*(finds no ROCm device library|makes no bitcode for AMD GPUs)")


if __name__ == "__main__":
    unittest.main()
