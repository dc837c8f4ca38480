#include "optim/variance_probe.h"

#include <algorithm>
#include <cmath>

namespace vcas {

namespace {

// Fewest entries looked at per tensor (fewer only where the tensor has fewer).
constexpr double kMinEntries = 256;

std::int64_t share_of(std::int64_t extent, double share) {
  return std::clamp<std::int64_t>(std::llround(share * static_cast<double>(extent)), 1, extent);
}

// `count` of the numbers below `extent`, ascending: selection sampling (Knuth, TAOCP 2, 3.4.2 S).
std::vector<std::int32_t> draw_subset(const PhiloxAddress& address, std::int64_t extent,
                                      std::int64_t count) {
  std::vector<std::int32_t> out;
  for (std::int64_t i = 0; static_cast<std::int64_t>(out.size()) < count; ++i) {
    const double left = static_cast<double>(extent - i);
    const double wanted = static_cast<double>(count) - static_cast<double>(out.size());
    if (left * philox_uniform(address, static_cast<std::uint64_t>(i)) < wanted)
      out.push_back(static_cast<std::int32_t>(i));
  }
  return out;
}

// Of the sum of n independent terms with the same distribution, from their sum and that of the
// first of them: E || first / a - rest / b ||^2 = (1 / a + 1 / b) var(term), a + b = n. One term
// tells nothing.
double variance_of_sum(const std::vector<double>& first, const std::vector<double>& all,
                       std::int64_t a, std::int64_t n) {
  if (a == 0) return 0;
  const double share = static_cast<double>(a) / static_cast<double>(n);
  double sum = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double difference = first[i] / share - (all[i] - first[i]) / (1 - share);
    sum += difference * difference;
  }
  return share * (1 - share) * sum;
}

double squared_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

}  // namespace

VarianceProbe::VarianceProbe(Graph& graph, Ops& ops, double fraction, int repeats)
    : graph_(graph), ops_(ops), repeats_(repeats) {
  const Parameters& parameters = graph.parameters();
  const DType wide = statistics_dtype(graph.dtype());
  blocks_.resize(parameters.size());
  sampled_sink_.full.resize(parameters.size());
  for (const int weight : graph.sampled_weights()) {
    const Shape& shape = parameters[static_cast<std::size_t>(weight)].shape;
    const double share =
        std::min(1.0, std::max(fraction, kMinEntries / static_cast<double>(shape.elements())));
    const std::int64_t out = share_of(shape[0], std::sqrt(share));
    const std::int64_t in = std::max(
        share_of(shape[1], share * static_cast<double>(shape[0]) / static_cast<double>(out)),
        std::min(shape[1],
                 static_cast<std::int64_t>(std::ceil(kMinEntries / static_cast<double>(out)))));
    blocks_[static_cast<std::size_t>(weight)] = {.block = {nullptr, wide, {out, in}},
                                                 .half = {nullptr, wide, {out, in}},
                                                 .out_index = {nullptr, DType::kI32, {out}},
                                                 .in_index = {nullptr, DType::kI32, {in}}};
  }
  std::size_t total = 0;
  const auto each_tensor = [&](auto&& visit) {
    for (const int weight : graph.sampled_weights()) {
      EntryBlock& entries = blocks_[static_cast<std::size_t>(weight)];
      for (Tensor* tensor : {&entries.block, &entries.half, &entries.out_index, &entries.in_index})
        visit(*tensor);
    }
  };
  each_tensor([&](const Tensor& tensor) { total += Arena::round_up(tensor.bytes()); });
  buffer_ = Buffer(ops, total);
  Arena arena(buffer_.data(), total);
  each_tensor([&](Tensor& tensor) { tensor = arena.take(tensor.dtype, tensor.shape); });
  sampled_sink_.blocks = blocks_;
  for (EntryBlock& entries : sampled_sink_.blocks) entries.half = {};
}

void VarianceProbe::begin(std::uint64_t seed, std::uint64_t number) {
  batches_.clear();
  for (const int weight : graph_.sampled_weights()) {
    const EntryBlock& entries = blocks_[static_cast<std::size_t>(weight)];
    const Shape& shape = graph_.parameters()[static_cast<std::size_t>(weight)].shape;
    for (const int axis : {0, 1}) {
      const Tensor& index = axis == 0 ? entries.out_index : entries.in_index;
      const RandomKey key{seed, Stream::kProbe, number,
                          static_cast<std::uint32_t>(2 * weight + axis), 0};
      const std::vector<std::int32_t> chosen =
          draw_subset(philox_address(key), shape[axis], index.elements());
      ops_.copy_to_device(index.data, chosen.data(), index.bytes());
    }
  }
}

void VarianceProbe::read_blocks(Tensor EntryBlock::*which,
                                std::vector<std::vector<double>>& out) const {
  out.clear();
  for (const int weight : graph_.sampled_weights()) {
    const Tensor& block = blocks_[static_cast<std::size_t>(weight)].*which;
    const auto n = static_cast<std::size_t>(block.elements());
    if (block.dtype == DType::kF64) {
      out.emplace_back(n);
      ops_.copy_to_host(out.back().data(), block.data, block.bytes());
    } else {
      std::vector<float> host(n);
      ops_.copy_to_host(host.data(), block.data, block.bytes());
      out.emplace_back(host.begin(), host.end());
    }
    // A pass that kept nothing writes no block; the next one must not see the values of this one.
    ops_.run(Fill{.y = block, .value = 0});
  }
}

void VarianceProbe::exact_backward(Exec& exec, const BackwardContext& context) {
  BatchMeasurement& batch = batches_.emplace_back();
  BackwardRecord record;
  record.item_norm.resize(static_cast<std::size_t>(graph_.gates()));
  GradSink sink = *context.sink;
  sink.blocks = blocks_;
  BackwardContext exact = context;
  exact.sink = &sink;
  exact.mode = SamplingMode::kExact;
  exact.record = &record;
  graph_.backward(exec, exact);
  read_blocks(&EntryBlock::block, exact_);
  std::vector<std::vector<double>> first;
  read_blocks(&EntryBlock::half, first);
  const std::int64_t items = graph_.items(), half = items / 2;
  for (std::size_t k = 0; k < exact_.size(); ++k)
    batch.batch_variance.push_back(variance_of_sum(first[k], exact_[k], half, items));
  batch.item_norm = std::move(record.item_norm);
}

void VarianceProbe::sampled_backwards(Exec& exec, const BackwardContext& context) {
  const std::size_t linears = graph_.sampled_weights().size();
  BatchMeasurement& batch = batches_.back();
  batch.act_error.assign(linears, 0.0);
  batch.weight_variance.assign(linears, 0.0);
  BackwardRecord record;
  BackwardContext sampled = context;
  sampled.sink = &sampled_sink_;
  sampled.mode = SamplingMode::kItems;
  sampled.record = &record;
  std::vector<std::vector<double>> gradient;
  for (int j = 0; j < repeats_; ++j) {
    sampled.repeat = static_cast<std::uint32_t>(1 + j);
    record.weight_variance.assign(linears, 0.0);
    graph_.backward(exec, sampled);
    read_blocks(&EntryBlock::block, gradient);
    for (std::size_t k = 0; k < linears; ++k) {
      batch.act_error[k] += squared_distance(gradient[k], exact_[k]) / repeats_;
      batch.weight_variance[k] += record.weight_variance[k] / repeats_;
    }
  }
}

std::vector<double> VarianceProbe::entry_shares() const {
  std::vector<double> shares;
  for (const int weight : graph_.sampled_weights()) {
    const auto i = static_cast<std::size_t>(weight);
    shares.push_back(static_cast<double>(blocks_[i].block.elements()) /
                     static_cast<double>(graph_.parameters()[i].shape.elements()));
  }
  return shares;
}

ProbeResult VarianceProbe::result() const {
  VCAS_CHECK(complete(), "a probe takes " + std::to_string(repeats_) + " batches");
  const std::size_t linears = graph_.sampled_weights().size();
  ProbeResult out;
  out.v_w.assign(linears, 0.0);
  out.v_s_weight.assign(linears, 0.0);
  const double m = repeats_;
  const std::vector<double> share = entry_shares();
  for (std::size_t k = 0; k < linears; ++k) {
    for (const BatchMeasurement& batch : batches_) {
      out.v_s_weight[k] += batch.batch_variance[k] / share[k] / m;
      out.v_act += batch.act_error[k] / share[k] / m;
      out.v_w[k] += batch.weight_variance[k] / m;
    }
    out.v_s += out.v_s_weight[k];
  }
  for (const BatchMeasurement& batch : batches_) out.item_norm.push_back(batch.item_norm);
  return out;
}

}  // namespace vcas
