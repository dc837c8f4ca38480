// The hash XXH3 of 64 bits (Collet, xxhash). Not for secrets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace vcas {

std::uint64_t xxh3(std::span<const std::byte> bytes);
// The hash of a whole file. Throws as InputFile does.
std::uint64_t xxh3_of_file(const std::filesystem::path& path);

}  // namespace vcas
