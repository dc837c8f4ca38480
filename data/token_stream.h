// The tokens of a corpus that may be larger than memory: written to the cache piece by piece, read
// where they are needed through a map of the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "core/files.h"

namespace vcas {

class TokenStream {
 public:
  explicit TokenStream(std::vector<std::int32_t> tokens);
  // A file of `write_token_stream`. Damaged: kBadData.
  explicit TokenStream(const std::filesystem::path& path);

  std::span<const std::int32_t> tokens() const { return tokens_; }

 private:
  std::vector<std::int32_t> memory_;
  std::optional<MappedFile> file_;
  std::span<const std::int32_t> tokens_;  // of one of the two
};

using TokenSink = std::function<void(std::span<const std::int32_t>)>;
using MakeTokens = std::function<void(const TokenSink&)>;

void write_token_stream(const std::filesystem::path& path, const MakeTokens& make);

// What `make` gives, kept in memory.
TokenStream token_stream_in_memory(const MakeTokens& make);

// The same from the cache, which makes what it lacks: a damaged file anew, and in memory what
// cannot be written. `key`: a ContentHash of all that the tokens depend on.
TokenStream cached_token_stream(std::uint64_t key, const MakeTokens& make);

}  // namespace vcas
