#include "cli/kv_auto.h"

#include "base/user_folder.h"
#include "lab/decide/measure.h"

namespace ridge::cli {

namespace {

/// The file that `where` means for a model, whether or not it is there.
std::filesystem::path record_file(const std::filesystem::path& where, const std::string& model_hash) {
  std::error_code error;
  if (!where.empty()) return std::filesystem::is_directory(where, error) ? lab::record_path(where, model_hash) : where;
  const std::filesystem::path here = lab::record_path(".", model_hash), users = user_records();
  return std::filesystem::exists(here, error) || users.empty() ? here : lab::record_path(users, model_hash);
}

}  // namespace

std::filesystem::path user_records() { return user_folder("XDG_DATA_HOME", ".local/share"); }

AutoChoice choose_by_record(const Model& model, const std::filesystem::path& where, int n) {
  const lab::RecordSubject here = lab::subject_of(model);
  std::error_code error;
  const std::filesystem::path path = record_file(where, here.model_hash);
  const auto f16 = [&](const std::string& why) {
    return AutoChoice{
        {},
        fmt::format("f16: {} (ridge decide -m {} makes a record, --decision names another)", why, model.info().path)};
  };
  if (!std::filesystem::exists(path, error)) return f16(fmt::format("there is no record {}", path.native()));
  const auto record = lab::read_record(path);
  if (!record) return f16(record.error().message);
  if (const std::string why = lab::why_not_for(*record, here); !why.empty())
    return f16(fmt::format("{}: {}", path.native(), why));
  const std::string kv = lab::choice_at(*record, n);
  return {parse_kv_choice(kv).or_throw(),
          fmt::format("{} for up to {} tokens, by {}{}", kv, n, path.native(),
                      record->choice == "f16" ? ": no faster cache is proven here" : "")};
}

void add_decision_flag(CLI::App& app, KvFlags& flags) {
  add_text(app, "--decision", flags.decision, "PATH",
           "with --kv-quant auto: record of `ridge decide` or a folder; default: ., then ~/.local/share/ridge")
      ->default_str("");
}
void add_decision_flag(CLI::App& app, std::string& decision) {
  add_text(app, "--decision", decision, "PATH",
           "with --kv auto: file or folder written by `ridge decide`; default: where decide saves it")
      ->default_str("");
}

void check_kv_flags(const KvFlags& flags) {
  if (!flags.is_auto()) flags.choice();
  else if (flags.refines_quant())
    bad_flag("--kv-quant", "auto chooses the whole cache", "leave out the other flags of the cache");
}

KvChoice choice_for(const KvFlags& flags, const Model& model, int n, bool quiet) {
  if (!flags.is_auto()) return flags.choice();
  AutoChoice choice = choose_by_record(model, flags.decision, n);
  if (!quiet) fmt::print(stderr, "auto     {}\n", choice.says);
  return std::move(choice.kv);
}

KvListOrAuto read_kv_or_auto(const std::string& list, const std::string& decision, bool quiet) {
  std::vector<std::string> named = split(list, ',');
  const size_t n_auto = std::erase(named, "auto");
  if (n_auto > 1) bad_flag("--kv", "auto is in the list twice", "name it once: it is one cache of the record");
  KvListOrAuto read;
  if (!named.empty()) read.kv = parse_kv_list(fmt::format("{}", fmt::join(named, ","))).or_throw();
  if (n_auto == 1)
    read.by_record = [decision, quiet](const Model& model, int n_tokens) {
      AutoChoice choice = choose_by_record(model, decision, n_tokens);
      if (!quiet) fmt::print(stderr, "auto     {}\n", choice.says);
      return std::move(choice.kv);
    };
  return read;
}

}  // namespace ridge::cli
