#include "core/read_json.h"

#include <fmt/format.h>

#include "core/files.h"
#include "core/json_text.h"

namespace vcas {
namespace {

constexpr int kMostNested = 64;

template <class Json>
Json parse_file(const std::filesystem::path& file) {
  const auto fail = [&](const std::string& why) {
    throw Error(ExitCode::kBadData, fmt::format("{}: {}", file.string(), why));
  };
  const auto check_depth = [&](int depth, typename Json::parse_event_t, Json&) {
    if (depth >= kMostNested) fail(fmt::format("values nest deeper than {}", kMostNested));
    return true;
  };
  const SourceText source{file.string(), read_file(file)};
  // The parser takes it for the end.
  if (const std::size_t nul = source.text.find('\0'); nul != std::string::npos)
    throw Error(ExitCode::kBadData,
                fmt::format("{}: a NUL byte; JSON is text in UTF-8", source.place(nul)),
                "the file is damaged, or has another encoding");
  try {
    return Json::parse(source.text, check_depth);
  } catch (const typename Json::exception&) {  // whose columns are those of bytes
    const JsonSyntaxError error = parse_json(source.text, /*ignore_comments=*/false).error.value();
    throw Error(ExitCode::kBadData,
                fmt::format("{}: {}", source.place(error.offset), error.message));
  }
  return {};
}

}  // namespace

nlohmann::json read_json(const std::filesystem::path& file) {
  return parse_file<nlohmann::json>(file);
}

nlohmann::ordered_json read_ordered_json(const std::filesystem::path& file) {
  return parse_file<nlohmann::ordered_json>(file);
}

}  // namespace vcas
