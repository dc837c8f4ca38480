// x86-64-v4: AVX-512.
#if defined(__x86_64__)
#define VCAS_LEVEL v4
#include "kernels/cpu/loops.inc"
#endif
