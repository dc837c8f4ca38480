#include "tools/commands.h"

#include <fmt/format.h>

#include <cstdio>

#include "core/error.h"
#include "core/hardware.h"
#include "core/nearest_name.h"
#include "core/progress.h"
#include "core/safetensors.h"
#include "data/image_file.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/gemm.h"
#include "tools/report_text.h"
#include "tools/run_config.h"
#include "tools/templates.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

void print(const std::string& text) { std::fputs(text.c_str(), stdout); }

const char* cpu_level() {
  if (cpu_has(CpuLevel::kV4)) return "avx512";
  return cpu_has(CpuLevel::kV3) ? "avx2" : "base";
}

// Empty where there is a CUDA device, else why there is none.
std::string lacks_cuda() {
  try {
    make_ops("cuda");
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

std::vector<std::string> template_names() {
  std::vector<std::string> names;
  for (const auto& [name, text] : config_templates()) names.push_back(name);
  return names;
}

}  // namespace

std::string version_line() {
  return fmt::format("vcas {}  C++20 {}  CPU: {} ({})  CUDA: {}  {}", VCAS_VERSION, VCAS_COMPILER,
                     gemm_name(), cpu_level(), lacks_cuda().empty() ? "yes" : "no",
                     image_formats());
}

void inspect_file(const fs::path& path, bool json) {
  const fs::path file = fs::is_directory(path) ? path / "model.safetensors" : path;
  const SafetensorsFile content(file);
  nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
  std::vector<std::vector<std::string>> rows = {{"tensor", "type", "shape", "bytes"}};
  std::int64_t elements = 0, bytes = 0;
  for (const StoredTensor& tensor : content.tensors()) {
    std::int64_t count = 1;
    for (const std::int64_t extent : tensor.shape) count *= extent;
    elements += count;
    bytes += std::ssize(tensor.bytes);
    const std::string type(stored_type_name(tensor.dtype));
    tensors.push_back({{"name", tensor.name},
                       {"dtype", type},
                       {"shape", tensor.shape},
                       {"bytes", tensor.bytes.size()}});
    rows.push_back({tensor.name, type, fmt::format("[{}]", fmt::join(tensor.shape, ", ")),
                    format_count(std::ssize(tensor.bytes))});
  }
  if (json) {
    const nlohmann::ordered_json all = {{"tensors", tensors}, {"metadata", content.metadata()}};
    return print(all.dump(2) + "\n");
  }
  print(format_table(rows));
  print(fmt::format("{} tensors, {} numbers, {} bytes\n", content.tensors().size(),
                    format_count(elements), format_count(bytes)));
  for (const auto& [key, value] : content.metadata()) print(fmt::format("{}: {}\n", key, value));
}

void print_schema() {
  const RunConfig defaults;
  print(json_schema(defaults).dump(2) + "\n");
}

void print_settings_help() {
  const RunConfig defaults;
  print(config_help(defaults));
}

void print_template(const std::string& name) {
  const std::vector<std::string> names = template_names();
  if (name.empty()) return print(fmt::format("{}\n", fmt::join(names, "\n")));
  const auto found = config_templates().find(name);
  if (found == config_templates().end()) {
    const std::string nearest = nearest_name(name, names);
    throw Error(ExitCode::kUsage, fmt::format("there is no template \"{}\"", name),
                nearest.empty() ? fmt::format("the names are: {}", fmt::join(names, ", "))
                                : fmt::format("did you mean \"{}\"?", nearest));
  }
  RunConfig config;
  read_config(config, {.documents = {{name, found->second}}});
  // Printed with each setting's explanation where otherwise its origin stands.
  ConfigOrigins explanations;
  const auto explain = [&](const auto& self, const Setting& section) -> void {
    for (const Setting& setting : section.children) {
      if (setting.is_section())
        self(self, setting);
      else
        explanations.set(setting.key, {.label = setting.help});
    }
  };
  const Setting root = describe(config);
  explain(explain, root);
  print(print_settings(root, &explanations, nullptr));
}

void print_doctor() {
  const CgroupLimits limits = cgroup_limits();
  print(version_line() + "\n");
  print(fmt::format("cpu       {} ({})\n", cpu_name(), cpu_level()));
  print(fmt::format("threads   {} usable", usable_threads()));
  print(limits.cpus ? fmt::format(" (control group allows {:.2f} CPUs)\n", *limits.cpus)
                    : std::string(" (no limit by a control group)\n"));
  print(fmt::format("memory    {}{}\n", format_bytes(static_cast<double>(total_memory_bytes())),
                    limits.memory_bytes ? " (limit of the control group)" : ""));
  print(fmt::format("disk      {} free here\n",
                    format_bytes(static_cast<double>(free_disk_bytes(".")))));
  const std::string no_cuda = lacks_cuda();
  print(fmt::format("cuda      {}\n", no_cuda.empty() ? "available" : no_cuda));
  const fs::path fashion = "/usr/share/datasets/fashion-mnist";
  print(fmt::format("data      {}: {}\n", fashion.string(),
                    fs::exists(fashion) ? "there" : "missing (package dataset-fashion-mnist)"));
}

}  // namespace vcas
