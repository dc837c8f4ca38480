#include "tools/program.h"

int main(int argc, char** argv) { return vcas::run_program(argc, argv); }
