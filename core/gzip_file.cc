#include "core/gzip_file.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <system_error>

#include "core/error.h"
#include "core/files.h"

namespace vcas {
namespace {

std::vector<std::uint8_t> gunzip(std::span<const std::byte> packed, const std::string& name) {
  const std::string hint = "the file is damaged: copy or download it again";
  z_stream stream{};
  constexpr int kGzipWindow = 15 + 16;  // 32 KiB window, gzip wrapper only
  if (inflateInit2(&stream, kGzipWindow) != Z_OK) throw std::bad_alloc();
  const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&stream, &inflateEnd);

  std::vector<std::uint8_t> out(std::max<std::size_t>(1 << 16, 4 * packed.size()));
  std::size_t consumed = 0;
  std::size_t produced = 0;
  while (true) {
    constexpr std::size_t kChunk = 1 << 30;  // zlib counts in 32 bits
    if (produced == out.size()) out.resize(2 * out.size());
    const auto in_size = static_cast<uInt>(std::min(kChunk, packed.size() - consumed));
    const auto out_size = static_cast<uInt>(std::min(kChunk, out.size() - produced));
    // zlib only reads it, though the type does not say so.
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data())) + consumed;
    stream.avail_in = in_size;
    stream.next_out = out.data() + produced;
    stream.avail_out = out_size;
    const int status = inflate(&stream, Z_NO_FLUSH);
    consumed += in_size - stream.avail_in;
    produced += out_size - stream.avail_out;
    if (status == Z_STREAM_END) {
      if (consumed == packed.size()) break;
      inflateReset(&stream);  // another member follows
    } else if (status == Z_MEM_ERROR) {
      throw std::bad_alloc();
    } else if (status == Z_BUF_ERROR) {  // there was room to write but nothing to read
      throw Error(ExitCode::kBadData,
                  fmt::format("{}: gzip data is cut off after {} bytes", name, consumed), hint);
    } else if (status != Z_OK) {
      throw Error(ExitCode::kBadData,
                  fmt::format("{}: gzip data is corrupt near byte {}: {}", name, consumed,
                              stream.msg ? stream.msg : "unknown cause"),
                  hint);
    }
  }
  out.resize(produced);
  return out;
}

}  // namespace

std::filesystem::path find_plain_or_gzip(const std::filesystem::path& path,
                                         const std::string& missing_hint) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) return path;
  std::filesystem::path gzip = path;
  gzip += ".gz";
  if (std::filesystem::exists(gzip, ignored)) return gzip;
  throw Error(ExitCode::kNoInput, path.string() + ": no such file, nor " + gzip.string(),
              missing_hint);
}

std::vector<std::uint8_t> read_gzip_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  const std::span<const std::byte> bytes = file.bytes();
  const std::string name = path.string();
  if (bytes.size() >= 2 && bytes[0] == std::byte{0x1F} && bytes[1] == std::byte{0x8B}) {
    return gunzip(bytes, name);
  }
  if (path.extension() == ".gz") {
    throw Error(ExitCode::kBadData,
                fmt::format("{}: not a gzip file: the first two of its {} bytes are not 1f 8b",
                            name, bytes.size()));
  }
  const auto* begin = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return {begin, begin + bytes.size()};
}

}  // namespace vcas
