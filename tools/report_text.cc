#include "tools/report_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace vcas {

std::string format_bytes(double bytes) {
  const char* const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(units); ++unit) bytes /= 1024;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, units[unit]);
}

std::string format_share(double saved) {
  return std::isnan(saved) ? "unknown" : fmt::format("{:.3f}", saved);
}

std::string format_change(double saved) {
  if (std::isnan(saved)) return "unknown";
  const std::string text = fmt::format("{:+.1f}%", -100 * saved);
  return text == "-0.0%" ? "+0.0%" : text;
}

std::string format_change(const std::optional<Estimate>& saved) {
  if (!is_known(saved)) return "not known yet";
  return fmt::format("{} ±{:.1f}", format_change(saved->middle), 50 * (saved->high - saved->low));
}

std::string format_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i)
      line += i == 0 ? fmt::format("{:<{}}", row[i], widths[i])
                     : fmt::format("  {:>{}}", row[i], widths[i]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string field = "\"";
  for (const char c : text) field += c == '"' ? "\"\"" : std::string(1, c);
  return field + "\"";
}

std::string timing_table(CountOps& ops) {
  constexpr Phase kPhases[] = {Phase::kForward, Phase::kBackward, Phase::kProbe, Phase::kOptimizer,
                               Phase::kEvaluation};
  std::vector<std::string> layers;  // in the order of first use
  std::map<std::string, std::map<Phase, double>> seconds;
  double whole = 0;
  for (const CostRow& row : ops.rows()) {
    // The optimizer works on all layers at once, wherever the last pass has been.
    const std::string layer = row.phase == Phase::kOptimizer
                                  ? "(all parameters)"
                                  : row.place.substr(0, row.place.rfind('/'));
    if (!seconds.contains(layer)) layers.push_back(layer);
    seconds[layer][row.phase] += row.seconds;
    whole += row.seconds;
  }
  std::vector<std::vector<std::string>> table = {{"seconds"}};
  for (const Phase phase : kPhases) table[0].emplace_back(phase_name(phase));
  table[0].emplace_back("share");
  for (const std::string& layer : layers) {
    std::vector<std::string>& row = table.emplace_back();
    row.push_back(layer.empty() ? "(outside layers)" : layer);
    double sum = 0;
    for (const Phase phase : kPhases) {
      row.push_back(fmt::format("{:.3f}", seconds[layer][phase]));
      sum += seconds[layer][phase];
    }
    row.push_back(fmt::format("{:.1f}%", whole > 0 ? 100 * sum / whole : 0.0));
  }
  return format_table(table);
}

}  // namespace vcas
