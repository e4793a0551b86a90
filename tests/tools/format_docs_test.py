"""format_docs.py: pages follow the headers and the reported facts, and disagreement is an error."""
import copy
import importlib.util
import pathlib
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "format_docs.py"
spec = importlib.util.spec_from_file_location("format_docs", TOOL)
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)

WEIGHT = """// w1: one byte.
//
// value = q * 2:
//   bits 0..7  q
//
// Source: here.
#pragma once
#include "format/both.h"
struct W1 {
  struct Block {
    uint8_t q[1];
  };
  static constexpr const char* kName = "w1";
};
"""
SHARED = "// What is shared.\n#pragma once\n"
KV = '// KV k1: bytes.\n#pragma once\nstruct K1 { kName = "k1"; };\n'
FACTS = {
    "weights": [{"name": "w1", "bits_per_weight": 8.0, "group": 1, "block_bytes": 1, "tail_bytes": 0, "gguf_type": None,
                 "safetensors_dtype": None, "written": True, "checked": False}],
    "kv": [{"name": "k1", "group": 1, "row_bytes": {"128": 130}, "scales": ["absmax"], "scale_per_head": False,
            "can_weigh": False,
            "policy": {"rotation": "none", "centre": False, "window": 32, "recent": "f16", "sinks": 4,
                       "scale": "absmax", "rounding": "nearest"},
            "shapes": [{"shape": "s", "n_layers": 2, "n_kv_heads": 3, "head_dim": 128, "bytes_per_token": 1560,
                        "fixed_bytes": 7}]}],
}


def pages(facts=FACTS, **files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in {"w1": WEIGHT, "both": SHARED, "kv_k1": KV, **files}.items():
            pathlib.Path(folder, name + ".h").write_text(text, encoding="utf-8")
        return tool.pages(pathlib.Path(folder), facts)


class FormatDocs(unittest.TestCase):
    def test_a_page_holds_the_comment_the_block_the_facts_and_what_is_shared(self):
        page = pages()["weights.md"]
        self.assertIn("| `w1` | 8 | 1 | 1 | - | - | yes | no | 0 |", page)
        self.assertIn("value = q \\* 2:\n\n```text\nbits 0..7  q\n```\n\nSource: here.", page)
        self.assertIn("```cpp\nstruct Block {\n  uint8_t q[1];\n};\n```", page)
        self.assertIn("## both.h\n\nWhat is shared.", page)
        self.assertIn("| `k1` | none | no | 32 in f16 | 4 | absmax | nearest |", pages()["kv.md"])
        self.assertIn("| `k1` | 1560 |", pages()["kv.md"])

    def test_a_change_of_comment_or_fact_changes_the_page(self):
        self.assertNotEqual(pages()["weights.md"], pages(w1=WEIGHT.replace("here", "there"))["weights.md"])
        facts = copy.deepcopy(FACTS)
        facts["kv"][0]["policy"]["window"] = 64
        self.assertNotEqual(pages()["kv.md"], pages(facts)["kv.md"])

    def test_refuses_a_report_that_is_not_the_formula(self):
        facts = copy.deepcopy(FACTS)
        facts["kv"][0]["shapes"][0]["bytes_per_token"] += 1
        with self.assertRaisesRegex(SystemExit, "1561 bytes per token, the formula says 1560"):
            pages(facts)

    def test_refuses_a_format_without_header_row_or_comment(self):
        with self.assertRaisesRegex(SystemExit, "disagree about k1"):
            pages(kv_k1="// nothing\n")
        with self.assertRaisesRegex(SystemExit, "disagree about w2"):
            pages(w2=WEIGHT.replace("w1", "w2"))
        with self.assertRaisesRegex(SystemExit, "w1.h: no comment"):
            pages(w1=WEIGHT[WEIGHT.index("#pragma"):])


if __name__ == "__main__":
    unittest.main()
