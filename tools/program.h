// vcas: one program with sub-commands; called as vcas-train it is `vcas train`.
// A `main` of one's own that calls it has the layers, models and other parts linked beside it.
#pragma once

namespace vcas {

// Does what the command line asks for, and returns an exit code (docs/commands.md).
// To be called once, first in main: it may start the program anew, with OpenBLAS's better kernel.
int run_program(int argc, char** argv);

}  // namespace vcas
