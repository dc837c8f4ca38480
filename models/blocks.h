// Pieces that several models are made of.
#pragma once

#include <fmt/format.h>

#include <cmath>

#include "models/model.h"

namespace vcas {

// Standard deviation of the first weights of BERT and GPT-2.
inline constexpr double kTransformerStd = 0.02;

// Adds a dropout node unless p is 0.
Value add_dropout(Graph& graph, const std::string& name, Value x, double p);

// residual + dropout of x, by one node.
Value add_residual(Graph& graph, const std::string& name, Value residual, Value x, double p);

// `init_std` 0: the layer's own.
Value add_linear(Graph& graph, const std::string& name, std::int64_t width, Value x,
                 double init_std = 0, bool sampled = true);

Value add_norm(Graph& graph, const std::string& name, Value x, double eps);

// Adds the input of images or vectors: [N, values of an item] of f32, f64 or bf16.
Value add_values(Model& model, const std::vector<std::int64_t>& item_shape, DType dtype);

// Adds the input of one class an item: i32 [N, 1].
Value add_labels(Model& model, std::int64_t classes);

// Adds the loss of the logits. `labels`: i32, with as many rows. Masked words have no weights.
void add_cross_entropy(Model& model, Value labels, double label_smoothing);

// Adds the classifier, the labels and the loss of one class an item.
void add_classifier(Model& model, Value features, std::int64_t classes, double label_smoothing);

// Adds the input of weights of items. Returns it, to be the third input of a loss.
Value add_weights(Model& model);

// For ModelInput::fill. Throws Error(kBadData) for an id outside [0, limit).
void check_ids(std::span<const std::int32_t> ids, std::int64_t limit, const char* what,
               const char* hint);

inline Range dropout_range() { return {.low = 0, .high = 1, .high_open = true}; }

// Sizes and dropout of a stack of transformer blocks.
struct TransformerSettings {
  std::int64_t width = 192;
  std::int64_t depth = 6;
  std::int64_t heads = 3;
  double ffn_ratio = 4.0;
  double norm_eps = 0.0;
  double dropout = 0.0;
  double attention_dropout = 0.0;

  void fields(Setting& v) {
    v.field("width", width, "Width of the blocks.", between(1, 1 << 20));
    v.field("depth", depth, "Number of blocks.", between(1, 10'000));
    v.field("heads", heads, "Attention heads; must divide width.", between(1, 1 << 20));
    v.field("ffn_ratio", ffn_ratio, "Inner width of the feed-forward over width.", above(0.0),
            at_most(1000.0));
    v.field("norm_eps", norm_eps,
            "Added to variances in layer norms; 0: 1e-6 of a vit, 1e-12 of a bert, 1e-5 of a gpt.",
            between(0.0, 1.0));
    v.field("dropout", dropout, "Dropout after embeddings and in residual branches.",
            dropout_range());
    v.field("attention_dropout", attention_dropout, "Dropout of attention probabilities.",
            dropout_range());
  }
  void validate(ConfigErrors& errors) const {
    // Pretrained weights decide what is left out.
    const bool are_known =
        !errors.given("pretrained") || (errors.given("width") && errors.given("heads"));
    if (are_known && width % heads != 0)
      errors.add({"heads", "width", "type"}, "must divide model.width " + std::to_string(width) +
                                                 ", got " + std::to_string(heads));
    if (are_known && inner_width() < 1)
      errors.add({"ffn_ratio", "width", "type"},
                 fmt::format("must leave feed-forwards a width of at least 1, got {} of "
                             "model.width {}",
                             ffn_ratio, width));
  }
  std::int64_t inner_width() const { return std::llround(ffn_ratio * static_cast<double>(width)); }
  // `standard`: that of the kind of model.
  double eps(double standard) const { return norm_eps > 0 ? norm_eps : standard; }
};

// A block whose norms stand before its branches, x + f(norm(x)) (Radford et al. 2019): names of its
// nodes, behind that of the block, and what else differs between models.
struct PreNormBlock {
  const char *norm, *qkv, *attention, *projection, *residual;
  const char *inner_norm, *inner, *activation, *outer, *inner_residual;
  const char* activation_layer = "gelu";
  bool causal = false;
  double eps = 1e-6;
  double init_std = 0;  // of the first weights; 0: the layer's own
};
Value add_pre_norm_block(Graph& graph, const PreNormBlock& block, const TransformerSettings& sizes,
                         const std::string& name, Value x);

class HfConfig;

// A number of a config.json of Hugging Face; `otherwise` where the key is absent.
// Throws Error(kBadData) for one outside the range.
double read_number(const HfConfig& config, const char* key, double otherwise, const Range& range);
// The eps of a norm. Unlike settings, files have no 0 that stands for the standard one.
double read_eps(const HfConfig& config, const char* key, double otherwise);
// The heads of attention. Throws Error(kBadData) where they do not divide the width.
std::int64_t read_heads(const HfConfig& config, const char* key, const char* width_key);
// Reads sizes and dropout from a config.json of Hugging Face.
// `dropout` and `eps` stand in for absent keys.
void read_transformer(const HfConfig& config, TransformerSettings& settings, double dropout,
                      const char* attention_dropout_key, double eps);
nlohmann::ordered_json transformer_sizes(const TransformerSettings& settings, double eps,
                                         const char* attention_dropout_key);

}  // namespace vcas
