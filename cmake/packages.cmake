# Packages: cpack -G DEB and cpack -G TGZ of a build folder (make package-deb, make package-tarball). The manual page and the
# completions come from the program's --help, so it must run here.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON) # what is packaged is built by name

if(TARGET ridge AND NOT CMAKE_CROSSCOMPILING AND NOT RIDGE_SANITIZE)
  set(docs ${PROJECT_BINARY_DIR}/generated/cli)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  add_custom_command(OUTPUT ${docs}/ridge.1 ${docs}/ridge.bash ${docs}/_ridge ${docs}/ridge.fish
                     COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tools/cli_docs.py $<TARGET_FILE:ridge> ${docs}
                     DEPENDS ridge ${PROJECT_SOURCE_DIR}/tools/cli_docs.py)
  add_custom_target(cli_docs ALL DEPENDS ${docs}/ridge.1)
  install(FILES ${docs}/ridge.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT extras)
  install(FILES ${docs}/ridge.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME ridge COMPONENT extras)
  install(FILES ${docs}/_ridge DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions COMPONENT extras)
  install(FILES ${docs}/ridge.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT extras)
endif()
# A service that an administrator gives a model and enables.
file(READ scripts/ridge.service unit)
string(REPLACE /usr/local/bin/ridge /usr/bin/ridge unit "${unit}")
string(REPLACE "copy to /etc/systemd/system/, set the model" "set the model (systemctl edit ridge)" unit "${unit}")
file(WRITE ${PROJECT_BINARY_DIR}/generated/ridge.service "${unit}")
install(FILES ${PROJECT_BINARY_DIR}/generated/ridge.service DESTINATION lib/systemd/system COMPONENT extras)
install(FILES models/stories260K.gguf DESTINATION ${CMAKE_INSTALL_DATADIR}/ridge COMPONENT extras) # a first text
install(FILES README.md docs/c-api.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT extras)

set(CPACK_PACKAGE_NAME ridge)
set(CPACK_PACKAGE_VENDOR Ridge)
set(CPACK_PACKAGE_CONTACT "Ridge <ridge@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Language models with compressed weights and compressed KV caches")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_SOURCE_DIR}/build/packages)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
string(TOLOWER "${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}" system)
if(RIDGE_CUDA)
  string(APPEND system -cuda)
endif()
set(CPACK_ARCHIVE_FILE_NAME ridge-${PROJECT_VERSION}-${system})
set(CPACK_PACKAGE_FILE_NAME ${CPACK_ARCHIVE_FILE_NAME})
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "bash-completion")
include(CPack)
