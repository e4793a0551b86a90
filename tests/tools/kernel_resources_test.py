#!/usr/bin/env python3
"""tools/kernel_resources.py reads ptxas' reports, and refuses kernels with planted faults (where nvcc is installed)."""
import importlib.util
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

TREE = pathlib.Path(__file__).resolve().parents[2]
TOOL = TREE / "tools/kernel_resources.py"
spec = importlib.util.spec_from_file_location("kernel_resources", TOOL)
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)

REPORT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z1av' for 'sm_120'
ptxas info    : Function properties for _Z1av
    96 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 24 registers, used 1 barriers, 96 bytes cumulative stack size, 16 bytes smem
ptxas info    : Function properties for _Z6calledv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
"""
FAULTS = {
    "stack": "__global__ void k(int* p, int n) { int a[1024]; for (int i = 0; i < 1024; ++i) a[(i * n) % 1024] = p[i]; "
             "p[n] = a[p[n] % 1024]; }",
    "error": "__global__ void k() { unknown(); }",
}


class KernelResources(unittest.TestCase):
    def test_reports(self):
        kernel, called = tool.read_report(REPORT)
        self.assertEqual(kernel, {"name": "_Z1av", "stack": 96, "spills": 12, "registers": 24, "shared": 16})
        self.assertNotIn("registers", called)

    @unittest.skipUnless(shutil.which("nvcc", path="/usr/local/cuda/bin") or shutil.which("nvcc"), "nvcc is missing")
    def test_planted_faults_are_found(self):
        run = lambda file: subprocess.run([sys.executable, TOOL, file], capture_output=True, text=True)
        fine = run(TREE / "src/op/cache/copy_parts_cuda.cu")
        self.assertEqual(fine.returncode, 0, fine.stdout)
        self.assertIn("1 kernels of 1 files", fine.stdout)
        with tempfile.TemporaryDirectory() as folder:
            for name, text in FAULTS.items():
                file = pathlib.Path(folder, name + ".cu")
                file.write_text(text)
                done = run(file)
                self.assertEqual((done.returncode, "1 faults" in done.stdout), (1, True), done.stdout)


if __name__ == "__main__":
    unittest.main()
