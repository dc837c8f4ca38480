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

// What a use of a line says: whether the next one is wanted too.
using UseLine = std::function<bool(nlohmann::json value, std::size_t end)>;

nlohmann::json parsed(std::string_view line) {
  nlohmann::json value = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto is = [&](const char* key, auto type) {
    return value.contains(key) && (value[key].*type)();
  };
  const bool good = value.is_object() && is("step", &nlohmann::json::is_number_integer) &&
                    is("event", &nlohmann::json::is_string);
  return good ? value : nullptr;
}

// Line by line: all lines of a long run would take ten times the memory of its file.
// `end` is the offset behind a line. The last line may be bad, and is not used then.
// Returns whether bytes are left behind the last line that was used.
bool for_each_line(const std::filesystem::path& path, const UseLine& use) {
  InputFile file(path);
  std::vector<char> piece(1 << 16);
  std::string text;         // read, and not used yet
  std::size_t begin = 0;    // of the first line that was not looked at, in `text`
  std::size_t before = 0;   // bytes of the file before `text`
  std::int64_t number = 0;  // of the line, from 1
  bool last_is_bad = false;
  const auto fail = [&] {
    throw Error(
        ExitCode::kBadData,
        fmt::format("{}:{}: not a JSON object with a step and an event", path.string(), number),
        "was the file edited? remove this line, and keep the others");
  };
  while (const std::size_t count = file.read(std::as_writable_bytes(std::span(piece)))) {
    if (last_is_bad) fail();
    std::size_t searched = text.size();
    text.append(piece.data(), count);
    for (std::size_t end; (end = text.find('\n', searched)) != std::string::npos;
         searched = begin = end + 1) {
      if (last_is_bad) fail();
      ++number;
      nlohmann::json value = parsed(std::string_view(text).substr(begin, end - begin));
      last_is_bad = value.is_null();
      if (!last_is_bad && !use(std::move(value), before + end + 1)) return true;
    }
    before += begin;
    text.erase(0, begin);
    begin = 0;
    if (last_is_bad && !text.empty()) fail();
  }
  return last_is_bad || !text.empty();
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
  for_each_line(path_, [&](const nlohmann::json& line, std::size_t end) {
    if (is_late(line)) return false;
    size = end;
    return true;
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
  return for_each_line(path, [&](nlohmann::json line, std::size_t) {
    use(std::move(line));
    return true;
  });
}

std::vector<nlohmann::json> read_metrics(const std::filesystem::path& path) {
  std::vector<nlohmann::json> lines;
  read_metrics(path, [&](nlohmann::json line) { lines.push_back(std::move(line)); });
  return lines;
}

}  // namespace vcas
