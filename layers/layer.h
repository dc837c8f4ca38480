// The interface of a layer: what it needs (plan), forward, and a repeatable backward on compact
// rows. docs/layer_api.md shows how to add one.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "core/json_value.h"
#include "core/row_set.h"
#include "core/unique_name.h"
#include "kernels/ops.h"
#include "layers/backward_hooks.h"

namespace vcas {

// One value of the graph: [rows, width].
struct ValueSpec {
  std::int64_t width = 0;
  Layout layout = Layout::tokens();
  DType dtype = DType::kF32;
};

// How a parameter starts.
struct Initializer {
  enum class Kind { kConstant, kNormal } kind = Kind::kConstant;
  double value = 0;  // the constant, or the standard deviation of N(0, value^2)
};

struct ParameterSpec {
  std::string name;  // "weight"; the full name is the node's name, a dot, and this
  Shape shape;
  Initializer init = {};
  bool decay = true;  // weight decay applies (not to biases, norms, positions)
};

// A tensor that forward keeps for backward besides inputs and output.
struct SavedSpec {
  std::int64_t width = 1;
  Layout layout = Layout::tokens();
  DType dtype = DType::kF32;  // the compute dtype, its statistics dtype, or an integer type
};

// What a row of dx depends on besides the rows of dy of the same item.
enum class RowCoupling {
  kRows,         // nothing, and of these on the same row alone, as a row of y on that of x
  kItems,        // nothing
  kBatchLinear,  // rows of other items, and dx is linear in dy: backward writes echoes
  kBatch,        // rows of other items
};
constexpr bool mixes_items(RowCoupling coupling) { return coupling >= RowCoupling::kBatchLinear; }

struct PlanInput {
  std::span<const ValueSpec> inputs;
  DType dtype;              // compute dtype
  std::int64_t max_items;   // largest batch
  std::int64_t max_tokens;  // most tokens of a batch
  std::int64_t max_masked;  // most masked positions of a batch

  std::int64_t max_rows(Layout layout) const {
    return layout.rows(max_items, max_tokens, max_masked);
  }
};

struct NodePlan {
  ValueSpec output;
  std::vector<ParameterSpec> parameters = {};
  // Tensors of type S that forward keeps up to date and no optimizer changes: running statistics.
  // Files have them beside the parameters. `decay` has no meaning.
  std::vector<ParameterSpec> state = {};
  std::vector<SavedSpec> saved = {};
  std::vector<int> saved_inputs = {};  // which inputs backward reads
  bool saved_output = false;           // whether backward reads the output
  RowCoupling coupling = RowCoupling::kItems;
  bool accumulates = false;  // backward adds io.added to dx; where that is empty, the graph adds
  bool in_place = false;     // dx[0] may be the memory of dy
  // Inputs whose dx is dy: done by the graph, not by backward.
  std::vector<int> passes_gradient = {};
  // Output is input 0, or dropout of it, plus input 1: forward can leave it to a norm.
  // If it has a backward, that takes up one which a norm has left.
  bool is_sum = false;
  bool takes_sum = false;  // forward takes up a sum, and backward can be left
  // Backward reads io.dy by io.dy_row and io.dy_scale, where they are given.
  // Without in_place, passes_gradient and samples_weight, which need a compact dy.
  bool gathers_dy = false;
  // Parameter 0 is the weight of a linear map, and a method may sample its gradient.
  // Backward calls io.weight_gradient. dy and the saved input 0 may be read later. Not in place.
  bool samples_weight = false;
  // Backward replaces its parameters' gradients if io.gradients.adds is false.
  // Without this field it always adds.
  bool writes_gradients = false;
  // Forward writes io.output_norm and backward io.dx_norm, if given.
  // Linear maps that sample their weight then need not read these rows again.
  bool writes_norms = false;
  // Norms have so many parts a row: [rows, parts].
  // With several parts dx[0] is written apart: backward neither accumulates nor works in place.
  std::int64_t output_norm_parts = 1, dx_norm_parts = 1;
  // Forward or backward reads or writes tensors itself, not by operations alone.
  // Passes are then not repeated (Ops::repeat). The host must see the device's memory.
  bool computes_on_host = false;
  std::size_t scratch_bytes = 0;  // most that forward or backward take from Exec::scratch at a time
};

struct ForwardIo {
  std::span<const Tensor> inputs;
  Tensor output;
  Tensor output_norm;       // statistics dtype [rows of the output, parts]; empty = not wanted
  bool leaves_sum = false;  // in Exec::sum: the next node is a norm, which takes it up
  std::span<const Tensor> saved;
  std::span<const Tensor> parameters;
  std::span<const Tensor> state;              // changed only if exec.updates_state
  const std::vector<ValueSpec>& input_specs;  // as plan saw them: which layout an input has
  const RowSets& rows;                        // the full batch
};

// "Full" tensors have the rows of the whole batch. dy and dx are compact.
// Inputs that saved_inputs does not list must not be read.
// The same holds for the output without saved_output.
struct BackwardIo {
  std::span<const Tensor> inputs_full;
  Tensor output_full;
  std::span<const Tensor> saved_full;
  std::span<const Tensor> parameters;
  const std::vector<ValueSpec>& input_specs;  // as plan saw them: which layout an input has
  Tensor dy;                                  // [rows, width of the output]; empty for a loss
  Tensor dy_row = {}, dy_scale = {};          // as of Gradient (plan.gathers_dy only)
  std::span<const Tensor> dx;                 // one an input; empty where no gradient is wanted
  Tensor dx_norm;                             // [rows of dx[0], parts]; empty = not wanted
  std::span<const Tensor> added;              // to add to dx, or dx itself (plan.accumulates only)
  bool leaves_dx = false;                     // in Exec::norm: the next backward takes it up
  const RowSets& rows;                        // the rows that dy holds
  const RowSets& rows_dx;                     // and dx: the same, with kBatchLinear echoes too
  const RowSets& rows_full;                   // the full batch
  ParameterGradients gradients;               // of this layer's parameters
  double loss_scale = 1;                      // multiplies the sum of the item losses
  // What only the method needs: weight_gradient hands it on.
  struct ForMethod {
    BackwardHooks& hooks;
    int site;                               // number of this sampled linear, -1: not sampled
    Tensor dy_norm = {}, x_norm_full = {};  // as of WeightUse
  } method;

  // For a linear map: parameter 0 is its weight, parameter 1 its bias, if it has one.
  // The method computes their gradients from dy and input 0.
  // With samples_weight it may do so later, while neither has changed.
  // A convolution says how it reads input 0, and its output has that many rows an item.
  void weight_gradient(Exec& exec, const Patches& patches = {}) const;
};

// What echoes are multiplied by: `echoes` of the `dropped` items stand for all of them.
inline double echo_scale(std::int64_t dropped, std::int64_t echoes) {
  return echoes > 0 ? static_cast<double>(dropped) / static_cast<double>(echoes) : 0;
}

// For a layer's plan: throws Error(kBadConfig) unless the inputs have just these element types.
void check_inputs(const char* kind, const PlanInput& in, std::initializer_list<DType> dtypes);
// Throws Error(kBadConfig) where an item may have no row.
void check_has_rows(const char* kind, Layout layout);
// Throws Error(kBadConfig) unless the inputs are two of one shape.
void check_sum(const char* kind, const PlanInput& in);

class Layer {
 public:
  virtual ~Layer() = default;
  virtual NodePlan plan(const PlanInput& in) const = 0;
  virtual void forward(Exec& exec, const ForwardIo& io) const = 0;
  // Const and repeatable: called twice on the same saved state it gives the same bits.
  virtual void backward(Exec& exec, const BackwardIo& io) const = 0;
};

// Settings of one layer, read strictly. `get` names a missing or ill-typed key.
// `check_all_used` throws Error(kBadConfig) for a key that no `get` asked for.
class LayerConfig {
 public:
  LayerConfig(std::string kind, nlohmann::json values);
  template <class T>
  T get(const char* key) const {
    return convert<T>(key, find(key, true));
  }
  template <class T>
  T get(const char* key, T otherwise) const {
    const nlohmann::json* value = find(key, false);
    return value ? convert<T>(key, value) : otherwise;
  }
  std::int64_t get_count(const char* key) const;  // an integer from 1
  double get_probability(const char* key) const;  // in [0, 1), 0 if left out
  void check_all_used() const;
  // Throws Error(kBadConfig) that names the layer and the key.
  [[noreturn]] void fail(const char* key, const std::string& message) const;

 private:
  const nlohmann::json* find(const char* key, bool required) const;
  template <class T>
  T convert(const char* key, const nlohmann::json* value) const {
    if (json_holds<T>(*value)) return value->get<T>();
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
      if (value->is_number_integer())
        fail(key, "must be from " + std::to_string(std::numeric_limits<T>::min()) + " to " +
                      std::to_string(std::numeric_limits<T>::max()) + ", got " + value->dump());
    fail(key, "has the wrong type: " + value->dump());
  }

  std::string kind_;
  nlohmann::json values_;
  mutable std::vector<std::string> used_;
};

using LayerFactory = std::function<std::unique_ptr<Layer>(const LayerConfig&)>;

// Throws Error(kBadConfig) for an unknown kind (with the nearest name) or bad settings.
std::unique_ptr<Layer> make_layer(const std::string& kind,
                                  const nlohmann::json& config = nlohmann::json::object());
std::vector<std::string> layer_kinds();

struct LayerRegistration {
  LayerRegistration(const char* kind, LayerFactory factory);
};

}  // namespace vcas

// In one source file per layer; `Type` is constructed from a const LayerConfig&.
#define VCAS_REGISTER_LAYER(kind, Type)                                        \
  static const ::vcas::LayerRegistration VCAS_UNIQUE_NAME(vcas_registration_)( \
      kind, [](const ::vcas::LayerConfig& config) { return std::make_unique<Type>(config); })
