#include "core/read_json.h"

#include "core/files.h"
#include "tests/core/temporary_folder.h"
#include "tests/support/check_error.h"

using namespace vcas;

TEST_CASE("read_json: values nest so deep that walking them is safe, and no deeper", "[json]") {
  TemporaryFolder folder;
  const auto file = folder.path() / "a.json";
  const auto nested = [&](std::size_t depth) {
    atomic_write(file, std::string(depth, '[') + std::string(depth, ']'));
    return file;
  };
  CHECK(read_json(nested(64)).is_array());
  CHECK(read_ordered_json(nested(64)).is_array());
  for (const std::size_t depth : {65, 1'000'000}) {
    nested(depth);
    const std::string message = file.string() + ": values nest deeper than 64";
    CHECK_THROWS_WITH(read_json(file), message);
    CHECK_THROWS_WITH(read_ordered_json(file), message);
  }
}

TEST_CASE("read_json: a NUL is not the end", "[json]") {
  TemporaryFolder folder;
  const auto file = folder.path() / "a.json";
  atomic_write(file, std::string_view("{}\n \0 x", 7));
  check_whole_error([&] { read_json(file); }, ExitCode::kBadData,
                    file.string() + ":2:2: a NUL byte; JSON is text in UTF-8",
                    "the file is damaged, or has another encoding");
}

TEST_CASE("read_json: what is not JSON is named", "[json]") {
  TemporaryFolder folder;
  const auto file = folder.path() / "a.json";
  const auto check = [&](std::string_view text, const std::string& place_and_fault) {
    atomic_write(file, text);
    check_error([&] { read_json(file); }, ExitCode::kBadData, file.string() + place_and_fault);
  };
  check("", ":1:1: syntax error");
  check("{", ":1:2: syntax error");
  check("{]", ":1:2: syntax error");
  check("nul", ":1:1: syntax error");
  check("{} x", ":1:4: syntax error");
  check("{\n\"\xC3\xA9\" 1}", ":2:5: syntax error while parsing object separator - unexpected ");
  check("\xEF\xBB\xBF[1 2]", ":1:4: syntax error");
  check("[1e999]", ":1:2: 1e999 is too large for a number");
  check("[\"\xFF\"]", ":1:2: syntax error while parsing value - invalid string");
}
