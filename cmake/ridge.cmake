# Helpers of the build: one function per kind of target.

# No contraction: a multiply and an add are fused only where a kernel says fma, so that kernels that must agree bit for
# bit with their scalar reference do.
set(RIDGE_AVX2_FLAGS -mavx2 -mfma -mf16c -ffp-contract=off)
set(RIDGE_AVXVNNI_FLAGS ${RIDGE_AVX2_FLAGS} -mavxvnni)
set(RIDGE_AVX512_FLAGS -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi -mfma -mf16c -ffp-contract=off
                       -mprefer-vector-width=512
                       -Wno-uninitialized -Wno-maybe-uninitialized) # g++ 12's own intrinsics headers trip these
set(RIDGE_NEON_FLAGS -march=armv8.2-a+dotprod -ffp-contract=off)

# The processors' family: its ISAs' files are compiled, those of others are left out.
string(TOLOWER "${CMAKE_SYSTEM_PROCESSOR}" processor)
if(processor MATCHES "^(x86_64|amd64)$")
  set(RIDGE_FOREIGN_ISAS neon)
elseif(processor MATCHES "^(aarch64|arm64)$")
  set(RIDGE_FOREIGN_ISAS avx2|avxvnni|avx512)
else()
  set(RIDGE_FOREIGN_ISAS neon|avx2|avxvnni|avx512)
endif()
if(processor MATCHES "^(aarch64|arm64)$")
  # As on x86: its base has no fused multiply-add, and char has a sign.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off> $<$<COMPILE_LANGUAGE:CXX>:-fsigned-char>)
endif()

# Warnings, hardening and sanitizers of every target.
function(ridge_target name)
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wno-missing-field-initializers -fno-math-errno>
                                         $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
  if(RIDGE_SANITIZE)
    target_compile_options(${name} PUBLIC $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${RIDGE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer>)
    target_link_options(${name} PUBLIC -fsanitize=${RIDGE_SANITIZE})
  else()
    # -U: distributions predefine a lower level. Without optimisation the macro only warns.
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong>
                                           "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:SHELL:-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3>")
    target_link_options(${name} PRIVATE $<$<CONFIG:Release>:LINKER:-z,relro,-z,now,-z,noexecstack>)
  endif()
  if(RIDGE_FUZZ)
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
  target_compile_definitions(${name} PRIVATE _GLIBCXX_ASSERTIONS)
endfunction()

# Headers that most files of a target include and that take a second or more to parse; others beside fmt in ARGN. Targets
# with the same flags share one such header: target_precompile_headers(TARGET REUSE_FROM name).
function(ridge_precompiled name)
  target_precompile_headers(${name} PRIVATE <fmt/format.h> <algorithm> <map> <memory> <optional> <span> <string>
                                            <string_view> <vector> ${ARGN})
endfunction()

# Code that prepares, writes and checks: what its time goes to is in kernels of other targets, and optimising templates
# of JSON and of command lines takes longer than all kernels. ARGN: options of the preset debug, where -O1 is the default.
function(ridge_quick_build name)
  target_compile_options(${name} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>
                                         $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Debug>>:${ARGN}>)
endfunction()

# Several sources of a target as one: what their headers' templates make is made once for all of them. Names in unnamed
# namespaces must differ between the files of a folder. The joined file includes its parts by their names under ROOT, so
# that it is the same in every copy of the tree and the compiler's cache has its object. ARGN: the sources.
function(ridge_join target root)
  set(batch_size 8)
  set(parts ${ARGN})
  # Headers to the build, but shown by editors as the target's.
  set_source_files_properties(${parts} PROPERTIES HEADER_FILE_ONLY ON)
  set(index 0)
  while(parts)
    list(SUBLIST parts 0 ${batch_size} batch)
    list(REMOVE_ITEM parts ${batch})
    list(TRANSFORM batch REPLACE "^${root}/(.*)$" "#include \"\\1\"")
    list(JOIN batch "\n" text)
    string(REPLACE "ridge_" "" name ${target})
    set(joined ${PROJECT_BINARY_DIR}/generated/joined/${name}_${index}.cpp)
    file(CONFIGURE OUTPUT ${joined} CONTENT "${text}\n" @ONLY)
    target_sources(${target} PRIVATE ${joined})
    math(EXPR index "${index} + 1")
  endwhile()
endfunction()

# A layer's files, joined. A file whose definitions a test or a device build replaces stays alone: it has a twin
# X_cuda.cpp, is one, or is named in ARGN.
function(ridge_joined name)
  get_target_property(sources ridge_${name} SOURCES)
  set(parts)
  foreach(source IN LISTS sources)
    string(REGEX REPLACE "\\.cpp$" "_cuda.cpp" twin ${source})
    cmake_path(GET source FILENAME file)
    if(source MATCHES "^${PROJECT_SOURCE_DIR}/src/.*\\.cpp$" AND NOT EXISTS ${twin} AND NOT file MATCHES "_(cuda|hip)\\.cpp$" AND NOT file IN_LIST ARGN)
      list(APPEND parts ${source})
    endif()
  endforeach()
  ridge_join(ridge_${name} ${PROJECT_SOURCE_DIR}/src ${parts})
endfunction()

# Files ending in _avx2.cpp, _avxvnni.cpp, _avx512.cpp or _neon.cpp get their ISA's flags and must be reached only after a
# run-time check (op/cpu.h).
function(ridge_isa_flags)
  foreach(source IN LISTS ARGN)
    if(source MATCHES "_avx2\\.cpp$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${RIDGE_AVX2_FLAGS}" SKIP_PRECOMPILE_HEADERS ON)
    elseif(source MATCHES "_avxvnni\\.cpp$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${RIDGE_AVXVNNI_FLAGS}" SKIP_PRECOMPILE_HEADERS ON)
    elseif(source MATCHES "_avx512\\.cpp$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${RIDGE_AVX512_FLAGS}" SKIP_PRECOMPILE_HEADERS ON)
    elseif(source MATCHES "_neon\\.cpp$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${RIDGE_NEON_FLAGS}" SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
endfunction()

# Files ending in _exact.cu must give the host's bits: compiled without fused multiply-add.
function(ridge_cuda_flags)
  foreach(source IN LISTS ARGN)
    if(source MATCHES "_exact\\.cu$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-fmad=false")
    endif()
  endforeach()
endfunction()

# A layer: every src/NAME/**.cpp in one static library (an interface library while it has no source). main.cpp stays
# with the executable. The files *.cu and *_cuda.cpp come in only with RIDGE_CUDA or RIDGE_HIP; an X.cu or X_cuda.cpp then
# replaces the X.cpp beside it. With RIDGE_HIP an X_hip.cpp replaces them all (cmake/hip.cmake).
function(ridge_layer name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "(/main|_cuda|_hip|_(${RIDGE_FOREIGN_ISAS}))\\.cpp$")
  if(RIDGE_CUDA OR RIDGE_HIP)
    file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cu
                                                     ${PROJECT_SOURCE_DIR}/src/${name}/*_cuda.cpp)
    list(TRANSFORM cuda_sources REPLACE "(\\.cu|_cuda\\.cpp)$" ".cpp" OUTPUT_VARIABLE replaced)
    list(APPEND sources ${cuda_sources})
    list(REMOVE_ITEM sources "" ${replaced})
  endif()
  if(RIDGE_HIP)
    file(GLOB_RECURSE hip_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*_hip.cpp)
    list(FILTER sources EXCLUDE REGEX "${RIDGE_HIP_LEFT_OUT}")
    foreach(ending .cpp _cuda.cpp .cu)
      list(TRANSFORM hip_sources REPLACE "_hip\\.cpp$" "${ending}" OUTPUT_VARIABLE replaced)
      list(REMOVE_ITEM sources "" ${replaced})
    endforeach()
    set(device_sources ${sources})
    list(FILTER device_sources INCLUDE REGEX "\\.cu$")
    list(FILTER sources EXCLUDE REGEX "\\.cu$")
    ridge_hip_objects(objects device_sources)
    list(APPEND sources ${hip_sources} ${objects})
  endif()
  if(NOT sources)
    add_library(ridge_${name} INTERFACE)
    target_link_libraries(ridge_${name} INTERFACE ${ARGN})
    return()
  endif()
  ridge_isa_flags(${sources})
  ridge_cuda_flags(${sources})
  if(RIDGE_PLAIN_OP AND name STREQUAL "op") # a precompiled header has the sanitizers of its target
    set_property(SOURCE ${sources} APPEND PROPERTY COMPILE_OPTIONS -fno-sanitize=all)
    set_source_files_properties(${sources} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  endif()
  add_library(ridge_${name} STATIC ${sources})
  target_link_libraries(ridge_${name} PUBLIC ${ARGN})
  ridge_target(ridge_${name})
endfunction()

# The test executable of a layer: every tests/NAME/*.cpp; *.cu and *_cuda_test.cpp only with RIDGE_CUDA or RIDGE_HIP.
function(ridge_test name)
  set(patterns ${PROJECT_SOURCE_DIR}/tests/${name}/*.cpp)
  if(RIDGE_CUDA OR RIDGE_HIP)
    list(APPEND patterns ${PROJECT_SOURCE_DIR}/tests/${name}/*.cu)
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  list(FILTER sources EXCLUDE REGEX "_(${RIDGE_FOREIGN_ISAS})\\.cpp$")
  if(RIDGE_HIP)
    list(FILTER sources EXCLUDE REGEX "${RIDGE_HIP_LEFT_OUT}")
    set(device_sources ${sources})
    list(FILTER device_sources INCLUDE REGEX "\\.cu$")
    list(FILTER sources EXCLUDE REGEX "\\.cu$")
    ridge_hip_objects(objects device_sources -I${PROJECT_SOURCE_DIR}/tests -I${PROJECT_BINARY_DIR}/generated)
    list(APPEND sources ${objects})
  elseif(NOT RIDGE_CUDA)
    list(FILTER sources EXCLUDE REGEX "_cuda_test\\.cpp$")
  endif()
  if(NOT sources)
    return()
  endif()
  ridge_isa_flags(${sources})
  add_executable(test_${name} ${sources})
  target_link_libraries(test_${name} PRIVATE ${ARGN} GTest::gtest GTest::gmock GTest::gtest_main)
  target_include_directories(test_${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_BINARY_DIR}/generated)
  target_compile_definitions(test_${name} PRIVATE $<$<OR:$<BOOL:${RIDGE_CUDA}>,$<BOOL:${RIDGE_HIP}>>:RIDGE_CUDA>)
  ridge_target(test_${name})
  if(name STREQUAL "base")
    ridge_precompiled(test_base <gtest/gtest.h> <gmock/gmock.h> <nlohmann/json.hpp>)
  else()
    target_precompile_headers(test_${name} REUSE_FROM test_base)
  endif()
  ridge_quick_build(test_${name} -O0)
  if(NOT name STREQUAL "gpu") # whose files test_emulated compiles as well
    set(parts ${sources})
    list(FILTER parts INCLUDE REGEX "_test\\.cpp$")
    list(FILTER parts EXCLUDE REGEX "_cuda_test\\.cpp$")
    ridge_join(test_${name} ${PROJECT_SOURCE_DIR}/tests ${parts})
  endif()
  # Threads that outnumber the processors wait for each other's turns: with another test beside them these take twenty
  # times as long as alone.
  set(alone "Models/Invariance.*:SpeculationSlow.*")
  set(common TEST_PREFIX "${name}/" NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60)
  set(properties PROPERTIES TIMEOUT 600 ENVIRONMENT RIDGE_ROOF_SECONDS=0.1)
  gtest_discover_tests(test_${name} ${common} TEST_FILTER "-${alone}" ${properties})
  if(name STREQUAL "engine")
    gtest_discover_tests(test_engine ${common} TEST_FILTER "${alone}" TEST_LIST test_engine_alone ${properties}
                         RUN_SERIAL ON)
  endif()
endfunction()

# The fuzz targets: tests/fuzz/fuzz_NAME.cpp defines LLVMFuzzerTestOneInput, tests/fuzz/corpus/NAME/ holds its inputs.
# With RIDGE_FUZZ each is a libFuzzer program; otherwise replay.cpp feeds it the corpus. Both run the corpus as a test.
function(ridge_fuzz_targets)
  if(RIDGE_FUZZ AND NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "RIDGE_FUZZ needs clang's libFuzzer: -DCMAKE_CXX_COMPILER=clang++-14")
  endif()
  add_custom_target(fuzz_targets)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/fuzz/fuzz_*.cpp)
  foreach(source IN LISTS sources)
    get_filename_component(target ${source} NAME_WE)
    string(REGEX REPLACE "^fuzz_" "" name ${target})
    add_executable(${target} ${source})
    if(TARGET ridge_${name}) # named after a layer: it needs no other
      target_link_libraries(${target} PRIVATE ridge_${name})
    else()
      target_link_libraries(${target} PRIVATE ${ARGN})
    endif()
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_BINARY_DIR}/generated)
    ridge_target(${target})
    add_dependencies(fuzz_targets ${target})
    set(corpus ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${name})
    if(RIDGE_FUZZ)
      target_link_options(${target} PRIVATE -fsanitize=fuzzer)
      add_test(NAME fuzz/${name} COMMAND ${target} -runs=0 ${corpus})
    else()
      target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests/fuzz/replay.cpp)
      add_test(NAME fuzz/${name} COMMAND ${target} ${corpus})
    endif()
    set_tests_properties(fuzz/${name} PROPERTIES TIMEOUT 300)
  endforeach()
endfunction()

# tests/gpu on a CPU: the CUDA sources compiled as C++ against tests/emulate/cuda_runtime.h, in one executable whose
# definitions take the place of the layers' CPU-only ones. Not with sanitizers, which do not follow its fibers.
function(ridge_emulated_gpu_test)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*.cu ${PROJECT_SOURCE_DIR}/src/*_cuda.cpp)
  file(GLOB tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/gpu/*_cuda_test.c* ${PROJECT_SOURCE_DIR}/tests/emulate/*.cpp)
  add_executable(test_emulated ${sources} ${tests})
  foreach(source IN LISTS sources tests)
    if(source MATCHES "\\.cu$")
      set_source_files_properties(${source} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-xc++")
    endif()
  endforeach()
  target_include_directories(test_emulated BEFORE PRIVATE ${PROJECT_SOURCE_DIR}/tests/emulate)
  target_include_directories(test_emulated PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_BINARY_DIR}/generated)
  target_link_libraries(test_emulated PRIVATE ridge_lab ridge_serve GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_definitions(test_emulated PRIVATE RIDGE_CUDA)
  ridge_target(test_emulated)
  ridge_precompiled(test_emulated <gtest/gtest.h> <gmock/gmock.h>)
  ridge_quick_build(test_emulated)
  target_compile_options(test_emulated PRIVATE -ffp-contract=off -Wno-unknown-pragmas -U_FORTIFY_SOURCE)
  list(FILTER tests INCLUDE REGEX "/gpu/.*\\.cpp$")
  ridge_join(test_emulated ${PROJECT_SOURCE_DIR}/tests ${tests})
  # Whole models take minutes here; their kernels are the same.
  gtest_discover_tests(test_emulated TEST_PREFIX "emulated/" TEST_FILTER "-OpBenchCuda.Attention*:ModelCuda.Logits*:ModelCuda.AShipped*:ModelCuda.Recorded*:ModelCuda.Prompts*:ModelCuda.Samples*:RaggedCuda.StepsOfPacked*:EvaluateCuda.*" NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 600)
  # Kernels that cut their work by a device's shared memory, with that of sm_86, sm_89 and sm_120, and with AMD's.
  set(kernels "DeviceMatmulCuda.*:TensorGemmCuda.Scales*:IntGemmCuda.Int4Is*:IntGemmCuda.Ternary*:IntGemvCuda.*Batch*:F16GemvCuda.Long*:ExpertsCuda.ProductsAre*:AttentionCuda.PromptsInParts:DeltaCuda.Chunks*:PlanCuda.RowsThat*")
  foreach(kib 99 64)
    set(rows "")
    if(kib EQUAL 99)
      set(rows ":AttentionCuda.RowsOfEvery*")  # of 512 values
    endif()
    add_test(NAME emulated/Of${kib}KB COMMAND test_emulated --gtest_filter=${kernels}${rows})
    set_tests_properties(emulated/Of${kib}KB PROPERTIES TIMEOUT 600 ENVIRONMENT RIDGE_EMULATED_SHARED_KIB=${kib})
  endforeach()
endfunction()
