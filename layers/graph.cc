#include "layers/graph.h"

#include <algorithm>
#include <utility>

#include "kernels/exchange.h"

namespace vcas {

namespace {

void check_dtype(DType dtype, const std::string& device) {
  const std::string of = "a graph of " + std::string(dtype_name(dtype));
  if (dtype != DType::kF32 && dtype != DType::kF64 && dtype != DType::kBF16)
    throw Error(ExitCode::kBadConfig, of, "graphs compute in f32, f64 or bf16");
  if (dtype == DType::kBF16 && device.find("cpu") != std::string::npos)
    throw Error(ExitCode::kBadConfig, of + " on the device " + device + ", which has no such type",
                "use f32 or f64 there, or the device emu or cuda");
}

}  // namespace

void Graph::check_building(const char* call) const {
  if (ops_ && !step_)
    throw Error(ExitCode::kBadConfig, std::string("Graph::") + call + " after a finish that failed",
                "build the graph anew");
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

Value Graph::add(const std::string& name, std::unique_ptr<Layer> layer,
                 const std::vector<Value>& inputs) {
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
  const GraphNode& node = plan_.nodes[index_of(value)];
  if (std::ranges::count(plan_.gate_nodes, value.index) > 0)
    throw Error(ExitCode::kBadConfig, "two gates at " + node.name, "call Graph::gate once a value");
  plan_.gate_nodes.push_back(value.index);
}

void Graph::finish(Ops& ops, const GraphLimits& limits) {
  check_building("finish");
  check_dtype(plan_.dtype, ops.name());
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
  pads_ = ops.queues() && std::ranges::none_of(plan_.nodes, [](const GraphNode& node) {
            return mixes_items(node.plan.coupling);
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
  const auto found = std::find_if(
      plan_.nodes.begin(), plan_.nodes.end(),
      [&](const GraphNode& node) { return weight_site >= 0 && node.weight_site == weight_site; });
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
    const GraphNode& node = plan_.nodes[i];
    if (node.flushes_weights) flush = i;
    for (const int number : node.parameters) {
      int& its = last[number];
      its = std::min(its, node.plan.samples_weight ? flush : i - node.leaves_dx);
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
  for (GradientBucket& bucket : buckets) {
    bucket.node = static_cast<int>(plan_.nodes.size());
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const SlabRange own = parameters_.range(parameters_[i]);
      if (own.begin < bucket.end && own.end > bucket.begin)
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
  for (const auto* offsets : {&token_offsets, &masked_offsets}) {
    if (offsets->empty()) continue;
    if (std::ssize(*offsets) != items + 1)
      throw Error(
          ExitCode::kBadConfig,
          std::to_string(offsets->size()) + " offsets of " + std::to_string(items) + " items",
          "there is one more than items, and the first is 0");
    if (offsets->front() != 0 || !std::ranges::is_sorted(*offsets))
      throw Error(
          ExitCode::kBadConfig,
          "offsets of " + std::to_string(items) + " items begin at another row than 0, or decrease",
          "the rows of an item are those from its offset to the next");
  }
  if (token_offsets.empty() && std::ranges::count(plan_.layouts, Layout::tokens()) > 0)
    throw Error(ExitCode::kBadConfig, "a batch without offsets of its tokens",
                "the graph has values with a row a token: set_batch needs to know of which item");
  if (const auto empty = std::ranges::adjacent_find(token_offsets); empty != token_offsets.end())
    throw Error(ExitCode::kBadData,
                "a batch of " + std::to_string(items) + " items, and item " +
                    std::to_string(empty - token_offsets.begin()) + " has no tokens",
                "an item of text has at least one: leave the others out of the data");
  const RowBound tokens = bound_of(token_offsets, plan_.limits.max_tokens),
                 masked = bound_of(masked_offsets, plan_.limits.max_masked);
  check(tokens.rows, plan_.limits.max_tokens, "tokens", "max_tokens");
  check(masked.rows, plan_.limits.max_masked, "masked positions", "max_masked");
  const bool same_items = items == items_;
  items_ = items;
  tokens_ = tokens;
  masked_ = masked;
  has_run_ = false;
  for (std::size_t l = 0; l < full_rows_.entries().size(); ++l) {
    const Layout layout = full_rows_.entries()[l].layout;
    RowSet& rows = full_rows_.entries()[l].rows;
    if (layout.fixed() && same_items) continue;
    std::vector<std::int64_t>& offsets = host_offsets_[l];
    offsets.resize(static_cast<std::size_t>(items) + 1);
    for (std::int64_t n = 0; n <= items; ++n)
      offsets[n] = layout.rows(n, token_offsets.empty() ? 0 : token_offsets[n],
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
  const GraphNode& node = plan_.nodes[number];
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
  const Tensor padded = padded_saved(node, number);
  // Null where no value has the layout: then nothing is padded.
  const RowSet* rows = full_rows_.find(node.plan.saved[number].layout);
  return rows ? padded.first_rows(rows->rows_before(items_)) : padded;
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

}  // namespace vcas
