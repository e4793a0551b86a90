"""check_isa_symbols.py catches a weak function in an ISA object and nothing else."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECK = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_isa_symbols.py"
WEAK = "inline __attribute__((noinline)) int shared() { return 1; } int kernel() { return shared(); }"
LOCAL = "namespace { __attribute__((noinline)) int mine() { return 1; } } int kernel() { return mine(); }"


class CheckIsaSymbols(unittest.TestCase):
    def check(self, name, code):
        with tempfile.TemporaryDirectory() as folder:
            source, built = pathlib.Path(folder, name), pathlib.Path(folder, name + ".o")
            source.write_text(code, encoding="utf-8")
            subprocess.run(["c++", "-O2", "-c", source, "-o", built], check=True)
            return subprocess.run([sys.executable, CHECK, built], capture_output=True, text=True, check=False)

    def test_weak_function_is_caught(self):
        done = self.check("rows_avx512.cpp", WEAK)
        self.assertEqual(done.returncode, 1)
        self.assertIn("shared()", done.stdout)

    def test_local_function_and_portable_file_pass(self):
        self.assertEqual(self.check("rows_avx2.cpp", LOCAL).returncode, 0)
        self.assertEqual(self.check("rows.cpp", WEAK).returncode, 0)


if __name__ == "__main__":
    unittest.main()
