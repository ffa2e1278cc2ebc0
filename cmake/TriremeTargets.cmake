# How every folder becomes a library, and every test file a program.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()

add_library(trireme_options INTERFACE)
target_compile_options(trireme_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Werror>)
# g++ 12 sees overlapping copies where strings are joined (its bug 105651).
target_compile_options(trireme_options INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>)
# clang++ 19 warns of what the library's own algorithms use.
target_compile_options(trireme_options INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-deprecated-declarations>)
target_include_directories(trireme_options INTERFACE ${CMAKE_SOURCE_DIR}/src)
# fp contraction would make results depend on the instruction set chosen by the compiler.
target_compile_options(trireme_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off -fno-math-errno>)

set(TRIREME_SANITIZE "" CACHE STRING "address,undefined | thread | fuzzer-no-link,... | empty")
if(TRIREME_SANITIZE)
  target_compile_options(trireme_options INTERFACE -fsanitize=${TRIREME_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(trireme_options INTERFACE -fsanitize=${TRIREME_SANITIZE})
endif()

find_package(fmt REQUIRED)
find_package(Threads REQUIRED)

# trireme_library(NAME [SOURCES files] [DEPS lower folders] [LIBS external libraries])
# makes trireme_NAME from src/NAME; without SOURCES, of all its .cpp files.
function(trireme_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LIBS" ${ARGN})
  if(NOT ARG_SOURCES)
    file(GLOB ARG_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  endif()
  list(TRANSFORM ARG_DEPS PREPEND trireme_)
  if(NOT ARG_SOURCES)  # headers only
    add_library(trireme_${name} INTERFACE)
    target_link_libraries(trireme_${name} INTERFACE trireme_options fmt::fmt ${ARG_DEPS} ${ARG_LIBS})
    return()
  endif()
  add_library(trireme_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(trireme_${name} PUBLIC trireme_options fmt::fmt ${ARG_DEPS} PRIVATE ${ARG_LIBS})
endfunction()

# trireme_test(NAME SOURCES files [DEPS folders] [LIBS libraries] [LABELS labels] [SERIAL])
# one GoogleTest program; each of its tests is a ctest test.
# Labels that tools/nightly knows: dist and fault (repeated), kill (reads TRIREME_KILLS, the number
# of kills), no_sanitizer (counts allocations or measures memory).
include(GoogleTest)
function(trireme_test name)
  cmake_parse_arguments(ARG "SERIAL" "TIMEOUT" "SOURCES;DEPS;LIBS;LABELS" ${ARGN})
  find_package(GTest REQUIRED)
  add_executable(${name} ${ARG_SOURCES})
  list(TRANSFORM ARG_DEPS PREPEND trireme_)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE TRIREME_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                                             TRIREME_BINARY_DIR="${CMAKE_BINARY_DIR}")
  target_link_libraries(${name} PRIVATE trireme_options ${ARG_DEPS} ${ARG_LIBS} GTest::gtest GTest::gtest_main Threads::Threads)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set(properties TIMEOUT ${ARG_TIMEOUT})
  if(ARG_LABELS)
    list(APPEND properties LABELS ${ARG_LABELS})
  endif()
  if(ARG_SERIAL)
    list(APPEND properties RUN_SERIAL TRUE)
  endif()
  gtest_discover_tests(${name} TEST_PREFIX ${name}. NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60
                       PROPERTIES ${properties})
endfunction()
