# What the program says about its own build (src/base/build_info.cpp): rows of results carry it. Read from git when CMake
# configures, which a new commit triggers; "-dirty" marks a tree with uncommitted changes at that time.
function(ridge_build_info)
  set(commit unknown)
  set(number 0)
  find_program(RIDGE_GIT git)
  if(RIDGE_GIT AND EXISTS ${PROJECT_SOURCE_DIR}/.git)
    execute_process(COMMAND ${RIDGE_GIT} describe --always --dirty --abbrev=8 --exclude=*
                    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE described
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed)
      set(commit ${described})
      execute_process(COMMAND ${RIDGE_GIT} rev-list --count HEAD WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
                      OUTPUT_VARIABLE number OUTPUT_STRIP_TRAILING_WHITESPACE)
      execute_process(COMMAND ${RIDGE_GIT} rev-parse --path-format=absolute --git-path logs/HEAD
                      WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE log OUTPUT_STRIP_TRAILING_WHITESPACE)
      if(EXISTS "${log}")
        set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${log})
      endif()
    endif()
  endif()
  # Builds that only show that device code compiles: their kernels are a hundred times slower.
  set(type ${CMAKE_BUILD_TYPE})
  if((RIDGE_CUDA AND CMAKE_CUDA_FLAGS MATCHES Ofast-compile) OR (RIDGE_HIP AND CMAKE_HIP_FLAGS MATCHES "-O0"))
    string(APPEND type " with device code not optimised")
  endif()
  if(RIDGE_HIP)
    list(JOIN CMAKE_HIP_ARCHITECTURES " " hip_targets)
  endif()
  if(RIDGE_CUDA)
    list(JOIN CMAKE_CUDA_ARCHITECTURES " " cuda_targets)
  endif()
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/base/build_info.cpp PROPERTIES COMPILE_DEFINITIONS
    "RIDGE_VERSION=\"${PROJECT_VERSION}\";RIDGE_COMMIT=\"${commit}\";RIDGE_BUILD_NUMBER=${number};RIDGE_BUILD_TYPE=\"${type}\";RIDGE_HAS_CUDA=$<BOOL:${RIDGE_CUDA}>;RIDGE_HIP_TARGETS=\"${hip_targets}\";RIDGE_CUDA_TARGETS=\"${cuda_targets}\"")
endfunction()
