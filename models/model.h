// Models built from a few settings: a graph with its inputs, logits and loss.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/part.h"
#include "data/batch.h"
#include "layers/graph.h"

namespace vcas {

class HfFormat;
class Model;

// A kind of model: its settings and its graph, in one source file. CONTRIBUTING.md shows how to add
// one.
class ModelKind {
 public:
  virtual ~ModelKind() = default;

  // Adds inputs, nodes, logits and loss.
  // `item_shape`: {channels, height, width} of images or {width} of vectors, not used for text.
  // Throws Error(kBadConfig) when the model does not fit the data.
  virtual void build(Model& model, const std::vector<std::int64_t>& item_shape,
                     std::int64_t classes, double label_smoothing) const = 0;
  // What is learned: "classification" of items, "regression", "mlm", masked words, or "lm", next
  // ones.
  virtual std::string head() const { return "classification"; }
  bool learns_words() const { return head() == "mlm" || head() == "lm"; }

  // Whether a tensor may be missing where weights are read, and then starts anew.
  // `name`: that of Hugging Face's files, or our own where there are none.
  virtual bool belongs_to_head(const std::string& name) const {
    return name.starts_with("classifier.");
  }
  // A line for each setting whose value is not the default, and is not read: which, and why.
  virtual std::vector<std::string> idle_settings() const { return {}; }
  // Takes from `asked` the choices that weights leave to the user.
  virtual void take_choices(const ModelKind& /*asked*/) {}

  // Null where transformers has no such models.
  virtual HfFormat* hugging_face() { return nullptr; }
  const HfFormat* hugging_face() const { return const_cast<ModelKind*>(this)->hugging_face(); }

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
            "Weights to start from: a run, one of its checkpoints, a Hugging Face folder or its "
            "model.safetensors. They then set the sizes and dropout.");
    v.field("new_classifier", new_classifier,
            "Start the classifier anew, whatever the pretrained weights have: for another task.");
  }
};

// `trained`, which `file` describes, with the choices of `asked`.
// Throws Error(kBadConfig) where the kind of model differs.
ModelOptions with_choices(ModelOptions trained, const ModelOptions& asked,
                          const std::filesystem::path& file);

// From settings such as "type=bert" and "width=768".
ModelOptions read_model_options(const std::vector<std::string>& settings);

// The items [first, first + items) of a batch.
struct BatchPart {
  const Batch& batch;
  std::int64_t first, items;

  // The part for these items of `all`, numbers of the whole batch with this layout.
  // `what` they are is for messages. Throws Error(kBadData) unless `all` has as many as the model
  // reads.
  template <class T>
  std::span<const T> of(const std::vector<T>& all, Layout layout, const char* what) const {
    const std::int64_t begin = rows_before(first, layout), count = rows(layout);
    const std::int64_t needed = rows_before(batch.items, layout);
    if (std::ssize(all) != needed)
      throw Error(ExitCode::kBadData,
                  "a batch with " + std::to_string(all.size()) + " " + what + ", and the model " +
                      "reads " + std::to_string(needed) + " of " + std::to_string(batch.items) +
                      " items",
                  "the items must be those that the model was built for");
    return {all.data() + begin, static_cast<std::size_t>(count)};
  }
  // Rows of the items of the batch before `item`, and of these items.
  std::int64_t rows_before(std::int64_t item, Layout layout) const;
  std::int64_t rows(Layout layout) const {
    return rows_before(first + items, layout) - rows_before(first, layout);
  }
};

// An input of a model's graph, and its numbers for the items of a batch.
struct ModelInput {
  // Bytes of the input's element type, on the host. They hold until the next call.
  // Throws Error(kBadData) for items that the model cannot take.
  using Fill = std::function<std::span<const std::byte>(const BatchPart&)>;

  Value value;
  Fill fill;
};

class Model {
 public:
  explicit Model(DType dtype) : graph(dtype) {}

  // Adds an input to the graph.
  Value input(const std::string& name, const ValueSpec& spec, ModelInput::Fill fill);

  Graph graph;
  std::vector<ModelInput> inputs;
  Value weights{-1};  // input f32 [N, 1] of the items in the loss, which a batch may lack; or none
  Value labels{-1};   // input i32 [N, 1] of the classes to learn; or none
  Value hidden;       // output of the last block (bert, gpt); Graph::keep it to read it
  Value logits;       // [N, classes], [N, 1] of a regression, [P, vocabulary] of words
  // Statistics dtype, one row for each term of the loss: an item, or a masked position.
  // Saved tensor 0 is i32 of the same rows, 1 = right, if the model has an accuracy.
  Value loss;
  bool has_accuracy = true;

  // The items [first, first + items) of `batch` become the batch of the finished graph.
  // Unknown labels and absent targets become 0. Logits then mean something, losses do not.
  // Throws Error(kBadData) for tokens outside the vocabulary, and items longer than the positions.
  void load(Ops& ops, const Batch& batch, std::int64_t first, std::int64_t items);
  // How many terms the loss of these items has.
  std::int64_t loss_terms(const Batch& batch, std::int64_t first, std::int64_t items) const {
    return BatchPart{batch, first, items}.rows(graph.spec(loss).layout);
  }

 private:
  void load_weights(Ops& ops, const BatchPart& part);

  std::vector<std::int64_t> offsets_, masked_offsets_;  // of the items loaded
  std::vector<std::span<const std::byte>> numbers_;     // of the inputs
  std::vector<std::byte> padded_;
};

// As ModelKind::build says. The graph still has to be finished.
// Throws Error(kBadConfig) too for an input that no batch would fill.
// f64 is for checks of gradients: a Trainer and an Evaluator refuse it.
std::unique_ptr<Model> build_model(const ModelOptions& options,
                                   const std::vector<std::int64_t>& item_shape,
                                   std::int64_t classes, double label_smoothing,
                                   DType dtype = DType::kF32);

}  // namespace vcas
