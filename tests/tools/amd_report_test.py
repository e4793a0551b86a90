#!/usr/bin/env python3
"""scripts/amd-report with a program that stands for ridge: steps, failures, and what its archive keeps to itself."""
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile
import unittest

TREE = pathlib.Path(__file__).resolve().parents[2]

# Prints its arguments without the device's name, and a row with the user's folder.
RIDGE = """#!/usr/bin/env bash
case " $* " in *"$FAILS"*) echo broken; exit 3 ;; esac
case " $* " in *" --device hip "*) device=hip ;; *) device=cpu ;; esac
case $1 in
  run) echo "once upon $( [ "$OTHER" = "$device" ] && echo another )" ;;
  bench) for word; do file=$word; done; echo "{\\"model\\":\\"$HOME/secret.gguf\\",\\"host\\":\\"$(uname -n)\\",\\"in\\":\\"$PWD\\"}" > "$file" ;;
  doctor) echo "all well for $USER" ;;
esac
"""


class Report(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.tree = pathlib.Path(self.folder.name) / "tree"
        (self.tree / "scripts").mkdir(parents=True)
        for name in ("amd-report", "gate-lib.sh"):
            shutil.copy(TREE / "scripts" / name, self.tree / "scripts")
        program = self.tree / "fake"
        program.write_text(RIDGE, encoding="utf-8")
        program.chmod(0o755)
        self.addCleanup(self.folder.cleanup)

    def report(self, *arguments, program="fake", **environment):
        own = {"PATH": "/usr/bin:/bin", "HOME": "/home/somebody", "USER": "somebody", "FAILS": "nothing", "OTHER": "",
               **environment}
        command = [self.tree / "scripts/amd-report", "--gpu", "gfx1100",
                   *(["--program", f"./{program}"] if program else []), *arguments]
        return subprocess.run(command, env=own, capture_output=True, text=True, check=False)

    def files(self):
        archive, = (self.tree / "build/amd-report").glob("ridge-gfx1100-*.tar.xz")
        with tarfile.open(archive) as tar:
            return {pathlib.Path(m.name).name: tar.extractfile(m).read().decode() for m in tar if m.isfile()}

    def test_the_archive_has_every_step_and_no_names(self):
        done = self.report()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        files = self.files()
        for name in ("system.txt", "text-260k-rotor-3.log", "attention.jsonl", "bench-gemv.log", "doctor.log"):
            self.assertIn(name, files)
        whole = "\n".join(files.values())
        for secret in ("somebody", str(self.tree), os.uname().nodename):
            self.assertNotIn(secret, whole)
        self.assertIn("HOME/secret.gguf", files["attention.jsonl"])

    def test_a_model_is_measured_too(self):
        (self.tree / "my.gguf").write_bytes(b"")
        self.assertEqual(self.report("--model", "my.gguf", "bench").returncode, 0)
        self.assertIn("decode-model.jsonl", self.files())
        self.assertEqual(self.report("--model", "nowhere.gguf").returncode, 4)

    def test_what_fails_is_named_and_the_rest_goes_on(self):
        done = self.report(FAILS="bench append")
        self.assertEqual(done.returncode, 1)
        self.assertIn("FAILED  bench-append", done.stdout)
        self.assertIn("ok      bench-decode-shipped", done.stdout)
        self.assertIn("SOME STEPS FAILED", done.stdout)
        self.assertIn("broken", self.files()["bench-append.log"])

    def test_another_text_than_the_cpus_is_a_failure(self):
        done = self.report("text", OTHER="hip")
        self.assertEqual(done.returncode, 1)
        self.assertIn("FAILED  text-260k-f16 ", done.stdout)

    def test_what_is_missing_is_named(self):
        self.assertEqual(self.report(program="absent").returncode, 6)
        done = subprocess.run([self.tree / "scripts/amd-report"], env={"PATH": "/usr/bin:/bin"}, capture_output=True,
                              text=True, check=False)
        self.assertEqual((done.returncode, "rocminfo is missing" in done.stderr), (6, True), done.stderr)
        self.assertEqual(self.report("fly").returncode, 2)


if __name__ == "__main__":
    unittest.main()
