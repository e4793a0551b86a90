// ridge quantize: convert weights to a GGUF file, or for int4_g128 to a directory.
#include <filesystem>
#include <map>
#include <memory>

#include "base/progress.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "format/list.h"
#include "lab/store/results.h"
#include "model/convert.h"

namespace ridge::cli {
namespace {

struct QuantizeFlags {
  OutputFlags output;
  std::string in, out, type;
};

/// One line for all tensors with the same reason: "3 tensors in q5_0, not q4_k: rows of 64 are ...".
void print_fallbacks(const std::vector<Fallback>& fallbacks) {
  std::map<std::string, int> lines;
  for (const Fallback& f : fallbacks)
    ++lines[fmt::format("in {}, not {}: rows of {} are no multiple of {}", f.got->name, f.wanted->name, f.n_in,
                        f.wanted->group)];
  for (const auto& [line, n] : lines) fmt::print("  {} tensor{} {}\n", n, n == 1 ? "" : "s", line);
}

int quantize(const QuantizeFlags& flags) {
  const QuantizeType type = find_quantize_type(flags.type).or_throw();
  Progress progress("quantize", !flags.output.quiet);
  int n_tensors = 0;
  const auto report = [&](int done, int total, std::string_view tensor) {
    // The writer cleans up behind an exception.
    if (interrupted()) throw Error(ErrorKind::interrupted, "interrupted: nothing was written");
    n_tensors = total;
    progress.set(done, total, tensor);
  };
  const bool directory = type.format->gguf_type < 0;
  const std::vector<Fallback> fallbacks =
      (directory ? convert_to_int4(flags.in, flags.out, report) : convert_to_gguf(flags.in, flags.out, type, report))
          .or_throw();
  progress.clear();
  const auto bytes = int64_t(std::filesystem::file_size(directory ? flags.out + "/model.safetensors" : flags.out));
  if (flags.output.json) {
    lab::Row row{{"in", flags.in},       {"out", flags.out}, {"type", flags.type},
                 {"tensors", n_tensors}, {"bytes", bytes},   {"fallbacks", lab::Row::array()}};
    for (const Fallback& f : fallbacks)
      row["fallbacks"].push_back(
          {{"tensor", f.tensor}, {"wanted", f.wanted->name}, {"got", f.got->name}, {"n_in", f.n_in}});
    fmt::print("{}\n", lab::json_text(row, 2));
  } else if (!flags.output.quiet) {
    fmt::print("{}: {} tensors, {:.1f} MiB, matrices in {} ({} bits/weight{})\n", flags.out, n_tensors,
               double(bytes) / 1048576, flags.type, type.format->bits_per_weight(),
               type.better == type.format ? "" : fmt::format(", some {}", type.better->name));
    print_fallbacks(fallbacks);
  }
  return 0;
}

}  // namespace

Action declare_quantize(CLI::App& app) {
  const auto flags = std::make_shared<QuantizeFlags>();
  QuantizeFlags& f = *flags;
  add_text(app, "IN", f.in, "TEXT", "Hugging Face directory or GGUF file")->required();
  add_text(app, "OUT", f.out, "TEXT", "GGUF file to write (int4_g128: directory)")->required();
  add_text(app, "--type", f.type, "FORMAT",
           "weight format of the matrices (ridge info lists them), or a mix: q4_k_m, q5_k_m")
      ->required();
  add_output_flags(app, f.output, false);
  return [flags] { return quantize(*flags); };
}

}  // namespace ridge::cli
