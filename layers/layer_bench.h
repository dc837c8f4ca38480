// What layer_check.cc runs: one layer, and the tensors of its calls.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include "kernels/buffer.h"
#include "kernels/decorators/forwarding_ops.h"
#include "layers/graph_plan.h"
#include "layers/layer_check.h"

namespace vcas::layer_bench {

using Numbers = std::vector<double>;

constexpr std::uint8_t kPoison = 0xFF;  // NaN in f32, f64 and bf16
constexpr std::size_t kGuard = 4096;    // bytes on each side of a tensor
constexpr double kLossScale = 0.37;
constexpr double kBf16Rounding = 0x1p-8;

// So that runs in all dtypes start from the same numbers.
inline double rounded(double value) { return bfloat16(static_cast<float>(value)); }

inline double random_normal(std::uint32_t site, std::uint64_t index) {
  return philox_normal(philox_address({.seed = 1, .stream = Stream::kInit, .site = site}), index);
}

inline Numbers random_normals(std::uint32_t site, std::int64_t count, double mean,
                              double deviation) {
  Numbers out;
  for (std::int64_t i = 0; i < count; ++i)
    out.push_back(rounded(mean + deviation * random_normal(site, static_cast<std::uint64_t>(i))));
  return out;
}

// Tensors with poison inside and on both sides, in the memory of one backend.
class Memory {
 public:
  explicit Memory(Ops& ops) : ops_(ops) {}

  Tensor make(DType dtype, const Shape& shape) {
    const Tensor tensor{nullptr, dtype, shape};
    blocks_.push_back({Buffer(ops_, tensor.bytes() + 2 * kGuard), tensor.bytes()});
    const Tensor out = blocks_.back().buffer.at(kGuard, dtype, shape);
    const std::vector<std::uint8_t> poison(blocks_.back().buffer.bytes(), kPoison);
    ops_.copy_to_device(blocks_.back().buffer.data(), poison.data(), poison.size());
    return out;
  }
  Tensor make(DType dtype, const Shape& shape, const Numbers& values) {
    const Tensor out = make(dtype, shape);
    write(out, values);
    return out;
  }

  void poison(const Tensor& tensor) {
    const std::vector<std::uint8_t> bytes(tensor.bytes(), kPoison);
    ops_.copy_to_device(tensor.data, bytes.data(), bytes.size());
  }
  void write(const Tensor& tensor, const Numbers& values) {
    switch (tensor.dtype) {
      case DType::kF32:
        return write_as<float>(tensor, values);
      case DType::kF64:
        return write_as<double>(tensor, values);
      case DType::kBF16:
        return write_as<bfloat16>(tensor, values);
      case DType::kI32:
        return write_as<std::int32_t>(tensor, values);
      default:
        return write_as<std::int64_t>(tensor, values);
    }
  }
  std::vector<std::uint8_t> bytes(const Tensor& tensor) const {
    return to_host<std::uint8_t>(ops_, tensor);
  }
  Numbers read(const Tensor& tensor) const {
    if (tensor.dtype == DType::kF64) return read_as<double>(tensor);
    return tensor.dtype == DType::kF32 ? read_as<float>(tensor) : read_as<bfloat16>(tensor);
  }

  bool guards_intact() const {
    for (const Block& block : blocks_) {
      const auto all = bytes(
          {block.buffer.data(), DType::kU8, {static_cast<std::int64_t>(block.buffer.bytes())}});
      for (std::size_t i = 0; i < all.size(); ++i)
        if ((i < kGuard || i >= kGuard + block.bytes) && all[i] != kPoison) return false;
    }
    return true;
  }

 private:
  struct Block {
    Buffer buffer;
    std::size_t bytes;
  };

  template <class T>
  void write_as(const Tensor& tensor, const Numbers& values) {
    std::vector<T> host;
    for (const double value : values)
      host.push_back(static_cast<T>(static_cast<Compute<T>>(value)));
    VCAS_CHECK(host.size() * sizeof(T) == tensor.bytes(), "values for " + tensor.shape.text());
    ops_.copy_to_device(tensor.data, host.data(), tensor.bytes());
  }
  template <class T>
  Numbers read_as(const Tensor& tensor) const {
    const auto host = to_host<T>(ops_, tensor);
    return {host.begin(), host.end()};
  }

  Ops& ops_;
  std::vector<Block> blocks_;
};

struct Kept {
  std::vector<std::int64_t> items;
  Numbers scale;
};

enum class Added { kNothing, kInPlace, kApart };

// How one backward is called; the members' initial values are the plain exact one.
struct BackwardChoice {
  Numbers dy;                             // compact where `kept` is given; empty for a loss
  bool gathers = false;                   // `kept` is given, and dy is not compact
  const Kept* kept = nullptr;             // null: all items, without index tensors
  std::vector<std::int64_t> echoes = {};  // items that dx has behind the kept ones
  Added added = Added::kNothing;          // to dx
  bool in_place = false;
  bool parameters = true;     // parameter gradients are wanted
  int without_dx = -1;        // number of an input whose dx is not wanted
  int without_gradient = -1;  // and of a parameter whose gradient is not
  double start = 0;           // what parameter gradients hold before, and what is added to dx
  bool replaces = false;      // parameter gradients; else adds to them
  std::int64_t padding = 0;   // rows behind those of kept items that differ in length
};

constexpr double kStart = 0.75;

struct Gradients {
  std::vector<Numbers> dx;          // empty where there is none
  std::vector<Numbers> parameters;  // likewise
};

inline bool same_bits(const Numbers& a, const Numbers& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

inline double largest(const Numbers& values) {
  double out = 0;
  for (const double value : values) out = std::max(out, std::abs(value));
  return out;
}

// Leaves operations out on demand: what a layer then still writes comes from loops of its own.
class LeavingOutOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  bool leaves_out = false;
#define VCAS_OP(Args)                   \
  void run(const Args& args) override { \
    if (!leaves_out) inner_->run(args); \
  }
  VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP
};

// One layer in one compute dtype, with everything that its calls need.
class Bench {
 public:
  // `padding`: rows of zeros behind the last item, in layouts whose items differ in length.
  Bench(const LayerCase& test, DType dtype, std::vector<std::string>& faults,
        std::int64_t padding = 0)
      : test_(test),
        padding_(padding),
        dtype_(dtype),
        faults_(faults),
        ops_(std::make_unique<LeavingOutOps>(
            make_ops(test.device, dtype == DType::kBF16 ? Precision::kBf16 : Precision::kF32))),
        memory_(*ops_),
        layer_(make_layer(test.kind, test.config)) {
    for (const LayerInput& input : test.inputs)
      specs_.push_back({input.width, input.layout,
                        input.integers || input.own_rows ? DType::kI32
                        : input.image                    ? DType::kF32
                                                         : dtype});
    GraphNode node;
    node.name = test.kind;
    node.layer = make_layer(test.kind, test.config);
    node.inputs.resize(specs_.size());
    node.input_specs = specs_;
    node.plan = plan_ = layer_->plan(
        {specs_, dtype, items(), rows_of(Layout::tokens()), rows_of(Layout::masked())});
    check_plan(node);
    backward_layer_ = std::move(node.layer);

    std::uint32_t site = 0;
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      const std::int64_t rows = rows_of(specs_[i].layout);
      Numbers values = random_normals(site++, rows * specs_[i].width, 0, 1);
      for (const double kink : test.inputs[i].kinks)
        for (double& value : values)
          if (value == kink) value += 0x1p-4;
      if (const std::int64_t below = test.inputs[i].integers)
        for (double& value : values)
          value = std::fmod(std::floor(std::abs(value) * 1000), static_cast<double>(below));
      if (test.inputs[i].own_rows) choose_own_rows(values, specs_[i].layout);
      inputs_.push_back(
          memory_.make(specs_[i].dtype, full_shape(specs_[i].layout, specs_[i].width)));
      input_values.push_back(std::move(values));
    }
    for (const ParameterSpec& spec : plan_.parameters) {
      const double mean = spec.init.kind == Initializer::Kind::kConstant ? spec.init.value : 0;
      parameters_.push_back(memory_.make(dtype, spec.shape));
      parameter_values.push_back(random_normals(site++, spec.shape.elements(), mean, 0.3));
    }
    for (const ParameterSpec& spec : plan_.state)
      state_.push_back(memory_.make(statistics_dtype(dtype), spec.shape,
                                    Numbers(spec.shape.elements(), spec.init.value)));
    output_ = memory_.make(plan_.output.dtype, full_shape(plan_.output.layout, plan_.output.width));
    for (const SavedSpec& spec : plan_.saved)
      saved_.push_back(memory_.make(spec.dtype, full_shape(spec.layout, spec.width)));
    step_ = memory_.make(DType::kI64, {1}, {3});
    scratch_ = memory_.make(DType::kU8, {static_cast<std::int64_t>(plan_.scratch_bytes)});
    full_rows_ = row_sets(nullptr, {}, padding_);
  }

  std::vector<Numbers> input_values, parameter_values;
  bool repeats = false;  // a call counts only as the device repeats it
  bool training = true, updates_state = false;

  bool can_repeat() const { return ops_->queues() && !plan_.computes_on_host; }

  const NodePlan& plan() const { return plan_; }
  bool passes_gradient(std::size_t input) const {
    return std::ranges::count(plan_.passes_gradient, static_cast<int>(input)) > 0;
  }
  std::int64_t items() const { return static_cast<std::int64_t>(test_.tokens.size()); }
  std::int64_t item_rows(Layout layout, std::int64_t item) const {
    return layout.rows(std::int64_t{1}, test_.tokens[item], test_.masked[item]);
  }
  std::int64_t rows_of(Layout layout) const {
    std::int64_t rows = 0;
    for (std::int64_t item = 0; item < items(); ++item) rows += item_rows(layout, item);
    return rows;
  }
  const ValueSpec& spec(std::size_t input) const { return specs_[input]; }
  bool differentiable(std::size_t input) const {
    const LayerInput& in = test_.inputs[input];
    return !in.integers && !in.image && !in.own_rows;
  }

  // One for each row of the output.
  Numbers row_scales(const Kept& kept) const {
    Numbers out;
    for (std::size_t k = 0; k < kept.items.size(); ++k)
      out.insert(out.end(), item_rows(plan_.output.layout, kept.items[k]), kept.scale[k]);
    return out;
  }

  LayerValues values() const {
    LayerValues out{input_values, parameter_values, {0}};
    for (std::int64_t item = 0; item < items(); ++item)
      out.offsets.push_back(out.offsets.back() + item_rows(specs_[0].layout, item));
    return out;
  }

  Numbers forward() {
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      Numbers padded = input_values[i];
      padded.resize(inputs_[i].elements());
      memory_.write(inputs_[i], padded);
    }
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      memory_.write(parameters_[i], parameter_values[i]);
    const Tensor norm = norms_of(output_, plan_.output_norm_parts);
    Arena arena(scratch_.data, plan_.scratch_bytes);
    Exec exec = make_exec(arena);
    const auto state_before = bytes_of(state_), inputs_before = bytes_of(inputs_),
               parameters_before = bytes_of(parameters_);
    const auto reset = [&] {
      memory_.poison(output_);
      for (const Tensor& saved : saved_) memory_.poison(saved);
      memory_.poison(scratch_);
    };
    call(reset, [&] {
      layer_->forward(exec, {.inputs = inputs_,
                             .output = output_,
                             .output_norm = norm,
                             .saved = saved_,
                             .parameters = parameters_,
                             .state = state_,
                             .input_specs = specs_,
                             .rows = full_rows_});
    });
    if (padding_ == 0) expect_norms(norm, output_, "output_norm");
    expect(updates_state || state_before == bytes_of(state_),
           "forward changes a state that it may not update");
    expect(inputs_before == bytes_of(inputs_) && parameters_before == bytes_of(parameters_),
           "forward changes inputs or parameters");
    Numbers y = memory_.read(output_);
    y.resize(rows_of(plan_.output.layout) * plan_.output.width);
    return y;
  }

  // After forward: destroys what the graph may throw away before the backward passes.
  void poison_unsaved() {
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      if (std::ranges::count(plan_.saved_inputs, static_cast<int>(i)) == 0)
        memory_.poison(inputs_[i]);
    if (!plan_.saved_output) memory_.poison(output_);
  }

  Gradients backward(const BackwardChoice& choice) {
    const std::int64_t padding = choice.kept ? choice.padding : padding_;
    const RowSets rows = choice.kept ? row_sets(choice.kept, {}, padding) : full_rows_;
    const RowSets rows_dx = choice.echoes.empty() ? rows : row_sets(choice.kept, choice.echoes);
    Tensor dy, dy_row, dy_scale;
    Numbers dy_values = choice.dy;  // of padding 0
    if (choice.gathers) {
      dy_row = rows.of(plan_.output.layout).row;
      dy_scale = memory_.make(statistics_dtype(dtype_), dy_row.shape, row_scales(*choice.kept));
    }
    if (!test_.loss) {
      const RowSets& held = choice.gathers ? full_rows_ : rows;
      const Shape shape{held.of(plan_.output.layout).rows, plan_.output.width};
      dy_values.resize(shape.elements());
      dy = memory_.make(dtype_, shape, dy_values);
    }
    std::vector<Tensor> dx(inputs_.size());
    std::vector<Tensor> added(inputs_.size());
    for (std::size_t i = 0; i < dx.size(); ++i) {
      if (!differentiable(i) || choice.without_dx == static_cast<int>(i)) continue;
      const Shape shape{rows_dx.of(specs_[i].layout).rows, specs_[i].width};
      dx[i] = choice.in_place && i == 0 ? dy : memory_.make(dtype_, shape);
      if (choice.added == Added::kNothing || passes_gradient(i)) continue;
      added[i] = choice.added == Added::kInPlace ? dx[i] : memory_.make(dtype_, shape);
      memory_.write(added[i], Numbers(static_cast<std::size_t>(shape.elements()), choice.start));
    }
    std::vector<Tensor> gradients;
    for (const Tensor& parameter : parameters_)
      gradients.push_back(choice.parameters && choice.without_gradient != std::ssize(gradients)
                              ? memory_.make(statistics_dtype(dtype_), parameter.shape,
                                             Numbers(parameter.elements(), choice.start))
                              : Tensor{});
    for (const int i : plan_.passes_gradient)
      if (const Tensor& out = dx[i]) memory_.write(out, dy_values);
    if (plan_.passes_gradient.size() < dx.size() || !gradients.empty()) {
      const auto before = state();
      const auto dy_before = dy ? memory_.bytes(dy) : std::vector<std::uint8_t>{};
      const auto reset = [&] {
        memory_.poison(scratch_);
        for (std::size_t i = 0; repeats && i < dx.size(); ++i)
          if (dx[i] && !passes_gradient(i)) memory_.poison(dx[i]);
        for (const Tensor& tensor : gradients)
          if (repeats && tensor) memory_.write(tensor, Numbers(tensor.elements(), choice.start));
      };
      Arena arena(scratch_.data, plan_.scratch_bytes);
      Exec exec = make_exec(arena);
      BackwardHooks exact;
      const Tensor norm = norms_of(dx[0], plan_.dx_norm_parts);
      call(reset, [&] {
        backward_layer_->backward(exec, {.inputs_full = inputs_,
                                         .output_full = output_,
                                         .saved_full = saved_,
                                         .parameters = parameters_,
                                         .input_specs = specs_,
                                         .dy = dy,
                                         .dy_row = dy_row,
                                         .dy_scale = dy_scale,
                                         .dx = dx,
                                         .dx_norm = norm,
                                         .added = added,
                                         .rows = rows,
                                         .rows_dx = rows_dx,
                                         .rows_full = full_rows_,
                                         .gradients = {gradients, !choice.replaces},
                                         .loss_scale = kLossScale,
                                         .method = {.hooks = exact, .site = -1}});
      });
      if (padding == 0) expect_norms(norm, dx[0], "dx_norm");
      expect(before == state(), "backward changes inputs, output, saved tensors or parameters");
      expect(!dy || choice.in_place || dy_before == memory_.bytes(dy), "backward changes dy");
      for (std::size_t i = 0; choice.added == Added::kApart && i < added.size(); ++i)
        if (added[i])
          expect(memory_.read(added[i]) == Numbers(memory_.read(added[i]).size(), choice.start),
                 "backward changes what it adds to dx");
    }
    Gradients out;
    for (std::size_t i = 0; i < dx.size(); ++i) {
      out.dx.push_back(dx[i] ? memory_.read(dx[i]) : Numbers{});
      if (dx[i] && padding > 0) take_padding(out.dx.back(), specs_[i], padding);
    }
    for (const Tensor& tensor : gradients)
      out.parameters.push_back(tensor ? memory_.read(tensor) : Numbers{});
    return out;
  }

  // Whether forward or backward writes numbers without an operation.
  bool loops_itself(const Numbers& dy) {
    ops_->leaves_out = true;
    const std::size_t faults = faults_.size();  // of what then is not computed
    const auto is_number = [](double value) { return !std::isnan(value); };
    bool loops = std::ranges::any_of(forward(), is_number);
    const Gradients gradients = backward({.dy = dy});
    for (std::size_t i = 0; i < gradients.dx.size(); ++i)
      if (!passes_gradient(i)) loops |= std::ranges::any_of(gradients.dx[i], is_number);
    faults_.resize(faults);
    ops_->leaves_out = false;
    return loops;
  }

  // Forward as evaluations call it, and as training does where it updates the state.
  void check_forwards() {
    const auto is_number = [](double value) { return !std::isnan(value); };
    training = false;
    expect(std::ranges::all_of(forward(), is_number),
           "forward leaves numbers of the output out where !exec.training");
    training = true;
    const Numbers y = forward();
    updates_state = true;
    expect(same_bits(forward(), y), "forward has another output where it updates a state");
    for (const Tensor& tensor : state_)
      expect(std::ranges::all_of(memory_.read(tensor), [](double v) { return std::isfinite(v); }),
             "forward leaves a state that is not finite");
  }

  void check_guards() { expect(memory_.guards_intact(), "memory beside a tensor was written"); }

  void expect(bool holds, const std::string& fault) {
    const std::string text = std::string(dtype_name(dtype_)) + ": " + fault;
    if (!holds && (faults_.empty() || faults_.back() != text)) faults_.push_back(text);
  }
  // Every entry within `tolerance` of the largest one, which also fails on NaN.
  void expect_close(const Numbers& got, const Numbers& want, double tolerance,
                    const std::string& what) {
    if (got.size() != want.size()) return expect(false, what + ": sizes differ");
    const double bound = tolerance * (1 + largest(want));
    for (std::size_t i = 0; i < got.size(); ++i)
      if (!(std::abs(got[i] - want[i]) <= bound))
        return expect(false, fmt::format("{}: entry {} is {:.9g}, expected {:.9g}", what, i, got[i],
                                         want[i]));
  }
  void expect_close(const Gradients& got, const Gradients& want, double tolerance,
                    const std::string& what) {
    for (std::size_t i = 0; i < got.dx.size(); ++i)
      expect_close(got.dx[i], want.dx[i], tolerance, what + ", dx of input " + std::to_string(i));
    for (std::size_t i = 0; i < got.parameters.size(); ++i)
      expect_close(got.parameters[i], want.parameters[i], tolerance,
                   what + ", gradient of " + plan_.parameters[i].name);
  }

 private:
  // A device that repeats passes records the second of them, and repeats it without a call.
  template <class Reset>
  void call(const Reset& reset, const std::function<void()>& body) {
    std::unique_ptr<Recording> recording;
    for (int times = repeats ? 3 : 1; times > 0; --times) {
      reset();
      repeats ? ops_->repeat(recording, body) : body();
    }
  }

  // Turns random numbers into rows of input 0, each of the item that it belongs to.
  void choose_own_rows(Numbers& values, Layout layout) const {
    std::int64_t first = 0;
    std::size_t entry = 0;
    for (std::int64_t item = 0; item < items(); ++item) {
      const std::int64_t rows = item_rows(specs_[0].layout, item);
      for (std::int64_t r = item_rows(layout, item); r > 0; --r, ++entry)
        values[entry] = static_cast<double>(
            first + static_cast<std::int64_t>(std::abs(values[entry]) * 1000) % rows);
      first += rows;
    }
  }

  // Leaves the rows of items. What lies behind them is 0, or the graph sees to it.
  void take_padding(Numbers& dx, const ValueSpec& spec, std::int64_t padding) {
    if (spec.layout.fixed()) return;
    const auto items = dx.end() - padding * spec.width;
    if (plan_.coupling == RowCoupling::kRows && !test_.loss)
      expect(std::all_of(items, dx.end(), [](double value) { return value == 0; }),
             "dx of padding is not 0, but the plan says that rows are independent");
    dx.erase(items, dx.end());
  }

  // To be filled; empty where the layer writes no norms, or there are no rows.
  Tensor norms_of(const Tensor& rows, std::int64_t parts) {
    return plan_.writes_norms && rows ? memory_.make(statistics_dtype(dtype_), {rows.rows(), parts})
                                      : Tensor{};
  }
  void expect_norms(const Tensor& norm, const Tensor& rows, const std::string& what) {
    if (!norm) return;
    const auto norms_of_rows = [this](const Tensor& tensor) {
      const Numbers values = memory_.read(tensor);
      Numbers norms;
      for (auto row = values.begin(); row != values.end(); row += tensor.width())
        norms.push_back(std::sqrt(std::inner_product(row, row + tensor.width(), row, 0.0)));
      return norms;
    };
    const double tolerance = dtype_ == DType::kF64   ? 1e-14
                             : dtype_ == DType::kF32 ? 1e-6
                                                     : kBf16Rounding;
    expect_close(norms_of_rows(norm), norms_of_rows(rows), tolerance, what);
  }

  Exec make_exec(Arena& arena) {
    return {.ops = *ops_,
            .scratch = arena,
            .scratch_beside = arena,
            .dtype = dtype_,
            .seed = 7,
            .step = step_,
            .training = training,
            .updates_state = updates_state,
            .site = 5};
  }

  std::vector<std::vector<std::uint8_t>> bytes_of(const std::vector<Tensor>& tensors) const {
    std::vector<std::vector<std::uint8_t>> out;
    for (const Tensor& tensor : tensors) out.push_back(memory_.bytes(tensor));
    return out;
  }
  std::vector<std::vector<std::uint8_t>> state() const {
    std::vector<Tensor> all{output_};
    for (const auto* group : {&inputs_, &saved_, &parameters_, &state_})
      all.insert(all.end(), group->begin(), group->end());
    return bytes_of(all);
  }

  RowSets row_sets(const Kept* kept, const std::vector<std::int64_t>& echoes = {},
                   std::int64_t padding = 0) {
    std::vector<Layout> layouts{plan_.output.layout};
    for (const ValueSpec& value : specs_) layouts.push_back(value.layout);
    std::vector<std::int64_t> chosen(test_.tokens.size());
    std::iota(chosen.begin(), chosen.end(), 0);
    if (kept) chosen = kept->items;
    chosen.insert(chosen.end(), echoes.begin(), echoes.end());
    const auto count = static_cast<std::int64_t>(chosen.size());
    RowSets out;
    for (const Layout layout : layouts) {
      Numbers offsets{0}, row;
      for (const std::int64_t item : chosen) {
        std::int64_t first = 0;
        for (std::int64_t i = 0; i < item; ++i) first += item_rows(layout, i);
        for (std::int64_t r = 0; r < item_rows(layout, item); ++r)
          row.push_back(static_cast<double>(first + r));
        offsets.push_back(static_cast<double>(row.size()));
      }
      const bool padded = padding > 0 && !layout.fixed();
      if (padded) row.resize(row.size() + static_cast<std::size_t>(padding));
      const auto rows = static_cast<std::int64_t>(row.size());
      RowSet set{.items = count,
                 .rows = rows,
                 .length = layout.fixed() ? item_rows(layout, 0) : 0,
                 .item = {},
                 .scale = {},
                 .offsets = memory_.make(DType::kI64, {count + 1}, offsets),
                 .row = {},
                 .bound = padded ? &padded_ : nullptr};
      if (kept) {
        set.item = memory_.make(DType::kI32, {count}, Numbers(chosen.begin(), chosen.end()));
        Numbers scale = kept->scale;
        scale.resize(chosen.size(), 1);
        set.scale = memory_.make(statistics_dtype(dtype_), {count}, scale);
        set.row = memory_.make(DType::kI32, {rows}, row);
      }
      out.entries().push_back({layout, set});
    }
    return out;
  }

  Shape full_shape(Layout layout, std::int64_t width) const {
    return {rows_of(layout) + (layout.fixed() ? 0 : padding_), width};
  }

  const LayerCase& test_;
  const std::int64_t padding_;
  DType dtype_;
  std::vector<std::string>& faults_;
  std::unique_ptr<LeavingOutOps> ops_;
  Memory memory_;
  // Two of one kind and config: what the first keeps of a forward, the second does not have.
  std::unique_ptr<Layer> layer_, backward_layer_;
  std::vector<ValueSpec> specs_;
  NodePlan plan_;
  std::vector<Tensor> inputs_, parameters_, state_, saved_;
  Tensor output_, scratch_, step_;
  RowSets full_rows_;
  const RowBound padded_;  // of batches that have padding
};

}  // namespace vcas::layer_bench
