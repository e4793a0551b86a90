"""check_layers.py catches a planted include of every kind it knows, and passes what the arrows allow."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECK = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_layers.py"


def run(*planted):
    """check_layers.py over a tree of (file, include) pairs; each file has its include in line 2."""
    with tempfile.TemporaryDirectory() as root:
        for file, include in planted:
            path = pathlib.Path(root, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"#pragma once\n#include {include}\n", encoding="utf-8")
        done = subprocess.run([sys.executable, CHECK, root], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout


class CheckLayers(unittest.TestCase):
    def test_catches(self):
        for file, include in [
            ("src/base/result.h", '"op/linear.h"'),
            ("src/format/q8_0.h", '"io/gguf.h"'),
            ("src/op/gemv/ref.cpp", '"model/config.h"'),
            ("src/op/gemv/ref.cpp", '"io/gguf.h"'),
            ("src/io/gguf.cpp", '"op/linear.h"'),
            ("src/model/forward.cpp", '"engine/session.h"'),
            ("src/engine/session.cpp", '"lab/timer.h"'),
            ("src/lab/timer.cpp", '"cli/options.h"'),
            ("src/extra/x.cpp", '"base/result.h"'),
            ("src/op/gemv/ref.cpp", '"ref.h"'),
            ("include/ridge/engine.h", '"base/result.h"'),
            ("include/ridge/engine.h", "<fmt/format.h>"),
            ("src/model/weights.h", "<cuda_runtime.h>"),
            ("src/cli/cmd_info.cpp", "<hip/hip_runtime.h>"),
            ("tests/gpu/x_test.cpp", "<cuda_fp16.h>"),
            ("src/op/norm_rope/norm.cpp", "<immintrin.h>"),
            ("src/op/gemv/rows_avx2.cpp", '"op/simd/avx512.h"'),
            ("src/op/gemv/ref.cpp", '"op/simd/avx2.h"'),
            ("src/op/gemv/panel_avxvnni.cpp", '"op/simd/avx512.h"'),
            ("src/op/gemv/panel_neon.cpp", '"op/simd/avx2.h"'),
            ("src/op/gemv/panel_avx512.cpp", '"op/simd/neon.h"'),
            ("src/op/norm_rope/norm.cpp", "<arm_neon.h>"),
        ]:
            with self.subTest(file=file, include=include):
                code, out = run((file, include))
                self.assertEqual(code, 1)
                self.assertTrue(out.startswith(f"{file}:2: includes \"{include[1:-1]}\": "), out)
                self.assertIn("; allowed: ", out)

    def test_allows(self):
        for file, include in [
            ("src/op/gemv/ref.cpp", '"format/list.h"'),
            ("src/op/gemv/ref.cpp", '"gpu/device_query.h"'),
            ("src/model/forward.cpp", '"io/gguf.h"'),
            ("src/cli/cmd_run.cpp", '"base/result.h"'),
            ("src/base/result.h", '"ridge/error.h"'),
            ("include/ridge/engine.h", "<string_view>"),
            ("include/ridge/ridge.h", "<stdint.h>"),
            ("src/gpu/device_query.cu", "<cuda_runtime.h>"),
            ("src/op/gemv/rows_sm90.cu", "<cuda_fp16.h>"),
            ("src/op/gemv/rows_avx512.cpp", '"op/simd/avx512.h"'),
            ("src/op/simd/avx2.h", "<immintrin.h>"),
            ("src/op/simd/bytes_neon.h", "<arm_neon.h>"),
            ("src/op/gemv/panel_neon.cpp", '"op/simd/neon.h"'),
            ("src/op/gemv/panel_avxvnni.cpp", '"op/simd/avx2.h"'),
            ("tests/op/gemv_test.cpp", '"cases/gemv_cases.h"'),
        ]:
            with self.subTest(file=file, include=include):
                code, out = run((file, include))
                self.assertEqual(code, 0, out)

    def test_folders_of_op_include_each_other_in_one_direction(self):
        attn_to_cache = ("src/op/attn/attn.h", '"op/cache/layout.h"')
        self.assertEqual(run(attn_to_cache, ("src/op/cache/layout.h", '"op/cpu.h"'))[0], 0)
        code, out = run(attn_to_cache, ("src/op/cache/layout.h", '"op/attn/attn.h"'))
        self.assertEqual(code, 1)
        self.assertIn('src/op/cache/layout.h:2: includes "op/attn/attn.h": op/attn includes op/cache too', out)
        self.assertIn('src/op/attn/attn.h:2: includes "op/cache/layout.h": op/cache includes op/attn too', out)
        # By way of a third folder, and beside a folder that has no part in it.
        code, out = run(attn_to_cache, ("src/op/cache/layout.h", '"op/simd/x.h"'),
                        ("src/op/simd/x.h", '"op/attn/attn.h"'),
                        ("src/op/gemm/x.h", '"op/cache/layout.h"'))
        self.assertEqual(code, 1)
        self.assertEqual(len(out.splitlines()), 3, out)
        self.assertNotIn("src/op/gemm", out)

    def test_folders_of_the_lab_include_each_other_in_one_direction(self):
        upward = ("src/lab/op/op_bench.cpp", '"lab/model/bench_params.h"')
        self.assertEqual(run(upward, ("src/lab/op/ceilings.h", '"lab/rows/results.h"'))[0], 0)
        code, out = run(upward, ("src/lab/model/bench.h", '"lab/op/ceilings.h"'))
        self.assertEqual(code, 1)
        self.assertIn('src/lab/op/op_bench.cpp:2: includes "lab/model/bench_params.h": lab/model includes lab/op too',
                      out)


if __name__ == "__main__":
    unittest.main()
