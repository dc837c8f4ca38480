#include "kernels/decorators/finite_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/bfloat16.h"
#include "kernels/decorators/each_tensor.h"

namespace vcas {
namespace {

// What `Operation::rounding` asks. Only how many elements are set matters here.
struct SetElements {
  Ops& ops;
  double top(const Tensor&) const { return 0; }
  std::int64_t longest_item(const Tensor&) const { return 1; }
  std::int64_t last(const Tensor& integers) const {
    return integers.dtype == DType::kI32 ? to_host<std::int32_t>(ops, integers).back()
                                         : to_host<std::int64_t>(ops, integers).back();
  }
};

bool is_floating(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kBF16;
}

}  // namespace

void FiniteOps::enter(const std::string& place) {
  place_ = place;
  inner_->enter(place);
}

std::vector<double> FiniteOps::values(const Tensor& tensor, std::int64_t count) {
  host_.resize(tensor.bytes());
  inner_->copy_to_host(host_.data(), tensor.data, host_.size());
  const auto widened = [&]<class T>(T) {
    const T* first = reinterpret_cast<const T*>(host_.data());
    return std::vector<double>(first, first + count);
  };
  if (tensor.dtype == DType::kF64) return widened(double{});
  if (tensor.dtype == DType::kF32) return widened(float{});
  return widened(bfloat16{});
}

// "\n  x [64, 128]: -1.2 to 3.4". `finite` becomes false where a number is not.
std::string FiniteOps::range_text(const char* name, const Tensor& tensor, bool& finite) {
  const std::vector<double> all = values(tensor, tensor.elements());
  double low = INFINITY, high = -INFINITY;
  for (const double value : all)
    if (std::isfinite(value)) low = std::min(low, value), high = std::max(high, value);
  const auto bad = std::ranges::count_if(all, [](double value) { return !std::isfinite(value); });
  finite &= bad == 0;
  return fmt::format("\n  {} {}: {}{}", name, tensor.shape.text(),
                     low <= high ? fmt::format("{:.4g} to {:.4g}", low, high) : "nothing finite",
                     bad > 0 ? fmt::format(", {} not finite", bad) : "");
}

void FiniteOps::check(const char* op, const char* name, const Tensor& tensor, std::int64_t count,
                      const std::string& inputs) {
  const std::vector<double> all =
      values(tensor, std::clamp<std::int64_t>(count, 0, tensor.elements()));
  const auto is_bad = [](double value) { return !std::isfinite(value); };
  const auto first = std::ranges::find_if(all, is_bad);
  if (first == all.end()) return;
  throw Error(ExitCode::kDiverged,
              fmt::format("{}{} makes {}[{}] {}, and {} of {} elements are not finite{}",
                          place_.empty() ? "" : place_ + ": ", op, name,
                          index_text(tensor.shape, first - all.begin()), *first,
                          std::ranges::count_if(all, is_bad), all.size(), inputs));
}

template <class Args>
void FiniteOps::run_watched(const Args& args) {
  if (!sees_each_call_) return inner_->run(args);
  if constexpr (Chain<Args>)
    for_each_part(args, [&](const auto& part) { watch_one(part); });
  else
    watch_one(args);
}

template <class Args>
void FiniteOps::watch_one(const Args& args) {
  std::string inputs;  // as they are before: an output may take the memory of one
  bool finite = true;
  args.visit(EachTensor{[&](const char* name, const Tensor& tensor, bool is_output) {
    if (!is_output && is_floating(tensor.dtype)) inputs += range_text(name, tensor, finite);
  }});
  if (!finite)
    inputs += "\n  what was not finite before came with the data, or from a layer's own loops";
  inner_->run(args);
  for_each_of(args, [&](const auto& one) {
    one.visit(EachTensor{[&](const char* name, const Tensor& tensor, bool is_output) {
      if (is_output && is_floating(tensor.dtype))
        check(Args::kName, name, tensor, one.rounding(name, SetElements{*inner_}).elements, inputs);
    }});
  });
}

#define VCAS_OP(Args) \
  void FiniteOps::run(const Args& args) { run_watched(args); }
VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP

}  // namespace vcas
