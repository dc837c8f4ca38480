#include "kernels/op_cost.h"

namespace vcas {
namespace {

struct ByteCounter {
  double bytes = 0;
  void in(const char*, const Tensor& tensor) {
    if (tensor) bytes += static_cast<double>(tensor.bytes());
  }
  void out(const char* name, const Tensor& tensor, bool accumulate = false) {
    in(name, tensor);
    if (accumulate) in(name, tensor);
  }
};

double product(std::int64_t a, std::int64_t b, std::int64_t c) {
  return static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
}

// Sum over the items of T^2.
double squared_lengths(const Tensor& offsets) {
  const auto* offset = offsets.ptr<std::int64_t>();
  double sum = 0;
  for (std::int64_t n = 0; n + 1 < offsets.elements(); ++n)
    sum += product(offset[n + 1] - offset[n], offset[n + 1] - offset[n], 1);
  return sum;
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
  const std::int64_t rows = args.count ? *args.count.ptr<std::int32_t>() : args.dy.rows();
  return 2 * product(rows, args.x_full.width(), args.dy.width());
}

double flops(const LinearWeightBlock& args) {
  return 2 * product(args.dy.rows(), args.out_index.elements(), args.in_index.elements());
}

// Pairs of a query and a key: each row of an item with each, or its first row with each.
double attended_pairs(const Tensor& query, const Tensor& qkv, const Tensor& offsets) {
  return query ? static_cast<double>(qkv.rows()) : squared_lengths(offsets);
}

// QK^T and PV
double flops(const AttentionForward& args) {
  return 4 * attended_pairs(args.query, args.qkv, args.offsets) *
         static_cast<double>(args.y.width());
}

// QK^T again, dV = P^T dY, dP = dY V^T, dQ = dS K, dK = dS^T Q
double flops(const AttentionBackward& args) {
  return 10 * attended_pairs(args.dquery, args.dqkv, args.offsets) *
         static_cast<double>(args.dy.width());
}

}  // namespace

#define VCAS_OP(Args)                    \
  Cost op_cost(const Args& args) {       \
    ByteCounter counter;                 \
    args.visit(counter);                 \
    return {flops(args), counter.bytes}; \
  }
VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP

}  // namespace vcas
