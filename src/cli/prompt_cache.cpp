#include "cli/prompt_cache.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "cli/prompt_ids.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "io/pending_file.h"

namespace ridge::cli {
namespace {

constexpr int kIdsVersion = 1;
constexpr size_t kMaxStateName = 255 - std::string_view(".ids").size();  // of files on Linux

Result<std::string> state_checksum(const std::string& path) {
  RIDGE_TRY(const io::MappedFile file, io::MappedFile::open(path));
  return fmt::format("{:016x}", XXH64(file.bytes().data(), file.bytes().size(), 0));
}

/// The ids of the file, or why there are none.
Result<std::vector<int32_t>> read_ids(const std::string& state) {
  std::error_code ignored;
  if (!std::filesystem::exists(state, ignored)) return bad_file("{} does not exist yet", state);
  const std::string path = state + ".ids";
  RIDGE_TRY(const std::string text, io::read_text_file(path, kMaxPromptBytes));
  RIDGE_TRY(const io::Json json, io::parse_json(text, path));
  const auto tokens = json.find("tokens");
  if (!json.is_object() || json.value("version", io::Json()) != kIdsVersion || tokens == json.end() ||
      !tokens->is_array())
    return bad_file("{}: not the ids of a prompt cache", path);
  std::vector<int32_t> ids;
  for (const io::Json& id : *tokens) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX)
      return bad_file("{}: {} is not a token id", path, id.dump());
    ids.push_back(id.get<int32_t>());
  }
  RIDGE_TRY(const std::string checksum, state_checksum(state));
  if (json.value("state_xxh64", io::Json()) != checksum)
    return bad_file("{}: its checksum is not that of {}: only one of the two was written", path, state);
  return ids;
}

}  // namespace

int PromptCache::load(Session& session, std::span<const int32_t> prompt, std::string& says) const {
  if (std::filesystem::path(path).filename().native().size() > kMaxStateName)
    throw_error(ErrorKind::usage, "--prompt-cache {}: a name has {} bytes at most here (name another file)", path,
                kMaxStateName);
  const auto afresh = [&](const std::string& why) {
    session.reset();
    says = fmt::format("prompt cache: begins afresh: {}", why);
    return 0;
  };
  const Result<std::vector<int32_t>> ids = read_ids(path);
  if (!ids) return afresh(ids.error().message);
  const size_t n_same = size_t(std::ranges::mismatch(*ids, prompt).in1 - ids->begin());
  const int n = int(std::min(n_same, prompt.size() - 1));
  if (n == 0) return afresh(path + " begins with another token");
  try {
    session.restore(path);
    if (session.n_past() != int(ids->size())) return afresh(path + ": its ids are of another length");
    const KvReport kv = session.kv_report();
    const int n_back = session.n_past() - n;
    session.truncate(n);
    says = fmt::format(
        "prompt cache: {} of {} tokens from {}{}", n, prompt.size(), path,
        n_back > 32 && std::max(kv.k.window, kv.v.window) > 0 ? "; rows of the window from their codes" : "");
  } catch (const Error& error) {
    return afresh(error.what());
  }
  return n;
}

void PromptCache::save(const Session& session, std::span<const int32_t> tokens) const {
  session.save(path);
  try {
    save_ids(tokens);
  } catch (const Error&) {  // a state without its ids is of no use, and fills a disk
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    throw;
  }
}

void PromptCache::save_ids(std::span<const int32_t> tokens) const {
  const io::Json ids = {{"version", kIdsVersion},
                        {"state_xxh64", state_checksum(path).or_throw()},
                        {"tokens", std::vector<int32_t>(tokens.begin(), tokens.end())}};
  io::PendingFile file(path + ".ids");
  file.create().or_throw();
  file.write(ids.dump() + "\n").or_throw();
  file.commit().or_throw();
}

}  // namespace ridge::cli
