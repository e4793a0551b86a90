# The library for other programs: libridge.so with the C API, libridge.a with the C++ API too. Both are made of the layers'
# objects, which are position independent anyway, so nothing is compiled twice (decision 0022).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(RIDGE_ABI 1) # RIDGE_ABI_VERSION of include/ridge/ridge.h

add_library(ridge_shared SHARED $<TARGET_OBJECTS:ridge_capi>)
target_link_libraries(ridge_shared PRIVATE ridge_lab ridge_serve)
# Only names of the C API leave the library: others bind within it, as in the program.
set(map ${PROJECT_SOURCE_DIR}/src/capi/exports.map)
if(NOT APPLE) # whose linker has lists of its own
  target_link_options(ridge_shared PRIVATE LINKER:--version-script=${map} LINKER:-Bsymbolic)
endif()
set_target_properties(ridge_shared PROPERTIES VERSION ${RIDGE_ABI}.${PROJECT_VERSION} SOVERSION ${RIDGE_ABI} LINK_DEPENDS ${map})
if(RIDGE_SANITIZE)
  target_link_options(ridge_shared PRIVATE -fsanitize=${RIDGE_SANITIZE})
elseif(NOT APPLE)
  target_link_options(ridge_shared PRIVATE LINKER:-z,relro,-z,now,-z,noexecstack)
endif()

# One archive of all layers that the C API reaches.
set(objects)
foreach(layer base text grammar http format gpu op io model rank engine page serve lab capi fmt)
  if(TARGET ridge_${layer})
    list(APPEND objects $<TARGET_OBJECTS:ridge_${layer}>)
  endif()
endforeach()
add_library(ridge_static STATIC ${objects})
set_target_properties(ridge_static PROPERTIES LINKER_LANGUAGE CXX EXPORT_NAME ridge-static)
set_target_properties(ridge_shared PROPERTIES EXPORT_NAME ridge)
# What the archive needs beside it: in ridge-config.cmake by target, in ridge.pc by name.
set(needs Threads::Threads utf8proc)
set(RIDGE_PC_NEEDS "-lutf8proc -lstdc++ -lm -pthread")
if(NOT RIDGE_STATIC_DEPS)
  list(APPEND needs fmt::fmt)
  string(PREPEND RIDGE_PC_NEEDS "-lfmt ")
endif()
if(RIDGE_MPI AND MPI_CXX_FOUND)
  list(APPEND needs MPI::MPI_CXX)
  string(PREPEND RIDGE_PC_NEEDS "-lmpi ")
endif()
target_link_libraries(ridge_static INTERFACE ${needs})
foreach(target ridge_shared ridge_static)
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ridge)
  target_include_directories(${target} INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                 $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()

set(cmake_folder ${CMAKE_INSTALL_LIBDIR}/cmake/ridge)
install(TARGETS ridge_shared ridge_static EXPORT ridge-targets COMPONENT library)
install(EXPORT ridge-targets NAMESPACE ridge:: DESTINATION ${cmake_folder} COMPONENT library)
install(DIRECTORY include/ridge DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT library)
configure_package_config_file(cmake/ridge-config.cmake.in ${PROJECT_BINARY_DIR}/ridge-config.cmake INSTALL_DESTINATION ${cmake_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ridge-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ridge-config.cmake ${PROJECT_BINARY_DIR}/ridge-config-version.cmake
        DESTINATION ${cmake_folder} COMPONENT library)
file(RELATIVE_PATH RIDGE_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(cmake/ridge.pc.in ${PROJECT_BINARY_DIR}/ridge.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/ridge.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT library)

if(SKBUILD) # the wheel: the library beside the package's files
  target_link_options(ridge_shared PRIVATE -s)
  install(FILES $<TARGET_FILE:ridge_shared> DESTINATION ridge RENAME libridge.so COMPONENT python)
endif()
