#include "data/token_cache.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/content_hash.h"
#include "core/error.h"
#include "core/files.h"
#include "core/safetensors.h"
#include "core/xxh3.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

std::string fingerprint(const std::vector<StoredTensor>& tensors, const std::string& facts) {
  ContentHash hash;
  for (const StoredTensor& tensor : tensors) {
    hash.add(tensor.name);
    hash.add_number(xxh3(tensor.bytes));
  }
  hash.add(facts);
  return fmt::format("{:016x}", hash.value());
}

template <class T>
StoredTensor stored(const char* name, StoredType dtype, const std::vector<T>& values) {
  return {name, dtype, {std::ssize(values)}, std::as_bytes(std::span(values))};
}

std::vector<StoredTensor> tensors_of(const TokenContent& content) {
  return {stored("offsets", StoredType::kI64, content.offsets),
          stored("targets", StoredType::kF32, content.targets),
          stored("first_lengths", StoredType::kI32, content.first_lengths),
          stored("labels", StoredType::kI32, content.labels),
          stored("tokens", StoredType::kI32, content.tokens)};
}

void write_content(const fs::path& path, const TokenContent& content) {
  const nlohmann::json facts = {{"class_names", content.class_names},
                                {"skipped_rows", content.skipped_rows},
                                {"cut_rows", content.cut_rows}};
  const std::vector<StoredTensor> tensors = tensors_of(content);
  write_safetensors(path, tensors,
                    {{"facts", facts.dump()}, {"check", fingerprint(tensors, facts.dump())}});
}

template <class T>
void load(const SafetensorsFile& file, const char* name, std::vector<T>& values) {
  const StoredTensor* tensor = file.find(name);
  if (!tensor) throw Error(ExitCode::kBadData, name);
  values.resize(tensor->bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
}

// Throws whatever it likes when the file is not what write_content wrote.
TokenContent read_content(const fs::path& path) {
  const SafetensorsFile file(path);
  TokenContent content;
  load(file, "offsets", content.offsets);
  load(file, "targets", content.targets);
  load(file, "first_lengths", content.first_lengths);
  load(file, "labels", content.labels);
  load(file, "tokens", content.tokens);
  const std::string& facts = file.metadata().at("facts");
  if (fingerprint(tensors_of(content), facts) != file.metadata().at("check"))
    throw Error(ExitCode::kBadData, path.string());
  const nlohmann::json parsed = nlohmann::json::parse(facts);
  parsed.at("class_names").get_to(content.class_names);
  parsed.at("skipped_rows").get_to(content.skipped_rows);
  parsed.at("cut_rows").get_to(content.cut_rows);
  return content;
}

}  // namespace

std::optional<fs::path> cache_folder() {
  const auto variable = [](const char* name) -> std::optional<fs::path> {
    const char* value = std::getenv(name);
    if (!value || !*value) return std::nullopt;
    return value;
  };
  if (const auto own = variable("VCAS_CACHE_DIR")) return own;
  if (const auto cache = variable("XDG_CACHE_HOME")) return *cache / "vcas";
  if (const auto home = variable("HOME")) return *home / ".cache" / "vcas";
  return std::nullopt;
}

TokenContent cached_tokens(std::uint64_t key, const std::function<TokenContent()>& make) {
  const std::optional<fs::path> folder = cache_folder();
  if (!folder) return make();
  const fs::path path = *folder / fmt::format("tokens-{:016x}.safetensors", key);
  try {
    return read_content(path);
  } catch (const std::exception&) {  // absent or damaged: both are mended by making it
  }
  TokenContent content = make();
  try {
    fs::create_directories(*folder);
    remove_abandoned(*folder, "tokens-");
    write_content(path, content);
  } catch (const std::exception&) {  // a full or read-only disk stops no training
  }
  return content;
}

}  // namespace vcas
