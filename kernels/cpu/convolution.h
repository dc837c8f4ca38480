// Linear maps of patches.
#pragma once

#include "kernels/cpu/compute.h"

namespace vcas {

// The operations of linear.cc where args.patches is set, f32 or f64.
template <class T>
void convolve(CpuContext& cpu, const LinearForward& args);
template <class T>
void convolve(CpuContext& cpu, const LinearBackwardInput& args);
// `rows` summands: number i is scale[i] dy[kept[i]]^T times patch row[kept[i]]. Without `kept` or
// `row` it is i itself, without a scale 1.
template <class T>
void convolve(CpuContext& cpu, const LinearBackwardWeight& args, std::int64_t rows);

}  // namespace vcas
