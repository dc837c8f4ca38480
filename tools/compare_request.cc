#include "tools/compare_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>
#include <sstream>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "core/parse_number.h"
#include "core/read_json.h"
#include "optim/checkpoint.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

// Settings of data that leave the test items as they are.
constexpr const char* kOwnData[] = {"data.limit",
                                    "data.flip",
                                    "data.crop_padding",
                                    "data.image.crop_scale",
                                    "data.image.crop_ratio",
                                    "data.image.cutout",
                                    "data.threads",
                                    "data.text.max_length",
                                    "data.text.cache"};

[[noreturn]] void fail_name(const std::string& text, const std::string& why) {
  throw Error(ExitCode::kUsage, fmt::format("--variant \"{}\": {}", text, why),
              "--variant \"NAME: KEY=VALUE KEY=VALUE\" makes a variant; --variant exact is the "
              "exact one");
}

// A variant as the command line has it.
struct VariantText {
  std::string name;
  std::vector<std::string> settings;
};

// What forbids a name, which names a folder; empty: nothing.
std::string name_fault(const std::string& name) {
  static const std::regex kName("[A-Za-z0-9][A-Za-z0-9_.+-]*");
  static const std::regex kOfRuns("(best|last|lock|replaced)(\\..*)?|checkpoint-.*|compare\\..*");
  if (!std::regex_match(name, kName))
    return "a name has ASCII letters, digits and _ . + - only, for it names a folder";
  if (std::regex_match(name, kOfRuns) || is_name_of_runs(name))
    return fmt::format("\"{}\" is the name of a file of runs", name);
  return {};
}

VariantText parse_variant(const std::string& text) {
  VariantText variant;
  const std::size_t colon = text.find(':');
  std::istringstream name(text.substr(0, colon));
  name >> variant.name;
  if (variant.name.empty()) fail_name(text, "the name is empty");
  std::string rest;
  if (const std::string fault = name_fault(name >> rest ? text.substr(0, colon) : variant.name);
      !fault.empty())
    fail_name(text, fault);
  if (colon == std::string::npos) {
    if (variant.name != "exact") fail_name(text, "the settings are missing");
    variant.settings = {"method.type=exact"};
    return variant;
  }
  std::istringstream settings(text.substr(colon + 1));
  for (std::string setting; settings >> setting;) variant.settings.push_back(setting);
  return variant;
}

// Throws where the results of the variant would be of something else.
void check_comparable(const std::string& name, const RunConfig& plain, const RunConfig& variant) {
  for (const ConfigChange& change : config_changes(plain, variant)) {
    const std::string& key = change.key;
    const bool other_data = key.starts_with("data.") && std::ranges::count(kOwnData, key) == 0;
    const bool of_all = key.starts_with("run.") || key == "seed" || key == "threads";
    if (!other_data && !of_all) continue;
    throw Error(ExitCode::kBadConfig,
                fmt::format("variant \"{}\": {} differs ({} -> {}); {}", name, key, change.before,
                            change.after,
                            other_data ? "results on other data do not compare"
                                       : "it is the same for all variants"),
                key == "seed" ? "--seeds 0,1,2 runs all variants with each seed"
                              : "set it for all, as --set " + key + "=VALUE");
  }
}

LoadedConfig load_variant(const VariantText& text, const LoadSettings& load) {
  try {
    return load(text.settings);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("variant \"{}\": {}", text.name, error.what()),
                error.hint());
  }
}

void set_folder(CompareRequest& request, const LoadedConfig& loaded) {
  const RunOptions& run = loaded.config.run;
  request.folder = run.folder.empty() ? loaded.own_folder + "-compare" : run.folder;
  request.use = use_of(run);
}

Json read_comparison(const fs::path& folder) { return read_ordered_json(folder / kComparisonFile); }

// What to_json(CompareRequest) wrote to `file`.
CompareRequest read_request(const Json& saved, const fs::path& file,
                            const std::vector<std::string>& overrides) {
  CompareRequest request;
  try {
    for (const Json& variant : saved.at("variants")) {
      const std::string name = variant.at("name");
      const SourceText text{fmt::format("{} ({})", file.string(), name),
                            variant.at("config").dump(2)};
      request.variants.push_back({name, load_config(text, overrides, true)});
    }
    saved.at("seeds").get_to(request.seeds);
    if (request.variants.empty() || request.seeds.empty())
      throw Error(ExitCode::kBadData, file.string() + ": has no variants or no seeds");
    request.seeds[0] = request.base().loaded.config.seed;  // the overrides may have another
    if (const Json& accuracy = saved.at("to_accuracy"); !accuracy.is_null())
      request.to_accuracy = accuracy;
    request.keep_weights = saved.at("keep_weights");
  } catch (const Json::exception& error) {
    throw Error(ExitCode::kBadData, fmt::format("{}: {}", file.string(), error.what()));
  }
  return request;
}

// A comparison of two runs that an earlier program made.
CompareRequest earlier_comparison(const std::vector<std::string>& names, const fs::path& folder,
                                  const std::vector<std::string>& overrides) {
  std::vector<LoadedConfig> configs;
  for (const std::string& name : names)
    configs.push_back(load_config((folder / name / "config.json").string(), overrides));
  CompareRequest request = compare_configs(configs);
  for (std::size_t i = 0; i < names.size(); ++i) request.variants[i].name = names[i];
  return request;
}

}  // namespace

void CompareRequest::use_seeds(std::vector<std::uint64_t> all) {
  seeds = std::move(all);
  for (Variant& variant : variants) variant.loaded.config.seed = seeds.front();
}

std::string CompareRequest::run_name(const Variant& variant, std::uint64_t seed) const {
  return seeds.size() == 1 ? variant.name : fmt::format("{}/seed{}", variant.name, seed);
}

std::vector<std::string> CompareRequest::run_names() const {
  std::vector<std::string> names;
  for (const std::uint64_t seed : seeds)
    for (const Variant& variant : variants) names.push_back(run_name(variant, seed));
  return names;
}

const Variant& CompareRequest::base() const {
  const auto exact = std::ranges::find_if(variants, [](const Variant& variant) {
    return variant.loaded.config.method.type == "exact";
  });
  return exact == variants.end() ? variants.front() : *exact;
}

CompareRequest compare_with_exact(const LoadedConfig& loaded) {
  if (loaded.config.method.type == "exact")
    throw Error(ExitCode::kUsage, "the configuration is exact already: nothing to compare",
                "method.type=vcas compares it with VCAS; vcas compare takes --variant");
  CompareRequest request{.variants = {{"exact", loaded}, {"", loaded}},
                         .seeds = {loaded.config.seed}};
  set_folder(request, loaded);
  request.variants[0].loaded.config.method.type = "exact";
  request.variants[1].name = loaded.config.method.type;
  return request;
}

CompareRequest compare_variants(const std::vector<std::string>& variants,
                                const LoadSettings& load) {
  const LoadedConfig plain = load({});
  CompareRequest request{.seeds = {plain.config.seed}};
  set_folder(request, plain);
  for (const std::string& text : variants) {
    const VariantText parsed = parse_variant(text);
    if (std::ranges::count(request.variants, parsed.name, &Variant::name) > 0)
      fail_name(text, fmt::format("another variant is called \"{}\"", parsed.name));
    request.variants.push_back({parsed.name, load_variant(parsed, load)});
    check_comparable(parsed.name, plain.config, request.variants.back().loaded.config);
  }
  if (request.variants.size() < 2)
    throw Error(ExitCode::kUsage, "one --variant has nothing to be compared with",
                request.variants.front().name == "exact"
                    ? "without --variant the configuration is compared with exact training"
                    : "--variant exact adds the exact one");
  return request;
}

CompareRequest compare_configs(const std::vector<LoadedConfig>& configs) {
  CompareRequest request{.seeds = {configs.front().config.seed}};
  for (const LoadedConfig& loaded : configs) {
    if (const std::string fault = name_fault(loaded.name); !fault.empty())
      throw Error(ExitCode::kUsage, fmt::format("{}.json: {}", loaded.name, fault),
                  "a comparison names runs by their files: give the file another name");
    if (loaded.config.seed != request.seeds.front())
      throw Error(ExitCode::kBadConfig,
                  fmt::format("{} has seed {}, and {} has seed {}", configs.front().name,
                              request.seeds.front(), loaded.name, loaded.config.seed),
                  "--set seed=0 sets it for all");
    std::string name = loaded.name;
    const bool twice = std::ranges::count(configs, name, &LoadedConfig::name) > 1;
    const auto is_taken = [&] {
      return std::ranges::count(configs, name, &LoadedConfig::name) > 0 ||
             std::ranges::count(request.variants, name, &Variant::name) > 0;
    };
    for (std::size_t number = request.variants.size() + 1; twice && is_taken(); ++number)
      name = fmt::format("{}-{}", loaded.name, number);
    request.variants.push_back({name, loaded});
    RunConfig config = loaded.config;
    config.run = configs.front().config.run;  // the comparison has a folder of its own
    check_comparable(request.variants.back().name, configs.front().config, config);
  }
  request.folder = "runs/compare";
  for (const Variant& variant : request.variants) request.folder += "-" + variant.name;
  return request;
}

std::vector<std::uint64_t> parse_seeds(const std::string& text) {
  std::vector<std::uint64_t> seeds;
  std::istringstream list(text + ",");
  for (std::string part; std::getline(list, part, ',');) {
    const auto seed = parse_number<std::uint64_t>(part);
    if (!seed)
      throw Error(ExitCode::kUsage,
                  fmt::format("--seeds takes whole numbers from 0, got \"{}\"", part),
                  "such as --seeds 0,1,2");
    if (std::ranges::count(seeds, *seed) > 0)
      throw Error(ExitCode::kUsage, fmt::format("--seeds has {} twice", *seed));
    seeds.push_back(*seed);
  }
  return seeds;
}

CompareRequest saved_comparison(const fs::path& folder, const std::vector<std::string>& overrides) {
  settle_interrupted(folder);
  const std::vector<std::string> names = runs_of_comparison(folder);
  if (names.empty())
    throw Error(ExitCode::kNoInput,
                folder.string() + ": not the folder of a comparison, which has compare.json");
  const Json saved = read_comparison(folder);
  CompareRequest request = saved.contains("variants")
                               ? read_request(saved, folder / kComparisonFile, overrides)
                               : earlier_comparison(names, folder, overrides);
  request.folder = folder;
  request.use = FolderUse::kAsItIs;
  return request;
}

bool has_diverged(const Json& run) { return run.contains("diverged"); }

bool is_over(const Json& run) { return run.contains("evaluations") || has_diverged(run); }

bool has_progress(const fs::path& folder) {
  if (runs_of_comparison(folder).empty()) return false;
  const Json saved = read_comparison(folder);
  return std::ranges::any_of(saved["runs"], [&](const Json& run) {
    return is_over(run) ||
           find_newest_checkpoint(folder / run["name"].get<std::string>()).step.has_value();
  });
}

void resume_comparison(CompareRequest& request, const fs::path& folder) {
  const auto fits = [&](const fs::path& comparison) {
    if (runs_of_comparison(comparison) != request.run_names() || !has_progress(comparison))
      return false;
    return std::ranges::all_of(request.variants, [&](const Variant& variant) {
      const fs::path run = comparison / request.run_name(variant, request.seeds.front());
      return has_same_settings(run, variant.loaded.config);
    });
  };
  if (!folder.empty())
    request.folder = folder;
  else if (request.use == FolderUse::kNext)
    request.folder = newest_run_folder(request.folder, fits);
  settle_interrupted(request.folder);
  request.use = FolderUse::kAsItIs;
}

Json to_json(const CompareRequest& request) {
  Json variants = Json::array();
  for (const Variant& variant : request.variants) {
    RunConfig config = variant.loaded.config;
    config.run = {};
    variants.push_back({{"name", variant.name}, {"config", to_json(config)}});
  }
  Json accuracy = request.to_accuracy ? Json(*request.to_accuracy) : Json();
  return {{"base", request.base().name},
          {"base_is_exact", request.base().loaded.config.method.type == "exact"},
          {"seeds", request.seeds},
          {"to_accuracy", accuracy},
          {"keep_weights", request.keep_weights},
          {"variants", variants}};
}

}  // namespace vcas
