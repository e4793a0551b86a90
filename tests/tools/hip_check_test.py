#!/usr/bin/env python3
"""tools/hip_compile.py and tools/hip_check.py: numbers of targets, left out files, and that planted faults are
found."""
import contextlib
import io
import pathlib
import sys
import unittest

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "tools"))
import hip_check  # noqa: E402
import hip_compile  # noqa: E402

REMARKS = "".join(
    f"a.cu:1:1: remark: {line} [-Rpass-analysis=kernel-resource-usage]\n"
    for line in ("Function Name: _Z1kv", "    SGPRs: 18", "    VGPRs: 256", "    ScratchSize [bytes/lane]: 124",
                 "    SGPRs Spill: 2",
                 "    VGPRs Spill: 30", "    LDS Size [bytes/block]: 64", "Function Name: _Z1lv", "    SGPRs: 1",
                 "    VGPRs: 9",
                 "    ScratchSize [bytes/lane]: 0", "    SGPRs Spill: 0", "    VGPRs Spill: 0",
                 "    LDS Size [bytes/block]: 0"))
ASSEMBLY = """_Z1kv:
\tv_dot4_i32_iu8 v0, v1, v2, v3
\tv_dot4_i32_iu8 v0, v1, v2, v3
\t.amdhsa_wavefront_size32 1
\t.end_amdhsa_kernel
"""


class HipCompile(unittest.TestCase):
    def test_targets_have_the_device_librarys_numbers(self):
        self.assertEqual([hip_compile.version_number(name) for name in ("gfx1100", "gfx1151", "gfx90a")],
                         [11000, 11501, 9010])

    def test_files_of_links_between_gpus_are_left_out_and_exist(self):
        files = hip_compile.device_files()
        self.assertIn("src/op/attn/tile_split_128.cu", files)
        for path in hip_compile.LEFT_OUT:
            self.assertNotIn(path, files)
            self.assertTrue((TREE / path).exists(), path)

    def test_exact_files_fuse_nothing(self):
        self.assertIn("-ffp-contract=off", hip_compile.source_flags("src/op/sample/sample_exact.cu"))
        self.assertNotIn("-ffp-contract=off", hip_compile.source_flags("src/op/attn/tile_split_128.cu"))


class HipCheck(unittest.TestCase):
    def faults(self, assembly=ASSEMBLY, dots=2, spills=30, scratch=124):
        used = hip_check.resources(REMARKS)["_Z1kv"]
        kernel = hip_check.Kernel("k", "a.cu", "_Z1kv", {"v_dot4_i32_iu8": dots}, spills, scratch)
        with contextlib.redirect_stdout(io.StringIO()):
            return hip_check.faults(kernel, hip_check.kernel_text(assembly, "_Z1kv"), used)

    def test_remarks_are_read(self):
        used = hip_check.resources(REMARKS)
        self.assertEqual(used["_Z1kv"], {"vector registers": 256, "spills": 30, "scalar spills": 2, "scratch": 124,
                                         "shared": 64})
        self.assertEqual(used["_Z1lv"]["spills"], 0)

    def test_planted_faults_are_found(self):
        self.assertEqual(self.faults(), [])
        self.assertIn("2 x v_dot4_i32_iu8", self.faults(dots=3)[0])
        self.assertIn("spilled", self.faults(spills=29)[0])
        self.assertIn("scratch", self.faults(scratch=120)[0])
        self.assertIn("32 lanes", self.faults(ASSEMBLY.replace("size32 1", "size32 0"))[0])
        self.assertIn("1 calls", self.faults(ASSEMBLY.replace("\t.amdhsa", "\ts_swappc_b64 s[4:5], s[6:7]\n\t.amdhsa",
                                                              1))[0])


if __name__ == "__main__":
    unittest.main()
