#include "layers/graph.h"

#include <algorithm>
#include <utility>

#include "kernels/exchange.h"

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

void Graph::check_building(const char* call) const {
  if (ops_)
    throw Error(ExitCode::kBadConfig, std::string("Graph::") + call + " after finish",
                "build the whole graph before finish plans its memory");
}

// A finish that threw has left no memory.
void Graph::check_finished(const char* call) const {
  if (!step_)
    throw Error(ExitCode::kBadConfig, std::string("Graph::") + call + " before finish",
                "call finish once the graph is built");
}

void Graph::check_loaded(const char* call) const {
  check_finished(call);
  if (items_ == 0)
    throw Error(ExitCode::kBadConfig, std::string("Graph::") + call + " before set_batch",
                "give the graph a batch first: Model::load, or set_batch and its inputs");
}

std::size_t Graph::index_of(Value value) const {
  if (value.index < 0 || value.index >= std::ssize(plan_.nodes))
    throw Error(ExitCode::kBadConfig,
                "the graph has no value " + std::to_string(value.index) + ", of " +
                    std::to_string(plan_.nodes.size()),
                "take values that input and add of this graph have returned");
  return static_cast<std::size_t>(value.index);
}

Value Graph::input(const std::string& name, const ValueSpec& spec) {
  check_building("input");
  GraphNode node;
  node.name = name;
  node.plan.output = spec;
  plan_.nodes.push_back(std::move(node));
  return {static_cast<int>(plan_.nodes.size()) - 1};
}

Value Graph::optional_input(const std::string& name, const ValueSpec& spec) {
  const Value value = input(name, spec);
  plan_.nodes.back().optional = plan_.nodes.back().absent = true;
  return value;
}

void Graph::set_present(Value optional_input, bool present) {
  GraphNode& node = plan_.nodes[index_of(optional_input)];
  if (!node.optional)
    throw Error(ExitCode::kBadConfig, node.name + " is no optional input",
                "Graph::optional_input adds one");
  node.absent = !present;
}

Value Graph::add(const std::string& name, std::unique_ptr<Layer> layer, std::vector<Value> inputs) {
  check_building("add");
  if (!layer)
    throw Error(ExitCode::kBadConfig, name + " has no layer",
                "Graph::input adds values that are given");
  GraphNode node;
  node.name = name;
  node.forward_place = name + "/forward";
  node.backward_place = name + "/backward";
  node.sample_place = name + "/sample";
  node.probe_place = name + "/probe";
  node.weights_place = name + "/weights";
  node.layer = std::move(layer);
  for (const Value value : inputs) node.inputs.push_back(static_cast<int>(index_of(value)));
  plan_.nodes.push_back(std::move(node));
  return {static_cast<int>(plan_.nodes.size()) - 1};
}

void Graph::tie(Value node, Value owner) {
  check_building("tie");
  GraphNode& tied = plan_.nodes[index_of(node)];
  if (owner.index >= node.index)
    throw Error(ExitCode::kBadConfig, tied.name + " is tied to no node before it",
                "the owner of a weight comes first");
  tied.tied_to = static_cast<int>(index_of(owner));
}

void Graph::keep(Value value) {
  check_building("keep");
  plan_.nodes[index_of(value)].kept = true;
}

void Graph::gate(Value value) {
  check_building("gate");
  plan_.gate_nodes.push_back(static_cast<int>(index_of(value)));
}

void Graph::finish(Ops& ops, const GraphLimits& limits) {
  check_building("finish");
  ops_ = &ops;
  plan_.queues = ops.queues();
  plan_graph(plan_, limits);
  for (const GraphNode& node : plan_.nodes) {
    if (!node.plan.computes_on_host) continue;
    repeatable_ = false;
    if (ops.name().find("cuda") != std::string::npos)
      throw Error(ExitCode::kBadConfig,
                  node.name + " computes on the host, which cannot read the memory of a GPU",
                  "use the device cpu or emu, or operations in place of loops (docs/layer_api.md)");
  }
  // A layer that mixes items would mix padding with them.
  pads_ = ops.queues() && std::ranges::all_of(plan_.nodes, [](const GraphNode& node) {
            return node.plan.coupling == RowCoupling::kRows ||
                   node.plan.coupling == RowCoupling::kItems;
          });
  parameters_ = Parameters(ops, plan_.dtype, std::move(plan_.parameters), std::move(plan_.state),
                           limits.ranks);
  plan_.memory.parameters = parameters_.bytes();
  allocate(ops);
}

void Graph::allocate(Ops& ops) {
  activations_ = Buffer(ops, plan_.memory.activations);
  gradients_ = Buffer(ops, plan_.memory.gradients);
  scratch_ = Buffer(ops, plan_.memory.scratch);
  const std::size_t alone = scratch_.bytes() - plan_.scratch_beside;
  scratch_arena_ = Arena(scratch_.data(), alone);
  beside_arena_ = Arena(static_cast<char*>(scratch_.data()) + alone, plan_.scratch_beside);

  const std::size_t offsets_bytes =
      Arena::round_up(static_cast<std::size_t>(plan_.limits.max_items + 1) * sizeof(std::int64_t));
  row_buffer_ = Buffer(ops, offsets_bytes * plan_.layouts.size() + Arena::kAlignment);
  plan_.memory.rows = row_buffer_.bytes();
  step_ = row_buffer_.at(offsets_bytes * plan_.layouts.size(), DType::kI64, {1});
  for (std::size_t i = 0; i < plan_.layouts.size(); ++i) {
    RowSet rows;
    rows.offsets = row_buffer_.at(i * offsets_bytes, DType::kI64, {plan_.limits.max_items + 1});
    full_rows_.entries().push_back({plan_.layouts[i], rows});
    host_offsets_.emplace_back().reserve(static_cast<std::size_t>(plan_.limits.max_items) + 1);
  }
}

std::size_t Graph::node_of(int weight_site) const {
  const auto found =
      std::find_if(plan_.nodes.begin(), plan_.nodes.end(),
                   [&](const GraphNode& node) { return node.weight_site == weight_site; });
  if (found == plan_.nodes.end())
    throw Error(ExitCode::kBadConfig,
                "the graph has no sampled linear " + std::to_string(weight_site) + ", of " +
                    std::to_string(plan_.sampled_weights.size()),
                "they count from 0, as in Graph::sampled_weights");
  return static_cast<std::size_t>(found - plan_.nodes.begin());
}

int Graph::gate_above(int weight_site) const {
  for (std::size_t i = node_of(weight_site); i < plan_.nodes.size(); ++i)
    if (plan_.nodes[i].gate >= 0) return plan_.nodes[i].gate;
  return -1;
}

// For each parameter, the node behind whose backward, and what it flushes, its gradient is there.
std::vector<int> Graph::last_writers() const {
  std::vector<int> last(parameters_.size(), static_cast<int>(plan_.nodes.size()));
  int flush = 0;  // what waits at a node is flushed at this one
  for (int i = 0; i < std::ssize(plan_.nodes); ++i) {
    const GraphNode& node = plan_.nodes[static_cast<std::size_t>(i)];
    if (node.flushes_weights) flush = i;
    for (const int number : node.parameters) {
      int& its = last[static_cast<std::size_t>(number)];
      its = std::min(its, node.plan.samples_weight ? flush : i);
    }
  }
  return last;
}

std::vector<GradientBucket> Graph::gradient_buckets(std::int64_t elements) const {
  const std::int64_t multiple = kPartElements * plan_.limits.ranks;
  const auto part = [&](std::int64_t count) { return count / multiple * multiple; };
  const std::int64_t length = part(std::max(elements, multiple) + multiple - 1);
  std::vector<GradientBucket> buckets;
  // Where decay applies, parameters lie in the order of the graph. The rest is small, and ends
  // last.
  std::int64_t end = part(parameters_.decayed_elements());
  if (const std::int64_t all = parameters_.gradients().elements(); end < all)
    buckets.push_back({end, all});
  for (; end > 0; end = buckets.back().begin)
    buckets.push_back({std::max<std::int64_t>(end - length, 0), end});

  const std::vector<int> last = last_writers();
  const auto* const slab = static_cast<const char*>(parameters_.gradients().data);
  for (GradientBucket& bucket : buckets) {
    bucket.node = static_cast<int>(plan_.nodes.size());
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const Tensor& gradient = parameters_[i].gradient;
      const std::int64_t begin = (static_cast<const char*>(gradient.data) - slab) /
                                 static_cast<std::int64_t>(dtype_bytes(gradient.dtype));
      if (begin < bucket.end && begin + gradient.elements() > bucket.begin)
        bucket.node = std::min(bucket.node, last[i]);
    }
  }
  std::ranges::stable_sort(buckets, std::greater{}, &GradientBucket::node);
  return buckets;
}

Layout Graph::weight_layout(int weight_site) const {
  return plan_.nodes[node_of(weight_site)].plan.output.layout;
}

void Graph::set_batch(std::int64_t items, const std::vector<std::int64_t>& token_offsets,
                      const std::vector<std::int64_t>& masked_offsets) {
  check_finished("set_batch");
  const auto check = [](std::int64_t count, std::int64_t planned, const char* what,
                        const char* limit) {
    if (count > planned)
      throw Error(ExitCode::kBadConfig,
                  "a batch of " + std::to_string(count) + " " + what +
                      ", and the graph has room for " + std::to_string(planned),
                  std::string("finish it with a larger GraphLimits::") + limit +
                      ", or take smaller batches");
  };
  if (items < 1)
    throw Error(ExitCode::kBadConfig, "a batch without items", "set_batch needs at least one");
  check(items, plan_.limits.max_items, "items", "max_items");
  for (const auto* offsets : {&token_offsets, &masked_offsets})
    if (!offsets->empty() && std::ssize(*offsets) != items + 1)
      throw Error(
          ExitCode::kBadConfig,
          std::to_string(offsets->size()) + " offsets of " + std::to_string(items) + " items",
          "there is one more than items, and the first is 0");
  RowBound tokens = bound_of(token_offsets, plan_.limits.max_tokens),
           masked = bound_of(masked_offsets, plan_.limits.max_masked);
  check(tokens.rows, plan_.limits.max_tokens, "tokens", "max_tokens");
  check(masked.rows, plan_.limits.max_masked, "masked positions", "max_masked");
  const bool same_items = items == items_;
  items_ = items;
  tokens_ = std::move(tokens);
  masked_ = std::move(masked);
  has_run_ = false;
  for (std::size_t l = 0; l < full_rows_.entries().size(); ++l) {
    const Layout layout = full_rows_.entries()[l].layout;
    RowSet& rows = full_rows_.entries()[l].rows;
    if (layout.fixed() && same_items) continue;
    std::vector<std::int64_t>& offsets = host_offsets_[l];
    offsets.resize(static_cast<std::size_t>(items) + 1);
    for (std::size_t n = 0; n < offsets.size(); ++n)
      offsets[n] =
          layout.rows(static_cast<std::int64_t>(n), token_offsets.empty() ? 0 : token_offsets[n],
                      masked_offsets.empty() ? 0 : masked_offsets[n]);
    rows.items = items;
    rows.rows = rows_now(layout);
    rows.length = offsets[1];
    rows.squares = 0;
    for (std::size_t n = 0; n + 1 < offsets.size(); ++n) {
      const std::int64_t length = offsets[n + 1] - offsets[n];
      rows.squares += length * length;
      if (length != offsets[1]) rows.length = 0;
    }
    rows.host_offsets = rows.length == 0 ? offsets.data() : nullptr;
    const RowBound& bound = layout == Layout::tokens() ? tokens_ : masked_;
    rows.bound = rows.length == 0 && bound.items > 0 ? &bound : nullptr;
    rows.offsets.shape = {items + 1};
    ops_->copy_to_device(rows.offsets.data, offsets.data(), rows.offsets.bytes());
  }
}

// Without padding where all items have as many rows.
RowBound Graph::bound_of(const std::vector<std::int64_t>& offsets, std::int64_t most) const {
  RowBound exact;
  if (offsets.empty()) return exact;
  exact.rows = offsets.back();
  std::vector<std::int64_t> lengths;
  if (!pads_ || exact.rows > most) return exact;
  for (std::size_t n = 0; n + 1 < offsets.size(); ++n)
    lengths.push_back(offsets[n + 1] - offsets[n]);
  const auto [shortest, longest] = std::ranges::minmax(lengths);
  return shortest == longest && longest > 0 ? exact : RowBound(std::move(lengths), most);
}

BatchShape Graph::batch() const {
  const auto present = [](const GraphNode& node) { return node.optional && !node.absent; };
  return {.items = items_,
          .tokens = tokens_,
          .masked = masked_,
          .optional_inputs = std::ranges::count_if(plan_.nodes, present),
          .known = full_rows_.sizes_known()};
}

// Norms lie at the end of the block that is planned for their rows.
Tensor Graph::norm_view(const Buffer& buffer, const PlannedBlock& block, const ValueSpec& spec,
                        std::int64_t rows, std::int64_t parts) const {
  return buffer.at(block.offset + block.bytes - plan_.norm_bytes(spec.layout, parts),
                   statistics_dtype(plan_.dtype), {rows, parts});
}

Tensor Graph::output_norm(const Exec& exec, int number) const {
  const GraphNode& node = plan_.nodes[static_cast<std::size_t>(number)];
  if (!exec.keeps_norms || !node.writes_output_norm) return {};
  const ValueSpec& spec = node.plan.output;
  return norm_view(activations_, plan_.activation_blocks[node.output_block], spec,
                   rows_now(spec.layout), node.plan.output_norm_parts);
}

Tensor Graph::padded_tensor(const GraphNode& node) const {
  if (node.absent) return {};
  const ValueSpec& spec = node.plan.output;
  return activations_.at(plan_.activation_blocks[node.output_block].offset, spec.dtype,
                         {rows_now(spec.layout), spec.width});
}

Tensor Graph::padded_saved(const GraphNode& node, std::size_t i) const {
  const SavedSpec& spec = node.plan.saved[i];
  return activations_.at(plan_.activation_blocks[node.saved_blocks[i]].offset, spec.dtype,
                         {rows_now(spec.layout), spec.width});
}

Tensor Graph::tensor(Value value) const {
  check_loaded("tensor");
  const GraphNode& node = plan_.nodes[index_of(value)];
  const Tensor padded = padded_tensor(node);
  if (!padded) return {};
  return padded.first_rows(full_rows_.of(node.plan.output.layout).rows_before(items_));
}

Tensor Graph::saved(Value value, int i) const {
  check_loaded("saved");
  const GraphNode& node = plan_.nodes[index_of(value)];
  const auto number = static_cast<std::size_t>(i);
  if (number >= node.plan.saved.size())
    throw Error(ExitCode::kBadConfig,
                node.name + " has no saved tensor " + std::to_string(i) + ", of " +
                    std::to_string(node.plan.saved.size()),
                "the layer's plan lists them in `saved`; the first is 0");
  return padded_saved(node, number)
      .first_rows(full_rows_.of(node.plan.saved[number].layout).rows_before(items_));
}

Exec Graph::make_exec(std::uint64_t seed, std::uint64_t step, bool training) {
  check_finished("make_exec");
  ops_->copy_to_device(step_.data, &step, sizeof step);
  return {.ops = *ops_,
          .scratch = scratch_arena_,
          .scratch_beside = beside_arena_,
          .dtype = plan_.dtype,
          .seed = seed,
          .step = step_,
          .training = training,
          .site = 0};
}

// Sets node_tensors_ to what a layer reads, in storage that is kept between calls.
void Graph::collect_tensors(const GraphNode& node) {
  NodeTensors& tensors = node_tensors_;
  tensors.inputs.clear();
  tensors.saved.clear();
  tensors.parameters.clear();
  tensors.state.clear();
  tensors.gradients.clear();
  tensors.dx.clear();
  tensors.added.clear();
  for (const int input : node.inputs)
    tensors.inputs.push_back(padded_tensor(plan_.nodes[static_cast<std::size_t>(input)]));
  for (std::size_t s = 0; s < node.saved_blocks.size(); ++s)
    tensors.saved.push_back(padded_saved(node, s));
  for (const int number : node.parameters)
    tensors.parameters.push_back(parameters_[static_cast<std::size_t>(number)].value);
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
    node.layer->forward(exec, {.inputs = tensors.inputs,
                               .output = output,
                               .output_norm = output_norm(exec, static_cast<int>(i)),
                               .leaves_sum = node.leaves_sum,
                               .saved = tensors.saved,
                               .parameters = tensors.parameters,
                               .state = tensors.state,
                               .input_specs = node.input_specs,
                               .rows = full_rows_});
    if (node.plan.coupling != RowCoupling::kRows)
      clear_padding(exec, output, full_rows_.of(node.plan.output.layout));
  }
}

// Passes the gradient of `node` through the gate at its output. Returns the row sets below it.
std::span<const RowSets> Graph::pass_gate(Exec& exec, BackwardHooks& hooks, const GraphNode& node,
                                          const RowSets& rows, Gradient& gradient) const {
  const ValueSpec& spec = node.plan.output;
  const PlannedBlock& block = plan_.gradient_blocks[static_cast<std::size_t>(node.kept_block)];
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
  const PlannedBlock& block = plan_.gradient_blocks[static_cast<std::size_t>(plan.block)];
  const Tensor moved = gradients_.at(block.offset, plan_.dtype, {most, added.width()});
  if (rows < before) exec.ops.run(Copy{.y = rows_from(moved, rows), .x = rows_from(whole, rows)});
  return moved;
}

// Sets node_tensors_ for the gradients of the inputs of `node`.
//   dx     where its backward writes them
//   added  what is added to them
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
      const PlannedBlock& block = plan_.gradient_blocks[static_cast<std::size_t>(plan.block)];
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
      if (plan.adds && !node.plan.accumulates)
        dx = exec.scratch.take(plan_.dtype, {kept_rows, spec.width});
      else if (with_norms && j == 0 && producer.wants_gradient_norm && sum.rows() == kept_rows)
        gradient_views_[input].norm = dx_norm =
            norm_view(gradients_, block, spec, kept_rows, node.plan.dx_norm_parts);
    }
    node_tensors_.dx.push_back(dx);
    node_tensors_.added.push_back(added);
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
  for (const int number : node.parameters)
    tensors.gradients.push_back(context.gradients[static_cast<std::size_t>(number)]);

  ArenaFrame frame(exec.scratch);
  const Tensor dx_norm =
      place_gradients(exec, node, rows_dx, gradient,
                      exec.keeps_norms && node.plan.writes_norms && context.hooks->reads_norms());
  for (const int j : node.plan.passes_gradient)
    if (const Tensor& dx = tensors.dx[static_cast<std::size_t>(j)])
      exec.ops.run(Copy{.y = dx, .x = gradient.dy});
  if (node.has_backward() && !skips(node))
    node.layer->backward(
        exec, {.inputs_full = tensors.inputs,
               .output_full = padded_tensor(node),
               .saved_full = tensors.saved,
               .parameters = tensors.parameters,
               .input_specs = node.input_specs,
               .dy = gradient.dy,
               .dx = tensors.dx,
               .dx_norm = dx_norm,
               .added = tensors.added,
               .leaves_dx = node.leaves_dx,
               .rows = rows_dy,
               .rows_dx = rows_dx,
               .rows_full = full_rows_,
               .halves = context.halves,
               .gradients = {tensors.gradients, context.gradients.adds || !node.writes_gradients},
               .loss_scale = context.loss_scale,
               .method = {.hooks = *context.hooks,
                          .site = node.weight_site,
                          .dy_norm = gradient.norm,
                          .x_norm_full = output_norm(exec, node.inputs[0])}});
  for (std::size_t j = 0; j < node.inputs.size(); ++j)
    if (node.plan.coupling != RowCoupling::kRows)
      clear_padding(exec, tensors.dx[j], rows_dx.of(node.input_specs[j].layout));
  for (std::size_t j = 0; j < node.inputs.size(); ++j) {
    if (!tensors.added[j] || node.plan.accumulates) continue;
    const Tensor& sum = gradient_views_[static_cast<std::size_t>(node.inputs[j])].dy;
    exec.ops.run(
        Add{.y = sum.first_rows(tensors.dx[j].rows()), .a = tensors.added[j], .b = tensors.dx[j]});
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
      const Tensor& next = context.gradients[static_cast<std::size_t>(node.parameters[i])];
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
    const bool loss = i + 1 == plan_.nodes.size();
    if (!loss && node.gradient_block < 0) continue;
    exec.site = static_cast<std::uint32_t>(i);
    Gradient gradient = gradient_views_[i];
    if (node.gate >= 0)
      rows = pass_gate(exec, hooks, node, behind(rows, node.mixed_above), gradient);
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
