// The page that the server shows at "/": its files, as bytes inside the program (made from src/serve/page by
// cmake/embed.cmake).
#pragma once

#include <span>
#include <string_view>

namespace ridge::serve {

struct PageFile {
  std::string_view path;  ///< "/" or "/NAME"
  std::string_view type;  ///< of the field Content-Type
  std::string_view body;
};

/// All files of the page; the first one is the document at "/". No file needs a key: the page itself asks for it.
std::span<const PageFile> page_files();

/// The field Content-Security-Policy of every file: nothing inline and nothing from elsewhere.
inline constexpr std::string_view kPagePolicy =
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

}  // namespace ridge::serve
