"""tools/check_width.py: which lines are too wide."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from check_width import offences  # noqa: E402

WIDE = "x" * 121


class CheckWidth(unittest.TestCase):
    def test_121_columns_are_too_wide_whatever_they_hold(self):
        self.assertEqual(offences("src/a.h", f"{WIDE}\n{WIDE[1:]}\n// {WIDE}\n"),
                         ["src/a.h:1: 121 columns", "src/a.h:3: 124 columns"])
        self.assertEqual(offences("src/a.h", "é" * 120), [])

    def test_texts_of_tests_may_be_wider(self):
        for path, text in (("tests/a.cpp", f'f(R"(a\n{WIDE}\nb {WIDE})");\n'), ("tests/a.py", f'f("""\n{WIDE}""")\n')):
            self.assertEqual(offences(path, text), [])
            self.assertEqual(len(offences(path, text + WIDE)), 1)
        self.assertEqual(len(offences("src/a.cpp", f'f(R"({WIDE})");\n')), 1)


if __name__ == "__main__":
    unittest.main()
