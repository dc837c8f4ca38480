#include "optim/methods/item_selection.h"

#include <fmt/format.h>

#include "optim/methods/item_choice.h"
#include "optim/methods/sampled_backward.h"

namespace vcas {

std::string ItemSelection::progress() const { return fmt::format("keep {:.2f}", share()); }

double ItemSelection::share() const {
  return items_ == 0 ? 1 : static_cast<double>(kept_) / static_cast<double>(items_);
}

void ForwardSelection::end_pass(const Batch& batch, std::int64_t first, std::int64_t) {
  if (first == 0) count(batch.items, batch.items + batch.dropped);
}

BackwardSelection::BackwardSelection(const Training& training, const std::string& type)
    : model_(training.model), gate_(training.ops, training.model.graph.plan()) {
  const Graph& graph = model_.graph;
  const std::string setting = "method.type=" + type;
  if (graph.gates() == 0 || graph.plan().gate_nodes.back() != model_.logits.index)
    throw Error(ExitCode::kBadConfig, setting + ": the graph has no gate at the logits",
                "call MethodKind::prepare before Graph::finish");
  if (graph.spec(model_.loss).layout != Layout::items(1))
    throw Error(
        ExitCode::kBadConfig,
        setting +
            ": the loss has a term for each predicted word or part of an item, and items are "
            "chosen by one",
        "choose another method.type");
  check_items_apart(graph, setting);
  if (training.micro_batch == 1)
    throw Error(ExitCode::kBadConfig, setting + ": a pass of one item has nothing to drop",
                "raise train.micro_batch or train.batch_size, or choose another method.type");
  norm_ = {nullptr, statistics_dtype(graph.dtype()), {training.micro_batch}};
  VCAS_CHECK(norm_.dtype == DType::kF32, "norms of items are f32");
  buffer_ = Buffer(training.ops, {&norm_});
}

void BackwardSelection::add_cost(FormulaFlops& formula) const {
  const auto [act, weight] = equal_ratios(model_.graph.plan(), share(), 1);
  formula.add_sampled_step(act, weight);
}

std::span<const RowSets> BackwardSelection::at_gate(Exec& exec, const GateSite& site,
                                                    Gradient& gradient, const RowSets& rows) {
  if (site.number != model_.graph.gates() - 1) return {&rows, 1};
  exec.ops.enter(site.sample_place);
  ItemChoice choice = choose(exec, site, gradient, rows);
  check_choice(choice, rows.items());
  const auto kept_items = std::ssize(choice.kept);
  count(kept_items, rows.items());
  if (choice.weights.empty()) {
    if (kept_items == rows.items()) return {&rows, 1};
    choice.weights.assign(static_cast<std::size_t>(kept_items), 1);
  }
  const std::span<const RowSets> kept = gate_.keep(exec.ops, rows, choice);
  gradient = gate_.compact(exec, site, gradient.dy);
  return kept;
}

std::vector<float> BackwardSelection::losses(Exec& exec) const {
  return to_host<float>(exec.ops, model_.graph.tensor(model_.loss));
}

std::vector<float> BackwardSelection::gradient_norms(Exec& exec, const GateSite& site,
                                                     const Gradient& gradient,
                                                     const RowSets& rows) const {
  const ItemNorm norm = item_scores(norm_, gradient.dy, rows, site.layout, false);
  exec.ops.run(norm);
  return to_host<float>(exec.ops, norm.norm);
}

RandomKey BackwardSelection::key(Exec& exec, const GateSite& site) {
  RandomKey key = exec.key(Stream::kGate, static_cast<std::uint32_t>(site.number));
  exec.ops.copy_to_host(&key.step, exec.step.data, sizeof key.step);
  return key;
}

}  // namespace vcas
