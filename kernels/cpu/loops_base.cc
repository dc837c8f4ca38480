// x86-64-v2 on x86, the compiler's default elsewhere (kernels/CMakeLists.txt).
#define VCAS_LEVEL base
#include "kernels/cpu/loops.inc"
