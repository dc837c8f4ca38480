// The program `vcas` with this project's layer and model: `funnel train funnel.json`.
#include "vcas/tools/program.h"

int main(int argc, char** argv) { return vcas::run_program(argc, argv); }
