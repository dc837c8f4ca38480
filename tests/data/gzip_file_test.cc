#include "core/gzip_file.h"

#include "tests/data/data_files.h"

using namespace vcas;

namespace {

Bytes pattern(std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::uint8_t>(i * i >> 3);
  return bytes;
}

}  // namespace

TEST_CASE("plain and gzip files give the same bytes", "[gzip]") {
  const TemporaryFolder folder;
  for (const std::size_t size : {0, 1, 2, 1000, 65536, 3000000}) {
    const Bytes want = pattern(size);
    CHECK(read_gzip_file(folder.write("plain", want)) == want);
    CHECK(read_gzip_file(folder.write("packed.gz", gzip(want))) == want);
    CHECK(read_gzip_file(folder.write("packed_without_suffix", gzip(want))) == want);
  }
}

TEST_CASE("a file that inflates a thousandfold is read in full", "[gzip]") {
  const TemporaryFolder folder;
  const Bytes want(5000000, 7);
  CHECK(read_gzip_file(folder.write("zeros.gz", gzip(want))) == want);
}

TEST_CASE("all members of a gzip file are read", "[gzip]") {
  const TemporaryFolder folder;
  const Bytes a = pattern(1000);
  const Bytes b = pattern(70000);
  const auto path = folder.write("two.gz", gzip(a) + gzip({}) + gzip(b));
  CHECK(read_gzip_file(path) == a + b);
}

TEST_CASE("bad gzip files are refused by name", "[gzip]") {
  const TemporaryFolder folder;
  const Bytes good = gzip(pattern(50000));
  const auto read = [&](const Bytes& bytes) {
    return [&folder, bytes] { read_gzip_file(folder.write("x.gz", bytes)); };
  };
  for (const std::size_t size :
       {std::size_t{2}, std::size_t{9}, good.size() / 2, good.size() - 1}) {
    check_error(read(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size))),
                ExitCode::kBadData,
                "x.gz: gzip data is cut off after " + std::to_string(size) + " bytes");
  }
  Bytes flipped = good;
  flipped[flipped.size() - 6] ^= 1;  // in the CRC
  check_error(read(flipped), ExitCode::kBadData, "x.gz: gzip data is corrupt near byte");
  check_error(read(flipped), ExitCode::kBadData, "incorrect data check");
  check_error(read(good + Bytes{'t', 'r', 'a', 'i', 'l'}), ExitCode::kBadData,
              "incorrect header check");
  check_error(read(Bytes{'<', 'h', 't'}), ExitCode::kBadData,
              "x.gz: not a gzip file: the first two of its 3 bytes are not 1f 8b");
  check_error(read({}), ExitCode::kBadData, "x.gz: not a gzip file");
}

TEST_CASE("a missing file names both paths and the hint", "[gzip]") {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "data").string();
  const Error error = error_of([&] { find_plain_or_gzip(path, "get it there"); });
  CHECK(error.code() == ExitCode::kNoInput);
  CHECK(std::string(error.what()) == path + ": no such file, nor " + path + ".gz");
  CHECK(error.hint() == "get it there");
  check_error([&] { read_gzip_file(path); }, ExitCode::kNoInput, path);
  check_error([&] { read_gzip_file(folder.path()); }, ExitCode::kNoInput, folder.path().string());
}

TEST_CASE("the plain file goes before the gzip file", "[gzip]") {
  const TemporaryFolder folder;
  const auto gz = folder.write("data.gz", gzip({1}));
  CHECK(find_plain_or_gzip(folder.path() / "data") == gz);
  const auto plain = folder.write("data", {2});
  CHECK(find_plain_or_gzip(folder.path() / "data") == plain);
}
