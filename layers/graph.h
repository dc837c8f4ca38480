// A static graph of layers: one forward, any number of backwards on the same saved state.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "layers/graph_plan.h"
#include "layers/parameters.h"

namespace vcas {

// The sizes of a batch. Two batches of one shape take the same calls, if these are known.
struct BatchShape {
  std::int64_t items = 0;
  RowBound tokens, masked;           // of uniform batches the rows alone
  std::int64_t optional_inputs = 0;  // that the batch has
  bool known = false;                // RowSets::sizes_known
  bool operator==(const BatchShape&) const = default;
};

// What is called out of order, or with a value or a number that is not there, throws
// Error(kBadConfig).
class Graph {
 public:
  explicit Graph(DType dtype) { plan_.dtype = dtype; }

  Value input(const std::string& name, const ValueSpec& spec);
  // An input that a batch may lack: its tensor is empty then. At first it lacks it.
  Value optional_input(const std::string& name, const ValueSpec& spec);
  // Adds a node after its inputs. The last node added is the loss.
  Value add(const std::string& name, std::unique_ptr<Layer> layer,
            const std::vector<Value>& inputs);
  // Parameter 0 of `node` becomes parameter 0 of `owner`, a node before it.
  // The gradients of both uses add up. Other parameters stay each node's own.
  // SampleW samples the gradient of the owner's use alone: that of `node` must be exact.
  // Probes measure the owner's use alone too.
  void tie(Value node, Value owner);
  // The value can be read after forward.
  // Another value can if backward reads it. Else it is overwritten.
  void keep(Value value);
  // A method may narrow the gradient at this value to fewer items. The value must be a cut edge:
  // the only way from the loss to all nodes before it. No layer below may be of kBatch.
  // A value has one gate.
  void gate(Value value);

  // The spec of an input at any time, of a node after finish.
  const ValueSpec& spec(Value value) const { return plan_.nodes[index_of(value)].plan.output; }

  // Checks the graph, plans memory and allocates it. Throws Error(kOutOfMemory), and what
  // plan_graph throws. Throws Error(kBadConfig) for a dtype that `ops` does not compute.
  // `ops`: one thread at a time. It outlives all graphs, trainers and buffers made with it.
  void finish(Ops& ops, const GraphLimits& limits);

  // --- after finish ---

  // The sizes of the batch that the inputs now hold.
  // Offsets, [items + 1], of the layouts tokens and masked: from 0, none below the one before it.
  // Without masked offsets no position is masked.
  // Rows of padding follow items of different lengths (RowSet::bound).
  // This needs a device that can repeat a pass, and no layer that mixes items.
  // In inputs these rows must be 0.
  void set_batch(std::int64_t items, const std::vector<std::int64_t>& token_offsets,
                 const std::vector<std::int64_t>& masked_offsets = {});
  // Whether the batch has this optional input.
  void set_present(Value optional_input, bool present);
  BatchShape batch() const;
  // Whether a device may repeat passes: no layer computes on the host.
  bool repeatable() const { return repeatable_; }
  const RowSets& full_rows() const { return full_rows_; }  // of the present batch
  // What the present batch has, without padding.
  Tensor tensor(Value value) const;
  Tensor saved(Value value, int i) const;  // i-th saved tensor of the node
  // One Exec at a time: all share the memory that holds the number of the step.
  Exec make_exec(std::uint64_t seed, std::uint64_t step, bool training);
  void forward(Exec& exec);
  // A device has repeated a pass that ran forward on this batch.
  void note_forward() { has_run_ = true; }
  // Exact, or as context.hooks decide. Parameter gradients go to context.gradients.
  void backward(Exec& exec, const BackwardContext& context);

  Parameters& parameters() { return parameters_; }
  const Parameters& parameters() const { return parameters_; }
  const GraphPlan& plan() const { return plan_; }
  int gates() const { return static_cast<int>(plan_.gate_nodes.size()); }
  // Parameter number of the weight of each linear that a method may sample, in graph order.
  const std::vector<int>& sampled_weights() const { return plan_.sampled_weights; }
  // The gate that the gradient of a sampled linear's output has passed last, -1 = none.
  int gate_above(int weight_site) const;
  // The slab of gradients in ranges of about so many elements, in the order of a backward.
  // Each has equal parts for limits().ranks (kernels/exchange.h).
  std::vector<GradientBucket> gradient_buckets(std::int64_t elements) const;
  // The layout of the rows that a sampled linear computes.
  Layout weight_layout(int weight_site) const;
  const MemoryPlan& memory() const { return plan_.memory; }
  const GraphLimits& limits() const { return plan_.limits; }
  std::int64_t items() const { return items_; }
  DType dtype() const { return plan_.dtype; }

 private:
  // The tensors of one node while it runs.
  struct NodeTensors {
    std::vector<Tensor> inputs, saved, parameters, state, gradients, dx, added;
    std::vector<Tensor> graph_adds;  // to dx, where the layer itself does not
  };

  void check_building(const char* call) const;
  void check_finished(const char* call) const;
  void check_loaded(const char* call) const;
  // In a dry run loops of a layer's own would read memory that is not there.
  bool skips(const GraphNode& node) const {
    return node.plan.computes_on_host && !ops_->has_memory();
  }
  std::size_t index_of(Value value) const;
  void collect_tensors(const GraphNode& node);
  std::size_t node_of(int weight_site) const;
  std::vector<int> last_writers() const;
  void allocate(Ops& ops);
  // With padding.
  std::int64_t rows_now(Layout layout) const {
    return layout.rows(items_, tokens_.rows, masked_.rows);
  }
  Tensor padded_tensor(const GraphNode& node) const;
  Tensor padded_saved(const GraphNode& node, std::size_t i) const;
  RowBound bound_of(const std::vector<std::int64_t>& offsets, std::int64_t most) const;
  Tensor norm_view(const Buffer& buffer, const PlannedBlock& block, const ValueSpec& spec,
                   std::int64_t rows, std::int64_t parts) const;
  Tensor output_norm(const Exec& exec, int node) const;
  std::span<const RowSets> pass_gate(Exec& exec, BackwardHooks& hooks, const GraphNode& node,
                                     const RowSets& rows, Gradient& gradient) const;
  Tensor place_sum(Exec& exec, const GraphNode::Dx& plan, Tensor& added, std::int64_t rows) const;
  Tensor place_gradients(Exec& exec, const GraphNode& node, const RowSets& rows_dx,
                         const Gradient& gradient, bool with_norms);
  // Clears gradients of the first `nodes` nodes: those that they write, or those that they add to.
  void clear_gradients(Exec& exec, const BackwardContext& context, std::size_t nodes,
                       bool written) const;
  void run_backward(Exec& exec, const BackwardContext& context, std::size_t i,
                    std::span<const RowSets> rows, const Gradient& gradient);

  GraphPlan plan_;
  Parameters parameters_;
  Buffer activations_, gradients_, scratch_, row_buffer_;
  Arena scratch_arena_, beside_arena_;
  BackwardHooks exact_;
  RowSets full_rows_;
  Tensor step_;  // i64 [1]
  NodeTensors node_tensors_;
  std::vector<Gradient> gradient_views_;                 // of this backward, by node
  std::vector<std::vector<std::int64_t>> host_offsets_;  // of each layout
  std::int64_t items_ = 0;
  bool has_run_ = false;  // forward, of the present batch
  RowBound tokens_, masked_;
  bool pads_ = false;  // batches of items of different lengths
  bool repeatable_ = true;
  Ops* ops_ = nullptr;
};

}  // namespace vcas
