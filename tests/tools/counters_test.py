"""tools/counters.py: what becomes of the lines that Nsight Compute prints."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import counters

HEAD = (
    '"ID","Kernel Name","dram__bytes_read.sum","gpu__time_duration.sum",'
    '"sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active",'
    '"smsp__average_warps_issue_stalled_wait_per_issue_active.ratio",'
    '"smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"')
UNITS = '"","","byte","ns","%","",""'


class Counters(unittest.TestCase):
    def rows(self, *lines):
        return counters.rows_of("==PROF== Connected\n" + "\n".join(lines), "what", "abc", ["ridge", "bench"])

    def test_a_kernel_is_a_row(self):
        kernel = "void ridge::<unnamed>::attn_split_kernel<(int)128>(Args)"
        row, = self.rows(HEAD, UNITS, f'"0","{kernel}","1,048,576","38272","51.1","1","3"')
        self.assertEqual(row["kernel"], "attn_split_kernel")
        self.assertEqual((row["label"], row["build_commit"], row["command"]), ("what", "abc", "ridge bench"))
        self.assertEqual((row["dram_read_bytes"], row["us"]), (1048576, 38.272))
        self.assertEqual(row["pipe_pct"], {"alu": 51.1})
        self.assertEqual(row["stall_pct"], {"long_scoreboard": 75, "wait": 25})
        self.assertIsNone(row["l2_hit_pct"])

    def test_names_without_templates(self):
        row, = self.rows(HEAD, UNITS, '"0","route_kernel(ridge::ExpertChoice)","1","1","1","1","1"')
        self.assertEqual(row["kernel"], "route_kernel")

    def test_no_kernel_is_no_row(self):
        self.assertEqual(self.rows("==ERROR== ERR_NVGPUCTRPERM"), [])

    def test_rows_never_join_a_cut_line(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "rows.jsonl")
            counters.append(path, [{"a": 1}])
            counters.append(path, [{"b": 2}])
            self.assertEqual(path.read_text(), '{"a":1}\n{"b":2}\n')
            path.write_text('{"a":1}\n{"b":')
            with self.assertRaises(SystemExit):
                counters.append(path, [{"c": 3}])
            self.assertEqual(path.read_text(), '{"a":1}\n{"b":')


if __name__ == "__main__":
    unittest.main()
