// ridge quantize: convert weights to a GGUF file, or for int4_g128 to a directory.
#include <filesystem>
#include <map>
#include <memory>

#include "base/interrupt.h"
#include "base/progress.h"
#include "cli/options.h"
#include "format/list.h"
#include "lab/rows/results.h"
#include "model/convert.h"

namespace ridge::cli {
namespace {

struct QuantizeFlags {
  OutputFlags output;
  std::string in, out, type;
  bool force = false, allow_requantize = false;
  int n_threads = 0;
};

double bits_a_weight(const Converted& converted) {
  return converted.n_weights > 0 ? 8.0 * double(converted.n_bytes) / double(converted.n_weights) : 0;
}

/// One line for all tensors with the same reason: "3 tensors in q5_0, not q4_k: rows of 64 are ...".
void print_fallbacks(const std::vector<Fallback>& fallbacks) {
  std::map<std::string, int> lines;
  for (const Fallback& f : fallbacks)
    ++lines[fmt::format("in {}, not {}: rows of {} are no multiple of {}", f.got->name, f.wanted->name, f.n_in,
                        f.wanted->group)];
  for (const auto& [line, n] : lines) fmt::print("  {} tensor{} {}\n", n, n == 1 ? "" : "s", line);
}

/// A file that is there is replaced when asked; a directory never.
void check_output(const QuantizeFlags& flags) {
  std::error_code ignored;
  if (!std::filesystem::exists(flags.out, ignored)) return;
  if (std::filesystem::is_directory(flags.out, ignored)) bad_flag("OUT", flags.out + " is a directory", "name another");
  if (!flags.force) bad_flag("OUT", flags.out + " exists", "name another, or add --force to replace it");
}

void print_converted(const QuantizeFlags& flags, const QuantizeType& type, const Converted& converted, int n_tensors,
                     int64_t bytes) {
  fmt::print("{}: {} tensors, {:.1f} MiB, {:.2f} bits a weight: matrices in {}{}\n", flags.out, n_tensors,
             double(bytes) / 1048576, bits_a_weight(converted), type.format->name,
             type.better == type.format ? "" : fmt::format(", some in {}", type.better->name));
  print_fallbacks(converted.fallbacks);
}

int quantize(const QuantizeFlags& flags) {
  QuantizeType type = find_quantize_type(flags.type).or_throw();
  type.requantizes = flags.allow_requantize;
  type.n_threads = flags.n_threads;
  check_output(flags);
  Progress progress("quantize", !flags.output.quiet);
  int n_tensors = 0;
  const auto report = [&](int done, int total, std::string_view tensor) {
    // The writer cleans up behind an exception.
    if (interrupted()) throw Error(ErrorKind::interrupted, "interrupted: nothing was written");
    n_tensors = total;
    progress.set(done, total, tensor);
  };
  const bool directory = type.format->gguf_type < 0;
  const Converted converted = (directory ? convert_to_int4(flags.in, flags.out, report, flags.n_threads)
                                         : convert_to_gguf(flags.in, flags.out, type, report))
                                  .or_throw();
  progress.clear();
  if (converted.n_requantized > 0 && !flags.output.quiet)
    fmt::print(stderr, "warning: {} matri{} compressed already: what this rounding loses comes on top of that loss\n",
               converted.n_requantized, converted.n_requantized == 1 ? "x was" : "ces were");
  const auto bytes = int64_t(std::filesystem::file_size(directory ? flags.out + "/model.safetensors" : flags.out));
  if (flags.output.json) {
    lab::Row row{{"in", flags.in},       {"out", flags.out}, {"type", flags.type},
                 {"tensors", n_tensors}, {"bytes", bytes},   {"fallbacks", lab::Row::array()}};
    row["bits_per_weight"] = lab::number(bits_a_weight(converted));
    row["requantized"] = converted.n_requantized;
    for (const Fallback& f : converted.fallbacks)
      row["fallbacks"].push_back(
          {{"tensor", f.tensor}, {"wanted", f.wanted->name}, {"got", f.got->name}, {"n_in", f.n_in}});
    fmt::print("{}\n", lab::json_text(row, 2));
  } else if (!flags.output.quiet) {
    print_converted(flags, type, converted, n_tensors, bytes);
  }
  return 0;
}

}  // namespace

static Action declare_quantize(CLI::App& app) {
  const auto flags = std::make_shared<QuantizeFlags>();
  QuantizeFlags& f = *flags;
  add_text(app, "IN", f.in, "TEXT", "Hugging Face directory or GGUF file")->required();
  add_text(app, "OUT", f.out, "TEXT", "GGUF file to write (int4_g128: directory)")->required();
  add_text(app, "--type", f.type, "FORMAT",
           "weight format of the matrices (ridge info lists them), or a mix: q4_k_m, q5_k_m")
      ->required();
  app.add_flag("--allow-requantize", f.allow_requantize,
               "round matrices that are compressed already: their second loss");
  app.add_flag("--force", f.force, "replace OUT if it is there");
  add_whole(app, "-t,--threads", f.n_threads, 0, 1024, "threads; 0: one per processor");
  add_output_flags(app, f.output, false);
  return [flags] { return quantize(*flags); };
}

extern const Command quantize_command = {
    "quantize", "convert a model to a GGUF file with another weight format",
    R"(IN is a Hugging Face directory or a GGUF file, OUT a GGUF file. OUT appears only when it is complete, and a
file that is there is replaced only with --force. Weights that are compressed already lose twice when they are
rounded again: that needs --allow-requantize. Their own format, f16 and f32 lose nothing more. Prints the bits
a weight of all tensors.)",
    R"(ridge quantize path/to/hf-model model-q8_0.gguf --type q8_0
ridge quantize model-bf16.gguf model-q4_k_m.gguf --type q4_k_m)",
    declare_quantize};

}  // namespace ridge::cli
