# Everything comes from the distribution; nothing is fetched.
find_package(nlohmann_json 3.11 REQUIRED)
find_package(fmt 9 REQUIRED)
find_package(ZLIB REQUIRED)
find_path(VCAS_UTF8PROC_INCLUDE utf8proc.h REQUIRED)
find_library(VCAS_UTF8PROC_LIBRARY utf8proc REQUIRED)
mark_as_advanced(VCAS_UTF8PROC_INCLUDE VCAS_UTF8PROC_LIBRARY)
find_path(VCAS_XXHASH_INCLUDE xxhash.h REQUIRED)  # inlined, so that nothing is linked
mark_as_advanced(VCAS_XXHASH_INCLUDE)
find_package(Threads REQUIRED)
if(VCAS_OPENMP)
  find_package(OpenMP REQUIRED COMPONENTS CXX)
endif()

# vcas_blas: the library of the CPU's matrix products. OpenBLAS needs only its run-time library.
vcas_choice(VCAS_BLAS "GEMM on the CPU" auto openblas eigen)
set(VCAS_OPENBLAS OFF)
if(NOT VCAS_BLAS STREQUAL "eigen")
  find_library(VCAS_OPENBLAS_LIBRARY NAMES libopenblas.so.0 openblas)
  mark_as_advanced(VCAS_OPENBLAS_LIBRARY)
  if(VCAS_OPENBLAS_LIBRARY)
    set(VCAS_OPENBLAS ON)
    get_filename_component(openblas_file ${VCAS_OPENBLAS_LIBRARY} NAME)
  elseif(VCAS_BLAS STREQUAL "openblas")
    message(FATAL_ERROR
            "VCAS_BLAS=openblas, but OpenBLAS was not found (package libopenblas0-pthread)")
  endif()
endif()
message(STATUS "OpenBLAS: ${VCAS_OPENBLAS}")
add_library(vcas_blas INTERFACE)
set_target_properties(vcas_blas PROPERTIES EXPORT_NAME blas)
if(VCAS_OPENBLAS)
  target_link_libraries(vcas_blas INTERFACE
    $<BUILD_INTERFACE:${VCAS_OPENBLAS_LIBRARY}> $<INSTALL_INTERFACE:-l:${openblas_file}>)
else()
  find_package(Eigen3 3.4 REQUIRED NO_MODULE)
  target_link_libraries(vcas_blas INTERFACE Eigen3::Eigen)
endif()

# vcas_optional_library(<target> <definitions> <name> <header> <library> <lack>): where the library
# is found, <target> links it and VCAS_<name>=1 joins <definitions>, for the sources that use it.
function(vcas_optional_library target definitions name header library lack)
  find_path(VCAS_${library}_INCLUDE ${header})
  find_library(VCAS_${library}_LIBRARY ${library})
  mark_as_advanced(VCAS_${library}_INCLUDE VCAS_${library}_LIBRARY)
  if(VCAS_${library}_INCLUDE AND VCAS_${library}_LIBRARY)
    set(${definitions} ${${definitions}} VCAS_${name}=1 PARENT_SCOPE)
    target_link_libraries(${target} INTERFACE
      $<BUILD_INTERFACE:${VCAS_${library}_LIBRARY}> $<INSTALL_INTERFACE:${library}>)
  else()
    message(STATUS "${name} was not found: ${lack}")
  endif()
endfunction()

# vcas_compression: xz and zstd of compressed data files.
add_library(vcas_compression INTERFACE)
set_target_properties(vcas_compression PROPERTIES EXPORT_NAME compression)
set(VCAS_COMPRESSION "")
foreach(format LZMA ZSTD)
  string(TOLOWER ${format} library)
  vcas_optional_library(vcas_compression VCAS_COMPRESSION ${format} ${library}.h ${library}
                        "files compressed with it cannot be read")
endforeach()

# vcas_images: JPEG and PNG files.
add_library(vcas_images INTERFACE)
set_target_properties(vcas_images PROPERTIES EXPORT_NAME images)
set(VCAS_IMAGES "")
vcas_optional_library(vcas_images VCAS_IMAGES JPEG jpeglib.h jpeg
                      "JPEG files cannot be read (package libjpeg-dev)")
vcas_optional_library(vcas_images VCAS_IMAGES PNG spng.h spng
                      "PNG files cannot be read (package libspng-dev)")
