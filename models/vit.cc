// Vision Transformer (Dosovitskiy et al. 2021): patches, learned positions, pre-norm blocks. Names
// follow the Hugging Face ViT, with query, key and value as one linear layer. Without a class token
// it is the vision half of SigLIP (Zhai et al. 2023).
#include "models/blocks.h"
#include "models/hf_config.h"
#include "models/hf_format.h"

namespace vcas {

namespace {

using Json = nlohmann::ordered_json;

// Names of SigLIP, to be replaced in this order in those of a ViT.
constexpr std::pair<const char*, const char*> kSiglipNames[] = {
    {"vit.embeddings.patch_embeddings.projection.", "vision_model.embeddings.patch_embedding."},
    {"vit.embeddings.position_embeddings", "vision_model.embeddings.position_embedding.weight"},
    {"vit.encoder.layer.", "vision_model.encoder.layers."},
    {"vit.layernorm.", "vision_model.post_layernorm."},
    {".layernorm_before.", ".layer_norm1."},
    {".layernorm_after.", ".layer_norm2."},
    {".attention.attention.query.", ".self_attn.q_proj."},
    {".attention.attention.key.", ".self_attn.k_proj."},
    {".attention.attention.value.", ".self_attn.v_proj."},
    {".attention.output.dense.", ".self_attn.out_proj."},
    {".intermediate.dense.", ".mlp.fc1."},
    {".output.dense.", ".mlp.fc2."},
};

const HfNames kVitNames = {
    {".attention.qkv.",
     {".attention.attention.query.", ".attention.attention.key.", ".attention.attention.value."}},
    {"vit.embeddings.projection.", {"vit.embeddings.patch_embeddings.projection."}},
};

// {channels, height, width}; image_size is one number or two.
std::vector<std::int64_t> read_image_shape(const HfConfig& config) {
  const std::int64_t channels = config.count("num_channels");
  if (config.has("image_size") && config.at("image_size").is_array()) {
    const auto sides = config.get<std::vector<std::int64_t>>("image_size");
    if (sides.size() == 2)
      return {channels, config.checked("image_size", sides[0]),
              config.checked("image_size", sides[1])};
  }
  const std::int64_t side = config.count("image_size");
  return {channels, side, side};
}

class Vit final : public ModelKind, public HfFormat {
 public:
  void fields(Setting& v) {
    sizes_.fields(v);
    v.field("patch", patch_, "Side of a patch in pixels; must divide the image.",
            between(1, 1 << 16));
    v.field("pooling", pooling_, "What the classifier reads: the class token or the mean.",
            one_of({"first", "mean"}));
  }
  void validate(ConfigErrors& errors) const { sizes_.validate(errors); }

  void build(Model& model, const std::vector<std::int64_t>& item_shape, std::int64_t classes,
             double label_smoothing) const override {
    if (item_shape.size() != 3)
      throw Error(ExitCode::kBadConfig,
                  "model.type \"vit\" needs images, and the data holds vectors",
                  "set model.type to \"mlp\"");
    // Patches are cut from f32 and rounded then.
    const Value images = add_values(model, item_shape, DType::kF32);
    Graph& graph = model.graph;
    const bool first = pooling_ == "first";
    Value x = graph.add("vit.embeddings",
                        make_layer("patch_embed", {{"channels", item_shape[0]},
                                                   {"height", item_shape[1]},
                                                   {"width", item_shape[2]},
                                                   {"patch", patch_},
                                                   {"features", sizes_.width},
                                                   {"cls", first}}),
                        {images});
    x = add_dropout(graph, "vit.embeddings.dropout", x, sizes_.dropout);
    const PreNormBlock names{.norm = ".layernorm_before",
                             .qkv = ".attention.qkv",
                             .attention = ".attention",
                             .projection = ".attention.output.dense",
                             .residual = ".attention.residual",
                             .inner_norm = ".layernorm_after",
                             .inner = ".intermediate.dense",
                             .activation = ".intermediate.gelu",
                             .outer = ".output.dense",
                             .inner_residual = ".residual",
                             .eps = eps()};
    for (std::int64_t block = 0; block < sizes_.depth; ++block) {
      x = add_pre_norm_block(graph, names, sizes_, "vit.encoder.layer." + std::to_string(block), x);
      graph.gate(x);
    }
    // The norm works row by row, so it may follow the choice of the class token, and then has N
    // rows.
    const auto pool = [&] {
      x = graph.add("vit.pool", make_layer("pool", {{"pooling", pooling_}}), {x});
    };
    if (first) pool();
    x = add_norm(graph, "vit.layernorm", x, eps());
    if (!first) pool();
    add_classifier(model, x, classes, label_smoothing);
  }

  HfFormat* hugging_face() override { return this; }

  std::vector<std::string> model_types() const override { return {"vit", "siglip"}; }

  void read(const HfConfig& whole, HfModel& model) override {
    const bool siglip = whole.get<std::string>("model_type") == "siglip";
    const HfConfig config = siglip ? whole.part("vision_config") : whole;
    pooling_ = siglip ? "mean" : "first";
    read_transformer(config, sizes_, 0.0,
                     siglip ? "attention_dropout" : "attention_probs_dropout_prob",
                     siglip ? 1e-6 : 1e-12);
    config.expect<std::string>("hidden_act", "gelu", siglip ? "gelu_pytorch_tanh" : "gelu");
    model.image_shape = read_image_shape(config);
    patch_ = config.count("patch_size");
    if (model.image_shape[1] % patch_ != 0 || model.image_shape[2] % patch_ != 0)
      config.fail_unsupported("patch_size", "only a divisor of \"image_size\" is");
    config.expect(siglip ? "vision_use_head" : "qkv_bias", !siglip, true);
  }

  Json write(const HfModel& model) const override {
    const std::vector<std::int64_t>& shape = model.image_shape;
    Json sizes = {{"model_type", is_siglip() ? "siglip_vision_model" : "vit"}};
    sizes.update(transformer_sizes(
        sizes_, eps(), is_siglip() ? "attention_dropout" : "attention_probs_dropout_prob"));
    sizes["num_channels"] = shape.at(0);
    sizes["image_size"] = shape.at(1) == shape.at(2) ? Json(shape[1]) : Json{shape[1], shape[2]};
    sizes["patch_size"] = patch_;
    sizes[is_siglip() ? "vision_use_head" : "qkv_bias"] = !is_siglip();
    if (is_siglip()) return {{"model_type", "siglip"}, {"vision_config", sizes}};
    return sizes;
  }

  std::string architecture() const override {
    return is_siglip() ? "SiglipForImageClassification" : "ViTForImageClassification";
  }
  std::vector<std::string> architectures_without_classifier() const override {
    return {"ViTModel", "ViTForMaskedImageModeling", "SiglipVisionModel"};
  }

  std::string obstacle(const std::vector<std::int64_t>& shape) const override {
    if (!is_siglip() || shape.size() != 3 || shape[1] == shape[2]) return "";
    return fmt::format(
        "transformers has no class for images of {} x {} with model.pooling \"mean\"", shape[1],
        shape[2]);
  }

  HfNames names() const override { return kVitNames; }
  std::vector<HfTensorShape> tensors(const Parameter& parameter) const override {
    std::vector<HfTensorShape> tensors = HfFormat::tensors(parameter);
    for (auto& [name, shape, transposed] : tensors) {
      if (name.ends_with("projection.weight"))  // a convolution: [D, C, patch, patch]
        shape = {shape[0], shape[1] / (patch_ * patch_), patch_, patch_};
      if (name == "vit.embeddings.cls_token") shape = {1, 1, shape[0]};
      if (name == "vit.embeddings.position_embeddings" && !is_siglip())
        shape.insert(shape.begin(), 1);
      if (!is_siglip()) continue;
      for (const auto& [vit, siglip] : kSiglipNames)
        if (const std::size_t at = name.find(vit); at != std::string::npos)
          name.replace(at, std::string_view(vit).size(), siglip);
    }
    return tensors;
  }

  std::string current_name(std::string name) const override {
    return with_prefix("vit.", {"embeddings.", "encoder.", "pooler.", "layernorm."}, name);
  }

 private:
  bool is_siglip() const { return pooling_ == "mean"; }
  double eps() const { return sizes_.eps(1e-6); }

  TransformerSettings sizes_;
  std::int64_t patch_ = 4;
  std::string pooling_ = "first";
};

VCAS_REGISTER_PART(ModelKind, "vit", Vit);

}  // namespace

}  // namespace vcas
