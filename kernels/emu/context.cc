#include "kernels/emu/context.h"

#include <cstdlib>

namespace vcas::emu {

void* Context::allocate(std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;  // cudaMalloc's
  void* data = nullptr;
  if (posix_memalign(&data, kAlignment, bytes ? bytes : 1) != 0 || !data)
    throw Error(ExitCode::kOutOfMemory,
                "no memory for " + std::to_string(bytes) + " bytes on the emulated device",
                "a smaller batch or micro-batch needs less");
  std::memset(data, 0, bytes);
  return data;
}

void Context::deallocate(void* data) { std::free(data); }

void* Context::scratch(std::size_t bytes) {
  if (bytes > scratch_bytes_) {
    deallocate(scratch_);
    scratch_ = nullptr;
    scratch_bytes_ = 0;
    scratch_ = allocate(bytes);
    scratch_bytes_ = bytes;
  }
  return scratch_;
}

}  // namespace vcas::emu
