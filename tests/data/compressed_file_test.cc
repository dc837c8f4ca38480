#include "core/compressed_file.h"

#include "tests/data/data_files.h"
#ifdef VCAS_LZMA
#include <lzma.h>
#endif
#ifdef VCAS_ZSTD
#include <zstd.h>
#endif

using namespace vcas;

namespace {

constexpr std::size_t kMost = 1 << 23;

Bytes pattern(std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::uint8_t>(i * i >> 3);
  return bytes;
}

#ifdef VCAS_LZMA
Bytes xz(const Bytes& plain) {
  Bytes packed(lzma_stream_buffer_bound(plain.size()));
  std::size_t size = 0;
  REQUIRE(lzma_easy_buffer_encode(6, LZMA_CHECK_CRC64, nullptr, plain.data(), plain.size(),
                                  packed.data(), &size, packed.size()) == LZMA_OK);
  packed.resize(size);
  return packed;
}
#endif

#ifdef VCAS_ZSTD
Bytes zstd(const Bytes& plain) {
  Bytes packed(ZSTD_compressBound(plain.size()));
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  packed.resize(ZSTD_compress2(context, packed.data(), packed.size(), plain.data(), plain.size()));
  ZSTD_freeCCtx(context);
  return packed;
}
#endif

struct Format {
  std::string name, suffix;
  Bytes (*pack)(const Bytes&);
};

const std::vector<Format> kFormats = {
    {"gzip", ".gz", gzip},
#ifdef VCAS_LZMA
    {"xz", ".xz", xz},
#endif
#ifdef VCAS_ZSTD
    {"zstd", ".zst", zstd},
#endif
};

}  // namespace

TEST_CASE("plain and compressed files give the same bytes", "[compressed]") {
  const DataFolder folder;
  for (const std::size_t size : {0, 1, 2, 1000, 65536, 3000000}) {
    const Bytes want = pattern(size);
    CHECK(read_decompressed(folder.write("plain", want), kMost) == want);
    for (const Format& format : kFormats) {
      INFO(format.name << " of " << size << " bytes");
      CHECK(read_decompressed(folder.write("packed" + format.suffix, format.pack(want)), kMost) ==
            want);
      CHECK(read_decompressed(folder.write("no_suffix", format.pack(want)), kMost) == want);
    }
  }
}

TEST_CASE("a file that grows a thousandfold is read in full", "[compressed]") {
  const DataFolder folder;
  const Bytes want(5000000, 7);
  for (const Format& format : kFormats)
    CHECK(read_decompressed(folder.write("zeros", format.pack(want)), kMost) == want);
}

TEST_CASE("no more is decompressed than a file of its kind may hold", "[compressed]") {
  const DataFolder folder;
  for (const Format& format : kFormats) {
    const auto path = folder.write("x" + format.suffix, format.pack(Bytes(5000000, 7)));
    CHECK(read_decompressed(path, 5000000).size() == 5000000);
    check_error([&] { read_decompressed(path, 4999999); }, ExitCode::kBadData,
                path.string() + ": holds more than 4999999 bytes");
    CHECK(DecompressedFile(path).read_up_to(1000) == Bytes(1000, 7));
  }
}

TEST_CASE("all members of a compressed file are read", "[compressed]") {
  const DataFolder folder;
  const Bytes a = pattern(1000);
  const Bytes b = pattern(70000);
  for (const Format& format : kFormats) {
    const auto path = folder.write("two", format.pack(a) + format.pack({}) + format.pack(b));
    CHECK(read_decompressed(path, kMost) == a + b);
  }
}

TEST_CASE("zeros may follow members of gzip and xz, and skippable frames are passed over",
          "[compressed]") {
  const DataFolder folder;
  const Bytes plain = pattern(1000), zeros(300000, 0);  // more than a piece of the file
  for (const Format& format : kFormats) {
    INFO(format.name);
    const auto path = folder.write("x" + format.suffix,
                                   format.pack(plain) + zeros + format.pack(plain) + Bytes(4, 0));
    if (format.name == "zstd")
      check_error([&] { read_decompressed(path, kMost); }, ExitCode::kBadData, "is corrupt near");
    else
      CHECK(read_decompressed(path, kMost) == plain + plain);
    if (format.name != "zstd") continue;
    const Bytes skippable = {0x5A, 0x2A, 0x4D, 0x18, 2, 0, 0, 0, 7, 7};
    CHECK(read_decompressed(folder.write("x.zst", skippable + format.pack(plain)), kMost) == plain);
    CHECK(read_decompressed(folder.write("x.txt", skippable), kMost) == skippable);
  }
}

TEST_CASE("pieces of any size make up the whole", "[compressed]") {
  const DataFolder folder;
  const Bytes want = pattern(10000);
  for (const Format& format : kFormats) {
    DecompressedFile file(folder.write("x", format.pack(want)));
    Bytes got;
    for (std::size_t size = 1;; size = size * 7 % 1009) {
      Bytes piece(size);
      piece.resize(file.read(piece));
      got = got + piece;
      if (piece.size() < size) break;
    }
    CHECK(got == want);
    CHECK(file.read(std::span(got)) == 0);
  }
}

TEST_CASE("damaged compressed files are refused by name", "[compressed]") {
  const DataFolder folder;
  for (const Format& format : kFormats) {
    INFO(format.name);
    const std::string file = "x" + format.suffix;
    const Bytes good = format.pack(pattern(50000));
    const auto read = [&](const Bytes& bytes) {
      return [&folder, file, bytes] { read_decompressed(folder.write(file, bytes), kMost); };
    };
    for (const std::size_t size : {std::size_t{9}, good.size() / 2, good.size() - 1}) {
      check_error(
          read(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size))),
          ExitCode::kBadData,
          file + ": " + format.name + " data is cut off after " + std::to_string(size) + " bytes");
    }
    Bytes flipped = good;
    flipped[good.size() / 2] ^= 1;
    check_error(read(flipped), ExitCode::kBadData,
                file + ": " + format.name + " data is corrupt near byte");
    check_error(read(good + Bytes{'t', 'r', 'a', 'i', 'l', 'i', 'n', 'g', ' ', ' ', ' ', ' '}),
                ExitCode::kBadData, "data is corrupt near byte");
    check_error(read(Bytes{'<', 'h', 't'}), ExitCode::kBadData,
                file + ": not a " + format.name + " file: its 3 bytes do not begin with ");
    check_error(read({}), ExitCode::kBadData, file + ": not a " + format.name + " file");
  }
}

TEST_CASE("a missing file is named with the hint", "[compressed]") {
  const DataFolder folder;
  const std::string path = (folder.path() / "data").string();
  const Error error = error_of([&] { find_plain_or_compressed(path, "get it there"); });
  CHECK(error.code() == ExitCode::kNoInput);
  CHECK(std::string(error.what()) == path + ": no such file, nor with .gz, .xz or .zst");
  CHECK(error.hint() == "get it there");
  CHECK_FALSE(plain_or_compressed(path));
  check_error([&] { read_decompressed(path, kMost); }, ExitCode::kNoInput, path);
  check_error([&] { read_decompressed(folder.path(), kMost); }, ExitCode::kNoInput,
              folder.path().string());
}

TEST_CASE("the plain file goes before the compressed one", "[compressed]") {
  const DataFolder folder;
  const auto xz_file = folder.write("data.xz", {});
  CHECK(find_plain_or_compressed(folder.path() / "data") == xz_file);
  const auto gz = folder.write("data.gz", gzip({1}));
  CHECK(find_plain_or_compressed(folder.path() / "data") == gz);
  const auto plain = folder.write("data", {2});
  CHECK(find_plain_or_compressed(folder.path() / "data") == plain);
}
