# The library as others link it, and its installation.
#
# vcas_archive holds the objects of every component. vcas (vcas::vcas) links it whole.
# Layers register themselves from static objects that nothing refers to.
# A linker that takes only what is asked for from an archive would drop them
# (docs/decisions/0002-whole-archive.md).
include(CMakePackageConfigHelpers)

get_property(components GLOBAL PROPERTY VCAS_COMPONENTS)

add_library(vcas_archive STATIC)
set_target_properties(vcas_archive PROPERTIES OUTPUT_NAME vcas EXPORT_NAME archive)
target_link_libraries(vcas_archive PUBLIC ${components})

add_library(vcas INTERFACE)
add_library(vcas::vcas ALIAS vcas)
# Written twice, because install(EXPORT) does not rename targets inside LINK_LIBRARY.
target_link_libraries(vcas INTERFACE
  $<BUILD_INTERFACE:$<LINK_LIBRARY:WHOLE_ARCHIVE,vcas_archive>>
  $<INSTALL_INTERFACE:$<LINK_LIBRARY:WHOLE_ARCHIVE,vcas::archive>>)

# Object libraries are installed as what they ask of those who link them; the objects themselves are
# in the archive.
install(TARGETS vcas vcas_archive vcas_blas vcas_compression vcas_images ${components}
        EXPORT vcasTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/vcas)
install(EXPORT vcasTargets NAMESPACE vcas:: DESTINATION ${package_dir})
configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/vcasConfig.cmake.in ${PROJECT_BINARY_DIR}/vcasConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/vcasConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/vcasConfig.cmake ${PROJECT_BINARY_DIR}/vcasConfigVersion.cmake
        DESTINATION ${package_dir})
