# What `cmake --install build --prefix P` makes: a folder that can be moved.
#   bin/                 trireme, trireme-engine
#   lib/                 libtrireme.so: every room above but the command line's, for programs of others
#   lib/libtorch         a link to LibTorch: the one thing in the folder that names a place outside it
#   lib/cmake/trireme/   for find_package(trireme): the target trireme::trireme
#   include/trireme/     the public headers, by the names that our own sources use
# `--component bundle` puts LibTorch itself and the distribution's libraries there, for machines that lack them. See docs/library.md.
include(CMakePackageConfigHelpers)

set_target_properties(trireme PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
install(TARGETS trireme RUNTIME DESTINATION bin)
if(NOT TRIREME_TORCH)
  return()
endif()

# What users include; the headers that these include are found when the folder is made.
set(TRIREME_PUBLIC_HEADERS engine/base/version.h engine/data/indexed_writer.h engine/trainer/initialize.h parsers/model_config.h)

# Where programs and library look, from the folder `lib`: the folder's own libraries, LibTorch's, CUDA's wheels beside LibTorch, the toolkit.
function(_trireme_install_rpath out lib)
  set(_rpath ${lib} ${lib}/libtorch/lib)
  foreach(_dir IN LISTS TRIREME_CUDA_LIBRARY_DIRS)
    string(REGEX MATCH "/nvidia/[^/]+/lib$" _wheel "${_dir}")
    if(_wheel)
      list(APPEND _rpath ${lib}/libtorch/..${_wheel})
    else()
      list(APPEND _rpath ${_dir})
    endif()
  endforeach()
  set(${out} "${_rpath}" PARENT_SCOPE)
endfunction()

set(_rooms trainer execute model zero optim kernels comm checkpoint data storage advise schedule plan parsers base)
list(TRANSFORM _rooms PREPEND trireme_)
string(REPLACE ";" "," _whole "${_rooms}")
file(WRITE ${PROJECT_BINARY_DIR}/shared.cpp "")
add_library(trireme_shared SHARED ${PROJECT_BINARY_DIR}/shared.cpp)
target_link_libraries(trireme_shared PRIVATE ${_rooms} INTERFACE $<INSTALL_INTERFACE:trireme::torch>)
target_include_directories(trireme_shared INTERFACE $<INSTALL_INTERFACE:include/trireme>)
target_compile_features(trireme_shared INTERFACE cxx_std_20)
_trireme_install_rpath(_library_rpath "$ORIGIN")
set_target_properties(trireme_shared PROPERTIES OUTPUT_NAME trireme EXPORT_NAME trireme VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib
  LINK_LIBRARY_OVERRIDE "WHOLE_ARCHIVE,${_whole}" INSTALL_RPATH "${_library_rpath}")
_trireme_install_rpath(_engine_rpath "$ORIGIN/../lib")
set_target_properties(trireme-engine PROPERTIES INSTALL_RPATH "${_engine_rpath}")

install(TARGETS trireme-engine RUNTIME DESTINATION bin)
install(TARGETS trireme_shared EXPORT triremeTargets LIBRARY DESTINATION lib)

set(_package lib/cmake/trireme)
install(EXPORT triremeTargets NAMESPACE trireme:: DESTINATION ${_package})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/triremeConfig.cmake.in ${PROJECT_BINARY_DIR}/triremeConfig.cmake
  INSTALL_DESTINATION ${_package} NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/triremeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/triremeConfig.cmake ${PROJECT_BINARY_DIR}/triremeConfigVersion.cmake
  ${CMAKE_CURRENT_LIST_DIR}/TriremeTorch.cmake DESTINATION ${_package})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION share/doc/trireme)

# The rest is decided while the folder is made, by scripts that begin with these lines.
set(_script "cmake_policy(VERSION 3.25)
set(_to \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\")
set(_sources \"${PROJECT_SOURCE_DIR}\")
set(_torch \"${TRIREME_TORCH_ROOT}\")
set(_objdump \"${CMAKE_OBJDUMP}\")
")

string(APPEND _headers_script "${_script}set(_left \"${TRIREME_PUBLIC_HEADERS}\")\n" [[
set(_done)
while(_left)
  list(POP_FRONT _left _header)
  if(NOT _header IN_LIST _done)
    list(APPEND _done ${_header})
    get_filename_component(_folder ${_header} DIRECTORY)
    file(INSTALL ${_sources}/${_header} DESTINATION ${CMAKE_INSTALL_PREFIX}/include/trireme/${_folder})
    file(STRINGS ${_sources}/${_header} _lines REGEX "^#include \"")
    list(TRANSFORM _lines REPLACE "^#include \"([^\"]+)\".*" "\\1")
    list(APPEND _left ${_lines})
  endif()
endwhile()
]])
install(CODE "${_headers_script}")

# A bundled LibTorch stays; triremeRuntime.cmake lists what libtrireme.so needs of the distribution.
string(APPEND _torch_script "${_script}" [[
if(NOT IS_DIRECTORY ${_to}/lib/libtorch OR IS_SYMLINK ${_to}/lib/libtorch)
  message(STATUS "Linking: ${CMAKE_INSTALL_PREFIX}/lib/libtorch -> ${_torch}")
  file(REMOVE ${_to}/lib/libtorch)
  file(CREATE_LINK ${_torch} ${_to}/lib/libtorch SYMBOLIC)
endif()
execute_process(COMMAND ${_objdump} -p ${_to}/lib/libtrireme.so OUTPUT_VARIABLE _text COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "NEEDED +[^\n]+" _needed "${_text}")
list(TRANSFORM _needed REPLACE "NEEDED +" "")
list(FILTER _needed EXCLUDE REGEX "^(ld-linux|lib(torch|c10|cu(da|bla|dnn|pti|fft|rand|spars|solver)|nccl|nv|gomp|stdc|gcc_s|(c|m|dl|rt|pthread)\\.))")
file(WRITE ${_to}/lib/cmake/trireme/triremeRuntime.cmake "set(TRIREME_RUNTIME_LIBRARIES \"${_needed}\")\n")
]])
install(CODE "${_torch_script}")

# ---- the bundle -----------------------------------------------------------------------------------------------------
string(APPEND _unlink_script "${_script}" [[
if(IS_SYMLINK ${_to}/lib/libtorch)
  file(REMOVE ${_to}/lib/libtorch)
endif()
]])
install(CODE "${_unlink_script}" COMPONENT bundle EXCLUDE_FROM_ALL)
set(_not_bundled "torch_python|shm")
if(NOT TRIREME_HAS_CUDA)
  string(APPEND _not_bundled "|torch_cuda|c10_cuda|nvshmem|nvrtc")
endif()
install(DIRECTORY ${TRIREME_TORCH_ROOT}/lib ${TRIREME_TORCH_ROOT}/include DESTINATION lib/libtorch USE_SOURCE_PERMISSIONS
  COMPONENT bundle EXCLUDE_FROM_ALL REGEX "/lib[^/]*(${_not_bundled})[^/]*(\\.so[^/]*)?$" EXCLUDE)
file(GLOB _licences ${TRIREME_TORCH_ROOT}/dist-info/licenses ${TRIREME_TORCH_ROOT}/../torch-*.dist-info/licenses)
install(DIRECTORY ${_licences} DESTINATION share/doc/trireme/libtorch COMPONENT bundle EXCLUDE_FROM_ALL)
if(TRIREME_HAS_CUDA)  # opened by name while a program runs
  foreach(_dir IN LISTS TRIREME_CUDA_LIBRARY_DIRS)
    install(DIRECTORY ${_dir}/ DESTINATION lib COMPONENT bundle EXCLUDE_FROM_ALL
      FILES_MATCHING REGEX "/lib(cudnn|nvrtc)[^/]*\\.so\\.[0-9.]+$")
  endforeach()
endif()
string(APPEND _libraries_script "${_script}set(_programs $<TARGET_FILE:trireme> $<TARGET_FILE:trireme-engine>)\nset(_library $<TARGET_FILE:trireme_shared>)\n" [[
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${_programs} LIBRARIES ${_library} RESOLVED_DEPENDENCIES_VAR _found UNRESOLVED_DEPENDENCIES_VAR _missing
  PRE_EXCLUDE_REGEXES "^lib(c|m|dl|rt|pthread|util|resolv|stdc\\+\\+|gcc_s|cuda|nvidia-ml)\\.so" "^ld-linux")
if(_missing)
  message(FATAL_ERROR "these libraries are on no known path: ${_missing}\n  fix: ./setup.sh, then install again")
endif()
foreach(_file IN LISTS _found)
  get_filename_component(_folder ${_file} DIRECTORY)
  if(NOT _folder STREQUAL "${_torch}/lib")  # those are in lib/libtorch
    file(INSTALL ${_file} DESTINATION ${CMAKE_INSTALL_PREFIX}/lib FOLLOW_SYMLINK_CHAIN)
  endif()
endforeach()
]])
install(CODE "${_libraries_script}" COMPONENT bundle EXCLUDE_FROM_ALL)
