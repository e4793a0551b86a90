#include "serve/page.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "cases/paths.h"

namespace ridge::serve {
namespace {

TEST(Page, FilesAreThoseOfTheTreeByteForByte) {
  const std::pair<std::string_view, std::string_view> expected[] = {
      {"/", "text/html; charset=utf-8"},
      {"/style.css", "text/css; charset=utf-8"},
      {"/page.js", "text/javascript; charset=utf-8"},
      {"/markdown.js", "text/javascript; charset=utf-8"},
      {"/conversations.js", "text/javascript; charset=utf-8"},
      {"/icon.svg", "image/svg+xml"}};
  ASSERT_EQ(page_files().size(), std::size(expected));
  for (size_t i = 0; i < std::size(expected); ++i) {
    const PageFile& file = page_files()[i];
    EXPECT_EQ(file.path, expected[i].first);
    EXPECT_EQ(file.type, expected[i].second);
    const std::string name = file.path == "/" ? "/index.html" : std::string(file.path);
    std::ifstream in(RIDGE_SOURCE_DIR "/src/serve/page" + name, std::ios::binary);
    ASSERT_TRUE(in) << name;
    EXPECT_EQ(file.body, std::string(std::istreambuf_iterator<char>(in), {})) << name;
  }
}

TEST(Page, NothingInTheDocumentNeedsMoreThanThePolicyAllows) {
  const std::string_view document = page_files()[0].body;
  for (std::string_view inlined : {"<style", " style=", " onclick=", "<script>", "http:", "https:", "data:"})
    EXPECT_EQ(document.find(inlined), document.npos) << inlined;
}

}  // namespace
}  // namespace ridge::serve
