#!/usr/bin/env python3
"""Checks that every file names the standard headers of the names it uses, and that every header compiles on its own.

A compiler's own headers include others: what one release lets pass the next one refuses. So each name of the table below
needs one of its headers among the includes of the file, or of the tree's headers that the file includes.

Prints `file:line: uses NAME without <header>` for each offence and exits 1, or one line and exits 0.
Usage: check_headers.py [--compile COMPILER] [--part K/N] [--jobs N] [ROOT]
  ROOT                a tree; default: the repository this file is in
  --compile COMPILER  every header of src, include and tests on its own too, by COMPILER (-fsyntax-only)
  --part K/N          the headers of one of N parts only, K from 0 to N - 1, by a hash of their names
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zlib

TOP_FOLDERS = ("include", "src", "tests")
SOURCES = {".h", ".cpp", ".cu"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)
# Headers that need a device's compiler or the emulator's names, and those that stand behind one of op/simd's vectors.
NOT_ALONE = re.compile(r"tests/(emulate|gpu)/|src/gpu/(hip_names|hip_shim|launch|tensor)\.h|src/op/simd/|.*(_cuda|_simd|_body|avx2|avx512)\.h$")
DEVICE = re.compile(r"cuda|hip/|nv")
# Files that the build compiles several at a time (ridge_joined): what one of them includes, the next one has.
JOINED = re.compile(r"src/(text|grammar|http|io|model|engine|serve|lab|top|chat|capi|cli)/")

# Names of namespace std by header. Several headers: each of them has the name by the standard's words.
STD = {
    "algorithm": """adjacent_find all_of any_of binary_search clamp copy_if copy_n count count_if equal equal_range fill
        fill_n find find_if find_if_not is_sorted lexicographical_compare lower_bound max max_element merge min min_element
        minmax minmax_element mismatch none_of nth_element partial_sort partition remove_if replace reverse rotate search
        shuffle sort stable_sort transform unique upper_bound""",
    "any": "any any_cast", "array": "array to_array",
    "atomic": """atomic atomic_bool atomic_flag atomic_ref atomic_thread_fence memory_order_acq_rel memory_order_acquire
        memory_order_relaxed memory_order_release memory_order_seq_cst""",
    "barrier": "barrier",
    "bit": "bit_cast bit_ceil bit_floor bit_width countl_zero countr_zero endian has_single_bit popcount rotl rotr",
    "bitset": "bitset", "cctype": "isalnum isalpha isdigit isspace isxdigit tolower toupper",
    "charconv": "from_chars to_chars", "chrono": "chrono chrono_literals", "clocale": "setlocale",
    "cmath": """acos asin atan atan2 cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 floor fma fmax fmin fmod hypot ilogb
        isfinite isinf isnan ldexp lgamma llround log log10 log1p log2 lrint lrintf lround nan nanf nearbyint nextafter pow
        round scalbn signbit sin sinh sqrt tan tanh tgamma trunc""",
    "complex": "complex", "condition_variable": "condition_variable condition_variable_any",
    "csignal": "raise sig_atomic_t signal",
    "cstddef": "byte max_align_t nullptr_t ptrdiff_t to_integer",
    "cstdio": """fclose ferror fflush fgets fopen fprintf fputc fputs fread freopen fseek ftell fwrite printf putchar puts
        snprintf sscanf""",
    "cstdlib": """abort aligned_alloc atof atoi atol atoll calloc exit free getenv malloc mkstemp qsort quick_exit realloc
        strtod strtof strtol strtoll strtoul strtoull system""",
    "cstring": """memchr memcmp memcpy memmove memset strchr strcmp strcpy strerror strlen strncmp strncpy strrchr strstr""",
    "ctime": "clock clock_t difftime gmtime localtime mktime strftime time_t tm",
    "cwchar": "mbrtowc mbstate_t wcrtomb", "deque": "deque",
    "exception": "current_exception exception_ptr rethrow_exception terminate uncaught_exceptions",
    "filesystem": "filesystem", "format": "format", "fstream": "fstream ifstream ofstream",
    "functional": "bind function greater hash invoke multiplies plus reference_wrapper",
    "future": "async future future_status launch packaged_task promise shared_future",
    "iomanip": "setfill setprecision setw", "iostream": "cerr cin cout",
    "iterator": "istream_iterator istreambuf_iterator",
    "latch": "latch", "limits": "numeric_limits", "list": "list", "map": "map multimap",
    "memory": "addressof allocator enable_shared_from_this make_shared make_unique shared_ptr unique_ptr weak_ptr",
    "mutex": "call_once lock_guard mutex once_flag recursive_mutex scoped_lock timed_mutex try_to_lock unique_lock",
    "new": "align_val_t bad_alloc launder nothrow", "numbers": "numbers",
    "numeric": "accumulate gcd inner_product iota lcm midpoint partial_sum reduce",
    "optional": "nullopt optional", "queue": "priority_queue queue",
    "random": """bernoulli_distribution discrete_distribution mt19937 mt19937_64 normal_distribution random_device
        uniform_int_distribution uniform_real_distribution""",
    "regex": "regex regex_match regex_replace regex_search smatch", "semaphore": "binary_semaphore counting_semaphore",
    "set": "multiset set", "shared_mutex": "shared_lock shared_mutex", "source_location": "source_location",
    "span": "as_bytes as_writable_bytes dynamic_extent span", "sstream": "istringstream ostringstream stringstream",
    "stack": "stack",
    "stdexcept": "domain_error invalid_argument length_error logic_error out_of_range runtime_error",
    "stop_token": "stop_callback stop_source stop_token",
    "string": "getline stod stof stoi stol stoll stoul stoull string to_string u32string u8string wstring",
    "string_view": "string_view string_view_literals u32string_view",
    "system_error": "errc error_category error_code generic_category make_error_code system_category system_error",
    "thread": "jthread this_thread thread", "tuple": "apply forward_as_tuple make_tuple tie tuple",
    "type_traits": """conditional_t decay_t enable_if_t integral_constant invoke_result_t is_arithmetic_v is_convertible_v
        is_enum_v is_floating_point_v is_integral_v is_same_v is_signed_v is_trivially_copyable_v is_unsigned_v
        make_signed_t make_unsigned_t remove_cvref_t remove_pointer_t remove_reference_t underlying_type_t""",
    "typeindex": "type_index", "unordered_map": "unordered_map unordered_multimap",
    "unordered_set": "unordered_multiset unordered_set",
    "utility": "as_const declval exchange in_place index_sequence integer_sequence make_index_sequence make_integer_sequence",
    "valarray": "valarray",
    "variant": "get_if holds_alternative in_place_index monostate variant variant_size_v visit",
    "vector": "vector",
}
# Names without a namespace, which the tree takes from the headers of C.
GLOBAL = {
    "cstdint": """int8_t int16_t int32_t int64_t intptr_t uint8_t uint16_t uint32_t uint64_t uintptr_t INT8_MAX INT8_MIN
        INT16_MAX INT16_MIN INT32_MAX INT32_MIN INT64_MAX INT64_MIN SIZE_MAX UINT8_MAX UINT16_MAX UINT32_MAX UINT64_MAX""",
    "climits": "CHAR_BIT INT_MAX INT_MIN LLONG_MAX LLONG_MIN LONG_MAX LONG_MIN UINT_MAX ULLONG_MAX ULONG_MAX",
    "cfloat": "DBL_EPSILON DBL_MAX DBL_MIN FLT_EPSILON FLT_MAX FLT_MIN",
    "cerrno": "EACCES EAGAIN EEXIST EINTR EINVAL ENOENT ENOSPC errno",
    "cmath": "HUGE_VAL INFINITY M_PI NAN",
    "cassert": "assert",
}
# Names that many headers must have: any header of the standard library with classes in it will do.
CONTAINERS = """algorithm array bitset deque filesystem fstream functional future list map memory mutex optional queue random
    regex set span sstream stdexcept string string_view thread tuple unordered_map unordered_set variant vector""".split()
COMMON = {
    "size_t": ["cstddef", "cstdio", "cstdlib", "cstring", "ctime", "cwchar", *CONTAINERS],
    "std::size_t": ["cstddef", "cstdio", "cstdlib", "cstring", "ctime", "cwchar", *CONTAINERS],
    **{"std::" + name: ["utility", *CONTAINERS] for name in ("forward", "move", "pair", "swap")},
    "std::make_pair": ["utility", "map", "unordered_map"],
    "std::initializer_list": ["initializer_list", *CONTAINERS],
    "std::exception": ["exception", "stdexcept", "new", "future", "memory"],
    **{"std::" + name: ["iterator", *CONTAINERS] for name in ("begin", "data", "end", "next", "prev", "size")},
    "std::back_inserter": ["iterator"],
    **{"std::" + name: ["algorithm", "string", "vector", "deque", "list", "map", "set", "unordered_map", "unordered_set"]
       for name in ("erase", "erase_if")},
    "std::get": ["tuple", "variant", "utility", "array", "map"],
    "std::copy": ["algorithm"], "std::less": ["functional", "map", "set"],
    **{"std::" + name: ["ios", "istream", "ostream", "iostream", "fstream", "sstream"]
       for name in ("ios", "istream", "ostream", "streamoff", "streamsize")},
    **{"std::" + name: ["cmath", "cstdlib"] for name in ("abs",)},
    **{"std::" + name: ["chrono", "ratio"] for name in ("micro", "milli", "nano", "ratio")},
    "std::time": ["ctime"],
}
# Headers that have another header's names by the standard's words, and those of C by their own names.
GIVES = {"iostream": ["istream", "ostream", "ios"], "stdint.h": ["cstdint"], "stddef.h": ["cstddef"],
         "string.h": ["cstring"], "stdlib.h": ["cstdlib"], "stdio.h": ["cstdio"], "math.h": ["cmath"],
         "errno.h": ["cerrno"], "limits.h": ["climits"], "signal.h": ["csignal"], "time.h": ["ctime"],
         "cinttypes": ["cstdint"], "inttypes.h": ["cstdint"], "locale.h": ["clocale"],
         "fmt/format.h": ["string", "string_view"], "gtest/gtest.h": ["string", "vector", "ostream", "tuple"],
         "cuda_runtime.h": ["cstdint", "cstddef"], "filesystem": ["system_error"], "charconv": ["system_error"]}


def needed_headers():
    table = {}
    for header, names in STD.items():
        table.update({"std::" + name: [header] for name in names.split()})
    for header, names in GLOBAL.items():
        table.update({name: [header] for name in names.split()})
    table["std::tm"] = table["std::time_t"] = ["ctime"]
    for name in GLOBAL["cstdint"].split():
        if name.endswith("_t"):
            table["std::" + name] = ["cstdint"]
    table.update(COMMON)
    return table


TABLE = needed_headers()
NAMES = re.compile(r"(?<![\w:.>])(?:(?:std::)(\w+)|(" + "|".join(sorted(n for n in TABLE if "::" not in n)) + r"))\b")
BLANK = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|^[ \t]*#[ \t]*include[^\n]*', re.S | re.M)


def without_text(source):
    """The source without comments, strings and includes; line numbers stay."""
    return BLANK.sub(lambda match: "\n" * match[0].count("\n"), source)


class Tree:
    """The sources of a tree: their includes and the standard headers that they reach by the tree's own headers."""

    def __init__(self, root):
        self.root = root
        self.text, self.includes = {}, {}
        for top in TOP_FOLDERS:
            for file in sorted((root / top).rglob("*")):
                if file.suffix in SOURCES:
                    path = file.relative_to(root)
                    self.text[path] = file.read_text(encoding="utf-8")
                    self.includes[path] = INCLUDE.findall(self.text[path])

    def resolve(self, path, header):
        for folder in (path.parent, pathlib.Path("src"), pathlib.Path("include"), pathlib.Path("tests")):
            if folder / header in self.text:
                return folder / header
        return None

    def reach(self, path):
        """The file itself and the tree's headers that it includes, directly or by others; then the <headers> of them all."""
        seen, todo, outside = set(), [path], set()
        while todo:
            file = todo.pop()
            if file in seen:
                continue
            seen.add(file)
            for quote, header in self.includes[file]:
                inside = self.resolve(file, header) if quote == '"' else None
                if inside:
                    todo.append(inside)
                elif quote == "<":
                    outside.update([header, *GIVES.get(header, [])])
        return seen, outside


def missing_names(tree):
    """(path, line, name, header) for each name whose header a file does not reach; one line a name and file."""
    for path, text in tree.text.items():
        have, told = None, set()
        for match in NAMES.finditer(without_text(text)):
            name = match[0]
            headers = TABLE.get(name)
            if not headers or name in told:
                continue
            have = tree.reach(path)[1] if have is None else have
            if have.isdisjoint(headers):
                told.add(name)
                yield path, without_text(text).count("\n", 0, match.start()) + 1, name, headers[0]


def headers_to_compile(tree):
    """Headers that no .cpp file includes first: of the others the build shows that they need nothing in front of them."""
    first = {tree.resolve(path, tree.includes[path][0][1])
             for path in tree.text
             if path.suffix == ".cpp" and tree.includes[path] and not JOINED.match(path.as_posix())}
    return [path for path in tree.text if path.suffix == ".h" and path not in first and
            not any(NOT_ALONE.match(file.as_posix()) for file in tree.reach(path)[0])]


def precompile(tree, headers, command, folder):
    """A header of all <...> headers that `headers` include, compiled, and what the compiler said against it.

    Parsing them for each file would take most of the time. The table has checked names of the standard library.
    """
    names = {header for path in headers for header in tree.reach(path)[1] if not DEVICE.match(header)}
    header = folder / "outside.h"
    lines = (f"#if __has_include(<{name}>)\n#include <{name}>\n#endif\n" for name in sorted(names))
    header.write_text("".join(lines), encoding="utf-8")
    once = ["-fpch-instantiate-templates"] if "clang" in command[0] else []
    done = subprocess.run([*command, *once, "-x", "c++-header", header, "-o", f"{header}.gch"], capture_output=True,
                          text=True, check=False)
    return header, done.stderr if done.returncode else ""


def failing_headers(tree, headers, compiler, jobs):
    """The compiler's messages, one text a header that does not compile on its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "cases").mkdir()  # what the build generates
        (folder / "cases/paths.h").write_text('#define RIDGE_SOURCE_DIR ""\n#define RIDGE_BINARY_DIR ""\n')
        command = [*compiler.split(), "-std=c++20", "-Wall", "-Wextra", "-Wno-missing-field-initializers",
                   "-Wno-unused-function", "-Werror", f"-I{tree.root / 'src'}", f"-I{tree.root / 'include'}",
                   f"-I{tree.root / 'tests'}", f"-I{folder}"]
        outside, error = precompile(tree, headers, command, folder)
        if error:
            return [error]

        def failure(path):
            done = subprocess.run([*command, "-fsyntax-only", "-include", outside, "-x", "c++", "-"], capture_output=True,
                                  text=True, input=f'#include "{(tree.root / path).as_posix()}"\n', check=False)
            return f"{path} on its own:\n{done.stderr}" if done.returncode else ""

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            return list(filter(None, pool.map(failure, headers)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compile", metavar="COMPILER", help="compile every header on its own, too")
    parser.add_argument("--part", default="0/1", metavar="K/N")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    options = parser.parse_args()
    tree = Tree(options.root)
    found = [f"{path}:{line}: uses {name} without <{header}>" for path, line, name, header in missing_names(tree)]
    if options.compile:
        part, n_parts = map(int, options.part.split("/"))
        headers = [path for path in headers_to_compile(tree) if zlib.crc32(path.as_posix().encode()) % n_parts == part]
        found += failing_headers(tree, headers, options.compile, options.jobs)
    print("\n".join(found) if found else f"headers: {len(tree.text)} files name the standard headers they use")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
