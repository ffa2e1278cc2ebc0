# The target `bundle`: one relocatable folder, and the archive of it.
#   bundle/bin   the program (and, with TRIREME_BUNDLE_TESTS, what tools/gpu_check.sh runs)
#   bundle/lib   the CUDA module and every shared library that a plain system lacks
# CUDA's libraries stay out: the machine has them (src/accel finds them).
option(TRIREME_BUNDLE_TESTS "Put the programs of tools/gpu_check.sh into the bundle" OFF)
option(TRIREME_BUNDLE_STRIP "Strip the bundle's programs" ON)

set(bundle_programs trireme)
if(TRIREME_BUNDLE_TESTS AND TRIREME_TESTS)
  list(APPEND bundle_programs contract_ops device_contract equivalence_identity equivalence_layouts
                              golden trace_test)
  if(TARGET bench_ops_cuda)
    list(APPEND bundle_programs bench_ops_cuda)
  endif()
endif()

foreach(program ${bundle_programs})
  # RPATH rather than RUNPATH: it also serves the libraries' own needs.
  target_link_options(${program} PRIVATE -Wl,--disable-new-dtags)
  set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
endforeach()
install(TARGETS ${bundle_programs} RUNTIME_DEPENDENCY_SET bundle_libraries
        RUNTIME DESTINATION bin COMPONENT bundle)
set(bundle_targets ${bundle_programs})
if(TARGET trireme_cuda)
  target_link_options(trireme_cuda PRIVATE -Wl,--disable-new-dtags)
  set_target_properties(trireme_cuda PROPERTIES INSTALL_RPATH "$ORIGIN")
  install(TARGETS trireme_cuda RUNTIME_DEPENDENCY_SET bundle_libraries
          LIBRARY DESTINATION lib COMPONENT bundle)
  list(APPEND bundle_targets trireme_cuda)
endif()
set(system_libraries "^ld-linux" "^lib(c|m|dl|rt|pthread|stdc\\+\\+|gcc_s)\\.so")
set(cuda_libraries "^libcu" "^libnv" "^libnccl")
install(RUNTIME_DEPENDENCY_SET bundle_libraries
        PRE_EXCLUDE_REGEXES ${system_libraries} ${cuda_libraries}
        LIBRARY DESTINATION lib COMPONENT bundle)

set(bundle_flags "")
if(TRIREME_BUNDLE_STRIP)
  set(bundle_flags --strip)
endif()
add_custom_target(bundle
  COMMAND ${CMAKE_COMMAND} -E rm -rf bundle trireme-bundle.tar.zst
  COMMAND ${CMAKE_COMMAND} --install ${CMAKE_BINARY_DIR} --prefix ${CMAKE_BINARY_DIR}/bundle
          --component bundle ${bundle_flags} > bundle.log
  COMMAND ${CMAKE_COMMAND} -E tar cf trireme-bundle.tar.zst --zstd bundle
  COMMAND ${CMAKE_COMMAND} -DFILE=trireme-bundle.tar.zst -DMEBIBYTES=60
          -P ${CMAKE_SOURCE_DIR}/cmake/CheckSize.cmake
  WORKING_DIRECTORY ${CMAKE_BINARY_DIR}
  COMMENT "Bundle: ${CMAKE_BINARY_DIR}/bundle and trireme-bundle.tar.zst"
  VERBATIM)
add_dependencies(bundle ${bundle_targets})
