"""tools/report: rows of any content give a page that neither breaks nor lies; figures follow the rows and nothing
else."""
import html.parser
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "report" / "report.py"
sys.dont_write_bytecode = True
sys.path.insert(0, str(TOOL.parent))
import attribution  # noqa: E402
import claims  # noqa: E402
import decision  # noqa: E402
import decode  # noqa: E402
import machine  # noqa: E402
import ops  # noqa: E402
import page  # noqa: E402
import quality  # noqa: E402
import regime  # noqa: E402
import rows as reader  # noqa: E402
import search  # noqa: E402
import sections  # noqa: E402

HERE = {"cpu": "Some CPU", "n_threads": 2, "date": "2026-01-02T00:00:00Z", "build_commit": "abc",
        "command": "ridge bench gemv"}
EVIL = "<script>alert(1)</script>&\"'$x_1$\x00\ud800"


def gemv(fmt, batch, us, **more):
    return {"kind": "op", "op": "gemv", "kernel": "panel", "n_out": 64, "n_in": 32, "n_tokens": batch,
            "weight_format": fmt, "read_bytes": 4096, "write_bytes": 256,
            "flops": 4096 * batch, "median_us": us, "lower_quartile_us": us * 0.99, "upper_quartile_us": us * 1.01,
            "roof_gb_s": 30.0, "pct_of_roof": 50.0, "checked": True,
            "check_error": 1e-6, "check_bound": 1e-4, "cold": True, **HERE, **more}


def step(tok_s, kv, depth, **more):
    return {"n_gen": 8, "n_depth": depth, "avg_ts": tok_s, "stddev_ts": 0.1,
            "samples_ts": [tok_s * 0.99, tok_s, tok_s * 1.01], "type_k": kv, "type_v": kv, "model_filename": "m",
            "read_bytes": 1000, "read_gb_s": 20.0, "roof_gb_s": 30.0, "pct_of_roof": 66.7, "in_cache": False,
            "checked": True, "cpu_info": "Some CPU", "n_threads": 2,
            "test_time": "2026-01-02T00:00:00Z", **more}


def kld(kv, value, rise, **more):
    return {"kind": "eval_kld", "model_name": "m", "weight_format": "f16", "path": "decode", "n_ctx": 64, "chunks": 2,
            "chunks_planned": 2, "kv": kv,
            "kv_k": {"bits_per_value": 4.5}, "kv_v": {"bits_per_value": 4.5}, "effective_bits_4k": 4.6,
            "kld": {"mean": {"value": value, "error": 0.1 * value}},
            "difference": {"value": rise, "error": 0.01}, "same_top": {"value": 0.9}, **HERE, **more}


def point(kv, bits, value, **more):
    return {"kind": "search_point", "model": "m", "uniform": False, "limit": f"bits <= {bits:g}", "kv": kv,
            "bits": bits, "predicted_kld": value,
            "kld": {"value": value, "error": 0.02 * value}, "line": {"value": 0.004, "error": 0.0001},
            "verdict": "PASS", "searched_on": "valid.txt", **HERE, **more}


def pair(kv, bits, value, **more):
    return point(kv, bits, value, **{"uniform": True, "limit": "", "line": {"value": None, "error": None},
                                     "verdict": "", **more})


def bandwidth(read, **more):
    return {"kind": "bandwidth", "kernel": "stream",
            "streams": [{"name": "read", "median_gb_s": read, "lower_quartile_gb_s": read, "upper_quartile_gb_s": read,
                         "max_gb_s": read * 1.1},
                        {"name": "copy", "median_gb_s": 9.0}], **HERE, **more}


def profile(parts, step_us, **more):
    return {"kind": "profile", "model": "m", "kv": "f16", "depth": 4, "phase": "decode", "step_us": step_us,
            "parts": parts, **HERE, **more}


PARTS = [{"name": "linear 64x32 q4_0", "op": "gemv", "us": 60.0, "flops": 1000, "read_bytes": 500, "write_bytes": 1,
          "bound": "memory"},
         {"name": "scores", "op": "attention", "us": 30.0}]
GOOD = [bandwidth(30.0), *[gemv("f16", b, 100.0) for b in (1, 2, 4)], gemv("q4_0", 1, 50.0), gemv("q4_0", 2, 100.0),
        gemv("q4_0", 4, 200.0), profile(PARTS, 100.0),
        step(10.0, "f16", 0), step(20.0, "q8_0", 0), kld("f16", 0.0, 0.0), kld("q4_0", 0.01, 0.3),
        kld("rotor-3", 0.001, 0.1),
        pair("rotor-3", 3.25, 0.004), pair("rotor-4", 4.25, 0.001), point("rotor-3;7:rotor-4", 3.5, 0.0015)]
# Each of these once broke something like this, or could.
HOSTILE = [
    {}, {"kind": None}, {"kind": 7}, {"kind": "op"}, {"kind": EVIL, "command": EVIL, "date": EVIL},
    {"n_gen": 1, "avg_ts": "fast"}, {"n_gen": 1, "avg_ts": None, "checked": True},
    gemv(EVIL, 1, 10.0, kernel=EVIL, cpu=EVIL, command=EVIL), gemv("f16", 1, 1.0, median_us=None),
    gemv("f16", 1, 1.0, median_us=-5.0), gemv("f16", 1, 1.0, median_us=10 ** 400),
    gemv("f16", 1, 1.0, median_us=math.inf),
    gemv("new_format", 1, 77.0, n_out=None), gemv("q8_0", 1, 5.0, flops=None, n_tokens=None),
    gemv("q8_0", 2, 5.0, read_bytes="many", lower_quartile_us=[], upper_quartile_us=0),
    step(5.0, EVIL, 0, model_filename=EVIL), step(5.0, "f16", -3), step(5.0, "q4_0", 1e300, samples_ts=[None, "x", -1]),
    step(0.0, "f16", 0),
    kld(EVIL, 0.1, None, model_name=EVIL), kld("p8", -0.1, 1e308), kld("p8", math.nan, 1.0),
    kld("q8_0", 1e-300, 0.0, kv_k=None, kv_v=[]), kld("f32", 1e300, 0.0),
    bandwidth(10.0, streams="none"), bandwidth(10.0, streams=[None, {}, {"name": 3, "median_gb_s": 4},
                                                              {"name": EVIL, "median_gb_s": 1e-9}], cpu=EVIL),
    bandwidth(10.0, rates=[{"number": "int8", "kernel": "vnni", "median_gop_s": 0.5},
                           {"number": "f16", "median_gop_s": None}, 4],
              caches=[{"name": "read-l1", "median_gb_s": 1e9}], cpu="Other"),
    pair(EVIL, 3.5, 0.1), point(EVIL, 3.5, -1, verdict=EVIL, limit=EVIL), point("rotor-3", 3.5, 1e300, kld=None),
    point("rotor-3", -1, 0.1), point("f16", 16, math.nan, line=[]),
    point("q8_0", 8.5, 0.0, model=EVIL, uniform="yes"),
    profile([{"name": EVIL, "op": EVIL, "us": 3.0}], 1.0, model=EVIL), profile([], 5.0), profile(PARTS, None),
    profile([{"us": 1e-9}], 1e9, depth=None), profile("parts", 4.0),
]


def lines(rows):
    return "".join(json.dumps(r) + "\n" for r in rows)


def run(*args, **environment):
    return subprocess.run([sys.executable, TOOL, *map(str, args)], capture_output=True, text=True,
                          env={**os.environ, **environment}, check=False)


class Page(html.parser.HTMLParser):
    """Collects script elements and everything that could load or run something."""

    def __init__(self):
        super().__init__()
        self.scripts, self.handlers, self.links = 0, [], []

    def handle_starttag(self, tag, attrs):
        self.scripts += tag == "script"
        for name, value in attrs:
            self.handlers += [name] * name.startswith("on")
            self.links += [value] * (name in ("src", "href", "xlink:href")
                                     and not str(value).startswith(("#", "data:,")))


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def rows(self, rows, name="rows.jsonl"):
        path = self.folder / name
        path.write_text(lines(rows) if not isinstance(rows, str) else rows)
        return path


class Drawn(InFolder):
    def report(self, rows):
        done = run("--results", self.rows(rows), "-o", self.folder / "out", "--json")
        if done.returncode == 6:
            self.skipTest("no matplotlib")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout), (self.folder / "out" / "index.html").read_text()

    def test_every_section_draws_and_the_page_holds_everything(self):
        said, text = self.report(GOOD)
        self.assertEqual(said["missing"], [])
        self.assertEqual(text.count("<svg "), len(sections.SECTIONS))
        for section in sections.SECTIONS:
            for suffix in (".csv", ".svg", ".png"):
                self.assertTrue((self.folder / "out" / (section.name + suffix)).stat().st_size > 50,
                                section.name + suffix)
        found = Page()
        found.feed(text)
        self.assertEqual((found.scripts, text.count("<script>"), found.handlers), (1, 1, []))
        self.assertEqual({link for link in found.links if not link.endswith(".csv")}, set())
        self.assertIn("q4_0 at 4.5 bits fails: perplexity +0.3 against f16", text)  # a loss stands where a win would

    def test_hostile_rows_neither_break_nor_get_in(self):
        for rows in (HOSTILE, GOOD + HOSTILE):
            said, text = self.report(rows)
            self.assertEqual(said["rows"], len(rows))
            found = Page()
            found.feed(text)
            self.assertEqual((found.scripts, found.handlers), (1, []))
            self.assertEqual(text.count("<script>"), 1)
            for svg in (self.folder / "out").glob("*.svg"):
                xml.etree.ElementTree.parse(svg)

    def test_without_rows_the_page_says_which_commands_make_them(self):
        said, text = self.report([{"kind": "note"}])
        self.assertEqual([m["section"] for m in said["missing"]], [s.name for s in sections.SECTIONS])
        for section in sections.SECTIONS:
            self.assertIn(page.esc(section.command), text)
        self.assertEqual(text.count("<svg "), 0)

    def test_what_an_earlier_report_left_does_not_stay(self):
        self.report(GOOD)
        self.report([bandwidth(5.0)])
        self.assertEqual({p.stem for p in (self.folder / "out").glob("*.svg")}, {"ceilings"})

    def test_figures_of_the_documents_follow_the_rows(self):
        rows, figures = self.rows(GOOD), self.folder / "figures"
        again = lambda *more: run("--results", rows, "--figures", figures, *more)
        first = again()
        if first.returncode == 6:
            self.skipTest("no matplotlib")
        drawn = {p.name: p.read_bytes() for p in figures.iterdir()}
        self.assertEqual(again().returncode, 0)
        self.assertEqual(drawn, {p.name: p.read_bytes() for p in figures.iterdir()})  # same rows, same bytes
        self.assertEqual(again("--check").returncode, 0)
        (figures / "batch.svg").write_bytes(drawn["batch.svg"].replace(b"#", b"#0", 1))
        self.assertIn("batch.svg", again("--check").stderr)
        again()
        self.rows([r for r in GOOD if r.get("kv") != "rotor-3" or r["kind"] != "eval_kld"]
                  + [kld("rotor-3", 0.002, 0.1)])
        stale = again("--check")
        self.assertEqual(stale.returncode, 1)
        self.assertIn("quality.csv, quality.svg (", stale.stderr)

    def test_without_matplotlib_it_ends_with_6_and_the_command(self):
        (self.folder / "matplotlib.py").write_text("raise ImportError('none')\n")
        done = run("--results", self.rows(GOOD), "-o", self.folder / "out", PYTHONPATH=str(self.folder),
                   RIDGE_REPORT_RETRIED="1")
        self.assertEqual(done.returncode, 6)
        self.assertIn("apt-get install --no-install-recommends python3-matplotlib", done.stderr)


def comparison(ratio, verdict):
    return {"verdict": verdict, "ratio": ratio, "ratio_low_95": ratio * 0.99, "ratio_high_95": ratio * 1.01,
            "noise": 0.01}


def gate(number, name, verdict, points=()):
    numbers = {"depths": [{"depth": depth, "comparison": comparison(ratio, said)} for depth, ratio,
                          said in points]} if points else {}
    return {"number": number, "name": name, "verdict": verdict, "why": f"why {number}", "numbers": numbers,
            "noise": 0.0, "rows": [], "commands": ["ridge decide -m m"]}


def record(**more):
    gates = [gate(1, "attention of 8/2/128 up to 4096", "PASS", [(2048, 0.98, "NO VERDICT"), (4096, 1.2, "FASTER")]),
             gate(3, "requests of 4096 + 1024 tokens", "FAIL", [(4096, 0.9, "SLOWER")]),
             gate(4, "quality token by token", "NO VERDICT")]
    found = {"path": "valid.txt", "points": [{"kv": "rotor-3;7:rotor-4", "kld_limit": 0.002, "bits_limit": 0,
                                              "bits": 3.5, "predicted": 0.0015, "kld": 0.0016,
                                              "kld_error": 1e-5, "line": 0.003, "line_error": 1e-5, "verdict": "PASS",
                                              "why": "", "rows": []}],
             "uniform": [{"kv": kv, "bits": bits, "predicted": kld, "kld": kld, "kld_error": 1e-5,
                          "verdict": "NO VERDICT"} for kv, bits, kld in
                         (("rotor-3", 3.25, 0.004), ("rotor-4", 4.25, 0.001))]}
    return {"format": "ridge-decision", "version": 2, "subject": {"model_path": "my model.gguf", "model_hash": "aa",
                                                                  "device": "cpu", "device_name": "Some CPU",
                                                                  "build": "abc"},
            "n_ctx": 4096, "n_sessions": 1, "thresholds": {},
            "candidates": [{"kv": "rotor-3", "gates": gates, "on": False, "from_depth": 0, "speedup": 0.9,
                            "why": "gate 3 FAIL"}],
            "search": found, "choice": "rotor-3;7:rotor-4", "from_depth": 2048, "sentence": "Use it.",
            "date": "2026-01-02T00:00:00Z", "command": "ridge decide", "xxh64": "0", **more}


class Decision(InFolder):
    def page(self, content):
        path = self.folder / "decision.json"
        path.write_text(json.dumps(content))
        done = run("--decision", path, "-o", self.folder / "out", "--json")
        if done.returncode == 6:
            self.skipTest("no matplotlib")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        found, html_text = Page(), (self.folder / "out" / "decision.html").read_text()
        found.feed(html_text)
        self.assertEqual((found.scripts, found.handlers, found.links), (0, [], []))
        return json.loads(done.stdout), html_text

    def test_the_page_says_what_to_use_what_to_type_and_why(self):
        said, text = self.page(record())
        self.assertEqual(said["figures"], ["decision", "search"])
        self.assertIn("<h1>Use rotor-3;7:rotor-4</h1>", text)
        self.assertIn("ridge run -m &#x27;my model.gguf&#x27; --kv-quant &#x27;rotor-3;7:rotor-4&#x27;   # from 2048 "
                      "tokens on", text)
        self.assertIn("<td><span class=good>PASS</span></td><td>why 1</td>", text)
        self.assertIn("<td><span class=bad>FAIL</span></td><td>why 3</td>", text)
        self.assertIn("run again, measures what is missing", text)
        self.assertIn("1 of 1 allocations lie below the line", text)
        self.assertEqual(text.count("<svg "), 2)

    def test_crossovers_are_the_comparisons_of_gates_1_to_3(self):
        found = decision.crossovers(record())
        self.assertEqual([(d["gate"], d["depth"], d["speedup"]) for d in found],
                         [(1, 2048, 0.98), (1, 4096, 1.2), (3, 4096, 0.9)])

    def test_a_record_without_times_or_a_search_has_a_page_too(self):
        said, text = self.page(record(candidates=[], search=None, choice="f16", from_depth=0))
        self.assertEqual(said["figures"], [])
        self.assertIn("Stay with f16", text)
        self.assertIn("No times are in this record", text)

    def test_hostile_records_neither_break_nor_get_in(self):
        evil = [gate(EVIL, EVIL, EVIL), gate(1, EVIL, "PASS", [(EVIL, 1, "FASTER"), (-1, 1, "FASTER"),
                                                               (64, math.inf, EVIL), (64, 2.0, EVIL)]), None, 7]
        for content in (record(subject=EVIL, sentence=EVIL, choice=EVIL,
                               candidates=[{"kv": EVIL, "gates": evil, "why": EVIL, "on": EVIL}, None]),
                        record(candidates="none", search=EVIL, n_ctx=EVIL, command=EVIL),
                        record(search={"points": [{"kv": EVIL, "bits": 3, "kld": 1}, 3], "uniform": EVIL})):
            _, text = self.page(content)
            self.assertNotIn("<script", text)

    def test_refuses_what_is_no_record(self):
        for content, said in (("{", "no JSON"), ("[]", "not a decision record"),
                              ('{"format": "ridge-decision", "version": 1}', "version 1"), ("[" * 100000, "no JSON")):
            path = self.folder / "r.json"
            path.write_text(content)
            done = run("--decision", path, "-o", self.folder / "out")
            self.assertEqual((done.returncode, said in done.stderr), (4, True), done.stderr)
        self.assertEqual(run("--decision", self.folder / "absent", "-o", self.folder / "out").returncode, 4)
        self.assertEqual(run("--decision", path, "--results", path, "-o", self.folder / "out").returncode, 2)


class Files(InFolder):
    def refused(self, *args):
        done = run(*args, "-o", self.folder / "out")
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertFalse((self.folder / "out").exists())
        return done.stderr

    def test_refuses_what_is_no_file_of_rows(self):
        self.assertIn("rows.jsonl: line 2: not a JSON object",
                      self.refused("--results", self.rows('{"kind":"op"}\n{"kind":')))
        self.assertIn("line 1: not a JSON object", self.refused("--results", self.rows("[" * 100000)))
        self.assertIn("No such file", self.refused("--results", self.folder / "absent"))

    def test_the_last_row_of_a_cell_counts(self):
        cell = lambda batch, us: {"cell": {"batch": batch, "op": "gemv"}, "median_us": us}
        rows = [cell(1, 5), {"kind": "bandwidth"}, cell(2, 6), {"cell": {"op": "gemv", "batch": 1}, "median_us": 7},
                {"kind": "bandwidth"}]
        found = reader.read_all([self.rows(rows)])
        self.assertEqual([r.get("median_us", r.get("kind")) for r in found], [7, "bandwidth", 6, "bandwidth"])

    def test_usage_is_2(self):
        self.assertEqual(run("-o", self.folder).returncode, 2)
        self.assertEqual(run("--results", self.folder).returncode, 2)


class Data(unittest.TestCase):
    def test_speed_up_is_of_medians_its_interval_from_quartile_to_quartile(self):
        found = {d["x"]: d for d in regime.batch_data(GOOD)}
        self.assertEqual([round(found[b]["speedup"], 6) for b in (1, 2, 4)], [2.0, 1.0, 0.5])
        self.assertEqual([found[b]["verdict"] for b in (1, 2, 4)], ["faster", "undecided", "slower"])
        self.assertAlmostEqual(found[1]["speedup_lower"], 99 / 50.5)
        self.assertAlmostEqual(found[1]["speedup_upper"], 101 / 49.5)
        line = [found[b] for b in (1, 2, 4)]
        self.assertEqual([d["x"] for d in regime.crossing(line)], [1, 4])
        self.assertEqual(regime.words("q4_0", line, "batch"),
                         "q4_0 is faster than f16 up to batch 1 (2.00x) and slower from 4 (0.50x)")
        self.assertIsNone(regime.crossing(line[:2]))

    def test_faster_rows_need_their_f16(self):
        self.assertEqual(regime.batch_data([gemv("q4_0", 1, 5.0)]), [])
        self.assertEqual(regime.batch_data([gemv("q4_0", 1, 5.0), gemv("f16", 1, 5.0, n_threads=3)]), [])

    def test_failed_unchecked_and_timeless_rows_are_in_no_figure_and_counted(self):
        bad = [gemv("f16", 1, 5.0, checked=False), gemv("f16", 1, 5.0, checked=None),
               gemv("f16", 1, 1.0, median_us=None), {**gemv("f16", 1, 1.0, median_us=None), "state": "skipped",
                                                     "reason": "memory"},
               {**gemv("f16", 1, 5.0), "state": "failed"}, step(5.0, "f16", 0, checked=False)]
        self.assertEqual(ops.data(bad) + decode.data(bad), [])
        self.assertEqual([n for n, _ in claims.left_out(bad)], [1, 3, 1, 1])
        self.assertEqual(claims.result(bad[3]), "skipped: memory")
        self.assertTrue(claims.result(bad[4]).startswith("FAILED"))

    def test_a_row_without_its_shape_batch_or_depth_takes_no_other_rows_place(self):
        bad = [gemv("f16", 1, 5.0, n_tokens=None), gemv("f16", 1, 5.0, n_out=None), step(5.0, "f16", -3),
               step(5.0, "f16", None), bandwidth(1.0, streams=[])]
        for found in (ops.data, decode.data, machine.data):
            self.assertEqual(found(GOOD + bad), found(GOOD))

    def test_the_newest_row_of_a_cell_counts_wherever_it_stands(self):
        old, new = gemv("f16", 1, 5.0, date="2026-01-01T00:00:00Z"), gemv("f16", 1, 7.0, date="2026-01-03T00:00:00Z")
        for rows in ([old, new], [new, old]):
            self.assertEqual([d["median_us"] for d in ops.data(rows)], [7.0])

    def test_what_a_control_differs_by_is_noise(self):
        a, b = gemv("f16", 1, 100.0, cell={"batch": 1}), gemv("q4_0", 1, 90.0, cell={"batch": 1})
        control = gemv("f16", 1, 80.0, cell={"batch": 1, "control": True}, date="2026-02-02T00:00:00Z")
        self.assertEqual([d["verdict"] for d in regime.batch_data([a, b])], ["faster"])
        self.assertEqual([(d["verdict"], d["base_us"]) for d in regime.batch_data([a, control, b])],
                         [("undecided", 100.0)])
        self.assertEqual([d["verdict"] for d in regime.batch_data([a, {**control, "build_commit": "other"}, b])],
                         ["faster"])

    def test_a_format_is_its_fastest_kernel_and_baselines_stay_apart(self):
        found = ops.best_kernels(ops.data([gemv("q4_0", 1, 9.0, kernel="slow"), gemv("q4_0", 1, 5.0),
                                           gemv("q4_0", 1, 1.0, kernel="two-op")]))
        self.assertEqual({d["series"]: d["median_us"] for d in found}, {"q4_0": 5.0, "q4_0 (two-op)": 1.0})

    def test_parts_and_gaps_add_up_to_the_step(self):
        found = attribution.data([profile(PARTS, 100.0)])
        self.assertEqual([(d["op"], d["us"]) for d in found], [("gemv", 60.0), ("attention", 30.0), ("gaps", 10.0)])
        self.assertAlmostEqual(sum(d["share_of_step"] for d in found), 1)
        over = attribution.data([profile(PARTS, 80.0)])  # parts that overlap are shown as they are, not scaled to fit
        self.assertEqual([d["op"] for d in over], ["gemv", "attention"])
        self.assertIn("add up to 112.5 %", attribution.sentence(over))

    def test_the_bandwidth_is_the_best_read_of_memory(self):
        found = machine.data([bandwidth(30.0, caches=[{"name": "read-l2", "median_gb_s": 500.0}],
                                        rates=[{"number": "f32", "kernel": "avx2", "median_gop_s": 90.0}])])
        self.assertAlmostEqual(machine.read_bandwidth(found), 33.0)
        self.assertEqual([(d["ceiling"], d["unit"]) for d in found[2:]], [("read-l2", "GB/s"), ("f32 avx2", "Gop/s")])
        self.assertIsNone(machine.read_bandwidth([]))

    def test_quality_shows_finished_caches_without_options_and_prefers_the_decode_path(self):
        found = quality.data([kld("q4_0", 0.5, 0.3), kld("q4_0", 0.4, 0.3, path="prefill"),
                              kld("q4_0:hadamard", 0.1, 0.0), kld("p8", 0.1, 0.1, chunks=1),
                              kld("rotor-3/rotor-3", 0.002, 0.2), kld("rotor-4", 0.002, 0.24), kld("i8r", 0.3, None)])
        self.assertEqual([(d["kv"], d["kld"], d["gate"]) for d in found],
                         [("q4_0", 0.5, "FAIL"), ("rotor-3", 0.002, "pass"), ("rotor-4", 0.002, "no verdict"),
                          ("i8r", 0.3, "")])

    def test_quality_takes_speed_from_the_deepest_place_where_f16_was_measured(self):
        found = quality.data([kld("q4_0", 0.5, 0.3), step(10.0, "f16", 100), step(15.0, "q4_0", 100),
                              step(99.0, "q4_0", 200), step(10.0, "f16", 0)])
        self.assertEqual((found[0]["tok_s"], found[0]["tok_s_depth"], found[0]["tok_s_vs_f16"]), (15.0, 100, 1.5))

    def test_quality_settles_a_draw_of_models_by_name(self):
        models = "abcdefghijklmnopqrstuvwxyz"  # in any other order one in 26 passes
        found = quality.data([kld("f16", 0.0, 0.0), *[step(10.0, "f16", 100, model_filename=m) for m in models]])
        self.assertEqual(found[0]["tok_s_model"], "z")

    def test_search_has_the_newest_row_of_each_limit_and_pair(self):
        found = search.data([pair("rotor-3", 3.25, 0.004), point("a", 3.5, 0.002, date="2026-01-01T00:00:00Z"),
                             point("b", 3.5, 0.001), point("c", 3.75, 0.1, kld=None)])
        self.assertEqual([(d["kv"], d["uniform"]) for d in found], [("rotor-3", 1), ("b", 0)])
        self.assertIn("1 of 1 allocations lie below the line", search.sentence(found))
        self.assertIn("0 of 1 allocations",
                      search.sentence(search.data([pair("rotor-3", 3.25, 0.004),
                                                   point("a", 3.5, 0.005, verdict="FAIL")])))

    def test_findings_put_losses_beside_wins(self):
        rows = GOOD + [gemv("i2_s", b, 300.0) for b in (1, 2)]
        found = page.findings({s.name: s.data(rows) for s in sections.SECTIONS})
        self.assertTrue(any(t.startswith("i2_s is slower") for t in found["loss"]))
        self.assertTrue(any(t.startswith("q4_0 at 4.5 bits fails") for t in found["loss"]))
        self.assertTrue(any(t.startswith("q8_0 is faster") for t in found["win"]))
        self.assertTrue(any("slower from 4" in t for t in found["open"]))

    def test_numbers_for_people(self):
        self.assertEqual([reader.amount(x) for x in (None, 0.0, 33.97, 1234.4, 0.00434, 5.2e-05)],
                         ["?", "0", "34", "1234", "0.00434", "5.20e-05"])
        self.assertEqual([reader.rate(x) for x in (0.5, 370, 1450, 1.6e6)],
                         ["500 Mop/s", "370 Gop/s", "1.45 Top/s", "1.6 Pop/s"])
        self.assertEqual(reader.quartiles([4.0, 1.0, 3.0, 2.0]), (1.75, 2.5, 3.25))


if __name__ == "__main__":
    unittest.main()
