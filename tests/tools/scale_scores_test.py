"""models/scale_scores.py: the weights of q_norm are multiplied, and nothing else changes."""
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT, MODEL = ROOT / "models" / "scale_scores.py", ROOT / "models" / "ridge-gemma4-bf16.gguf"


def run(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True)


class ScaleScores(unittest.TestCase):
    def test_only_weights_of_q_norm_change(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "out.gguf"
            done = run(MODEL, out, 4)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("queries of 8 layers times 4", done.stdout)
            before, after = MODEL.read_bytes(), out.read_bytes()
        self.assertEqual(len(before), len(after))
        words = [i for i in range(0, len(before), 4) if before[i:i + 4] != after[i:i + 4]]
        self.assertEqual(len(words), 6 * 64 + 2 * 128)  # a weight for each value of a head
        for i in words:
            self.assertEqual(struct.unpack_from("<f", after, i)[0], 4 * struct.unpack_from("<f", before, i)[0])

    def test_models_without_the_norm_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run(ROOT / "models" / "stories260K.gguf", pathlib.Path(folder) / "out.gguf", 2)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("no attn_q_norm.weight", done.stderr)


if __name__ == "__main__":
    unittest.main()
