#include "optim/methods/variance_probe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

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

void ExactLook::begin(Exec& exec) {
  BackwardHooks::begin(exec);
  if (!measured) return;
  // A pass that keeps nothing writes nothing; the values of the last batch must not be read then.
  static const std::string place = "gradients/probe";
  exec.ops.enter(place);
  exec.ops.run(Fill{.y = measured, .value = 0});
}

const RowSets& ExactLook::at_gate(Exec& exec, const GateSite& site, Gradient& gradient,
                                  const RowSets& rows) {
  const RowSet& own = rows.of(site.layout);
  const Tensor& norm = item_norm[static_cast<std::size_t>(site.number)];
  exec.ops.enter(site.probe_place);
  exec.ops.run(ItemNorm{
      .norm = {norm.data, norm.dtype, {own.items}}, .x = gradient.dy, .offsets = own.offsets});
  return rows;
}

void ExactLook::weight_gradient(Exec& exec, const WeightUse& use) {
  BackwardHooks::weight_gradient(exec, use);
  // Behind the product a look finds its input in the cache, so its time is the probe's alone.
  if (use.site >= 0 && !entries.empty())
    look_at_entries(exec, entries[static_cast<std::size_t>(use.site)], use);
}

VarianceProbe::VarianceProbe(Graph& graph, Ops& ops, SampledBackward& sampled, double fraction,
                             int repeats)
    : graph_(graph),
      ops_(ops),
      sampled_backward_(sampled),
      repeats_(repeats),
      no_gradients_(graph.parameters().size()) {
  const Parameters& parameters = graph.parameters();
  const DType wide = statistics_dtype(graph.dtype());
  std::vector<Tensor*> indices, measured;
  const auto want = [](std::vector<Tensor*>& list, Tensor& tensor, DType dtype,
                       const Shape& shape) {
    tensor = {nullptr, dtype, shape};
    list.push_back(&tensor);
  };
  sampled_.resize(static_cast<std::size_t>(repeats));
  exact_.entries.resize(graph.sampled_weights().size());
  for (std::size_t k = 0; k < exact_.entries.size(); ++k) {
    const auto weight = static_cast<std::size_t>(graph.sampled_weights()[k]);
    const Shape& shape = parameters[weight].shape;
    const double share =
        std::min(1.0, std::max(fraction, kMinEntries / static_cast<double>(shape.elements())));
    const std::int64_t out = share_of(shape[0], std::sqrt(share));
    const std::int64_t in = std::max(
        share_of(shape[1], share * static_cast<double>(shape[0]) / static_cast<double>(out)),
        std::min(shape[1],
                 static_cast<std::int64_t>(std::ceil(kMinEntries / static_cast<double>(out)))));
    EntryBlock& entries = exact_.entries[k];
    want(indices, entries.out_index, DType::kI32, {out});
    want(indices, entries.in_index, DType::kI32, {in});
    want(measured, entries.block, wide, {out, in});
    want(measured, entries.half, wide, {out, in});
  }
  exact_.item_norm.resize(static_cast<std::size_t>(graph.gates()));
  for (Tensor& norm : exact_.item_norm) want(measured, norm, wide, {graph.limits().max_items});
  indices_ = Buffer(ops, indices);
  for (SampledLook& look : sampled_) {
    look.entries = exact_.entries;  // the same
    for (EntryBlock& entries : look.entries) {
      entries.half = {};
      want(measured, entries.block, wide, entries.block.shape);
    }
    want(measured, look.weight_variance, DType::kF64, {std::ssize(graph.sampled_weights())});
  }
  measured_ = Buffer(ops, measured);
  exact_.measured =
      measured_.at(0, wide, {static_cast<std::int64_t>(measured_.bytes() / dtype_bytes(wide))});
  mailbox_ = ops.make_mailbox(measured_.bytes());
}

void VarianceProbe::begin(std::uint64_t seed, std::uint64_t number) {
  if (sent_) receive();
  batches_.clear();
  std::vector<std::byte> chosen(indices_.bytes());
  for (std::size_t k = 0; k < exact_.entries.size(); ++k) {
    const EntryBlock& entries = exact_.entries[k];
    const int weight = graph_.sampled_weights()[k];
    const Shape& shape = graph_.parameters()[static_cast<std::size_t>(weight)].shape;
    for (const int axis : {0, 1}) {
      const Tensor& index = axis == 0 ? entries.out_index : entries.in_index;
      const RandomKey key{seed, Stream::kProbe, number,
                          static_cast<std::uint32_t>(2 * weight + axis), 0};
      const std::vector<std::int32_t> subset =
          draw_subset(philox_address(key), shape[axis], index.elements());
      std::memcpy(chosen.data() + indices_.offset_of(index), subset.data(), index.bytes());
    }
  }
  ops_.copy_to_device(indices_.data(), chosen.data(), chosen.size());
}

int VarianceProbe::passes() const {
  const KeepRatios& ratios = sampled_backward_.pass.ratios;
  return drops_some(ratios.act) ? repeats_ : drops_some(ratios.weight) ? 1 : 0;
}

void VarianceProbe::sampled_backwards(Exec& exec, const BackwardContext& context) {
  if (sent_) receive();
  const SampledBackward::Pass training = sampled_backward_.pass;
  SampledBackward::Pass& pass = sampled_backward_.pass;
  pass.samples_rows = false;
  BackwardContext sampled = context;
  sampled.gradients.tensors = no_gradients_;
  sampled.hooks = &sampled_backward_;
  const int passes = this->passes();
  for (SampledLook& look : std::span(sampled_).first(static_cast<std::size_t>(passes))) {
    ++pass.repeat;
    pass.entries = look.entries;
    pass.weight_variance = look.weight_variance;
    graph_.backward(exec, sampled);
  }
  sampled_backward_.pass = training;
  mailbox_->send(measured_.data(), measured_.bytes());
  sent_ = true;
  batches_.push_back({.items = graph_.items(), .passes = passes});
}

// What the last batch has measured.
void VarianceProbe::receive() {
  const std::byte* host = mailbox_->receive();
  sent_ = false;
  const auto values = [&](const Tensor& tensor) {
    const std::byte* from = host + measured_.offset_of(tensor);
    std::vector<double> out(static_cast<std::size_t>(tensor.elements()));
    if (tensor.dtype == DType::kF64) {
      std::memcpy(out.data(), from, tensor.bytes());
    } else {
      std::vector<float> narrow(out.size());
      std::memcpy(narrow.data(), from, tensor.bytes());
      out.assign(narrow.begin(), narrow.end());
    }
    return out;
  };
  BatchMeasurement& batch = batches_.back();
  const std::int64_t half = batch.items / 2;
  for (std::size_t k = 0; k < exact_.entries.size(); ++k) {
    const EntryBlock& entries = exact_.entries[k];
    const std::vector<double> exact = values(entries.block);
    batch.batch_variance.push_back(variance_of_sum(values(entries.half), exact, half, batch.items));
    double error = 0;
    for (int j = 0; j < repeats_ && batch.passes == repeats_; ++j)
      error +=
          squared_distance(values(sampled_[static_cast<std::size_t>(j)].entries[k].block), exact) /
          repeats_;
    batch.act_error.push_back(error);
  }
  batch.weight_variance.assign(graph_.sampled_weights().size(), 0.0);
  for (int j = 0; j < repeats_ && batch.passes > 0; ++j) {
    const auto pass = static_cast<std::size_t>(std::min(j, batch.passes - 1));
    const std::vector<double> variance = values(sampled_[pass].weight_variance);
    for (std::size_t k = 0; k < variance.size(); ++k)
      batch.weight_variance[k] += variance[k] / repeats_;
  }
  for (const Tensor& norm : exact_.item_norm) {
    batch.item_norm.push_back(values(norm));
    batch.item_norm.back().resize(static_cast<std::size_t>(batch.items));
  }
}

std::vector<double> VarianceProbe::entry_shares() const {
  std::vector<double> shares;
  for (std::size_t k = 0; k < exact_.entries.size(); ++k) {
    const auto weight = static_cast<std::size_t>(graph_.sampled_weights()[k]);
    shares.push_back(static_cast<double>(exact_.entries[k].block.elements()) /
                     static_cast<double>(graph_.parameters()[weight].shape.elements()));
  }
  return shares;
}

ProbeResult VarianceProbe::result() {
  VCAS_CHECK(complete(), "a probe takes " + std::to_string(repeats_) + " batches");
  if (sent_) receive();
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
