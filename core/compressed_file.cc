#include "core/compressed_file.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <functional>
#include <new>
#include <string_view>
#include <system_error>

#include "core/error.h"
#ifdef VCAS_LZMA
#include <lzma.h>
#endif
#ifdef VCAS_ZSTD
#include <zstd.h>
#endif

namespace vcas {

class DecompressedFile::Decoder {
 public:
  struct Progress {
    std::size_t consumed = 0;
    std::size_t produced = 0;
    bool member_ended = false;
    std::string failure = {};  // why the bytes are not what they should be; empty: they are
  };

  virtual ~Decoder() = default;
  virtual Progress decode(std::span<const std::byte> in, std::span<std::uint8_t> out) = 0;
};

namespace {

using Decoder = DecompressedFile::Decoder;
using Bytes = std::span<const std::byte>;

constexpr std::size_t kMostAtOnce = 1 << 30;  // zlib counts in 32 bits

class GzipDecoder final : public Decoder {
 public:
  GzipDecoder() {
    constexpr int kGzipWindow = 15 + 16;  // 32 KiB window, gzip wrapper only
    if (inflateInit2(&stream_, kGzipWindow) != Z_OK) throw std::bad_alloc();
  }
  ~GzipDecoder() override { inflateEnd(&stream_); }

  Progress decode(Bytes in, std::span<std::uint8_t> out) override {
    const auto in_size = static_cast<uInt>(std::min(kMostAtOnce, in.size()));
    const auto out_size = static_cast<uInt>(std::min(kMostAtOnce, out.size()));
    // zlib only reads it, though the type does not say so.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(in.data()));
    stream_.avail_in = in_size;
    stream_.next_out = out.data();
    stream_.avail_out = out_size;
    const int status = inflate(&stream_, Z_NO_FLUSH);
    Progress progress{in_size - stream_.avail_in, out_size - stream_.avail_out};
    if (status == Z_MEM_ERROR) throw std::bad_alloc();
    progress.member_ended = status == Z_STREAM_END;
    if (progress.member_ended) {
      inflateReset(&stream_);
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      progress.failure = stream_.msg ? stream_.msg : "unknown cause";
    }
    return progress;
  }

 private:
  z_stream stream_{};
};

#ifdef VCAS_LZMA
class XzDecoder final : public Decoder {
 public:
  XzDecoder() { start(); }
  ~XzDecoder() override { lzma_end(&stream_); }

  Progress decode(Bytes in, std::span<std::uint8_t> out) override {
    stream_.next_in = reinterpret_cast<const std::uint8_t*>(in.data());
    stream_.avail_in = in.size();
    stream_.next_out = out.data();
    stream_.avail_out = out.size();
    const lzma_ret status = lzma_code(&stream_, LZMA_RUN);
    Progress progress{in.size() - stream_.avail_in, out.size() - stream_.avail_out};
    if (status == LZMA_MEM_ERROR) throw std::bad_alloc();
    progress.member_ended = status == LZMA_STREAM_END;
    if (progress.member_ended) {
      start();
    } else if (status == LZMA_DATA_ERROR) {
      progress.failure = "incorrect data";
    } else if (status != LZMA_OK && status != LZMA_BUF_ERROR) {
      progress.failure = fmt::format("incorrect header or options ({})", int{status});
    }
    return progress;
  }

 private:
  void start() {
    if (lzma_stream_decoder(&stream_, UINT64_MAX, 0) != LZMA_OK) throw std::bad_alloc();
  }

  lzma_stream stream_ = LZMA_STREAM_INIT;
};
#endif

#ifdef VCAS_ZSTD
class ZstdDecoder final : public Decoder {
 public:
  ZstdDecoder() : stream_(ZSTD_createDStream()) {
    if (!stream_) throw std::bad_alloc();
  }
  ~ZstdDecoder() override { ZSTD_freeDStream(stream_); }

  Progress decode(Bytes in, std::span<std::uint8_t> out) override {
    ZSTD_inBuffer input{in.data(), in.size(), 0};
    ZSTD_outBuffer output{out.data(), out.size(), 0};
    const std::size_t status = ZSTD_decompressStream(stream_, &output, &input);
    Progress progress{input.pos, output.pos};
    if (ZSTD_isError(status)) {
      progress.failure = ZSTD_getErrorName(status);
    } else {
      progress.member_ended = status == 0;
    }
    return progress;
  }

 private:
  ZSTD_DStream* stream_;
};
#endif

struct Compression {
  const char* name;
  const char* suffix;
  std::string_view magic;
  const char* magic_text;
  std::function<std::unique_ptr<Decoder>()> make;  // null: not built in
  const char* package;
  bool padded;  // zeros may follow a member, and say nothing
};

const std::array<Compression, 3>& compressions() {
  static const std::array<Compression, 3> all = {{
      {"gzip", ".gz", "\x1F\x8B", "1f 8b", [] { return std::make_unique<GzipDecoder>(); }, "",
       true},
      {"xz", ".xz", std::string_view("\xFD\x37zXZ\0", 6), "fd 37 7a 58 5a 00",
#ifdef VCAS_LZMA
       [] { return std::make_unique<XzDecoder>(); },
#else
       nullptr,
#endif
       "liblzma-dev", true},
      {"zstd", ".zst", "\x28\xB5\x2F\xFD", "28 b5 2f fd",
#ifdef VCAS_ZSTD
       [] { return std::make_unique<ZstdDecoder>(); },
#else
       nullptr,
#endif
       "libzstd-dev", false},
  }};
  return all;
}

// A frame of zstd to pass over, with which files of pzstd begin (RFC 8878, 3.1.2).
bool is_skippable_frame(Bytes start) {
  constexpr std::string_view kRest = "\x2A\x4D\x18";
  return start.size() > kRest.size() && (start[0] & std::byte{0xF0}) == std::byte{0x50} &&
         std::memcmp(start.data() + 1, kRest.data(), kRest.size()) == 0;
}

// `start`: the first bytes of the file. Null for a plain one.
const Compression* compression_of(Bytes start, std::size_t size,
                                  const std::filesystem::path& path) {
  for (const Compression& kind : compressions()) {
    const bool is_named = path.extension() == kind.suffix;
    if ((start.size() >= kind.magic.size() &&
         std::memcmp(start.data(), kind.magic.data(), kind.magic.size()) == 0) ||
        (is_named && kind.suffix == std::string_view(".zst") && is_skippable_frame(start))) {
      if (kind.make) return &kind;
      throw Error(
          ExitCode::kUnavailable,
          fmt::format("{}: this build cannot read {} files", path.string(), kind.name),
          fmt::format("decompress the file, or apt-get install {} and build again", kind.package));
    }
    if (is_named) {
      throw Error(ExitCode::kBadData,
                  fmt::format("{}: not a {} file: its {} bytes do not begin with {}", path.string(),
                              kind.name, size, kind.magic_text));
    }
  }
  return nullptr;
}

[[noreturn]] void fail_damaged(const std::string& what) {
  throw Error(ExitCode::kBadData, what, "the file is damaged: copy or download it again");
}

}  // namespace

std::optional<std::filesystem::path> plain_or_compressed(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) return path;
  for (const Compression& kind : compressions()) {
    std::filesystem::path compressed = path;
    compressed += kind.suffix;
    if (std::filesystem::exists(compressed, ignored)) return compressed;
  }
  return std::nullopt;
}

std::filesystem::path find_plain_or_compressed(const std::filesystem::path& path,
                                               const std::string& missing_hint) {
  if (const auto found = plain_or_compressed(path)) return *found;
  std::error_code error;
  if (!std::filesystem::exists(path, error) && error)
    throw Error(ExitCode::kNoInput, fmt::format("{}: {}", path.string(), error.message()));
  throw Error(ExitCode::kNoInput, path.string() + ": no such file, nor with .gz, .xz or .zst",
              missing_hint);
}

DecompressedFile::DecompressedFile(const std::filesystem::path& path)
    : name_(path.string()), file_(path), piece_(1 << 18) {
  unread_ = std::span(piece_).first(file_.read(piece_));
  if (const Compression* kind = compression_of(unread_, file_.size(), path)) {
    decoder_ = kind->make();
    padded_ = kind->padded;
    name_ += fmt::format(": {} data", kind->name);
    inside_ = true;
  }
}

DecompressedFile::~DecompressedFile() = default;

std::size_t DecompressedFile::read(std::span<std::uint8_t> out) {
  std::size_t filled = 0;
  if (!decoder_) {
    filled = std::min(out.size(), unread_.size());
    if (filled > 0) std::memcpy(out.data(), unread_.data(), filled);
    unread_ = unread_.subspan(filled);
    return filled + file_.read(std::as_writable_bytes(out.subspan(filled)));
  }
  while (filled < out.size()) {
    if (unread_.empty()) unread_ = std::span(piece_).first(file_.read(piece_));
    if (!inside_ && padded_) skip_zeros();
    if (unread_.empty() && !inside_) break;
    const Decoder::Progress progress = decoder_->decode(unread_, out.subspan(filled));
    unread_ = unread_.subspan(progress.consumed);
    consumed_ += progress.consumed;
    filled += progress.produced;
    if (!progress.failure.empty())
      fail_damaged(
          fmt::format("{} is corrupt near byte {}: {}", name_, consumed_, progress.failure));
    // There was room to write but nothing left to read.
    if (!progress.member_ended && progress.consumed + progress.produced == 0)
      fail_damaged(fmt::format("{} is cut off after {} bytes", name_, consumed_));
    inside_ = !progress.member_ended;
  }
  return filled;
}

void DecompressedFile::skip_zeros() {
  while (!unread_.empty()) {
    const auto other = std::ranges::find_if(unread_, [](std::byte b) { return b != std::byte{0}; });
    const auto zeros = static_cast<std::size_t>(other - unread_.begin());
    consumed_ += zeros;
    unread_ = unread_.subspan(zeros);
    if (!unread_.empty()) return;
    unread_ = std::span(piece_).first(file_.read(piece_));
  }
}

std::string compression_formats() {
  std::string text;
  for (const Compression& kind : compressions())
    text += fmt::format("{}{}: {}", text.empty() ? "" : "  ", kind.name, kind.make ? "yes" : "no");
  return text;
}

std::vector<std::uint8_t> DecompressedFile::read_up_to(std::size_t most) {
  std::vector<std::uint8_t> out, piece(std::min<std::size_t>(most, 1 << 18));
  while (out.size() < most) {
    const std::span<std::uint8_t> next =
        std::span(piece).first(std::min(piece.size(), most - out.size()));
    const std::size_t count = read(next);
    out.insert(out.end(), next.begin(), next.begin() + static_cast<std::ptrdiff_t>(count));
    if (count < next.size()) break;
  }
  return out;
}

std::vector<std::uint8_t> read_decompressed(const std::filesystem::path& path, std::size_t most) {
  std::vector<std::uint8_t> out = DecompressedFile(path).read_up_to(most + 1);
  if (out.size() > most)
    throw Error(ExitCode::kBadData,
                fmt::format("{}: holds more than {} bytes, which is the most of such a file",
                            path.string(), most));
  return out;
}

}  // namespace vcas
