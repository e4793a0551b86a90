# Program and library that need glibc alone, and an old one (RIDGE_STATIC_DEPS). Objects are those of other builds: only
# links differ.
add_link_options(-static-libstdc++ -static-libgcc LINKER:-u,arc4random)
find_library(BSD_LIBRARY bsd REQUIRED) # libedit's
find_library(MD_LIBRARY md REQUIRED)
find_library(TINFO_LIBRARY tinfo REQUIRED)
list(APPEND EDIT_LIBRARY ${TINFO_LIBRARY} ${BSD_LIBRARY} ${MD_LIBRARY})
list(APPEND CURSES_LIBRARIES ${TINFO_LIBRARY})

# Headers of fmt as they are, and its functions from a file here: distributions have its shared library only.
add_library(ridge_fmt STATIC cmake/static_deps_fmt.cpp cmake/static_deps_glibc.cpp)
get_target_property(folders fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
target_include_directories(ridge_fmt SYSTEM PUBLIC ${folders})
get_target_property(definitions fmt::fmt INTERFACE_COMPILE_DEFINITIONS)
if(definitions)
  target_compile_definitions(ridge_fmt PUBLIC ${definitions})
endif()
set(RIDGE_FMT ridge_fmt)

if(RIDGE_SYSROOT)
  set(folder ${RIDGE_SYSROOT}/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE})
  add_link_options(--sysroot=${RIDGE_SYSROOT} -B${folder} -L${folder} -L${RIDGE_SYSROOT}/lib/${CMAKE_LIBRARY_ARCHITECTURE}
                   LINKER:-u,_dl_find_object,-u,__libc_single_threaded)
  target_compile_definitions(ridge_fmt PRIVATE RIDGE_OLD_GLIBC)
  list(APPEND RIDGE_FMT pthread dl) # libraries of their own before glibc 2.34
endif()
