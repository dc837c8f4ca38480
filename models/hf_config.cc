#include "models/hf_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/parse_number.h"
#include "models/blocks.h"
#include "models/hf_files.h"
#include "models/hf_format.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

constexpr double kRescaleFactor = 1.0 / 255;

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

// "ViT" of ViTImageProcessor and ViTFeatureExtractor, which is meant where nothing is said.
std::string processor_type(const HfConfig& config) {
  const char* const key =
      config.has("image_processor_type") ? "image_processor_type" : "feature_extractor_type";
  std::string type = config.get<std::string>(key, "ViT");
  for (const std::string_view end : {"Fast", "Pil", "ImageProcessor", "FeatureExtractor"})
    if (type.ends_with(end)) type.resize(type.size() - end.size());
  const std::set<std::string> known = {"ViT", "Bit", "DeiT", "CLIP", "Siglip", "Beit", "ConvNext"};
  if (!known.contains(type))
    config.fail_unsupported(key, fmt::format("only those of {} are", fmt::join(known, ", ")));
  return type;
}

// ConvNextImageProcessor: short sides become size / crop_pct, but from 384 on images are squeezed.
void read_convnext_size(const HfConfig& config, HfImageProcessor& images) {
  constexpr std::int64_t kSqueezedFrom = 384;
  if (config.get("do_center_crop", false))
    config.fail_unsupported("do_center_crop", "of ConvNext only false is");
  const double share = config.get("crop_pct", 224.0 / 256);
  if (!(share >= 0.01 && share <= 1))
    config.fail_unsupported("crop_pct", "only a share from 0.01 to 1 is");
  std::int64_t side = 0;
  if (config.has("size") && config.at("size").is_object()) {
    const auto edges = config.get<std::map<std::string, std::int64_t>>("size");
    if (edges.size() != 1 || !edges.contains("shortest_edge"))
      config.fail_unsupported("size", "only a number or a shortest_edge is");
    side = config.checked("size", edges.at("shortest_edge"));
  } else {
    side = config.count("size");
  }
  images.size = {side, side};
  images.squeeze = side >= kSqueezedFrom;
  if (!images.squeeze)
    images.short_side = static_cast<std::int64_t>(static_cast<double>(side) / share);
}

// How images come to one size: transformers resizes them and then may cut the middle out.
void read_image_size(const HfConfig& config, HfImageProcessor& images) {
  const std::string type = processor_type(config);
  if (type == "ConvNext") return read_convnext_size(config, images);
  if (config.has("crop_pct")) config.fail_unsupported("crop_pct", "only null is");
  const bool crop = config.get("do_center_crop", false);
  if (crop) {
    if (config.has("crop_size")) images.size = read_sides(config, "crop_size");
    if (images.size.empty())
      config.fail_unsupported(config.has("crop_size") ? "crop_size" : "do_center_crop",
                              "only a crop_size with a height and a width is");
  }
  config.require("size");
  if (config.at("size").is_number() && type != "ViT")
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
    const std::string name =
        description.labels.empty() ? fmt::format("LABEL_{}", i) : description.labels[i];
    names[std::to_string(i)] = name;
    numbers[name] = i;
  }
  return {{"id2label", names}, {"label2id", numbers}};
}

// Throws unless the classifier, if there is one, is for whole items and for this head: others have
// the same names, and some the same shapes.
void check_classifier(const HfModel& model, const ModelOptions& asked, const std::string& file) {
  const HfFormat& format = *asked.kind->hugging_face();
  if (std::ranges::count(format.architectures_without_classifier(), model.architecture) > 0) return;
  const char* hint = "model.new_classifier=true starts a new classifier over its blocks";
  const std::string ours = format.architecture();
  if (!model.architecture.empty() && model.architecture != ours)
    throw Error(
        ExitCode::kBadConfig,
        fmt::format("{}: \"architectures\" is \"{}\", and only the classifier of {} is read", file,
                    model.architecture, ours),
        hint);
  const std::string head = asked.kind->head(), wanted = problem_type(head);
  if (!model.problem_type.empty() && model.problem_type != wanted) {
    std::string its_own;
    for (const char* other : {"classification", "regression"})  // models of images have one head
      if (asked.kind->reads_text() && model.problem_type == problem_type(other))
        its_own = fmt::format("model.head={} reads it; ", other);
    throw Error(ExitCode::kBadConfig,
                fmt::format("{}: \"problem_type\" is \"{}\", and model.head \"{}\" needs \"{}\"",
                            file, model.problem_type, head, wanted),
                its_own + hint);
  }
}

// The kind of ours whose files have this "model_type".
std::string kind_of(const std::string& model_type, const std::string& file) {
  std::vector<std::string> supported;
  for (const auto& [type, kind] : part_kinds<ModelKind>()) {
    const std::unique_ptr<ModelKind> model = kind.make();
    if (!model->hugging_face()) continue;
    for (const std::string& name : model->hugging_face()->model_types()) {
      if (name == model_type) return type;
      supported.push_back(name);
    }
  }
  throw Error(ExitCode::kBadConfig,
              fmt::format("{}: \"model_type\" is \"{}\", and only {} are supported", file,
                          model_type, fmt::join(supported, ", ")));
}

constexpr const char* kMendConfig = "correct the file, or take another model";

// Throws for a setting that a run could not read back from its checkpoints.
void check_ranges(ModelOptions& options, const std::string& file) {
  const Setting root = describe(options);
  for (const Setting* setting : all_settings(root)) {
    const Json value = settings_to_json(*setting);
    for (const Json& number : value.is_array() ? value : Json::array({value}))
      if (const std::string violation =
              number.is_number() ? setting->range.violation(number.get<double>()) : "";
          !violation.empty())
        throw Error(ExitCode::kBadData,
                    fmt::format("{}: model.{} is {} by it, and {}", file, setting->key,
                                number.dump(), violation),
                    kMendConfig);
  }
}

}  // namespace

HfModel read_hf_config(const fs::path& file) {
  const HfConfig config(file);
  HfModel model;
  model.options.kind.type = kind_of(config.get<std::string>("model_type"), config.file());
  model.labels = read_labels(config);
  model.problem_type = config.get<std::string>("problem_type", "");
  if (const auto classes = config.get("architectures", std::vector<std::string>{});
      !classes.empty())
    model.architecture = classes[0];
  model.options.kind->hugging_face()->read(config, model);
  check_ranges(model.options, config.file());
  return model;
}

std::string hf_config_text(const HfModel& description, std::int64_t classes) {
  const ModelOptions& options = description.options;
  const HfFormat& format = *options.kind->hugging_face();
  Json config = {{"architectures", {format.architecture()}}};
  config.update(format.write(description));
  if (!options.kind->learns_words()) {
    config.update(label_entries(description, classes));
    config["problem_type"] = problem_type(options.kind->head());
  }
  return config.dump(2) + "\n";
}

std::string hf_obstacle(const ModelOptions& options, const std::vector<std::int64_t>& image_shape) {
  const HfFormat* format = options.kind->hugging_face();
  return format ? format->obstacle(image_shape)
                : fmt::format("transformers has no class for model.type \"{}\"", options.kind.type);
}

double read_number(const HfConfig& config, const char* key, double otherwise, const Range& range) {
  const double number = config.get(key, otherwise);
  if (const std::string violation = range.violation(number); !violation.empty())
    throw Error(ExitCode::kBadData,
                fmt::format("{}: \"{}\" {}, got {}", config.file(), key, violation, number),
                kMendConfig);
  return number;
}

double read_eps(const HfConfig& config, const char* key, double otherwise) {
  return read_number(config, key, otherwise, {.low = 0, .high = 1, .low_open = true});
}

std::int64_t read_heads(const HfConfig& config, const char* key, const char* width_key) {
  const std::int64_t heads = config.count(key), width = config.count(width_key);
  if (width % heads != 0)
    throw Error(ExitCode::kBadData,
                fmt::format("{}: \"{}\" must divide \"{}\" {}, got {}", config.file(), key,
                            width_key, width, heads),
                kMendConfig);
  return heads;
}

void read_transformer(const HfConfig& config, TransformerSettings& settings, double dropout,
                      const char* attention_dropout_key, double eps) {
  settings.width = config.count("hidden_size");
  settings.depth = config.count("num_hidden_layers");
  settings.heads = read_heads(config, "num_attention_heads", "hidden_size");
  settings.ffn_ratio =
      static_cast<double>(config.count("intermediate_size")) / static_cast<double>(settings.width);
  settings.dropout = read_number(config, "hidden_dropout_prob", dropout, dropout_range());
  settings.attention_dropout = read_number(config, attention_dropout_key, dropout, dropout_range());
  settings.norm_eps = read_eps(config, "layer_norm_eps", eps);
}

Json transformer_sizes(const TransformerSettings& settings, double eps,
                       const char* attention_dropout_key) {
  return {{"hidden_size", settings.width},
          {"num_hidden_layers", settings.depth},
          {"num_attention_heads", settings.heads},
          {"intermediate_size", settings.inner_width()},
          {"hidden_act", "gelu"},
          {"hidden_dropout_prob", settings.dropout},
          {attention_dropout_key, settings.attention_dropout},
          {"initializer_range", kTransformerStd},
          {"layer_norm_eps", eps}};
}

std::optional<HfImageProcessor> read_hf_image_processor(const fs::path& folder) {
  const fs::path file = folder / kHfImageProcessorFile;
  if (!fs::exists(file)) return std::nullopt;
  const HfConfig config(file);
  for (const char* key : {"do_resize", "do_rescale", "do_normalize"})
    config.expect(key, true, true);
  const std::set<std::string> steps = {"do_resize", "do_rescale", "do_normalize", "do_center_crop",
                                       "do_convert_rgb"};
  for (const auto& [key, value] : config.items())
    if (key.starts_with("do_") && value == true && !steps.contains(key))
      config.fail_unsupported(key, "only false is");
  const double factor = config.get("rescale_factor", kRescaleFactor);
  if (std::abs(factor - kRescaleFactor) > 1e-6)
    config.fail_unsupported("rescale_factor", "only 1/255 is");
  // Each processor of transformers has means and a size of its own where they are left out.
  HfImageProcessor images{.mean = config.get<std::vector<float>>("image_mean"),
                          .std = config.get<std::vector<float>>("image_std"),
                          .resample = config.get<int>("resample")};
  if (images.resample != 2 && images.resample != 3)
    config.fail_unsupported("resample", "only 2 (bilinear) and 3 (bicubic) are");
  read_image_size(config, images);
  return images;
}

std::string image_processor_text(const HfImageProcessor& images,
                                 const std::vector<std::int64_t>& shape) {
  const auto numbers = [](const std::vector<float>& values) {
    Json list = Json::array();
    for (const float value : values)  // its own few digits, not those of the same double
      list.push_back(parse_number<double>(fmt::format("{}", value)).value_or(0));
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
                 {"image_std", numbers(images.std)},
                 {"do_convert_rgb", shape[0] == 3}};
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

ModelOptions hf_options(const ModelOptions& asked) {
  const HfFiles files = find_hf_files(asked.pretrained);
  const HfModel model = read_hf_config(files.config);
  const ModelOptions options = with_choices(model.options, asked, files.config);
  if (!asked.kind->learns_words() && !asked.new_classifier)
    check_classifier(model, options, files.config.string());
  return options;
}

}  // namespace vcas
