"""Stored rows say where they come from, and the tables of the results say on what card they were measured.

results/gaps.json counts the rows that leave a fact out, by file and fact. A file with more of them than it says fails
here: new rows have none. A file with fewer fails too, so that the numbers only fall.
"""
import json
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools"))
import render_docs  # noqa: E402
from tables import ages, rows, speed  # noqa: E402

WHOLE = {"kind": "op", "build_commit": "0123abcd", "command": "ridge bench gemv", "device": "cuda:0",
         "device_name": "NVIDIA H200", "date": "2026-11-26T00:00:00Z",
         "load_1min": 0.1, "checked": True}


def gaps_of(found):
    counted = {}
    for r in found:
        for gap in ages.missing(r):
            counted[gap] = counted.get(gap, 0) + 1
    return counted


class Rows(unittest.TestCase):
    def test_new_rows_leave_nothing_out(self):
        allowed = json.loads((ROOT / "results" / "gaps.json").read_text())
        faults = []
        for name in sorted({*ages.files(), *allowed}):
            counted, known = gaps_of(ages.rows_of(name)), allowed.get(name, {})
            for gap in sorted({*counted, *known}):
                n, limit = counted.get(gap, 0), known.get(gap, 0)
                if n > limit:
                    faults.append(f"results/{name}: {n} rows without '{gap}', known are {limit}: a new row leaves it "
                                  f"out (measure again with a program that stores it)")
                elif n < limit:
                    faults.append(
                        f"results/{name}: {n} rows without '{gap}', results/gaps.json says {limit}: lower it to {n}")
        self.assertEqual(faults, [])

    def test_every_fact_is_asked_for(self):
        self.assertEqual(ages.missing(WHOLE), [])
        for fact, fields in (("build", ["build_commit"]), ("command", ["command"]), ("card", ["device_name"]),
                             ("date", ["date"]), ("load", ["load_1min"]), ("checked", ["checked"])):
            self.assertEqual(ages.missing({k: v for k, v in WHOLE.items() if k not in fields}), [fact])
        self.assertEqual(ages.missing({**WHOLE, "checked": False}), ["unchecked"])
        self.assertEqual(ages.missing({**WHOLE, "build_type": "Release with device code not optimised"}),
                         ["an optimised build"])
        self.assertEqual(ages.missing({**WHOLE, "kind": "eval_kld", "checked": False}), ["unchecked"])
        self.assertEqual(ages.missing({k: v for k, v in {**WHOLE, "kind": "eval_kld"}.items() if k != "checked"}), [])

    def test_a_card_is_the_row_s_own_or_of_what_the_row_is_about(self):
        bare = {k: v for k, v in WHOLE.items() if not k.startswith("device")}
        self.assertEqual(ages.card_of({**bare, "cpu": "Xeon", "processors": 32,
                                       "cell": {"device": "cuda", "device_name": "NVIDIA H200"}}), "H200")
        self.assertEqual(ages.card_of({**WHOLE, "cell": {"device_name": "NVIDIA H100"}}), "H200")

    def test_every_file_has_an_age_and_every_path_is_there(self):
        for name in ages.files():
            base = name.rpartition("/")[2]
            if base.startswith(ages.TRIALS) or base.startswith("peers"):
                continue
            for op in {r.get("op", "") for r in ages.rows_of(name)}:
                paths, _ = ages.watched(name, op)
                self.assertTrue(paths, f"{name}: tools/tables/ages.py does not say which code decides about its rows")
                for path in paths:
                    self.assertTrue(any(ROOT.glob(path)), f"tools/tables/ages.py: {path} is not there")


class Code(unittest.TestCase):
    def test_comments_space_and_standard_headers_are_no_code(self):
        text = "#include <array>\n\n/// A sum.\nint sum(int a) {\n  return a + 1;  // why\n}\n"
        self.assertEqual(ages.code_of(text),
                         ages.code_of("#include <cstdint>\n" + text.replace("A sum", "The sum").replace("\n  ", " ")))
        self.assertNotEqual(ages.code_of(text), ages.code_of(text.replace("+ 1", "+ 2")))
        self.assertNotEqual(ages.code_of(text), ages.code_of('#include "sum.h"\n' + text))


class Tables(unittest.TestCase):
    def test_rows_of_every_kind_name_their_card(self):
        for row, name in (({"gpu_info": "NVIDIA H100 80GB HBM3", "cpu_info": "AMD EPYC"}, "H100"),
                          ({"server_device": "cuda:0 NVIDIA H200"}, "H200"),
                          ({"device": "cuda:0,1", "device_name": "NVIDIA H200"}, "H200"),
                          ({"cpu": "AMD EPYC", "n_threads": 2}, "EPYC, 2 threads"),
                          ({"device": "cpu", "device_name": "Intel(R) Xeon(R) Processor", "n_threads": 1},
                           "Xeon, 1 thread"),
                          ({"device": "cuda", "cpu": "Intel(R) Xeon(R) Processor", "n_threads": 8},
                           "GPU, not recorded"), ({}, "not recorded")):
            self.assertEqual(rows.card(row), name)

    def test_columns_of_numbers_stand_on_the_right(self):
        self.assertEqual(rows.table(["a", "b", "c"], [["x", 1, "2.0 (3 %)"], ["3", "", None]])[1], "|---|---:|---:|")
        self.assertEqual(rows.table(["a"], []), rows.NO_ROWS)

    def test_links_that_lead_nowhere_are_found(self):
        page = ROOT / "docs" / "page.md"
        texts = {page: "# A head: `x`, y\n[good](#a-head-x-y) [bad](#head) [file](results.md) [gone](nothing.md) "
                       "[out](https://a.b/c) `[code](none.md)`"}
        self.assertEqual(render_docs.dead_links(texts), ["docs/page.md: #head", "docs/page.md: nothing.md"])


class Crossovers(unittest.TestCase):
    def test_a_difference_counts_beyond_the_noise_of_both_and_one_percent(self):
        near = lambda us: [us, us, us + 0.1, us - 0.1, us]
        self.assertEqual([speed.verdict(near(10), [], near(us)) for us in (9, 9.95, 11)], [1, 0, -1])
        self.assertEqual(speed.verdict(near(10), near(11.5), near(9)), 0)  # f16 itself differs by more
        self.assertEqual(speed.verdict(near(10), near(9), near(9.5)), 0)
        self.assertEqual(speed.verdict([5, 10, 10, 15, 10], [], [8, 9, 9, 10, 5]), 0)

    def test_where_a_format_wins(self):
        for verdicts, words in (([1, 1], "always"), ([1, 0, 1], "never slower"), ([-1, 0], "never"),
                                ([0, 0], "cannot be told"), ([1, 0, -1], "up to depth 1"),
                                ([-1, 0, 1], "from depth 3"), ([1, -1, 1], "at depth 1, 3")):
            self.assertEqual(speed.where_it_wins("depth", list(enumerate(verdicts, 1))), words)


class Results(unittest.TestCase):
    TEXT = (ROOT / "docs" / "results.md").read_text()

    def test_the_page_stays_short(self):
        self.assertLessEqual(len(self.TEXT.splitlines()), 450)

    def test_every_table_begins_with_the_card(self):
        tables = re.findall(r"^(\|.*\|)\n\|[-:|]+\|\n", self.TEXT, re.M)
        self.assertGreater(len(tables), 15)
        for head in tables:
            self.assertEqual(head.split("|")[1].strip(), "device", head)


class Seeds(unittest.TestCase):
    TEXT = (ROOT / "docs" / "seeds.md").read_text()

    def count(self, pattern):
        found = re.search(pattern, self.TEXT)
        self.assertIsNotNone(found, f"docs/seeds.md: no '{pattern}'")
        return [int(n) for n in found.groups()]

    def test_the_counts_of_its_prose_are_those_of_its_tables(self):
        states = re.findall(r"^\| S\d\.\d+ \|[^|]*\| ([^|]*) \|", self.TEXT, re.M)
        self.assertEqual(set(states), {"works", "part"})
        self.assertEqual(self.count(r"their (\d+)\s+requirements"), [len(states)])
        self.assertEqual(self.count(r"(\d+) work, (\d+) work in part"), [states.count("works"), states.count("part")])

    def test_the_count_of_unchecked_rows_is_theirs(self):
        unchecked = sum(gaps_of(ages.rows_of(name)).get("unchecked", 0) for name in ages.files())
        self.assertEqual(self.count(r"(\d+) stored rows ran with it"), [unchecked])


if __name__ == "__main__":
    unittest.main()
