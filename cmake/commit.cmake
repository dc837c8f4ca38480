# Run by every build: writes OUTPUT, which tells the program the commit of SOURCE_DIR. The commit is
# empty in a tree without git, such as a source archive, even inside another repository.
set(VCAS_COMMIT "")
if(EXISTS ${SOURCE_DIR}/.git)
  execute_process(COMMAND git describe --always --dirty --exclude=*
                  WORKING_DIRECTORY ${SOURCE_DIR}
                  OUTPUT_VARIABLE VCAS_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
configure_file(${SOURCE_DIR}/tools/commit.cc.in ${OUTPUT} @ONLY)  # touches it only for a change
