// The passes of a graph; graph.cc has what they run on.
#include <algorithm>
#include <utility>

#include "layers/graph.h"

namespace vcas {

namespace {

// The rows behind so many mixing layers below a gate. Without dropped items all are the same.
const RowSets& behind(std::span<const RowSets> rows, int mixed) {
  return rows[std::min(static_cast<std::size_t>(mixed), rows.size() - 1)];
}

// A layer leaves the padding of what it computes by items as it was.
void clear_padding(Exec& exec, const Tensor& y, const RowSet& rows) {
  if (y && rows.bound) exec.ops.run(Fill{.y = y, .value = 0, .from = rows.filled()});
}

}  // namespace

// Sets node_tensors_ to what a layer reads, in storage that is kept between calls.
void Graph::collect_tensors(const GraphNode& node) {
  NodeTensors& tensors = node_tensors_;
  for (auto* list : {&tensors.inputs, &tensors.saved, &tensors.parameters, &tensors.state,
                     &tensors.gradients, &tensors.dx, &tensors.added, &tensors.graph_adds})
    list->clear();
  for (const int input : node.inputs) tensors.inputs.push_back(padded_tensor(plan_.nodes[input]));
  for (std::size_t s = 0; s < node.saved_blocks.size(); ++s)
    tensors.saved.push_back(padded_saved(node, s));
  for (const int number : node.parameters) tensors.parameters.push_back(parameters_[number].value);
  for (std::size_t s = 0; s < node.plan.state.size(); ++s)
    tensors.state.push_back(parameters_.state()[node.first_state + s].value);
}

void Graph::forward(Exec& exec) {
  check_loaded("forward");
  has_run_ = true;
  NodeTensors& tensors = node_tensors_;
  for (std::size_t i = 0; i < plan_.nodes.size(); ++i) {
    const GraphNode& node = plan_.nodes[i];
    if (!node.layer || skips(node)) continue;
    collect_tensors(node);
    exec.site = static_cast<std::uint32_t>(i);
    exec.ops.enter(node.forward_place);
    ArenaFrame frame(exec.scratch);
    const Tensor output = padded_tensor(node);
    name_errors(node, [&] {
      node.layer->forward(exec, {.inputs = tensors.inputs,
                                 .output = output,
                                 .output_norm = output_norm(exec, static_cast<int>(i)),
                                 .leaves_sum = node.leaves_sum,
                                 .saved = tensors.saved,
                                 .parameters = tensors.parameters,
                                 .state = tensors.state,
                                 .input_specs = node.input_specs,
                                 .rows = full_rows_});
    });
    if (node.plan.coupling != RowCoupling::kRows)
      clear_padding(exec, output, full_rows_.of(node.plan.output.layout));
  }
}

// Passes the gradient of `node` through the gate at its output. Returns the row sets below it.
std::span<const RowSets> Graph::pass_gate(Exec& exec, BackwardHooks& hooks, const GraphNode& node,
                                          const RowSets& rows, Gradient& gradient) const {
  const ValueSpec& spec = node.plan.output;
  const PlannedBlock& block = plan_.gradient_blocks[node.kept_block];
  const std::int64_t most = plan_.max_rows(spec.layout);
  return hooks.at_gate(exec,
                       {.number = node.gate,
                        .layout = spec.layout,
                        .batch_items = items_,
                        .mixing = node.mixed_below,
                        .kept = {.dy = gradients_.at(block.offset, plan_.dtype, {most, spec.width}),
                                 .norm = exec.keeps_norms && node.wants_gradient_norm
                                             ? norm_view(gradients_, block, spec, most, 1)
                                             : Tensor{}},
                        .gathers = node.plan.gathers_dy,
                        .sample_place = node.sample_place,
                        .probe_place = node.probe_place},
                       gradient, rows);
}

// Where the sum of `added` and further `rows` rows goes. Where one of them has more rows, which are
// echoes, the other counts as zero there. `added` is left with as many rows as are added to it.
Tensor Graph::place_sum(Exec& exec, const GraphNode::Dx& plan, Tensor& added,
                        std::int64_t rows) const {
  const std::int64_t before = added.rows(), most = std::max(before, rows);
  const Tensor whole = added.first_rows(most);
  if (rows > before) exec.ops.run(Fill{.y = rows_from(whole, before), .value = 0});
  added = added.first_rows(rows);
  if (!plan.moves) return whole;
  const PlannedBlock& block = plan_.gradient_blocks[plan.block];
  const Tensor moved = gradients_.at(block.offset, plan_.dtype, {most, added.width()});
  if (rows < before) exec.ops.run(Copy{.y = rows_from(moved, rows), .x = rows_from(whole, rows)});
  return moved;
}

// Sets node_tensors_ for the gradients of the inputs of `node`.
//   dx          where its backward writes them
//   added       what it adds to them
//   graph_adds  what the graph adds to them
// Returns where the norms of the first gradient go.
Tensor Graph::place_gradients(Exec& exec, const GraphNode& node, const RowSets& rows_dx,
                              const Gradient& gradient, bool with_norms) {
  Tensor dx_norm;
  for (std::size_t j = 0; j < node.inputs.size(); ++j) {
    const auto input = static_cast<std::size_t>(node.inputs[j]);
    const GraphNode& producer = plan_.nodes[input];
    const GraphNode::Dx& plan = node.dx[j];
    Tensor dx, added;
    if (plan.block < 0 && producer.layer && producer.needs_gradient) {
      gradient_views_[input] = gradient;
    } else if (plan.block >= 0) {
      const ValueSpec& spec = producer.plan.output;
      const std::int64_t kept_rows = rows_dx.of(spec.layout).rows;
      const PlannedBlock& block = plan_.gradient_blocks[plan.block];
      // A gate above that passed everything on left dy in its own block; dx follows in place.
      const bool in_place = node.plan.in_place && j == 0 && !plan.adds &&
                            plan.block == (node.gate >= 0 ? node.kept_block : node.gradient_block);
      if (plan.adds) added = gradient_views_[input].dy;
      const Tensor sum = in_place ? gradient.dy
                         : plan.adds
                             ? place_sum(exec, plan, added, kept_rows)
                             : gradients_.at(block.offset, plan_.dtype, {kept_rows, spec.width});
      gradient_views_[input] = {.dy = sum, .norm = {}};
      dx = sum.first_rows(kept_rows);
      if (plan.adds && !node.accumulates(j))
        dx = exec.scratch.take(plan_.dtype, {kept_rows, spec.width});
      else if (with_norms && j == 0 && producer.wants_gradient_norm && sum.rows() == kept_rows)
        gradient_views_[input].norm = dx_norm =
            norm_view(gradients_, block, spec, kept_rows, node.plan.dx_norm_parts);
    }
    node_tensors_.dx.push_back(dx);
    node_tensors_.added.push_back(node.accumulates(j) ? added : Tensor());
    node_tensors_.graph_adds.push_back(node.accumulates(j) ? Tensor() : added);
  }
  return dx_norm;
}

// The backward of node i, whose output has `gradient`. `rows`: as BackwardHooks::at_gate returns.
void Graph::run_backward(Exec& exec, const BackwardContext& context, std::size_t i,
                         std::span<const RowSets> rows, const Gradient& gradient) {
  const GraphNode& node = plan_.nodes[i];
  const int mixed = node.gate >= 0 ? 0 : node.mixed_above;
  const RowSets& rows_dy = behind(rows, mixed);
  const RowSets& rows_dx =
      behind(rows, mixed + (node.plan.coupling == RowCoupling::kBatchLinear ? 1 : 0));
  NodeTensors& tensors = node_tensors_;
  exec.ops.enter(node.backward_place);
  collect_tensors(node);
  for (const int number : node.parameters) tensors.gradients.push_back(context.gradients[number]);

  ArenaFrame frame(exec.scratch);
  const Tensor dx_norm =
      place_gradients(exec, node, rows_dx, gradient,
                      exec.keeps_norms && node.plan.writes_norms && context.hooks->reads_norms());
  for (const int j : node.plan.passes_gradient)
    if (const Tensor& dx = tensors.dx[j]) exec.ops.run(Copy{.y = dx, .x = gradient.dy});
  if (node.has_backward() && !skips(node))
    name_errors(node, [&] {
      node.layer->backward(
          exec, {.inputs_full = tensors.inputs,
                 .output_full = padded_tensor(node),
                 .saved_full = tensors.saved,
                 .parameters = tensors.parameters,
                 .input_specs = node.input_specs,
                 .dy = gradient.dy,
                 .dy_row = gradient.row,
                 .dy_scale = gradient.scale,
                 .dx = tensors.dx,
                 .dx_norm = dx_norm,
                 .added = tensors.added,
                 .leaves_dx = node.leaves_dx,
                 .rows = rows_dy,
                 .rows_dx = rows_dx,
                 .rows_full = full_rows_,
                 .gradients = {tensors.gradients, context.gradients.adds || !node.writes_gradients},
                 .loss_scale = context.loss_scale,
                 .method = {.hooks = *context.hooks,
                            .site = node.weight_site,
                            .dy_norm = gradient.norm,
                            .x_norm_full = output_norm(exec, node.inputs[0])}});
    });
  // A loss has no dy, whose padding would be 0.
  if (node.plan.coupling != RowCoupling::kRows || !gradient.dy)
    for (std::size_t j = 0; j < node.inputs.size(); ++j)
      clear_padding(exec, tensors.dx[j], rows_dx.of(node.input_specs[j].layout));
  for (std::size_t j = 0; j < node.inputs.size(); ++j) {
    const Tensor &adds = tensors.graph_adds[j], &dx = tensors.dx[j];
    if (!adds) continue;
    const Tensor& sum = gradient_views_[node.inputs[j]].dy;
    exec.ops.run(Add{.y = sum.first_rows(dx.rows()), .a = adds, .b = dx});
  }
}

void Graph::clear_gradients(Exec& exec, const BackwardContext& context, std::size_t nodes,
                            bool written) const {
  Tensor adjacent;  // gradients that lie behind each other are filled as one
  const auto fill = [&] {
    if (adjacent) exec.ops.run(Fill{.y = adjacent, .value = 0});
  };
  for (std::size_t n = 0; n < nodes; ++n) {
    const GraphNode& node = plan_.nodes[n];
    if (node.writes_gradients != written) continue;
    for (std::size_t i = node.tied_to < 0 ? 0 : 1; i < node.parameters.size(); ++i) {
      const Tensor& next = context.gradients[node.parameters[i]];
      if (!next) continue;
      const std::int64_t before = adjacent.elements();
      if (adjacent && adjacent.dtype == next.dtype &&
          adjacent.range(before, before).data == next.data) {
        adjacent = adjacent.range(0, before + next.elements());
      } else {
        fill();
        adjacent = next;
      }
    }
  }
  fill();
}

void Graph::backward(Exec& exec, const BackwardContext& given) {
  check_loaded("backward");
  if (!has_run_)
    throw Error(ExitCode::kBadConfig, "Graph::backward before forward",
                "it reads what forward leaves of the batch");
  if (given.gradients.size() != parameters_.size())
    throw Error(ExitCode::kBadConfig,
                "Graph::backward got " + std::to_string(given.gradients.size()) +
                    " gradients for " + std::to_string(parameters_.size()) + " parameters",
                "give one a parameter, as parameters().gradient_list() does; an empty tensor is "
                "one that is not wanted");
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor &got = given.gradients[i], &own = parameters_[i].gradient;
    if (got && (got.dtype != own.dtype || got.shape != own.shape))
      throw Error(ExitCode::kBadConfig,
                  "Graph::backward got " + std::string(dtype_name(got.dtype)) + " " +
                      got.shape.text() + " for the gradient of " + parameters_[i].name +
                      ", which is " + std::string(dtype_name(own.dtype)) + " " + own.shape.text(),
                  "give them in the order of parameters().gradient_list()");
  }
  BackwardContext context = given;
  if (!context.hooks) context.hooks = &exact_;
  BackwardHooks& hooks = *context.hooks;
  exec.ops.join(Ops::kAllTickets);  // of a backward that threw
  hooks.begin(exec);
  if (!context.gradients.adds) {
    static const std::string place = "gradients/backward";
    exec.ops.enter(place);
    clear_gradients(exec, context, plan_.nodes.size(), false);
  }
  std::span<const RowSets> rows{&full_rows_, 1};
  // Where a gate passes everything on, its block has no rows: dy stays where it is.
  gradient_views_.assign(plan_.nodes.size(), {});
  auto bucket = context.buckets.begin();
  const auto leave = [&](std::size_t node) {  // this one and all behind it are done
    for (; bucket != context.buckets.end() && bucket->node >= static_cast<int>(node); ++bucket) {
      exec.ops.join(Ops::kAllTickets);
      context.on_bucket(*bucket);
    }
  };
  std::int64_t last_flush = 0;
  for (std::size_t i = plan_.nodes.size(); i-- > 0;) {
    leave(i + 1);
    const GraphNode& node = plan_.nodes[i];
    if (!node.layer || !node.needs_gradient) continue;
    exec.site = static_cast<std::uint32_t>(i);
    Gradient gradient = gradient_views_[i];
    if (node.gate >= 0)
      rows = pass_gate(exec, hooks, node, behind(rows, node.mixed_above), gradient);
    if (rows.empty() || rows.front().entries().empty())
      throw Error(ExitCode::kBadConfig, node.name + ": BackwardHooks::at_gate returned no rows",
                  "it returns row sets of all layouts, as it was given (layers/backward_hooks.h)");
    if (rows.front().items() == 0) {  // nothing was kept: zero from here down
      if (!context.gradients.adds) clear_gradients(exec, context, i + 1, true);
      break;
    }
    run_backward(exec, context, i, rows, gradient);
    if (!node.flushes_weights) continue;
    const auto flush = [&] {
      if (!hooks.waits()) return;
      exec.ops.enter(node.weights_place);
      hooks.flush(exec);
    };
    exec.ops.join(std::exchange(last_flush, exec.ops.beside(std::ref(flush))));
  }
  exec.ops.join(Ops::kAllTickets);
  leave(0);
}

}  // namespace vcas
