# Finds LibTorch, for our build and for projects that use the installed library: this file lies beside triremeConfig.cmake too.
#   trireme_find_torch([BESIDE <dir>] [FETCHED <dir>] [SAME_AS 2.11] [NEEDS libtorch_cuda.so])
#     sets TRIREME_TORCH_ROOT, the folder that holds include/ and lib/, and TRIREME_TORCH_VERSION (2.11); or TRIREME_TORCH_PROBLEM.
#   trireme_cuda_library_dirs(<out> <torch root> [folders ...])   where the CUDA libraries are that LibTorch needs
#   trireme_add_torch(<target> <torch root>)                      an interface target with the CPU part of LibTorch
#
# LibTorch's own find_package demands a full CUDA toolkit even for a CPU program, and its include folder shadows the
# distribution's fmt, spdlog and others; so the targets are written here and its headers are searched last (-idirafter).
#
# The order of the search, the same as in setup.sh: -DTRIREME_TORCH_ROOT, Torch_DIR or CMAKE_PREFIX_PATH (variables of CMake or
# of the environment), LIBTORCH, BESIDE (lib/libtorch of an installed folder), the torch of the Python on the PATH if it is 2.11
# or newer, FETCHED (.deps/torch of the sources).
set(TRIREME_TORCH_OLDEST 2.11)

# Sets `out` to "major.minor" of the LibTorch in `root`, or to "".
function(_trireme_torch_version root out)
  set(${out} "" PARENT_SCOPE)
  set(_header ${root}/include/torch/headeronly/version.h)
  if(EXISTS ${_header})
    file(READ ${_header} _text)
    string(REGEX MATCH "define TORCH_VERSION_MAJOR ([0-9]+)" _ "${_text}")
    set(_major ${CMAKE_MATCH_1})
    string(REGEX MATCH "define TORCH_VERSION_MINOR ([0-9]+)" _ "${_text}")
    set(${out} "${_major}.${CMAKE_MATCH_1}" PARENT_SCOPE)
  endif()
endfunction()

# Sets `out` to the folder of the torch of the Python on the PATH, or to "".
function(_trireme_python_torch out)
  find_program(TRIREME_PYTHON NAMES python3 python)
  mark_as_advanced(TRIREME_PYTHON)
  set(_torch "")
  if(TRIREME_PYTHON)
    execute_process(COMMAND ${TRIREME_PYTHON} -c "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
                    OUTPUT_VARIABLE _torch OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  set(${out} "${_torch}" PARENT_SCOPE)
endfunction()

# Sets `out` to what keeps the LibTorch in `root` from being used, or to "".
function(_trireme_torch_objection root out)
  _trireme_torch_version(${root} _version)
  set(_why "")
  if(NOT EXISTS ${root}/lib/libtorch_cpu.so)
    set(_why "no lib/libtorch_cpu.so")
  elseif(A_NEEDS AND NOT EXISTS ${root}/lib/${A_NEEDS})
    set(_why "no lib/${A_NEEDS}")
  elseif(A_SAME_AS AND NOT _version VERSION_EQUAL A_SAME_AS)
    set(_why "LibTorch ${_version}, not ${A_SAME_AS}")
  elseif(root STREQUAL _python_torch AND (_version STREQUAL "" OR _version VERSION_LESS TRIREME_TORCH_OLDEST))
    set(_why "the Python's, older than ${TRIREME_TORCH_OLDEST}")
  endif()
  set(${out} "${_why}" PARENT_SCOPE)
endfunction()

function(trireme_find_torch)
  cmake_parse_arguments(A "" "BESIDE;FETCHED;SAME_AS;NEEDS" "" ${ARGN})
  _trireme_python_torch(_python_torch)
  if(TRIREME_TORCH_ROOT)
    set(_hints ${TRIREME_TORCH_ROOT})
  else()
    set(_hints)
    foreach(_dir "${Torch_DIR}" "$ENV{Torch_DIR}")
      if(_dir)
        get_filename_component(_root "${_dir}/../../.." ABSOLUTE)
        list(APPEND _hints ${_root})
      endif()
    endforeach()
    string(REPLACE ":" ";" _env_prefixes "$ENV{CMAKE_PREFIX_PATH}")
    list(APPEND _hints ${CMAKE_PREFIX_PATH} ${_env_prefixes} $ENV{LIBTORCH} ${A_BESIDE} ${_python_torch} ${A_FETCHED})
    list(APPEND _hints ${TRIREME_LAST_TORCH_ROOT})  # a reconfiguration from a shell without the variable LIBTORCH
  endif()
  set(_searched "")
  foreach(_hint IN LISTS _hints)
    _trireme_torch_objection(${_hint} _why)
    if(_why STREQUAL "")
      set(TRIREME_LAST_TORCH_ROOT ${_hint} CACHE INTERNAL "where LibTorch was found last")
      _trireme_torch_version(${_hint} _version)
      message(STATUS "LibTorch: ${_hint} (${_version})")
      set(TRIREME_TORCH_ROOT ${_hint} PARENT_SCOPE)
      set(TRIREME_TORCH_VERSION "${_version}" PARENT_SCOPE)
      return()
    endif()
    string(APPEND _searched "\n    ${_hint}: ${_why}")
  endforeach()
  set(TRIREME_TORCH_PROBLEM "LibTorch${A_SAME_AS} not found. Searched, in this order:${_searched}" PARENT_SCOPE)
endfunction()

# From the toolkit, or from wheels: those of LibTorch's own Python or those that setup.sh put beside it, and the folders given.
function(trireme_cuda_library_dirs out root)
  get_filename_component(_root ${root} REALPATH)  # first: CMake takes A/link/.. for A
  file(GLOB _wheels ${_root}/../nvidia/*/lib)
  set(_dirs)
  foreach(_dir IN LISTS _wheels ARGN)
    if(EXISTS ${_dir})
      get_filename_component(_dir ${_dir} REALPATH)
      list(APPEND _dirs ${_dir})
    endif()
  endforeach()
  foreach(_dir /usr/local/cuda/lib64 /usr/local/cuda/lib /usr/local/cuda/extras/CUPTI/lib64)
    if(EXISTS ${_dir})
      list(APPEND _dirs ${_dir})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES _dirs)
  set(${out} "${_dirs}" PARENT_SCOPE)
endfunction()

function(trireme_add_torch target root)
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  target_compile_options(${target} INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-idirafter ${root}/include>"
    "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-idirafter ${root}/include/torch/csrc/api/include>")
  target_link_options(${target} INTERFACE -Wl,--no-as-needed -Wl,--allow-shlib-undefined)
  target_link_libraries(${target} INTERFACE ${root}/lib/libtorch_cpu.so ${root}/lib/libc10.so)
endfunction()
