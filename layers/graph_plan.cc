#include "layers/graph_plan.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <set>
#include <typeinfo>

#include "core/sizes.h"
#include "layers/backward_hooks.h"

namespace vcas {

std::size_t GraphPlan::norm_bytes(Layout layout, std::int64_t parts) const {
  return static_cast<std::size_t>(max_rows(layout) * parts) * dtype_bytes(statistics_dtype(dtype));
}

namespace {

std::string type_of(const Layer& layer) {
  const char* mangled = typeid(layer).name();
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(mangled, nullptr, nullptr, nullptr), std::free);
  return name ? name.get() : mangled;
}

}  // namespace

void check_plan(const GraphNode& node) {
  const NodePlan& plan = node.plan;
  const auto require = [&](bool fits, const std::string& fault) {
    if (!fits)
      throw Error(ExitCode::kBadConfig,
                  node.name + (node.layer ? " (" + type_of(*node.layer) + ")" : "") + ": " + fault,
                  node.layer ? "correct what the layer's plan returns (docs/layer_api.md)"
                             : "correct what Graph::input was given");
  };
  const auto check_rows = [&](const std::string& what, std::int64_t width, Layout layout) {
    require(width >= 1, what + ".width is " + std::to_string(width) + ", and must be at least 1");
    require(layout.rows(1, 1, 1) >= 1, what + ".layout has " + layout.text() + " rows an item");
  };
  check_rows("output", plan.output.width, plan.output.layout);
  if (!node.layer) return;
  for (const SavedSpec& saved : plan.saved) check_rows("saved", saved.width, saved.layout);
  require(plan.output_norm_parts >= 1 && plan.dx_norm_parts >= 1,
          "norms have at least one part a row");
  std::set<std::string> names;
  for (const auto* specs : {&plan.parameters, &plan.state})
    for (const ParameterSpec& spec : *specs) {
      require(names.insert(spec.name).second, "two parameters are called \"" + spec.name + "\"");
      bool holds = spec.shape.rank() > 0;
      for (int axis = 0; axis < spec.shape.rank(); ++axis) holds &= spec.shape[axis] >= 1;
      require(holds, spec.name + " has shape " + spec.shape.text() + ", which holds nothing");
    }

  const auto inputs = std::ssize(node.inputs);
  const auto check_input = [&](const std::string& field, int input) {
    require(input >= 0 && input < inputs, field + " names input " + std::to_string(input) + " of " +
                                              std::to_string(inputs) + "; the first is 0");
  };
  for (const int input : plan.saved_inputs) check_input("saved_inputs", input);
  for (const int input : plan.passes_gradient) {
    check_input("passes_gradient", input);
    const ValueSpec& spec = node.input_specs[input];
    require(spec.width == plan.output.width && spec.layout == plan.output.layout,
            "passes_gradient names input " + std::to_string(input) +
                ", whose shape is not that of the output");
    require(std::ranges::count(plan.passes_gradient, input) == 1,
            "passes_gradient names input " + std::to_string(input) + " twice");
  }
  require(!plan.is_sum || inputs == 2,
          "is_sum needs two inputs, and there are " + std::to_string(inputs));
  require(plan.dx_norm_parts == 1 || (!plan.in_place && !plan.accumulates),
          "writes norms of parts of a dx that is not its own");
  require(
      !plan.gathers_dy || (!plan.in_place && plan.passes_gradient.empty() && !plan.samples_weight),
      "gathers_dy needs a dy for backward alone, without in_place, passes_gradient and "
      "samples_weight");
  if (!plan.samples_weight) return;
  require(!plan.in_place && plan.passes_gradient.empty(),
          "samples its weight gradient from a dy that does not stay");
  require(!plan.parameters.empty() && plan.parameters[0].shape.rank() == 2 &&
              plan.parameters[0].shape[0] == plan.output.width,
          "samples_weight needs a weight [output.width, inputs] as parameter 0");
  require(std::ranges::count(plan.saved_inputs, 0) > 0,
          "samples_weight needs input 0 in saved_inputs");
}

namespace {

class Planner {
 public:
  explicit Planner(GraphPlan& plan) : plan_(plan) {}

  void plan();

 private:
  void plan_nodes();
  void check_sizes(const GraphNode& node) const;
  void check_tie(const GraphNode& node) const;
  void check_names() const;
  void check_loss() const;
  std::size_t bytes_of(Layout layout, std::int64_t width, DType dtype) const;
  void mark_gradients();
  void mark_writers();
  void mark_sums();
  void count_mixing();
  void check_gates() const;
  void plan_activations();
  int gate_time(int node) const;
  int new_block(int value, int begin, std::int64_t norm_parts = 1);
  void use(int block, int time);
  bool waits_for(int block) const;
  bool can_share(int block, int value, int node) const;
  void flush();
  void plan_dx(int i, std::size_t j, int dy_block);
  void take_dx(int i);
  void plan_gradients();
  void plan_scratch();

  // Sampled weight gradients, and those of all biases beside them, wait for each other, at most to
  // the next gate. Nothing changes a block that one of them reads, until the flush after theirs
  // where they run beside what follows.
  struct Waiting {
    std::vector<int> nodes, blocks;  // of their dy
    std::size_t scratch_bytes = 0;
  };

  GraphPlan& plan_;
  Waiting waiting_;
  std::vector<int> flushed_;  // blocks that the last flush may still be reading
  std::vector<std::vector<int>> consumers_;
  std::vector<std::vector<int>> holders_;  // values that share a gradient block
};

void Planner::plan() {
  plan_nodes();
  check_names();
  check_loss();
  mark_gradients();
  mark_sums();
  count_mixing();
  check_gates();
  plan_activations();
  plan_gradients();
  mark_writers();
  plan_scratch();
}

void Planner::plan_nodes() {
  consumers_.assign(plan_.nodes.size(), {});
  for (std::size_t i = 0; i < plan_.nodes.size(); ++i) {
    GraphNode& node = plan_.nodes[i];
    if (!node.layer) {
      check_plan(node);
      check_sizes(node);
      check_tie(node);
      continue;
    }
    if (node.inputs.empty())
      throw Error(ExitCode::kBadConfig,
                  node.name + " (" + type_of(*node.layer) + "): a layer has at least one input",
                  "give Graph::add the values that it reads");
    for (const int input : node.inputs) {
      node.input_specs.push_back(plan_.nodes[input].plan.output);
      consumers_[input].push_back(static_cast<int>(i));
    }
    name_errors(node, [&] {
      node.plan = node.layer->plan({node.input_specs, plan_.dtype, plan_.limits.max_items,
                                    plan_.limits.max_tokens, plan_.limits.max_masked});
    });
    check_plan(node);
    check_sizes(node);
    check_tie(node);
    for (const ParameterSpec& spec : node.plan.parameters) {
      if (node.tied_to >= 0 && node.parameters.empty()) {
        const int number = plan_.nodes[node.tied_to].parameters.at(0);
        const Parameter& owned = plan_.parameters[number];
        if (owned.shape != spec.shape || node.plan.samples_weight)
          throw Error(ExitCode::kBadConfig,
                      node.name + "." + spec.name + " " + spec.shape.text() +
                          " cannot be tied to " + owned.name + " " + owned.shape.text() +
                          (node.plan.samples_weight ? ": its gradient is sampled" : ""),
                      "both have one shape, and the layer that is tied has sampled=false");
        node.parameters.push_back(number);
        continue;
      }
      node.parameters.push_back(static_cast<int>(plan_.parameters.size()));
      plan_.parameters.push_back({.name = node.name + "." + spec.name,
                                  .shape = spec.shape,
                                  .init = spec.init,
                                  .decay = spec.decay});
    }
    node.first_state = plan_.state.size();
    for (const ParameterSpec& spec : node.plan.state)
      plan_.state.push_back(
          {.name = node.name + "." + spec.name, .shape = spec.shape, .init = spec.init});
    if (node.plan.samples_weight) {
      node.weight_site = static_cast<int>(plan_.sampled_weights.size());
      plan_.sampled_weights.push_back(node.parameters[0]);
    }
  }
  std::sort(plan_.gate_nodes.begin(), plan_.gate_nodes.end());
  for (std::size_t g = 0; g < plan_.gate_nodes.size(); ++g)
    plan_.nodes[plan_.gate_nodes[g]].gate = static_cast<int>(g);
}

void Planner::check_tie(const GraphNode& node) const {
  if (node.tied_to < 0) return;
  const GraphNode& owner = plan_.nodes[node.tied_to];
  if (node.plan.parameters.empty() || owner.parameters.empty())
    throw Error(ExitCode::kBadConfig,
                node.name + " cannot be tied to " + owner.name + ": " +
                    (owner.parameters.empty() ? owner.name : node.name) + " has no parameters",
                "tie nodes whose layers have a weight");
}

// Files tell parameters apart by their names, and reports nodes.
void Planner::check_names() const {
  const auto check = [](std::set<std::string>& names, const auto& all, const char* what) {
    for (const auto& each : all)
      if (!names.insert(each.name).second)
        throw Error(ExitCode::kBadConfig,
                    std::string("two ") + what + " are called \"" + each.name + "\"",
                    "a name of its own is needed for each node, and each parameter of a layer");
  };
  std::set<std::string> nodes, tensors;
  check(nodes, plan_.nodes, "nodes");
  check(tensors, plan_.parameters, "parameters");
  check(tensors, plan_.state, "parameters");
}

// Backward begins at the last node, which has no dy.
void Planner::check_loss() const {
  const char* hint = "the node that is added last is the loss: its rows are the terms";
  if (plan_.nodes.empty() || !plan_.nodes.back().layer)
    throw Error(ExitCode::kBadConfig, "the graph has no loss", hint);
  const GraphNode& loss = plan_.nodes.back();
  if (loss.plan.output.width != 1 || loss.plan.samples_weight || !loss.plan.passes_gradient.empty())
    throw Error(ExitCode::kBadConfig, loss.name + " is the last node, and no loss", hint);
}

// What layers and the graph multiply is no more than this, times a few.
void Planner::check_sizes(const GraphNode& node) const {
  const auto check = [&](Layout layout, std::int64_t width) {
    checked_product({plan_.max_rows(layout), width, sizeof(double)}, node.name);
  };
  check(node.plan.output.layout, node.plan.output.width);
  check(node.plan.output.layout, node.plan.output_norm_parts);
  for (const SavedSpec& saved : node.plan.saved) check(saved.layout, saved.width);
  for (const auto* specs : {&node.plan.parameters, &node.plan.state})
    for (const ParameterSpec& spec : *specs) {
      std::int64_t bytes = sizeof(double);
      for (int axis = 0; axis < spec.shape.rank(); ++axis)
        bytes = checked_product({bytes, spec.shape[axis]}, node.name + "." + spec.name);
    }
}

std::size_t Planner::bytes_of(Layout layout, std::int64_t width, DType dtype) const {
  return static_cast<std::size_t>(plan_.max_rows(layout) * width) * dtype_bytes(dtype);
}

void Planner::mark_gradients() {
  for (GraphNode& node : plan_.nodes) {
    node.needs_gradient = !node.plan.parameters.empty();
    node.wants_gradient_norm = node.plan.samples_weight;
    for (std::size_t j = 0; j < node.inputs.size(); ++j) {
      GraphNode& input = plan_.nodes[node.inputs[j]];
      node.needs_gradient |= input.needs_gradient;
      node.wants_gradient_norm |= node.passes_gradient(j) && input.wants_gradient_norm;
      input.writes_output_norm |= input.plan.writes_norms && node.plan.samples_weight;
    }
  }
  // What the loss does not depend on has none, and mixes nothing.
  std::vector<bool> reaches_loss(plan_.nodes.size());
  reaches_loss.back() = true;
  for (std::size_t i = plan_.nodes.size(); i-- > 0;) {
    GraphNode& node = plan_.nodes[i];
    node.needs_gradient &= reaches_loss[i];
    if (!reaches_loss[i]) continue;
    for (const int input : node.inputs) reaches_loss[input] = true;
  }
}

void Planner::mark_writers() {
  for (GraphNode& node : plan_.nodes)
    node.writes_gradients =
        node.plan.writes_gradients && node.tied_to < 0 && node.gradient_block >= 0;
  for (const GraphNode& node : plan_.nodes)
    if (node.tied_to >= 0) plan_.nodes[node.tied_to].writes_gradients = false;
}

void Planner::mark_sums() {
  for (std::size_t i = 0; i + 1 < plan_.nodes.size(); ++i) {
    GraphNode& node = plan_.nodes[i];
    const GraphNode& next = plan_.nodes[i + 1];
    node.leaves_sum = node.plan.is_sum && !node.writes_output_norm && next.plan.takes_sum &&
                      next.inputs.front() == static_cast<int>(i);
  }
}

void Planner::count_mixing() {
  GraphNode* gate = nullptr;
  for (std::size_t i = plan_.nodes.size(); i-- > 0;) {
    GraphNode& node = plan_.nodes[i];
    if (!node.needs_gradient) continue;
    if (node.gate >= 0) gate = &node;
    const int mixed = (node.gate >= 0 ? 0 : node.mixed_above) +
                      (node.plan.coupling == RowCoupling::kBatchLinear ? 1 : 0);
    if (gate) gate->mixed_below = std::max(gate->mixed_below, mixed);
    for (const int number : node.inputs) {
      int& above = plan_.nodes[number].mixed_above;
      above = std::max(above, mixed);
    }
  }
}

void Planner::check_gates() const {
  const auto ragged = std::ranges::find_if(
      plan_.nodes, [](const GraphNode& node) { return !node.plan.output.layout.fixed(); });
  for (const int gate : plan_.gate_nodes) {
    const GraphNode& gated = plan_.nodes[gate];
    const std::string where = "sampling gate at " + gated.name + ": ";
    if (!gated.needs_gradient || gate + 1 == static_cast<int>(plan_.nodes.size()))
      throw Error(ExitCode::kBadConfig, where + "no gradient flows there",
                  "a gate lies above parameters and below the loss");
    for (int i = 0; i <= gate; ++i) {
      const GraphNode& below = plan_.nodes[i];
      if (!below.needs_gradient) continue;
      if (below.plan.coupling == RowCoupling::kBatch)
        throw Error(ExitCode::kBadConfig,
                    where + below.name +
                        " below it mixes the items of a batch, so dropping items "
                        "would bias its gradient",
                    "choose layers that keep items apart, or sample rows of weight gradients only");
      if (below.plan.coupling == RowCoupling::kBatchLinear && ragged != plan_.nodes.end())
        throw Error(ExitCode::kBadConfig,
                    where + below.name + " below it mixes the items of a batch, and items have " +
                        "different numbers of rows in " + ragged->name,
                    "choose layers that keep items apart, or sample rows of weight gradients only");
      for (const int consumer : consumers_[i])
        if (i != gate && consumer > gate)
          throw Error(ExitCode::kBadConfig,
                      fmt::format("{}not a cut edge: {} reads {} past the gate", where,
                                  plan_.nodes[consumer].name, below.name),
                      "every path from the parameters below to the loss must cross the gate");
    }
  }
}

void Planner::plan_activations() {
  const int forever = std::numeric_limits<int>::max();
  for (std::size_t i = 0; i < plan_.nodes.size(); ++i) {
    GraphNode& node = plan_.nodes[i];
    const ValueSpec& spec = node.plan.output;
    const bool passing =
        node.layer && !node.plan.saved_output && !node.kept && i + 1 < plan_.nodes.size();
    int end = passing ? static_cast<int>(i) : forever;
    for (const int consumer : consumers_[i]) {
      const GraphNode& reader = plan_.nodes[consumer];
      end = std::max(end, consumer + reader.leaves_sum);
      for (const int saved : reader.plan.saved_inputs)
        if (reader.inputs[saved] == static_cast<int>(i)) end = forever;
    }
    // Inputs are filled before the first node runs.
    const int begin = node.layer ? static_cast<int>(i) : 0;
    node.output_block = plan_.activation_blocks.size();
    std::size_t bytes = bytes_of(spec.layout, spec.width, spec.dtype);
    if (node.writes_output_norm)
      bytes = Arena::round_up(bytes) + plan_.norm_bytes(spec.layout, node.plan.output_norm_parts);
    plan_.activation_blocks.push_back({bytes, begin, end});
    for (const SavedSpec& saved : node.plan.saved) {
      node.saved_blocks.push_back(plan_.activation_blocks.size());
      plan_.activation_blocks.push_back(
          {bytes_of(saved.layout, saved.width, saved.dtype), static_cast<int>(i), forever});
    }
  }
  plan_.memory.activations = plan_memory(plan_.activation_blocks);
}

// Whether the gradient of `value`, first written by the backward of `node`, may live in `block`,
// which other values share: no holder may change the block before another has read it for the last
// time. A holder is read last when its producer runs backward, and changed when a further consumer
// adds to it.
bool Planner::can_share(int block, int value, int node) const {
  // The node itself then adds to what it has passed on.
  const bool again = std::ranges::count(consumers_[value], node) > 1;
  const auto changed_before = [&](int holder, int reader) {
    for (const int consumer : consumers_[holder])
      if (consumer < node && consumer >= reader) return true;
    return false;
  };
  for (const int other : holders_[block]) {
    if (other >= node) continue;  // read already
    if (other == value || again || changed_before(value, other) || changed_before(other, value))
      return false;
  }
  return true;
}

// When the gradient of a node passes its gate; its backward is one later.
int Planner::gate_time(int node) const {
  return 2 * (static_cast<int>(plan_.nodes.size()) - 1 - node);
}

int Planner::new_block(int value, int begin, std::int64_t norm_parts) {
  const ValueSpec& spec = plan_.nodes[value].plan.output;
  const std::size_t bytes = bytes_of(spec.layout, spec.width, plan_.dtype);
  plan_.gradient_blocks.push_back(
      {Arena::round_up(bytes) + plan_.norm_bytes(spec.layout, norm_parts), begin, begin});
  holders_.push_back({value});
  return static_cast<int>(plan_.gradient_blocks.size()) - 1;
}

void Planner::use(int block, int time) {
  PlannedBlock& planned = plan_.gradient_blocks[block];
  planned.end = std::max(planned.end, time);
}

bool Planner::waits_for(int block) const {
  return std::ranges::count(waiting_.blocks, block) + std::ranges::count(flushed_, block) > 0;
}

void Planner::flush() {
  if (waiting_.nodes.empty()) return;
  const int after = waiting_.nodes.back();
  plan_.nodes[after].flushes_weights = true;
  for (const auto* blocks : {&waiting_.blocks, &flushed_})
    for (const int block : *blocks) use(block, gate_time(after) + 1);
  plan_.scratch_beside = std::max(plan_.scratch_beside, waiting_.scratch_bytes);
  if (plan_.queues) flushed_ = waiting_.blocks;
  waiting_ = {};
}

// Where the backward of node i, whose dy lies in `dy_block`, writes the gradient of input j.
void Planner::plan_dx(int i, std::size_t j, int dy_block) {
  GraphNode& node = plan_.nodes[i];
  const int input = node.inputs[j];
  GraphNode& producer = plan_.nodes[input];
  GraphNode::Dx& dx = node.dx[j];
  const int time = gate_time(i) + 1;
  if (!producer.layer || !producer.needs_gradient) return;
  if (const int block = producer.gradient_block; block >= 0) {
    use(block, time);
    dx.adds = true;
    dx.moves = waits_for(block);
    if (dx.moves) {
      std::erase(holders_[block], input);
      producer.gradient_block = new_block(input, time);
    }
    dx.block = producer.gradient_block;
    return;
  }
  const bool same_shape = producer.plan.output.width == node.plan.output.width &&
                          producer.plan.output.layout == node.plan.output.layout;
  // An in-place backward changes the block at once, so nobody may still have to read it.
  const bool alone = dy_block >= 0 && std::ranges::none_of(holders_[dy_block],
                                                           [&](int holder) { return holder < i; });
  const bool in_place = node.plan.in_place && j == 0 && alone && !waits_for(dy_block);
  // A gradient that input 0 takes in place is no dy any more.
  const bool pass = node.passes_gradient(j) && dy_block >= 0 && node.dx[0].block != dy_block &&
                    can_share(dy_block, input, i);
  if (same_shape && dy_block >= 0 && (in_place || pass)) {
    producer.gradient_block = dy_block;
    holders_[dy_block].push_back(input);
    use(dy_block, gate_time(input) + 1);
    if (!pass) dx.block = dy_block;
  } else {
    dx.block = producer.gradient_block =
        new_block(input, time, j == 0 ? node.plan.dx_norm_parts : 1);
  }
}

// Lets the norm of the sum i leave its dx to the backward of the sum, unless somebody reads it
// before. Echoes may give the sum more rows: then it does not. What the norm reads must last.
void Planner::take_dx(int i) {
  const GraphNode& sum = plan_.nodes[i];
  GraphNode& norm = plan_.nodes[static_cast<std::size_t>(i) + 1];
  norm.leaves_dx = norm.gradient_block >= 0 && sum.has_backward() && sum.gate < 0 &&
                   sum.mixed_above == (norm.gate >= 0 ? 0 : norm.mixed_above) &&
                   std::ranges::all_of(sum.plan.passes_gradient,
                                       [&](int input) { return sum.dx[input].block < 0; });
  if (norm.leaves_dx)
    use(norm.kept_block >= 0 ? norm.kept_block : norm.gradient_block, gate_time(i) + 1);
}

void Planner::plan_gradients() {
  const int last = static_cast<int>(plan_.nodes.size()) - 1;
  for (int i = last; i >= 0; --i) {
    GraphNode& node = plan_.nodes[i];
    if (!node.layer || !node.needs_gradient) continue;
    if (node.gate >= 0) flush();
    const int time = gate_time(i) + 1;
    int dy_block = node.gradient_block;
    if (dy_block >= 0) use(dy_block, time);
    if (node.gate >= 0) {
      dy_block = node.kept_block = new_block(i, gate_time(i));
      // A gate that passes everything on leaves the gradient in the block before it.
      if (waits_for(node.gradient_block)) flushed_.push_back(node.kept_block);
    }
    if (node.kept_block >= 0) use(node.kept_block, time);
    node.dx.assign(node.inputs.size(), {});
    for (std::size_t j = 0; j < node.inputs.size(); ++j) plan_dx(i, j, dy_block);
    if (node.leaves_sum) take_dx(i);
    if (!node.plan.samples_weight) continue;
    if (waiting_.nodes.size() == kMostInGroup) flush();
    waiting_.nodes.push_back(i);
    waiting_.blocks.push_back(dy_block);
    waiting_.scratch_bytes += BackwardHooks::scratch_bytes(plan_.max_rows(node.plan.output.layout));
  }
  flush();
  for (const int block : flushed_) use(block, gate_time(0) + 1);
  // That block lasts as long as the one behind the gate.
  for (const GraphNode& node : plan_.nodes)
    if (node.kept_block >= 0) use(node.gradient_block, plan_.gradient_blocks[node.kept_block].end);
  plan_.memory.gradients = plan_memory(plan_.gradient_blocks);
}

void Planner::plan_scratch() {
  for (const GraphNode& node : plan_.nodes) {
    const Layout layout = node.plan.output.layout;
    if (std::ranges::count(plan_.layouts, layout) == 0) plan_.layouts.push_back(layout);
    std::size_t added = 0;  // a dx that the layer does not add to is made in scratch first
    for (std::size_t j = 0; j < node.dx.size(); ++j) {
      const ValueSpec& spec = plan_.nodes[node.inputs[j]].plan.output;
      if (node.dx[j].adds && !node.accumulates(j))
        added += Arena::round_up(bytes_of(spec.layout, spec.width, plan_.dtype));
    }
    plan_.memory.scratch = std::max(plan_.memory.scratch, node.plan.scratch_bytes + added);
  }
  plan_.memory.scratch = Arena::round_up(plan_.memory.scratch) + plan_.scratch_beside;
  VCAS_CHECK(plan_.gate_nodes.empty() || plan_.layouts.size() <= kMostInGroup,
             "gates in a graph of " + std::to_string(plan_.layouts.size()) + " layouts of rows");
}

}  // namespace

void plan_graph(GraphPlan& plan, const GraphLimits& limits) {
  if (limits.max_items < 1 || limits.max_tokens < 0 || limits.max_masked < 0 || limits.ranks < 1)
    throw Error(ExitCode::kBadConfig,
                fmt::format("a graph for {} items, {} tokens and {} masked positions on {} ranks",
                            limits.max_items, limits.max_tokens, limits.max_masked, limits.ranks),
                "GraphLimits has at least one item and one rank, and nothing below 0");
  plan.limits = limits;
  Planner(plan).plan();
}

}  // namespace vcas
