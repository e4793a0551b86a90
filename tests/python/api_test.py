#!/usr/bin/env python3
"""The Python package over the built library. Usage: api_test.py PROGRAM_OF_C_TESTS MODELS (api | numpy | doctest)

RIDGE_LIBRARY names the library. `numpy` and `doctest` exit 77 where numpy is missing.
"""
import ctypes
import doctest
import importlib.util
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

TREE = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TREE / "python"))

import ridge  # noqa: E402
from ridge import _batch, _library, _model  # noqa: E402

C_TESTS, MODELS = sys.argv[1], pathlib.Path(sys.argv[2])
TINY, REFERENCE = str(MODELS / "stories260K.gguf"), MODELS / "ridge-ref-q8_0.gguf"
PROMPT = "Once upon a time"


def tiny(**options):
    return ridge.Model(TINY, threads=1, **options)


class Api(unittest.TestCase):
    def test_structs_and_functions_are_those_of_the_header(self):
        sizes = dict(line.split() for line in subprocess.check_output([C_TESTS, "sizes"], text=True).splitlines())
        ours = {"ridge_text": _library.Text, "ridge_tokens": _library.TokenBuffer}
        ours |= {one.__doc__: one for one in vars(_library).values()
                 if isinstance(one, type) and issubclass(one, ctypes.Structure)
                 and (one.__doc__ or "").startswith("ridge_")}
        self.assertEqual({name: int(size) for name, size in sizes.items()},
                         {name: ctypes.sizeof(one) for name, one in ours.items()})
        header = (TREE / "include/ridge/ridge.h").read_text()
        declared = re.findall(r"^ridge_status ridge_(\w+)\(([^;]*)\);", header, re.M)
        arguments = {name: len(of.split(",")) for name, of in declared}
        for name, types in _library.CALLS.items():
            self.assertEqual(arguments[name], len(types), name)

    def test_the_library_exports_what_the_header_declares(self):
        header = re.sub(r"//.*", "", (TREE / "include/ridge/ridge.h").read_text())
        declared = set(re.findall(r"\b(ridge_\w+)\(", header))
        names = subprocess.check_output(["nm", "-D", "--defined-only", _library.library_path()], text=True)
        exported = {line.split()[-1].split("@")[0] for line in names.splitlines()} - {"RIDGE_1"}
        self.assertEqual(declared, exported)

    def test_texts_and_streams_are_equal(self):
        with tiny() as model:
            for options in ({"temperature": 0}, {"seed": 3, "temperature": 0.9, "repeat_penalty": 1.2}):
                result = model.generate(PROMPT, 50, **options)
                self.assertEqual("".join(model.stream(PROMPT, 50, **options)), result.text)
                self.assertEqual(len(result.tokens), 50)
                self.assertEqual(result.stop, "token limit")

    def test_long_prompts_are_read_in_pieces(self):
        text = "The history of the city. " * 400
        with ridge.Model(REFERENCE, threads=2, n_ctx=4096) as model:
            tokens, seen = model.tokenize(text), []
            result = model.generate(text, 5, temperature=0, on_progress=lambda *at: seen.append(at))
            self.assertEqual(result.n_prompt, len(tokens))
            self.assertEqual(seen[0], (512, len(tokens)))
            session = model.session(n_ubatch=len(tokens))
            _library.call("prefill", session._open, _model._ids(tokens), len(tokens), None)
            whole = session.generate([], 5, temperature=0)
            self.assertEqual(whole.tokens, result.tokens)

    def test_stops(self):
        with tiny() as model:
            text = model.generate(PROMPT, 40, temperature=0).text
            result = model.generate(PROMPT, 40, temperature=0, stop=text[20:24])
            self.assertEqual((result.text, result.stop), (text[:20], "stop string"))
            heard = []
            result = model.generate(PROMPT, 40, temperature=0, on_text=lambda piece: len(heard.append(piece) or heard)
                                    < 3)
            self.assertEqual((result.stop, len(heard)), ("interrupted", 3))
            self.assertEqual(model.generate(PROMPT, temperature=0, ignore_end=True).stop, "context full")
            with self.assertRaises(ZeroDivisionError):
                model.generate(PROMPT, 40, on_text=lambda piece: 1 / 0)

    def test_chat(self):
        with tiny() as model:
            messages = [{"role": "user", "content": "Tell a story"}]
            self.assertIn("User: Tell a story", model.detokenize(model.chat_prompt(messages)))
            self.assertIn("<|im_start|>user", model.detokenize(model.chat_prompt(messages, chat_template="chatml")))
            self.assertNotIn("\nUser:", model.chat(messages, 80, temperature=0).text)
            with self.assertRaisesRegex(ridge.UsageError, "role"):
                model.chat([{"content": "x"}])

    def test_state(self):
        with tiny(kv="i8r") as model, tempfile.TemporaryDirectory() as folder:
            first, second = model.session(), model.session()
            first.generate(PROMPT, 30, temperature=0)
            state = pathlib.Path(folder) / "state"
            first.save(state)
            second.load(state)
            self.assertEqual(second.n_past, first.n_past)
            third = model.session()
            third.copy_from(first)
            texts = [one.generate(" The end", 10, temperature=0).text for one in (first, second, third)]
            self.assertEqual(texts[0], texts[1])
            self.assertEqual(texts[0], texts[2])
            first.truncate(5)
            self.assertEqual(first.n_past, 5)
            self.assertLess(first.kv_info["k_bits"], 16)
            with self.assertRaisesRegex(ridge.BadFileError, "state"):
                model.session(kv="f16").load(state)

    def test_errors(self):
        with self.assertRaisesRegex(ridge.BadFileError, "no/such.gguf"):
            ridge.Model("no/such.gguf")
        with self.assertRaises(ridge.NoDeviceError):
            tiny(device="cuda:99")
        model = tiny()
        for place in ({"n_cpu_moe": 1}, {"moe_device_gib": 2.0}, {"moe_cache_gib": 1.0}):
            with self.assertRaisesRegex(ridge.UsageError, "on the CPU all experts"):
                ridge.Model("synth:tiny-experts@weights=f32", threads=1, **place)
        with self.assertRaisesRegex(ridge.UsageError, "rotor-99"):
            model.session(kv="rotor-99")
        with self.assertRaisesRegex(TypeError, "temprature"):
            model.generate(PROMPT, temprature=1)
        with self.assertRaisesRegex(ridge.RidgeError, "context full"):
            model.generate([1] * 200)
        model.close()
        model.close()
        with self.assertRaisesRegex(ridge.UsageError, "closed"):
            model.tokenize("x")
        self.assertTrue(issubclass(ridge.UsageError, ValueError))

    def test_kld(self):
        with tiny() as model:
            text, seen = "Once upon a time there was a little girl. " * 40, []
            f16, i8r = model.kld(text, ["f16", "i8r"], n_ctx=64, max_chunks=3, on_progress=lambda *at: seen.append(at))
            self.assertEqual((f16.kld, f16.bits), (0, 16))
            self.assertTrue(0 < i8r.kld < 0.1 and i8r.bits < 16)
            self.assertEqual(seen[-1][0], seen[-1][1])
            with self.assertRaises(ridge.StoppedError):
                model.kld(text, "f16", n_ctx=64, on_progress=lambda *_: False)

    def test_ctrl_c_stops_a_generation_and_other_threads_run(self):
        with ridge.Model(REFERENCE, threads=1) as model:
            count, ended = [0], threading.Event()

            def others():
                while not ended.wait(0.001):
                    count[0] += 1

            thread = threading.Thread(target=others)
            thread.start()
            def later(seconds):
                threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT)).start()

            try:
                later(0.3)
                with self.assertRaises(KeyboardInterrupt):
                    model.generate("The history", ignore_end=True)
                self.assertGreater(count[0], 20)
                later(0.2)
                with self.assertRaises(KeyboardInterrupt):
                    for _ in model.stream("The history", ignore_end=True):
                        pass
                later(0.3)
                with self.assertRaises(KeyboardInterrupt):
                    model.kld("The history of the city. " * 4000, "q8_0")
            finally:
                ended.set()
                thread.join()
            self.assertEqual(model.generate("The", 3).stop, "token limit")


    def test_threads_share_a_model(self):
        with tiny() as model:
            alone = model.session().generate(PROMPT, 60, temperature=0).text
            found = []
            generate = lambda: found.append(model.session().generate(PROMPT, 60, temperature=0).text)
            threads = [threading.Thread(target=generate)
                       for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(found, [alone] * 4)


class Numpy(unittest.TestCase):
    def test_logits_are_views(self):
        import numpy
        with tiny() as model:
            session, sampler = model.session(), ridge.Sampler(model, temperature=0)
            row = session.prefill(PROMPT)
            self.assertEqual((row.dtype, row.shape), (numpy.float32, (model.info.vocab_size,)))
            self.assertFalse(row.flags.owndata or row.flags.writeable)
            tokens = []
            for _ in range(8):
                tokens.append(sampler.sample(row))
                row = session.decode(tokens[-1])
            self.assertEqual(tokens, model.generate(PROMPT, 8, temperature=0).tokens)
            with self.assertRaisesRegex(ridge.UsageError, "shape"):
                sampler.sample(row[:7])

    def test_a_batch_gives_what_sessions_give(self):
        import numpy
        texts = {2: PROMPT, 0: "The cat"}
        with tiny() as model, ridge.Batch(model, 3) as batch:
            alone = [numpy.array(model.logits(text)) for text in texts.values()]
            rows = batch.step(texts)
            self.assertFalse(rows.flags.owndata or rows.flags.writeable)
            numpy.testing.assert_array_equal(rows, alone)
            n = len(model.tokenize(PROMPT))
            self.assertEqual([batch.n_past(one) for one in range(3)], [len(model.tokenize("The cat")), 0, n])
            batch.truncate(2, n - 1)
            numpy.testing.assert_array_equal(batch.step({2: model.tokenize(PROMPT)[-1:]})[0], alone[0])
            for wrong in ({3: PROMPT}, {0: []}, {}):
                with self.assertRaises(ridge.UsageError):
                    batch.step(wrong)

    def test_rows_of_all_tokens(self):
        import numpy
        with tiny() as model:
            n = len(model.tokenize(PROMPT))
            session = model.session(n_ubatch=2)
            rows = session.all_logits(PROMPT)
            self.assertEqual(rows.shape, (n, model.info.vocab_size))
            numpy.testing.assert_array_equal(rows[-1], model.logits(PROMPT))
            session.reset()
            self.assertEqual(session.hidden(PROMPT).shape, (n, model.info.d_model))
            for pooling in ("mean", "last"):
                self.assertAlmostEqual(float(numpy.linalg.norm(model.embed(PROMPT, pooling))), 1, places=5)
            with self.assertRaises(ridge.UsageError):
                model.embed(PROMPT, "max")


def run_doctests():
    failed = 0
    with tiny() as model:
        for module in (ridge, _batch, _model):
            failed += doctest.testmod(module, extraglobs={"MODEL": TINY, "model": model, "ridge": ridge}).failed
    return failed


if __name__ == "__main__":
    if sys.argv[3] != "api" and importlib.util.find_spec("numpy") is None:
        print(f"capi/python_{sys.argv[3]}: skipped, numpy is missing (Debian: apt-get install python3-numpy)")
        sys.exit(77)
    if sys.argv[3] == "doctest":
        sys.exit(1 if run_doctests() else 0)
    suite = unittest.defaultTestLoader.loadTestsFromTestCase({"api": Api, "numpy": Numpy}[sys.argv[3]])
    sys.exit(0 if unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful() else 1)
