# Installed headers include each other as "vcas/core/error.h": a project may have a folder core too.
file(GLOB_RECURSE headers "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/${include_folder}/vcas/*.h")
foreach(header ${headers})
  file(READ ${header} text)
  string(REGEX REPLACE "#include \"(core|data|kernels|layers|models|optim)/" "#include \"vcas/\\1/"
                       qualified "${text}")
  if(NOT qualified STREQUAL text)
    file(WRITE ${header} "${qualified}")
  endif()
endforeach()
