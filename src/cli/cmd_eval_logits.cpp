// ridge eval logits: the logits of given token ids, to a file, to compare with other implementations.
#include <chrono>

#include "cli/eval.h"
#include "engine/finite.h"
#include "format/list.h"
#include "io/safetensors.h"
#include "io/text.h"
#include "io/token_ids_file.h"

namespace ridge::cli {
namespace {

struct LogitsFlags {
  ModelFlags model;
  KvFlags kv;
  OutputFlags output;
  std::string ids, out, list, path = "prefill";
  int n_ubatch = 512;
};

/// Refuses ids that the model cannot take, before a file is begun.
void check_ids(const std::vector<int32_t>& ids, const std::string& file, const ModelInfo& info) {
  if (ssize(ids) > info.n_ctx_train)
    bad_flag("--ids", fmt::format("{} has {} token ids, expected at most {}, the model's context", io::in_quotes(file),
                                  ids.size(), info.n_ctx_train));
  const auto outside = std::ranges::find_if(ids, [&](int32_t id) { return id >= info.vocab_size; });
  if (outside != ids.end())
    bad_flag("--ids", fmt::format("input_ids[{}] in {} is {}, expected an id below {}, the size of the vocabulary",
                                  outside - ids.begin(), io::in_quotes(file), *outside, info.vocab_size));
}

/// Hands the logits of all positions to `take` in order, some rows at a time.
void run_ids(Session& session, std::span<const int32_t> ids, lab::EvalPath path,
             const std::function<void(int n_rows, const float* logits)>& take) {
  if (path == lab::EvalPath::prefill)
    return session.prefill(ids, [&](int, int n_rows, const float* logits) { take(n_rows, logits); });
  for (const int32_t id : ids) take(1, session.decode(id).data());
}

int write_logits(const LogitsFlags& flags) {
  const lab::EvalPath path = parse_eval_path(flags.path);
  if (!flags.list.empty() && flags.kv.any())
    bad_flag("--kv", "does not go with --kv-quant, -ctk, -ctv and their refinements", "use one of them");
  const KvChoice kv = flags.list.empty() ? flags.kv.choice() : parse_kv_choice(flags.list).or_throw();
  const std::vector<int32_t> ids = io::read_token_ids(flags.ids).or_throw();
  const Model model = load_model(flags.model);
  const ModelInfo& info = model.info();
  check_ids(ids, flags.ids, info);
  if (!flags.output.quiet) {
    fmt::print(stderr, "model    {} ({} {}), {}\n", info.name, info.arch, info.weight_format, device_text(info));
    fmt::print(stderr, "ids      {}: {} tokens, {} path, cache {}\n", flags.ids, ids.size(), flags.path, kv_text(kv));
  }
  Session session(model, session_options(kv, int(ssize(ids)), flags.n_ubatch));
  const std::vector<io::SafetensorsSpec> tensors{
      {"input_ids", &io::packed_words(), {ssize(ids)}},
      {"logits", find_weight_format("f32").value(), {ssize(ids), info.vocab_size}}};
  Progress progress("eval", !flags.output.quiet);
  const auto payload = [&](size_t tensor, const io::SafetensorsSink& sink) -> Status {
    if (tensor == 0) return sink(std::as_bytes(std::span(ids)));
    run_ids(session, ids, path, [&](int n_rows, const float* rows) {
      // The writer cleans up behind an exception.
      if (interrupted()) throw Error(ErrorKind::interrupted, "interrupted: nothing was written");
      for (int i = 0; i < n_rows; ++i) check_logits({rows + int64_t(i) * info.vocab_size, size_t(info.vocab_size)});
      sink(std::as_bytes(std::span(rows, size_t(n_rows) * size_t(info.vocab_size)))).or_throw();
      progress.add(n_rows, ssize(ids), "tokens");
    });
    return {};
  };
  const auto start = std::chrono::steady_clock::now();
  io::write_safetensors(flags.out, tensors, payload).or_throw();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  progress.clear();
  if (flags.output.json) {
    const lab::Row row{{"model", info.name},     {"ids", flags.ids},   {"out", flags.out},
                       {"n_tokens", ids.size()}, {"path", flags.path}, {"vocab_size", info.vocab_size},
                       {"kv", kv_text(kv)},      {"seconds", seconds}, {"device", info.device}};
    fmt::print("{}\n", lab::json_text(row, 2));
  } else if (!flags.output.quiet) {
    fmt::print("{}: logits of {} tokens, {} each, in {:.2f} s\n", flags.out, ids.size(), info.vocab_size, seconds);
  }
  return 0;
}

}  // namespace

static Action declare_eval_logits(CLI::App& app) {
  const auto flags = std::make_shared<LogitsFlags>();
  LogitsFlags& f = *flags;
  add_model_flag(app, f.model, true);
  add_device_flags(app, f.model);
  add_rank_flags(app, &f.model.n_stages);
  in_group(app, "Tokens");
  add_text(app, "--ids", f.ids, "FILE",
           "token ids: safetensors, input_ids I32 or I64 [T] or [1, T], or JSON {\"input_ids\": [..]}, [..]")
      ->required();
  add_text(app, "--path", f.path, "NAME", "prefill (batched) or decode (token by token, what users get)");
  add_whole(app, "--ubatch-size", f.n_ubatch, 1, 65536, "tokens per prefill step (-ub): rows of logits held in memory");
  in_group(app, "KV cache");
  add_text(app, "--kv", f.list, "KV",
           "the cache: K or K/V[;LAYERS:K/V], options after ':' as rotor-3:planar:window=32");
  add_kv_flags(app, f.kv);
  in_group(app, "Output");
  add_text(app, "-o,--output", f.out, "FILE", "safetensors file to write: input_ids and logits")->required();
  add_output_flags(app, f.output, false);
  return [flags] { return write_logits(*flags); };
}

extern const Command eval_logits_command = {
    "eval logits", "the logits of given token ids, to a file",
    R"(Runs the ids through the model and writes float32 logits [T, vocab_size] and the ids, as int32 [T], to a
safetensors file, to compare with another implementation of the model. Rows go to the file as they are
computed: memory does not grow with T. The file appears when it is complete. Refused: more ids than the
model's context has, ids outside the vocabulary. The cache is f16 unless --kv says otherwise; f32 is exact.)",
    R"(ridge eval logits -m model.gguf --ids golden.safetensors --kv f32 -o logits.safetensors
ridge eval logits -m model.gguf --ids ids.json --path decode --kv rotor-3 -o logits.safetensors)",
    declare_eval_logits};

}  // namespace ridge::cli
