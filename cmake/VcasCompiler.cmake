# Language level, warnings and sanitizers, carried by one interface target.
add_library(vcas_options INTERFACE)
target_compile_features(vcas_options INTERFACE cxx_std_20)
target_compile_options(vcas_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
  -Wno-missing-field-initializers -Werror=return-type>)
# A lambda may capture what branches for other types use. Loops are not vectorised below -O2.
target_compile_options(vcas_options INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-unused-lambda-capture -Wno-pass-failed>)
# Where several files are one unit, a variable may have the name of another file's function.
if(CMAKE_UNITY_BUILD)
  target_compile_options(vcas_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-shadow> $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wshadow=local>)
endif()
if(VCAS_WERROR)
  target_compile_options(vcas_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
string(REGEX MATCH address asan "${VCAS_SANITIZE}")
string(REGEX MATCH thread tsan "${VCAS_SANITIZE}")
target_compile_definitions(vcas_options INTERFACE VCAS_ASAN=$<BOOL:${asan}>
                                                  VCAS_TSAN=$<BOOL:${tsan}>)
if(VCAS_SANITIZE)
  # Assertions have many pointers. What is null there ends a test anyway.
  set(is_test $<BOOL:$<TARGET_PROPERTY:VCAS_IS_TEST>>)
  target_compile_options(vcas_options INTERFACE
    -fsanitize=${VCAS_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all
    $<${is_test}:-fno-sanitize=null,alignment>)
  target_link_options(vcas_options INTERFACE -fsanitize=${VCAS_SANITIZE})
endif()
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# vcas_units(<target>): where several files are one unit (CMAKE_UNITY_BUILD), which are together
# depends on their names alone. So a new file does not bring others together, whose names may clash.
function(vcas_units target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME)
    string(MD5 hash ${name})
    string(SUBSTRING ${hash} 0 1 digit)
    math(EXPR group "0x${digit} % 4")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
endfunction()

# vcas_component(<name> [FOLDERS <subfolders>...] DEPENDS <targets>...): one OBJECT library.
# It has all sources of this folder and of these subfolders.
# So the linker never drops layers and models that register themselves.
# Headers are installed under include/vcas/<name>.
# "vcas/core/error.h" finds them there, and so does "core/error.h".
# Warnings are ours alone: the options do not reach those who link the installed library.
function(vcas_component name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;FOLDERS" ${ARGN})
  set(sources)
  foreach(folder . ${ARG_FOLDERS})
    file(GLOB found CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cc)
    list(APPEND sources ${found})
    file(GLOB headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.h)
    install(FILES ${headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/vcas/${name}/${folder})
  endforeach()
  add_library(vcas_${name} OBJECT ${sources})
  set_target_properties(vcas_${name} PROPERTIES
    POSITION_INDEPENDENT_CODE ON EXPORT_NAME ${name})
  target_compile_features(vcas_${name} PUBLIC cxx_std_20)
  target_include_directories(vcas_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/vcas>)
  target_link_libraries(vcas_${name} PUBLIC $<BUILD_INTERFACE:vcas_options> ${ARG_DEPENDS})
  vcas_units(vcas_${name})
  set_property(GLOBAL APPEND PROPERTY VCAS_COMPONENTS vcas_${name})
endfunction()
