#include "optim/gradient_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/read_numbers.h"
#include "optim/evaluator.h"
#include "optim/methods/item_choice.h"
#include "optim/methods/variance_probe.h"

namespace vcas {
namespace {

// Steps that neither training nor its probes reach.
constexpr std::uint64_t kFirstStep = std::uint64_t{3} << 38;
// A draw is addressed by the step of its forward and a repeat (core/philox.h).
constexpr std::int64_t kDrawsOfForward = 32;
// Random directions besides the one along the gradient; each takes a bit of a byte.
constexpr int kRandomDirections = 3;
constexpr int kDirections = 1 + kRandomDirections;
// A kind of sampling that fails is judged by so many times as many draws, all new: a rare outcome
// that few draws have missed makes a standard error too small.
constexpr std::int64_t kMoreDraws = 8;
// Sketches of a forward, for closed forms.
constexpr int kSketches = 4;

PhiloxAddress address_of(std::uint64_t seed, std::uint32_t site) {
  return philox_address({.seed = seed, .stream = Stream::kProbe, .step = kFirstStep, .site = site});
}

// The numbers of a tensor of floating point, in double.
std::vector<double> read(Ops& ops, const Tensor& tensor) {
  const auto host = to_host<std::byte>(ops, tensor);
  std::vector<double> out(static_cast<std::size_t>(tensor.elements()));
  read_numbers(host.data(), tensor.dtype, std::span(out));
  return out;
}

double norm(std::span<const double> values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

// The part of a slab's numbers that belongs to each parameter.
std::vector<std::span<const double>> parts(const Parameters& parameters,
                                           const std::vector<double>& slab) {
  std::vector<std::span<const double>> out;
  for (const Parameter& parameter : parameters.list()) {
    const auto [begin, end] = parameters.range(parameter);
    out.push_back(std::span(slab).subspan(static_cast<std::size_t>(begin),
                                          static_cast<std::size_t>(end - begin)));
  }
  return out;
}

// Mean and standard error of a sequence (Welford's update).
class Statistics {
 public:
  void add(double value) {
    ++count_;
    const double before = value - mean_;
    mean_ += before / count_;
    squares_ += before * (value - mean_);
  }
  double mean() const { return mean_; }
  // Student's t of the mean, with `rounding` as another error of it, as a normal deviate
  // (Wallace, Annals of Mathematical Statistics 30, 1959).
  double normal_deviate(double rounding) const {
    if (mean_ == 0) return 0;
    const double t = mean_ / error(rounding);
    return std::copysign(shrink() * std::sqrt(freedom() * std::log1p(t * t / freedom())), t);
  }
  // The mean that would have this deviate.
  double mean_of_deviate(double z, double rounding) const {
    const double root = z / shrink();
    return error(rounding) * std::sqrt(freedom() * std::expm1(root * root / freedom()));
  }

 private:
  double freedom() const { return count_ - 1; }
  double shrink() const { return (8 * freedom() + 1) / (8 * freedom() + 3); }
  double error(double rounding) const {
    return std::hypot(std::sqrt(squares_ / freedom() / count_), rounding);
  }

  double count_ = 0, mean_ = 0, squares_ = 0;
};

// Draws among the first items of a batch, and leaves out all that follow them.
class FirstItems final : public ItemChooser {
 public:
  // `seed`: of the scores.
  FirstItems(std::int64_t items, double ratio, std::uint64_t seed)
      : host_(make_ops("cpu")), ratio_(ratio) {
    const PhiloxAddress address = address_of(seed, 1);
    for (std::int64_t i = 0; i < items; ++i) score_.push_back(std::exp(philox_normal(address, i)));
  }
  // Holds for what is chosen from now on.
  void set_key(const RandomKey& key) { key_ = key; }

  ItemChoice choose_items(std::int64_t, std::span<const std::int64_t>,
                          std::span<const std::int64_t>) override {
    return draw_items(*host_, score_, ratio_, Selection::kSystematic, key_);
  }

 private:
  std::unique_ptr<Ops> host_;
  std::vector<double> score_;
  double ratio_;
  RandomKey key_;
};

// One parameter under one kind of sampling.
struct Tally {
  Statistics along[kDirections];  // of sampled - exact
  Statistics squared_distance;
  Statistics squared_norm, closed_form;  // of the exact gradient of each forward

  void add(std::span<const double> sampled, std::span<const double> exact, double exact_norm,
           const std::uint8_t* sign) {
    double sums[kDirections] = {}, squares = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const double off = sampled[i] - exact[i];
      squares += off * off;
      sums[0] += off * exact[i];
      for (int d = 0; d < kRandomDirections; ++d)
        sums[1 + d] += (sign[i] >> d & 1) != 0 ? off : -off;
    }
    if (exact_norm > 0) sums[0] /= exact_norm;
    along[0].add(sums[0]);
    for (int d = 1; d < kDirections; ++d)
      along[d].add(sums[d] / std::sqrt(static_cast<double>(exact.size())));
    squared_distance.add(squares);
  }

  // Rounding is `relative` of the parameter's gradient, plus `absolute`.
  // `bound`: the deviate of the least shift.
  SampledTensor result(double relative, double absolute, double bound) const {
    const double square = squared_norm.mean();
    const double rounding = relative * std::sqrt(square) + absolute;
    SampledTensor out;
    for (const Statistics& direction : along) {
      const double z = direction.normal_deviate(rounding);
      if (std::abs(z) > std::abs(out.z)) out.z = z;
    }
    if (square == 0) return out;
    out.shift = along[0].mean() / std::sqrt(square);
    out.least_shift = along[0].mean_of_deviate(bound, rounding) / std::sqrt(square);
    out.variance = squared_distance.mean() / square;
    out.closed_form = closed_form.mean() / square;
    return out;
  }
};

// A kind of sampling and what it made of each parameter.
struct Kind {
  std::string name;
  SampledBackward::Pass pass;
  std::vector<ItemThreshold> thresholds;  // of its gates, as its draws have moved them
  std::vector<Tally> tallies;
  bool before_forward = false;  // `pass` is of no matter

  bool samples_independently() const { return pass.selection == Selection::kBernoulli; }
};

std::vector<Kind> kinds_of(const Graph& graph, double ratio, bool before_forward) {
  const auto gates = static_cast<std::size_t>(graph.gates());
  const std::size_t linears = graph.sampled_weights().size();
  // A gate with the ratio of the gate above it draws nothing.
  std::vector<double> falling(gates, ratio);
  for (std::size_t g = 0; g < gates; ++g)
    falling[g] *= 0.5 + 0.5 * static_cast<double>(g + 1) / static_cast<double>(gates);
  const std::vector<double> some_rows(linears, ratio);
  std::vector<std::pair<const char*, KeepRatios>> parts;
  if (gates > 0) parts.push_back({"items", equal_ratios(graph.plan(), ratio, 1)});
  if (linears > 0) parts.push_back({"rows", equal_ratios(graph.plan(), 1, ratio)});
  if (gates > 0 && linears > 0) parts.push_back({"both", {falling, some_rows}});
  std::vector<Kind> kinds;
  const auto add = [&](const std::string& name, const KeepRatios& ratios,
                       Selection selection = Selection::kSystematic) -> Kind& {
    Kind& kind = kinds.emplace_back();
    kind.name = name;
    kind.pass.ratios = ratios;
    kind.pass.selection = selection;
    kind.tallies.resize(graph.parameters().size());
    return kind;
  };
  for (const auto& [name, ratios] : parts) {
    add(std::string(name) + ", systematic", ratios);
    add(std::string(name) + ", bernoulli", ratios, Selection::kBernoulli);
  }
  if (gates > 0) add("both, by norm", {falling, some_rows}).thresholds.resize(gates);
  if (before_forward) add("before the forward, systematic", {}).before_forward = true;
  return kinds;
}

class SamplingChecker {
 public:
  SamplingChecker(Model& model, Ops& ops, std::int64_t items, const SamplingCheckOptions& options)
      : model_(model),
        graph_(model.graph),
        ops_(ops),
        items_(items),
        options_(options),
        gradients_(graph_.parameters().gradient_list()),
        sampled_(ops, graph_.plan()),
        kinds_(kinds_of(graph_, options.ratio, options.reload != nullptr)),
        row_variance_{nullptr, DType::kF64, {std::ssize(graph_.sampled_weights())}} {
    VCAS_CHECK(options.draws >= 2, "a standard error needs two draws");
    row_buffer_ = Buffer(ops, {&row_variance_});
    const PhiloxAddress address = address_of(options.seed, 0);
    signs_.resize(graph_.parameters().gradients().elements());
    for (std::size_t i = 0; i < signs_.size(); i += sizeof(std::uint32_t[4])) {
      std::uint32_t words[4];
      philox_draw(address, i, words);
      std::memcpy(&signs_[i], words, std::min(sizeof words, signs_.size() - i));
    }
  }

  SamplingCheck run(const Batch& batch) {
    batch_ = &batch;
    context_.loss_scale = per_term(static_cast<double>(model_.loss_terms(batch, 0, items_)));
    draw(kinds_, options_.draws);
    const SamplingCheck check = result();
    std::vector<Kind> doubted;
    std::vector<std::size_t> places;
    for (std::size_t k = 0; k < kinds_.size(); ++k) {
      if (!check.fails(kinds_[k].name)) continue;
      places.push_back(k);
      doubted.push_back(kinds_[k]);
      doubted.back().tallies.assign(kinds_[k].tallies.size(), {});
    }
    if (doubted.empty()) return check;
    draw(doubted, kMoreDraws * options_.draws);
    for (std::size_t i = 0; i < places.size(); ++i) kinds_[places[i]] = std::move(doubted[i]);
    return result();
  }

 private:
  std::vector<double> gradient(Exec& exec, BackwardHooks* hooks) {
    context_.gradients = {gradients_, /*adds=*/false};
    context_.hooks = hooks;
    graph_.backward(exec, context_);
    return read(ops_, graph_.parameters().gradients());
  }

  void draw(std::vector<Kind>& kinds, std::int64_t draws) {
    for (Kind& kind : kinds)
      if (kind.before_forward) draw_before_forward(kind, draws);
    model_.load(ops_, *batch_, 0, items_);
    for (std::int64_t left = draws; left > 0; left -= kDrawsOfForward)
      draw_from_forward(kinds, std::min(kDrawsOfForward, left));
  }

  std::vector<double> whole_gradient(const Batch& batch, std::int64_t items) {
    model_.load(ops_, batch, 0, items);
    Exec exec = graph_.make_exec(options_.seed, kFirstStep, /*training=*/false);
    graph_.forward(exec);
    return gradient(exec, nullptr);
  }

  void draw_before_forward(Kind& kind, std::int64_t draws) {
    const std::vector<double> exact = whole_gradient(*batch_, items_);
    const std::vector<double> norms = note_exact(kind, exact);
    FirstItems chooser(items_, options_.ratio, options_.seed);
    for (std::int64_t d = 0; d < draws; ++d) {
      chooser.set_key(
          {.seed = options_.seed, .stream = Stream::kForward, .step = kFirstStep + choices_++});
      const Batch kept = options_.reload(chooser);
      add(kind, whole_gradient(kept, kept.items), exact, norms);
    }
  }

  void draw_from_forward(std::vector<Kind>& kinds, std::int64_t draws) {
    Exec exec = graph_.make_exec(options_.seed, kFirstStep + forwards_++, /*training=*/true);
    exec.keeps_norms = true;
    graph_.forward(exec);
    const std::vector<double> exact = gradient(exec, nullptr);
    for (Kind& kind : kinds) {
      if (kind.before_forward) continue;
      const bool drops_items = drops_some(kind.pass.ratios.act);
      const bool drops_rows = drops_some(kind.pass.ratios.weight);
      sampled_.pass = kind.pass;
      sampled_.pass.weight_variance = drops_rows ? row_variance_ : Tensor{};
      sampled_.thresholds.swap(kind.thresholds);
      const std::vector<double> norms = note_exact(kind, exact);
      for (std::int64_t d = 0; d < draws; ++d) {
        sampled_.pass.repeat = static_cast<std::uint32_t>(d);
        add(kind, gradient(exec, &sampled_), exact, norms);
      }
      sampled_.thresholds.swap(kind.thresholds);
      if (!kind.samples_independently()) continue;
      if (!drops_items) note_closed_form(kind, read(ops_, row_variance_));
      if (!drops_rows) note_closed_form(kind, item_variances(exec));
    }
  }

  // The norms of the exact gradient's parts.
  std::vector<double> note_exact(Kind& kind, const std::vector<double>& exact) {
    std::vector<double> norms;
    for (const std::span<const double> part : parts(graph_.parameters(), exact)) {
      const double length = norm(part);
      kind.tallies[norms.size()].squared_norm.add(length * length);
      norms.push_back(length);
    }
    return norms;
  }

  void add(Kind& kind, const std::vector<double>& sampled, const std::vector<double>& exact,
           const std::vector<double>& norms) {
    const auto sampled_parts = parts(graph_.parameters(), sampled);
    const auto exact_parts = parts(graph_.parameters(), exact);
    for (std::size_t p = 0; p < norms.size(); ++p)
      kind.tallies[p].add(sampled_parts[p], exact_parts[p], norms[p],
                          signs_.data() + (sampled_parts[p].data() - sampled.data()));
  }

  void note_closed_form(Kind& kind, const std::vector<double>& of_linear) {
    for (std::size_t k = 0; k < of_linear.size(); ++k)
      kind.tallies[graph_.sampled_weights()[k]].closed_form.add(of_linear[k]);
  }

  // Sum over the items of (1/p - 1) ||h||^2 for each sampled linear, h the item's part of its
  // gradient. p follows from the top gate, the only one that draws. Empty: too many items, or
  // ones that a layer mixes. 0 where another node uses the weight too: h lacks its part.
  std::vector<double> item_variances(Exec& exec) {
    if (items_ > kMostItemsCompared || items_ < 2 || mixes_items(graph_)) return {};
    std::vector<double> variances(graph_.sampled_weights().size());
    sampled_.pass.ratios = equal_ratios(graph_.plan(), 1, 1);
    VarianceProbe probe(graph_, ops_, sampled_,
                        {.most_passes = 0, .curves = true, .most_items = items_});
    for (int sketch = 0; sketch < kSketches; ++sketch) {
      probe.begin(options_.seed, static_cast<std::uint64_t>(forwards_ * kSketches + sketch), 1, 0);
      gradient(exec, &probe.exact_backward());
      probe.sampled_backwards(exec, context_);
      const MeasuredBatch& measured = probe.result().back();
      const std::vector<double> prob = keep_probabilities(measured.item_score.back());
      for (std::size_t k = 0; k < variances.size(); ++k) {
        if (graph_.gate_above(static_cast<int>(k)) < 0 || is_shared(k)) continue;
        for (std::size_t i = 0; i < prob.size(); ++i)
          if (prob[i] > 0)
            variances[k] += (1 / prob[i] - 1) * measured.gram[k][i * (prob.size() + 1)] / kSketches;
      }
    }
    return variances;
  }

  // Whether a tied node uses the weight of this sampled linear too.
  bool is_shared(std::size_t linear) const {
    const int weight = graph_.sampled_weights()[linear];
    return std::ranges::any_of(graph_.plan().nodes, [&](const GraphNode& node) {
      return node.tied_to >= 0 && node.parameters.front() == weight;
    });
  }

  std::vector<double> keep_probabilities(std::vector<double> score) const {
    std::vector<double> prob(score.size());
    const auto tensor = [](std::vector<double>& values) {
      return Tensor{values.data(), DType::kF64, {std::ssize(values)}};
    };
    make_ops("cpu")->run(KeepProbability{.prob = tensor(prob),
                                         .variance = {},
                                         .score = tensor(score),
                                         .budget = options_.ratio * static_cast<double>(items_)});
    return prob;
  }

  SamplingCheck result() const {
    const double wide = statistics_dtype(graph_.dtype()) == DType::kF64 ? 0x1p-53 : 0x1p-24;
    const double narrow = graph_.dtype() == DType::kBF16 ? 0x1p-9 : wide;
    const double relative = 4 * (options_.rounding > 0 ? options_.rounding : narrow);
    SamplingCheck check;
    for (const Kind& kind : kinds_) check.tests += kDirections * std::ssize(kind.tallies);
    while (static_cast<double>(check.tests) * std::erfc(check.bound / std::sqrt(2.0)) >
           options_.level)
      check.bound += 0x1p-10;
    for (const Kind& kind : kinds_) {
      double square = 0;
      for (const Tally& tally : kind.tallies) square += tally.squared_norm.mean();
      for (std::size_t p = 0; p < kind.tallies.size(); ++p) {
        SampledTensor found =
            kind.tallies[p].result(relative, 4 * wide * std::sqrt(square), check.bound);
        found.sampling = kind.name;
        found.tensor = graph_.parameters()[p].name;
        check.tensors.push_back(std::move(found));
      }
    }
    std::ranges::stable_sort(check.tensors, std::greater(),
                             [](const SampledTensor& tensor) { return std::abs(tensor.z); });
    return check;
  }

  Model& model_;
  Graph& graph_;
  Ops& ops_;
  const std::int64_t items_;
  const SamplingCheckOptions options_;
  std::vector<Tensor> gradients_;
  BackwardContext context_;
  SampledBackward sampled_;
  std::vector<Kind> kinds_;
  const Batch* batch_ = nullptr;
  std::int64_t forwards_ = 0, choices_ = 0;
  Tensor row_variance_;  // f64 [sampled linear]
  Buffer row_buffer_;
  std::vector<std::uint8_t> signs_;  // [element of the slab]: a bit for each random direction
};

double mean_loss(Model& model, Ops& ops, Exec& exec) {
  model.graph.forward(exec);
  const std::vector<double> losses = read(ops, model.graph.tensor(model.loss));
  return std::accumulate(losses.begin(), losses.end(), 0.0) *
         per_term(static_cast<double>(losses.size()));
}

// Random numbers are added to each 0, and where all numbers of a parameter are equal. A gain of 0
// leaves a ReLU behind it at its kink, where the loss has no slope. Gains of 1 hide a dx that lacks
// them.
std::vector<double> made_unequal(const Parameters& parameters, std::vector<double> values,
                                 const PhiloxAddress& address) {
  constexpr double kSpread = 0x1p-3;
  for (const std::span<const double> part : parts(parameters, values)) {
    const bool equal =
        part.size() > 1 && std::ranges::count(part, part.front()) == std::ssize(part);
    const auto first = static_cast<std::size_t>(part.data() - values.data());
    for (std::size_t i = first; i < first + part.size(); ++i)
      if (equal || values[i] == 0) values[i] += kSpread * philox_normal(address, i);
  }
  return values;
}

// A random direction that leans on the gradient of each parameter, so that none is lost beside
// others. `slope` gets what the gradient says of it.
std::vector<double> leaning_direction(const Parameters& parameters, const std::vector<double>& slab,
                                      const PhiloxAddress& address, Slope& slope) {
  std::vector<double> direction(slab.size());
  for (const std::span<const double> gradient : parts(parameters, slab)) {
    const auto first = static_cast<std::size_t>(gradient.data() - slab.data());
    const double length = norm(gradient), lean = philox_normal(address, slab.size() + first);
    const double spread = 1 / std::sqrt(static_cast<double>(gradient.size()));
    double along = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      double& d = direction[first + i];
      d = spread * philox_normal(address, first + i);
      if (length > 0) d += lean * gradient[i] / length;
      along += d * gradient[i];
    }
    slope.gradient += along;
    slope.scale += std::abs(along);
  }
  return direction;
}

// The slopes at the weights `start`. Leaves others in the model.
std::vector<Slope> slopes_at(Model& model, Ops& ops, const Batch& batch, std::int64_t items,
                             int directions, std::uint64_t seed, const std::vector<double>& start) {
  Graph& graph = model.graph;
  const Tensor& weights = graph.parameters().values();
  const auto set = [&](const std::vector<double>& values) {
    ops.copy_to_device(weights.data, values.data(), weights.bytes());
  };
  set(start);
  model.load(ops, batch, 0, items);
  Exec exec = graph.make_exec(seed, kFirstStep, /*training=*/true);
  graph.forward(exec);
  const std::vector<Tensor> gradients = graph.parameters().gradient_list();
  graph.backward(exec,
                 {.gradients = {gradients, /*adds=*/false},
                  .loss_scale = per_term(static_cast<double>(model.loss_terms(batch, 0, items)))});
  const std::vector<double> slab = read(ops, graph.parameters().gradients());

  std::vector<Slope> slopes;
  for (int number = 0; number < directions; ++number) {
    Slope slope;
    const std::vector<double> direction = leaning_direction(
        graph.parameters(), slab, address_of(seed, static_cast<std::uint32_t>(1 + number)), slope);
    const auto loss_at = [&](double distance) {
      std::vector<double> moved = start;
      for (std::size_t i = 0; i < moved.size(); ++i) moved[i] += distance * direction[i];
      set(moved);
      return mean_loss(model, ops, exec);
    };
    // Four points: the error is of fourth order in the distance.
    const auto difference = [&](double distance) {
      return (8 * (loss_at(distance) - loss_at(-distance)) -
              (loss_at(2 * distance) - loss_at(-2 * distance))) /
             (12 * distance);
    };
    // A ReLU that bends between the points bends their difference. Nearer points have fewer, and
    // more rounding.
    double distance = 0x1p-13;
    slope.difference = difference(distance);
    while (slope.error() > kMostSlopeError && distance > 0x1p-28) {
      Slope nearer = slope;
      nearer.difference = difference(distance /= 32);
      if (nearer.error() < slope.error()) slope = nearer;
    }
    slopes.push_back(slope);
  }
  return slopes;
}

}  // namespace

bool SamplingCheck::fails(const SampledTensor& tensor) const {
  return !(std::abs(tensor.z) <= bound);
}

bool SamplingCheck::fails(const std::string& sampling) const {
  return std::ranges::any_of(tensors, [&](const SampledTensor& tensor) {
    return tensor.sampling == sampling && fails(tensor);
  });
}

std::int64_t SamplingCheck::failed() const {
  return std::ranges::count_if(tensors, [&](const SampledTensor& tensor) { return fails(tensor); });
}

SamplingCheck check_sampling(Model& model, Ops& ops, const Batch& batch, std::int64_t items,
                             const SamplingCheckOptions& options) {
  check_weights_set(ops, model);
  return SamplingChecker(model, ops, items, options).run(batch);
}

double Slope::error() const {
  const double off = std::abs(gradient - difference);
  return off == 0 ? 0 : off / scale;
}

std::vector<Slope> check_slopes(Model& model, Ops& ops, const Batch& batch, std::int64_t items,
                                int directions, std::uint64_t seed) {
  const Parameters& parameters = model.graph.parameters();
  VCAS_CHECK(model.graph.dtype() == DType::kF64, "differences of a loss need f64");
  check_weights_set(ops, model);
  const std::vector<double> given = read(ops, parameters.values());
  const auto put_back = [&] {
    ops.copy_to_device(parameters.values().data, given.data(), parameters.values().bytes());
  };
  try {
    const std::vector<double> start = made_unequal(parameters, given, address_of(seed, 0));
    std::vector<Slope> slopes = slopes_at(model, ops, batch, items, directions, seed, start);
    put_back();
    return slopes;
  } catch (...) {
    put_back();
    throw;
  }
}

}  // namespace vcas
