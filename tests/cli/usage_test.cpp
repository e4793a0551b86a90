// Wrong command lines: exit code, one line that says what to do, nothing on stdout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <algorithm>

#include "cli/run_program.h"

namespace ridge {
namespace {

using testing::HasSubstr;

struct Wrong {
  std::vector<std::string> args;
  int code;
  const char* says;
};

std::vector<std::string> run_with(std::vector<std::string> more) {
  std::vector<std::string> args{"run", "-m", kTinyModel, "-p", "One day", "-n", "4", "--temp", "0"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

class Usage : public testing::TestWithParam<Wrong> {};

TEST_P(Usage, IsRefusedWithAReason) {
  const Outcome outcome = run_ridge(GetParam().args);
  EXPECT_EQ(outcome.code, GetParam().code) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_TRUE(outcome.err.starts_with("error: ")) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    Commands, Usage,
    testing::Values(Wrong{{}, 2, "a command is needed"}, Wrong{{"frobnicate"}, 2, "unknown command 'frobnicate'"},
                    Wrong{{"rum"}, 2, "did you mean run"}, Wrong{{"chta", "-m", "x"}, 2, "did you mean chat?"},
                    Wrong{{"ppl"}, 2, "did you mean eval ppl?"}, Wrong{{"help", "chta"}, 2, "did you mean chat?"},
                    Wrong{{"eval"}, 2, "ridge eval --help"}, Wrong{{"bench", "decde"}, 2, "did you mean decode"},
                    Wrong{{"--verbose"}, 2, "unknown flag"}, Wrong{{"info", "extra"}, 2, "unknown argument 'extra'"},
                    Wrong{{"\x1b[31m"}, 2, "unknown command '\\x1b[31m'"}));

INSTANTIATE_TEST_SUITE_P(
    Flags, Usage,
    testing::Values(
        Wrong{run_with({"--tmp", "1"}), 2, "did you mean --temp"}, Wrong{run_with({"--top-k"}), 2, "--top-k"},
        Wrong{run_with({"--top-k", "-1"}), 2, "--top-k: expects a whole number"},
        Wrong{run_with({"--top-k", "1e3"}), 2, "found '1e3'"},
        Wrong{run_with({"--temp", "nan"}), 2, "--temp: expects a number"},
        Wrong{run_with({"--temp", "inf"}), 2, "--temp"}, Wrong{run_with({"--temp", "-0.1"}), 2, "--temp"},
        Wrong{run_with({"--temp", ""}), 2, "--temp"}, Wrong{run_with({"--top-p", "1.01"}), 2, "--top-p"},
        Wrong{run_with({"--min-p", "1e400"}), 2, "--min-p"},
        Wrong{run_with({"--repeat-penalty", "0"}), 2, "--repeat-penalty"},
        Wrong{run_with({"--seed", "x"}), 2, "--seed"}, Wrong{run_with({"--seed", "99999999999999999999"}), 2, "--seed"},
        Wrong{run_with({"-t", "-3"}), 2, "--threads"}, Wrong{run_with({"-t", "100000"}), 2, "--threads"},
        Wrong{run_with({"-c", "-1"}), 2, "--ctx-size"}, Wrong{run_with({"-c", "99999999999999"}), 2, "--ctx-size"},
        Wrong{run_with({"-ub", "65537"}), 2, "--ubatch-size"},
        Wrong{run_with({"--isa", "sse9"}), 2, "error: --isa: isa 'sse9' is unknown (there are: scalar, avx2, avx512)"},
        Wrong{run_with({"--kernel", "gemv"}), 2, "gemv"},
        Wrong{run_with({"--kernel", "gemv=none"}), 2, "there are: ref"},
        Wrong{run_with({"--kernel", "nop=ref"}), 2, "unknown op"}));

INSTANTIATE_TEST_SUITE_P(
    Habits, Usage,
    testing::Values(
        Wrong{run_with({"-ngl", "99"}), 2, "error: -ngl: Ridge runs a whole model on one device (use --device"},
        Wrong{run_with({"-ngl=99"}), 2, "error: -ngl: "},
        Wrong{run_with({"-ncmoe", "2"}), 2, "on the CPU all experts are there (leave the option out, or add --device"},
        Wrong{run_with({"--moe-device-gib", "2"}), 2, "on the CPU all experts are there"},
        Wrong{run_with({"--moe-cache-gib", "2"}), 2, "on the CPU all experts are there"},
        Wrong{run_with({"-cmoe"}), 2, "error: -cmoe: a number says how many layers"},
        Wrong{run_with({"--n_gpu_layers", "99"}), 2, "error: --n-gpu-layers: "},
        Wrong{{"bench", "decode", "-m", kTinyModel, "-ngl", "99"}, 2, "use --device cuda"},
        Wrong{run_with({"-fa"}), 2, "-fa: attention is always fused"},
        Wrong{run_with({"--flash-attn", "on"}), 2, "--flash-attn: attention is always fused"},
        Wrong{run_with({"-cnv"}), 2, "-cnv: a conversation is a command of its own"},
        Wrong{{"run", "-hf", "owner/name"}, 2, "-hf: Ridge downloads nothing"},
        Wrong{run_with({"-md", "small.gguf"}), 2, "--draft-model: only --spec-type draft and mtp"},
        Wrong{run_with({"--spec-type", "draft"}), 2, "--spec-type: draft needs a second model"},
        Wrong{run_with({"--spec-type", "guess"}), 2, "--spec-type: expects none, lookup, draft, mtp"},
        Wrong{run_with({"--spec-depth", "17"}), 2, "--spec-depth"},
        Wrong{run_with({"--spec-draft-n-max", "17"}), 2, "--spec-depth: expects"},
        Wrong{run_with({"--spec-draft-p-min", "0.5"}), 2, "--spec-draft-p-min: only --spec-type draft and mtp"},
        Wrong{run_with({"--spec-type", "lookup", "-ctkd", "q8_0"}), 2, "--cache-type-k-draft: only --spec-type draft"},
        Wrong{run_with({"--spec-type", "lookup", "-ctvd", "q8_0"}), 2, "--cache-type-v-draft: only --spec-type draft"},
        Wrong{run_with({"--spec-type", "draft", "-md", kTinyModel, "--spec-draft-type-k", "q9"}), 2, "q9"},
        Wrong{run_with({"--spec-type", "draft", "-md", kTinyModel, "--kv-quant-draft", "q9"}), 2, "q9"},
        Wrong{{"eval", "ppl", "-m", kTinyModel, "-md", "small.gguf"}, 2, "-md: a draft model is a way"},
        Wrong{{"chat", "-m", kTinyModel, "-md", "small.gguf"}, 2, "--draft-model: only --spec-type draft and mtp"},
        Wrong{{"chat", "-m", kTinyModel, "--spec-type", "lookup", "--debate", "A", "B"}, 2, "--debate: its sides"},
        Wrong{{"serve", "-m", kTinyModel, "--spec-type", "draft"}, 2, "--spec-type: draft needs a second model"},
        Wrong{{"bench", "decode", "-m", kTinyModel, "--spec-type", "lookup"}, 2, "add --text FILE"},
        Wrong{{"bench", "decode", "-m", kTinyModel, "--text", kTinyModel}, 2, "--text: tokens are random here"},
        Wrong{{"bench", "decode", "-m", kTinyModel, "--force-accept", "0.5"}, 2, "--force-accept: nothing is proposed"},
        Wrong{
            {"bench", "decode", "-m", kTinyModel, "--spec-type", "lookup", "--force-accept", "2"}, 2, "--force-accept"},
        Wrong{run_with({"--spec-type", "draft-mtp"}), 2, "has no MTP head"},
        Wrong{run_with({"--spec-type", "lookup", "--spec-sampling", "reject"}), 2, "--spec-sampling: only --spec-type"},
        Wrong{run_with({"--spec-type", "draft", "-md", kTinyModel, "--spec-sampling", "x"}), 2,
              "expects exact, reject"},
        Wrong{{"bench", "decode", "-m", kTinyModel, "--temp", "-1"}, 2, "--temp"},
        Wrong{{"serve", "-m", kTinyModel, "--pp", "2"}, 2, "--pp 2: this process is alone"},
        Wrong{run_with({"--pp", "2", "--device", "cuda:0,1,2"}), 2, "--pp 2: 3 devices do not form stages"},
        Wrong{run_with({"--pp", "2", "--device", "cuda"}), 2, "--pp 2: 1 device does not form stages"},
        Wrong{{"plan", "-m", kTinyModel, "--pp", "2", "--device", "cuda:0,1,2"}, 2, "3 devices do not form stages"},
        Wrong{{"serve", "-m", kTinyModel, "--pp", "2", "--device", "cuda:0,1"}, 6, "not available"},
        Wrong{{"decide", "-m", kTinyModel, "--pp", "2"}, 2, "--pp: this command does not split layers"},
        Wrong{{"bench", "decode", "-m", kTinyModel, "--spec-type", "lookup", "--text", kTinyModel, "-d", "9"},
              2,
              "the prompt is the depth"},
        Wrong{{"bench", "decode", "-m", kTinyModel, "--spec-type", "lookup", "--text", kTinyModel, "-n", "1"},
              2,
              "two tokens or more"},
        Wrong{run_with({"-np", "4"}), 2, "-np: Ridge runs one sequence"}, Wrong{run_with({"-tb", "4"}), 2, "use -t N"},
        Wrong{run_with({"-s", "1"}), 2, "use --seed N"}));

/// What looks like a habit and is a value stays one.
TEST(Habits, AValueMayLookLikeAHabit) {
  const Outcome outcome = run_ridge({"run", "-m", kTinyModel, "-p", "-ngl", "-n", "1", "--temp", "0"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

INSTANTIATE_TEST_SUITE_P(
    Caches, Usage,
    testing::Values(Wrong{run_with({"--kv-quant", "q9_0"}), 2, "there are:"},
                    Wrong{run_with({"-ctk", "rotor3"}), 2, "did you mean rotor-3? there are: "},
                    Wrong{run_with({"--kv-quant", "Q8_0/rotor4"}), 2, "did you mean q8_0?"},
                    Wrong{run_with({"--kv-quant", "rotor-3:scale=lqs"}), 2, "did you mean lsq?"},
                    Wrong{run_with({"-ctv", ""}), 2, "unknown KV cache format ''"},
                    Wrong{run_with({"--kv-window", "32"}), 2, "both sides of the cache are f16"},
                    Wrong{run_with({"--kv-quant", "rotor-3", "--kv-rotation", "spin"}), 2, "hadamard"},
                    Wrong{run_with({"--kv-quant", "rotor-3", "--kv-center", "yes"}), 2, "on or off"},
                    Wrong{run_with({"--kv-quant", "q8_0"}), 2, "head_dim"},
                    Wrong{run_with({"--kv-quant", "rotor-3", "--kv-scale", "absmax"}), 2, "norm, lsq"},
                    Wrong{run_with({"--kv-layers", "0-1"}), 2, "have no format"},
                    Wrong{run_with({"--kv-layers", "0,0:f16"}), 2, "layer 0 is given twice"},
                    Wrong{run_with({"--kv-layers", "3-5:rotor-3"}), 2, "this model has layers 0 to 4"},
                    Wrong{run_with({"--load-state", "/nonexistent"}), 4, "/nonexistent"},
                    Wrong{run_with({"--load-state", kTinyModel}), 4, "not a KV state file"}));

INSTANTIATE_TEST_SUITE_P(
    Devices, Usage,
    testing::Values(Wrong{run_with({"--device", "tpu"}), 2, "cpu or cuda[:N]"},
                    Wrong{run_with({"--device", "cuda:"}), 2, "cpu or cuda[:N]"},
                    Wrong{run_with({"--device", "cuda:x"}), 2, "cpu or cuda[:N]"},
                    Wrong{run_with({"--device", "cuda"}), 6, "use --device cpu"},
                    Wrong{run_with({"-dev", "cuda:1"}), 6, "not available"},
                    Wrong{{"bench", "decode", "-m", kTinyModel, "--device", "cuda"}, 6, "not available"},
                    Wrong{run_with({"--device", "cuda:0,1,0"}), 2, "names 0 twice"},
                    Wrong{{"serve", "-m", kTinyModel, "--device", "cuda", "--trace-ops"}, 2, "ridge profile"},
                    Wrong{run_with({"--device", "cuda:0,1"}), 6, "device cuda:0,1 is not available"},
                    Wrong{{"bench", "decode", "-m", "synth:tiny@shared=1"}, 2, "shared=1 is for devices"}));

INSTANTIATE_TEST_SUITE_P(
    OpBenches, Usage,
    testing::Values(
        Wrong{{"bench", "attention", "--device", "cuda"}, 6, "device cuda is not available"},
        Wrong{{"bench", "gemv", "-dev", "cuda:3"}, 6, "not available"},
        Wrong{{"bench", "append", "--device", "cuda"}, 6, "not available"},
        Wrong{{"bench", "bandwidth", "--device", "cuda"}, 6, "not available"},
        Wrong{{"bench", "gemv", "--device", "tpu"}, 2, "cpu or cuda[:N]"},
        Wrong{{"bench", "gemv", "--isa", "sse"}, 2, "--isa: isa 'sse' is unknown"},
        Wrong{{"bench", "gemv", "--kernel", "tiles-f32"}, 2, "gemv has no kernel 'tiles-f32' (there are: two-op, ref"},
        Wrong{{"bench", "gemv", "--isa", "scalar", "--kernel", "rows-avx2", "--weights", "f16"}, 2, "needs avx2"},
        Wrong{{"bench", "attention", "--heads", "64"}, 2, "--heads: '64' is not a pair like 64/8"},
        Wrong{{"bench", "attention", "--heads", "64/7"}, 2, "7 KV heads do not divide 64"},
        Wrong{{"bench", "attention", "--seq", "0"}, 2, "--seq: 0 is out of range"},
        Wrong{{"bench", "attention", "--kv", "rotor-9"}, 2, "rotor-9"},
        Wrong{{"bench", "attention", "--kv", "q8_0", "--head-dim", "40"}, 2, "40"},
        Wrong{{"bench", "gemv", "--shape", "4096"}, 2, "--shape: '4096' is not a pair like 8960x1536"},
        Wrong{{"bench", "gemv", "--shape", "64x100", "--weights", "int4_g128"}, 2, "100 does not divide"},
        Wrong{{"bench", "gemv", "--weights", "q9"}, 2, "q9"},
        Wrong{{"bench", "gemv", "--seq", "5"}, 2, "unknown flag '--seq'"},
        Wrong{{"bench", "append", "-o", "csv"}, 2, "md, json or jsonl"},
        Wrong{{"bench", "collective"}, 2, "one process has nothing to add"},
        Wrong{{"bench", "collective", "--device", "cuda:0"}, 6, "device cuda:0 is not available"},
        Wrong{{"bench", "collective", "-dev", "cuda:0,1"}, 6, "device cuda:0 is not available"},
        Wrong{{"bench", "collective", "--device", "cuda:1,1"}, 2, "names 1 twice"},
        Wrong{{"bench", "collective", "--bytes", "4096,6"}, 2, "--bytes: 6 bytes are not of whole floats"}));

INSTANTIATE_TEST_SUITE_P(
    Files, Usage,
    testing::Values(Wrong{{"run", "-p", "x"}, 2, "--model is required"},
                    Wrong{{"run", "-m", "", "-p", "x"}, 4, "error"},
                    Wrong{{"run", "-m", "/nonexistent/model.gguf", "-p", "x"}, 4, "/nonexistent/model.gguf"},
                    Wrong{{"run", "-m", "/etc", "-p", "x"}, 4, "/etc"},
                    Wrong{{"run", "-m", "/dev/null", "-p", "x"}, 4, "/dev/null"},
                    Wrong{{"run", "-m", "/etc/passwd", "-p", "x"}, 4, "/etc/passwd"},
                    Wrong{{"run", "-m", kTinyModel, "-f", "/nonexistent"}, 4, "/nonexistent"},
                    Wrong{{"run", "-m", kTinyModel, "-f", "/"}, 4, "'/'"},
                    Wrong{{"run", "-m", kTinyModel}, 2, "give -p TEXT, -f FILE"},
                    Wrong{{"run", "-m", kTinyModel, "-p", "x", "-f", "/etc/passwd"}, 2, "needs one prompt"},
                    Wrong{{"run", "-m", "synth:nope", "-p", "x"}, 2, "qwen2.5-1.5b"},
                    Wrong{{"run", "-m", "synth:tiny", "-p", "x"}, 2, "no tokenizer"}));

INSTANTIATE_TEST_SUITE_P(
    Eval, Usage,
    testing::Values(
        Wrong{{"eval", "ppl", "-m", kTinyModel}, 2, "--file is required"},
        Wrong{{"eval", "ppl", "-m", kTinyModel, "-f", "/nonexistent"}, 4, "/nonexistent"},
        Wrong{{"eval", "ppl", "-m", kTinyModel, "-f", "/etc/hostname", "-c", "4096", "--quiet"}, 2, "longer text"},
        Wrong{{"eval", "ppl", "-m", kTinyModel, "-f", "/etc/passwd", "-c", "2"}, 2, "window"},
        Wrong{{"eval", "ppl", "-m", kTinyModel, "-f", "/etc/passwd", "--chunks", "-2"}, 2, "--chunks"},
        Wrong{{"eval", "ppl", "-m", kTinyModel, "-f", "/etc/passwd", "--path", "both"}, 2, "prefill or decode"},
        Wrong{{"eval", "kld", "-m", kTinyModel, "-f", "/etc/passwd", "--kv", "f16,,"}, 2, "unknown KV cache format ''"},
        Wrong{{"eval", "kld", "-m", kTinyModel, "-f", "/etc/passwd", "--kv", "f16", "-ctk", "f16"},
              2,
              "does not go with"},
        Wrong{{"eval", "kld", "-m", kTinyModel, "-f", "/etc/passwd", "--results", "/"}, 2, "cannot append"},
        Wrong{
            {"run", "-m", kTinyModel, "-p", "a", "--prompt-cache", "/tmp/" + std::string(252, 'x')}, 2, "251 bytes"}));

INSTANTIATE_TEST_SUITE_P(
    Bench, Usage,
    testing::Values(Wrong{{"bench", "decode", "-m", kTinyModel, "-p", "1-1000000000"}, 2, "-p"},
                    Wrong{{"bench", "decode", "-m", kTinyModel, "-p", "-1"}, 2, "-p"},
                    Wrong{{"bench", "decode", "-m", kTinyModel, "-p", "0", "-n", "0"}, 2, "nothing to measure"},
                    Wrong{{"bench", "decode", "-m", kTinyModel, "-r", "0"}, 2, "--repetitions"},
                    Wrong{{"bench", "decode", "-m", kTinyModel, "-pg", "5"}, 2, "-pg"},
                    Wrong{{"bench", "decode", "-m", kTinyModel, "-o", "xml"}, 2, "csv, json, jsonl, md, sql"},
                    Wrong{{"bench", "decode", "-m", kTinyModel, "--kv", "f16", "-ctk", "f16"}, 2, "does not go with"},
                    Wrong{{"bench", "bandwidth", "--size", "-1"}, 2, "--size"}));

INSTANTIATE_TEST_SUITE_P(
    Others, Usage,
    testing::Values(Wrong{{"quantize", "a"}, 2, "OUT is required"},
                    Wrong{{"quantize", "a", "b", "--type", "q5_9"}, 2, "q8_0"},
                    Wrong{{"quantize", "a", "b", "--type", "Q4_K_M"}, 2, "did you mean q4_k_m?"},
                    Wrong{{"run", "-m", "synth:llama3.1-8b", "-p", "x"}, 2, "did you mean llama-3.1-8b?"},
                    Wrong{{"explain", "atention"}, 2, "did you mean attention?"},
                    Wrong{{"quantize", "/nonexistent", "/tmp/never.gguf", "--type", "q8_0"}, 4, "/nonexistent"},
                    Wrong{
                        {"quantize", kTinyModel, "/tmp/never.gguf", "--type", "i2_s"}, 2, "error: --type: i2_s: this"},
                    Wrong{{"quantize", kTinyModel, "/tmp/never.gguf", "--type", "iq2_xs"},
                          2,
                          "error: --type: iq2_xs: this format is read, not written (there are: f32"},
                    Wrong{{"explain"}, 2, "OP is required"}, Wrong{{"explain", "conv"}, 2, "gemv"},
                    Wrong{{"explain", "gemv", "--shape", "12"}, 2, "N_OUTxN_IN"},
                    Wrong{{"explain", "gemv", "--shape", "0x32"}, 2, "--shape"},
                    Wrong{{"explain", "gemv", "--shape", "8x33"}, 2, "does not divide"},
                    Wrong{{"explain", "attention", "--shape", "7/2/64"}, 2, "do not divide"},
                    Wrong{{"explain", "attention", "--format", "nope"}, 2, "rotor-3"},
                    Wrong{{"explain", "attn_decode"}, 2, "attention"}));

}  // namespace
}  // namespace ridge
