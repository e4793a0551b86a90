#include "cli/kv_auto.h"

#include "lab/decide/measure.h"

namespace ridge::cli {

AutoChoice choose_by_record(const Model& model, const std::filesystem::path& where, int n) {
  const lab::RecordSubject here = lab::subject_of(model);
  std::error_code error;
  const bool is_directory = std::filesystem::is_directory(where, error);
  const std::filesystem::path path = is_directory ? lab::record_path(where, here.model_hash) : where;
  const auto f16 = [&](const std::string& why) {
    return AutoChoice{{},
                      fmt::format("f16: {} (ridge decide -m {} --store FILE makes a record, --decision names it)", why,
                                  model.info().path)};
  };
  if (!std::filesystem::exists(path, error)) return f16(fmt::format("there is no record {}", path.native()));
  const auto record = lab::read_record(path);
  if (!record) return f16(record.error().message);
  if (const std::string why = lab::why_not_for(*record, here); !why.empty())
    return f16(fmt::format("{}: {}", path.native(), why));
  const std::string kv = lab::choice_at(*record, n);
  return {parse_kv_choice(kv).or_throw(),
          fmt::format("{} for up to {} tokens, by {}: {}", kv, n, path.native(), record->sentence)};
}

}  // namespace ridge::cli
