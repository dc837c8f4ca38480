// What a graph decides before it runs: which gradients are needed, where tensors lie, what waits
// for what. Nothing here touches a device.
#pragma once

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "layers/layer.h"
#include "layers/memory_plan.h"
#include "layers/parameters.h"

namespace vcas {

// A value of a graph: its input number `index`, or the output of one of its nodes.
struct Value {
  int index = -1;
};

struct GraphLimits {
  std::int64_t max_items = 0;   // largest batch
  std::int64_t max_tokens = 0;  // most tokens of a batch; 0 where no value has their layout
  std::int64_t max_masked = 0;  // most masked positions; likewise
  int ranks = 1;                // that share sums of gradients and updates
};

// Bytes by purpose, known before anything is allocated.
struct MemoryPlan {
  std::size_t parameters = 0;  // values and gradients
  std::size_t activations = 0;
  std::size_t gradients = 0;  // of activations
  std::size_t scratch = 0;
  std::size_t rows = 0;  // row sets
  std::size_t total() const { return parameters + activations + gradients + scratch + rows; }
};

// A node as it was added, and what is planned for it.
struct GraphNode {
  // How an input of a node gets its gradient, or its part of it, from that node.
  struct Dx {
    int block = -1;      // that it is written to, -1 = none: no gradient is wanted, or it is dy
    bool adds = false;   // to what the nodes behind have given
    bool moves = false;  // that sum goes to a new block
  };

  std::string name;
  std::string forward_place, backward_place, sample_place, probe_place, weights_place;
  std::unique_ptr<Layer> layer;  // null for an input
  std::vector<int> inputs;
  bool kept = false;
  bool optional = false, absent = false;  // of an input: whether a batch may lack it, and does
  int tied_to = -1;                       // node that parameter 0 belongs to, -1 = this one

  NodePlan plan;  // of an input its output alone, when it is added
  std::vector<ValueSpec> input_specs;
  bool writes_gradients = false;  // of its parameters, which nothing else does
  std::vector<int> parameters;    // numbers in GraphPlan::parameters
  std::size_t first_state = 0;    // number in GraphPlan::state of the first in plan.state
  int weight_site = -1;
  int gate = -1;  // of its output
  // Layers of kBatchLinear, the most on a way: from the last gate to the gradient of its output,
  // and from its own gate to the next.
  int mixed_above = 0, mixed_below = 0;
  bool needs_gradient = false;
  bool writes_output_norm = false;   // where norms are kept
  bool leaves_sum = false;           // to the next node, a norm
  bool leaves_dx = false;            // of a norm: to the backward of the sum before it
  bool wants_gradient_norm = false;  // of its output: a sampled linear reads that gradient
  bool has_backward() const {
    return plan.passes_gradient.size() < inputs.size() || !plan.parameters.empty();
  }
  bool passes_gradient(std::size_t input) const {
    return std::ranges::count(plan.passes_gradient, static_cast<int>(input)) > 0;
  }
  // Whether backward adds io.added to this dx. The graph adds to one that it copies.
  // It also adds to a second dx of one value: the same backward writes the first.
  bool accumulates(std::size_t input) const {
    const auto its = inputs.begin() + static_cast<std::ptrdiff_t>(input);
    return plan.accumulates && !passes_gradient(input) &&
           std::find(inputs.begin(), its, *its) == its;
  }
  std::size_t output_block = 0;
  std::vector<std::size_t> saved_blocks;
  int gradient_block = -1;       // of its output, -1 = none
  int kept_block = -1;           // of its output behind the gate
  std::vector<Dx> dx;            // of the inputs
  bool flushes_weights = false;  // the weight gradients that wait follow its backward
};

struct GraphPlan {
  DType dtype = DType::kF32;
  // Whether weight gradients may run beside what follows (Ops::queues). What they read stays then
  // until the flush after theirs.
  bool queues = false;
  GraphLimits limits;
  std::vector<GraphNode> nodes;
  std::vector<int> gate_nodes;        // ascending
  std::vector<int> sampled_weights;   // parameter numbers, in graph order
  std::vector<Parameter> parameters;  // without their memory
  std::vector<Parameter> state;       // likewise
  std::vector<Layout> layouts;        // of all values
  std::vector<PlannedBlock> activation_blocks, gradient_blocks;
  std::size_t scratch_beside = 0;  // of the bytes of scratch, for Ops::beside
  MemoryPlan memory;               // parameters and rows are counted when they are made

  std::int64_t max_rows(Layout layout) const {
    return layout.rows(limits.max_items, limits.max_tokens, limits.max_masked);
  }
  // Bytes of the norms of rows, with so many parts each.
  std::size_t norm_bytes(Layout layout, std::int64_t parts) const;
};

// The node has its plan, its inputs and their specs.
// Throws Error(kBadConfig) for inputs, sizes and names that cannot be, and fields that do not fit.
void check_plan(const GraphNode& node);

// Calls a layer. The name of its node then begins the text of what it throws.
// A device that is lost, full or broken may throw for an earlier call: these errors stay.
// What is no Error is a mistake of the layer.
template <class Call>
void name_errors(const GraphNode& node, const Call& call) {
  try {
    call();
  } catch (const InternalError& error) {
    throw InternalError(node.name + ": " + error.what());
  } catch (const Error& error) {
    if (error.code() != ExitCode::kBadConfig && error.code() != ExitCode::kBadData) throw;
    throw Error(error.code(), node.name + ": " + error.what(), error.hint());
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw InternalError(node.name + ": " + error.what());
  }
}

// `plan` comes with dtype, queues, nodes and gates. The rest is planned.
// Throws what layers throw, and Error(kBadConfig) for:
//   limits without an item or a rank, or below 0
//   a plan or a tie that cannot be
//   two nodes, or two parameters, of one name
//   a gate that would bias the gradient
void plan_graph(GraphPlan& plan, const GraphLimits& limits);

}  // namespace vcas
