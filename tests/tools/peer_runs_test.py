"""tools/peer_runs.py: two engines in turns, their rows and ratios."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "peer_runs.py"
BENCH = """#!/bin/sh
echo "$0 $*" >> "$(dirname "$0")/calls"
echo '{{"model_filename": "m.gguf", "n_prompt": 0, "n_gen": 64, "n_depth": 0, "avg_ts": {speed}}}'
exit {code}
"""


class PeerRuns(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def program(self, name, speed, code=0):
        path = pathlib.Path(self.folder.name, name)
        path.write_text(BENCH.format(speed=speed, code=code))
        path.chmod(0o755)
        return str(path)

    def run_tool(self, *words):
        return subprocess.run([sys.executable, TOOL, *words], capture_output=True, text=True, check=False)

    def test_engines_take_turns_with_the_same_tests(self):
        ours, theirs = self.program("ridge", 300), self.program("bench", 200)
        done = self.run_tool("--rounds", "3", "-t", "2", "--peer", "ik", "--peer-options", "-rtr 1", ours, theirs,
                             "m.gguf")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([r["engine"] for r in rows], ["ridge", "ik"] * 3)
        self.assertEqual([r["round"] for r in rows], [0, 0, 1, 1, 2, 2])
        self.assertIn("-rtr 1", rows[1]["command"])
        self.assertTrue(all(r["peer"] == "ik" and "load_1min" in r and "checked" in r for r in rows))
        self.assertFalse(any(self.folder.name in r["command"] for r in rows), "paths of one machine stay out of rows")
        self.assertIn("1.50x (1.50 to 1.50)", done.stderr)
        calls = pathlib.Path(self.folder.name, "calls").read_text().splitlines()
        self.assertIn("-p 512 -n 64 -d 0 -t 2 -r 1", calls[0])
        self.assertIn("-p 512 -n 64 -d 0 -t 2 -r 1", calls[1])

    def test_a_peer_without_depth_gets_its_own_words(self):
        ours, theirs = self.program("ridge", 300), self.program("bench", 200)
        self.assertEqual(self.run_tool("--rounds", "1", "--gp", "-p", "0", "-n", "32", "-d", "4096", "-t", "2", ours,
                                       theirs, "m.gguf").returncode, 0)
        calls = pathlib.Path(self.folder.name, "calls").read_text().splitlines()
        self.assertIn("-n 32 -d 4096", calls[0])
        self.assertIn("-n 0 -gp 4096,32", calls[1])

    def test_an_engine_that_fails_ends_the_tool_and_is_named(self):
        done = self.run_tool(self.program("ridge", 1), self.program("bench", 1, code=3), "m.gguf")
        self.assertEqual(done.returncode, 1)
        self.assertIn("exit 3", done.stderr)

    def test_missing_words_print_the_usage(self):
        done = self.run_tool("ridge", "bench")
        self.assertEqual(done.returncode, 2)
        self.assertIn("LLAMA_BENCH", done.stdout)


if __name__ == "__main__":
    unittest.main()
