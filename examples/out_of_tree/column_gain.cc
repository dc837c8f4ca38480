// y = x * gain, one learned gain a column: the layer that docs/layer_api.md walks through.
#include "vcas/layers/layer.h"

namespace {

using namespace vcas;

class ColumnGain final : public Layer {
 public:
  explicit ColumnGain(const LayerConfig& config) : start_(config.get<double>("start", 1.0)) {}

  NodePlan plan(const PlanInput& in) const override {
    check_inputs("column_gain", in, {in.dtype == DType::kF64 ? DType::kF64 : DType::kF32});
    const ValueSpec& x = in.inputs[0];
    NodePlan plan;
    plan.output = x;
    plan.parameters = {{"gain", {x.width}, {Initializer::Kind::kConstant, start_}, false}};
    plan.saved_inputs = {0};  // backward reads x
    plan.in_place = true;     // and dy[i] before it writes dx[i]
    plan.computes_on_host = true;
    return plan;
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    exec.dtype == DType::kF64 ? forward_as<double>(io) : forward_as<float>(io);
  }

  void backward(Exec& exec, const BackwardIo& io) const override {
    exec.dtype == DType::kF64 ? backward_as<double>(io) : backward_as<float>(io);
  }

 private:
  template <class T>
  void forward_as(const ForwardIo& io) const {
    const std::int64_t width = io.output.width();
    const T *x = io.inputs[0].ptr<T>(), *gain = io.parameters[0].ptr<T>();
    T* y = io.output.ptr<T>();
    for (std::int64_t i = 0; i < io.output.elements(); ++i) y[i] = x[i] * gain[i % width];
  }

  template <class T>
  void backward_as(const BackwardIo& io) const {
    const RowSet& rows = io.rows.of(io.input_specs[0].layout);
    const std::int64_t width = io.dy.width();
    const auto* row = rows.row.ptr<std::int32_t>();  // null: every row, in order
    const T *x_full = io.inputs_full[0].ptr<T>(), *gain = io.parameters[0].ptr<T>();
    const T* dy = io.dy.ptr<T>();
    T* dx = io.dx[0].ptr<T>();            // null: not wanted
    T* dgain = io.gradients[0].ptr<T>();  // null: not wanted
    for (std::int64_t r = 0; r < rows.rows; ++r) {
      const T* x = x_full + (row ? row[r] : r) * width;
      for (std::int64_t c = 0; c < width; ++c) {
        const T d = dy[r * width + c];
        if (dgain) dgain[c] += d * x[c];
        if (dx) dx[r * width + c] = d * gain[c];
      }
    }
  }

  double start_;
};

VCAS_REGISTER_LAYER("column_gain", ColumnGain);

}  // namespace
