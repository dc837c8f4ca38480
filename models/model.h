// Models built from a few settings: a graph with its inputs, logits and loss.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/part.h"
#include "data/batch.h"
#include "layers/graph.h"

namespace vcas {

class HfFormat;
class Model;

// A kind of model: its settings and its graph, in one source file. docs/models.md shows how to add
// one.
class ModelKind {
 public:
  virtual ~ModelKind() = default;

  // Adds inputs, nodes, logits and loss.
  // `item_shape`: {channels, height, width} of images or {width} of vectors, not used for text.
  // Throws Error(kBadConfig) when the model does not fit the data.
  virtual void build(Model& model, const std::vector<std::int64_t>& item_shape,
                     std::int64_t classes, double label_smoothing) const = 0;
  // What is learned: "classification" of items, "regression" or "mlm", masked words.
  virtual std::string head() const { return "classification"; }

  // Null where transformers has no such models.
  virtual HfFormat* hugging_face() { return nullptr; }
  const HfFormat* hugging_face() const { return const_cast<ModelKind*>(this)->hugging_face(); }
  // Takes from `asked` the choices that a config.json leaves to the user.
  virtual void take_choices(const ModelKind& /*asked*/) {}

  // For models that read text.
  virtual bool reads_text() const { return false; }
  virtual std::int64_t max_positions() const { return 0; }    // most tokens of an item
  virtual std::int64_t type_vocabulary() const { return 0; }  // kinds of text in an item
  virtual std::int64_t vocabulary() const { return 0; }       // 0: as many as the tokenizer has
  virtual void set_vocabulary(std::int64_t /*tokens*/) {}
};

struct ModelOptions {
  Part<ModelKind> kind{"vit", "Kind of model."};
  std::string pretrained;
  bool new_classifier = false;

  void fields(Setting& v) {
    kind.fields(v);
    v.field("pretrained", pretrained,
            "Weights to start from: a Hugging Face folder or its model.safetensors. Its "
            "config.json then sets the sizes and dropout (vit, bert).");
    v.field("new_classifier", new_classifier,
            "Start the classifier anew, whatever the pretrained weights have: for another task.");
  }
  void validate(ConfigErrors& errors) const;
};

// From settings such as "type=bert" and "width=768".
ModelOptions read_model_options(const std::vector<std::string>& settings);

class Model {
 public:
  explicit Model(DType dtype) : graph(dtype) {}

  Graph graph;
  // Inputs. An input that the model does not use has the index -1.
  Value values;       // f32 [N, values of an item]; of an mlp in bf16, bf16
  Value tokens;       // i32 [R, 1]
  Value token_types;  // i32 [R, 1]
  Value positions;    // i32 [R, 1]: number of the row in its item
  Value masked_rows;  // i32 [P, 1]
  Value labels;       // i32 [N, 1], or of the masked positions [P, 1]
  Value targets;      // f32 [N, 1]
  Value weights;      // f32 [N, 1], optional: of the items in the loss
  Value hidden;       // output of the last block (bert); Graph::keep it to read it
  Value logits;       // [N, classes], [N, 1] of a regression, [P, vocabulary] of masked words
  // Statistics dtype, one row for each term of the loss: an item, or a masked position.
  // Saved tensor 0 is i32 of the same rows, 1 = right. A regression has none.
  Value loss;
  std::int64_t vocabulary = 0, type_vocabulary = 0, max_positions = 0;  // of models with tokens

  // The items [first, first + items) of `batch` become the batch of the finished graph.
  // Unknown labels and absent targets become 0. Logits then mean something, losses do not.
  // Throws Error(kBadData) for tokens outside the vocabulary, and items longer than the positions.
  void load(Ops& ops, const Batch& batch, std::int64_t first, std::int64_t items);
  // How many terms the loss of these items has.
  std::int64_t loss_terms(const Batch& batch, std::int64_t first, std::int64_t items) const;
  bool has_accuracy() const { return targets.index < 0; }

 private:
  void check_tokens(const Batch& batch, std::int64_t first_row) const;
  void load_values(Ops& ops, const Batch& batch, std::int64_t first);
  void load_tokens(Ops& ops, const Batch& batch, std::int64_t first_row);
  void load_labels(Ops& ops, const Batch& batch, std::int64_t first, std::int64_t items);
  void load_weights(Ops& ops, const Batch& batch, std::int64_t first, std::int64_t items);

  std::vector<std::int64_t> offsets_, masked_offsets_;  // of the items loaded
  std::vector<std::int32_t> rows_;
  std::vector<float> targets_;
  std::vector<bfloat16> values_;
};

// As ModelKind::build says. The graph still has to be finished.
std::unique_ptr<Model> build_model(const ModelOptions& options,
                                   const std::vector<std::int64_t>& item_shape,
                                   std::int64_t classes, double label_smoothing,
                                   DType dtype = DType::kF32);

}  // namespace vcas
