// BERT (Devlin et al. 2019): post-norm blocks over embeddings of word, position and text. Names
// follow the Hugging Face BERT, with query, key and value as one linear layer. Where only the first
// row of an item is read ([CLS]), the last block computes key and value of all rows and everything
// else of that row alone.
#include "models/blocks.h"

namespace vcas {

namespace {

constexpr double kInitStd = 0.02;

class Bert {
 public:
  Bert(Model& model, const ModelOptions& options)
      : model_(model), graph_(model.graph), options_(options) {}

  void build(std::int64_t classes, double label_smoothing) {
    const bool mlm = options_.head == "mlm", first = !mlm && options_.pooling == "first";
    auto [words, x] = embeddings();
    for (std::int64_t i = 0; i < options_.depth; ++i) {
      x = block("bert.encoder.layer." + std::to_string(i), x, first && i + 1 == options_.depth);
      graph_.gate(x);
    }
    model_.hidden = x;
    if (mlm) return masked_words(words, x, label_smoothing);
    if (first) {
      x = exact_linear("bert.pooler.dense", options_.width, x);
      x = graph_.add("bert.pooler.tanh", make_layer("tanh"), {x});
    } else {
      x = graph_.add("bert.pool", make_layer("pool", {{"pooling", options_.pooling}}), {x});
    }
    x = add_dropout(graph_, "dropout", x, options_.classifier_dropout.value_or(options_.dropout));
    if (options_.head == "classification")
      return add_classifier(model_, x, classes, label_smoothing);
    model_.logits = exact_linear("classifier", 1, x);
    model_.targets = graph_.input("targets", {1, 1, DType::kF32});
    model_.loss = graph_.add("loss", make_layer("squared_error"), {model_.logits, model_.targets});
  }

 private:
  Value linear(const std::string& name, std::int64_t width, Value x) {
    return add_linear(graph_, name, width, x, kInitStd);
  }
  Value exact_linear(const std::string& name, std::int64_t width, Value x) {
    return add_linear(graph_, name, width, x, kInitStd, false);
  }

  struct Embedded {
    Value words;  // the lookup of words alone, whose table the decoder shares
    Value rows;
  };

  Embedded embeddings() {
    const auto lookup = [&](const char* table, std::int64_t entries, Value& index,
                            const char* input) {
      index = graph_.input(input, {1, kTokens, DType::kI32});
      return graph_.add(
          std::string("bert.embeddings.") + table,
          make_layer("embedding",
                     {{"vocabulary", entries}, {"width", options_.width}, {"init_std", kInitStd}}),
          {index});
    };
    const auto sum = [&](const char* name, Value a, Value b) {
      return graph_.add(std::string("bert.embeddings.") + name, make_layer("add"), {a, b});
    };
    const Value words = lookup("word_embeddings", options_.vocabulary, model_.tokens, "tokens");
    const Value types = lookup("token_type_embeddings", options_.type_vocabulary,
                               model_.token_types, "token_types");
    const Value positions =
        lookup("position_embeddings", options_.max_positions, model_.positions, "positions");
    Value x = sum("with_position", sum("with_type", words, types), positions);
    x = add_norm(graph_, "bert.embeddings.LayerNorm", x, options_.eps());
    x = add_dropout(graph_, "bert.embeddings.dropout", x, options_.dropout);
    return {words, x};
  }

  // Dropout of y, x + y, and the norm of it.
  Value residual(const std::string& name, Value x, Value y) {
    x = add_residual(graph_, name + ".residual", x, y, options_.dropout);
    return add_norm(graph_, name + ".LayerNorm", x, options_.eps());
  }

  // With `first` only the first row of each item goes on.
  Value block(const std::string& name, Value x, bool first) {
    const std::string self = name + ".attention.self";
    const std::int64_t width = options_.width;
    std::vector<Value> inputs;
    if (first) {
      // In this order backward writes the gradient of all rows (pool), then adds to it (key_value).
      const Value key_value = linear(self + ".key_value", 2 * width, x);
      x = graph_.add(name + ".first", make_layer("pool", {{"pooling", "first"}}), {x});
      inputs = {linear(self + ".query", width, x), key_value};
    } else {
      inputs = {linear(self + ".qkv", 3 * width, x)};
    }
    Value y = graph_.add(self,
                         make_layer("attention", {{"heads", options_.heads},
                                                  {"dropout", options_.attention_dropout}}),
                         inputs);
    y = linear(name + ".attention.output.dense", width, y);
    x = residual(name + ".attention.output", x, y);
    y = linear(name + ".intermediate.dense", options_.inner_width(), x);
    y = graph_.add(name + ".intermediate.gelu", make_layer("gelu"), {y});
    y = linear(name + ".output.dense", width, y);
    return residual(name + ".output", x, y);
  }

  void masked_words(Value words, Value x, double label_smoothing) {
    model_.masked_rows = graph_.input("masked_rows", {1, kMasked, DType::kI32});
    x = graph_.add("cls.predictions.rows", make_layer("select_rows"), {x, model_.masked_rows});
    x = exact_linear("cls.predictions.transform.dense", options_.width, x);
    x = graph_.add("cls.predictions.transform.gelu", make_layer("gelu"), {x});
    x = add_norm(graph_, "cls.predictions.transform.LayerNorm", x, options_.eps());
    model_.logits = exact_linear("cls.predictions.decoder", options_.vocabulary, x);
    if (options_.tied_decoder) graph_.tie(model_.logits, words);
    add_cross_entropy(model_, label_smoothing);
  }

  Model& model_;
  Graph& graph_;
  const ModelOptions& options_;
};

}  // namespace

void build_bert(Model& model, const ModelOptions& options, std::int64_t classes,
                double label_smoothing) {
  if (options.vocabulary == 0)
    throw Error(ExitCode::kBadConfig, "model.type \"bert\" needs text, and the data holds none",
                "set model.type to \"vit\" or \"mlp\"");
  model.vocabulary = options.vocabulary;
  model.type_vocabulary = options.type_vocabulary;
  model.max_positions = options.max_positions;
  Bert(model, options).build(classes, label_smoothing);
}

}  // namespace vcas
