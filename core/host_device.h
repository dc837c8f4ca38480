// Marks functions that run on the GPU as well.
#pragma once

#if defined(__CUDACC__)
#define VCAS_HOST_DEVICE __host__ __device__
#else
#define VCAS_HOST_DEVICE
#endif
