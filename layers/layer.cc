#include "layers/layer.h"

#include <algorithm>
#include <map>

#include "core/nearest_name.h"

namespace vcas {

namespace {

// Filled before main by VCAS_REGISTER_LAYER; a function's static, so that it exists in time.
std::map<std::string, LayerFactory>& registry() {
  static std::map<std::string, LayerFactory> factories;
  return factories;
}

}  // namespace

void BackwardIo::weight_gradient(Exec& exec, const Patches& patches) const {
  const Layout layout = patches ? Layout::items(patches.out_rows()) : input_specs[0].layout;
  method.hooks.weight_gradient(exec, {.site = method.site,
                                      .dweight = gradients[0],
                                      .dbias = gradients.size() > 1 ? gradients[1] : Tensor{},
                                      .accumulate = gradients.adds,
                                      .dy = dy,
                                      .dy_norm = method.dy_norm,
                                      .x_full = inputs_full[0],
                                      .x_norm_full = method.x_norm_full,
                                      .rows = rows.of(layout),
                                      .patches = patches});
}

LayerConfig::LayerConfig(std::string kind, nlohmann::json values)
    : kind_(std::move(kind)), values_(std::move(values)) {
  if (!values_.is_object())
    throw Error(ExitCode::kBadConfig,
                "settings of layer \"" + kind_ + "\" are not an object: " + values_.dump());
}

const nlohmann::json* LayerConfig::find(const char* key, bool required) const {
  used_.push_back(key);
  const auto found = values_.find(key);
  if (found != values_.end()) return &*found;
  if (required) fail(key, "is missing");
  return nullptr;
}

void LayerConfig::fail(const char* key, const std::string& message) const {
  throw Error(ExitCode::kBadConfig, kind_ + "." + key + " " + message);
}

std::int64_t LayerConfig::get_count(const char* key) const {
  const auto value = get<std::int64_t>(key);
  if (value < 1) fail(key, "must be at least 1, got " + std::to_string(value));
  return value;
}

double LayerConfig::get_probability(const char* key) const {
  const auto value = get<double>(key, 0);
  if (!(value >= 0 && value < 1)) fail(key, "must be in [0, 1), got " + std::to_string(value));
  return value;
}

void LayerConfig::check_all_used() const {
  for (const auto& [key, value] : values_.items())
    if (std::find(used_.begin(), used_.end(), key) == used_.end())
      throw Error(ExitCode::kBadConfig, "layer \"" + kind_ + "\" has no setting \"" + key + "\"",
                  did_you_mean(key, used_));
}

void check_inputs(const char* kind, const PlanInput& in, std::initializer_list<DType> dtypes) {
  if (in.inputs.size() != dtypes.size())
    throw Error(ExitCode::kBadConfig, std::string("number of inputs of ") + kind + " must be " +
                                          std::to_string(dtypes.size()) + ", got " +
                                          std::to_string(in.inputs.size()));
  std::size_t i = 0;
  for (const DType dtype : dtypes) {
    const DType got = in.inputs[i].dtype;
    if (got != dtype)
      throw Error(ExitCode::kBadConfig, "input " + std::to_string(i) + " of " + kind +
                                            " must hold " + std::string(dtype_name(dtype)) +
                                            ", got " + std::string(dtype_name(got)));
    ++i;
  }
}

void check_has_rows(const char* kind, Layout layout) {
  if (layout == Layout::masked())
    throw Error(ExitCode::kBadConfig,
                std::string(kind) + ": items may have no masked positions, and each needs a row",
                "give it a value of another layout, such as Layout::tokens()");
}

void check_sum(const char* kind, const PlanInput& in) {
  check_inputs(kind, in, {in.dtype, in.dtype});
  const ValueSpec &a = in.inputs[0], &b = in.inputs[1];
  if (a.width != b.width || a.layout != b.layout)
    throw Error(ExitCode::kBadConfig, std::string(kind) + ": widths " + std::to_string(a.width) +
                                          " and " + std::to_string(b.width) + ", rows per item " +
                                          a.layout.text() + " and " + b.layout.text() + " differ");
}

std::unique_ptr<Layer> make_layer(const std::string& kind, const nlohmann::json& config) {
  const auto found = registry().find(kind);
  if (found == registry().end())
    throw Error(ExitCode::kBadConfig, "no layer is called \"" + kind + "\"",
                // A linker leaves out what a static library has and nothing names.
                did_you_mean(kind, layer_kinds(),
                             "is its object file linked? Put plugs in the program or in an "
                             "OBJECT library"));
  const LayerConfig settings(kind, config);
  std::unique_ptr<Layer> layer = found->second(settings);
  settings.check_all_used();
  return layer;
}

std::vector<std::string> layer_kinds() {
  std::vector<std::string> kinds;
  for (const auto& [kind, factory] : registry()) kinds.push_back(kind);
  return kinds;
}

LayerRegistration::LayerRegistration(const char* kind, LayerFactory factory) {
  VCAS_CHECK(registry().emplace(kind, std::move(factory)).second,
             std::string("two layers are called \"") + kind + "\"");
}

}  // namespace vcas
