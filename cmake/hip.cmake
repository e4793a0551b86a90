# A build for AMD GPUs (RIDGE_HIP): the device files that are compiled for CUDA, by clang as HIP. CMake's own language HIP
# wants ROCm's folders, which Debian's packages do not have, so a command compiles each device file; the host's files have
# their usual compiler.
#
# CMAKE_HIP_COMPILER: ROCm's clang++ by default. CMAKE_HIP_ARCHITECTURES: gfx1100 and gfx1151 by default. CMAKE_HIP_FLAGS: more
# flags; with -O0 device code compiles four times as fast, and runs many times as slowly.

# What a HIP build leaves out: links between GPUs, and their tests. Besides, an X_hip.cpp takes the place of X.cpp, X_cuda.cpp or X.cu.
set(RIDGE_HIP_LEFT_OUT "/op/collective/[a-z_]*_cuda\\.(cpp|cu)$|/tests/gpu/(collective|process|ranks|stages)[a-z_]*_cuda_test\\.cpp$|/tests/gpu/nccl_test\\.cpp$")

function(ridge_find_hip)
  if(RIDGE_CUDA)
    message(FATAL_ERROR "RIDGE_CUDA and RIDGE_HIP are both on: a build is for GPUs of one maker")
  endif()
  if(NOT CMAKE_GENERATOR MATCHES "Ninja|Makefiles")
    message(FATAL_ERROR "RIDGE_HIP needs the generator Ninja or Unix Makefiles, not ${CMAKE_GENERATOR}")
  endif()
  set(CMAKE_HIP_COMPILER /opt/rocm/llvm/bin/clang++ CACHE STRING "clang++ that compiles HIP")
  set(CMAKE_HIP_ARCHITECTURES gfx1100 gfx1151 CACHE STRING "AMD GPUs to compile for")
  foreach(architecture IN LISTS CMAKE_HIP_ARCHITECTURES)
    if(NOT architecture MATCHES "^gfx11[0-9a-f][0-9a-f]$")
      message(FATAL_ERROR "CMAKE_HIP_ARCHITECTURES: ${architecture} is no RDNA3 GPU; kernels are for wavefronts of 32 lanes and "
                          "instructions of gfx11 (gfx1100, gfx1151)")
    endif()
  endforeach()
  find_program(RIDGE_HIP_COMPILER ${CMAKE_HIP_COMPILER} NO_CACHE)
  if(NOT RIDGE_HIP_COMPILER)
    message(FATAL_ERROR "RIDGE_HIP: there is no ${CMAKE_HIP_COMPILER}. Install ROCm 6 or 7, or name a clang++: "
                        "-DCMAKE_HIP_COMPILER=clang++-19 (Debian 12: apt-get install clang-19 lld-19 clang-tools-19 "
                        "libamdhip64-dev rocm-device-libs)")
  endif()
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  execute_process(COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/hip_compile.py --compiler ${RIDGE_HIP_COMPILER}
                          --folder ${PROJECT_BINARY_DIR}/hip-library ${CMAKE_HIP_ARCHITECTURES}
                  OUTPUT_VARIABLE flags RESULT_VARIABLE failed ERROR_VARIABLE why OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(failed)
    message(FATAL_ERROR "RIDGE_HIP: ${why}")
  endif()
  string(REPLACE "\n" ";" flags "${flags}")
  list(TRANSFORM CMAKE_HIP_ARCHITECTURES PREPEND --offload-arch= OUTPUT_VARIABLE targets)
  cmake_path(GET RIDGE_HIP_COMPILER PARENT_PATH bin)
  find_library(RIDGE_AMDHIP64 amdhip64 HINTS ${bin}/../../lib ${bin}/../../../lib /opt/rocm/lib)
  if(NOT RIDGE_AMDHIP64)
    message(FATAL_ERROR "RIDGE_HIP: libamdhip64 is missing: it comes with ROCm (Debian 12: apt-get install libamdhip64-dev)")
  endif()
  set(RIDGE_HIP_COMMAND ${RIDGE_HIP_COMPILER} -x hip -std=c++20 ${flags} ${targets} PARENT_SCOPE)
  message(STATUS "HIP: ${RIDGE_HIP_COMPILER} for ${CMAKE_HIP_ARCHITECTURES}, ${RIDGE_AMDHIP64}")
endfunction()

# OBJECTS: the objects of these device files, which may be sources of a target; options in ARGN.
function(ridge_hip_objects objects sources)
  set(made)
  separate_arguments(hip_flags UNIX_COMMAND "${CMAKE_HIP_FLAGS}")
  foreach(source IN LISTS ${sources})
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE name)
    set(object ${PROJECT_BINARY_DIR}/hip/${name}.o)
    cmake_path(GET object PARENT_PATH folder)
    file(MAKE_DIRECTORY ${folder})
    set(exact)
    if(source MATCHES "_exact\\.cu$")
      set(exact -ffp-contract=off)
    endif()
    add_custom_command(OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d VERBATIM COMMENT "Building HIP object ${name}.o"
      COMMAND ${RIDGE_HIP_COMMAND} -O3 "$<$<NOT:$<CONFIG:Debug>>:-DNDEBUG>" -fPIC -Wno-unused-result -Wno-pass-failed ${exact}
              -include gpu/hip_shim.h -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/include ${ARGN}
              ${hip_flags} -MD -MF ${object}.d -c ${source} -o ${object}
      COMMAND_EXPAND_LISTS)
    list(APPEND made ${object})
  endforeach()
  set_source_files_properties(${made} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  set(${objects} ${made} PARENT_SCOPE)
endfunction()
