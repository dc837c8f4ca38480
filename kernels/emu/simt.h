// The vocabulary of CUDA kernels for the host compiler.
// It is in the namespace that kernels/device is compiled into.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/emu/emulator.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

namespace vcas::emu {

#define VCAS_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(VCAS_PLACE) { Emulator::current().barrier({file, line}); }
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, VCAS_PLACE) {
  Emulator::current().collective(Collective::kSync, mask, 0, 0, {file, line});
}

template <class T>
T shuffle(unsigned mask, T value, unsigned source, Place place) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t) && std::is_trivially_copyable_v<T>);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = Emulator::current().collective(Collective::kShuffle, mask, bits, source, place);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
template <class T>
T __shfl_sync(unsigned mask, T value, int source, VCAS_PLACE) {
  return shuffle(mask, value, static_cast<unsigned>(source) % Emulator::kWarp, {file, line});
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, VCAS_PLACE) {
  return shuffle(mask, value, Emulator::current().lane() ^ static_cast<unsigned>(bits),
                 {file, line});
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, VCAS_PLACE) {
  const unsigned lane = Emulator::current().lane();
  return shuffle(mask, value, lane >= distance ? lane - distance : lane, {file, line});
}
inline unsigned __ballot_sync(unsigned mask, int predicate, VCAS_PLACE) {
  return static_cast<unsigned>(Emulator::current().collective(
      Collective::kBallot, mask, static_cast<std::uint64_t>(predicate != 0), 0, {file, line}));
}
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }

using std::isfinite;
using std::max;
using std::min;

#undef VCAS_PLACE

}  // namespace vcas::emu
