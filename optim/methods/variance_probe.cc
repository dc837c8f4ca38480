#include "optim/methods/variance_probe.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "core/read_numbers.h"
#include "optim/methods/item_choice.h"

namespace vcas {

namespace {

// Fewest buckets of a sketch (fewer only where the weight has fewer entries).
constexpr double kMinBuckets = 256;

std::int64_t share_of(std::int64_t extent, double share) {
  return std::clamp<std::int64_t>(std::llround(share * static_cast<double>(extent)), 1, extent);
}

double squared_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

void scale(std::vector<double>& values, double factor) {
  for (double& value : values) value *= factor;
}

// Inner products of `compared` unrelated gradients. Their norms are as these scores, or alike where
// there are none. A sum of `items` such gradients has this variance.
std::vector<double> gram_by_scores(const std::vector<double>& score, std::int64_t compared,
                                   std::int64_t items, double variance) {
  const auto n = static_cast<std::size_t>(compared);
  std::vector<double> gram(n * n);
  for (std::size_t i = 0; i < n; ++i) gram[i * (n + 1)] = score.empty() ? 1 : score[i] * score[i];
  if (const double own = variance_of_sum(gram, items); own > 0) scale(gram, variance / own);
  return gram;
}

}  // namespace

void ExactLook::lap(Exec& exec, double* seconds) {
  if (!weight_seconds.empty()) clock_.lap(exec.ops, measured, seconds);
}

void ExactLook::begin(Exec& exec) {
  BackwardHooks::begin(exec);
  sketches.clear();
  std::ranges::fill(weight_seconds, 0.0);
  std::ranges::fill(item_seconds, 0.0);
  below_gate_ = nullptr;
  if (!measured) return;
  // A pass that keeps nothing writes nothing; the values of the last batch must not be read then.
  static const std::string place = "gradients/probe";
  exec.ops.enter(place);
  exec.ops.run(Fill{.y = measured, .value = 0});
}

std::span<const RowSets> ExactLook::at_gate(Exec& exec, const GateSite& site, Gradient& gradient,
                                            const RowSets& rows) {
  lap(exec, below_gate_);
  exec.ops.enter(site.probe_place);
  exec.ops.run(
      item_scores(item_score[site.number], gradient.dy, rows, site.layout, scores_per_token));
  lap(exec, nullptr);
  if (!item_seconds.empty()) below_gate_ = &item_seconds[site.number];
  return {&rows, 1};
}

void ExactLook::weight_gradient(Exec& exec, const WeightUse& use) {
  lap(exec, below_gate_);
  BackwardHooks::weight_gradient(exec, use);
  lap(exec, use.site < 0 || weight_seconds.empty() ? below_gate_ : &weight_seconds[use.site]);
  sketches.add(use);
  lap(exec, nullptr);
}

void ExactLook::flush(Exec& exec) {
  BackwardHooks::flush(exec);
  lap(exec, below_gate_);
  sketches.flush(exec);
  lap(exec, nullptr);
}

VarianceProbe::VarianceProbe(Graph& graph, Ops& ops, SampledBackward& sampled,
                             const Options& options)
    : graph_(graph), ops_(ops), sampled_backward_(sampled), options_(options) {
  const std::int64_t linears = std::ssize(graph.sampled_weights());
  const std::int64_t items = options.most_items > 0 ? options.most_items : graph.limits().max_items;
  const std::int64_t compared = std::min(items, kMostItemsCompared);
  const DType wide = statistics_dtype(graph.dtype());
  std::vector<Tensor*> measured;
  const auto want = [&](Tensor& tensor, DType dtype, const Shape& shape) {
    tensor = {nullptr, dtype, shape};
    measured.push_back(&tensor);
  };
  plan_sketches(options.fraction);
  exact_.scores_per_token = options.scores_per_token;
  exact_.item_score.resize(graph.gates());
  for (Tensor& score : exact_.item_score) want(score, wide, {items});
  if (options.seconds) {
    exact_.weight_seconds.resize(linears);
    exact_.item_seconds.resize(exact_.item_score.size());
  }
  sampled_.resize(options.most_passes);
  for (SampledLook& look : sampled_) {
    look.linears = exact_.sketches.linears;
    for (GradientSketch& linear : look.linears) want(linear.total, wide, {linear.buckets()});
    want(look.weight_variance, DType::kF64, {linears});
  }
  if (mixes_items(graph)) other_ = exact_.sketches.linears;
  for (GradientSketch& linear : other_) want(linear.total, wide, {linear.buckets()});
  std::int64_t most_buckets = 0;
  for (std::int64_t k = 0; k < linears; ++k) {
    GradientSketch& linear = exact_.sketches.linears[k];
    most_buckets = std::max(most_buckets, linear.buckets());
    want(linear.total, wide, {linear.buckets()});
    if (other_.empty()) want(linear.gram, wide, {compared, compared});
    const std::int64_t most_rows = graph.plan().max_rows(graph.weight_layout(static_cast<int>(k)));
    if (!options.curves) continue;
    want(linear.row_score, wide, {most_rows});
    want(linear.drawn, wide, {linear.buckets()});
    want(linear.drawn_variance, DType::kF64, {1});
  }
  measured_ = Buffer(ops, measured);
  exact_.measured =
      measured_.at(0, wide, {static_cast<std::int64_t>(measured_.bytes() / dtype_bytes(wide))});
  Tensor space{nullptr, wide, {items, most_buckets}};
  space_ = Buffer(ops, {&space});
  exact_.sketches.space = space;
  mailbox_ = ops.make_mailbox(measured_.bytes());
}

// Sets the buckets, and makes room for the signs.
void VarianceProbe::plan_sketches(double fraction) {
  std::vector<GradientSketch>& linears = exact_.sketches.linears;
  linears.resize(graph_.sampled_weights().size());
  std::vector<Tensor*> signs;
  for (std::size_t k = 0; k < linears.size(); ++k) {
    const auto weight = static_cast<std::size_t>(graph_.sampled_weights()[k]);
    const Shape& shape = graph_.parameters()[weight].shape;
    const double share =
        std::min(1.0, std::max(fraction, kMinBuckets / static_cast<double>(shape.elements())));
    GradientSketch& linear = linears[k];
    linear.out_buckets = share_of(shape[0], std::sqrt(share));
    const double rest = static_cast<double>(shape[0]) / static_cast<double>(linear.out_buckets);
    linear.in_buckets = share_of(shape[1], std::min(1.0, share * rest));
    linear.out_sign = {nullptr, statistics_dtype(graph_.dtype()), {shape[0]}};
    linear.in_sign = {nullptr, statistics_dtype(graph_.dtype()), {shape[1]}};
    signs.insert(signs.end(), {&linear.out_sign, &linear.in_sign});
  }
  signs_ = Buffer(ops_, signs);
}

void VarianceProbe::begin(std::uint64_t seed, std::uint64_t number, int batches, int passes) {
  if (sent_) receive();
  batches_.clear();
  wanted_batches_ = batches;
  wanted_passes_ = passes;
  std::vector<std::byte> drawn(signs_.bytes());
  const auto draw = [&](const Tensor& sign, std::uint32_t site) {
    const PhiloxAddress address = philox_address({seed, Stream::kProbe, number, site, 0});
    std::byte* to = drawn.data() + signs_.offset_of(sign);
    for (std::int64_t i = 0; i < sign.elements(); ++i) {
      const double value = philox_uniform(address, i) < 0.5 ? -1.0 : 1.0;
      if (sign.dtype == DType::kF64) {
        reinterpret_cast<double*>(to)[i] = value;
      } else {
        reinterpret_cast<float*>(to)[i] = static_cast<float>(value);
      }
    }
  };
  std::uint32_t site = 0;
  for (const GradientSketch& linear : exact_.sketches.linears) {
    draw(linear.out_sign, site++);
    draw(linear.in_sign, site++);
  }
  ops_.copy_to_device(signs_.data(), drawn.data(), drawn.size());
  // Independent draws have the variance of Eq. 3.
  const SampledBackward::Pass& pass = sampled_backward_.pass;
  if (options_.curves && pass.selection == Selection::kSystematic)
    for (std::size_t k = 0; k < pass.ratios.weight.size(); ++k)
      exact_.sketches.linears[k].drawn_ratio = pass.ratios.weight[k];
}

bool VarianceProbe::draws_rows() const {
  return std::ranges::any_of(exact_.sketches.linears,
                             [](const GradientSketch& linear) { return linear.drawn_ratio < 1; });
}

int VarianceProbe::passes() const {
  const KeepRatios& ratios = sampled_backward_.pass.ratios;
  if (drops_some(ratios.act)) return wanted_passes_;
  return drops_some(ratios.weight) ? std::min(wanted_passes_, 1) : 0;
}

// Sizes and seconds of the batch that the graph holds, and how many passes it needs.
MeasuredBatch VarianceProbe::batch_sizes() const {
  MeasuredBatch batch;
  batch.items = graph_.items();
  batch.weight_seconds = exact_.weight_seconds;
  batch.item_seconds = exact_.item_seconds;
  batch.passes = passes();
  const std::int64_t compared = std::min(batch.items, kMostItemsCompared);
  const auto offsets = [](const RowSet& rows, std::int64_t items) {
    std::vector<std::int64_t> out;
    for (std::int64_t n = 0; n <= items; ++n) out.push_back(rows.rows_before(n));
    return out;
  };
  for (std::size_t k = 0; k < graph_.sampled_weights().size(); ++k)
    batch.offsets.push_back(
        offsets(graph_.full_rows().of(graph_.weight_layout(static_cast<int>(k))), compared));
  if (const RowSet* tokens = graph_.full_rows().find(Layout::tokens())) {
    const std::vector<std::int64_t> of_tokens = offsets(*tokens, batch.items);
    for (std::size_t n = 0; n + 1 < of_tokens.size(); ++n)
      batch.tokens.push_back(static_cast<double>(of_tokens[n + 1] - of_tokens[n]));
  } else {
    batch.tokens.assign(batch.items, 1.0);
  }
  return batch;
}

void VarianceProbe::sampled_backwards(Exec& exec, const BackwardContext& context,
                                      const OtherForward& other) {
  if (sent_) receive();
  batches_.push_back(batch_sizes());
  SampledBackward::Pass& pass = sampled_backward_.pass;
  struct PassOfTraining {  // comes back where a backward throws, too
    SampledBackward& sampled;
    SampledBackward::Pass pass;
    ~PassOfTraining() {
      sampled.sketches.linears.clear();
      sampled.pass = std::move(pass);
    }
  } before{sampled_backward_, pass};
  pass.samples_rows = false;
  pass.moves_thresholds = false;
  sampled_backward_.sketches.space = exact_.sketches.space;
  const std::vector<Tensor> nowhere(graph_.parameters().size());
  BackwardContext sampled = context;
  sampled.gradients.tensors = nowhere;
  sampled.buckets = {};
  sampled.hooks = &sampled_backward_;
  const auto passes = static_cast<std::size_t>(batches_.back().passes);
  for (SampledLook& look : std::span(sampled_).first(passes)) {
    ++pass.repeat;
    sampled_backward_.sketches.linears = look.linears;
    pass.weight_variance = look.weight_variance;
    graph_.backward(exec, sampled);
  }
  if (!other_.empty()) {
    Exec of_other = other();
    other_items_ = graph_.items();
    std::ranges::fill(pass.ratios.act, 1.0);
    pass.weight_variance = {};
    sampled_backward_.sketches.linears = other_;
    graph_.backward(of_other, sampled);
  }
  mailbox_->send(measured_.data(), measured_.bytes());
  sent_ = true;
}

// The first `count` numbers of a tensor of measured_, which lies at `host`.
std::vector<double> VarianceProbe::values(const std::byte* host, const Tensor& tensor,
                                          std::int64_t count) const {
  std::vector<double> out(static_cast<std::size_t>(count));
  read_numbers(host + measured_.offset_of(tensor), tensor.dtype, std::span(out));
  return out;
}

// V_s from the gradients of the batch and the other one, N and N' items: the squared distance of
// their means over its expectation, for one item, times N.
double VarianceProbe::variance_of_two(const std::byte* host, std::size_t linear) const {
  const auto items = static_cast<double>(batches_.back().items);
  const auto other_items = static_cast<double>(other_items_);
  const auto mean = [&](const Tensor& total, double count) {
    std::vector<double> sums = values(host, total, total.elements());
    scale(sums, 1 / count);
    return sums;
  };
  const double squares = squared_distance(mean(exact_.sketches.linears[linear].total, items),
                                          mean(other_[linear].total, other_items));
  return items * squares / (1 / items + 1 / other_items);
}

void VarianceProbe::keep_measured(int batches) {
  if (sent_) receive();
  batches_.erase(batches_.begin() + batches, batches_.end());
}

// What the last batch has measured.
void VarianceProbe::receive() {
  const std::byte* host = mailbox_->receive();
  sent_ = false;
  MeasuredBatch& batch = batches_.back();
  const std::int64_t compared = std::min(batch.items, kMostItemsCompared);
  const std::size_t linears = exact_.sketches.linears.size();
  for (const Tensor& score : exact_.item_score)
    batch.item_score.push_back(values(host, score, batch.items));
  const std::vector<double> top_score =
      batch.item_score.empty() ? std::vector<double>{} : batch.item_score.back();
  batch.v_act.assign(linears, 0.0);
  batch.v_w.assign(linears, 0.0);
  batch.drawn_error.assign(linears, 0.0);
  batch.drawn_variance.assign(linears, 0.0);
  for (std::size_t k = 0; k < linears; ++k) {
    const GradientSketch& linear = exact_.sketches.linears[k];
    batch.gram.push_back(other_.empty() ? values(host, linear.gram, compared * compared)
                                        : gram_by_scores(top_score, compared, batch.items,
                                                         variance_of_two(host, k)));
    if (linear.row_score)
      batch.row_score.push_back(values(host, linear.row_score, batch.offsets[k].back()));
    const std::int64_t buckets = linear.buckets();
    const std::vector<double> exact = values(host, linear.total, buckets);
    if (linear.drawn_ratio < 1) {
      batch.drawn_error[k] = squared_distance(values(host, linear.drawn, buckets), exact);
      batch.drawn_variance[k] = values(host, linear.drawn_variance, 1).front();
    }
    for (const SampledLook& look : std::span(sampled_).first(batch.passes))
      batch.v_act[k] +=
          squared_distance(values(host, look.linears[k].total, buckets), exact) / batch.passes;
  }
  if (batch.passes < wanted_passes_) batch.v_act.assign(linears, 0.0);  // not by rounding
  for (const SampledLook& look : std::span(sampled_).first(batch.passes)) {
    const std::vector<double> variance = values(host, look.weight_variance, linears);
    for (std::size_t k = 0; k < linears; ++k) batch.v_w[k] += variance[k] / batch.passes;
  }
}

std::vector<double> VarianceProbe::sketch_shares() const {
  std::vector<double> shares;
  for (std::size_t k = 0; k < exact_.sketches.linears.size(); ++k) {
    const auto weight = static_cast<std::size_t>(graph_.sampled_weights()[k]);
    const GradientSketch& linear = exact_.sketches.linears[k];
    shares.push_back(static_cast<double>(linear.buckets()) /
                     static_cast<double>(graph_.parameters()[weight].shape.elements()));
  }
  return shares;
}

const std::vector<MeasuredBatch>& VarianceProbe::result() {
  VCAS_CHECK(complete(), "a probe takes " + std::to_string(wanted_batches_) + " batches");
  if (sent_) receive();
  return batches_;
}

}  // namespace vcas
