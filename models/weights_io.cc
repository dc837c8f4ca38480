#include "models/weights_io.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/files.h"
#include "core/safetensors.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMostOfAnything = 1 << 24;
constexpr double kRescaleFactor = 1.0 / 255;

// A tensor of a file. Those of one parameter of ours lie one after another in it.
struct FilePart {
  std::string name;
  std::vector<std::int64_t> shape;
};

// What a part of our names is in files: several tensors where ours is their rows stacked.
const std::vector<std::pair<std::string, std::vector<std::string>>> kFileNames = {
    {".self.qkv.", {".self.query.", ".self.key.", ".self.value."}},
    {".self.key_value.", {".self.key.", ".self.value."}},
    {".attention.qkv.",
     {".attention.attention.query.", ".attention.attention.key.", ".attention.attention.value."}},
    {"cls.predictions.decoder.bias", {"cls.predictions.bias"}},
    {"vit.embeddings.projection.", {"vit.embeddings.patch_embeddings.projection."}},
};

std::vector<FilePart> file_parts(const ModelOptions& options, const Parameter& parameter) {
  std::vector<std::int64_t> shape;
  for (int axis = 0; axis < parameter.shape.rank(); ++axis) shape.push_back(parameter.shape[axis]);
  for (const auto& [ours, theirs] : kFileNames) {
    const std::size_t at = parameter.name.find(ours);
    if (at == std::string::npos) continue;
    std::vector<FilePart> parts;
    shape[0] /= std::ssize(theirs);
    for (const std::string& name : theirs)
      parts.push_back({std::string(parameter.name).replace(at, ours.size(), name), shape});
    if (parts[0].name.ends_with("projection.weight")) {  // a convolution: [D, C, patch, patch]
      const std::int64_t patch = options.patch;
      parts[0].shape = {shape[0], shape[1] / (patch * patch), patch, patch};
    }
    return parts;
  }
  if (parameter.name == "vit.embeddings.cls_token") shape = {1, 1, shape[0]};
  if (parameter.name == "vit.embeddings.position_embeddings") shape.insert(shape.begin(), 1);
  return {{parameter.name, shape}};
}

// The name that transformers writes today: a BERT's norms had other names, and a model that was
// saved without a head has no prefix.
std::string current_name(const std::string& type, std::string name) {
  if (type == "bert")
    for (const auto& [old, now] : {std::pair{".gamma", ".weight"}, std::pair{".beta", ".bias"}})
      if (name.ends_with(std::string("LayerNorm") + old))
        name.replace(name.rfind('.'), std::string::npos, now);
  for (const char* part : {"embeddings.", "encoder.", "pooler.", "layernorm."})
    if (name.starts_with(part)) return type + "." + name;
  return name;
}

// Numbers of rows, and second copies of tied tensors: nothing to load.
bool holds_nothing(const std::string& name) {
  return name.ends_with(".position_ids") || name.starts_with("cls.predictions.decoder.");
}

bool belongs_to_head(const std::string& name) {
  return name.starts_with("classifier.") || name.starts_with("cls.") ||
         name.starts_with("bert.pooler.");
}

std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 4;
  const auto end = names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kShown));
  return fmt::format("{}{}", fmt::join(names.begin(), end, ", "),
                     names.size() > kShown ? fmt::format(", ... ({})", names.size()) : "");
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// One configuration, with its file in messages.
class HfConfig {
 public:
  explicit HfConfig(const fs::path& file) : file_(file.string()) {
    try {
      json_ = Json::parse(read_file(file));
    } catch (const nlohmann::json::exception& e) {
      throw Error(ExitCode::kBadData, fmt::format("{}: {}", file_, e.what()));
    }
    if (!json_.is_object())
      throw Error(ExitCode::kBadData, fmt::format("{}: not a JSON object", file_));
  }

  template <class T>
  T get(const char* key) const {
    if (!has(key)) throw Error(ExitCode::kBadData, fmt::format("{}: lacks \"{}\"", file_, key));
    try {
      return json_.at(key).get<T>();
    } catch (const nlohmann::json::exception&) {
      throw Error(ExitCode::kBadData, fmt::format("{}: \"{}\" has the wrong type: {}", file_, key,
                                                  json_.at(key).dump()));
    }
  }
  template <class T>
  T get(const char* key, const T& otherwise) const {
    return has(key) ? get<T>(key) : otherwise;
  }
  std::int64_t count(const char* key) const { return checked(key, get<std::int64_t>(key)); }
  // Sizes beyond kMostOfAnything would overflow products of them.
  std::int64_t checked(const char* key, std::int64_t value) const {
    if (value < 1 || value > kMostOfAnything)
      throw Error(ExitCode::kBadData, fmt::format("{}: \"{}\" must be from 1 to {}, got {}", file_,
                                                  key, kMostOfAnything, value));
    return value;
  }
  // Throws unless the key is absent or holds the one value that our models have.
  template <class T>
  void expect(const char* key, const T& only) const {
    const T value = get<T>(key, only);
    if (value != only)
      throw Error(ExitCode::kBadConfig,
                  fmt::format("{}: \"{}\" is {}, and only {} is supported", file_, key,
                              Json(value).dump(), Json(only).dump()));
  }
  [[noreturn]] void fail_unsupported(const std::string& key, const std::string& supported) const {
    throw Error(ExitCode::kBadConfig, fmt::format("{}: \"{}\" is {}, and {} supported", file_, key,
                                                  json_.at(key).dump(), supported));
  }
  auto items() const { return json_.items(); }
  bool has(const char* key) const { return json_.contains(key) && !json_.at(key).is_null(); }
  const Json& at(const char* key) const { return json_.at(key); }
  const std::string& file() const { return file_; }

 private:
  std::string file_;
  Json json_;
};

std::vector<std::string> read_labels(const HfConfig& config) {
  std::vector<std::string> labels;
  if (!config.has("id2label")) return labels;
  const auto names = config.get<std::map<std::string, std::string>>("id2label");
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto name = names.find(std::to_string(i));
    if (name == names.end())
      throw Error(ExitCode::kBadData, fmt::format("{}: \"id2label\" has {} entries and none for {}",
                                                  config.file(), names.size(), i));
    labels.push_back(name->second);
  }
  return labels;
}

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

// {height, width} of an image; empty where the key says something else.
std::vector<std::int64_t> read_sides(const HfConfig& config, const char* key) {
  const Json& sides = config.at(key);
  if (sides.is_number()) return {config.count(key), config.count(key)};
  if (!sides.is_object() || sides.size() != 2 || !sides.contains("height") ||
      !sides.contains("width"))
    return {};
  const auto sizes = config.get<std::map<std::string, std::int64_t>>(key);
  return {config.checked(key, sizes.at("height")), config.checked(key, sizes.at("width"))};
}

// How images come to one size: transformers resizes them and then may cut the middle out.
void read_image_size(const HfConfig& config, HfImageProcessor& images) {
  const bool crop = config.get("do_center_crop", false);
  if (crop) {
    if (config.has("crop_size")) images.size = read_sides(config, "crop_size");
    if (images.size.empty())
      config.fail_unsupported(config.has("crop_size") ? "crop_size" : "do_center_crop",
                              "only a crop_size with a height and a width is");
  }
  if (!config.has("size")) return;
  const std::string type = config.get<std::string>("image_processor_type", "ViT");
  if (config.at("size").is_number() && !type.starts_with("ViT"))
    config.fail_unsupported("size", fmt::format("of {} only {{\"height\", \"width\"}} and "
                                                "{{\"shortest_edge\"}} are",
                                                type));
  const std::vector<std::int64_t> sides = read_sides(config, "size");
  images.squeeze = !sides.empty();
  if (images.squeeze && !crop) {
    images.size = sides;
  } else if (images.squeeze && sides[0] == sides[1]) {
    images.short_side = sides[0];
  } else if (crop && config.at("size").size() == 1 && config.at("size").contains("shortest_edge")) {
    const auto edges = config.get<std::map<std::string, std::int64_t>>("size");
    images.short_side = config.checked("size", edges.at("shortest_edge"));
  } else {
    config.fail_unsupported("size", crop ? "only a square or a shortest_edge is"
                                         : "without do_center_crop only a height and a width are");
  }
}

Json label_entries(const HfModel& description, std::int64_t classes) {
  VCAS_CHECK(description.labels.empty() || std::ssize(description.labels) == classes,
             std::to_string(description.labels.size()) + " names of " + std::to_string(classes) +
                 " classes");
  Json names = Json::object(), numbers = Json::object();
  for (std::int64_t i = 0; i < classes; ++i) {
    const std::string name = description.labels.empty()
                                 ? fmt::format("LABEL_{}", i)
                                 : description.labels[static_cast<std::size_t>(i)];
    names[std::to_string(i)] = name;
    numbers[name] = i;
  }
  return {{"id2label", names}, {"label2id", numbers}};
}

Json config_json(const HfModel& description, std::int64_t classes) {
  const ModelOptions& options = description.options;
  const bool bert = options.type == "bert", mlm = options.head == "mlm";
  Json config = {
      {"architectures",
       {!bert ? "ViTForImageClassification"
        : mlm ? "BertForMaskedLM"
              : "BertForSequenceClassification"}},
      {"model_type", options.type},
      {"hidden_size", options.width},
      {"num_hidden_layers", options.depth},
      {"num_attention_heads", options.heads},
      {"intermediate_size", options.inner_width()},
      {"hidden_act", "gelu"},
      {"hidden_dropout_prob", options.dropout},
      {"attention_probs_dropout_prob", options.attention_dropout},
      {"initializer_range", 0.02},
      {"layer_norm_eps", options.eps()},
  };
  if (bert) {
    config["vocab_size"] = options.vocabulary;
    config["max_position_embeddings"] = options.max_positions;
    config["type_vocab_size"] = options.type_vocabulary;
    config["pad_token_id"] = description.pad_token;
    config["classifier_dropout"] =
        options.classifier_dropout ? Json(*options.classifier_dropout) : Json();
  } else {
    const auto& shape = description.image_shape;
    config["num_channels"] = shape.at(0);
    config["image_size"] = shape.at(1) == shape.at(2) ? Json(shape[1]) : Json{shape[1], shape[2]};
    config["patch_size"] = options.patch;
    config["qkv_bias"] = true;
  }
  if (mlm) return config;
  config.update(label_entries(description, classes));
  config["problem_type"] =
      options.head == "regression" ? "regression" : "single_label_classification";
  return config;
}

}  // namespace

HfFiles find_hf_files(const fs::path& path) {
  const fs::path folder = fs::is_directory(path) ? path : path.parent_path();
  if (fs::exists(folder / "trainer_state.json"))
    throw Error(ExitCode::kBadConfig,
                fmt::format("{}: a checkpoint of vcas, and a Hugging Face folder is needed",
                            folder.string()),
                fmt::format("vcas export --model {} --to FOLDER makes one", folder.string()));
  const HfFiles files{folder.empty() ? "." : folder, folder / "config.json",
                      fs::is_directory(path) ? path / "model.safetensors" : path};
  const auto other_format = [](const fs::path& file, const char* what) {
    throw Error(ExitCode::kBadData, fmt::format("{}: {} are not read", file.string(), what),
                "load it in transformers and save it again: "
                "model.save_pretrained(FOLDER, max_shard_size=\"100GB\") writes model.safetensors");
  };
  if (files.weights.extension() == ".bin" || files.weights.extension() == ".pt")
    other_format(files.weights, "pickled PyTorch weights");
  if (!fs::exists(files.weights)) {
    if (fs::exists(folder / "pytorch_model.bin"))
      other_format(folder / "pytorch_model.bin", "pickled PyTorch weights");
    if (fs::exists(folder / "model.safetensors.index.json"))
      other_format(folder / "model.safetensors.index.json", "weights in several files");
    throw Error(ExitCode::kNoInput,
                fmt::format("{}: no such file{}", files.weights.string(),
                            fs::is_directory(path) ? "" : " or folder"),
                "model.pretrained is a folder with config.json, model.safetensors and, of texts, "
                "vocab.txt, of images, preprocessor_config.json, as save_pretrained of "
                "transformers writes it");
  }
  if (!fs::exists(files.config))
    throw Error(ExitCode::kNoInput, fmt::format("{}: no such file", files.config.string()),
                "it belongs beside the weights and says how large the model is");
  return files;
}

HfModel read_hf_config(const fs::path& file) {
  const HfConfig config(file);
  HfModel model;
  ModelOptions& options = model.options;
  options.type = config.get<std::string>("model_type");
  const bool bert = options.type == "bert";
  if (!bert && options.type != "vit")
    throw Error(ExitCode::kBadConfig,
                fmt::format("{}: \"model_type\" is \"{}\", and only bert and vit are supported",
                            config.file(), options.type));
  options.width = config.count("hidden_size");
  options.depth = config.count("num_hidden_layers");
  options.heads = config.count("num_attention_heads");
  options.ffn_ratio =
      static_cast<double>(config.count("intermediate_size")) / static_cast<double>(options.width);
  const double dropout = bert ? 0.1 : 0.0;  // BertConfig's and ViTConfig's
  options.dropout = config.get("hidden_dropout_prob", dropout);
  options.attention_dropout = config.get("attention_probs_dropout_prob", dropout);
  options.norm_eps = config.get("layer_norm_eps", 1e-12);
  config.expect<std::string>("hidden_act", "gelu");
  if (bert) {
    options.vocabulary = config.count("vocab_size");
    options.max_positions = config.count("max_position_embeddings");
    options.type_vocabulary = config.count("type_vocab_size");
    if (config.has("classifier_dropout"))
      options.classifier_dropout = config.get<double>("classifier_dropout");
    config.expect<std::string>("position_embedding_type", "absolute");
    config.expect("is_decoder", false);
  } else {
    model.image_shape = read_image_shape(config);
    options.patch = config.count("patch_size");
    config.expect("qkv_bias", true);
  }
  model.labels = read_labels(config);
  const auto classes = config.get("architectures", std::vector<std::string>{});
  const std::string architecture = classes.empty() ? "" : classes[0];
  if (architecture == "BertForMaskedLM" || architecture == "BertForPreTraining")
    options.head = "mlm";
  else if (config.get<std::string>("problem_type", "") == "regression" ||
           (bert && model.labels.size() == 1))
    options.head = "regression";
  return model;
}

std::optional<HfImageProcessor> read_hf_image_processor(const fs::path& folder) {
  const fs::path file = folder / kHfImageProcessorFile;
  if (!fs::exists(file)) return std::nullopt;
  const HfConfig config(file);
  for (const char* key : {"do_resize", "do_rescale", "do_normalize"}) config.expect(key, true);
  const std::set<std::string> steps = {"do_resize", "do_rescale", "do_normalize", "do_center_crop",
                                       "do_convert_rgb"};
  for (const auto& [key, value] : config.items())
    if (key.starts_with("do_") && value == true && !steps.contains(key))
      config.fail_unsupported(key, "only false is");
  if (config.has("crop_pct")) config.fail_unsupported("crop_pct", "only null is");
  const double factor = config.get("rescale_factor", kRescaleFactor);
  if (std::abs(factor - kRescaleFactor) > 1e-6)
    config.fail_unsupported("rescale_factor", "only 1/255 is");
  HfImageProcessor images{.mean = config.get("image_mean", std::vector<float>{}),
                          .std = config.get("image_std", std::vector<float>{}),
                          .resample = config.get("resample", HfImageProcessor{}.resample)};
  if (images.resample != 2 && images.resample != 3)
    config.fail_unsupported("resample", "only 2 (bilinear) and 3 (bicubic) are");
  read_image_size(config, images);
  return images;
}

std::string image_processor_text(const HfImageProcessor& images,
                                 const std::vector<std::int64_t>& shape) {
  const auto numbers = [](const std::vector<float>& values) {
    Json list = Json::array();  // a float's own few digits, not those of the double nearest to it
    for (const float value : values) list.push_back(std::stod(fmt::format("{}", value)));
    return list;
  };
  const Json size = {{"height", shape[1]}, {"width", shape[2]}};
  Json config = {{"image_processor_type", "ViTImageProcessor"},
                 {"do_resize", true},
                 {"size", size},
                 {"resample", images.resample},
                 {"do_rescale", true},
                 {"rescale_factor", kRescaleFactor},
                 {"do_normalize", true},
                 {"image_mean", numbers(images.mean)},
                 {"image_std", numbers(images.std)}};
  if (images.squeeze && images.short_side == 0) return config.dump(2) + "\n";
  // Before version 5 of transformers no ViTImageProcessor cuts the middle out.
  const std::int64_t side = images.short_side > 0 ? images.short_side : shape[1];
  config["image_processor_type"] = "BitImageProcessor";
  config["size"] =
      images.squeeze ? Json{{"height", side}, {"width", side}} : Json{{"shortest_edge", side}};
  config["do_center_crop"] = true;
  config["crop_size"] = size;
  return config.dump(2) + "\n";
}

ModelOptions pretrained_options(const ModelOptions& asked) {
  const HfFiles files = find_hf_files(asked.pretrained);
  ModelOptions options = read_hf_config(files.config).options;
  if (options.type != asked.type)
    throw Error(ExitCode::kBadConfig,
                fmt::format("model.type is \"{}\", but {} is a {}", asked.type,
                            files.config.string(), options.type),
                fmt::format("set model.type to \"{}\"", options.type));
  options.head = asked.head;
  options.pooling = asked.pooling;
  options.pretrained = asked.pretrained;
  options.new_classifier = asked.new_classifier;
  return options;
}

std::string LoadReport::text() const {
  std::string text = fmt::format("loaded {} tensors", loaded);
  if (!missing.empty()) text += "; new: " + some_of(missing);
  if (!unexpected.empty()) text += "; unused: " + some_of(unexpected);
  return text;
}

LoadReport load_hf_weights(const fs::path& path, const ModelOptions& options, Model& model,
                           Ops& ops) {
  const SafetensorsFile file(path);
  std::map<std::string, const StoredTensor*> stored;
  for (const StoredTensor& tensor : file.tensors())
    if (const std::string name = current_name(options.type, tensor.name); !holds_nothing(name))
      if (const auto [other, is_new] = stored.emplace(name, &tensor); !is_new)
        throw Error(ExitCode::kBadData,
                    fmt::format("{}: {} and {} are both {}", path.string(), other->second->name,
                                tensor.name, name),
                    "remove the one that was not trained");

  LoadReport report;
  std::vector<std::string> lacking;  // below the head
  std::set<std::string> used;
  std::size_t parts_in_model = 0;
  std::vector<std::pair<const Parameter*, std::vector<const StoredTensor*>>> wanted;
  for (const Parameter& parameter : model.graph.parameters().list()) {
    std::vector<const StoredTensor*> tensors;
    const std::vector<FilePart> parts = file_parts(options, parameter);
    for (const FilePart& part : parts) {
      ++parts_in_model;
      const bool head = belongs_to_head(part.name);
      const auto found = stored.find(part.name);
      if (found == stored.end()) {
        (head ? report.missing : lacking).push_back(part.name);
        continue;
      }
      used.insert(part.name);
      if (options.new_classifier && part.name.starts_with("classifier.")) {
        report.missing.push_back(part.name);
        continue;
      }
      if (found->second->shape == part.shape) {
        tensors.push_back(found->second);
        continue;
      }
      throw Error(
          ExitCode::kBadConfig,
          fmt::format("{} has shape {} in {} but the model has {}", part.name,
                      shape_text(found->second->shape), path.string(), shape_text(part.shape)),
          head ? "the weights were trained for another task; model.new_classifier=true starts a "
                 "new classifier"
               : "the file belongs to another model than its config.json or model.* say");
    }
    if (tensors.size() == parts.size()) wanted.emplace_back(&parameter, std::move(tensors));
  }
  for (const auto& [name, tensor] : stored)
    if (!used.contains(name)) report.unexpected.push_back(name);
  if (!lacking.empty())
    throw Error(ExitCode::kBadConfig,
                fmt::format("{} lacks {} of the model's {} tensors: {}", path.string(),
                            lacking.size(), parts_in_model, some_of(lacking)),
                "the file belongs to another model");

  for (const auto& [parameter, tensors] : wanted) {
    std::vector<float> values;
    for (const StoredTensor* tensor : tensors) {
      const std::vector<float> part = file.read_floats(*tensor);
      values.insert(values.end(), part.begin(), part.end());
    }
    report.loaded += tensors.size();
    if (parameter->master.dtype == DType::kF64) {
      const std::vector<double> wide(values.begin(), values.end());
      ops.copy_to_device(parameter->master.data, wide.data(), parameter->master.bytes());
    } else {
      ops.copy_to_device(parameter->master.data, values.data(), parameter->master.bytes());
    }
  }
  model.graph.parameters().round_values(ops);
  return report;
}

void save_hf_model(const fs::path& folder, const HfModel& description, const Model& model,
                   Ops& ops) {
  const ModelOptions& options = description.options;
  if (options.type == "mlp" || (options.head != "mlm" && options.pooling != "first"))
    throw Error(ExitCode::kBadConfig,
                options.type == "mlp"
                    ? "transformers has no class for model.type \"mlp\""
                    : "transformers has no class for model.pooling \"" + options.pooling + "\"",
                "vit and bert with model.pooling \"first\" can be exported");
  std::vector<std::vector<std::byte>> host;
  std::vector<StoredTensor> tensors;
  for (const Parameter& parameter : model.graph.parameters().list()) {
    VCAS_CHECK(parameter.master.dtype == DType::kF32, "an export holds f32");
    std::vector<std::byte>& bytes = host.emplace_back(parameter.master.bytes());
    ops.copy_to_host(bytes.data(), parameter.master.data, bytes.size());
    const std::vector<FilePart> parts = file_parts(options, parameter);
    const std::size_t size = bytes.size() / parts.size();
    for (std::size_t i = 0; i < parts.size(); ++i)
      tensors.push_back({parts[i].name, StoredType::kF32, parts[i].shape,
                         std::span(bytes).subspan(i * size, size)});
  }
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw Error(ExitCode::kCannotCreate,
                fmt::format("{}: cannot create: {}", folder.string(), error.message()));
  write_safetensors(folder / "model.safetensors", std::move(tensors));
  const std::int64_t classes = model.graph.spec(model.logits).width;
  atomic_write(folder / "config.json", config_json(description, classes).dump(2) + "\n");
}

}  // namespace vcas
