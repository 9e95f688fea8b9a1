# Helpers: a library or test per folder, its sources found by name so that adding a file needs no list.
function(tally_library name)
  file(GLOB sources CONFIGURE_DEPENDS ${ARGN})
  add_library(${name} STATIC ${sources})
  target_link_libraries(${name} PUBLIC tally_flags)
endfunction()

# tally_test(name LIBS… ) : every *.cc in the current folder, one program, its cases discovered by ctest.
function(tally_test name)
  file(GLOB sources CONFIGURE_DEPENDS *.cc)
  if(NOT sources)
    return()
  endif()
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE ${ARGN} GTest::gtest_main GTest::gmock Threads::Threads)
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 120)
endfunction()
include(GoogleTest)
