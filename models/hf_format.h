// How a kind of model lies in files of Hugging Face's form: its config.json and the names of its
// tensors.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json_value.h"
#include "layers/parameters.h"

namespace vcas {

struct HfModel;

// A config.json, with its file in messages.
class HfConfig {
 public:
  using Json = nlohmann::ordered_json;

  // Throws Error(kBadData) for a file that is no JSON object.
  explicit HfConfig(const std::filesystem::path& file);

  // Throws Error(kBadData) for a value that is no T.
  // Without `otherwise` an absent one is an error too.
  template <class T>
  T get(const char* key) const {
    require(key);
    const Json& value = json_.at(key);
    if (json_holds<T>(value)) return value.get<T>();
    throw Error(ExitCode::kBadData,
                fmt::format("{}: \"{}\" has the wrong type: {}", file_, key, value.dump()));
  }
  template <class T>
  T get(const char* key, const T& otherwise) const {
    return has(key) ? get<T>(key) : otherwise;
  }
  // A size, small enough that products of sizes do not overflow.
  std::int64_t count(const char* key) const { return checked(key, get<std::int64_t>(key)); }
  std::int64_t checked(const char* key, std::int64_t value) const;
  // Throws unless the key has the one value of our models. An absent key stands for `otherwise`.
  template <class T>
  void expect(const char* key, const T& only, const T& otherwise) const {
    const T value = get<T>(key, otherwise);
    if (value != only)
      throw Error(ExitCode::kBadConfig,
                  fmt::format("{}: \"{}\" is {}, and only {} is supported", file_, key,
                              Json(value).dump(), Json(only).dump()));
  }
  [[noreturn]] void fail_unsupported(const std::string& key, const std::string& supported) const;
  auto items() const { return json_.items(); }
  HfConfig part(const char* key) const;  // the object under that key
  // Throws Error(kBadData) unless the key is there.
  void require(const char* key) const {
    if (!has(key))
      throw Error(ExitCode::kBadData, fmt::format("{}: lacks \"{}\"", file_, key),
                  "add it, with the value of the model's own class in transformers");
  }
  bool has(const char* key) const { return json_.contains(key) && !json_.at(key).is_null(); }
  const Json& at(const char* key) const { return json_.at(key); }
  const std::string& file() const { return file_; }

 private:
  std::string file_;
  Json json_;
};

// A tensor of a file.
struct HfTensorShape {
  std::string name;
  std::vector<std::int64_t> shape;
  // Ours has other axes last: a convolution [D, C, k, k] is [D, k, k, C], a matrix [C, D] is [D,
  // C].
  bool transposed = false;
};

// A tensor that is another one's second copy.
struct HfTie {
  std::string copy, of;
};

// Parts of our names, and what files have in their place.
// Several names: ours is their rows stacked.
using HfNames = std::vector<std::pair<std::string, std::vector<std::string>>>;

class HfFormat {
 public:
  virtual ~HfFormat() = default;

  // The values of "model_type" that are of this kind.
  virtual std::vector<std::string> model_types() const = 0;
  // Sets the settings, and what else `config` says of such a model.
  virtual void read(const HfConfig& config, HfModel& model) = 0;
  // The config.json of such a model, without the names of the classes.
  virtual nlohmann::ordered_json write(const HfModel& model) const = 0;
  // The class of transformers that it is.
  virtual std::string architecture() const = 0;
  // Classes of transformers whose weights have no classifier, or none for items.
  virtual std::vector<std::string> architectures_without_classifier() const = 0;
  // Why transformers has no such model. Empty: it has.
  // `image_shape`: {channels, height, width} of images.
  virtual std::string obstacle(const std::vector<std::int64_t>& /*image_shape*/) const {
    return "";
  }

  // Whether write() names the token of padding.
  virtual bool names_padding() const { return false; }

  // Parts of our names that files do not have.
  virtual HfNames names() const { return {}; }
  // A parameter in files: equal parts of it, one after another. Here renamed by names().
  // One that is transposed is the whole parameter.
  virtual std::vector<HfTensorShape> tensors(const Parameter& parameter) const;
  // The name that transformers writes today.
  virtual std::string current_name(std::string name) const = 0;
  // Whether a tensor has nothing of its own, such as numbers of rows.
  virtual bool holds_nothing(const std::string& name) const {
    return name.ends_with(".position_ids");
  }
  // A tensor that may be there twice, or as the copy alone. With other numbers the copy is not
  // used. Empty: there is none.
  virtual HfTie tied_copy() const { return {}; }
  // The name of each second copy, by the name of the first: read if it is there.
  virtual std::map<std::string, std::string> copies() const { return {}; }
  virtual bool writes_copies() const { return true; }
  // The name of a counter, i64 and 0, that is written beside the tensor. Empty: there is none.
  virtual std::string counter_beside(const std::string& /*name*/) const { return ""; }
};

// As the parameter lies in checkpoints.
HfTensorShape own_shape(const Parameter& parameter);

// Renames by the first of `names` that occurs in the name of a tensor of ours.
std::vector<HfTensorShape> renamed(const HfNames& names, const HfTensorShape& ours);

// `name` with `prefix` before it if it begins with one of `parts`.
// Models that were saved without a head lack the prefix.
std::string with_prefix(const std::string& prefix, std::initializer_list<const char*> parts,
                        const std::string& name);

}  // namespace vcas
