// Models built from a few settings: a graph with its inputs, logits and loss.
#pragma once

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/config.h"
#include "data/batch.h"
#include "layers/graph.h"

namespace vcas {

// Which model, and its sizes. Settings of the other kinds are ignored.
struct ModelOptions {
  std::string type = "vit";
  std::int64_t width = 192;
  std::int64_t depth = 6;
  std::int64_t heads = 3;
  std::int64_t patch = 4;
  double ffn_ratio = 4.0;
  std::string pooling = "first";
  std::string head = "classification";
  std::int64_t max_positions = 512;
  std::int64_t type_vocabulary = 2;
  double norm_eps = 0.0;
  double dropout = 0.0;
  double attention_dropout = 0.0;
  std::optional<double> classifier_dropout;
  std::int64_t vocabulary = 0;
  bool tied_decoder = true;
  std::string pretrained;
  bool new_classifier = false;

  template <class Visitor>
  void fields(Visitor& v) {
    v.field("type", type, "Kind of model.", one_of({"vit", "bert", "mlp"}));
    v.field("width", width, "Width of the blocks.", between(1, 1 << 20));
    v.field("depth", depth, "Number of blocks.", between(1, 10'000));
    v.field("heads", heads, "Attention heads; must divide width (vit, bert).", between(1, 1 << 20));
    v.field("patch", patch, "Side of a patch in pixels; must divide the image (vit).",
            between(1, 1 << 16));
    v.field("ffn_ratio", ffn_ratio, "Inner width of the feed-forward over width (vit, bert).",
            above(0.0), at_most(1000.0));
    v.field("pooling", pooling,
            "What the classifier reads: the class token or the mean (vit, bert). bert reads the "
            "class token through its pooler, and the last block then computes that row alone.",
            one_of({"first", "mean"}));
    v.field("head", head,
            "What is learned: a class of the item, a number, or masked words (the last two: bert).",
            one_of({"classification", "regression", "mlm"}));
    v.field("max_positions", max_positions, "Most tokens of an item (bert).", between(1, 1 << 24));
    v.field("type_vocabulary", type_vocabulary, "Kinds of text in an item (bert).",
            between(1, 1 << 20));
    v.field("norm_eps", norm_eps,
            "Added to variances in layer norms; 0: 1e-6 of a vit, 1e-12 of a bert.", at_least(0.0));
    v.field("dropout", dropout, "Dropout after embeddings and in residual branches.", at_least(0.0),
            below(1.0));
    v.field("attention_dropout", attention_dropout,
            "Dropout of attention probabilities (vit, bert).", at_least(0.0), below(1.0));
    v.field("classifier_dropout", classifier_dropout,
            "Dropout before the classifier; null: as dropout (bert).", at_least(0.0), below(1.0));
    v.field("vocabulary", vocabulary,
            "Rows of the table of words; 0: as many as the tokenizer has tokens (bert).",
            between(0, 1 << 30));
    v.field("tied_decoder", tied_decoder,
            "Masked words are scored with the table of words; false: with weights of their own "
            "(bert with head mlm).");
    v.field("pretrained", pretrained,
            "Weights to start from: a Hugging Face folder or its model.safetensors. Its "
            "config.json then sets the sizes and dropout (vit, bert).");
    v.field("new_classifier", new_classifier,
            "Start the classifier anew, whatever the pretrained weights have: for another task.");
  }
  void validate(ConfigErrors& errors) const {
    if (type != "mlp" && width % heads != 0)
      errors.add({"heads", "width", "type"}, "must divide model.width " + std::to_string(width) +
                                                 ", got " + std::to_string(heads));
    if (type == "mlp" && !pretrained.empty())
      errors.add({"pretrained", "type"}, "needs model.type \"vit\" or \"bert\"");
    if (type != "bert" && head != "classification")
      errors.add({"head", "type"}, "\"" + head + "\" needs model.type \"bert\"");
  }

  // A vit without a class token, which transformers has as the vision half of SigLIP.
  bool is_siglip() const { return type == "vit" && pooling == "mean"; }
  double eps() const { return norm_eps > 0 ? norm_eps : type == "vit" ? 1e-6 : 1e-12; }
  std::int64_t inner_width() const { return std::llround(ffn_ratio * static_cast<double>(width)); }
};

class Model {
 public:
  explicit Model(DType dtype) : graph(dtype) {}

  Graph graph;
  // Inputs. A model leaves those that it has no use for out: their index is -1.
  Value values;       // f32 [N, values of an item]; of an mlp in bf16, bf16
  Value tokens;       // i32 [R, 1]
  Value token_types;  // i32 [R, 1]
  Value positions;    // i32 [R, 1]: number of the row in its item
  Value masked_rows;  // i32 [P, 1]
  Value labels;       // i32 [N, 1], or of the masked positions [P, 1]
  Value targets;      // f32 [N, 1]
  Value hidden;       // output of the last block (bert); Graph::keep it to read it
  Value logits;       // [N, classes], [N, 1] of a regression, [P, vocabulary] of masked words
  // Statistics dtype, one row for each term of the loss: an item, or a masked position. Saved
  // tensor 0 is i32 of the same rows, 1 = right; a regression has none.
  Value loss;
  std::int64_t vocabulary = 0, type_vocabulary = 0, max_positions = 0;  // of models with tokens

  // The items [first, first + items) of `batch` become the batch of the finished graph. Labels that
  // are unknown, and targets that are not there, become 0: then logits mean something, and losses
  // do not. Throws Error(kBadData) for tokens outside the vocabulary, and items longer than the
  // positions.
  void load(Ops& ops, const Batch& batch, std::int64_t first, std::int64_t items);
  // How many terms the loss of these items has.
  std::int64_t loss_terms(const Batch& batch, std::int64_t first, std::int64_t items) const;
  bool has_accuracy() const { return targets.index < 0; }

 private:
  std::vector<std::int64_t> offsets_, masked_offsets_;  // of the items loaded
  std::vector<std::int32_t> rows_;
  std::vector<float> targets_;
  std::vector<bfloat16> values_;
};

// item_shape: {channels, height, width} of images or {width} of vectors; not looked at for text.
// Throws Error(kBadConfig) when the model does not fit the data. The graph still has to be
// finished.
std::unique_ptr<Model> build_model(const ModelOptions& options,
                                   const std::vector<std::int64_t>& item_shape,
                                   std::int64_t classes, double label_smoothing,
                                   DType dtype = DType::kF32);

}  // namespace vcas
