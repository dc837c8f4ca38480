#include "data/token_stream.h"

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "core/error.h"
#include "core/files.h"
#include "tests/core/environment.h"
#include "tests/data/data_files.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;
using namespace vcas;

namespace {

using Ids = std::vector<std::int32_t>;

// More than one block, in portions that fit none.
Ids many() {
  Ids ids((1 << 18) + 12345);
  std::iota(ids.begin(), ids.end(), 7);
  return ids;
}

std::int64_t give(const Ids& ids, const TokenSink& sink) {
  constexpr std::size_t kPortion = 1001;
  for (std::size_t at = 0; at < ids.size(); at += kPortion)
    sink(std::span(ids).subspan(at, std::min(kPortion, ids.size() - at)));
  return 3;  // bad rows
}

Ids content_of(const TokenStream& stream) {
  return {stream.tokens().begin(), stream.tokens().end()};
}

}  // namespace

TEST_CASE("a stream of tokens is read as it was written", "[stream]") {
  const DataFolder folder;
  const fs::path file = folder.path() / "x";
  const auto make = [](const TokenSink& sink) { return give(many(), sink); };
  write_token_stream(file, make);
  CHECK(content_of(TokenStream(file)) == many());
  CHECK(TokenStream(file).skipped_rows() == 3);
  CHECK(content_of(token_stream_in_memory(make)) == many());
  CHECK(token_stream_in_memory(make).skipped_rows() == 3);
  TokenStream moved = TokenStream(Ids{1, 2});
  const TokenStream here = std::move(moved);
  CHECK(content_of(here) == Ids{1, 2});
  write_token_stream(file, [](const TokenSink&) { return 0; });
  CHECK(TokenStream(file).tokens().empty());
}

TEST_CASE("a damaged stream is refused", "[stream]") {
  const DataFolder folder;
  const fs::path file = folder.path() / "x";
  write_token_stream(file, [](const TokenSink& sink) { return give(many(), sink); });
  const std::string good = read_file(file);
  const auto check = [&](const std::string& bytes) {
    atomic_write(file, bytes);
    check_error([&] { TokenStream stream(file); }, ExitCode::kBadData, "x: damaged");
  };
  for (const std::size_t at :
       {std::size_t{0}, good.size() / 2, good.size() - 30, good.size() - 10, good.size() - 1}) {
    std::string bad = good;
    bad[at] ^= 1;
    check(bad);
  }
  check(good.substr(4));
  check(good.substr(0, good.size() - 4));
  check("");
}

TEST_CASE("streams made together get in nobody's way, and leave only names that are cleaned",
          "[stream][cache]") {
  const DataFolder folder;
  const EnvironmentVariable variable("VCAS_CACHE_DIR", folder.path().c_str());
  const auto load = [&](auto& self, int more) -> Ids {
    return content_of(cached_token_stream(5, [&](const TokenSink& sink) {
      for (const auto& entry : fs::directory_iterator(folder.path()))
        CHECK(finished_name(entry.path().filename()) == "tokens-0000000000000005.stream");
      if (more > 0) CHECK(self(self, more - 1) == Ids{1, 2, 3});
      sink(Ids{1, 2, 3});
      return 0;
    }));
  };
  CHECK(load(load, 2) == Ids{1, 2, 3});
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("streams are cached, and made anew or in memory where that fails", "[stream][cache]") {
  const DataFolder folder;
  const fs::path cache = folder.path() / "cache";
  const EnvironmentVariable variable("VCAS_CACHE_DIR", cache.c_str());
  int made = 0;
  const auto load = [&] {
    return content_of(cached_token_stream(5, [&](const TokenSink& sink) {
      ++made;
      sink(Ids{1, 2, 3});
      return 0;
    }));
  };
  CHECK(load() == Ids{1, 2, 3});
  CHECK(load() == Ids{1, 2, 3});
  CHECK(made == 1);
  // What a killed run left goes; what another one writes stays.
  const fs::path old = cache / "tokens-0000000000000007.stream.tmp-3";
  const fs::path written = cache / "tokens-0000000000000008.stream.tmp";
  const fs::path strange = cache / "report.tmp", theirs = cache / "tokens-7.tmp-mine";
  for (const fs::path& path : {old, written, strange, theirs}) {
    std::ofstream(path) << "tokens";
    if (path != written)
      fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(2));
  }
  fs::remove(cache / "tokens-0000000000000005.stream");
  CHECK(load() == Ids{1, 2, 3});
  CHECK_FALSE(fs::exists(old));
  CHECK(fs::remove(written));
  CHECK(fs::remove(strange));
  CHECK(fs::remove(theirs));
  made = 1;
  const fs::path file = cache / "tokens-0000000000000005.stream";
  REQUIRE(fs::exists(file));
  CHECK(std::distance(fs::directory_iterator(cache), {}) == 1);
  atomic_write(file, "damaged");
  CHECK(load() == Ids{1, 2, 3});
  CHECK(made == 2);
  CHECK(load() == Ids{1, 2, 3});
  CHECK(made == 2);

  // Bad data are no reason to read them again.
  int tried = 0;
  check_error(
      [&] {
        cached_token_stream(6, [&](const TokenSink&) -> std::int64_t {
          ++tried;
          throw Error(ExitCode::kBadData, "no text");
        });
      },
      ExitCode::kBadData, "no text");
  CHECK(tried == 1);
  CHECK(std::distance(fs::directory_iterator(cache), {}) == 1);

  fs::remove_all(cache);
  atomic_write(cache, "a file where the folder should be");
  CHECK(load() == Ids{1, 2, 3});
  CHECK(made == 3);
  fs::remove(cache);
  fs::create_directories(file / "x");  // where the file should be
  CHECK(load() == Ids{1, 2, 3});
}
