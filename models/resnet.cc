// Residual networks: ResNet (He et al. 2016a) with its basic and bottleneck blocks, and blocks of
// pre-activation (He et al. 2016b), as WideResNet has them (Zagoruyko & Komodakis 2016). In files
// names follow the Hugging Face ResNet; those of torchvision are read too.
#include <charconv>
#include <optional>

#include "models/blocks.h"
#include "models/hf_config.h"
#include "models/hf_format.h"

namespace vcas {

namespace {

using Json = nlohmann::ordered_json;

// Parts of our names, to be replaced in this order by those of Hugging Face.
constexpr std::pair<const char*, const char*> kHfNames[] = {
    {"resnet.stem.conv.", "resnet.embedder.embedder.convolution."},
    {"resnet.stem.norm.", "resnet.embedder.embedder.normalization."},
    {"resnet.stage.", "resnet.encoder.stages."},
    {".block.", ".layers."},
    {".shortcut.conv.", ".shortcut.convolution."},
    {".shortcut.norm.", ".shortcut.normalization."},
    {"classifier.", "classifier.1."},
};
// Parts with a number after them, which goes before them.
constexpr std::pair<std::string_view, const char*> kNumberedHfNames[] = {
    {".conv.", ".convolution."},
    {".norm.", ".normalization."},
};

// How names of torchvision begin, and those of Hugging Face.
constexpr std::pair<std::string_view, const char*> kTorchvisionNames[] = {
    {"conv1.", "resnet.embedder.embedder.convolution."},
    {"bn1.", "resnet.embedder.embedder.normalization."},
    {"fc.", "classifier.1."},
};
// The same of the names within a block.
constexpr std::pair<std::string_view, const char*> kTorchvisionParts[] = {
    {"conv1.", "layer.0.convolution."},         {"conv2.", "layer.1.convolution."},
    {"conv3.", "layer.2.convolution."},         {"bn1.", "layer.0.normalization."},
    {"bn2.", "layer.1.normalization."},         {"bn3.", "layer.2.normalization."},
    {"downsample.0.", "shortcut.convolution."}, {"downsample.1.", "shortcut.normalization."},
};

// Takes a number and a dot off the front of a name. Empty: they are not there, or it is too large.
std::optional<unsigned> take_number(std::string_view& name) {
  unsigned number = 0;
  const char* const last = name.data() + name.size();
  const auto [end, error] = std::from_chars(name.data(), last, number);
  if (error != std::errc() || end == last || *end != '.') return std::nullopt;
  name.remove_prefix(static_cast<std::size_t>(end + 1 - name.data()));
  return number;
}

// The name of Hugging Face for one of torchvision. Other names stay.
std::string from_torchvision(const std::string& name) {
  for (const auto& [theirs, hf] : kTorchvisionNames)
    if (name.starts_with(theirs)) return hf + name.substr(theirs.size());
  constexpr std::string_view kStage = "layer";
  if (!name.starts_with(kStage)) return name;
  std::string_view rest = std::string_view(name).substr(kStage.size());
  const std::optional<unsigned> stage = take_number(rest), block = take_number(rest);
  if (stage.value_or(0) == 0 || !block) return name;
  for (const auto& [theirs, hf] : kTorchvisionParts)
    if (rest.starts_with(theirs))
      return fmt::format("resnet.encoder.stages.{}.layers.{}.{}{}", *stage - 1, *block, hf,
                         rest.substr(theirs.size()));
  return name;
}

// The picture as it goes through the network.
struct Picture {
  Value x;
  std::int64_t height, width, channels;
};

class ResNet final : public ModelKind, public HfFormat {
 public:
  void fields(Setting& v) {
    v.field("stages", stages_, "Blocks of each stage.", between(1, 1000));
    v.field("widths", widths_, "Channels that the blocks of each stage put out.",
            between(1, 1 << 20));
    v.field(
        "stem", stem_,
        "imagenet: a convolution of 7 x 7 and a pooling, each of stride 2; cifar: one of 3 x 3.",
        one_of({"imagenet", "cifar"}));
    v.field("stem_width", stem_width_,
            "Channels of the stem; 0: those of the first stage, a quarter of them before "
            "bottlenecks.",
            between(0, 1 << 20));
    v.field("block", block_,
            "basic: two convolutions of 3 x 3; bottleneck: 1 x 1, 3 x 3, 1 x 1, a quarter as wide "
            "inside; preact: basic, norms and activations first.",
            one_of({"basic", "bottleneck", "preact"}));
    v.field("norm", norm_,
            "batch: of the rows of a batch; group: of an item; frozen: batch with running "
            "statistics that stay.",
            one_of({"batch", "group", "frozen"}));
    v.field("group_width", group_width_, "Channels of a group of model.norm \"group\".",
            between(1, 1 << 20));
  }
  void validate(ConfigErrors& errors) const {
    if (stages_.empty()) errors.add({"stages"}, "must have at least one number");
    if (stages_.size() != widths_.size())
      errors.add({"widths", "stages", "type"},
                 fmt::format("must have as many numbers as model.stages, {}, got {}",
                             stages_.size(), widths_.size()));
    for (const int width : widths_) {
      if (block_ == "bottleneck" && width % 4 != 0)
        errors.add({"widths", "block", "type"},
                   fmt::format("of bottlenecks must be multiples of 4, got {}", width));
      const std::int64_t narrowest = inner_width(width);
      if (norm_ == "group" &&
          (narrowest % group_width_ != 0 || stem_channels() % group_width_ != 0))
        errors.add({"group_width", "norm", "type"},
                   fmt::format("must divide all widths, and {} does not divide {}", group_width_,
                               narrowest % group_width_ != 0 ? narrowest : stem_channels()));
    }
  }
  std::vector<std::string> idle_settings() const override {
    if (norm_ == "group" || group_width_ == ResNet().group_width_) return {};
    return {fmt::format("model.group_width has no effect: model.norm is \"{}\"", norm_)};
  }

  void build(Model& model, const std::vector<std::int64_t>& item_shape, std::int64_t classes,
             double label_smoothing) const override {
    if (item_shape.size() != 3)
      throw Error(ExitCode::kBadConfig,
                  "model.type \"resnet\" needs images, and the data holds vectors",
                  "set model.type to \"mlp\"");
    Graph& graph = model.graph;
    const Value images = add_values(model, item_shape, DType::kF32);
    Picture at{graph.add("resnet.rows",
                         make_layer("image_rows", {{"channels", item_shape[0]},
                                                   {"height", item_shape[1]},
                                                   {"width", item_shape[2]}}),
                         {images}),
               item_shape[1], item_shape[2], item_shape[0]};
    add_stem(graph, at);
    for (std::size_t stage = 0; stage < stages_.size(); ++stage)
      for (int block = 0; block < stages_[stage]; ++block)
        add_block(graph, fmt::format("resnet.stage.{}.block.{}", stage, block), at, widths_[stage],
                  stage > 0 && block == 0 ? 2 : 1);
    if (block_ == "preact") at.x = norm_and_relu(graph, "resnet", at, "norm");
    const Value pooled =
        graph.add("resnet.pool", make_layer("pool", {{"pooling", "mean"}}), {at.x});
    add_classifier(model, pooled, classes, label_smoothing);
  }

  HfFormat* hugging_face() override { return this; }

  std::vector<std::string> model_types() const override { return {"resnet"}; }

  void read(const HfConfig& config, HfModel& model) override {
    stages_ = config.get<std::vector<int>>("depths");
    widths_ = config.get<std::vector<int>>("hidden_sizes");
    for (const int blocks : stages_) config.checked("depths", blocks);
    for (const int width : widths_) config.checked("hidden_sizes", width);
    if (stages_.empty() || stages_.size() != widths_.size())
      config.fail_unsupported("depths", "only one number for each of hidden_sizes is");
    stem_ = "imagenet";
    stem_width_ = config.count("embedding_size");
    block_ = config.get<std::string>("layer_type", "bottleneck");
    if (block_ != "basic" && block_ != "bottleneck")
      config.fail_unsupported("layer_type", "only basic and bottleneck are");
    if (block_ == "bottleneck" && std::ranges::any_of(widths_, [](int w) { return w % 4 != 0; }))
      config.fail_unsupported("hidden_sizes", "of bottlenecks only multiples of 4 are");
    config.expect<std::string>("hidden_act", "relu", "relu");
    config.expect("downsample_in_first_stage", false, false);
    config.expect("downsample_in_bottleneck", false, false);
    const std::int64_t side = config.has("image_size") ? config.count("image_size") : 224;
    model.image_shape = {config.count("num_channels"), side, side};
  }
  // Norms have the same tensors, whether they are frozen or not.
  void take_choices(const ModelKind& asked) override {
    if (static_cast<const ResNet&>(asked).norm_ == "frozen") norm_ = "frozen";
  }

  Json write(const HfModel& model) const override {
    return {{"model_type", "resnet"},
            {"num_channels", model.image_shape.at(0)},
            {"image_size", model.image_shape.at(1)},
            {"embedding_size", stem_channels()},
            {"hidden_sizes", widths_},
            {"depths", stages_},
            {"layer_type", block_},
            {"hidden_act", "relu"},
            {"downsample_in_first_stage", false},
            {"downsample_in_bottleneck", false}};
  }

  std::string architecture() const override { return "ResNetForImageClassification"; }
  std::vector<std::string> architectures_without_classifier() const override {
    return {"ResNetModel", "ResNetBackbone"};
  }

  std::string obstacle(const std::vector<std::int64_t>& shape) const override {
    if (stem_ != "imagenet") return "transformers has no ResNet with model.stem \"cifar\"";
    if (block_ == "preact") return "transformers has no ResNet with model.block \"preact\"";
    if (norm_ == "group") return "transformers has no ResNet with model.norm \"group\"";
    if (shape.size() == 3 && shape[1] != shape[2])
      return fmt::format("config.json of a ResNet has no room for images of {} x {}", shape[1],
                         shape[2]);
    return "";
  }

  std::vector<HfTensorShape> tensors(const Parameter& parameter) const override {
    std::vector<HfTensorShape> tensors = HfFormat::tensors(parameter);
    HfTensorShape& tensor = tensors[0];
    for (const auto& [ours, theirs] : kHfNames)
      if (const std::size_t at = tensor.name.find(ours); at != std::string::npos)
        tensor.name.replace(at, std::string_view(ours).size(), theirs);
    for (const auto& [ours, theirs] : kNumberedHfNames)
      if (const std::size_t at = tensor.name.find(ours); at != std::string::npos) {
        std::string_view rest = std::string_view(tensor.name).substr(at + ours.size());
        if (const std::optional<unsigned> number = take_number(rest))
          tensor.name =
              fmt::format("{}.layer.{}{}{}", tensor.name.substr(0, at), *number, theirs, rest);
      }
    if (tensor.name.ends_with("convolution.weight")) {
      const std::int64_t side = kernel_of(parameter.name);
      tensor.shape = {tensor.shape[0], tensor.shape[1] / (side * side), side, side};
      tensor.transposed = true;
    }
    return tensors;
  }

  std::string current_name(std::string name) const override {
    return with_prefix("resnet.", {"embedder.", "encoder."}, from_torchvision(name));
  }
  // PyTorch counts the forwards of a norm, and does not use the number.
  bool holds_nothing(const std::string& name) const override {
    return name.ends_with(".num_batches_tracked");
  }
  std::string counter_beside(const std::string& name) const override {
    constexpr std::string_view kMean = ".running_mean";
    if (!name.ends_with(kMean)) return "";
    return name.substr(0, name.size() - kMean.size()) + ".num_batches_tracked";
  }

 private:
  std::int64_t inner_width(std::int64_t width) const {
    return block_ == "bottleneck" ? width / 4 : width;
  }
  std::int64_t stem_channels() const {
    return stem_width_ > 0 ? stem_width_ : inner_width(widths_.empty() ? 64 : widths_[0]);
  }
  // Patches of the convolution whose weight has this name.
  std::int64_t kernel_of(const std::string& name) const {
    if (name.find(".stem.") != std::string::npos) return stem_ == "imagenet" ? 7 : 3;
    if (name.find(".shortcut.") != std::string::npos) return 1;
    return block_ == "bottleneck" && name.find(".conv.1.") == std::string::npos ? 1 : 3;
  }

  void convolve(Graph& graph, const std::string& name, Picture& at, std::int64_t features,
                std::int64_t kernel, std::int64_t stride, bool sampled = true) const {
    const std::int64_t padding = kernel / 2;
    const Json settings = {{"height", at.height}, {"width", at.width},  {"kernel", kernel},
                           {"stride", stride},    {"padding", padding}, {"features", features},
                           {"sampled", sampled}};
    at = {graph.add(name, make_layer("conv2d", nlohmann::json(settings)), {at.x}),
          (at.height - 1) / stride + 1, (at.width - 1) / stride + 1, features};
  }
  // The gain of a norm is 1 at first, or 0: a block then begins as its shortcut.
  Value normalize(Graph& graph, const std::string& name, const Picture& at, double gain = 1) const {
    if (norm_ == "group")
      return graph.add(
          name, make_layer("group_norm", {{"groups", at.channels / group_width_}, {"gain", gain}}),
          {at.x});
    return graph.add(
        name, make_layer("batch_norm", {{"frozen", norm_ == "frozen"}, {"gain", gain}}), {at.x});
  }
  Value norm_and_relu(Graph& graph, const std::string& name, const Picture& at,
                      const std::string& part) const {
    const Value y = normalize(graph, name + "." + part, at);
    return graph.add(name + "." + part + ".relu", make_layer("relu"), {y});
  }

  // Its weight is never sampled: it has few channels.
  void add_stem(Graph& graph, Picture& at) const {
    const bool imagenet = stem_ == "imagenet";
    convolve(graph, "resnet.stem.conv", at, stem_channels(), imagenet ? 7 : 3, imagenet ? 2 : 1,
             false);
    if (block_ != "preact") at.x = norm_and_relu(graph, "resnet.stem", at, "norm");
    if (!imagenet) return;
    at.x = graph.add("resnet.stem.pool",
                     make_layer("max_pool", {{"height", at.height},
                                             {"width", at.width},
                                             {"kernel", 3},
                                             {"stride", 2},
                                             {"padding", 1}}),
                     {at.x});
    at.height = (at.height - 1) / 2 + 1;
    at.width = (at.width - 1) / 2 + 1;
  }

  // A gate at the sum.
  void add_block(Graph& graph, const std::string& name, Picture& at, std::int64_t width,
                 std::int64_t stride) const {
    const bool preact = block_ == "preact";
    if (preact) {
      const Value x = at.x;
      at.x = norm_and_relu(graph, name, at, "norm.0");
      Picture side = at;
      if (at.channels == width && stride == 1)
        side.x = x;
      else
        convolve(graph, name + ".shortcut.conv", side, width, 1, stride);
      convolve(graph, name + ".conv.0", at, width, 3, stride);
      at.x = norm_and_relu(graph, name, at, "norm.1");
      convolve(graph, name + ".conv.1", at, width, 3, 1);
      at.x = graph.add(name + ".sum", make_layer("add"), {at.x, side.x});
    } else {
      add_branches(graph, name, at, width, stride);
    }
    graph.gate(at.x);
    if (!preact) at.x = graph.add(name + ".relu", make_layer("relu"), {at.x});
  }

  // The convolutions of a block after which norms come, and its shortcut, to their sum.
  void add_branches(Graph& graph, const std::string& name, Picture& at, std::int64_t width,
                    std::int64_t stride) const {
    Picture side = at;
    if (at.channels != width || stride != 1) {
      convolve(graph, name + ".shortcut.conv", side, width, 1, stride);
      side.x = normalize(graph, name + ".shortcut.norm", side);
    }
    struct Step {
      std::int64_t features, kernel, stride;
    };
    const std::int64_t inner = inner_width(width);
    const std::vector<Step> steps =
        block_ == "basic" ? std::vector<Step>{{width, 3, stride}, {width, 3, 1}}
                          : std::vector<Step>{{inner, 1, 1}, {inner, 3, stride}, {width, 1, 1}};
    for (std::size_t j = 0; j < steps.size(); ++j) {
      convolve(graph, fmt::format("{}.conv.{}", name, j), at, steps[j].features, steps[j].kernel,
               steps[j].stride);
      const std::string norm = fmt::format("norm.{}", j);
      if (j + 1 < steps.size())
        at.x = norm_and_relu(graph, name, at, norm);
      else
        at.x = normalize(graph, name + "." + norm, at, 0);
    }
    at.x = graph.add(name + ".sum", make_layer("add"), {at.x, side.x});
  }

  std::vector<int> stages_ = {2, 2, 2, 2}, widths_ = {64, 128, 256, 512};
  std::string stem_ = "imagenet", block_ = "basic", norm_ = "batch";
  std::int64_t stem_width_ = 0, group_width_ = 16;
};

VCAS_REGISTER_PART(ModelKind, "resnet", ResNet);

}  // namespace

}  // namespace vcas
