#include "kernels/op_cost.h"

#include <algorithm>

namespace vcas {
namespace {

struct ByteCounter {
  std::int64_t rows_read;
  Patches patches;  // rows of x are then pixels, and count as the patches of their items
  double bytes = 0;
  void in(std::string_view name, const Tensor& tensor) {
    if (!tensor) return;
    const bool by_rows = name.ends_with("_full") || name == "x" || name == "dy";
    const std::int64_t rows = patches && name.starts_with("x")
                                  ? tensor.rows() / patches.in_rows() * patches.out_rows()
                                  : tensor.rows();
    const double share = by_rows && rows > rows_read
                             ? static_cast<double>(rows_read) / static_cast<double>(rows)
                             : 1;
    bytes += share * static_cast<double>(tensor.bytes());
  }
  void out(std::string_view, const Tensor& tensor, bool accumulate = false) {
    if (tensor) bytes += (accumulate ? 2 : 1) * static_cast<double>(tensor.bytes());
  }
};

template <class Args>
Cost cost(const Args& args) {
  Cost sum;
  std::int64_t group_launches = 0;
  for_each_of(args, [&](const auto& one) {
    const Work work = one.work();
    ByteCounter counter{work.rows_read, {}};
    if constexpr (requires { one.patches.in_rows(); }) counter.patches = one.patches;
    one.visit(counter);
    sum.flops += work.flops;
    sum.bytes += counter.bytes;
    sum.launches += work.launches;
    group_launches = std::max(group_launches, work.group_launches);
  });
  if constexpr (Chain<Args>)
    sum.launches = args.launches();
  else
    sum.launches += group_launches;
  return sum;
}

}  // namespace

#define VCAS_OP(Args) \
  Cost op_cost(const Args& args) { return cost(args); }
VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP

}  // namespace vcas
