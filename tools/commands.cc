#include "tools/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <string_view>

#include "core/error.h"
#include "core/hardware.h"
#include "core/log.h"
#include "core/nearest_name.h"
#include "core/progress.h"
#include "core/safetensors.h"
#include "core/sizes.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cuda_support.h"
#include "tools/output.h"
#include "tools/report_text.h"
#include "tools/run_config.h"
#include "tools/run_folder.h"
#include "tools/templates.h"
#include "tools/version.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

void print(const std::string& text) { print_text(printable(text)); }

// The lines of comment that a template begins with. The first says what it trains, one beginning
// "Needs: " what must be there first.
std::vector<std::string> head_comment(const std::string& text) {
  constexpr std::string_view kMark = "  // ";
  std::vector<std::string> lines;
  std::istringstream stream(text);
  std::string line;
  std::getline(stream, line);  // {
  while (std::getline(stream, line) && line.starts_with(kMark))
    lines.push_back(line.substr(kMark.size()));
  return lines;
}

// "ViT on CIFAR-10. Needs: its binary files"
std::string in_a_line(const std::string& text) {
  const std::vector<std::string> lines = head_comment(text);
  const auto needs = std::ranges::find_if(
      lines, [](const std::string& line) { return line.starts_with("Needs: "); });
  return lines.front() + (needs == lines.end() ? "" : " " + *needs);
}

void print_gemm() {
  const GemmLibrary gemm = gemm_library();
  print(fmt::format("products  {}{}\n", gemm.name,
                    gemm.kernel.empty() ? "" : ", kernel " + gemm.kernel));
  if (!gemm.better.empty())
    print(
        fmt::format("  warning: kernel {} leaves instructions of this CPU unused\n"
                    "  hint: set OPENBLAS_CORETYPE={} in the environment\n",
                    gemm.kernel, gemm.better));
}

void print_cuda() {
  const CudaSupport cuda = cuda_support();
  if (cuda.build.empty()) return print(fmt::format("cuda      {}\n", cuda.missing));
  print(fmt::format("cuda      kernels of CUDA {}\n", cuda.build));
  if (!cuda.missing.empty()) print(fmt::format("gpu       none: {}\n", cuda.missing));
  for (const std::string& device : cuda.devices) print(fmt::format("gpu       {}\n", device));
}

}  // namespace

void inspect_file(const fs::path& path, bool json) {
  constexpr const char* kWeights = "model.safetensors";
  fs::path file = path;
  if (fs::exists(path / "metrics.jsonl") || fs::exists(path / kComparisonFile))
    file = find_resume_point(path, /*to_resume=*/false).checkpoint / kWeights;
  else if (fs::is_directory(path))
    file = path / kWeights;
  const SafetensorsFile content(file);
  nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
  std::vector<std::vector<std::string>> rows = {{"tensor", "type", "shape", "bytes"}};
  std::int64_t elements = 0, bytes = 0;
  for (const StoredTensor& tensor : content.tensors()) {
    elements += product_of(tensor.shape);
    bytes += std::ssize(tensor.bytes);
    const std::string type(stored_type_name(tensor.dtype));
    tensors.push_back({{"name", tensor.name},
                       {"dtype", type},
                       {"shape", tensor.shape},
                       {"bytes", tensor.bytes.size()}});
    rows.push_back(
        {tensor.name, type, shape_text(tensor.shape), format_count(std::ssize(tensor.bytes))});
  }
  if (json) {
    const nlohmann::ordered_json all = {{"tensors", tensors}, {"metadata", content.metadata()}};
    print_text(all.dump(2) + "\n");
    return;
  }
  print(format_table(rows));
  print(fmt::format("{} tensors, {} numbers, {} bytes\n", content.tensors().size(),
                    format_count(elements), format_count(bytes)));
  for (const auto& [key, value] : content.metadata()) print(fmt::format("{}: {}\n", key, value));
}

void print_schema() { print(json_schema(RunConfig()).dump(2) + "\n"); }

void print_settings_help() { print(config_help(RunConfig())); }

void print_template_names() {
  for (const auto& [name, text] : config_templates())
    print(fmt::format("{:<18} {}\n", name, in_a_line(text)));
}

void print_template(const std::string& name) {
  const auto found = config_templates().find(name);
  if (found == config_templates().end()) {
    std::vector<std::string> names;
    for (const auto& [known, text] : config_templates()) names.push_back(known);
    throw Error(
        ExitCode::kUsage, fmt::format("there is no template \"{}\"", name),
        did_you_mean(name, names, fmt::format("the names are: {}", fmt::join(names, ", "))));
  }
  RunConfig config;
  const ConfigOrigins origins = read_config(config, {.documents = {{name, found->second}}});
  // What the template leaves to defaults stays out: model.pretrained and others may decide it.
  const std::string settings = print_settings(
      describe(config), [&](const Setting& setting) { return origins.at(setting.key).given(); },
      [](const Setting& setting) { return setting.help; });
  std::string head;
  for (const std::string& line : head_comment(found->second)) head += "  // " + line + "\n";
  print("{\n" + head + "  // All other settings: vcas settings\n" + settings.substr(2));
}

void print_doctor() {
  const CgroupLimits limits = cgroup_limits();
  print(version_line() + "\n");
  print(fmt::format("cpu       {}\n", cpu_name()));
  print_gemm();
  print(fmt::format("threads   {} usable", usable_threads()));
  print(limits.cpus ? fmt::format(" (control group allows {:.2f} CPUs)\n", *limits.cpus)
                    : std::string(" (no limit by a control group)\n"));
  print(fmt::format("memory    {}{}\n", format_bytes(static_cast<double>(total_memory_bytes())),
                    limits.memory_bytes ? " (limit of the control group)" : ""));
  print(fmt::format("disk      {} free here\n",
                    format_bytes(static_cast<double>(free_disk_bytes(".")))));
  print_cuda();
  const fs::path fashion = "/usr/share/datasets/fashion-mnist";
  print(fmt::format("data      {}: {}\n", fashion.string(),
                    fs::exists(fashion) ? "there" : "missing (package dataset-fashion-mnist)"));
}

}  // namespace vcas
