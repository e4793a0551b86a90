"""scripts/eval-texts: the same bytes each time, long enough, conversations that templates take."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
LOADER = importlib.machinery.SourceFileLoader("eval_texts", str(ROOT / "scripts" / "eval-texts"))
eval_texts = importlib.util.module_from_spec(importlib.util.spec_from_loader("eval_texts", LOADER))
LOADER.exec_module(eval_texts)


class EvalTexts(unittest.TestCase):
    def written(self):
        with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(eval_texts.main([name]), 0)
            return {path.name: path.read_text() for path in pathlib.Path(name).iterdir()}

    def test_texts_are_the_same_each_time_and_long_enough(self):
        first = self.written()
        self.assertEqual(first, self.written())
        self.assertEqual(sorted(first), ["chat.jsonl", "code.txt", "lists.txt"])
        for name, text in first.items():
            self.assertTrue(150_000 <= len(text.encode()) <= 400_000, (name, len(text)))
            self.assertTrue(text.endswith("\n"), name)

    def test_turns_alternate_behind_at_most_one_system_message(self):
        for line in eval_texts.chats().splitlines():
            roles = [message["role"] for message in json.loads(line)["messages"]]
            if roles[0] == "system":
                roles.pop(0)
            self.assertEqual(roles, ["user", "assistant"] * (len(roles) // 2))
            self.assertGreater(len(roles), 0)

    def test_lists_of_every_kind_are_there(self):
        words = eval_texts.Words(3)
        for kind in eval_texts.LISTS:
            self.assertGreater(len(kind(words).splitlines()), 2, kind.__name__)
        self.assertIsInstance(json.loads(eval_texts.json_list(words)), list)

    def test_wrong_arguments_are_refused(self):
        with contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(eval_texts.main(["a", "b"]), 2)


if __name__ == "__main__":
    unittest.main()
