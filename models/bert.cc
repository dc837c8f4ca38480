// BERT (Devlin et al. 2019): post-norm blocks over embeddings of word, position and text.
// Names follow the Hugging Face BERT, with query, key and value as one linear layer.
// Where only the first row of an item is read ([CLS]), the last block computes less.
// It computes key and value of all rows, and everything else of that row alone.
#include <optional>

#include "models/blocks.h"
#include "models/hf_config.h"
#include "models/hf_format.h"
#include "models/text_inputs.h"

namespace vcas {

namespace {

constexpr double kBertEps = 1e-12;
constexpr const char* kBias = "cls.predictions.bias";
constexpr const char* kDecoderBias = "cls.predictions.decoder.bias";

const HfNames kBertNames = {
    {".self.qkv.", {".self.query.", ".self.key.", ".self.value."}},
    {".self.key_value.", {".self.key.", ".self.value."}},
    {kDecoderBias, {kBias}},
};

// The number of each item, 0 where the batch has none.
ModelInput::Fill targets() {
  return [zeros = std::vector<float>()](const BatchPart& part) mutable {
    zeros.resize(part.items);
    return std::as_bytes(part.batch.targets.empty()
                             ? std::span<const float>(zeros)
                             : part.of(part.batch.targets, Layout::items(1), "targets"));
  };
}

struct BertSettings : TransformerSettings {
  std::string pooling = "first";
  std::string head = "classification";
  std::int64_t max_positions = 512;
  std::int64_t type_vocabulary = 2;
  std::optional<double> classifier_dropout;
  std::int64_t vocabulary = 0;
  bool tied_decoder = true;

  void fields(Setting& v) {
    TransformerSettings::fields(v);
    v.field("pooling", pooling,
            "What the classifier reads: the mean, or the class token through the pooler. The last "
            "block then computes that row alone.",
            one_of({"first", "mean"}));
    v.field("head", head, "What is learned: a class of the item, a number, or masked words.",
            one_of({"classification", "regression", "mlm"}));
    v.field("max_positions", max_positions, "Most tokens of an item.", between(1, 1 << 24));
    v.field("type_vocabulary", type_vocabulary, "Kinds of text in an item.", between(1, 1 << 20));
    v.field("classifier_dropout", classifier_dropout,
            "Dropout before the classifier; null: as dropout.", dropout_range());
    v.field("vocabulary", vocabulary,
            "Rows of the table of words; 0: as many as the tokenizer has tokens.",
            between(0, 1 << 30));
    v.field("tied_decoder", tied_decoder,
            "Masked words are scored with the table of words; false: with weights of their own "
            "(head mlm).");
  }
};

class BertGraph {
 public:
  BertGraph(Model& model, const BertSettings& options)
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
    model_.has_accuracy = false;
    const Value wanted = model_.input("targets", {1, Layout::items(1), DType::kF32}, targets());
    model_.loss = graph_.add("loss", make_layer("squared_error"),
                             {model_.logits, wanted, add_weights(model_)});
  }

 private:
  Value linear(const std::string& name, std::int64_t width, Value x) {
    return add_linear(graph_, name, width, x, kTransformerStd);
  }
  Value exact_linear(const std::string& name, std::int64_t width, Value x) {
    return add_linear(graph_, name, width, x, kTransformerStd, false);
  }

  struct Embedded {
    Value words;  // the lookup of words alone, whose table the decoder shares
    Value rows;
  };

  Embedded embeddings() {
    const auto lookup = [&](const std::string& table, std::int64_t entries,
                            const std::string& input, const ModelInput::Fill& fill) {
      return add_lookup(model_, "bert.embeddings." + table, entries, options_.width, input, fill);
    };
    const auto sum = [&](const char* name, Value a, Value b) {
      return graph_.add(std::string("bert.embeddings.") + name, make_layer("add"), {a, b});
    };
    const Value words = lookup("word_embeddings", options_.vocabulary, "tokens",
                               token_ids(&Batch::tokens, options_.vocabulary, "token"));
    const Value types =
        lookup("token_type_embeddings", options_.type_vocabulary, "token_types",
               token_ids(&Batch::token_types, options_.type_vocabulary, "text type"));
    const Value places = lookup("position_embeddings", options_.max_positions, "positions",
                                token_positions(options_.max_positions));
    Value x = sum("with_position", sum("with_type", words, types), places);
    x = add_norm(graph_, "bert.embeddings.LayerNorm", x, options_.eps(kBertEps));
    x = add_dropout(graph_, "bert.embeddings.dropout", x, options_.dropout);
    return {words, x};
  }

  // Dropout of y, x + y, and the norm of it.
  Value residual(const std::string& name, Value x, Value y) {
    x = add_residual(graph_, name + ".residual", x, y, options_.dropout);
    return add_norm(graph_, name + ".LayerNorm", x, options_.eps(kBertEps));
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
    x = add_masked_rows(model_, "cls.predictions.rows", x);
    x = exact_linear("cls.predictions.transform.dense", options_.width, x);
    x = graph_.add("cls.predictions.transform.gelu", make_layer("gelu"), {x});
    x = add_norm(graph_, "cls.predictions.transform.LayerNorm", x, options_.eps(kBertEps));
    model_.logits = exact_linear("cls.predictions.decoder", options_.vocabulary, x);
    if (options_.tied_decoder) graph_.tie(model_.logits, words);
    add_word_loss(model_, options_.vocabulary, label_smoothing);
  }

  Model& model_;
  Graph& graph_;
  const BertSettings& options_;
};

class Bert final : public ModelKind, public HfFormat {
 public:
  void fields(Setting& v) { settings_.fields(v); }
  void validate(ConfigErrors& errors) const { settings_.validate(errors); }

  void build(Model& model, const std::vector<std::int64_t>& /*item_shape*/, std::int64_t classes,
             double label_smoothing) const override {
    if (settings_.vocabulary == 0)
      throw Error(ExitCode::kBadConfig, "model.type \"bert\" needs text, and the data holds none",
                  "set model.type to \"vit\" or \"mlp\"");
    BertGraph(model, settings_).build(classes, label_smoothing);
  }
  std::string head() const override { return settings_.head; }

  bool reads_text() const override { return true; }
  std::int64_t max_positions() const override { return settings_.max_positions; }
  std::int64_t type_vocabulary() const override { return settings_.type_vocabulary; }
  std::int64_t vocabulary() const override { return settings_.vocabulary; }
  void set_vocabulary(std::int64_t tokens) override { settings_.vocabulary = tokens; }

  HfFormat* hugging_face() override { return this; }
  std::vector<std::string> idle_settings() const override {
    if (settings_.tied_decoder || settings_.head == "mlm") return {};
    return {"model.tied_decoder has no effect: model.head is \"" + settings_.head + "\""};
  }
  void take_choices(const ModelKind& asked) override {
    const BertSettings& choices = static_cast<const Bert&>(asked).settings_;
    settings_.head = choices.head;
    settings_.pooling = choices.pooling;
  }

  std::vector<std::string> model_types() const override { return {"bert"}; }

  void read(const HfConfig& config, HfModel& model) override {
    read_transformer(config, settings_, 0.1, "attention_probs_dropout_prob", kBertEps);
    config.expect<std::string>("hidden_act", "gelu", "gelu");
    settings_.vocabulary = config.count("vocab_size");
    settings_.max_positions = config.count("max_position_embeddings");
    settings_.type_vocabulary = config.count("type_vocab_size");
    if (config.has("classifier_dropout"))
      settings_.classifier_dropout = read_number(config, "classifier_dropout", 0, dropout_range());
    config.expect<std::string>("position_embedding_type", "absolute", "absolute");
    config.expect("is_decoder", false, false);
    settings_.tied_decoder = config.get("tie_word_embeddings", true);
    if (model.architecture == "BertForMaskedLM" || model.architecture == "BertForPreTraining")
      settings_.head = "mlm";
    else if (model.problem_type == "regression" || model.labels.size() == 1)
      settings_.head = "regression";
  }

  nlohmann::ordered_json write(const HfModel& model) const override {
    nlohmann::ordered_json config = {{"model_type", "bert"}};
    config.update(
        transformer_sizes(settings_, settings_.eps(kBertEps), "attention_probs_dropout_prob"));
    config["vocab_size"] = settings_.vocabulary;
    config["max_position_embeddings"] = settings_.max_positions;
    config["type_vocab_size"] = settings_.type_vocabulary;
    config["pad_token_id"] = model.pad_token;
    config["tie_word_embeddings"] = settings_.tied_decoder;
    config["classifier_dropout"] = nullptr;
    if (settings_.classifier_dropout) config["classifier_dropout"] = *settings_.classifier_dropout;
    return config;
  }

  std::string architecture() const override {
    return settings_.head == "mlm" ? "BertForMaskedLM" : "BertForSequenceClassification";
  }
  std::vector<std::string> architectures_without_classifier() const override {
    return {"BertModel", "BertForPreTraining", "BertForMaskedLM", "BertForQuestionAnswering",
            "BertForNextSentencePrediction"};
  }

  std::string obstacle(const std::vector<std::int64_t>& /*image_shape*/) const override {
    if (settings_.head == "mlm" || settings_.pooling == "first") return "";
    return fmt::format("transformers has no class for a bert with model.pooling \"{}\"",
                       settings_.pooling);
  }

  bool names_padding() const override { return true; }
  HfNames names() const override { return kBertNames; }

  // Norms had other names once.
  std::string current_name(std::string name) const override {
    for (const auto& [old, now] : {std::pair{".gamma", ".weight"}, std::pair{".beta", ".bias"}})
      if (name.ends_with(std::string("LayerNorm") + old))
        name.replace(name.rfind('.'), std::string::npos, now);
    return with_prefix("bert.", {"embeddings.", "encoder.", "pooler."}, name);
  }

  HfTie tied_copy() const override {
    if (!settings_.tied_decoder) return {};
    return {"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"};
  }
  bool belongs_to_head(const std::string& name) const override {
    return ModelKind::belongs_to_head(name) || name.starts_with("cls.") ||
           name.starts_with("bert.pooler.");
  }
  // An untied decoder has a bias of its own since transformers 5, which reads no other then.
  std::map<std::string, std::string> copies() const override { return {{kBias, kDecoderBias}}; }
  bool writes_copies() const override { return !settings_.tied_decoder; }

 private:
  BertSettings settings_;
};

VCAS_REGISTER_PART(ModelKind, "bert", Bert);

}  // namespace

}  // namespace vcas
