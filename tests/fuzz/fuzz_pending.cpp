// Fuzz target of PendingFile: a file of any name appears whole or is refused with a reason; files beside it stay, but
// for temporaries of writers that ended. Byte 0 chooses the kind of temporary, then come the name of the file and names
// of files that are there already, with a '/' between them.
#include <cstdint>
#include <filesystem>
#include <set>

#include "base/check.h"
#include "cases/temp_dir.h"
#include "io/mapped_file.h"
#include "io/pending_file.h"

namespace {

using namespace ridge;

bool is_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.size() <= 255 && name.find('\0') == name.npos;
}

Status write_file(const std::filesystem::path& path, bool named) {
  io::PendingFile file(path);
  if (named) file.use_named_temporary();
  RIDGE_TRY_STATUS(file.create());
  RIDGE_TRY_STATUS(file.write("new"));
  return file.commit();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const TempDir directory;
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string target(rest.substr(0, rest.find('/')));
  rest.remove_prefix(std::min(rest.size(), target.size() + 1));
  std::set<std::string> before;
  for (; !rest.empty() && before.size() < 16; rest.remove_prefix(std::min(rest.size(), rest.find('/') + 1))) {
    const std::string_view name = rest.substr(0, rest.find('/'));
    if (is_name(name)) directory.write(name, std::string_view("old")), before.emplace(name);
    if (name.size() == rest.size()) break;
  }
  const Status written = write_file(directory.path() / target, data[0] % 2 == 1);
  RIDGE_CHECK(written || !written.error().message.empty(), "refused without a reason");
  RIDGE_CHECK(bool(written) == is_name(target), "the name {} of {} bytes is {}", target, target.size(),
              written ? "taken" : written.error().message);
  std::set<std::string> after;
  for (const std::string& name : directory.names()) {
    const bool is_new = written && name == target;
    RIDGE_CHECK(is_new || before.contains(name), "{} was left behind", name);
    RIDGE_CHECK(io::read_text_file(directory / name, 16).or_throw() == (is_new ? "new" : "old"), "{} changed", name);
    after.insert(name);
  }
  for (const std::string& name : before)
    RIDGE_CHECK(after.contains(name) || (name.starts_with(".ridge-") && name.ends_with(".part")), "{} is gone", name);
  return 0;
}
