#include "lab/model/bench_params.h"

#include "lab/rows/int_list.h"

namespace ridge::lab {

Result<PromptGen> parse_prompt_gen(std::string_view text) {
  const auto numbers = parse_int_list("-pg", text, 1, 1 << 24);
  if (!numbers || numbers->size() != 2)
    return fail(ErrorKind::usage, "-pg: '{}' is not a pair of counts (-pg 512,128)", text);
  return PromptGen{(*numbers)[0], (*numbers)[1]};
}

std::string BenchTest::name() const {
  std::string text;
  if (n_prompt > 0) text = fmt::format("pp{}", n_prompt);
  if (n_gen > 0) text += fmt::format("{}tg{}", n_prompt > 0 ? "+" : "", n_gen);
  if (n_depth > 0) text += fmt::format(" @ d{}", n_depth);
  return text;
}

std::vector<BenchTest> bench_tests(const BenchParams& params) {
  std::vector<BenchTest> tests;
  for (const int n_batch : params.n_batch)
    for (const int n_ubatch : params.n_ubatch)
      for (size_t i = 0; i < params.kv.size() + (params.by_record ? 1 : 0); ++i)
        for (const int n_depth : params.n_depth) {
          const bool by_record = i == params.kv.size();
          const KvChoice kv = by_record ? KvChoice{} : params.kv[i];
          const auto add = [&](int n_prompt, int n_gen) {
            if (n_prompt > 0 || n_gen > 0)
              tests.push_back({n_batch, n_ubatch, kv, n_depth, n_prompt, n_gen, by_record});
          };
          for (const int n_prompt : params.n_prompt) add(n_prompt, 0);
          for (const int n_gen : params.n_gen) add(0, n_gen);
          for (const PromptGen& pair : params.prompt_gen) add(pair.n_prompt, pair.n_gen);
        }
  return tests;
}

void check_layers_are_distinct(const std::string& model, std::string_view device) {
  if (device == "cpu" && model.starts_with("synth:") && model.find("@shared=1") != std::string::npos)
    throw_error(
        ErrorKind::usage,
        "{}: shared=1 is for devices, which hold every layer by itself; a CPU would read the shared layers from "
        "its caches (leave it out)",
        model);
}

}  // namespace ridge::lab
