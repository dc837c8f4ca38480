// What fuzz targets of tokenizers ask of each.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "data/tokenizer.h"
#include "data/vocabulary.h"

// The ids of `text`, all of the vocabulary; none where it is not UTF-8, which must be kBadData.
inline std::optional<std::vector<std::int32_t>> encoded(const vcas::Tokenizer& tokenizer,
                                                        std::string_view text) {
  const bool valid = !vcas::first_invalid_utf8(text);
  std::vector<std::int32_t> ids;
  try {
    tokenizer.encode(text, ids);
    if (!valid) std::abort();
  } catch (const vcas::Error& error) {
    if (error.code() != vcas::ExitCode::kBadData || valid) std::abort();
  }
  for (const std::int32_t id : ids)
    if (id < 0 || id >= tokenizer.size()) std::abort();
  if (!valid) return std::nullopt;
  return ids;
}
