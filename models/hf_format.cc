#include "models/hf_format.h"

#include <algorithm>

#include "core/read_json.h"

namespace vcas {

HfConfig::HfConfig(const std::filesystem::path& file) : file_(file.string()) {
  json_ = read_ordered_json(file);
  if (!json_.is_object())
    throw Error(ExitCode::kBadData, fmt::format("{}: not a JSON object", file_));
}

std::int64_t HfConfig::checked(const char* key, std::int64_t value) const {
  constexpr std::int64_t kMostOfAnything = 1 << 24;
  if (value < 1 || value > kMostOfAnything)
    throw Error(ExitCode::kBadData, fmt::format("{}: \"{}\" must be from 1 to {}, got {}", file_,
                                                key, kMostOfAnything, value));
  return value;
}

void HfConfig::fail_unsupported(const std::string& key, const std::string& supported) const {
  throw Error(ExitCode::kBadConfig, fmt::format("{}: \"{}\" is {}, and {} supported", file_, key,
                                                json_.at(key).dump(), supported));
}

HfConfig HfConfig::part(const char* key) const {
  HfConfig part = *this;
  part.json_ = get<Json>(key);
  if (!part.json_.is_object())
    throw Error(ExitCode::kBadData, fmt::format("{}: \"{}\" is no object", file_, key));
  return part;
}

std::vector<HfTensorShape> HfFormat::tensors(const Parameter& parameter) const {
  return renamed(names(), own_shape(parameter));
}

HfTensorShape own_shape(const Parameter& parameter) {
  return {.name = parameter.name, .shape = parameter.shape.extents()};
}

std::vector<HfTensorShape> renamed(const HfNames& names, const HfTensorShape& ours) {
  for (const auto& [before, after] : names) {
    const std::size_t at = ours.name.find(before);
    if (at == std::string::npos || ours.shape.empty()) continue;
    if (after.empty())
      throw Error(ExitCode::kBadConfig,
                  fmt::format("HfFormat::names has nothing in place of \"{}\"", before),
                  "give it one name, or several whose rows are stacked (models/hf_format.h)");
    std::vector<HfTensorShape> tensors;
    for (const std::string& name : after) {
      tensors.push_back(ours);
      tensors.back().name.replace(at, before.size(), name);
      tensors.back().shape[0] /= std::ssize(after);
    }
    return tensors;
  }
  return {ours};
}

std::string with_prefix(const std::string& prefix, std::initializer_list<const char*> parts,
                        const std::string& name) {
  const bool lacks =
      std::ranges::any_of(parts, [&](const char* part) { return name.starts_with(part); });
  return lacks ? prefix + name : name;
}

}  // namespace vcas
