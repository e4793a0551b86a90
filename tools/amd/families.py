"""Families of kernels, the device files that hold them and the tests that run them in an emulator of an AMD GPU."""
import dataclasses

HARDWARE_LDS = 64 << 10  # bytes that a block of RDNA3 may have


@dataclasses.dataclass(frozen=True)
class Family:
    files: tuple  # below src/op
    tests: str  # a filter of gtest: small ones, since an emulator is slow
    kernel: str  # a regular expression: of the kernel in which a fault is planted
    # And of the instruction that is left out: one of the kernel's own sums. Divisions of integers have instructions of
    # floats (v_fmac_f32) that refine a quotient which is mostly right without them: no test can miss those.
    instruction: str
    lds: int = HARDWARE_LDS  # of a block: more where the kernel's constants ask for more than the hardware has


FAMILIES = {
    "norms": Family(("norm_rope/norm_rope_cuda.cu",),
                    "OpsCuda.RmsNorm*:OpsCuda.Squares*:OpsCuda.ScaledSums*:OpsCuda.ElementWise*:OpsCuda.RowsAndColumns*:GluCuda.*",
                    "rms_norm_kernel", "v_fma_f64"),
    "embedding": Family(("gemv/rows_cuda.cu", "score/score_cuda.cu"), "OpsCuda.Embeddings*:OpsCuda.Scores*", "embed_kernel", "v_mul_f32"),
    "attention": Family(("attn/tile_split_128.cu", "attn/tile_attn_cuda.cu"), "AttentionCuda.TilesOfEveryPairOfKinds",
                        "attn_split_kernel", "v_dot4_i32_iu8"),
    "attention_notes": Family(("attn/tile_split_128.cu", "attn/tile_split_256.cu", "attn/tile_attn_cuda.cu"), "AttentionCuda.TilesOfPublishedShapes*",
                              "attn_split_kernel", "v_dot4_i32_iu8"),
    "attention_rows": Family(("attn/rows_attn_cuda.cu",), "AttentionCuda.RowsOfWindowsAndSinks", "rows_kernel", "v_fmac_f32"),
    "attention_rows_f16": Family(("attn/rows_f16_attn_cuda.cu", "attn/prefill_parts_cuda.cu"), "AttentionCuda.RowsInF16OfEveryFormat",
                                 "rows_f16_kernel", "v_dot2acc"),
    "latent": Family(("attn/rows_attn_cuda.cu", "attn/rows_f16_attn_cuda.cu", "attn/tile_attn_cuda.cu", "cache/append_cuda.cu", "cache/append_rows_exact.cu",
                      "cache/copy_parts_cuda.cu", "cache/calibrate_exact.cu"),
                     "LatentCuda.RowsAreNormed*:LatentCuda.AttentionReadsEveryFormat", "rows_kernel", "v_dual_fmac_f32"),
    "prefill": Family(("attn/prefill_cuda.cu", "attn/prefill_parts_cuda.cu"), "AttentionCuda.PromptsOverEveryKind",
                      "prefill_kernel", "v_dot2acc"),
    "append": Family(("cache/append_cuda.cu", "cache/append_rows_exact.cu", "cache/append_tiles_exact.cu", "cache/leaving_tiles_exact.cu",
                      "cache/calibrate_exact.cu", "cache/copy_parts_cuda.cu", "cache/fill_tiles_cuda.cu"),
                     "AppendCuda.NormsAndTurns*:AppendCuda.PoolsDo*:AppendCuda.FillIsValid*", "append_kernel", "v_cvt_f16_f32"),
    "gemv_int": Family(("gemv/int_gemv_cuda.cu", "gemv/int_weights_cuda.cu", "gemv/int_stream_cuda.cu"),
                       "IntGemvCuda.EveryNibble*:IntGemvCuda.TinyAndZero*:IntGemvCuda.OneBadToken*:IntGemvCuda.ANorm*:"
                       "IntGemvCuda.TernaryLargestSums*:IntGemvCuda.Int4IsWithinItsStepsAtEveryBatch", "int_stream_kernel", "v_dot4_i32_iu8"),
    "gemv_bricks": Family(("gemv/f16_gemv_cuda.cu", "gemv/bricks_cuda.cu"),
                          "F16GemvCuda.BothPlanes*:F16GemvCuda.XOfEverySize:F16GemvCuda.ABadToken*:F16GemvCuda.ANorm*:F16GemvCuda.Several*:"
                          "F16GemvCuda.GatedPairs", "gemv_kernel", "v_dot2acc"),
    "gemv_stream": Family(("gemv/int_stream_cuda.cu", "gemv/bricks_cuda.cu", "gemv/int_weights_cuda.cu"),
                          "IntBricksCuda.LargestSums*:IntBricksCuda.ABadToken*:IntBricksCuda.XOfEverySize", "int_stream_kernel", "v_dot4_i32_iu8"),
    "gemm": Family(("gemm/gemm_cuda.cu",), "OpsCuda.GemmRows*", "gemm_kernel", "v_(fma|fmac|dual_fmac)_f32"),
    "gemm_int": Family(("gemm/int_gemm_cuda.cu", "gemv/int_weights_cuda.cu"), "IntGemmCuda.OneBadToken*:IntGemmCuda.Int4IsWithinItsRoundings*", "gemm_kernel", "v_dot2acc|v_dot4"),
    "gemm_tensor": Family(("gemm/tensor_gemm_cuda.cu", "gemv/bricks_cuda.cu"), "TensorGemmCuda.Scales*:TensorGemmCuda.ANorm*",
                          "gemm_kernel", "v_dot2acc"),
    "sampler": Family(("sample/sample_exact.cu",), "SampleCuda.FarApart*:SampleCuda.SequencesHave*:SampleCuda.Replays*:SampleCuda.Forced*",
                      "weigh", "v_(add|mul|fma)_f"),
    "delta": Family(("delta/delta_cuda.cu", "delta/chunks_cuda.cu", "norm_rope/norm_rope_cuda.cu"),
                    "DeltaCuda.GatesOfHeads*:DeltaCuda.WrongTokens*:DeltaCuda.Histories*:DeltaCuda.ChunksOfHardGates*", "part_kernel|chunked_state", "v_dual_fmac_f32"),
    "mamba": Family(("delta/mamba_cuda.cu", "delta/mamba_chunks_cuda.cu", "norm_rope/norm_rope_cuda.cu"),
                    "MambaCuda.ChunksOfHardGates*:MambaCuda.TokensFollow*:MambaCuda.TheCut*", "state_kernel|mamba_scan", "v_dual_fmac_f32"),
    "experts": Family(("experts/experts_cuda.cu", "experts/groups_cuda.cu", "experts/expert_rows_cuda.cu", "experts/int_experts_cuda.cu",
                       "gemv/bricks_cuda.cu", "gemv/int_weights_cuda.cu"),
                      "ExpertsCuda.SumsAre*:ExpertsCuda.VeryLow*:ExpertsCuda.AnyScores*:ExpertsCuda.GroupsHave*", "sum_kernel|route_kernel", "v_(add|mul|fma|fmac)_f32"),
}
