# One way to write a target: trireme_library, trireme_program, trireme_test.
# -Wno-restrict: GCC 12 warns falsely on std::string in inlined code (GCC bug 105651). GCC 13 does so on fmt's buffers (array-bounds, stringop-overflow)
# and on references to what outlives a call (dangling-reference; GCC bug 107532).
set(_trireme_warnings -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wno-restrict -Wno-array-bounds
  -Wno-stringop-overflow -Wno-stringop-overread -Wno-dangling-reference)
if(TRIREME_WERROR)
  list(APPEND _trireme_warnings -Werror)
endif()

function(_trireme_common target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${_trireme_warnings}>)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}>)
endfunction()

# trireme_library(NAME zero SRCS a.cpp ... DEPS trireme::optim ... [PRIVATE_DEPS fmt::fmt ...] [TORCH])
# makes trireme_zero and trireme::zero. TORCH: the room is above the LibTorch line.
function(trireme_library)
  cmake_parse_arguments(A "TORCH" "NAME" "SRCS;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(trireme_${A_NAME} STATIC ${A_SRCS})
  add_library(trireme::${A_NAME} ALIAS trireme_${A_NAME})
  _trireme_common(trireme_${A_NAME})
  target_link_libraries(trireme_${A_NAME} PUBLIC ${A_DEPS} PRIVATE ${A_PRIVATE_DEPS})
  if(A_TORCH)
    target_link_libraries(trireme_${A_NAME} PUBLIC trireme_torch)
  endif()
endfunction()

# trireme_program(NAME trireme-engine SRCS ... DEPS ...) makes an executable in build/bin.
function(trireme_program)
  cmake_parse_arguments(A "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(${A_NAME} ${A_SRCS})
  _trireme_common(${A_NAME})
  target_link_libraries(${A_NAME} PRIVATE ${A_DEPS})
endfunction()

# trireme_test(NAME parsers_config SRCS ... DEPS ... LABELS unit [RANKS n] [TIMEOUT s] [DATA dir] [OWN_MAIN])
# makes one CTest test of one GoogleTest program. RANKS: processors that CTest reserves for it.
# Inside, TRIREME_TEST_DATA is the test's source folder. OWN_MAIN: the sources bring main().
function(trireme_test)
  cmake_parse_arguments(A "OWN_MAIN" "NAME;RANKS;TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  if(NOT TRIREME_TORCH)  # a test of rooms above the LibTorch line, in a build without them
    foreach(_dep IN LISTS A_DEPS)
      if(_dep MATCHES "^trireme" AND NOT TARGET ${_dep})
        return()
      endif()
    endforeach()
  endif()
  add_executable(test_${A_NAME} ${A_SRCS})
  _trireme_common(test_${A_NAME})
  set_target_properties(test_${A_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_compile_definitions(test_${A_NAME} PRIVATE TRIREME_TEST_DATA="${CMAKE_CURRENT_SOURCE_DIR}" TRIREME_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
    TRIREME_BIN_DIR="${CMAKE_BINARY_DIR}/bin")
  target_link_libraries(test_${A_NAME} PRIVATE ${A_DEPS} GTest::gtest $<$<NOT:$<BOOL:${A_OWN_MAIN}>>:GTest::gtest_main>)
  add_test(NAME ${A_NAME} COMMAND test_${A_NAME})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 120)
  endif()
  set_tests_properties(${A_NAME} PROPERTIES LABELS "${A_LABELS}" TIMEOUT ${A_TIMEOUT} SKIP_REGULAR_EXPRESSION "EVERY TEST SKIPPED")
  if(A_RANKS)
    set_tests_properties(${A_NAME} PROPERTIES PROCESSORS ${A_RANKS})
  endif()
endfunction()
