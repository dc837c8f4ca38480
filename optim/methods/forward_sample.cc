#include "optim/methods/forward_sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "optim/methods/sample_gate.h"

namespace vcas {

namespace {

constexpr float kNeverSeen = -1;
// Share of the newest norm in the memory (docs/decisions/0007-forward-draw.md).
constexpr float kNewest = 0.7F;

void check_model(const Model& model) {
  const auto fail = [](const std::string& why) {
    throw Error(ExitCode::kBadConfig, "method.forward: " + why, "set method.forward=false");
  };
  if (model.graph.spec(model.loss).layout == Layout::masked())
    fail(
        "the loss has a term for each masked word, and nobody knows how many an item has that is "
        "not read");
  if (model.weights.index < 0) fail("the loss of this model takes no weights of items");
  if (model.graph.gates() == 0)
    fail("this model has no gate, where gradient norms of items are read");
  for (const GraphNode& node : model.graph.plan().nodes)
    if (node.layer && node.plan.coupling == RowCoupling::kBatch)
      fail(node.name + " mixes the items of a batch, so dropping items would bias the others");
}

void check_data(const Training& training) {
  if (training.items <= 0)
    throw Error(ExitCode::kBadConfig,
                "method.forward: the number of items in the training data is not known",
                "set TrainerOptions::items");
  if (training.batch == 1)
    throw Error(ExitCode::kBadConfig, "method.forward: a step of one item has nothing to drop",
                "raise train.batch_size, or set method.forward=false");
}

std::vector<std::int64_t> all_of(std::span<const std::int64_t> items) {
  std::vector<std::int64_t> positions(items.size());
  std::iota(positions.begin(), positions.end(), std::int64_t{0});
  return positions;
}

// Numbers of T on a host as floats.
template <class T>
void read_as(const std::byte* from, std::span<float> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof value, sizeof value);
    to[i] = static_cast<float>(value);
  }
}

}  // namespace

const RowSets& ItemNormReader::at_gate(Exec& exec, const GateSite& site, Gradient& gradient,
                                       const RowSets& rows) {
  if (site.number == top_gate_) {
    const RowSet& own = rows.of(site.layout);
    exec.ops.enter(site.sample_place);
    exec.ops.run(ItemNorm{
        .norm = {norm_.data, norm_.dtype, {own.items}}, .x = gradient.dy, .offsets = own.offsets});
  }
  return inner_->at_gate(exec, site, gradient, rows);
}

ForwardSample::ForwardSample(const Training& training, const ForwardOptions& options,
                             NeedsAll needs_all)
    : ops_(training.ops),
      host_(make_ops("cpu")),
      seed_(training.seed),
      batch_(training.batch),
      total_steps_(training.total_steps),
      floor_(options.forward_floor),
      ratio_(options.forward_ratio),
      needs_all_(std::move(needs_all)) {
  check_model(training.model);
  check_data(training);
  memory_.assign(static_cast<std::size_t>(training.items), kNeverSeen);
  const DType wide = statistics_dtype(training.model.graph.dtype());
  pass_norm_ = {nullptr, wide, {training.micro_batch}};
  step_norms_ = {nullptr, wide, {kSlots * batch_}};
  norms_ = Buffer(ops_, std::vector<Tensor*>{&pass_norm_, &step_norms_});
  for (auto& mailbox : mailboxes_)
    mailbox = ops_.make_mailbox(static_cast<std::size_t>(batch_) * dtype_bytes(wide));
  reader_.set(training.model.graph.gates() - 1, pass_norm_);
}

bool ForwardSample::is_one_epoch() const { return total_steps_ * batch_ <= std::ssize(memory_); }

void ForwardSample::check_items(std::span<const std::int64_t> items) const {
  for (const std::int64_t item : items)
    if (item < 0 || item >= std::ssize(memory_))
      throw Error(ExitCode::kBadData,
                  fmt::format("item {} of the training data, and SampleF knows {} items", item,
                              memory_.size()));
}

ItemChoice ForwardSample::choose(std::int64_t step, std::span<const std::int64_t> items,
                                 std::span<const std::int64_t> rows) {
  check_items(items);
  remember(begun_ - 2);
  const auto known = pending_.find(step);
  // A run that starts from another's checkpoint may have other steps.
  if (known != pending_.end() && std::ranges::equal(known->second.items, items) &&
      (known->second.choice.weights.empty() || !needs_all_(step)))
    return known->second.choice;
  Pending& made = pending_[step];
  made = {{items.begin(), items.end()}, draw(step, items, rows)};
  return made.choice;
}

// The mean over items seen before; 1 where all norms are 0.
double ForwardSample::mean_norm(std::span<const std::int64_t> items) const {
  double sum = 0, seen = 0;
  for (const std::int64_t item : items) {
    const float norm = memory_[static_cast<std::size_t>(item)];
    if (norm == kNeverSeen) continue;
    ++seen;
    sum += static_cast<double>(norm);
  }
  return sum > 0 ? sum / seen : 1;
}

// Negative: it was never seen.
double ForwardSample::score_of(std::int64_t item, double rows, double mean) const {
  const auto norm = static_cast<double>(memory_[static_cast<std::size_t>(item)]);
  return norm < 0 ? norm : ((1 - floor_) * norm + floor_ * mean) / std::sqrt(rows);
}

std::vector<double> ForwardSample::scores(std::span<const std::int64_t> items,
                                          std::span<const double> rows) const {
  const double mean = mean_norm(items);
  std::vector<double> out;
  for (std::size_t i = 0; i < rows.size(); ++i) out.push_back(score_of(items[i], rows[i], mean));
  return out;
}

ItemChoice ForwardSample::draw(std::int64_t step, std::span<const std::int64_t> items,
                               std::span<const std::int64_t> rows) {
  const auto n = std::ssize(items);
  const double mean = mean_norm(items);
  std::vector<double> score;
  std::int64_t seen = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const double known = score_of(items[i], static_cast<double>(rows[i]), mean);
    seen += known >= 0;
    // A score that is not finite is kept, with weight 1.
    score.push_back(known >= 0 ? known : std::numeric_limits<double>::infinity());
  }
  const double budget = whole_budget(ratio_ * static_cast<double>(seen));
  if (needs_all_(step) || budget >= static_cast<double>(seen)) return {all_of(items), {}};

  std::vector<double> prob(items.size());
  const std::int64_t count = n - seen + static_cast<std::int64_t>(budget);
  std::vector<std::int32_t> kept(static_cast<std::size_t>(count));
  std::vector<double> scale(kept.size());
  host_->run(Draw{
      .kept = {kept.data(), DType::kI32, {count}},
      .scale = {scale.data(), DType::kF64, {count}},
      .count = {},
      .prob = {prob.data(), DType::kF64, {n}},
      .score = {score.data(), DType::kF64, {n}},
      .id = {},
      .budget = static_cast<double>(count),
      .selection = Selection::kSystematic,
      .key = {.seed = seed_, .stream = Stream::kForward, .step = static_cast<std::uint64_t>(step)},
      .step = {}});
  return {{kept.begin(), kept.end()}, {scale.begin(), scale.end()}};
}

void ForwardSample::begin_step(std::int64_t step) {
  remember(step - 2);
  pending_.erase(pending_.begin(), pending_.upper_bound(step));
  begun_ = step + 1;
  seen_.emplace_back().step = step;
}

BackwardHooks* ForwardSample::hooks(BackwardHooks* inner) {
  reader_.wrap(inner);
  return &reader_;
}

void ForwardSample::end_pass(const Batch& batch, std::int64_t first, std::int64_t items) {
  VCAS_CHECK(std::ssize(batch.ids) == batch.items, "a batch without the numbers of its items");
  Seen& now = seen_.back();
  now.candidates = batch.items + batch.dropped;
  ops_.enter("items/norms");
  ops_.run(Copy{.y = slot(now.step, std::ssize(now.items), items),
                .x = {pass_norm_.data, pass_norm_.dtype, {items}}});
  const auto add = [&](auto& to, const auto& from) {
    if (!from.empty()) to.insert(to.end(), from.begin() + first, from.begin() + first + items);
  };
  add(now.items, batch.ids);
  add(now.weights, batch.weights);
  step_share_ = static_cast<double>(batch.items) / static_cast<double>(batch.items + batch.dropped);
}

void ForwardSample::end_step() {
  const Seen& now = seen_.back();
  const Tensor sent = slot(now.step, 0, std::ssize(now.items));
  mailboxes_[now.step % kSlots]->send(sent.data, sent.bytes());
}

// The norms of a step, [items].
Tensor ForwardSample::slot(std::int64_t step, std::int64_t first, std::int64_t items) const {
  const std::int64_t begin = step % kSlots * batch_ + first;
  return {static_cast<std::byte*>(step_norms_.data) +
              static_cast<std::size_t>(begin) * dtype_bytes(step_norms_.dtype),
          step_norms_.dtype,
          {items}};
}

// Without what multiplies their losses: their own weights and 1 / candidates.
std::vector<float> ForwardSample::norms_of(const Seen& seen) const {
  if (!seen.norms.empty()) return seen.norms;
  std::vector<float> norms(seen.items.size());
  const std::byte* host = mailboxes_[seen.step % kSlots]->receive();
  step_norms_.dtype == DType::kF64 ? read_as<double>(host, norms) : read_as<float>(host, norms);
  for (std::size_t i = 0; i < norms.size(); ++i) {
    const float weight = seen.weights.empty() ? 1 : seen.weights[i];
    norms[i] = weight > 0 ? norms[i] * static_cast<float>(seen.candidates) / weight : kNeverSeen;
  }
  return norms;
}

// Takes the norms of the steps up to this one. Of one that is not finite nothing is known.
void ForwardSample::remember(std::int64_t last_step) {
  for (; !seen_.empty() && seen_.front().step <= last_step; seen_.pop_front()) {
    const std::vector<float> norms = norms_of(seen_.front());
    for (std::size_t i = 0; i < norms.size(); ++i) {
      float& known = memory_[static_cast<std::size_t>(seen_.front().items[i])];
      if (!std::isfinite(norms[i]))
        known = kNeverSeen;
      else
        known = known == kNeverSeen ? norms[i] : kNewest * norms[i] + (1 - kNewest) * known;
    }
  }
}

nlohmann::json ForwardSample::state() const {
  nlohmann::json pending = nlohmann::json::array(), seen = nlohmann::json::array();
  for (const auto& [step, made] : pending_)
    pending.push_back({{"step", step},
                       {"items", made.items},
                       {"kept", made.choice.kept},
                       {"weights", made.choice.weights}});
  for (const Seen& step : seen_)
    seen.push_back({{"step", step.step}, {"items", step.items}, {"norms", norms_of(step)}});
  return {{"steps", begun_}, {"pending", pending}, {"seen", seen}};
}

void ForwardSample::restore(const nlohmann::json& state) try {
  state.at("steps").get_to(begun_);
  pending_.clear();
  for (const nlohmann::json& step : state.at("pending")) {
    Pending& made = pending_[step.at("step").get<std::int64_t>()];
    step.at("items").get_to(made.items);
    step.at("kept").get_to(made.choice.kept);
    step.at("weights").get_to(made.choice.weights);
  }
  seen_.clear();
  for (const nlohmann::json& step : state.at("seen")) {
    Seen& seen = seen_.emplace_back();
    step.at("step").get_to(seen.step);
    step.at("items").get_to(seen.items);
    step.at("norms").get_to(seen.norms);
    check_items(seen.items);
    if (seen.norms.size() != seen.items.size())
      throw Error(ExitCode::kBadData, "the state of SampleF has not one norm for each item");
  }
} catch (const nlohmann::json::exception& error) {
  throw Error(ExitCode::kBadData, fmt::format("the state of SampleF: {}", error.what()));
}

}  // namespace vcas
