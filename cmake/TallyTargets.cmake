# Helpers: a library or test per folder, its sources found by name so that adding a file needs no list.
function(tally_library name)
  file(GLOB sources CONFIGURE_DEPENDS ${ARGN})
  if(NOT sources)
    file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/${name}_empty.cc "")
    set(sources ${CMAKE_CURRENT_BINARY_DIR}/${name}_empty.cc)
  endif()
  add_library(${name} STATIC ${sources})
  target_link_libraries(${name} PUBLIC tally_flags)
endfunction()

# Seconds after which a test is ended. Under a sanitizer everything takes several times as long.
set(TALLY_TEST_TIMEOUT 120)
if(TALLY_SANITIZE)
  set(TALLY_TEST_TIMEOUT 600)
endif()

# tally_test(name LIBS… ) : every *.cc in the current folder, one program, its cases discovered by ctest.
function(tally_test name)
  file(GLOB sources CONFIGURE_DEPENDS *.cc)
  if(NOT sources)
    return()
  endif()
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE ${ARGN} GTest::gtest_main GTest::gmock Threads::Threads)
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT ${TALLY_TEST_TIMEOUT})
endfunction()
include(GoogleTest)
