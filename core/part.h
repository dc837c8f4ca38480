// A section of settings whose "type" chooses among registered kinds, each with settings of its own:
//
//   class Figure { public: virtual ~Figure() = default; virtual double area() const = 0; };
//
//   struct Square final : Figure {
//     double side = 1;
//     void fields(Setting& v) { v.field("side", side, "Length of a side.", above(0.0)); }
//     double area() const override { return side * side; }
//   };
//   VCAS_REGISTER_PART(Figure, "square", Square);
//
//   struct Config { Part<Figure> figure{"square", "What to draw."}; };
//
// A kind stands in one source file. Reading, ranges, help and schema follow from `fields`, as for
// any section (core/config.h). A Base with `std::string summary() const` has each kind described in
// the help of "type".
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/config.h"
#include "core/error.h"
#include "core/nearest_name.h"
#include "core/unique_name.h"

namespace vcas {

template <class Base>
struct PartKind {
  std::unique_ptr<Base> (*make)();
  std::unique_ptr<Base> (*copy)(const Base&);
  void (*describe)(Base&, Setting&, const std::string& type, bool chosen);
};

// All registered kinds, by name.
template <class Base>
std::map<std::string, PartKind<Base>>& part_kinds() {
  static std::map<std::string, PartKind<Base>> kinds;
  return kinds;
}

template <class Base, class Kind>
struct PartRegistration {
  explicit PartRegistration(const char* type) {
    const bool is_new =
        part_kinds<Base>()
            .emplace(
                type,
                PartKind<Base>{
                    .make = [] { return std::unique_ptr<Base>(std::make_unique<Kind>()); },
                    .copy =
                        [](const Base& from) {
                          return std::unique_ptr<Base>(
                              std::make_unique<Kind>(static_cast<const Kind&>(from)));
                        },
                    .describe =
                        [](Base& part, Setting& section, const std::string& name, bool chosen) {
                          section.settings_of(name, static_cast<Kind&>(part), chosen);
                        }})
            .second;
    VCAS_CHECK(is_new, std::string("two kinds are called ") + type +
                           ", or vcas is linked twice, in a SHARED library and in the program");
  }
};

// Held while kinds are made or copied. One for all: kinds may have parts of any Base.
inline std::recursive_mutex& part_making() {
  static std::recursive_mutex mutex;
  return mutex;
}

// A value: copies have settings of their own. The settings of kinds that are not chosen are kept.
// Threads may read one at the same time, as any other value.
template <class Base>
class Part {
 public:
  std::string type;

  // `key` names the setting that chooses.
  Part(std::string default_type, std::string help, const char* key = "type")
      : type(std::move(default_type)), help_(std::move(help)), key_(key) {}
  Part(Part&&) noexcept = default;
  Part(const Part& other) : type(other.type), help_(other.help_), key_(other.key_) {
    const std::lock_guard lock(part_making());
    for (const auto& [name, kind] : other.made_)
      made_.emplace(name, part_kinds<Base>().at(name).copy(*kind));
  }
  Part& operator=(Part other) noexcept {
    std::swap(type, other.type);
    std::swap(made_, other.made_);
    return *this;
  }

  Base& operator*() { return of(type); }
  const Base& operator*() const { return of(type); }
  Base* operator->() { return &of(type); }
  const Base* operator->() const { return &of(type); }

  void fields(Setting& v) {
    std::vector<std::string> types;
    std::string help = help_;
    for (const auto& [name, kind] : part_kinds<Base>()) {
      if constexpr (requires(const Base& base) { base.summary(); })
        help += (types.empty() ? " " : "; ") + name + ": " + of(name).summary();
      types.push_back(name);
    }
    v.choice(key_, type, help.c_str(), one_of(types));
    for (const auto& [name, kind] : part_kinds<Base>())
      kind.describe(of(name), v, name, name == type);
  }

 private:
  Base& of(const std::string& name) const {
    const auto kind = part_kinds<Base>().find(name);
    if (kind == part_kinds<Base>().end()) fail(name);
    const std::lock_guard lock(part_making());
    auto made = made_.find(name);
    if (made == made_.end()) made = made_.emplace(name, kind->second.make()).first;
    return *made->second;
  }
  [[noreturn]] void fail(const std::string& name) const {
    std::vector<std::string> types;
    std::string all = "choose among";
    for (const auto& [type_name, kind] : part_kinds<Base>()) {
      all += (types.empty() ? " " : ", ") + type_name;
      types.push_back(type_name);
    }
    throw Error(ExitCode::kBadConfig, std::string("there is no ") + key_ + " \"" + name + "\"",
                did_you_mean(name, types, all));
  }

  std::string help_;
  const char* key_;
  mutable std::map<std::string, std::unique_ptr<Base>> made_;  // when first asked for
};

}  // namespace vcas

#define VCAS_REGISTER_PART(Base, type, Kind) \
  static const ::vcas::PartRegistration<Base, Kind> VCAS_UNIQUE_NAME(vcas_registration_)(type)
