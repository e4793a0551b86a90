# Files of the tree as bytes inside the program.
#
# The library ridge_page: the files of src/serve/page as page_files() of src/serve/page.h. Its source is made in the build
# folder, again whenever one of the files or this script changes. A library of its own, since a made source would have
# to wait for all libraries that its target links.
function(ridge_page)
  set(folder ${PROJECT_SOURCE_DIR}/src/serve/page)
  set(files ${folder}/index.html ${folder}/style.css ${folder}/page.js ${folder}/markdown.js
            ${folder}/conversations.js ${folder}/icon.svg)
  set(source ${PROJECT_BINARY_DIR}/generated/serve/page_files.cpp)
  add_custom_command(OUTPUT ${source}
    COMMAND ${CMAKE_COMMAND} -D "FILES=${files}" -D "SOURCE=${source}" -P ${PROJECT_SOURCE_DIR}/cmake/embed.cmake
    DEPENDS ${files} ${PROJECT_SOURCE_DIR}/cmake/embed.cmake COMMENT "Embedding the page of ridge serve" VERBATIM)
  add_library(ridge_page STATIC ${source})
  ridge_target(ridge_page)
endfunction()

if(NOT CMAKE_SCRIPT_MODE_FILE)
  return()
endif()

# The script: FILES to SOURCE. Every byte is an escape in a string literal, so that no text can end it early.
set(type_html "text/html; charset=utf-8")
set(type_css "text/css; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")
set(type_svg "image/svg+xml")
set(rows "")
foreach(file IN LISTS FILES)
  cmake_path(GET file FILENAME name)
  cmake_path(GET file EXTENSION LAST_ONLY extension)
  string(SUBSTRING "${extension}" 1 -1 extension)
  set(path "/${name}")
  if(name STREQUAL "index.html")
    set(path "/")
  endif()
  file(SIZE "${file}" size)
  file(READ "${file}" bytes HEX)
  string(REGEX REPLACE "(..)" "\\\\x\\1" bytes "${bytes}")
  string(APPEND rows "    {\"${path}\", \"${type_${extension}}\", std::string_view(\"${bytes}\", ${size})},\n")
endforeach()
file(WRITE "${SOURCE}" "// Made by cmake/embed.cmake.
#include \"serve/page.h\"

namespace ridge::serve {

static constexpr PageFile kFiles[] = {
${rows}};

std::span<const PageFile> page_files() { return kFiles; }

}  // namespace ridge::serve
")
