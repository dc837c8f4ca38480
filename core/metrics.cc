#include "core/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cmath>
#include <string_view>
#include <utility>

namespace vcas {
namespace {

constexpr std::string_view kEventNames[] = {"start",      "train",   "eval", "variance",
                                            "checkpoint", "warning", "end"};

struct Line {
  std::size_t end;  // offset in the file
  nlohmann::json value;
};

std::vector<Line> read_lines(const std::filesystem::path& path, const std::string& text) {
  std::vector<Line> lines;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    nlohmann::json value = nlohmann::json::parse(text.begin() + begin, text.begin() + end, nullptr,
                                                 /*allow_exceptions=*/false);
    const auto is = [&](const char* key, auto type) {
      return value.contains(key) && (value[key].*type)();
    };
    const bool good = value.is_object() && is("step", &nlohmann::json::is_number_integer) &&
                      is("event", &nlohmann::json::is_string);
    if (good) {
      lines.push_back({end + 1, std::move(value)});
    } else if (end + 1 < text.size()) {
      throw Error(ExitCode::kBadData,
                  fmt::format("{}:{}: not a JSON object with a step and an event", path.string(),
                              lines.size() + 1),
                  "was the file edited? remove this line, and keep the others");
    }
  }
  return lines;
}

}  // namespace

MetricsLog::MetricsLog(std::filesystem::path path, std::function<double()> now)
    : path_(std::move(path)),
      now_(std::move(now)),
      opened_(now_()),
      file_(open_file(path_, O_WRONLY | O_APPEND | O_CREAT)) {
  if (file_.get() < 0) fail_errno(ExitCode::kCannotCreate, path_, "cannot create");
  truncate([](const nlohmann::json&) { return false; });
}

void MetricsLog::truncate_after(std::int64_t step, std::int64_t evaluated) {
  truncate([&](const nlohmann::json& line) {
    const std::int64_t at = line["step"];
    const std::string event = line["event"];
    return at > step || (event == "eval" && at > evaluated) || event == "end";
  });
}

void MetricsLog::truncate(const std::function<bool(const nlohmann::json&)>& is_late) {
  std::size_t size = 0;
  for (const Line& line : read_lines(path_, read_file(path_))) {
    if (is_late(line.value)) break;
    size = line.end;
  }
  shorten(file_, size, path_);
}

void MetricsLog::write(MetricEvent event, std::int64_t step, const nlohmann::ordered_json& fields) {
  nlohmann::ordered_json line = {{"event", kEventNames[static_cast<std::size_t>(event)]},
                                 {"step", step},
                                 {"time", std::round(1000 * (now_() - opened_)) / 1000}};
  line.update(fields.is_null() ? nlohmann::ordered_json::object() : fields);
  const std::string text =
      line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  write_all(file_, std::as_bytes(std::span(text)), path_);
}

std::vector<nlohmann::json> read_metrics(const std::filesystem::path& path, bool* is_torn) {
  const std::string text = read_file(path);
  std::vector<nlohmann::json> values;
  std::size_t end = 0;
  for (Line& line : read_lines(path, text)) {
    values.push_back(std::move(line.value));
    end = line.end;
  }
  if (is_torn != nullptr) *is_torn = end < text.size();
  return values;
}

}  // namespace vcas
