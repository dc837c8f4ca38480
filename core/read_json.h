// JSON files that others may have written.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

namespace vcas {

// Missing or unreadable: kNoInput. Throws kBadData, with the place, for what is not JSON.
// Values nest at most 64 deep: deeper ones are walked and copied by recursion.
nlohmann::json read_json(const std::filesystem::path& file);
nlohmann::ordered_json read_ordered_json(const std::filesystem::path& file);

}  // namespace vcas
