// Classifiers built from a few settings: a graph with its inputs, logits and loss.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/config.h"
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
  double dropout = 0.0;
  double attention_dropout = 0.0;

  template <class Visitor>
  void fields(Visitor& v) {
    v.field("type", type, "Kind of model.", one_of({"vit", "mlp"}));
    v.field("width", width, "Width of the blocks (vit, mlp).", at_least(1));
    v.field("depth", depth, "Number of blocks (vit, mlp).", at_least(1));
    v.field("heads", heads, "Attention heads; must divide width (vit).", at_least(1));
    v.field("patch", patch, "Side of a patch in pixels; must divide the image (vit).", at_least(1));
    v.field("ffn_ratio", ffn_ratio, "Inner width of the feed-forward over width (vit).",
            above(0.0));
    v.field("pooling", pooling, "What the classifier reads: the class token or the mean (vit).",
            one_of({"first", "mean"}));
    v.field("dropout", dropout, "Dropout after embeddings and in residual branches.", at_least(0.0),
            below(1.0));
    v.field("attention_dropout", attention_dropout, "Dropout of attention probabilities (vit).",
            at_least(0.0), below(1.0));
  }
  void validate(ConfigErrors& errors) const {
    if (type == "vit" && width % heads != 0)
      errors.add({"heads", "width", "type"}, "must divide model.width " + std::to_string(width) +
                                                 ", got " + std::to_string(heads));
  }
};

struct Model {
  explicit Model(DType dtype) : graph(dtype) {}

  Graph graph;
  Value input;   // f32 [N, values of an item]
  Value labels;  // i32 [N, 1]
  Value logits;  // [N, classes]
  Value loss;    // statistics dtype [N, 1]; saved tensor 0 is i32 [N, 1]: 1 = right
};

// item_shape: {channels, height, width} of images or {width} of vectors. Throws Error(kBadConfig)
// when the model does not fit the data. The graph still has to be finished.
std::unique_ptr<Model> build_model(const ModelOptions& options,
                                   const std::vector<std::int64_t>& item_shape,
                                   std::int64_t classes, double label_smoothing,
                                   DType dtype = DType::kF32);

}  // namespace vcas
