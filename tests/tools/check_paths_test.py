"""check_paths.py finds planted names of files that are not there, and passes those that are."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECK = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_paths.py"


def run(**files):
    """check_paths.py over a tree with src/op/a.h and these files ("docs/x.md" as docs__x_md)."""
    with tempfile.TemporaryDirectory() as root:
        for name, text in {"src__op__a_h": "// Nothing.\n", **files}.items():
            stem, _, end = name.replace("__", "/").rpartition("_")
            path = pathlib.Path(root, f"{stem}.{end}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        done = subprocess.run([sys.executable, CHECK, root], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout


class CheckPaths(unittest.TestCase):
    def test_catches(self):
        for name, text, wanted in [
            ("docs__x_md", "See `src/op/b.h`.\n", "docs/x.md:1: src/op/b.h"),
            ("docs__x_md", "a.h\n\nop/a.{h,cu}\n", "docs/x.md:3: op/a.cu"),
            ("docs__x_md", "[here](gone.txt)\n", "docs/x.md:1: the link gone.txt"),
            ("src__op__c_cpp", "int x;  // as in op/gone.cpp\n", "src/op/c.cpp:1: op/gone.cpp"),
        ]:
            with self.subTest(text=text):
                code, out = run(**{name: text})
                self.assertEqual(code, 1, out)
                self.assertTrue(out.startswith(wanted), out)

    def test_allows(self):
        for name, text in [
            ("docs__x_md", "`a.h`, op/a.h, src/op/a.h, `*_cuda.cu`, cmd_NAME.cpp, llama.cpp\n"),
            ("docs__x_md", "[a](../src/op/a.h), [web](https://example.org/b.h)\n```cpp file=src/b.h\n```\nsrc/b.h\n"),
            ("src__op__c_cpp", '#include "op/gone.h"\n'),
        ]:
            with self.subTest(text=text):
                code, out = run(**{name: text})
                self.assertEqual(code, 0, out)


if __name__ == "__main__":
    unittest.main()
