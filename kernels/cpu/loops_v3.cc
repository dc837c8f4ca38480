// x86-64-v3: AVX2 and FMA.
#if defined(__x86_64__)
#define VCAS_LEVEL v3
#include "kernels/cpu/loops.inc"
#endif
