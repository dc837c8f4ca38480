#include "kernels/op_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

namespace vcas {
namespace {

// Rows that a weight gradient sums.
std::int64_t rows_summed(const LinearBackwardWeight& args) {
  if (args.count) return std::llround(args.expected);
  return args.kept ? args.kept.elements() : args.dy.rows();
}

// How many rows of the tensors of full batches, and of those that kept rows are taken from, an
// operation reads.
template <class Args>
std::int64_t rows_read(const Args& args) {
  if constexpr (requires { args.kept, args.dweight; })
    if (args.kept) return rows_summed(args);
  if constexpr (requires { args.row, args.old_row; })
    return std::numeric_limits<std::int64_t>::max();  // `row` is an output
  else if constexpr (requires { args.row; })
    if (args.row) return args.row.elements();
  if constexpr (requires { args.dqkv; }) return args.dqkv.rows();
  if constexpr (requires { args.source_row, args.x; }) return args.source_row.elements();
  return std::numeric_limits<std::int64_t>::max();
}

struct ByteCounter {
  std::int64_t rows_read;
  double bytes = 0;
  void in(std::string_view name, const Tensor& tensor) {
    if (!tensor) return;
    const bool by_rows = name.ends_with("_full") || name == "x" || name == "dy";
    const double share = by_rows && tensor.rows() > rows_read
                             ? static_cast<double>(rows_read) / static_cast<double>(tensor.rows())
                             : 1;
    bytes += share * static_cast<double>(tensor.bytes());
  }
  void out(std::string_view, const Tensor& tensor, bool accumulate = false) {
    if (tensor) bytes += (accumulate ? 2 : 1) * static_cast<double>(tensor.bytes());
  }
};

double product(std::int64_t a, std::int64_t b, std::int64_t c) {
  return static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
}

template <class Args>
double flops(const Args&) {
  return 0;
}

double flops(const LinearForward& args) {
  return 2 * product(args.y.rows(), args.x.width(), args.y.width());
}

double flops(const LinearBackwardInput& args) {
  return 2 * product(args.dy.rows(), args.dx.width(), args.dy.width());
}

double flops(const LinearBackwardWeight& args) {
  return 2 * product(rows_summed(args), args.x_full.width(), args.dy.width());
}

double flops(const LinearWeightBlock& args) {
  return 2 * product(args.dy.rows(), args.out_index.elements(), args.in_index.elements());
}

// QK^T and PV
double flops(const AttentionForward& args) {
  return 4 * static_cast<double>(args.pairs) * static_cast<double>(args.y.width());
}

// QK^T again, dV = P^T dY, dP = dY V^T, dQ = dS K, dK = dS^T Q
double flops(const AttentionBackward& args) {
  return 10 * static_cast<double>(args.pairs) * static_cast<double>(args.dy.width());
}

// Sums over rows, and over everything, are first made of parts.
template <class Args>
std::int64_t launches(const Args&) {
  return 1;
}
std::int64_t launches(const SumSquares&) { return 2; }
std::int64_t launches(const LayerNormBackward& args) { return args.dgamma ? 2 : 1; }
std::int64_t launches(const AttentionBackward&) { return 2; }
// Keys, a sort, sums of segments, the segments of several sums. A sort is counted as one.
std::int64_t launches(const EmbeddingBackward& args) { return args.dy.rows() > 0 ? 4 : 0; }

template <class Args>
Cost cost(const Args& args) {
  ByteCounter counter{rows_read(args)};
  args.visit(counter);
  return {flops(args), counter.bytes, launches(args)};
}

template <class Args>
std::int64_t launches(const Group<Args>&) {
  return 1;
}
std::int64_t launches(const Group<ColumnSum>&) { return 2; }
// Those over all rows, in order, are dense products, one each. The others are one.
std::int64_t launches(const Group<LinearBackwardWeight>& group) {
  const auto dense = std::ranges::count_if(
      group, [](const LinearBackwardWeight& args) { return !args.row && !args.kept; });
  return dense + (dense < static_cast<std::ptrdiff_t>(group.size()));
}

template <class Args>
Cost cost(const Group<Args>& group) {
  Cost sum{.launches = launches(group)};
  for (const Args& one : group) {
    const Cost added = cost(one);
    sum.flops += added.flops;
    sum.bytes += added.bytes;
  }
  return sum;
}

}  // namespace

#define VCAS_OP(Args) \
  Cost op_cost(const Args& args) { return cost(args); }
VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP

}  // namespace vcas
