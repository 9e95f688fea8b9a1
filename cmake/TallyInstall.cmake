# What `cmake --install` puts where: programs, one shared library with its headers, the systemd unit, example configs.

# Everything that a training process embeds, in one library: users link -ltally and nothing else.
set(parts tally_c_api tally_worker tally_server_core tally_compress tally_common)
list(TRANSFORM parts REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE objects)
add_library(tally_shared SHARED ${objects})
target_link_libraries(tally_shared PRIVATE ${parts})
# Only what tally.h and worker/client.h declare is seen from outside, under a version of its own.
set(symbols ${CMAKE_SOURCE_DIR}/worker/c_api/libtally.map)
target_link_options(tally_shared PRIVATE -Wl,--version-script=${symbols})
set_target_properties(tally_shared PROPERTIES
  OUTPUT_NAME tally EXPORT_NAME tally VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
  LINK_DEPENDS ${symbols})
install(TARGETS tally_shared EXPORT Tally LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION include/tally)
install(FILES worker/c_api/tally.h DESTINATION include/tally)
# Any Python 3 of the system: there is nothing compiled in it. It finds the library in the prefix that it lies in.
install(DIRECTORY worker/python/tally DESTINATION lib/python3/dist-packages COMPONENT python
  PATTERN __pycache__ EXCLUDE)
install(DIRECTORY worker/python/examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT python PATTERN __pycache__ EXCLUDE)

# find_package(Tally), target Tally::tally, for C and C++.
include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Tally)
install(EXPORT Tally FILE TallyConfig.cmake NAMESPACE Tally:: DESTINATION ${package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/TallyConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/TallyConfigVersion.cmake DESTINATION ${package})

foreach(program tally-server tally-worker)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endforeach()

# The public headers are worker/client.h and what it includes, found when installing: no list to forget.
install(CODE "
  cmake_policy(VERSION 3.24)
  set(headers worker/client.h)
  set(queue worker/client.h)
  while(queue)
    list(POP_FRONT queue header)
    get_filename_component(folder \${header} DIRECTORY)
    file(INSTALL ${CMAKE_SOURCE_DIR}/\${header} DESTINATION \${CMAKE_INSTALL_PREFIX}/include/tally/\${folder})
    file(STRINGS ${CMAKE_SOURCE_DIR}/\${header} lines REGEX \"^#include \\\"\")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE \"^#include \\\"(.*)\\\".*\" \"\\\\1\" include \${line})
      if(NOT include IN_LIST headers)
        list(APPEND headers \${include})
        list(APPEND queue \${include})
      endif()
    endforeach()
  endwhile()")

file(RELATIVE_PATH TALLY_PREFIX_FROM_PC /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
foreach(file tally.pc tally-server.service tally-worker@.service)
  configure_file(${CMAKE_SOURCE_DIR}/deploy/${file}.in ${CMAKE_BINARY_DIR}/deploy/${file} @ONLY)
endforeach()
install(FILES ${CMAKE_BINARY_DIR}/deploy/tally.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${CMAKE_BINARY_DIR}/deploy/tally-server.service ${CMAKE_BINARY_DIR}/deploy/tally-worker@.service
  DESTINATION lib/systemd/system)
install(FILES deploy/server.toml deploy/worker.toml deploy/job.toml deploy/cluster.toml DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)
install(FILES README.md LICENSE CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
