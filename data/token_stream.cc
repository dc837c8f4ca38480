#include "data/token_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "core/content_hash.h"
#include "core/error.h"
#include "core/files.h"
#include "core/xxh3.h"
#include "data/token_cache.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kBlock = 1 << 18;  // tokens hashed at a time

// At the end of a file: its length is known only there.
struct Trailer {
  char magic[8] = {'v', 'c', 'a', 's', 't', 'o', 'k', '3'};
  std::uint64_t tokens = 0;
  std::int64_t skipped_rows = 0;
  std::uint64_t hash = 0;
};

class Writer {
 public:
  explicit Writer(const fs::path& path) : file_(path) { block_.reserve(kBlock); }

  void add(std::span<const std::int32_t> tokens) {
    trailer_.tokens += tokens.size();
    while (!tokens.empty()) {
      const std::size_t count = std::min(tokens.size(), kBlock - block_.size());
      block_.insert(block_.end(), tokens.begin(), tokens.begin() + std::ptrdiff_t(count));
      tokens = tokens.subspan(count);
      if (block_.size() == kBlock) flush();
    }
  }

  void commit(std::int64_t skipped_rows) {
    if (!block_.empty()) flush();
    trailer_.skipped_rows = skipped_rows;
    hash_.add_number(static_cast<std::uint64_t>(skipped_rows));
    trailer_.hash = hash_.value();
    file_.write(std::as_bytes(std::span(&trailer_, 1)));
    file_.commit();
  }

 private:
  void flush() {
    hash_.add_number(xxh3(std::as_bytes(std::span(block_))));
    file_.write(std::as_bytes(std::span(block_)));
    block_.clear();
  }

  AtomicFile file_;
  std::vector<std::int32_t> block_;
  ContentHash hash_;
  Trailer trailer_;
};

// Reads the file, rather than its map: what was only checked need not stay in memory.
std::uint64_t hash_of(const fs::path& path, const Trailer& trailer) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::byte> block(kBlock * sizeof(std::int32_t));
  ContentHash hash;
  for (std::uint64_t left = trailer.tokens * sizeof(std::int32_t); left > 0;) {
    const std::size_t count = std::min<std::uint64_t>(left, block.size());
    file.read(reinterpret_cast<char*>(block.data()), static_cast<std::streamsize>(count));
    hash.add_number(xxh3(std::span(block).first(count)));
    left -= count;
  }
  hash.add_number(static_cast<std::uint64_t>(trailer.skipped_rows));
  return hash.value();
}

}  // namespace

TokenStream::TokenStream(std::vector<std::int32_t> tokens, std::int64_t skipped_rows)
    : memory_(std::move(tokens)), tokens_(memory_), skipped_rows_(skipped_rows) {}

TokenStream::TokenStream(const fs::path& path) : file_(path) {
  const std::span<const std::byte> bytes = file_->bytes();
  const Trailer wanted;
  Trailer trailer;
  if (bytes.size() >= sizeof trailer)
    std::memcpy(&trailer, bytes.data() + bytes.size() - sizeof trailer, sizeof trailer);
  if (bytes.size() < sizeof trailer ||
      std::memcmp(trailer.magic, wanted.magic, sizeof wanted.magic) != 0 ||
      trailer.tokens != (bytes.size() - sizeof trailer) / sizeof(std::int32_t) ||
      trailer.hash != hash_of(path, trailer))
    throw Error(ExitCode::kBadData, path.string() + ": damaged");
  tokens_ = {reinterpret_cast<const std::int32_t*>(bytes.data()), trailer.tokens};
  skipped_rows_ = trailer.skipped_rows;
}

void write_token_stream(const fs::path& path, const MakeTokens& make) {
  Writer writer(path);
  writer.commit(make([&](std::span<const std::int32_t> tokens) { writer.add(tokens); }));
}

TokenStream token_stream_in_memory(const MakeTokens& make) {
  std::vector<std::int32_t> all;
  const std::int64_t skipped = make([&](std::span<const std::int32_t> tokens) {
    all.insert(all.end(), tokens.begin(), tokens.end());
  });
  return TokenStream(std::move(all), skipped);
}

TokenStream cached_token_stream(std::uint64_t key, const MakeTokens& make) {
  const std::optional<fs::path> folder = cache_folder();
  if (!folder) return token_stream_in_memory(make);
  const fs::path path = *folder / fmt::format("tokens-{:016x}.stream", key);
  try {
    return TokenStream(path);
  } catch (const Error&) {  // absent or damaged: both are mended by making it
  }
  try {
    fs::create_directories(*folder);
    remove_abandoned(*folder, "tokens-");
    write_token_stream(path, make);  // runs that start together each write a file of their own
    return TokenStream(path);
  } catch (const fs::filesystem_error&) {
  } catch (const Error& error) {
    // A full or read-only disk stops no training; bad data do.
    if (error.code() != ExitCode::kIoError && error.code() != ExitCode::kCannotCreate) throw;
  }
  return token_stream_in_memory(make);
}

}  // namespace vcas
