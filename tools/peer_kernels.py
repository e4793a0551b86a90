#!/usr/bin/env python3
"""Kernels of other libraries on an NVIDIA GPU, timed as `ridge bench gemv` and `ridge bench attention` time their own: rows.

    tools/peer_kernels.py [--libraries LIST] [--flashinfer LIBRARY] [--marlin LIBRARY] >> ROWS.jsonl

cublas      f16 weights times f16 activations (torch.mm)
cudnn       attention of one token over an f16 cache (torch's scaled_dot_product_attention, cuDNN's kernels alone)
flashinfer  the same (single_decode_with_kv_cache, with and without tensor cores: the faster one). --flashinfer names a
            shared library that was made of tools/peer_flashinfer.cu, whose head has the command; --flashinfer-version
            names FlashInfer's release
marlin      4-bit weights, groups of 128, times f16 activations. --marlin names a shared library that was made of
            marlin_cuda_kernel.cu of IST-DASLab/marlin as below; --marlin-commit names its commit

    sed '/createpolicy/d; s/.L2::cache_hint//; s/, p;/;/' marlin_cuda_kernel.cu > marlin.cu
    nvcc -O3 -std=c++17 --expt-relaxed-constexpr -gencode arch=compute_90a,code=sm_90a -shared -cudart shared
         -Xcompiler -fPIC -o libmarlin.so marlin.cu

sed makes the copy in cp_async4_stream a plain one. With its cache hint, CUDA 13.0 compiles the kernel of up to 16 tokens
to copies whose descriptor is in a register that nothing writes: an illegal instruction on an H200 (Marlin's issue 44).

Needs PyTorch with CUDA. Both libraries run on its libcudart: their nvcc is of the same major release. Each call reads
buffers that the 512 MB before it have pushed out of the cache, calls are replayed as a CUDA graph, and a row has the
median of its replays. Outputs are compared with float64 first; a wrong one makes no row.
"""
import argparse
import ctypes
import datetime
import json
import os
import shlex
import statistics
import sys

SHAPES = ((1536, 1536), (8960, 1536), (1536, 8960), (28672, 4096), (4096, 14336), (57344, 8192), (8192, 28672))
HEADS = ((20, 5), (64, 8), (12, 2))
KEYS = (512, 1024, 4096, 8192, 16384, 32768, 131072)
TOKENS = (1, 8, 16, 32, 64)
COLD_BYTES, REPLAYS = 512 << 20, 20


class Refused(Exception):
    """A library does not do this: no row, and the next problem may run."""


def time_us(calls):
    """Median microseconds of a call, over replays of a graph of all calls."""
    for call in calls[:3]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(REPLAYS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return statistics.median(times)


def sets_of(n_bytes):
    """How many copies of so many bytes push one another out of the cache."""
    return max(2, min(64, -(-COLD_BYTES // n_bytes)))


def error_of(got, expected):
    return float((got.double() - expected).norm() / expected.norm())


def function(library, name):
    if not library:
        raise Refused("no option names its library")
    return ctypes.CDLL(os.path.abspath(library))[name]


def addresses(*tensors):
    return [ctypes.c_void_p(t.data_ptr()) for t in tensors]


def stream():
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def cublas():
    for n_out, n_in in SHAPES:
        n_sets = sets_of(2 * n_out * n_in)
        weights = [torch.randn(n_out, n_in, device="cuda", dtype=torch.half) for _ in range(n_sets)]
        for n in TOKENS:
            x = torch.randn(n, n_in, device="cuda", dtype=torch.half)
            error = error_of(torch.mm(x, weights[0].T), x.double() @ weights[0].double().T)
            us = time_us([lambda w=w: torch.mm(x, w.T) for w in weights])
            yield {"op": "gemv", "peer": "cuBLAS f16", "n_out": n_out, "n_in": n_in, "n_tokens": n}, us, error
        del weights


def attention(peer, ways):
    """A way is run(q [heads, 128], k, v [keys, KV heads, 128]) -> [heads, 128]. The fastest makes the row."""
    for heads, kv_heads in HEADS:
        for keys in KEYS:
            shape = (keys, kv_heads, 128)
            n_sets = sets_of(4 * keys * kv_heads * 128)
            q = torch.randn(heads, 128, device="cuda", dtype=torch.half)
            caches = [[torch.randn(shape, device="cuda", dtype=torch.half) for _ in "kv"] for _ in range(n_sets)]
            k, v = (t.double().repeat_interleave(heads // kv_heads, 1) for t in caches[0])
            scores = torch.einsum("hd,khd->hk", q.double(), k) / 128 ** 0.5
            expected = torch.einsum("hk,khd->hd", scores.softmax(1), v)
            timed = []
            for run in ways:
                try:
                    error = error_of(run(q, *caches[0]), expected)
                except Refused as refusal:
                    print(f"{peer}: {heads}/{kv_heads} heads, {keys} keys: {refusal}", file=sys.stderr)
                    continue
                timed.append((time_us([lambda c=c: run(q, *c) for c in caches]), error))
            if timed:
                yield {"op": "attention", "peer": peer, "n_heads": heads, "n_kv_heads": kv_heads, "head_dim": 128, "n_seq": 1,
                       "n_keys": keys}, *min(timed)


def cudnn():
    def run(q, k, v):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(
                q[None, :, None], k.transpose(0, 1)[None], v.transpose(0, 1)[None], enable_gqa=True)[0, :, 0]
    return attention("cuDNN f16", [run])


def flashinfer(library):
    decode = function(library, "flashinfer_single_decode")
    space = torch.empty(32 << 20, device="cuda", dtype=torch.uint8)

    def way(tensor_cores):
        def run(q, k, v):
            out = torch.empty_like(q)
            status = decode(*addresses(q, k, v, space, out), q.shape[0], k.shape[1], k.shape[0], tensor_cores, stream())
            if status != 0:
                raise Refused(f"refused {'with' if tensor_cores else 'without'} tensor cores ({status})")
            return out
        return run
    return attention("FlashInfer f16", [way(0), way(1)])


def marlin(library):
    multiply = function(library, "_Z11marlin_cudaPKvS0_PvS1_iiiS1_iiP11CUstream_stiiii")
    for n_out, n_in in SHAPES:
        n_sets = sets_of(n_out * n_in // 2)
        # Where all codes are 11, and their zero is 8, every weight is 3 scales, whatever the order of bytes.
        equal = torch.full((n_in // 16, n_out * 2), 0xBBBBBBBB - 2**32, device="cuda", dtype=torch.int32)
        weights = [torch.randint(-2**31, 2**31 - 1, equal.shape, device="cuda", dtype=torch.int32) for _ in range(n_sets)]
        scales = torch.full((n_in // 128, n_out), 0.25, device="cuda", dtype=torch.half)
        space = torch.zeros(n_out // 128 * 16, device="cuda", dtype=torch.int32)
        for n in TOKENS:
            # Their mean is not 0: Marlin adds parts of a sum in f16, so a sum near 0 would fail the check.
            x = torch.randn(n, n_in, device="cuda", dtype=torch.half) + 0.1
            y = torch.empty(n, n_out, device="cuda", dtype=torch.half)

            def run(w):
                status = multiply(*addresses(x, w, y, scales), n, n_out, n_in, *addresses(space), 128, 0, stream(),
                                  -1, -1, -1, 16)
                if status != 0:
                    raise Refused(f"Marlin int4: {n_out}x{n_in}, {n} tokens: refused ({status})")

            try:
                run(equal)
            except Refused as refusal:
                print(refusal, file=sys.stderr)
                continue
            error = error_of(y, (0.75 * x.double().sum(1, keepdim=True)).expand(-1, n_out))
            us = time_us([lambda w=w: run(w) for w in weights])
            yield {"op": "gemv", "peer": "Marlin int4", "n_out": n_out, "n_in": n_in, "n_tokens": n}, us, error
        del weights


def main():
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False)
    parser.add_argument("-h", "--help", action="help")
    parser.add_argument("--libraries", default="cublas,cudnn,flashinfer,marlin")
    parser.add_argument("--flashinfer")
    parser.add_argument("--flashinfer-version", default="unknown")
    parser.add_argument("--marlin")
    parser.add_argument("--marlin-commit", default="unknown")
    flags = parser.parse_args()
    libraries = {"cublas": cublas, "cudnn": cudnn, "flashinfer": lambda: flashinfer(flags.flashinfer),
                 "marlin": lambda: marlin(flags.marlin)}
    names = flags.libraries.split(",")
    unknown = set(names) - set(libraries)
    if unknown:
        sys.exit(f"error: --libraries: unknown: {', '.join(sorted(unknown))} ({', '.join(libraries)})")
    global torch
    try:
        import torch
    except ImportError:
        sys.exit("error: PyTorch is not installed (pip install torch)")
    if not torch.cuda.is_available():
        sys.exit("error: PyTorch finds no NVIDIA GPU")
    torch.manual_seed(1)
    for name in names:
        build = {"cublas": f"torch {torch.__version__}, CUDA {torch.version.cuda}",
                 "cudnn": f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}",
                 "flashinfer": f"flashinfer {flags.flashinfer_version}, torch {torch.__version__}",
                 "marlin": f"IST-DASLab/marlin {flags.marlin_commit}, cp.async without L2 policy"}[name]
        try:
            for row, us, error in libraries[name]():
                if not error < 3e-3:
                    print(f"{name}: {row} is off by {error:.1e}: no row", file=sys.stderr)
                    continue
                print(json.dumps({"kind": "peer", **row, "us": round(us, 2), "build": build, "command": shlex.join(sys.argv),
                                  "device": "cuda:0", "device_name": torch.cuda.get_device_name(0),
                                  "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                                  "load_1min": round(os.getloadavg()[0], 2), "checked": True, "check_error": error}), flush=True)
        except Exception as fault:  # the next library may run
            print(f"{name}: {type(fault).__name__}: {fault}", file=sys.stderr)


if __name__ == "__main__":
    main()
