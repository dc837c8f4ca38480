// An image becomes rows: its patches through one linear map, a learned first row (cls_token), and a
// learned position added to each row. The patches are cut out again in backward, of the kept items
// only, instead of being kept. There is no gradient to images.
#include <algorithm>
#include <cmath>

#include "layers/image_patches.h"

namespace vcas {

namespace {

class PatchEmbed final : public Layer {
 public:
  explicit PatchEmbed(const LayerConfig& config)
      : channels_(config.get_count("channels")),
        height_(config.get_count("height")),
        width_(config.get_count("width")),
        patch_(config.get_count("patch")),
        features_(config.get_count("features")),
        cls_(config.get<bool>("cls", true)),
        init_std_(config.get<double>("init_std", 0.02)) {
    if (height_ % patch_ != 0 || width_ % patch_ != 0)
      throw Error(ExitCode::kBadConfig,
                  "patch_embed.patch " + std::to_string(patch_) + " does not divide the image of " +
                      std::to_string(height_) + " x " + std::to_string(width_),
                  "set model.patch to a divisor of both");
  }

  NodePlan plan(const PlanInput& in) const override {
    check_image("patch_embed", in, channels_ * height_ * width_);
    const Initializer normal{Initializer::Kind::kNormal, init_std_};
    const Initializer fan_in{Initializer::Kind::kNormal,
                             1 / std::sqrt(static_cast<double>(patch_values()))};
    NodePlan plan;
    plan.output = {features_, Layout::items(tokens()), in.dtype};
    plan.parameters = {{"projection.weight", {features_, patch_values()}, fan_in, true},
                       {"projection.bias", {features_}, {}, false}};
    if (cls_) plan.parameters.push_back({"cls_token", {features_}, normal, false});
    plan.parameters.push_back({"position_embeddings", {tokens(), features_}, normal, false});
    plan.saved_inputs = {0};
    const auto rows = static_cast<std::size_t>(in.max_items * patches());
    const std::size_t bytes = dtype_bytes(in.dtype);
    plan.scratch_bytes = Arena::round_up(rows * static_cast<std::size_t>(patch_values()) * bytes) +
                         Arena::round_up(rows * static_cast<std::size_t>(features_) * bytes);
    return plan;
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    const std::int64_t items = io.inputs[0].rows();
    ArenaFrame frame(exec.scratch);
    const Tensor patches = cut_patches(exec, io.inputs[0], items, {});
    const Tensor projected = exec.scratch.take(exec.dtype, {patches.rows(), features_});
    exec.ops.run(LinearForward{.y = projected,
                               .x = patches,
                               .weight = io.parameters[kWeight],
                               .bias = io.parameters[kBias]});
    exec.ops.run(PatchTokensForward{.y = io.output.reshaped({items, tokens(), features_}),
                                    .patches = projected.reshaped(grid(items)),
                                    .cls = cls_ ? io.parameters[kCls] : Tensor{},
                                    .position = io.parameters[position()]});
  }

  void backward(Exec& exec, const BackwardIo& io) const override {
    if (std::ranges::none_of(io.gradients.tensors,
                             [](const Tensor& gradient) { return bool{gradient}; }))
      return;
    const RowSet& rows = io.rows.of(Layout::items(1));
    ArenaFrame frame(exec.scratch);
    const Tensor dprojected = exec.scratch.take(exec.dtype, {rows.items * patches(), features_});
    exec.ops.run(PatchTokensBackward{.dpatches = dprojected.reshaped(grid(rows.items)),
                                     .dcls = cls_ ? io.gradients[kCls] : Tensor{},
                                     .dposition = io.gradients[position()],
                                     .dy = io.dy.reshaped({rows.items, tokens(), features_})});
    if (io.gradients[kBias])
      exec.ops.run(ColumnSum{.sum = io.gradients[kBias], .x = dprojected, .accumulate = true});
    if (!io.gradients[kWeight]) return;
    const Tensor patches = cut_patches(exec, io.inputs_full[0], rows.items, rows.item);
    exec.ops.run(LinearBackwardWeight{
        .dweight = io.gradients[kWeight], .dy = dprojected, .x_full = patches, .accumulate = true});
  }

 private:
  static constexpr int kWeight = 0, kBias = 1, kCls = 2;
  std::size_t position() const { return cls_ ? 3 : 2; }
  std::int64_t patches() const { return (height_ / patch_) * (width_ / patch_); }
  std::int64_t tokens() const { return patches() + (cls_ ? 1 : 0); }
  std::int64_t patch_values() const { return channels_ * patch_ * patch_; }
  Shape grid(std::int64_t items) const { return {items, patches(), features_}; }

  // [items * patches, patch_values] from scratch
  Tensor cut_patches(Exec& exec, const Tensor& images, std::int64_t items,
                     const Tensor& item) const {
    const Tensor cut = exec.scratch.take(exec.dtype, {items * patches(), patch_values()});
    exec.ops.run(PatchExtract{.y = cut,
                              .image = images.reshaped({images.rows(), channels_, height_, width_}),
                              .item = item,
                              .patch = patch_});
    return cut;
  }

  std::int64_t channels_, height_, width_, patch_, features_;
  bool cls_;
  double init_std_;
};

VCAS_REGISTER_LAYER("patch_embed", PatchEmbed);

}  // namespace

}  // namespace vcas
