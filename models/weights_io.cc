#include "models/weights_io.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <map>
#include <set>

#include "core/files.h"
#include "core/nearest_name.h"
#include "core/safetensors.h"
#include "core/sizes.h"
#include "models/hf_files.h"
#include "models/hf_format.h"

namespace vcas {
namespace fs = std::filesystem;

std::string LoadReport::text() const {
  std::string text = fmt::format("loaded {} tensors", loaded);
  if (!missing.empty()) text += "; new: " + some_of(missing);
  if (!unexpected.empty()) text += "; unused: " + some_of(unexpected);
  return text;
}

// Whether they are one number in two types: bf16 has eight bits, f16 no smaller steps.
static bool is_rounded(float a, float b) {
  constexpr float kOfBf16 = 1.0F / 256, kOfF16 = 1.0F / (1 << 24);
  return a == b || (std::isnan(a) && std::isnan(b)) ||
         std::abs(a - b) <= kOfBf16 * std::max(std::abs(a), std::abs(b)) + kOfF16;
}

// The tensors of the file under the names of today.
static std::map<std::string, HfTensor> current_tensors(const ModelKind& kind,
                                                       const HfWeights& weights,
                                                       const fs::path& path) {
  const HfFormat& format = *kind.hugging_face();
  std::map<std::string, HfTensor> stored;
  for (const HfTensor& tensor : weights.tensors())
    if (const std::string name = format.current_name(tensor.stored->name);
        !format.holds_nothing(name))
      if (const auto [other, is_new] = stored.emplace(name, tensor); !is_new)
        throw Error(ExitCode::kBadData,
                    fmt::format("{}: {} and {} are both {}", path.string(),
                                other->second.stored->name, tensor.stored->name, name),
                    "remove the one that was not trained");
  const HfTie tie = format.tied_copy();
  const auto second = stored.find(tie.copy), first = stored.find(tie.of);
  if (second != stored.end() && first == stored.end()) {
    stored.emplace(tie.of, second->second);
    stored.erase(second);
  } else if (second != stored.end()) {
    const std::vector<float> ours = first->second.read_floats(),
                             theirs = second->second.read_floats();
    if (std::ranges::equal(ours, theirs, is_rounded))
      stored.erase(second);
    else if (kind.learns_words())
      throw Error(ExitCode::kBadConfig,
                  fmt::format("{}: {} of shape {} and {} of shape {} differ, and the model has one "
                              "table for both",
                              path.string(), tie.of, shape_text(first->second.stored->shape),
                              tie.copy, shape_text(second->second.stored->shape)),
                  kind.head() == "mlm"
                      ? "remove the one that was not trained; \"tie_word_embeddings\": false in "
                        "config.json keeps both, of one shape"
                      : "remove the one that was not trained");
  }
  for (const auto& [name, copy] : format.copies())
    if (const auto read = stored.extract(copy)) stored.insert_or_assign(name, read.mapped());
  return stored;
}

// The numbers of a convolution [D, C, k, k] as [D, k, k, C], of a matrix [C, D] as [D, C], or back.
static std::vector<float> transposed(const std::vector<float>& values,
                                     const std::vector<std::int64_t>& shape, bool back) {
  const bool matrix = shape.size() == 2;
  const std::int64_t outputs = matrix ? 1 : shape[0], channels = shape[matrix ? 0 : 1],
                     pixels = matrix ? shape[1] : shape[2] * shape[3];
  std::vector<float> out(values.size());
  for (std::int64_t d = 0; d < outputs; ++d)
    for (std::int64_t c = 0; c < channels; ++c)
      for (std::int64_t p = 0; p < pixels; ++p) {
        const auto theirs = static_cast<std::size_t>((d * channels + c) * pixels + p);
        const auto ours = static_cast<std::size_t>((d * pixels + p) * channels + c);
        out[back ? theirs : ours] = values[back ? ours : theirs];
      }
  return out;
}

using PartsOf = std::function<std::vector<HfTensorShape>(const Parameter&)>;

// The tensors of each parameter in a file.
// Throws Error(kBadConfig) for tensors that are not equal parts of it, each with a name of its own.
static std::vector<std::vector<HfTensorShape>> checked_parts(
    const std::vector<Parameter>& parameters, const PartsOf& parts_of) {
  std::vector<std::vector<HfTensorShape>> all;
  std::set<std::string> names;
  for (const Parameter& parameter : parameters) {
    const auto fail = [&](const std::string& fault, const std::string& hint) {
      throw Error(ExitCode::kBadConfig,
                  fmt::format("HfFormat::tensors of {}: {}", parameter.name, fault), hint);
    };
    const std::vector<HfTensorShape>& parts = all.emplace_back(parts_of(parameter));
    const auto count = std::ssize(parts), elements = parameter.shape.elements();
    if (count == 0) fail("no tensors", "a parameter is at least one tensor of a file");
    for (const HfTensorShape& part : parts) {
      const bool is_positive = std::ranges::all_of(part.shape, [](auto n) { return n > 0; });
      if (!is_positive || product_of(part.shape) * count != elements)
        fail(fmt::format("{} of shape {}, where {} has {} numbers", part.name,
                         shape_text(part.shape), count == 1 ? "it" : "each of several", elements),
             "the numbers of all tensors, equally many in each, are those of the parameter");
      if (part.transposed && (count > 1 || (part.shape.size() != 2 && part.shape.size() != 4)))
        fail(fmt::format("{} of shape {} cannot be transposed", part.name, shape_text(part.shape)),
             "a matrix or a convolution can, where it is the whole parameter");
      if (!names.insert(part.name).second)
        fail(part.name + ", which is another tensor too", "each tensor has a name of its own");
    }
  }
  return all;
}

// Returns how many tensors were copied: the parameter is made of them.
static std::size_t copy_to_parameter(const Parameter& parameter,
                                     const std::vector<HfTensor>& tensors, bool is_transposed,
                                     const fs::path& file, Ops& ops) {
  std::vector<float> values;
  for (const HfTensor& tensor : tensors) {
    std::vector<float> part = tensor.read_floats();
    const auto bad = std::ranges::find_if(part, [](float value) { return !std::isfinite(value); });
    if (bad != part.end())
      throw Error(ExitCode::kBadData,
                  fmt::format("{}: {} is {} at element {}", file.string(), tensor.stored->name,
                              *bad, bad - part.begin()),
                  "the file is damaged, or its training diverged: take another");
    if (is_transposed) part = transposed(part, tensor.stored->shape, false);
    values.insert(values.end(), part.begin(), part.end());
  }
  const Tensor& master = parameter.master;
  if (master.dtype == DType::kF64) {
    const std::vector<double> wide(values.begin(), values.end());
    ops.copy_to_device(master.data, wide.data(), master.bytes());
  } else {
    ops.copy_to_device(master.data, values.data(), master.bytes());
  }
  return tensors.size();
}

// How the parameters of a model lie in a file.
struct StoredForm {
  fs::path path;
  std::map<std::string, HfTensor> tensors;
  PartsOf parts;
  bool has_whole_heads = false;  // a part of a head is of no use without the others
};

// Throws where the file has a head of another kind. `used`: what the model takes of the file.
static void check_head(const StoredForm& form, const LoadReport& report, const ModelKind& kind,
                       const std::set<std::string>& used) {
  const auto is_head = [&](const std::string& name) { return kind.belongs_to_head(name); };
  if (std::ranges::none_of(used, is_head)) return;
  const bool has_classifier = std::ranges::any_of(
      used, [](const std::string& name) { return name.starts_with("classifier."); });
  std::vector<std::string> differing;
  if (form.has_whole_heads) differing = report.missing;
  // Files of Hugging Face have heads of several tasks, but a classifier goes with its pooler.
  for (const std::string& name : report.unexpected)
    if (is_head(name) &&
        (form.has_whole_heads || (has_classifier && name.find(".pooler.") != std::string::npos)))
      differing.push_back(name);
  if (!differing.empty())
    throw Error(ExitCode::kBadConfig,
                fmt::format("{} was trained with another head: they differ in {}",
                            form.path.string(), some_of(differing)),
                "model.head and model.pooling say which; model.new_classifier=true starts a new "
                "classifier");
}

static LoadReport load(const StoredForm& form, const ModelOptions& options, Model& model,
                       Ops& ops) {
  LoadReport report{.file = form.path};
  std::vector<std::string> lacking;  // below the head
  std::set<std::string> used;
  std::size_t parts_in_model = 0;
  struct Wanted {
    const Parameter* parameter;
    std::vector<HfTensor> tensors;
    bool transposed;
  };
  std::vector<Wanted> wanted;
  const std::vector<Parameter> stored_parameters = model.graph.parameters().stored();
  const auto all_parts = checked_parts(stored_parameters, form.parts);
  for (std::size_t i = 0; i < all_parts.size(); ++i) {
    std::vector<HfTensor> tensors;
    const std::vector<HfTensorShape>& parts = all_parts[i];
    for (const HfTensorShape& part : parts) {
      ++parts_in_model;
      const bool head = options.kind->belongs_to_head(part.name);
      const auto found = form.tensors.find(part.name);
      if (found == form.tensors.end()) {
        (head ? report.missing : lacking).push_back(part.name);
        continue;
      }
      used.insert(part.name);
      if (options.new_classifier && part.name.starts_with("classifier.")) {
        report.missing.push_back(part.name);
        continue;
      }
      if (found->second.stored->shape != part.shape)
        throw Error(
            ExitCode::kBadConfig,
            fmt::format("{} has shape {} in {} but the model has {}", part.name,
                        shape_text(found->second.stored->shape), form.path.string(),
                        shape_text(part.shape)),
            head ? "the weights were trained for another task; model.new_classifier=true starts a "
                   "new classifier"
                 : "the file belongs to another model than its config.json or model.* say, or the "
                   "data have other items than it reads");
      tensors.push_back(found->second);
    }
    if (tensors.size() == parts.size())
      wanted.push_back({&stored_parameters[i], std::move(tensors), parts[0].transposed});
  }
  for (const auto& [name, tensor] : form.tensors)
    if (!used.contains(name)) report.unexpected.push_back(name);
  if (!lacking.empty())
    throw Error(ExitCode::kBadConfig,
                fmt::format("{} lacks {} of the model's {} tensors: {}", form.path.string(),
                            lacking.size(), parts_in_model, some_of(lacking)),
                "the file belongs to another model");
  if (!options.new_classifier) check_head(form, report, *options.kind, used);
  for (const Wanted& from : wanted)
    report.loaded +=
        copy_to_parameter(*from.parameter, from.tensors, from.transposed, form.path, ops);
  model.graph.parameters().round_values(ops);
  return report;
}

LoadReport load_hf_weights(const fs::path& path, const ModelOptions& options, Model& model,
                           Ops& ops) {
  const HfFormat& format = *options.kind->hugging_face();
  const HfWeights weights(path);
  return load({.path = path,
               .tensors = current_tensors(*options.kind, weights, path),
               .parts = [&](const Parameter& parameter) { return format.tensors(parameter); }},
              options, model, ops);
}

LoadReport load_own_weights(const fs::path& path, const ModelOptions& options, Model& model,
                            Ops& ops) {
  const HfFormat* format = options.kind->hugging_face();
  // Models with other heads may stack other rows.
  const HfNames names = format ? format->names() : HfNames();
  const SafetensorsFile file(path);
  std::deque<StoredTensor> tensors;
  StoredForm form{.path = path,
                  .tensors = {},
                  .parts = [&](const Parameter& p) { return renamed(names, own_shape(p)); },
                  .has_whole_heads = true};
  for (const StoredTensor& stored : file.tensors()) {
    std::vector<HfTensorShape> parts = renamed(names, {.name = stored.name, .shape = stored.shape});
    // Rows that are left over make one of the shapes wrong.
    if (!stored.shape.empty()) parts.back().shape[0] += stored.shape[0] % std::ssize(parts);
    const std::size_t size = stored.bytes.size() / parts.size();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      tensors.push_back(
          {parts[i].name, stored.dtype, parts[i].shape, stored.bytes.subspan(i * size, size)});
      form.tensors[parts[i].name] = {&tensors.back(), &file};
    }
  }
  return load(form, options, model, ops);
}

void save_hf_model(const fs::path& folder, const HfModel& description, const Model& model,
                   Ops& ops) {
  const ModelOptions& options = description.options;
  if (const std::string why = hf_obstacle(options, description.image_shape); !why.empty())
    throw Error(ExitCode::kBadConfig, why, "docs/models.md says which models can be exported");
  static constexpr std::int64_t kNoSteps = 0;
  const HfFormat& format = *options.kind->hugging_face();
  const std::map<std::string, std::string> copies =
      format.writes_copies() ? format.copies() : std::map<std::string, std::string>();
  std::vector<std::vector<float>> host;
  std::vector<StoredTensor> tensors;
  const std::vector<Parameter> parameters = model.graph.parameters().stored();
  const auto all_parts =
      checked_parts(parameters, [&](const Parameter& p) { return format.tensors(p); });
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const Parameter& parameter = parameters[p];
    VCAS_CHECK(parameter.master.dtype == DType::kF32, "an export holds f32");
    std::vector<float>& values = host.emplace_back(to_host<float>(ops, parameter.master));
    const std::vector<HfTensorShape>& parts = all_parts[p];
    if (parts[0].transposed) values = transposed(values, parts[0].shape, true);
    const std::span<const std::byte> bytes = std::as_bytes(std::span<const float>(values));
    const std::size_t size = bytes.size() / parts.size();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::span<const std::byte> part = bytes.subspan(i * size, size);
      tensors.push_back({parts[i].name, StoredType::kF32, parts[i].shape, part});
      if (const std::string counter = format.counter_beside(parts[i].name); !counter.empty())
        tensors.push_back({counter, StoredType::kI64, {}, std::as_bytes(std::span(&kNoSteps, 1))});
      if (const auto copy = copies.find(parts[i].name); copy != copies.end())
        tensors.push_back({copy->second, StoredType::kF32, parts[i].shape, part});
    }
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
