"""tools/peer_kernels.py: what it says without a GPU, and what its rows leave out."""
import pathlib
import subprocess
import sys
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "peer_kernels.py"


def run(*words):
    return subprocess.run([sys.executable, str(TOOL), *words], capture_output=True, text=True)


class PeerKernels(unittest.TestCase):
    def test_help_names_every_library(self):
        found = run("--help")
        self.assertEqual(found.returncode, 0)
        for name in ("cublas", "cudnn", "flashinfer", "marlin"):
            self.assertIn(name, found.stdout)

    def test_an_unknown_library_is_refused_before_anything_runs(self):
        found = run("--libraries", "cublas,tensorrt")
        self.assertEqual((found.returncode, found.stdout), (1, ""))
        self.assertIn("unknown: tensorrt", found.stderr)

    def test_without_a_gpu_it_says_what_is_missing_and_writes_no_row(self):
        found = run("--libraries", "cublas")
        if found.returncode == 0:
            self.skipTest("this machine has a GPU")
        self.assertEqual(found.stdout, "")
        self.assertRegex(found.stderr, "error: PyTorch (is not installed|finds no NVIDIA GPU)")


if __name__ == "__main__":
    unittest.main()
