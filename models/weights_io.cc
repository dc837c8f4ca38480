#include "models/weights_io.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/files.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

constexpr const char* kDecoderBias = "cls.predictions.decoder.bias";

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
    {kDecoderBias, {"cls.predictions.bias"}},
    {"vit.embeddings.projection.", {"vit.embeddings.patch_embeddings.projection."}},
};

// A ViT whose classifier reads the mean has no class token: it is the vision half of SigLIP. In
// this order, from the names of a ViT.
constexpr std::pair<const char*, const char*> kSiglipNames[] = {
    {"vit.embeddings.patch_embeddings.projection.", "vision_model.embeddings.patch_embedding."},
    {"vit.embeddings.position_embeddings", "vision_model.embeddings.position_embedding.weight"},
    {"vit.encoder.layer.", "vision_model.encoder.layers."},
    {"vit.layernorm.", "vision_model.post_layernorm."},
    {".layernorm_before.", ".layer_norm1."},
    {".layernorm_after.", ".layer_norm2."},
    {".attention.attention.query.", ".self_attn.q_proj."},
    {".attention.attention.key.", ".self_attn.k_proj."},
    {".attention.attention.value.", ".self_attn.v_proj."},
    {".attention.output.dense.", ".self_attn.out_proj."},
    {".intermediate.dense.", ".mlp.fc1."},
    {".output.dense.", ".mlp.fc2."},
};

std::string siglip_name(std::string name) {
  for (const auto& [vit, siglip] : kSiglipNames)
    if (const std::size_t at = name.find(vit); at != std::string::npos)
      name.replace(at, std::string_view(vit).size(), siglip);
  return name;
}

std::vector<FilePart> vit_or_bert_parts(const ModelOptions& options, const Parameter& parameter) {
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
  if (parameter.name == "vit.embeddings.position_embeddings" && !options.is_siglip())
    shape.insert(shape.begin(), 1);
  return {{parameter.name, shape}};
}

std::vector<FilePart> file_parts(const ModelOptions& options, const Parameter& parameter) {
  std::vector<FilePart> parts = vit_or_bert_parts(options, parameter);
  if (!options.is_siglip()) return parts;
  for (FilePart& part : parts) part.name = siglip_name(part.name);
  return parts;
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
bool holds_nothing(const ModelOptions& options, const std::string& name) {
  return name.ends_with(".position_ids") ||
         (options.tied_decoder && name.starts_with("cls.predictions.decoder."));
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

}  // namespace

std::string LoadReport::text() const {
  std::string text = fmt::format("loaded {} tensors", loaded);
  if (!missing.empty()) text += "; new: " + some_of(missing);
  if (!unexpected.empty()) text += "; unused: " + some_of(unexpected);
  return text;
}

LoadReport load_hf_weights(const fs::path& path, const ModelOptions& options, Model& model,
                           Ops& ops) {
  const HfWeights weights(path);
  std::map<std::string, HfTensor> stored;
  for (const HfTensor& tensor : weights.tensors())
    if (const std::string name = current_name(options.type, tensor.stored->name);
        !holds_nothing(options, name))
      if (const auto [other, is_new] = stored.emplace(name, tensor); !is_new)
        throw Error(ExitCode::kBadData,
                    fmt::format("{}: {} and {} are both {}", path.string(),
                                other->second.stored->name, tensor.stored->name, name),
                    "remove the one that was not trained");
  // An untied decoder has a bias of its own since transformers 5, which reads no other then.
  if (auto bias = stored.extract(kDecoderBias))
    stored.insert_or_assign("cls.predictions.bias", bias.mapped());

  LoadReport report;
  std::vector<std::string> lacking;  // below the head
  std::set<std::string> used;
  std::size_t parts_in_model = 0;
  std::vector<std::pair<const Parameter*, std::vector<HfTensor>>> wanted;
  for (const Parameter& parameter : model.graph.parameters().list()) {
    std::vector<HfTensor> tensors;
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
      if (found->second.stored->shape == part.shape) {
        tensors.push_back(found->second);
        continue;
      }
      throw Error(
          ExitCode::kBadConfig,
          fmt::format("{} has shape {} in {} but the model has {}", part.name,
                      shape_text(found->second.stored->shape), path.string(),
                      shape_text(part.shape)),
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
    for (const HfTensor& tensor : tensors) {
      const std::vector<float> part = tensor.read_floats();
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
  if (const std::string why = hf_obstacle(options, description.image_shape); !why.empty())
    throw Error(ExitCode::kBadConfig, why, "docs/models.md says which models can be exported");
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
    if (parameter.name == kDecoderBias && !options.tied_decoder)
      tensors.push_back({kDecoderBias, StoredType::kF32, parts[0].shape, bytes});
  }
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw Error(ExitCode::kCannotCreate,
                fmt::format("{}: cannot create: {}", folder.string(), error.message()));
  write_safetensors(folder / "model.safetensors", std::move(tensors));
  const std::int64_t classes = model.graph.spec(model.logits).width;
  atomic_write(folder / "config.json", hf_config_text(description, classes));
}

}  // namespace vcas
