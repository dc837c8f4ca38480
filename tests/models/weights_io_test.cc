#include "models/weights_io.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/files.h"
#include "core/safetensors.h"
#include "models/blocks.h"
#include "models/hf_files.h"
#include "models/hf_format.h"
#include "tests/core/temporary_folder.h"
#include "tests/support/catch.h"
#include "tests/support/check_error.h"

namespace fs = std::filesystem;
using namespace vcas;

namespace {

const fs::path kBert = fs::path(VCAS_SOURCE_DIR) / "tests/golden/hf/bert_classification";
const fs::path kMlm = fs::path(VCAS_SOURCE_DIR) / "tests/golden/hf/bert_mlm";
const fs::path kGpt = fs::path(VCAS_SOURCE_DIR) / "tests/golden/hf/gpt2";
const fs::path kUntied = fs::path(VCAS_SOURCE_DIR) / "tests/golden/hf/bert_mlm_untied";

// A copy of a golden file with its tensors changed.
void rewrite(const fs::path& from, const fs::path& to,
             const std::function<bool(StoredTensor&)>& keep) {
  const SafetensorsFile file(from);
  std::vector<StoredTensor> tensors;
  for (StoredTensor tensor : file.tensors())
    if (keep(tensor)) tensors.push_back(tensor);
  write_safetensors(to, tensors);
}

struct Loaded {
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Model> model;
  LoadReport report;

  Loaded(const ModelOptions& options, const fs::path& file, std::int64_t classes = 3,
         std::unique_ptr<Ops> device = make_ops("cpu"), DType dtype = DType::kF32)
      : ops(std::move(device)) {
    model = build_model(options, {}, classes, 0.0, dtype);
    model->graph.finish(*ops, {.max_items = 1, .max_tokens = 4, .max_masked = 4});
    model->graph.parameters().initialize(*ops, 1);
    report = load_hf_weights(file, options, *model, *ops);
  }
  std::vector<float> values() const {
    const Tensor& slab = model->graph.parameters().values();
    return {slab.ptr<float>(), slab.ptr<float>() + slab.elements()};
  }
};

ModelOptions with(ModelOptions options, const std::vector<std::string>& settings) {
  read_config(options, {.overrides = settings});
  return options;
}

// A model that says wrong things of its tensors in files.
struct Misnamed final : ModelKind, HfFormat {
  static inline std::function<void(std::vector<HfTensorShape>&)> change;

  void build(Model& model, const std::vector<std::int64_t>&, std::int64_t classes,
             double smoothing) const override {
    const Value x = add_values(model, {4}, model.graph.dtype());
    add_classifier(model, add_linear(model.graph, "hidden", 6, x), classes, smoothing);
  }
  HfFormat* hugging_face() override { return this; }
  std::vector<std::string> model_types() const override { return {}; }
  void read(const HfConfig&, HfModel&) override {}
  nlohmann::ordered_json write(const HfModel&) const override {
    return {{"model_type", "misnamed"}};
  }
  std::string architecture() const override { return "Misnamed"; }
  std::vector<std::string> architectures_without_classifier() const override { return {}; }
  std::string current_name(std::string name) const override { return name; }
  std::vector<HfTensorShape> tensors(const Parameter& parameter) const override {
    std::vector<HfTensorShape> tensors = HfFormat::tensors(parameter);
    if (parameter.name == "hidden.weight") change(tensors);
    return tensors;
  }
};
VCAS_REGISTER_PART(ModelKind, "misnamed", Misnamed);

ModelOptions bert_options() { return read_hf_config(kBert / "config.json").options; }

}  // namespace

TEST_CASE("old names of norms and names without a prefix are read", "[weights_io]") {
  TemporaryFolder folder;
  const auto replace = [](std::string& name, const std::string& old, const std::string& now) {
    if (const std::size_t at = name.find(old); at != std::string::npos)
      name.replace(at, old.size(), now);
  };
  const fs::path old_names = folder.path() / "old.safetensors";
  const fs::path bare = folder.path() / "bare.safetensors";
  rewrite(kBert / "model.safetensors", old_names, [&](StoredTensor& tensor) {
    replace(tensor.name, "LayerNorm.weight", "LayerNorm.gamma");
    replace(tensor.name, "LayerNorm.bias", "LayerNorm.beta");
    return true;
  });
  rewrite(kBert / "model.safetensors", bare, [&](StoredTensor& tensor) {
    replace(tensor.name, "bert.", "");
    return true;
  });
  const ModelOptions options = bert_options();
  const Loaded now(options, kBert / "model.safetensors");
  CHECK(now.report.text() == "loaded 57 tensors");
  for (const fs::path& file : {old_names, bare}) {
    const Loaded other(options, file);
    CHECK(other.report.text() == now.report.text());
    CHECK(other.values() == now.values());
  }
  const fs::path both = folder.path() / "both.safetensors";
  rewrite(kBert / "model.safetensors", both, [&](StoredTensor& tensor) {
    if (tensor.name.ends_with("pooler.dense.weight"))
      tensor.name = "bert.encoder.layer.0.output.LayerNorm.gamma";
    return true;
  });
  check_error([&] { Loaded(options, both); }, ExitCode::kBadData,
              "bert.encoder.layer.0.output.LayerNorm.weight are both "
              "bert.encoder.layer.0.output.LayerNorm.weight",
              "remove the one");
}

TEST_CASE("a GPT-2 has a prefix or none, and masks and equal copies say nothing", "[weights_io]") {
  TemporaryFolder folder;
  const ModelOptions options = read_hf_config(kGpt / "config.json").options;
  const Loaded now(options, kGpt / "model.safetensors");
  CHECK(now.report.text() == "loaded 28 tensors");
  for (const std::string prefix : {"transformer.", ""}) {
    const SafetensorsFile file(kGpt / "model.safetensors");
    const std::vector<float> zeros(60 * 16);
    const StoredTensor* const words = file.find("transformer.wte.weight");
    REQUIRE(words);
    const auto more = [&](const std::string& name, const std::vector<std::int64_t>& shape,
                          std::size_t count) {
      return StoredTensor{name, StoredType::kF32, shape,
                          std::as_bytes(std::span(zeros).first(count))};
    };
    std::vector<StoredTensor> tensors = {
        more(prefix + "h.0.attn.bias", {1, 1, 16, 16}, 256),
        more(prefix + "h.1.attn.bias", {1, 1, 16, 16}, 256),
        more(prefix + "h.0.attn.masked_bias", {}, 1),
        more("lm_head.weight", {60, 16}, 60 * 16),
    };
    for (StoredTensor tensor : file.tensors()) {
      tensor.name.replace(0, std::string("transformer.").size(), prefix);
      tensors.push_back(tensor);
    }
    const fs::path other = folder.path() / "other.safetensors";
    write_safetensors(other, tensors);
    check_error(
        [&] { Loaded(options, other); }, ExitCode::kBadConfig,
        "transformer.wte.weight of shape [60, 16] and lm_head.weight of shape [60, 16] differ",
        "remove the one that was not trained");
    // Equal up to the steps of bf16.
    std::vector<float> rounded(60 * 16);
    std::memcpy(rounded.data(), words->bytes.data(), words->bytes.size());
    for (float& value : rounded) value *= 1 + 1.0F / 512;
    for (StoredTensor& tensor : tensors)
      if (tensor.name == "lm_head.weight") tensor.bytes = std::as_bytes(std::span(rounded));
    write_safetensors(other, tensors);
    const Loaded loaded(options, other);
    CHECK(loaded.report.text() == now.report.text());
    CHECK(loaded.values() == now.values());
    // Where two share memory, safetensors' save_model keeps the first by name.
    std::erase_if(tensors, [](const StoredTensor& t) { return t.name.ends_with("wte.weight"); });
    for (StoredTensor& tensor : tensors)
      if (tensor.name == "lm_head.weight") tensor.bytes = words->bytes;
    write_safetensors(other, tensors);
    CHECK(Loaded(options, other).values() == now.values());
  }
}

TEST_CASE("weights that are not finite are refused", "[weights_io]") {
  TemporaryFolder folder;
  const fs::path file = folder.path() / "bad.safetensors";
  const double numbers[] = {std::nan(""), -std::numeric_limits<double>::infinity(), 1e39};
  for (const double number : numbers) {
    std::vector<double> values(60 * 16, 0.5);
    values[7] = number;
    rewrite(kGpt / "model.safetensors", file, [&](StoredTensor& tensor) {
      if (tensor.name != "transformer.wte.weight") return true;
      tensor = {tensor.name, StoredType::kF64, tensor.shape, std::as_bytes(std::span(values))};
      return true;
    });
    check_error([&] { Loaded(read_hf_config(kGpt / "config.json").options, file); },
                ExitCode::kBadData,
                fmt::format("bad.safetensors: transformer.wte.weight is {} at "
                            "element 7",
                            static_cast<float>(number)),
                "the file is damaged, or its training diverged");
  }
}

TEST_CASE("a classifier that was trained on a pooler is not one of means", "[weights_io]") {
  const ModelOptions means = with(bert_options(), {"pooling=mean"});
  check_error([&] { Loaded(means, kBert / "model.safetensors"); }, ExitCode::kBadConfig,
              "was trained with another head: they differ in bert.pooler.dense.bias, "
              "bert.pooler.dense.weight",
              "model.new_classifier=true starts a new classifier");
  CHECK(Loaded(with(means, {"new_classifier=true"}), kBert / "model.safetensors").report.missing ==
        std::vector<std::string>{"classifier.weight", "classifier.bias"});
}

TEST_CASE("a missing head starts anew, and what is left over is named", "[weights_io]") {
  const ModelOptions options =
      with(read_hf_config(kMlm / "config.json").options, {"head=classification"});
  const Loaded loaded(options, kMlm / "model.safetensors");
  CHECK(loaded.report.text() ==
        "loaded 37 tensors; new: bert.pooler.dense.weight, bert.pooler.dense.bias, "
        "classifier.weight, classifier.bias; unused: cls.predictions.bias, "
        "cls.predictions.transform.LayerNorm.bias, cls.predictions.transform.LayerNorm.weight, "
        "cls.predictions.transform.dense.bias, ... (5)");
}

TEST_CASE("an untied decoder has weights of its own, or starts anew", "[weights_io]") {
  const ModelOptions untied = read_hf_config(kUntied / "config.json").options;
  CHECK(to_json(untied)["tied_decoder"] == false);
  const Loaded both(untied, kUntied / "model.safetensors");
  CHECK(both.report.text() == "loaded 43 tensors");
  // Before transformers 5 tied and untied decoders had the bias under the same name.
  TemporaryFolder folder;
  const fs::path one_bias = folder.path() / "one.safetensors";
  rewrite(kUntied / "model.safetensors", one_bias, [](StoredTensor& tensor) {
    if (tensor.name == "cls.predictions.bias") return false;
    if (tensor.name == "cls.predictions.decoder.bias") tensor.name = "cls.predictions.bias";
    return true;
  });
  const Loaded one(untied, one_bias);
  CHECK(one.report.text() == "loaded 43 tensors");
  CHECK(one.values() == both.values());
  CHECK(Loaded(untied, kMlm / "model.safetensors").report.text() ==
        "loaded 42 tensors; new: cls.predictions.decoder.weight");

  const ModelOptions tied = with(untied, {"tied_decoder=true"});
  check_error([&] { Loaded(tied, kUntied / "model.safetensors"); }, ExitCode::kBadConfig,
              "cls.predictions.decoder.weight of shape [60, 16] differ, and the model has one "
              "table for both",
              "\"tie_word_embeddings\": false");
  // Nothing of it is read where words are not learned.
  CHECK_NOTHROW(Loaded(with(tied, {"head=classification"}), kUntied / "model.safetensors"));

  // A tied decoder has one bias, under either name.
  const fs::path renamed = folder.path() / "renamed.safetensors";
  rewrite(kMlm / "model.safetensors", renamed, [](StoredTensor& tensor) {
    if (tensor.name == "cls.predictions.bias") tensor.name = "cls.predictions.decoder.bias";
    return true;
  });
  const Loaded named(tied, kMlm / "model.safetensors"), again(tied, renamed);
  CHECK(again.report.text() == named.report.text());
  CHECK(again.values() == named.values());
  save_hf_model(folder.path() / "tied", {.options = tied}, *again.model, *again.ops);
  const SafetensorsFile written(folder.path() / "tied/model.safetensors");
  for (const StoredTensor& tensor : written.tensors())
    CHECK_FALSE(tensor.name.starts_with("cls.predictions.decoder."));
}

TEST_CASE("weights in several files are read by their index", "[weights_io]") {
  TemporaryFolder folder;
  const auto path = [&](const std::string& name) { return folder.path() / name; };
  nlohmann::json map;
  for (const bool first : {true, false}) {
    const std::string name =
        first ? "model-00001-of-00002.safetensors" : "model-00002-of-00002.safetensors";
    rewrite(kBert / "model.safetensors", path(name), [&](StoredTensor& tensor) {
      const bool here = (tensor.name < "bert.encoder") == first;
      if (here) map[tensor.name] = name;
      return here;
    });
  }
  const auto write_index = [&](const nlohmann::json& weight_map) {
    atomic_write(
        path("model.safetensors.index.json"),
        nlohmann::json{{"metadata", {{"total_size", 1}}}, {"weight_map", weight_map}}.dump());
  };
  write_index(map);
  atomic_write(path("config.json"), read_file(kBert / "config.json"));
  const fs::path index = find_hf_files(folder.path()).weights;
  CHECK(index == path("model.safetensors.index.json"));
  CHECK(find_hf_files(index).weights == index);
  const Loaded whole(bert_options(), kBert / "model.safetensors"), parts(bert_options(), index);
  CHECK(parts.report.text() == "loaded 57 tensors");
  CHECK(parts.values() == whole.values());

  const auto check = [&](const std::function<void(nlohmann::json&)>& change, ExitCode code,
                         const std::string& text, const std::string& hint) {
    nlohmann::json changed = map;
    change(changed);
    write_index(changed);
    check_error([&] { HfWeights weights(index); }, code, text, hint);
  };
  const std::string bias = "classifier.bias";
  check([&](nlohmann::json& names) { names.erase(bias); }, ExitCode::kBadData,
        "model-00002-of-00002.safetensors: tensor classifier.bias is here, and " + index.string() +
            " has it nowhere",
        "the files do not belong together");
  check([&](nlohmann::json& names) { names[bias] = "model-00001-of-00002.safetensors"; },
        ExitCode::kBadData,
        "tensor classifier.bias is here, and " + index.string() +
            " has it in model-00001-of-00002.safetensors",
        "the files do not belong together");
  check([&](nlohmann::json& names) { names["more"] = "model-00001-of-00002.safetensors"; },
        ExitCode::kBadData,
        "model-00001-of-00002.safetensors: tensor more is not here, and " + index.string() +
            " has it here",
        "the files do not belong together: copy or download them again");
  check([&](nlohmann::json& names) { names[bias] = "../model.safetensors"; }, ExitCode::kBadData,
        "\"../model.safetensors\" is no name of a file beside it", "");
  check([&](nlohmann::json& names) { names[bias] = 7; }, ExitCode::kBadData,
        "no weight_map from tensors to files", "");
  write_index(map);
  fs::remove(path("model-00002-of-00002.safetensors"));
  check_error([&] { HfWeights weights(index); }, ExitCode::kNoInput,
              "model-00002-of-00002.safetensors: no such file, and " + index.string() + " names it",
              "all are needed");
  atomic_write(index, "{}");
  check_error([&] { HfWeights weights(index); }, ExitCode::kBadData,
              "model.safetensors.index.json: no weight_map from tensors to files");
}

TEST_CASE("a classifier for another kind of task is refused", "[weights_io]") {
  TemporaryFolder folder;
  for (const char* name : {"config.json", "model.safetensors"})
    fs::copy(kBert / name, folder.path() / name);
  std::vector<std::string> asked = {"type=bert", "pretrained=" + folder.path().string()};
  const auto options_of = [&](const nlohmann::json& changes, const std::string& head) {
    nlohmann::json config = nlohmann::json::parse(read_file(kBert / "config.json"));
    config.update(changes);
    atomic_write(folder.path() / "config.json", config.dump());
    return hf_options(with(read_model_options(asked), {"head=" + head}));
  };
  const std::string file = (folder.path() / "config.json").string();
  for (const char* other : {"BertForTokenClassification", "BertForMultipleChoice"})
    check_error(
        [&] {
          options_of({{"architectures", {other}}}, "classification");
        },
        ExitCode::kBadConfig,
        file + ": \"architectures\" is \"" + other +
            "\", and only the classifier of BertForSequenceClassification is read",
        "model.new_classifier=true");
  check_error(
      [&] {
        options_of({{"problem_type", "multi_label_classification"}}, "classification");
      },
      ExitCode::kBadConfig,
      file +
          ": \"problem_type\" is \"multi_label_classification\", and model.head "
          "\"classification\" needs \"single_label_classification\"",
      "model.new_classifier=true");
  check_error(
      [&] {
        options_of({{"problem_type", "regression"}}, "classification");
      },
      ExitCode::kBadConfig, "\"problem_type\" is \"regression\"", "model.head=regression reads");
  check_error([&] { options_of(nlohmann::json::object(), "regression"); }, ExitCode::kBadConfig,
              "model.head \"regression\" needs \"regression\"");

  const auto reads = [&](const nlohmann::json& changes, const std::string& head) {
    return to_json(options_of(changes, head))["width"] == 24;
  };
  // What has no classifier is where one may start, and the head of masked words has nothing of it.
  for (const char* bare : {"BertModel", "BertForPreTraining", "BertForMaskedLM",
                           "BertForQuestionAnswering", "BertForNextSentencePrediction"})
    CHECK(reads({{"architectures", {bare}}}, "classification"));
  CHECK(reads({{"architectures", nullptr}, {"problem_type", nullptr}}, "regression"));
  CHECK(reads({{"architectures", {"BertForTokenClassification"}}}, "mlm"));
  asked.push_back("new_classifier=true");
  CHECK(reads({{"architectures", {"BertForTokenClassification"}}}, "classification"));
  CHECK(reads({{"problem_type", "multi_label_classification"}}, "classification"));

  const ModelOptions vit = read_model_options({"type=vit", "pretrained=" + folder.path().string()});
  nlohmann::json config = nlohmann::json::parse(
      read_file(fs::path(VCAS_SOURCE_DIR) / "tests/golden/hf/vit/config.json"));
  config["architectures"] = {"ViTForMultiLabelClassification"};
  atomic_write(folder.path() / "config.json", config.dump());
  check_error([&] { hf_options(vit); }, ExitCode::kBadConfig,
              "only the classifier of ViTForImageClassification is read");
}

TEST_CASE("a model in bf16 reads weights, rounded, and is exported as it was", "[weights_io]") {
  const ModelOptions options = bert_options();
  const fs::path file = kBert / "model.safetensors";
  const Loaded wide(options, file), narrow(options, file, 3, make_ops("emu"), DType::kBF16);
  std::int64_t wrong = 0;
  for (const Parameter& parameter : narrow.model->graph.parameters().list())
    for (std::int64_t i = 0; i < parameter.shape.elements(); ++i)
      wrong += parameter.value.ptr<bfloat16>()[i] != bfloat16(parameter.master.ptr<float>()[i]);
  CHECK(wrong == 0);
  TemporaryFolder folder;
  const HfModel description{.options = options};
  save_hf_model(folder.path() / "wide", description, *wide.model, *wide.ops);
  save_hf_model(folder.path() / "narrow", description, *narrow.model, *narrow.ops);
  CHECK(read_file(folder.path() / "narrow" / "model.safetensors") ==
        read_file(folder.path() / "wide" / "model.safetensors"));
}

TEST_CASE("a head of another shape is refused, a new classifier asked for", "[weights_io]") {
  ModelOptions options = bert_options();
  const fs::path file = kBert / "model.safetensors";
  check_error(
      [&] { Loaded(options, file, 2); }, ExitCode::kBadConfig,
      "classifier.weight has shape [3, 24] in " + file.string() + " but the model has [2, 24]",
      "the weights were trained for another task; model.new_classifier=true starts a new "
      "classifier");
  options.new_classifier = true;
  const Loaded loaded(options, kBert / "model.safetensors", 2);
  CHECK(loaded.report.text() == "loaded 55 tensors; new: classifier.weight, classifier.bias");
  const Loaded same(options, kBert / "model.safetensors", 3);
  CHECK(same.report.text() == loaded.report.text());
}

TEST_CASE("weights of another model are refused", "[weights_io]") {
  TemporaryFolder folder;
  const fs::path cut = folder.path() / "cut.safetensors";
  rewrite(kBert / "model.safetensors", cut, [&](StoredTensor& tensor) {
    return tensor.name.find("layer.1.intermediate") == std::string::npos;
  });
  ModelOptions options = bert_options();
  check_error([&] { Loaded(options, cut); }, ExitCode::kBadConfig,
              "lacks 2 of the model's 57 tensors: bert.encoder.layer.1.intermediate.dense.weight",
              "belongs to another model");
  // A new classifier is for heads alone.
  options = with(options, {"max_positions=12", "new_classifier=true"});
  const fs::path whole = kBert / "model.safetensors";
  check_error([&] { Loaded(options, whole); }, ExitCode::kBadConfig,
              "bert.embeddings.position_embeddings.weight has shape [16, 24] in " + whole.string() +
                  " but the model has [12, 24]",
              "the file belongs to another model than its config.json or model.* say");
}

TEST_CASE("tensors of integers are no weights", "[weights_io]") {
  TemporaryFolder folder;
  const fs::path bad = folder.path() / "bad.safetensors";
  rewrite(kBert / "model.safetensors", bad, [&](StoredTensor& tensor) {
    if (tensor.name == "classifier.bias") tensor.dtype = StoredType::kI32;
    return true;
  });
  check_error([&] { Loaded(bert_options(), bad); }, ExitCode::kBadData,
              "tensor classifier.bias: dtype I32 where floating point is needed");
}

TEST_CASE("the files of a model are found, or what is there instead is named", "[weights_io]") {
  CHECK(find_hf_files(kBert).weights == kBert / "model.safetensors");
  CHECK(find_hf_files(kBert / "model.safetensors").config == kBert / "config.json");
  TemporaryFolder folder;
  const auto name = [&](const char* file) { return (folder.path() / file).string(); };
  const std::string needed =
      "model.pretrained is a run, or a folder with config.json, model.safetensors and, of texts, "
      "vocab.txt, "
      "of images, preprocessor_config.json, as save_pretrained of transformers writes it; "
      "tools/get_data gets some, such as bert-base-uncased";
  check_error([&] { find_hf_files(folder.path()); }, ExitCode::kNoInput,
              name("model.safetensors") + ": no such file", needed);
  atomic_write(folder.path() / "pytorch_model.bin", "");
  check_error([&] { find_hf_files(folder.path()); }, ExitCode::kBadData,
              "pytorch_model.bin: pickled PyTorch weights are not read", "save_pretrained");
  check_error([&] { find_hf_files(folder.path() / "pytorch_model.bin"); }, ExitCode::kBadData,
              "pickled PyTorch weights");
  atomic_write(folder.path() / "model.safetensors", "");
  check_error([&] { find_hf_files(folder.path()); }, ExitCode::kNoInput,
              name("config.json") + ": no such file",
              "it belongs beside the weights and says how large the model is");
}

TEST_CASE("rows stacked of parts that do not divide them are refused", "[weights_io]") {
  TemporaryFolder folder;
  const fs::path file = folder.path() / "model.safetensors";
  const std::string self = "bert.encoder.layer.0.attention.self.";
  const std::vector<float> zeros(73 * 24);
  const ModelOptions options = bert_options();
  Loaded loaded(options, kBert / "model.safetensors");
  for (const auto& [rows, part, part_rows] :
       {std::tuple{73, "value", 25}, {71, "query", 23}, {69, "query", 23}}) {
    write_safetensors(file, {{self + "qkv.weight",
                              StoredType::kF32,
                              {rows, 24},
                              std::as_bytes(std::span(zeros).first(rows * 24))}});
    check_error([&] { load_own_weights(file, options, *loaded.model, *loaded.ops); },
                ExitCode::kBadConfig,
                fmt::format("{}{}.weight has shape [{}, 24] in {} but the model has [24, 24]", self,
                            part, part_rows, file.string()),
                "the file belongs to another model");
  }
}

TEST_CASE("tensors of a file are those of the parameter", "[weights_io][error]") {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "weights/model.safetensors";
  const auto ops = make_ops("cpu");
  const HfModel description{
      .options = read_model_options({"type=misnamed"}), .image_shape = {}, .labels = {}};
  const auto model = build_model(description.options, {4}, 3, 0);
  model->graph.finish(*ops, {.max_items = 1});
  model->graph.parameters().initialize(*ops, 1);
  Misnamed::change = [](auto&) {};
  save_hf_model(file.parent_path(), description, *model, *ops);
  load_hf_weights(file, description.options, *model, *ops);
  const std::vector<std::pair<std::function<void(std::vector<HfTensorShape>&)>, std::string>>
      faults = {{[](auto& t) { t.clear(); }, "weight: no tensors"},
                {[](auto& t) {
                   t[0].shape = {-6, -4};
                 },
                 "weight: hidden.weight of shape [-6, -4]"},
                {[](auto& t) {
                   t[0].shape = {3, 4};
                 },
                 "weight: hidden.weight of shape [3, 4]"},
                {[](auto& t) { t.push_back(t[0]); }, "weight: hidden.weight of shape [6, 4]"},
                {[](auto& t) { t[0].shape = {24}, t[0].transposed = true; },
                 "weight: hidden.weight of shape [24] cannot be transposed"},
                {[](auto& t) { t[0].name = "hidden.bias"; },
                 "bias: hidden.bias, which is another tensor too"}};
  for (const auto& fault : faults) {
    Misnamed::change = fault.first;
    const std::string text = "HfFormat::tensors of hidden." + fault.second;
    check_error([&] { save_hf_model(file.parent_path(), description, *model, *ops); },
                ExitCode::kBadConfig, text);
    check_error([&] { load_hf_weights(file, description.options, *model, *ops); },
                ExitCode::kBadConfig, text);
  }
  CHECK_THROWS_WITH(renamed({{"hidden", {}}}, {.name = "hidden.weight", .shape = {6, 4}}),
                    "HfFormat::names has nothing in place of \"hidden\"");
}

TEST_CASE("dropout is as config.json says, or that of transformers", "[weights_io]") {
  TemporaryFolder folder;
  const fs::path file = folder.path() / "config.json";
  const auto options_of = [&](const std::string& model, const std::string& more) {
    nlohmann::json config = nlohmann::json::parse(
        read_file(fs::path(VCAS_SOURCE_DIR) / "tests/golden/hf" / model / "config.json"));
    config.erase("hidden_dropout_prob");
    config.erase("attention_probs_dropout_prob");
    config.update(nlohmann::json::parse(more));
    atomic_write(file, config.dump());
    return read_hf_config(file).options;
  };
  const auto vit = to_json(options_of("vit", "{}"));
  CHECK(vit["dropout"] == 0);
  CHECK(vit["attention_dropout"] == 0);
  const auto given = to_json(
      options_of("vit", R"({"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2})"));
  CHECK(given["dropout"] == 0.3);
  CHECK(given["attention_dropout"] == 0.2);
  const auto bert = to_json(options_of("bert_classification", "{}"));
  CHECK(bert["dropout"] == 0.1);
  CHECK(bert["attention_dropout"] == 0.1);
  CHECK(bert["classifier_dropout"].is_null());
  const ModelOptions sure = options_of("bert_classification", R"({"classifier_dropout": 0.0})");
  CHECK(to_json(sure)["dropout"] == 0.1);
  CHECK(to_json(sure)["classifier_dropout"] == 0.0);

  // The classifier has its own.
  const auto nodes = [](const ModelOptions& options) {
    return build_model(options, {}, 3, 0.0)->logits.index;
  };
  CHECK(nodes(with(sure, {"classifier_dropout=null"})) == nodes(sure) + 1);
  const ModelOptions dropping = with(sure, {"classifier_dropout=0.3"});
  save_hf_model(folder.path() / "hf", {.options = dropping, .image_shape = {}, .labels = {}},
                *Loaded(dropping, kBert / "model.safetensors").model, *make_ops("cpu"));
  CHECK(to_json(read_hf_config(folder.path() / "hf/config.json").options)["classifier_dropout"] ==
        0.3);
}

TEST_CASE("what transformers has no class for is not exported", "[weights_io]") {
  TemporaryFolder folder;
  const HfModel description{
      .options = with(bert_options(), {"pooling=mean", "new_classifier=true"}),
      .image_shape = {},
      .labels = {}};
  const Loaded loaded(description.options, kBert / "model.safetensors");
  CHECK(loaded.report.unexpected.size() == 2);  // the pooler
  check_error([&] { save_hf_model(folder.path(), description, *loaded.model, *loaded.ops); },
              ExitCode::kBadConfig,
              "transformers has no class for a bert with model.pooling \"mean\"", "docs/models.md");
  const ModelOptions vit = read_model_options({"type=vit", "pooling=mean"});
  CHECK(hf_obstacle(vit, {3, 8, 8}).empty());
  CHECK(hf_obstacle(vit, {3, 8, 12}) ==
        "transformers has no class for images of 8 x 12 with model.pooling \"mean\"");
  CHECK(hf_obstacle(read_model_options({"type=mlp"}), {12}) ==
        "transformers has no class for model.type \"mlp\"");
}
