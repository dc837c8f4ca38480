// Multi-head self-attention of each item's rows over themselves. With one input every row asks:
//   input    [R, 3C]  query, key and value side by side
//   output   [R, C]
// With `causal` a row attends to itself and to rows before it.
// With two inputs only the first row of each item asks:
//   input 0  [N, C]   its query
//   input 1  [R, 2C]  key and value of all rows
//   output   [N, C]   the same as those rows of the full output
#include "layers/layer.h"

namespace vcas {

namespace {

class Attention final : public Layer {
 public:
  explicit Attention(const LayerConfig& config)
      : heads_(config.get_count("heads")),
        dropout_(config.get_probability("dropout")),
        causal_(config.get("causal", false)) {}

  NodePlan plan(const PlanInput& in) const override {
    const bool first_rows = in.inputs.size() == 2;
    if (first_rows)
      check_inputs("attention", in, {in.dtype, in.dtype});
    else
      check_inputs("attention", in, {in.dtype});
    if (first_rows && causal_)
      throw Error(ExitCode::kBadConfig,
                  "attention: causal, and the first row of each item alone asks; it sees no other");
    const ValueSpec& query = in.inputs.front();
    const ValueSpec& qkv = in.inputs.back();
    if (first_rows && (qkv.width != 2 * query.width || query.layout != Layout::items(1)))
      throw Error(ExitCode::kBadConfig,
                  "attention: a query of width " + std::to_string(query.width) + " in " +
                      query.layout.text() + " rows an item, with key and value of " +
                      std::to_string(qkv.width) + "; must be 1 row and twice the width");
    if (first_rows) check_has_rows("attention", qkv.layout);
    if (!first_rows && qkv.width % 3 != 0)
      throw Error(ExitCode::kBadConfig, "attention: input width " + std::to_string(qkv.width) +
                                            " is not 3 times a width (query, key, value)");
    const std::int64_t width = first_rows ? query.width : qkv.width / 3;
    if (width % heads_ != 0)
      throw Error(ExitCode::kBadConfig, "attention: heads " + std::to_string(heads_) +
                                            " does not divide width " + std::to_string(width));
    NodePlan plan;
    plan.output = {width, query.layout, in.dtype};
    plan.saved = {{heads_, query.layout, statistics_dtype(in.dtype)}};  // lse
    plan.saved_inputs = {0};
    plan.saved_output = true;
    if (!first_rows) {
      plan.writes_norms = true;
      plan.output_norm_parts = heads_;
      plan.dx_norm_parts = 2 * heads_;
    } else {
      plan.saved_inputs.push_back(1);
      for (const ValueSpec& input : in.inputs)
        plan.scratch_bytes +=
            Arena::round_up(in.max_rows(input.layout) * input.width * dtype_bytes(in.dtype));
    }
    return plan;
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    const RowSet& rows = io.rows.of(io.input_specs.back().layout);
    exec.ops.run(AttentionForward{.y = io.output,
                                  .y_norm = io.output_norm,
                                  .lse = io.saved[0],
                                  .query = first_of_two(io.inputs),
                                  .qkv = io.inputs.back(),
                                  .offsets = rows.offsets,
                                  .heads = heads_,
                                  .pairs = pairs(rows, io.inputs.size()),
                                  .dropout = exec.training ? dropout_ : 0,
                                  .causal = causal_,
                                  .key = exec.key(Stream::kDropout, exec.site),
                                  .step = exec.step});
  }

  void backward(Exec& exec, const BackwardIo& io) const override {
    if (!io.dx.front() && !io.dx.back()) return;
    const Layout layout = io.input_specs.back().layout;
    const RowSet& rows = io.rows.of(layout);
    ArenaFrame frame(exec.scratch);
    // The operation writes both gradients; one that is not wanted goes nowhere.
    const auto wanted = [&](std::size_t i, std::int64_t dx_rows) {
      return io.dx[i] ? io.dx[i]
                      : exec.scratch.take(exec.dtype, {dx_rows, io.input_specs[i].width});
    };
    const bool first_rows = io.dx.size() == 2;
    exec.ops.run(AttentionBackward{.dquery = first_rows ? wanted(0, rows.items) : Tensor{},
                                   .dqkv = wanted(io.dx.size() - 1, rows.rows),
                                   .dqkv_norm = io.dx_norm,
                                   .dy = io.dy,
                                   .query_full = first_of_two(io.inputs_full),
                                   .qkv_full = io.inputs_full.back(),
                                   .y_full = io.output_full,
                                   .lse_full = io.saved_full[0],
                                   .offsets = rows.offsets,
                                   .offsets_full = io.rows_full.of(layout).offsets,
                                   .item = rows.item,
                                   .heads = heads_,
                                   .pairs = pairs(rows, io.dx.size()),
                                   .dropout = exec.training ? dropout_ : 0,
                                   .causal = causal_,
                                   .key = exec.key(Stream::kDropout, exec.site),
                                   .step = exec.step});
  }

 private:
  static Tensor first_of_two(std::span<const Tensor> inputs) {
    return inputs.size() == 2 ? inputs[0] : Tensor{};
  }
  // Pairs of a query and a key: each row of an item with each, or with those up to it, or its first
  // row with each.
  std::int64_t pairs(const RowSet& rows, std::size_t inputs) const {
    if (inputs == 2) return rows.rows;
    return causal_ ? (rows.squares + rows.rows) / 2 : rows.squares;
  }

  std::int64_t heads_;
  double dropout_;
  bool causal_;
};

VCAS_REGISTER_LAYER("attention", Attention);

}  // namespace

}  // namespace vcas
