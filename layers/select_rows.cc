// y[p] = x[index[p]]: chosen rows of each item. The index is the second input.
// It holds numbers of rows of the packed batch, each of the item that it is listed under.
// y has the layout of the index.
#include "layers/layer.h"

namespace vcas {

namespace {

class SelectRows final : public Layer {
 public:
  explicit SelectRows(const LayerConfig&) {}

  NodePlan plan(const PlanInput& in) const override {
    check_inputs("select_rows", in, {in.dtype, DType::kI32});
    const ValueSpec& index = in.inputs[1];
    if (index.width != 1)
      throw Error(ExitCode::kBadConfig,
                  "select_rows: the index must have width 1, got " + std::to_string(index.width));
    NodePlan plan;
    plan.output = {in.inputs[0].width, index.layout, in.dtype};
    plan.saved_inputs = {1};
    return plan;
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    exec.ops.run(
        EmbeddingForward{.y = io.output, .table = io.inputs[0], .tokens = as_vector(io.inputs[1])});
  }

  void backward(Exec& exec, const BackwardIo& io) const override {
    if (!io.dx[0]) return;
    const Layout layout = io.input_specs[0].layout;
    const RowSet& rows = io.rows.of(layout);
    const RowSet& selected = io.rows.of(io.input_specs[1].layout);
    exec.ops.run(ScatterRows{.dx = io.dx[0],
                             .dy = io.dy,
                             .index_full = as_vector(io.inputs_full[1]),
                             .row = selected.row,
                             .item = rows.item,
                             .dy_offsets = selected.offsets,
                             .offsets = rows.offsets,
                             .offsets_full = io.rows_full.of(layout).offsets});
  }
};

VCAS_REGISTER_LAYER("select_rows", SelectRows);

}  // namespace

}  // namespace vcas
