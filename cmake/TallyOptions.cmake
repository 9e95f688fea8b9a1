# Options, language level, warnings, output folders, sanitizers.
set(TALLY_WITH_CUDA AUTO CACHE STRING "CUDA codecs and NCCL: AUTO (if found), ON, OFF")
set_property(CACHE TALLY_WITH_CUDA PROPERTY STRINGS AUTO ON OFF)
option(TALLY_BUILD_TESTS "Build the tests" ON)
option(TALLY_BUILD_BENCHMARKS "Build the benchmark programs" ON)
option(TALLY_WARNINGS_AS_ERRORS "Fail on any warning" OFF)
set(TALLY_SANITIZE "" CACHE STRING "Sanitizers, e.g. address,undefined")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
include(GNUInstallDirs)

add_library(tally_flags INTERFACE)
# -ffp-contract=off: sums and codecs are defined by single IEEE operations, a fused multiply-add gives other bits.
target_compile_options(tally_flags INTERFACE
  -Wall -Wextra -Wconversion -Wsign-conversion -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Wundef -ffp-contract=off)
# g++ 12 warns falsely about "literal" + std::string (its bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(tally_flags INTERFACE -Wno-restrict)
endif()
if(TALLY_WARNINGS_AS_ERRORS)
  target_compile_options(tally_flags INTERFACE -Werror)
endif()
target_include_directories(tally_flags INTERFACE ${CMAKE_SOURCE_DIR})
if(TALLY_SANITIZE)
  target_compile_options(tally_flags INTERFACE
    -fsanitize=${TALLY_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(tally_flags INTERFACE -fsanitize=${TALLY_SANITIZE})
endif()
