// ridge quantize: convert weights to a GGUF file.
#include <filesystem>
#include <memory>

#include "base/progress.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "format/list.h"
#include "lab/results.h"
#include "model/convert.h"

namespace ridge::cli {
namespace {

struct QuantizeFlags {
  OutputFlags output;
  std::string in, out, type;
};

std::string weight_format_names() {
  std::string names;
  for (const WeightFormat& format : weight_formats()) names += (names.empty() ? "" : ", ") + std::string(format.name);
  return names;
}

int quantize(const QuantizeFlags& flags) {
  const WeightFormat& type = *find_weight_format(flags.type).or_throw();
  std::unique_ptr<Progress> progress;
  int n_tensors = 0;
  convert_to_gguf(flags.in, flags.out, type, [&](int done, int total, std::string_view tensor) {
    // The writer cleans up behind an exception.
    if (interrupted()) throw Error(ErrorKind::interrupted, "interrupted: nothing was written");
    n_tensors = total;
    if (!progress) progress = std::make_unique<Progress>("quantize", total, !flags.output.quiet);
    progress->set(done, tensor);
  }).or_throw();
  progress.reset();
  const auto bytes = int64_t(std::filesystem::file_size(flags.out));
  if (flags.output.json) {
    const lab::Row row{
        {"in", flags.in}, {"out", flags.out}, {"type", type.name}, {"tensors", n_tensors}, {"bytes", bytes}};
    fmt::print("{}\n", row.dump(2, ' ', false, lab::Row::error_handler_t::replace));
  } else if (!flags.output.quiet) {
    fmt::print("{}: {} tensors, {:.1f} MiB, matrices in {} ({} bits/weight)\n", flags.out, n_tensors,
               double(bytes) / 1048576, type.name, type.bits_per_weight());
  }
  return 0;
}

}  // namespace

Action declare_quantize(CLI::App& app) {
  const auto flags = std::make_shared<QuantizeFlags>();
  QuantizeFlags& f = *flags;
  app.add_option("IN", f.in, "Hugging Face directory or GGUF file")->required();
  app.add_option("OUT", f.out, "GGUF file to write")->required();
  app.add_option("--type", f.type, "weight format of the matrices: " + weight_format_names())
      ->type_name("FORMAT")
      ->required();
  add_output_flags(app, f.output, false);
  return [flags] { return quantize(*flags); };
}

}  // namespace ridge::cli
