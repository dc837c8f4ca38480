// Whole files into memory, plain or gzip.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace vcas {

// `path` where it exists, else `path`.gz. Neither: kNoInput naming both, with `missing_hint`.
std::filesystem::path find_plain_or_gzip(const std::filesystem::path& path,
                                         const std::string& missing_hint = {});

// The bytes of `path`, inflated when its name ends in .gz or its first bytes are gzip's; a gzip
// file may have many members. Missing or unreadable: kNoInput. Corrupt, cut off or followed by
// other bytes: kBadData. A failing read: kIoError.
std::vector<std::uint8_t> read_gzip_file(const std::filesystem::path& path);

}  // namespace vcas
