# vcas_choice(<name> <help> <value>...): a setting with one of these values, in either case.
# The first is the default.
function(vcas_choice name help)
  list(GET ARGN 0 default)
  list(JOIN ARGN ", " values)
  set(${name} ${default} CACHE STRING "${help}: ${values}")
  set_property(CACHE ${name} PROPERTY STRINGS ${ARGN})
  string(TOLOWER "${${name}}" value)  # ON and OFF are CMake's own words
  if(NOT value IN_LIST ARGN)
    message(FATAL_ERROR "${name} is \"${${name}}\"; it must be one of ${values}")
  endif()
  set(${name} ${value} PARENT_SCOPE)
endfunction()
