// Owning memory of one backend.
#pragma once

#include <utility>

#include "kernels/ops.h"

namespace vcas {

class Buffer {
 public:
  Buffer() = default;
  // Zeroed. Throws Error(kOutOfMemory).
  Buffer(Ops& ops, std::size_t bytes)
      : ops_(&ops), data_(bytes ? ops.allocate(bytes) : nullptr), bytes_(bytes) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(ops_, other.ops_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer() {
    if (data_) ops_->deallocate(data_, bytes_);
  }

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Tensor at(std::size_t offset, DType dtype, const Shape& shape) const {
    return {static_cast<char*>(data_) + offset, dtype, shape};
  }

 private:
  Ops* ops_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace vcas
