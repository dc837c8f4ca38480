// GPT-2 (Radford et al. 2019): learned positions, pre-norm blocks of causal attention, words scored
// with the table of words. Names follow the Hugging Face GPT-2.
#include "models/blocks.h"
#include "models/hf_config.h"
#include "models/hf_format.h"
#include "models/text_inputs.h"

namespace vcas {

namespace {

using Json = nlohmann::ordered_json;

// Our layers, and the activation_function of Hugging Face.
constexpr std::pair<const char*, const char*> kActivations[] = {
    {"gelu", "gelu"}, {"gelu_tanh", "gelu_new"}, {"gelu_tanh", "gelu_pytorch_tanh"}};

constexpr double kGptEps = 1e-5;

struct GptSettings : TransformerSettings {
  std::string activation = "gelu";
  std::int64_t max_positions = 1024;
  std::int64_t vocabulary = 0;

  void fields(Setting& v) {
    TransformerSettings::fields(v);
    v.field("activation", activation, "In feed-forwards; gelu_tanh is that of OpenAI's weights.",
            one_of({"gelu", "gelu_tanh"}));
    v.field("max_positions", max_positions, "Most tokens of an item.", between(1, 1 << 24));
    v.field("vocabulary", vocabulary,
            "Rows of the table of words; 0: as many as the tokenizer has tokens.",
            between(0, 1 << 30));
  }
};

class Gpt final : public ModelKind, public HfFormat {
 public:
  void fields(Setting& v) { settings_.fields(v); }
  void validate(ConfigErrors& errors) const { settings_.validate(errors); }

  void build(Model& model, const std::vector<std::int64_t>& /*item_shape*/,
             std::int64_t /*classes*/, double label_smoothing) const override {
    if (settings_.vocabulary == 0)
      throw Error(ExitCode::kBadConfig, "model.type \"gpt\" needs text, and the data holds none",
                  "set model.type to \"vit\" or \"mlp\"");
    Graph& graph = model.graph;
    const std::int64_t width = settings_.width;
    const Value words = add_lookup(model, "transformer.wte", settings_.vocabulary, width, "tokens",
                                   token_ids(&Batch::tokens, settings_.vocabulary, "token"));
    const Value places = add_lookup(model, "transformer.wpe", settings_.max_positions, width,
                                    "positions", token_positions(settings_.max_positions));
    Value x = graph.add("transformer.embeddings", make_layer("add"), {words, places});
    x = add_dropout(graph, "transformer.drop", x, settings_.dropout);
    const PreNormBlock block{.norm = ".ln_1",
                             .qkv = ".attn.c_attn",
                             .attention = ".attn",
                             .projection = ".attn.c_proj",
                             .residual = ".attn.residual",
                             .inner_norm = ".ln_2",
                             .inner = ".mlp.c_fc",
                             .activation = ".mlp.act",
                             .outer = ".mlp.c_proj",
                             .inner_residual = ".residual",
                             .activation_layer = settings_.activation.c_str(),
                             .causal = true,
                             .eps = settings_.eps(kGptEps),
                             .init_std = kTransformerStd};
    for (std::int64_t i = 0; i < settings_.depth; ++i) {
      x = add_pre_norm_block(graph, block, settings_, "transformer.h." + std::to_string(i), x);
      graph.gate(x);
    }
    model.hidden = x;
    x = add_masked_rows(model, "transformer.rows", x);
    x = add_norm(graph, "transformer.ln_f", x, settings_.eps(kGptEps));
    model.logits = graph.add(
        "lm_head",
        make_layer("linear",
                   {{"width", settings_.vocabulary}, {"bias", false}, {"sampled", false}}),
        {x});
    graph.tie(model.logits, words);
    add_word_loss(model, settings_.vocabulary, label_smoothing);
  }
  std::string head() const override { return "lm"; }

  bool reads_text() const override { return true; }
  std::int64_t max_positions() const override { return settings_.max_positions; }
  std::int64_t type_vocabulary() const override { return 1; }
  std::int64_t vocabulary() const override { return settings_.vocabulary; }
  void set_vocabulary(std::int64_t tokens) override { settings_.vocabulary = tokens; }

  HfFormat* hugging_face() override { return this; }

  std::vector<std::string> model_types() const override { return {"gpt2"}; }

  void read(const HfConfig& config, HfModel& /*model*/) override {
    settings_.width = config.count("n_embd");
    settings_.depth = config.count("n_layer");
    settings_.heads = read_heads(config, "n_head", "n_embd");
    settings_.max_positions = config.count("n_positions");
    settings_.vocabulary = config.count("vocab_size");
    settings_.ffn_ratio = config.has("n_inner") ? static_cast<double>(config.count("n_inner")) /
                                                      static_cast<double>(settings_.width)
                                                : 4;
    settings_.norm_eps = read_eps(config, "layer_norm_epsilon", kGptEps);
    settings_.dropout = read_number(config, "resid_pdrop", 0.1, dropout_range());
    const double embedding = read_number(config, "embd_pdrop", 0.1, dropout_range());
    if (embedding != settings_.dropout)
      throw Error(
          ExitCode::kBadConfig,
          fmt::format("{}: \"embd_pdrop\" is {} and \"resid_pdrop\" is {}, and the model has "
                      "one dropout for both",
                      config.file(), embedding, settings_.dropout),
          "give both one number there; evaluations have no dropout");
    settings_.attention_dropout = read_number(config, "attn_pdrop", 0.1, dropout_range());
    const auto wanted = config.get<std::string>("activation_function", "gelu_new");
    const auto* found = std::ranges::find(kActivations, wanted, [](auto& a) { return a.second; });
    if (found == std::end(kActivations))
      config.fail_unsupported("activation_function",
                              "only gelu, gelu_new and gelu_pytorch_tanh are");
    settings_.activation = found->first;
    config.expect("scale_attn_weights", true, true);
    config.expect("scale_attn_by_inverse_layer_idx", false, false);
    config.expect("reorder_and_upcast_attn", false, false);
    config.expect("add_cross_attention", false, false);
    config.expect("tie_word_embeddings", true, true);
  }

  Json write(const HfModel& model) const override {
    const auto* activation =
        std::ranges::find(kActivations, settings_.activation, [](auto& a) { return a.first; });
    return {{"model_type", "gpt2"},
            {"n_embd", settings_.width},
            {"n_layer", settings_.depth},
            {"n_head", settings_.heads},
            {"n_inner", settings_.inner_width()},
            {"n_positions", settings_.max_positions},
            {"vocab_size", settings_.vocabulary},
            {"activation_function", activation->second},
            {"layer_norm_epsilon", settings_.eps(kGptEps)},
            {"resid_pdrop", settings_.dropout},
            {"embd_pdrop", settings_.dropout},
            {"attn_pdrop", settings_.attention_dropout},
            {"initializer_range", kTransformerStd},
            {"bos_token_id", model.separator},
            {"eos_token_id", model.separator},
            {"tie_word_embeddings", true}};
  }

  std::string architecture() const override { return "GPT2LMHeadModel"; }
  std::vector<std::string> architectures_without_classifier() const override {
    return {"GPT2Model", "GPT2LMHeadModel"};
  }

  // Conv1D, the linear layer of GPT-2 there, has the inputs first.
  std::vector<HfTensorShape> tensors(const Parameter& parameter) const override {
    HfTensorShape tensor = own_shape(parameter);
    if (tensor.name.find(".c_") != std::string::npos && tensor.shape.size() == 2) {
      std::swap(tensor.shape[0], tensor.shape[1]);
      tensor.transposed = true;
    }
    return {tensor};
  }

  std::string current_name(std::string name) const override {
    return with_prefix("transformer.", {"wte.", "wpe.", "h.", "ln_f."}, name);
  }

  // Masks of causal attention.
  bool holds_nothing(const std::string& name) const override {
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
  }
  HfTie tied_copy() const override { return {"lm_head.weight", "transformer.wte.weight"}; }

 private:
  GptSettings settings_;
};

VCAS_REGISTER_PART(ModelKind, "gpt", Gpt);

}  // namespace

}  // namespace vcas
