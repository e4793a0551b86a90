"""tools/merge_rows.py: which rows a new one replaces."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "merge_rows.py"


class MergeRows(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.new, self.stored = (pathlib.Path(self.folder.name, name) for name in ("new.jsonl", "stored.jsonl"))

    def write(self, path, rows):
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))

    def merge(self, stored, new):
        self.write(self.stored, stored)
        self.write(self.new, new)
        subprocess.run([sys.executable, TOOL, self.new, self.stored], check=True, capture_output=True)
        return [json.loads(line) for line in self.stored.read_text().splitlines()]

    def test_a_row_replaces_that_of_the_same_measurement_only(self):
        old = [{"kind": "eval_kld", "model_name": "m", "kv": kv, "build_commit": "1"} for kv in ("f16", "rotor-3")]
        new = [{"kind": "eval_kld", "model_name": "m", "kv": "rotor-3", "build_commit": "2"}]
        self.assertEqual(self.merge(old, new), [old[0], new[0]])

    def test_cells_are_the_same_whichever_build_measured_them(self):
        row = lambda batch, build: {"kind": "op", "cell": {"batch": batch, "build": build}}
        self.assertEqual(self.merge([row(1, "a"), row(2, "a")], [row(2, "b")]), [row(1, "a"), row(2, "b")])

    def test_of_new_rows_of_a_cell_the_last_one_counts(self):
        row = lambda batch, state: {"kind": "op", "cell": {"batch": batch}, "state": state}
        self.assertEqual(self.merge([], [row(1, "failed"), row(2, ""), row(1, "")]), [row(1, ""), row(2, "")])
        self.assertEqual([path.name for path in pathlib.Path(self.folder.name).iterdir() if path.name not
                          in ("new.jsonl", "stored.jsonl")], [])

    def test_sums_over_ranks_differ_by_kernel_ranks_and_bytes(self):
        row = lambda kernel, n, size, build: {"kind": "collective", "kernel": kernel, "n_ranks": n, "bytes": size,
                                              "build_commit": build}
        old = [row("nccl", 2, 4096, "a"), row("one-shot", 2, 4096, "a"), row("nccl", 4, 4096, "a"),
               row("nccl", 2, 8192, "a")]
        self.assertEqual(self.merge(old, [row("nccl", 2, 4096, "b")]), [*old[1:], row("nccl", 2, 4096, "b")])

    def test_a_model_on_gpus_differs_by_card_number_and_stages(self):
        row = lambda device, build, **ranks: {"kind": "decode", "model_filename": "m", "n_gen": 64,
                                              "gpu_info": device.split(" ", 1)[1], "device": device,
                                              "build_commit": build, **ranks}
        old = [row("cuda:0 H200", "a"), row("cuda:0,1 H200", "a"), row("cuda:0,1 H200", "a", pp=2),
               row("cuda:0 H100", "a"), row("cuda:0 H200", "a", n_ranks=2)]
        self.assertEqual(self.merge(old, [row("cuda:0 H200", "b")]), [*old[1:], row("cuda:0 H200", "b")])

    def test_counters_differ_by_the_label_of_their_kernel(self):
        row = lambda label, build: {"kind": "counters", "label": label, "build_commit": build}
        old = [row("GEMV 1", "a"), row("GEMV 2", "a")]
        self.assertEqual(self.merge(old, [row("GEMV 1", "b")]), [old[1], row("GEMV 1", "b")])

    def test_a_model_counts_by_its_name_and_not_its_place(self):
        row = lambda place: {"kind": "profile", "model": place, "model_name": "m", "depth": 0}
        self.assertEqual(self.merge([row("a/m")], [row("b/m")]), [row("b/m")])

    def test_a_damaged_file_is_refused_and_left_alone(self):
        self.stored.write_text("{}\nnonsense\n")
        self.write(self.new, [{}])
        done = subprocess.run([sys.executable, TOOL, self.new, self.stored], check=False, capture_output=True,
                              text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("stored.jsonl: line 2", done.stderr)
        self.assertEqual(self.stored.read_text(), "{}\nnonsense\n")


if __name__ == "__main__":
    unittest.main()
