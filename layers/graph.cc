#include "layers/graph.h"

#include <algorithm>
#include <limits>

namespace vcas {

Value Graph::input(const std::string& name, const ValueSpec& spec) {
  Node node;
  node.name = name;
  node.plan.output = spec;
  nodes_.push_back(std::move(node));
  return {static_cast<int>(nodes_.size()) - 1};
}

Value Graph::add(const std::string& name, std::unique_ptr<Layer> layer, std::vector<Value> inputs) {
  Node node;
  node.name = name;
  node.forward_place = name + "/forward";
  node.backward_place = name + "/backward";
  node.sample_place = name + "/sample";
  node.probe_place = name + "/probe";
  node.weights_place = name + "/weights";
  node.layer = std::move(layer);
  for (const Value value : inputs) {
    VCAS_CHECK(value.index >= 0 && value.index < static_cast<int>(nodes_.size()),
               "node " + name + " reads a value that does not exist yet");
    node.inputs.push_back(value.index);
  }
  nodes_.push_back(std::move(node));
  return {static_cast<int>(nodes_.size()) - 1};
}

void Graph::tie(Value node, Value owner) {
  VCAS_CHECK(owner.index < node.index, "a node is tied to one before it");
  nodes_[static_cast<std::size_t>(node.index)].tied_to = owner.index;
}

void Graph::gate(Value value) { gate_nodes_.push_back(value.index); }

std::int64_t Graph::max_rows(std::int64_t rows_per_item) const {
  if (rows_per_item == kMasked) return limits_.max_masked;
  return rows_per_item == kTokens ? limits_.max_tokens : limits_.max_items * rows_per_item;
}

std::int64_t Graph::rows_now(std::int64_t rows_per_item) const {
  if (rows_per_item == kMasked) return masked_;
  return rows_per_item == kTokens ? tokens_ : items_ * rows_per_item;
}

void Graph::finish(Ops& ops, const GraphLimits& limits) {
  ops_ = &ops;
  limits_ = limits;
  consumers_.assign(nodes_.size(), {});
  std::vector<Parameter> parameters;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    if (!node.layer) continue;
    for (const int input : node.inputs) {
      node.input_specs.push_back(nodes_[static_cast<std::size_t>(input)].plan.output);
      consumers_[static_cast<std::size_t>(input)].push_back(static_cast<int>(i));
    }
    try {
      node.plan = node.layer->plan(
          {node.input_specs, dtype_, limits_.max_items, limits_.max_tokens, limits_.max_masked});
    } catch (const Error& error) {
      throw Error(error.code(), node.name + ": " + error.what(), error.hint());
    }
    VCAS_CHECK(
        !node.plan.samples_weight || (!node.plan.in_place && node.plan.passes_gradient.empty()),
        node.name + " samples its weight gradient from a dy that does not stay");
    VCAS_CHECK(node.plan.dx_norm_parts == 1 || (!node.plan.in_place && !node.plan.accumulates),
               node.name + " writes norms of parts of a dx that is not its own");
    for (const ParameterSpec& spec : node.plan.parameters) {
      if (node.tied_to >= 0 && node.parameters.empty()) {
        const int number = nodes_[static_cast<std::size_t>(node.tied_to)].parameters.at(0);
        const Parameter& owned = parameters[static_cast<std::size_t>(number)];
        if (owned.shape != spec.shape || node.plan.samples_weight)
          throw Error(ExitCode::kBadConfig,
                      node.name + "." + spec.name + " " + spec.shape.text() +
                          " cannot be tied to " + owned.name + " " + owned.shape.text() +
                          (node.plan.samples_weight ? ": its gradient is sampled" : ""));
        node.parameters.push_back(number);
        continue;
      }
      node.parameters.push_back(static_cast<int>(parameters.size()));
      parameters.push_back({.name = node.name + "." + spec.name,
                            .shape = spec.shape,
                            .init = spec.init,
                            .decay = spec.decay});
    }
    if (node.plan.samples_weight) {
      node.weight_site = static_cast<int>(sampled_weights_.size());
      sampled_weights_.push_back(node.parameters[0]);
    }
  }
  std::sort(gate_nodes_.begin(), gate_nodes_.end());
  for (std::size_t g = 0; g < gate_nodes_.size(); ++g)
    nodes_[static_cast<std::size_t>(gate_nodes_[g])].gate = static_cast<int>(g);

  mark_gradients();
  check_gates();
  plan_activations();
  plan_gradients();
  mark_writers();
  parameters_ = Parameters(ops, dtype_, std::move(parameters));
  memory_.parameters = parameters_.bytes();
  allocate(ops);
}

std::size_t Graph::node_of(int weight_site) const {
  const auto found = std::find_if(nodes_.begin(), nodes_.end(), [&](const Node& node) {
    return node.weight_site == weight_site;
  });
  VCAS_CHECK(found != nodes_.end(), "no sampled linear " + std::to_string(weight_site));
  return static_cast<std::size_t>(found - nodes_.begin());
}

int Graph::gate_above(int weight_site) const {
  for (std::size_t i = node_of(weight_site); i < nodes_.size(); ++i)
    if (nodes_[i].gate >= 0) return nodes_[i].gate;
  return -1;
}

std::int64_t Graph::weight_layout(int weight_site) const {
  return nodes_[node_of(weight_site)].plan.output.rows_per_item;
}

void Graph::mark_gradients() {
  for (Node& node : nodes_) {
    node.needs_gradient = !node.plan.parameters.empty();
    node.wants_gradient_norm = node.plan.samples_weight;
    for (std::size_t j = 0; j < node.inputs.size(); ++j) {
      Node& input = nodes_[static_cast<std::size_t>(node.inputs[j])];
      node.needs_gradient |= input.needs_gradient;
      node.wants_gradient_norm |= node.passes_gradient(j) && input.wants_gradient_norm;
      input.writes_output_norm |= input.plan.writes_norms && node.plan.samples_weight;
    }
  }
}

void Graph::mark_writers() {
  for (Node& node : nodes_)
    node.writes_gradients =
        node.plan.writes_gradients && node.tied_to < 0 && node.gradient_block >= 0;
  for (const Node& node : nodes_)
    if (node.tied_to >= 0) nodes_[static_cast<std::size_t>(node.tied_to)].writes_gradients = false;
}

void Graph::check_gates() const {
  for (const int gate : gate_nodes_) {
    const Node& gated = nodes_[static_cast<std::size_t>(gate)];
    const std::string where = "sampling gate at " + gated.name + ": ";
    if (!gated.needs_gradient || gate + 1 == static_cast<int>(nodes_.size()))
      throw Error(ExitCode::kBadConfig, where + "no gradient flows there");
    for (int i = 0; i <= gate; ++i) {
      const Node& below = nodes_[static_cast<std::size_t>(i)];
      if (!below.needs_gradient) continue;
      if (below.plan.coupling == RowCoupling::kBatch)
        throw Error(ExitCode::kBadConfig,
                    where + below.name +
                        " below it mixes the items of a batch, so dropping items "
                        "would bias its gradient");
      for (const int consumer : consumers_[static_cast<std::size_t>(i)])
        if (i != gate && consumer > gate)
          throw Error(ExitCode::kBadConfig,
                      where + "not a cut edge: " + nodes_[static_cast<std::size_t>(consumer)].name +
                          " reads " + below.name + " past the gate");
    }
  }
}

void Graph::plan_activations() {
  const int forever = std::numeric_limits<int>::max();
  const auto bytes_of = [&](std::int64_t rows_per_item, std::int64_t width, DType dtype) {
    return static_cast<std::size_t>(max_rows(rows_per_item) * width) * dtype_bytes(dtype);
  };
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    const ValueSpec& spec = node.plan.output;
    const bool passing =
        node.layer && !node.plan.saved_output && !node.kept && i + 1 < nodes_.size();
    int end = passing ? static_cast<int>(i) : forever;
    for (const int consumer : consumers_[i]) {
      const Node& reader = nodes_[static_cast<std::size_t>(consumer)];
      end = std::max(end, consumer);
      for (const int saved : reader.plan.saved_inputs)
        if (reader.inputs[static_cast<std::size_t>(saved)] == static_cast<int>(i)) end = forever;
    }
    // Inputs are filled before the first node runs.
    const int begin = node.layer ? static_cast<int>(i) : 0;
    node.output_block = activation_blocks_.size();
    std::size_t bytes = bytes_of(spec.rows_per_item, spec.width, spec.dtype);
    if (node.writes_output_norm)
      bytes = Arena::round_up(bytes) + norm_bytes(spec.rows_per_item, node.plan.output_norm_parts);
    activation_blocks_.push_back({bytes, begin, end});
    for (const SavedSpec& saved : node.plan.saved) {
      node.saved_blocks.push_back(activation_blocks_.size());
      activation_blocks_.push_back(
          {bytes_of(saved.rows_per_item, saved.width, saved.dtype), static_cast<int>(i), forever});
    }
  }
  memory_.activations = plan_memory(activation_blocks_);
}

// Whether the gradient of `value`, first written by the backward of `node`, may live in `block`,
// which other values share: no holder may change the block before another has read it for the last
// time. A holder is read last when its producer runs backward, and changed when a further consumer
// adds to it.
bool Graph::can_share(int block, int value, int node) const {
  const auto changed_before = [&](int holder, int reader) {
    for (const int consumer : consumers_[static_cast<std::size_t>(holder)])
      if (consumer < node && consumer >= reader) return true;
    return false;
  };
  for (const int other : holders_[static_cast<std::size_t>(block)]) {
    if (other >= node) continue;  // read already
    if (other == value || changed_before(value, other) || changed_before(other, value))
      return false;
  }
  return true;
}

void Graph::plan_gradients() {
  const int last = static_cast<int>(nodes_.size()) - 1;
  const auto gate_time = [&](int node) { return 2 * (last - node); };
  const auto new_block = [&](int value, int begin, std::int64_t norm_parts = 1) {
    const ValueSpec& spec = nodes_[static_cast<std::size_t>(value)].plan.output;
    const std::size_t bytes =
        static_cast<std::size_t>(max_rows(spec.rows_per_item) * spec.width) * dtype_bytes(dtype_);
    gradient_blocks_.push_back(
        {Arena::round_up(bytes) + norm_bytes(spec.rows_per_item, norm_parts), begin, begin});
    holders_.push_back({value});
    return static_cast<int>(gradient_blocks_.size()) - 1;
  };
  const auto use = [&](int block, int time) {
    PlannedBlock& planned = gradient_blocks_[static_cast<std::size_t>(block)];
    planned.end = std::max(planned.end, time);
  };
  // Sampled weight gradients, and those of all biases beside them, wait for each other, at most to
  // the next gate. Nothing changes a block that one of them reads.
  struct {
    std::vector<int> nodes, blocks;  // of their dy
    std::size_t scratch_bytes = 0;
  } waiting;
  const auto flush = [&] {
    if (waiting.nodes.empty()) return;
    const int after = waiting.nodes.back();
    nodes_[static_cast<std::size_t>(after)].flushes_weights = true;
    for (const int block : waiting.blocks) use(block, gate_time(after) + 1);
    memory_.scratch = std::max(memory_.scratch, waiting.scratch_bytes);
    waiting = {};
  };
  for (int i = last; i >= 0; --i) {
    Node& node = nodes_[static_cast<std::size_t>(i)];
    if (!node.layer || !node.needs_gradient) continue;
    if (node.gradient_block < 0 && i != last) continue;  // nothing that reaches the loss reads it
    if (node.gate >= 0) flush();
    const int time = gate_time(i) + 1;
    int dy_block = node.gradient_block;
    if (dy_block >= 0) use(dy_block, time);
    if (node.gate >= 0) dy_block = node.kept_block = new_block(i, gate_time(i));
    if (node.kept_block >= 0) use(node.kept_block, time);
    const auto waits_for = [&](int block) {
      return std::ranges::find(waiting.blocks, block) != waiting.blocks.end();
    };
    node.dx.assign(node.inputs.size(), {});
    for (std::size_t j = 0; j < node.inputs.size(); ++j) {
      const int input = node.inputs[j];
      Node& producer = nodes_[static_cast<std::size_t>(input)];
      Dx& dx = node.dx[j];
      if (!producer.layer || !producer.needs_gradient) continue;
      if (const int block = producer.gradient_block; block >= 0) {
        use(block, time);
        dx.adds = true;
        dx.moves = waits_for(block);
        if (dx.moves) {
          std::erase(holders_[static_cast<std::size_t>(block)], input);
          producer.gradient_block = new_block(input, time);
        }
        dx.block = producer.gradient_block;
        continue;
      }
      const bool same_shape = producer.plan.output.width == node.plan.output.width &&
                              producer.plan.output.rows_per_item == node.plan.output.rows_per_item;
      // An in-place backward changes the block at once, so nobody may still have to read it.
      const bool alone =
          dy_block >= 0 && std::none_of(holders_[static_cast<std::size_t>(dy_block)].begin(),
                                        holders_[static_cast<std::size_t>(dy_block)].end(),
                                        [&](int holder) { return holder < i; });
      const bool in_place = node.plan.in_place && j == 0 && alone && !waits_for(dy_block);
      const bool pass = node.passes_gradient(j) && dy_block >= 0 && can_share(dy_block, input, i);
      if (same_shape && dy_block >= 0 && (in_place || pass)) {
        producer.gradient_block = dy_block;
        holders_[static_cast<std::size_t>(dy_block)].push_back(input);
        use(dy_block, gate_time(input) + 1);
        if (!pass) dx.block = dy_block;
      } else {
        dx.block = producer.gradient_block =
            new_block(input, time, j == 0 ? node.plan.dx_norm_parts : 1);
      }
    }
    if (node.plan.samples_weight) {
      if (waiting.nodes.size() == kMostInGroup) flush();
      waiting.nodes.push_back(i);
      waiting.blocks.push_back(dy_block);
      waiting.scratch_bytes +=
          WeightSampler::scratch_bytes(max_rows(node.plan.output.rows_per_item));
    }
  }
  flush();
  // A gate that passes everything on leaves the gradient in the block before it.
  for (const Node& node : nodes_)
    if (node.kept_block >= 0)
      use(node.gradient_block, gradient_blocks_[static_cast<std::size_t>(node.kept_block)].end);
  memory_.gradients = plan_memory(gradient_blocks_);
}

void Graph::allocate(Ops& ops) {
  std::vector<std::int64_t> layouts, layout_rows;
  for (const Node& node : nodes_) {
    const std::int64_t layout = node.plan.output.rows_per_item;
    if (std::find(layouts.begin(), layouts.end(), layout) == layouts.end()) {
      layouts.push_back(layout);
      layout_rows.push_back(max_rows(layout));
    }
    std::size_t added = 0;  // dx of a layer that cannot accumulate is made in scratch first
    for (std::size_t j = 0; j < node.dx.size(); ++j) {
      const ValueSpec& spec = nodes_[static_cast<std::size_t>(node.inputs[j])].plan.output;
      if (node.dx[j].adds && !node.plan.accumulates)
        added +=
            Arena::round_up(static_cast<std::size_t>(max_rows(spec.rows_per_item) * spec.width) *
                            dtype_bytes(dtype_));
    }
    memory_.scratch = std::max(memory_.scratch, node.plan.scratch_bytes + added);
  }
  VCAS_CHECK(gate_nodes_.empty() || layouts.size() <= kMostInGroup,
             "gates in a graph of " + std::to_string(layouts.size()) + " layouts of rows");
  activations_ = Buffer(ops, memory_.activations);
  gradients_ = Buffer(ops, memory_.gradients);
  scratch_ = Buffer(ops, memory_.scratch);
  scratch_arena_ = Arena(scratch_.data(), scratch_.bytes());

  const std::size_t offsets_bytes =
      Arena::round_up(static_cast<std::size_t>(limits_.max_items + 1) * sizeof(std::int64_t));
  row_buffer_ = Buffer(ops, offsets_bytes * layouts.size() + Arena::kAlignment);
  memory_.rows = row_buffer_.bytes();
  step_ = row_buffer_.at(offsets_bytes * layouts.size(), DType::kI64, {1});
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    RowSet rows;
    rows.offsets = row_buffer_.at(i * offsets_bytes, DType::kI64, {limits_.max_items + 1});
    full_rows_.entries().push_back({layouts[i], rows});
    host_offsets_.emplace_back().reserve(static_cast<std::size_t>(limits_.max_items) + 1);
  }
  for (std::size_t g = 0; g < gate_nodes_.size(); ++g) {
    const Node& node = nodes_[static_cast<std::size_t>(gate_nodes_[g])];
    gates_.emplace_back(ops, dtype_, static_cast<int>(g), node.plan.output.rows_per_item,
                        limits_.max_items, layouts, layout_rows);
    memory_.rows += gates_.back().bytes();
  }
}

void Graph::set_batch(std::int64_t items, const std::vector<std::int64_t>& token_offsets,
                      const std::vector<std::int64_t>& masked_offsets) {
  const auto check = [](std::int64_t count, std::int64_t planned, const char* what) {
    VCAS_CHECK(count <= planned, "batch of " + std::to_string(count) + " " + what +
                                     ", planned for " + std::to_string(planned));
  };
  VCAS_CHECK(items >= 1, "an empty batch");
  check(items, limits_.max_items, "items");
  for (const auto* offsets : {&token_offsets, &masked_offsets})
    VCAS_CHECK(offsets->empty() || std::ssize(*offsets) == items + 1,
               std::to_string(offsets->size()) + " offsets of " + std::to_string(items) + " items");
  const bool same_items = items == items_;
  items_ = items;
  tokens_ = token_offsets.empty() ? 0 : token_offsets.back();
  masked_ = masked_offsets.empty() ? 0 : masked_offsets.back();
  check(tokens_, limits_.max_tokens, "tokens");
  check(masked_, limits_.max_masked, "masked positions");
  for (std::size_t l = 0; l < full_rows_.entries().size(); ++l) {
    const std::int64_t layout = full_rows_.entries()[l].rows_per_item;
    RowSet& rows = full_rows_.entries()[l].rows;
    if (layout > 0 && same_items) continue;
    const std::vector<std::int64_t>& ragged = layout == kTokens ? token_offsets : masked_offsets;
    std::vector<std::int64_t>& offsets = host_offsets_[l];
    offsets.assign(static_cast<std::size_t>(items) + 1, 0);
    for (std::size_t n = 0; n < offsets.size(); ++n) {
      if (layout > 0)
        offsets[n] = static_cast<std::int64_t>(n) * layout;
      else if (!ragged.empty())
        offsets[n] = ragged[n];
    }
    rows.items = items;
    rows.rows = rows_now(layout);
    rows.half = offsets[static_cast<std::size_t>(items / 2)];
    rows.length = offsets[1];
    rows.squares = 0;
    for (std::size_t n = 0; n + 1 < offsets.size(); ++n) {
      const std::int64_t length = offsets[n + 1] - offsets[n];
      rows.squares += length * length;
      if (length != offsets[1]) rows.length = 0;
    }
    rows.host_offsets = rows.length == 0 ? offsets.data() : nullptr;
    rows.offsets.shape = {items + 1};
    ops_->copy_to_device(rows.offsets.data, offsets.data(), rows.offsets.bytes());
  }
}

BatchShape Graph::batch() const {
  const bool uniform = std::ranges::all_of(
      full_rows_.entries(), [](const RowSets::Entry& entry) { return entry.rows.length > 0; });
  return {.items = items_, .tokens = tokens_, .masked = masked_, .uniform = uniform};
}

Tensor Graph::block_view(const Buffer& buffer, const PlannedBlock& block, DType dtype,
                         std::int64_t rows, std::int64_t width) const {
  return buffer.at(block.offset, dtype, {rows, width});
}

std::size_t Graph::norm_bytes(std::int64_t rows_per_item, std::int64_t parts) const {
  return static_cast<std::size_t>(max_rows(rows_per_item) * parts) *
         dtype_bytes(statistics_dtype(dtype_));
}

// Norms lie at the end of the block that is planned for their rows.
Tensor Graph::norm_view(const Buffer& buffer, const PlannedBlock& block, const ValueSpec& spec,
                        std::int64_t rows, std::int64_t parts) const {
  return buffer.at(block.offset + block.bytes - norm_bytes(spec.rows_per_item, parts),
                   statistics_dtype(dtype_), {rows, parts});
}

Tensor Graph::output_norm(const Exec& exec, int number) const {
  const Node& node = nodes_[static_cast<std::size_t>(number)];
  if (!exec.keeps_norms || !node.writes_output_norm) return {};
  const ValueSpec& spec = node.plan.output;
  return norm_view(activations_, activation_blocks_[node.output_block], spec,
                   rows_now(spec.rows_per_item), node.plan.output_norm_parts);
}

Tensor Graph::tensor(Value value) const {
  const Node& node = nodes_[static_cast<std::size_t>(value.index)];
  const ValueSpec& spec = node.plan.output;
  return block_view(activations_, activation_blocks_[node.output_block], spec.dtype,
                    rows_now(spec.rows_per_item), spec.width);
}

Tensor Graph::saved(Value value, int i) const {
  const Node& node = nodes_[static_cast<std::size_t>(value.index)];
  const SavedSpec& spec = node.plan.saved[static_cast<std::size_t>(i)];
  return block_view(activations_,
                    activation_blocks_[node.saved_blocks[static_cast<std::size_t>(i)]], spec.dtype,
                    rows_now(spec.rows_per_item), spec.width);
}

Exec Graph::make_exec(std::uint64_t seed, std::uint64_t step, bool training) {
  ops_->copy_to_device(step_.data, &step, sizeof step);
  return {.ops = *ops_,
          .scratch = scratch_arena_,
          .dtype = dtype_,
          .seed = seed,
          .step = step_,
          .training = training,
          .site = 0};
}

// Sets node_tensors_ to what a layer reads, in storage that is kept between calls.
void Graph::collect_tensors(const Node& node, std::size_t i) {
  NodeTensors& tensors = node_tensors_;
  tensors.inputs.clear();
  tensors.saved.clear();
  tensors.parameters.clear();
  tensors.dx.clear();
  tensors.added.clear();
  for (const int input : node.inputs) tensors.inputs.push_back(tensor({input}));
  for (std::size_t s = 0; s < node.saved_blocks.size(); ++s)
    tensors.saved.push_back(saved({static_cast<int>(i)}, static_cast<int>(s)));
  for (const int number : node.parameters)
    tensors.parameters.push_back(parameters_[static_cast<std::size_t>(number)].value);
}

void Graph::forward(Exec& exec) {
  NodeTensors& tensors = node_tensors_;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (!node.layer) continue;
    collect_tensors(node, i);
    exec.site = static_cast<std::uint32_t>(i);
    exec.ops.enter(node.forward_place);
    ArenaFrame frame(exec.scratch);
    node.layer->forward(exec, {.inputs = tensors.inputs,
                               .output = tensor({static_cast<int>(i)}),
                               .output_norm = output_norm(exec, static_cast<int>(i)),
                               .saved = tensors.saved,
                               .parameters = tensors.parameters,
                               .input_specs = node.input_specs,
                               .rows = full_rows_});
  }
}

// Applies the gate at the output of `node` to its gradient. Returns the row sets below it.
const RowSets& Graph::pass_gate(Exec& exec, const BackwardContext& context, const Node& node,
                                const RowSets& rows, double& ratio_above, Gradient& gradient) {
  const auto number = static_cast<std::size_t>(node.gate);
  SampleGate& gate = gates_[number];
  const ValueSpec& spec = node.plan.output;
  BackwardRecord* record = context.record;
  if (context.mode == SamplingMode::kExact) {
    if (record && !record->item_norm.empty()) {
      const RowSet& own = rows.of(spec.rows_per_item);
      const Tensor& norm = record->item_norm[number];
      exec.ops.enter(node.probe_place);
      exec.ops.run(ItemNorm{
          .norm = {norm.data, norm.dtype, {own.items}}, .x = gradient.dy, .offsets = own.offsets});
    }
    return rows;
  }
  exec.ops.enter(node.sample_place);
  const double ratio = context.act_ratio[number];
  if (!(ratio < ratio_above)) {
    if (record && !record->kept_items.empty()) record->kept_items[number] = rows.items();
    return rows;
  }
  ratio_above = ratio;
  const RowSets& kept = gate.draw(exec, context, gradient.dy, rows, items_);
  const std::int64_t kept_rows = kept.of(spec.rows_per_item).rows;
  const PlannedBlock& block = gradient_blocks_[static_cast<std::size_t>(node.kept_block)];
  const Gradient of_kept{.dy = block_view(gradients_, block, dtype_, kept_rows, spec.width),
                         .norm = exec.keeps_norms && node.wants_gradient_norm
                                     ? norm_view(gradients_, block, spec, kept_rows, 1)
                                     : Tensor{}};
  gate.compact(exec, gradient.dy, of_kept.dy, of_kept.norm);
  gradient = of_kept;
  return kept;
}

// The backward of node i, whose output has `gradient` of `rows`.
void Graph::run_backward(Exec& exec, const BackwardContext& context, std::size_t i,
                         const RowSets& rows, const Gradient& gradient) {
  const Node& node = nodes_[i];
  const Tensor& dy = gradient.dy;
  const bool with_norms =
      exec.keeps_norms && node.plan.writes_norms && context.mode != SamplingMode::kExact;
  Tensor dx_norm;
  NodeTensors& tensors = node_tensors_;
  exec.ops.enter(node.backward_place);
  collect_tensors(node, i);

  ArenaFrame frame(exec.scratch);
  for (std::size_t j = 0; j < node.inputs.size(); ++j) {
    const auto input = static_cast<std::size_t>(node.inputs[j]);
    const Node& producer = nodes_[input];
    const Dx& plan = node.dx[j];
    Tensor dx, added;
    if (plan.block < 0 && producer.layer && producer.needs_gradient) {
      gradient_views_[input] = gradient;
    } else if (plan.block >= 0) {
      const ValueSpec& spec = producer.plan.output;
      const std::int64_t kept_rows = rows.of(spec.rows_per_item).rows;
      const PlannedBlock& block = gradient_blocks_[static_cast<std::size_t>(plan.block)];
      // A gate above that passed everything on left dy in its own block; dx follows in place.
      const bool in_place = node.plan.in_place && j == 0 && !plan.adds &&
                            plan.block == (node.gate >= 0 ? node.kept_block : node.gradient_block);
      if (plan.adds) added = gradient_views_[input].dy;
      dx = in_place ? dy
           : plan.adds && !plan.moves
               ? added
               : block_view(gradients_, block, dtype_, kept_rows, spec.width);
      gradient_views_[input] = {.dy = dx, .norm = {}};
      if (plan.adds && !node.plan.accumulates)
        dx = exec.scratch.take(dtype_, {kept_rows, spec.width});
      else if (with_norms && j == 0 && producer.wants_gradient_norm)
        gradient_views_[input].norm = dx_norm =
            norm_view(gradients_, block, spec, kept_rows, node.plan.dx_norm_parts);
    }
    tensors.dx.push_back(dx);
    tensors.added.push_back(added);
  }
  for (const int j : node.plan.passes_gradient)
    if (const Tensor& dx = tensors.dx[static_cast<std::size_t>(j)])
      exec.ops.run(Copy{.y = dx, .x = dy});
  if (node.plan.passes_gradient.size() < node.inputs.size())
    node.layer->backward(exec, {.inputs_full = tensors.inputs,
                                .input_norm_full = output_norm(exec, node.inputs[0]),
                                .output_full = tensor({static_cast<int>(i)}),
                                .saved_full = tensors.saved,
                                .parameters = tensors.parameters,
                                .input_specs = node.input_specs,
                                .dy = dy,
                                .dy_norm = gradient.norm,
                                .dx = tensors.dx,
                                .dx_norm = dx_norm,
                                .added = tensors.added,
                                .rows = rows,
                                .rows_full = full_rows_,
                                .context = context,
                                .parameter_numbers = node.parameters,
                                .adds_gradients = context.adds_gradients || !node.writes_gradients,
                                .weight_sampler = weight_sampler_,
                                .weight_site = node.weight_site});
  for (std::size_t j = 0; j < node.inputs.size(); ++j) {
    if (!tensors.added[j] || node.plan.accumulates) continue;
    const Tensor& sum = gradient_views_[static_cast<std::size_t>(node.inputs[j])].dy;
    exec.ops.run(Add{.y = sum, .a = tensors.added[j], .b = tensors.dx[j]});
  }
}

void Graph::clear_gradients(Exec& exec, const GradSink& sink, const Node& node) const {
  for (std::size_t i = node.tied_to < 0 ? 0 : 1; i < node.parameters.size(); ++i)
    if (const Tensor& gradient = sink.full[static_cast<std::size_t>(node.parameters[i])])
      exec.ops.run(Fill{.y = gradient, .value = 0});
}

// Nothing was kept: everything from node `top` down gets exactly zero.
void Graph::leave_zeros(Exec& exec, const BackwardContext& context, std::size_t top) const {
  BackwardRecord* record = context.record;
  for (std::size_t i = 0; i <= top; ++i) {
    const Node& node = nodes_[i];
    if (node.writes_gradients && !context.adds_gradients)
      clear_gradients(exec, *context.sink, node);
    if (record && !record->kept_items.empty() && node.gate >= 0)
      record->kept_items[static_cast<std::size_t>(node.gate)] = 0;
    if (record && !record->kept_rows.empty() && node.weight_site >= 0)
      record->kept_rows[static_cast<std::size_t>(node.weight_site)] = 0;
  }
}

void Graph::backward(Exec& exec, const BackwardContext& context) {
  weight_sampler_.clear();
  if (!context.adds_gradients) {
    static const std::string place = "gradients/backward";
    exec.ops.enter(place);
    for (const Node& node : nodes_)
      if (!node.writes_gradients) clear_gradients(exec, *context.sink, node);
  }
  const RowSets* rows = &full_rows_;
  double ratio_above = 1.0;
  // Where a gate passes everything on, its block has no rows: dy stays where it is.
  gradient_views_.assign(nodes_.size(), {});
  for (std::size_t i = nodes_.size(); i-- > 0;) {
    const Node& node = nodes_[i];
    if (!node.layer || !node.needs_gradient) continue;
    const bool loss = i + 1 == nodes_.size();
    if (!loss && node.gradient_block < 0) continue;
    exec.site = static_cast<std::uint32_t>(i);
    Gradient gradient = gradient_views_[i];
    if (node.gate >= 0) rows = &pass_gate(exec, context, node, *rows, ratio_above, gradient);
    if (rows->items() == 0) return leave_zeros(exec, context, i);

    run_backward(exec, context, i, *rows, gradient);
    if (node.flushes_weights && !weight_sampler_.empty()) {
      exec.ops.enter(node.weights_place);
      weight_sampler_.flush(exec, context);
    }
  }
}

}  // namespace vcas
