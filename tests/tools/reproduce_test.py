"""scripts/reproduce: what it plans, and what it refuses before anything runs."""
import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*args, **environment):
    return subprocess.run([ROOT / "scripts" / "reproduce", *args], capture_output=True, text=True, check=False,
                          env={**{k: v for k, v in os.environ.items() if k != "RIDGE_REFERENCE"}, **environment})


class Reproduce(unittest.TestCase):
    def steps(self, *args, **environment):
        done = run(*args, "--plan", **environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")]

    def test_a_quick_plan_is_part_of_no_document(self):
        steps = self.steps("cpu", "--quick")
        self.assertEqual(steps, ["ceilings", "ops", "decode", "profile-f16", "profile-rotor-3", "quality", "together"])

    def test_the_reference_weights_bring_the_quality_tables(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("ridge-ref", "ridge-bitnet", "wiki.test.raw"):
                pathlib.Path(folder, name).mkdir()
            with_reference = self.steps("cuda", RIDGE_REFERENCE=folder)
            for step in ("ops-regime", "ops-depth", "quality-ref-decode", "quality-bitnet", "attention", "perplexity"):
                self.assertIn(step, with_reference)
            pathlib.Path(folder, "ridge-bitnet").rmdir()
            done = run("--plan", RIDGE_REFERENCE=folder)
            self.assertEqual(done.returncode, 6)
            self.assertIn("ridge-bitnet is not there", done.stderr)
        self.assertNotIn("attention", self.steps("cpu"))

    def test_public_models_are_measured_where_they_are(self):
        with tempfile.TemporaryDirectory() as folder:
            none = self.steps("cpu", RIDGE_PUBLIC=folder)
            self.assertIn("policy-ridge-ref", none)
            pathlib.Path(folder, "gemma-3-270m-q4_k_m.gguf").touch()
            self.assertEqual([s for s in self.steps("cpu", RIDGE_PUBLIC=folder) if s not in none],
                             [f"{step}-gemma-3-270m-q4_k_m" for step in ("policy", "bare", "tasks", "code", "lists",
                                                                         "chat")])

    def test_unknown_words_are_usage(self):
        done = run("gpu")
        self.assertEqual(done.returncode, 2)
        self.assertIn("usage: scripts/reproduce [cpu|cuda]", done.stderr)


if __name__ == "__main__":
    unittest.main()
