"""check_headers.py and check_compiler.py find what is missing in small trees, and pass what is complete.

Usage: check_headers_test.py [COMPILER]
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
COMPILER = sys.argv.pop(1) if len(sys.argv) > 1 else "c++"


def run(files, *options):
    """check_headers.py over a tree of {path: text}."""
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = pathlib.Path(root, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        done = subprocess.run([sys.executable, TOOLS / "check_headers.py", *options, root], capture_output=True,
                              text=True,
                              check=False)
        return done.returncode, done.stdout + done.stderr


class StandardHeaders(unittest.TestCase):
    def test_catches_names_without_their_header(self):
        for line, header in {
            "uint32_t x;": "cstdint", "std::uint8_t x;": "cstdint", "constexpr auto x = UINT64_MAX;": "cstdint",
            "std::string x;": "string", "std::vector<int> x;": "vector", "std::optional<int> x;": "optional",
            "std::function<void()> x;": "functional", "size_t x;": "cstddef", "int x = std::max(1, 2);": "algorithm",
            "auto x = std::exchange(y, 1);": "utility", "auto x = std::make_unique<int>();": "memory",
            "double x = std::sqrt(2.0);": "cmath", "int x = INT_MAX;": "climits", "std::array<int, 2> x;": "array",
            "int x = std::accumulate(a, b, 0);": "numeric", "std::span<int> x;": "span", "int x = errno;": "cerrno",
            "auto x = std::chrono::seconds(1);": "chrono", "std::byte x;": "cstddef",
            "auto x = std::move(y);": "utility",
        }.items():
            for name in ("src/base/x.h", "src/op/x.cpp", "tests/op/x_test.cpp", "src/op/x_cuda.cu"):
                code, text = run({name: f"#pragma once\n{line}\n"})
                self.assertEqual(code, 1, line)
                self.assertIn(f"{name}:2: uses", text)
                self.assertIn(f"without <{header}>", text)

    def test_a_header_of_the_tree_may_bring_it_another_standard_header_may_not(self):
        brings = {"src/base/y.h": "#pragma once\n#include <cstdint>\n"}
        self.assertEqual(run({**brings, "src/base/x.h": '#include "base/y.h"\nuint32_t x;\n'})[0], 0)
        self.assertEqual(run({"src/base/x.h": "#include <string>\nuint32_t x;\n"})[0], 1)
        self.assertEqual(run({"src/base/x.h": '#include "base/none.h"\nuint32_t x;\n'})[0], 1)

    def test_passes_what_names_no_standard_name(self):
        for line in ("// uint32_t", "/* std::string\n uint8_t */", 'const char* x = "std::vector";', "int my_uint32_t;",
                     "ridge::string x;", "x.max(1);", 'auto x = R"(uint8_t)";', "#include <vector>  // std::optional"):
            self.assertEqual(run({"src/base/x.h": line + "\n"})[0], 0, line)

    def test_compiles_headers_that_no_source_includes_first(self):
        needs = {"src/base/x.h": "#pragma once\ninline Other make() { return {}; }\n",
                 "src/base/other.h": "#pragma once\nstruct Other {};\n"}
        code, text = run({**needs, "src/base/a.cpp": '#include "base/other.h"\n#include "base/x.h"\n'}, "--compile",
                         COMPILER)
        self.assertEqual(code, 1)
        self.assertIn("src/base/x.h on its own", text)
        needs["src/base/x.h"] = '#pragma once\n#include "base/other.h"\ninline Other make() { return {}; }\n'
        self.assertEqual(run(needs, "--compile", COMPILER),
                         (0, "headers: 2 files name the standard headers they use\n"))
        alone = {"src/base/x.h": "struct X { Y y; };\n"}
        found = [run(alone, "--compile", COMPILER, "--part", f"{k}/3")[0] for k in range(3)]
        self.assertEqual(sorted(found), [0, 0, 1], "one part has it")

    def test_another_compiler_reads_the_sources_of_a_build(self):
        for text, wanted in {"int main() { return 0; }\n": 0, "int main() { return x; }\n": 1,
                             "int main() { int unused; return 0; }\n": 1}.items():
            with tempfile.TemporaryDirectory() as root:
                source = pathlib.Path(root, "a.cpp")
                source.write_text(text, encoding="utf-8")
                entry = {"file": str(source), "directory": root,
                         "command": f"/usr/bin/c++ -Wall -std=c++20 -o CMakeFiles/ridge_base.dir/a.cpp.o -c {source}"}
                pathlib.Path(root, "compile_commands.json").write_text(json.dumps([entry]), encoding="utf-8")
                done = subprocess.run([sys.executable, TOOLS / "check_compiler.py", COMPILER, "--build", root],
                                      capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, wanted, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
