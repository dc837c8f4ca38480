// Finds the operation that makes the first number that is not finite.
#pragma once

#include <string>
#include <vector>

#include "kernels/decorators/forwarding_ops.h"

namespace vcas {

// Looks at what every operation reads and writes, from watch() on.
// Throws kDiverged for the first output with NaN or infinity. The message has place, operation,
// output, index, value, and the range of each input.
class FiniteOps final : public ForwardingOps {
 public:
  explicit FiniteOps(std::unique_ptr<Ops> inner) : ForwardingOps(std::move(inner)) {}

  void watch() { sees_each_call_ = true; }

  void enter(const std::string& place) override;
#define VCAS_OP(Args) void run(const Args& args) override;
  VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP

 private:
  template <class Args>
  void run_watched(const Args& args);
  template <class Args>
  void watch_one(const Args& args);
  // The first `count` elements.
  std::vector<double> values(const Tensor& tensor, std::int64_t count);
  std::string range_text(const char* name, const Tensor& tensor, bool& finite);
  void check(const char* op, const char* name, const Tensor& tensor, std::int64_t count,
             const std::string& inputs);

  std::string place_;
  std::vector<std::byte> host_;
};

}  // namespace vcas
