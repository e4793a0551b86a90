# Helpers of the build: one function per kind of target.

set(RIDGE_AVX2_FLAGS -mavx2 -mfma -mf16c)
set(RIDGE_AVX512_FLAGS -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi -mfma -mf16c
                       -mprefer-vector-width=512)

# Warnings, hardening and sanitizers of every target.
function(ridge_target name)
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wshadow -fno-math-errno)
  if(RIDGE_SANITIZE)
    target_compile_options(${name} PUBLIC -fsanitize=${RIDGE_SANITIZE} -fno-omit-frame-pointer)
    target_link_options(${name} PUBLIC -fsanitize=${RIDGE_SANITIZE})
  else()
    target_compile_options(${name} PRIVATE -fstack-protector-strong)
  endif()
  target_compile_definitions(${name} PRIVATE _GLIBCXX_ASSERTIONS)
endfunction()

# A layer: every src/NAME/**.cpp in one static library. Files ending in _avx2.cpp or _avx512.cpp get their ISA's flags
# and must be reached only after a run-time check (op/cpu.h). main.cpp stays with the executable.
function(ridge_layer name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/main\\.cpp$")
  foreach(source IN LISTS sources)
    if(source MATCHES "_avx2\\.cpp$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${RIDGE_AVX2_FLAGS}")
    elseif(source MATCHES "_avx512\\.cpp$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${RIDGE_AVX512_FLAGS}")
    endif()
  endforeach()
  add_library(ridge_${name} STATIC ${sources})
  target_link_libraries(ridge_${name} PUBLIC ${ARGN})
  ridge_target(ridge_${name})
endfunction()

# The test executable of a layer: every tests/NAME/*.cpp.
function(ridge_test name)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${name}/*.cpp)
  if(NOT sources)
    return()
  endif()
  add_executable(test_${name} ${sources})
  target_link_libraries(test_${name} PRIVATE ${ARGN} GTest::gtest GTest::gmock GTest::gtest_main)
  target_include_directories(test_${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(test_${name} PRIVATE RIDGE_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                                  RIDGE_BINARY_DIR="${PROJECT_BINARY_DIR}")
  ridge_target(test_${name})
  gtest_discover_tests(test_${name} TEST_PREFIX "${name}/" DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 600)
endfunction()
