// --kv-quant auto: the cache that a decision record names for this model and machine.
#pragma once

#include <filesystem>
#include <string>

#include "cli/options.h"
#include "lab/model/bench_params.h"

namespace ridge::cli {

struct AutoChoice {
  KvChoice kv;
  std::string says;  ///< for people: what was chosen and by which record, or why f16 and what to do
};

/// The folder of a user's rows and records: $XDG_DATA_HOME/ridge, or ~/.local/share/ridge; empty without either.
std::filesystem::path user_records();

/// For a sequence that may reach n tokens. `where` is a record, or a directory that holds the model's; empty: the
/// current directory, else user_records(). f16 where there is none, or it is damaged or of another model, machine or
/// build. It never throws for a record.
AutoChoice choose_by_record(const Model& model, const std::filesystem::path& where, int n);

/// --decision, in the caller's group.
void add_decision_flag(CLI::App& app, KvFlags& flags);
/// Refuses nonsense before a model is read.
void check_kv_flags(const KvFlags& flags);
/// The cache that the flags name; of `auto` what the record says, with a line on stderr unless `quiet`.
KvChoice choice_for(const KvFlags& flags, const Model& model, int n, bool quiet);

/// A list of caches, as benches take it, that may have `auto` in it: the others, and who chooses the one of `auto`
/// (empty where the list has none). Each choice is told by a line on stderr unless `quiet`. Throws usage.
struct KvListOrAuto {
  std::vector<KvChoice> kv;
  lab::KvByRecord by_record;
};
KvListOrAuto read_kv_or_auto(const std::string& list, const std::string& decision, bool quiet);
/// --decision of such a bench.
void add_decision_flag(CLI::App& app, std::string& decision);

}  // namespace ridge::cli
