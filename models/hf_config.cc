#include "models/hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/files.h"
#include "models/hf_files.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMostOfAnything = 1 << 24;
constexpr double kRescaleFactor = 1.0 / 255;

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
  // Throws unless the key, or what stands for an absent one, has the one value that our models
  // have.
  template <class T>
  void expect(const char* key, const T& only, const T& otherwise) const {
    const T value = get<T>(key, otherwise);
    if (value != only)
      throw Error(ExitCode::kBadConfig,
                  fmt::format("{}: \"{}\" is {}, and only {} is supported", file_, key,
                              Json(value).dump(), Json(only).dump()));
  }
  template <class T>
  void expect(const char* key, const T& only) const {
    expect(key, only, only);
  }
  [[noreturn]] void fail_unsupported(const std::string& key, const std::string& supported) const {
    throw Error(ExitCode::kBadConfig, fmt::format("{}: \"{}\" is {}, and {} supported", file_, key,
                                                  json_.at(key).dump(), supported));
  }
  auto items() const { return json_.items(); }
  // The object under that key.
  HfConfig part(const char* key) const {
    HfConfig part = *this;
    part.json_ = get<Json>(key);
    if (!part.json_.is_object())
      throw Error(ExitCode::kBadData, fmt::format("{}: \"{}\" is no object", file_, key));
    return part;
  }
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

// The class of transformers that a model is.
std::string architecture(const ModelOptions& options) {
  if (options.is_siglip()) return "SiglipForImageClassification";
  if (options.type == "vit") return "ViTForImageClassification";
  return options.head == "mlm" ? "BertForMaskedLM" : "BertForSequenceClassification";
}

std::string problem_type(const std::string& head) {
  return head == "regression" ? "regression" : "single_label_classification";
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

// Throws unless the classifier, if there is one, is for whole items and for this head: others have
// the same names, and some the same shapes.
void check_classifier(const HfModel& model, const std::string& head, const std::string& file) {
  constexpr const char* kWithoutClassifier[] = {"BertModel",
                                                "BertForPreTraining",
                                                "BertForMaskedLM",
                                                "BertForQuestionAnswering",
                                                "BertForNextSentencePrediction",
                                                "ViTModel",
                                                "ViTForMaskedImageModeling",
                                                "SiglipVisionModel"};
  if (std::ranges::count(kWithoutClassifier, model.architecture) > 0) return;
  const char* hint = "model.new_classifier=true starts a new classifier over its blocks";
  ModelOptions wanted_model = model.options;
  wanted_model.head = head;
  const std::string ours = architecture(wanted_model);
  if (!model.architecture.empty() && model.architecture != ours)
    throw Error(
        ExitCode::kBadConfig,
        fmt::format("{}: \"architectures\" is \"{}\", and only the classifier of {} is read", file,
                    model.architecture, ours),
        hint);
  const std::string wanted = problem_type(head);
  if (!model.problem_type.empty() && model.problem_type != wanted)
    throw Error(ExitCode::kBadConfig,
                fmt::format("{}: \"problem_type\" is \"{}\", and model.head \"{}\" needs \"{}\"",
                            file, model.problem_type, head, wanted),
                hint);
}

}  // namespace

HfModel read_hf_config(const fs::path& file) {
  const HfConfig whole(file);
  HfModel model;
  ModelOptions& options = model.options;
  options.type = whole.get<std::string>("model_type");
  const bool bert = options.type == "bert", siglip = options.type == "siglip";
  if (!bert && !siglip && options.type != "vit")
    throw Error(ExitCode::kBadConfig,
                fmt::format("{}: \"model_type\" is \"{}\", and only bert, vit and siglip are "
                            "supported",
                            whole.file(), options.type));
  const HfConfig config = siglip ? whole.part("vision_config") : whole;
  if (siglip) {
    options.type = "vit";
    options.pooling = "mean";
  }
  options.width = config.count("hidden_size");
  options.depth = config.count("num_hidden_layers");
  options.heads = config.count("num_attention_heads");
  options.ffn_ratio =
      static_cast<double>(config.count("intermediate_size")) / static_cast<double>(options.width);
  const double dropout = bert ? 0.1 : 0.0;  // BertConfig's and ViTConfig's
  options.dropout = config.get("hidden_dropout_prob", dropout);
  options.attention_dropout =
      config.get(siglip ? "attention_dropout" : "attention_probs_dropout_prob", dropout);
  options.norm_eps = config.get("layer_norm_eps", siglip ? 1e-6 : 1e-12);
  config.expect<std::string>("hidden_act", "gelu", siglip ? "gelu_pytorch_tanh" : "gelu");
  if (bert) {
    options.vocabulary = config.count("vocab_size");
    options.max_positions = config.count("max_position_embeddings");
    options.type_vocabulary = config.count("type_vocab_size");
    if (config.has("classifier_dropout"))
      options.classifier_dropout = config.get<double>("classifier_dropout");
    config.expect<std::string>("position_embedding_type", "absolute");
    config.expect("is_decoder", false);
    options.tied_decoder = config.get("tie_word_embeddings", true);
  } else {
    model.image_shape = read_image_shape(config);
    options.patch = config.count("patch_size");
    config.expect(siglip ? "vision_use_head" : "qkv_bias", !siglip, true);
  }
  model.labels = read_labels(whole);
  model.problem_type = whole.get<std::string>("problem_type", "");
  if (const auto classes = whole.get("architectures", std::vector<std::string>{}); !classes.empty())
    model.architecture = classes[0];
  if (model.architecture == "BertForMaskedLM" || model.architecture == "BertForPreTraining")
    options.head = "mlm";
  else if (model.problem_type == "regression" || (bert && model.labels.size() == 1))
    options.head = "regression";
  return model;
}

std::string hf_config_text(const HfModel& description, std::int64_t classes) {
  const ModelOptions& options = description.options;
  const bool bert = options.type == "bert", siglip = options.is_siglip();
  Json sizes = {
      {"model_type", siglip ? "siglip_vision_model" : options.type},
      {"hidden_size", options.width},
      {"num_hidden_layers", options.depth},
      {"num_attention_heads", options.heads},
      {"intermediate_size", options.inner_width()},
      {"hidden_act", "gelu"},
      {"hidden_dropout_prob", options.dropout},
      {siglip ? "attention_dropout" : "attention_probs_dropout_prob", options.attention_dropout},
      {"initializer_range", 0.02},
      {"layer_norm_eps", options.eps()},
  };
  if (bert) {
    sizes["vocab_size"] = options.vocabulary;
    sizes["max_position_embeddings"] = options.max_positions;
    sizes["type_vocab_size"] = options.type_vocabulary;
    sizes["pad_token_id"] = description.pad_token;
    sizes["tie_word_embeddings"] = options.tied_decoder;
    sizes["classifier_dropout"] =
        options.classifier_dropout ? Json(*options.classifier_dropout) : Json();
  } else {
    const auto& shape = description.image_shape;
    sizes["num_channels"] = shape.at(0);
    sizes["image_size"] = shape.at(1) == shape.at(2) ? Json(shape[1]) : Json{shape[1], shape[2]};
    sizes["patch_size"] = options.patch;
    sizes[siglip ? "vision_use_head" : "qkv_bias"] = !siglip;
  }
  Json config = {{"architectures", {architecture(options)}}};
  if (siglip)
    config.update({{"model_type", "siglip"}, {"vision_config", sizes}});
  else
    config.update(sizes);
  if (options.head != "mlm") {
    config.update(label_entries(description, classes));
    config["problem_type"] = problem_type(options.head);
  }
  return config.dump(2) + "\n";
}

std::string hf_obstacle(const ModelOptions& options, const std::vector<std::int64_t>& image_shape) {
  if (options.type == "mlp") return "transformers has no class for model.type \"mlp\"";
  if (options.type == "bert" && options.head != "mlm" && options.pooling != "first")
    return fmt::format("transformers has no class for a bert with model.pooling \"{}\"",
                       options.pooling);
  if (options.is_siglip() && image_shape.size() == 3 && image_shape[1] != image_shape[2])
    return fmt::format(
        "transformers has no class for images of {} x {} with model.pooling \"mean\"",
        image_shape[1], image_shape[2]);
  return "";
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
  const HfModel model = read_hf_config(files.config);
  ModelOptions options = model.options;
  if (options.type != asked.type)
    throw Error(ExitCode::kBadConfig,
                fmt::format("model.type is \"{}\", but {} is a {}", asked.type,
                            files.config.string(), options.type),
                fmt::format("set model.type to \"{}\"", options.type));
  if (asked.head != "mlm" && !asked.new_classifier)
    check_classifier(model, asked.head, files.config.string());
  options.head = asked.head;
  if (options.type == "bert") options.pooling = asked.pooling;
  options.pretrained = asked.pretrained;
  options.new_classifier = asked.new_classifier;
  return options;
}

}  // namespace vcas
