// The tokens of a corpus that may be larger than memory: written to the cache piece by piece, read
// where they are needed through a map of the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "core/mapped_file.h"

namespace vcas {

class TokenStream {
 public:
  explicit TokenStream(std::vector<std::int32_t> tokens, std::int64_t skipped_rows = 0);
  // A file of `write_token_stream`. Damaged: kBadData.
  explicit TokenStream(const std::filesystem::path& path);

  std::span<const std::int32_t> tokens() const { return tokens_; }
  // Bad rows that the tokens were made without.
  std::int64_t skipped_rows() const { return skipped_rows_; }

 private:
  std::vector<std::int32_t> memory_;
  std::optional<MappedFile> file_;
  std::span<const std::int32_t> tokens_;  // of one of the two
  std::int64_t skipped_rows_ = 0;
};

using TokenSink = std::function<void(std::span<const std::int32_t>)>;
// Gives all tokens to the sink; how many bad rows were left out.
using MakeTokens = std::function<std::int64_t(const TokenSink&)>;

void write_token_stream(const std::filesystem::path& path, const MakeTokens& make);

// What `make` gives, kept in memory.
TokenStream token_stream_in_memory(const MakeTokens& make);

// The same from the cache, which makes what it lacks: a damaged file anew, and in memory what
// cannot be written. `key`: a ContentHash of all that the tokens depend on.
TokenStream cached_token_stream(std::uint64_t key, const MakeTokens& make);

}  // namespace vcas
