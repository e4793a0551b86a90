// Fuzz target of LineFile: whatever a file of lines holds, a line that is added stands alone, whole lines stay, and a
// cut one is kept aside.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/check.h"
#include "cases/temp_dir.h"
#include "io/line_file.h"
#include "io/mapped_file.h"

namespace {

using namespace ridge;

bool is_whole(std::string_view line) { return line.starts_with('{') && line.ends_with('}'); }

std::string text_of(const std::filesystem::path& path) {
  return std::filesystem::exists(path) ? io::read_text_file(path, 1 << 26).or_throw() : "";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const TempDir directory;
  const std::filesystem::path path = directory / "rows", aside = directory / "rows.cut";
  std::filesystem::remove(aside);
  const std::string text(reinterpret_cast<const char*>(data), size);
  directory.write("rows", text);

  io::LineFile file = io::LineFile::open(path, {.is_whole = is_whole}).or_throw();
  const std::string cut = text.substr(text.rfind('\n') + 1);
  const bool stays = cut.empty() || is_whole(cut);
  const std::string before = stays ? text + (cut.empty() ? "" : "\n") : text.substr(0, text.size() - cut.size());
  RIDGE_CHECK(text_of(path) == before, "whole lines changed");
  RIDGE_CHECK(text_of(aside) == (stays ? "" : cut + "\n"), "a cut line is not kept");
  RIDGE_CHECK(file.report().empty() == cut.empty(), "a cut line without a word, or a word without one");
  file.add("{1}").or_throw();
  RIDGE_CHECK(text_of(path) == before + "{1}\n", "the new line does not stand alone");
  return 0;
}
