// Owning memory of one backend, whose Ops outlives it.
#pragma once

#include <utility>
#include <vector>

#include "core/arena.h"
#include "kernels/ops.h"

namespace vcas {

class Buffer {
 public:
  Buffer() = default;
  // Zeroed. Throws Error(kOutOfMemory).
  Buffer(Ops& ops, std::size_t bytes)
      : ops_(&ops), data_(bytes ? ops.allocate(bytes) : nullptr), bytes_(bytes) {}
  // For `tensors`, which have their types and shapes and are given their memory.
  Buffer(Ops& ops, const std::vector<Tensor*>& tensors) : Buffer(ops, bytes_of(tensors)) {
    Arena arena(data_, bytes_);
    for (Tensor* tensor : tensors) *tensor = arena.take(tensor->dtype, tensor->shape);
  }
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
  std::ptrdiff_t offset_of(const Tensor& tensor) const {
    return static_cast<const char*>(tensor.data) - static_cast<const char*>(data_);
  }
  Tensor at(std::size_t offset, DType dtype, const Shape& shape) const {
    return {static_cast<char*>(data_) + offset, dtype, shape};
  }

 private:
  static std::size_t bytes_of(const std::vector<Tensor*>& tensors) {
    std::size_t bytes = 0;
    for (const Tensor* tensor : tensors) bytes += Arena::round_up(tensor->bytes());
    return bytes;
  }

  Ops* ops_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace vcas
