#include "core/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cmath>
#include <span>
#include <string_view>
#include <utility>

namespace vcas {
namespace {

constexpr std::string_view kEventNames[] = {"start",      "train",   "eval", "variance",
                                            "checkpoint", "warning", "end"};

// Null where it is no line of a log.
nlohmann::json parsed(std::string_view line) {
  nlohmann::json value = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto is = [&](const char* key, auto type) {
    return value.contains(key) && (value[key].*type)();
  };
  const bool good = value.is_object() && is("step", &nlohmann::json::is_number_integer) &&
                    is("event", &nlohmann::json::is_string);
  return good ? value : nullptr;
}

// Gives each line to `use`, with the offset behind it. A bad last line is left out.
// Lines are parsed one by one: together those of a long run take five times the memory of the file.
// Returns whether bytes are left behind the last line that was used.
bool for_each_line(const std::filesystem::path& path,
                   const std::function<void(nlohmann::json value, std::size_t end)>& use) {
  std::string rest;  // of a line whose end is not read yet
  std::size_t end = 0;
  std::int64_t number = 0;  // of the last line, from 1
  bool is_bad = false;      // that line
  const auto check_last = [&] {
    if (is_bad)
      throw Error(
          ExitCode::kBadData,
          fmt::format("{}:{}: not a JSON object with a step and an event", path.string(), number),
          "was the file edited? remove this line, and keep the others");
  };
  InputFile(path).read_pieces([&](std::span<const std::byte> piece) {
    std::string_view text(reinterpret_cast<const char*>(piece.data()), piece.size());
    for (std::size_t length; (length = text.find('\n')) != std::string_view::npos;
         text.remove_prefix(length + 1)) {
      check_last();
      ++number;
      rest += text.substr(0, length);
      end += rest.size() + 1;
      nlohmann::json value = parsed(std::exchange(rest, {}));
      is_bad = value.is_null();
      if (!is_bad) use(std::move(value), end);
    }
    rest += text;
  });
  if (!rest.empty()) check_last();
  return is_bad || !rest.empty();
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
  bool late = false;
  for_each_line(path_, [&](const nlohmann::json& line, std::size_t end) {
    late = late || is_late(line);
    if (!late) size = end;
  });
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

bool read_metrics(const std::filesystem::path& path,
                  const std::function<void(nlohmann::json)>& use) {
  return for_each_line(path, [&](nlohmann::json line, std::size_t) { use(std::move(line)); });
}

std::vector<nlohmann::json> read_metrics(const std::filesystem::path& path) {
  std::vector<nlohmann::json> lines;
  read_metrics(path, [&](nlohmann::json line) { lines.push_back(std::move(line)); });
  return lines;
}

}  // namespace vcas
