// Memory handed out front to back from one fixed block and taken back by frames.
#pragma once

#include <cstddef>
#include <string>

#include "core/tensor.h"

namespace vcas {

class Arena {
 public:
  static constexpr std::size_t kAlignment = 64;

  static constexpr std::size_t round_up(std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  Arena() = default;
  Arena(void* block, std::size_t capacity)
      : block_(static_cast<char*>(block)), capacity_(capacity) {}

  // Uninitialised. Throws InternalError when the block is too small: a layer's plan then stated too
  // few scratch bytes.
  Tensor take(DType dtype, const Shape& shape) {
    const std::size_t bytes = round_up(shape.elements() * dtype_bytes(dtype));
    VCAS_CHECK(used_ + bytes <= capacity_, "scratch of " + std::to_string(capacity_) +
                                               " bytes is too small for " + shape.text() +
                                               " with " + std::to_string(used_) + " bytes in use");
    Tensor tensor{block_ + used_, dtype, shape};
    used_ += bytes;
    return tensor;
  }

 private:
  friend class ArenaFrame;
  char* block_ = nullptr;
  std::size_t capacity_ = 0, used_ = 0;
};

// Gives back, at the end of its scope, all that was taken since its beginning.
class ArenaFrame {
 public:
  explicit ArenaFrame(Arena& arena) : arena_(arena), used_(arena.used_) {}
  ~ArenaFrame() { arena_.used_ = used_; }
  ArenaFrame(const ArenaFrame&) = delete;
  ArenaFrame& operator=(const ArenaFrame&) = delete;

 private:
  Arena& arena_;
  std::size_t used_;
};

}  // namespace vcas
