// JPEG files by libjpeg-turbo and PNG files by libspng, each where the build found the library.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace vcas {

struct DecodedImage {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::vector<std::uint8_t> pixels;  // [height, width, 3] red, green, blue
};

// Whether the name ends in .jpg, .jpeg or .png, in small letters or capitals. A format that this
// build lacks: kUnavailable.
bool has_image_name(const std::filesystem::path& path);
// Whether the name is one of texts and lists, which often lie beside images: .csv, .json, .md,
// .tsv, .txt or .xml.
bool has_text_name(const std::filesystem::path& path);

// The pixels as Pillow's convert("RGB") has them, with one difference.
// Grey with 16 bits becomes its upper eight bits. An orientation in the file is not looked at.
// The first bytes tell the format. Corrupt, cut off, or in another format: kBadData, naming `path`.
// A format that this build lacks: kUnavailable.
DecodedImage decode_image(std::string_view bytes, const std::string& path);
// The same of a file. Missing or unreadable: kNoInput.
DecodedImage read_image(const std::filesystem::path& path);

// "JPEG: yes  PNG: no"
std::string image_formats();

}  // namespace vcas
