"""tools/check_signatures.py: what counts as a function with too many parameters or bools."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import check_signatures  # noqa: E402


def found(source, path="src/a.h"):
    return check_signatures.faults([(path, source)], [])


class CheckSignatures(unittest.TestCase):
    def test_six_parameters_and_one_bool_are_allowed(self):
        self.assertEqual(found("void f(int a, int b, int c, int d, int e, bool f);\n"), [])

    def test_seven_parameters_are_not(self):
        self.assertEqual(
            found("\nint f(int a, int b, const std::map<int, int>& c, int d,\n      int e, int f, int g) {\n"),
                         ["src/a.h:2: f takes 7 parameters"])

    def test_two_bools_are_not(self):
        self.assertEqual(found("void f(int a, bool b, bool c = true);\n"), ["src/a.h:1: f takes 2 bools"])
        self.assertEqual(found("void C::f(bool b, const bool c) const {\n"), ["src/a.h:1: C::f takes 2 bools"])

    def test_calls_comments_and_texts_are_no_functions(self):
        self.assertEqual(found("// void f(bool a, bool b);\nint x = f(1, 2, 3, 4, 5, 6, 7);\n"
                               "void g() { h(a, b, c, d, e, f, g); return k(1, 2, 3, 4, 5, 6, 7); }\n"), [])

    def test_a_known_function_is_allowed_while_it_is_there(self):
        known = "int f(int a, bool b, bool c) {\n"
        self.assertEqual(check_signatures.faults([("src/a.cpp", known)], ["f"]), [])
        for gone in ("int g(int a);\n", "int f(int a, bool b);\n"):
            self.assertEqual(check_signatures.faults([("src/a.cpp", gone)], ["f"]),
                             ["tools/check_signatures.py: KNOWN has f, and no function of this name needs it: "
                              "remove it"])


if __name__ == "__main__":
    unittest.main()
