"""check_hardening.py passes a hardened program and names each protection that another one lacks."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECK = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_hardening.py"
CODE = """#include <cstring>
int main(int argc, char** argv) { char text[8]; std::strcpy(text, argv[argc - 1]); return text[0]; }"""
ALL = ["-O2", "-fPIE", "-pie", "-Wl,-z,relro,-z,now,-z,noexecstack", "-fstack-protector-strong",
       "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3"]
PLANTED = {"-no-pie": "-pie", "-Wl,-z,lazy": "-z now", "-Wl,-z,norelro": "-z relro",
           "-Wl,-z,execstack": "-z noexecstack",
           "-fno-stack-protector": "-fstack-protector-strong", "-U_FORTIFY_SOURCE": "-D_FORTIFY_SOURCE"}


class CheckHardening(unittest.TestCase):
    def check(self, flags):
        with tempfile.TemporaryDirectory() as folder:
            source, built = pathlib.Path(folder, "a.cpp"), pathlib.Path(folder, "a")
            source.write_text(CODE, encoding="utf-8")
            subprocess.run(["c++", "-w", *flags, source, "-o", built], check=True)
            return subprocess.run([sys.executable, CHECK, built], capture_output=True, text=True, check=False)

    def test_a_hardened_program_passes(self):
        done = self.check(ALL)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_each_missing_protection_is_named(self):
        for flag, name in PLANTED.items():
            done = self.check([*ALL, flag])
            self.assertEqual(done.returncode, 1, flag)
            self.assertIn(f"({name})", done.stdout)
            self.assertIn("1 of 6", done.stdout, flag)


if __name__ == "__main__":
    unittest.main()
