#include "data/image_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string_view>

#include "core/error.h"
#include "core/files.h"
#include "core/utf8.h"
#ifdef VCAS_JPEG
#include <turbojpeg.h>
#endif
#ifdef VCAS_PNG
#include <spng.h>
#endif

namespace vcas {
namespace {

using Bytes = std::span<const unsigned char>;

constexpr const char* kBadFileHint =
    "replace the file, or take it out of the folder; data.skip_bad_rows=true leaves it out, and "
    "vcas-train --validate finds all of its kind";

[[noreturn]] void fail_damaged(const std::string& name, const std::string& why) {
  throw Error(ExitCode::kBadData, fmt::format("{}: {}", name, why), kBadFileHint);
}

// Room for the pixels, before a small file can ask for all memory.
[[maybe_unused]] DecodedImage make_image(const std::string& name, std::int64_t height,
                                         std::int64_t width) {
  constexpr std::int64_t kMostPixels = std::int64_t{1} << 28;
  if (height < 1 || width < 1 || height > kMostPixels / width)
    fail_damaged(name, fmt::format("an image of {} x {} pixels", height, width));
  return {height, width, std::vector<std::uint8_t>(static_cast<std::size_t>(3 * height * width))};
}

#ifdef VCAS_JPEG
// From Adobe's inverted CMYK: [pixels, 4] to [pixels, 3].
void cmyk_to_rgb(const std::vector<std::uint8_t>& cmyk, std::vector<std::uint8_t>& rgb) {
  for (std::size_t i = 0; i < rgb.size(); ++i)
    rgb[i] = static_cast<std::uint8_t>((cmyk[i / 3 * 4 + i % 3] * cmyk[i / 3 * 4 + 3] + 127) / 255);
}

DecodedImage decode_jpeg(Bytes bytes, const std::string& name) {
  const auto destroy = [](tjhandle handle) { tjDestroy(handle); };
  const std::unique_ptr<void, decltype(destroy)> decoder(tjInitDecompress(), destroy);
  if (!decoder) throw std::bad_alloc();
  // What is missing or wrong inside the file is a warning of the decoder, which fills the rest with
  // grey. Bytes between two parts of the file do no harm, nor does a later revision of JFIF.
  const auto check = [&](int status) {
    const std::string why = status == 0 ? "" : tjGetErrorStr2(decoder.get());
    if (status == 0 || (tjGetErrorCode(decoder.get()) == TJERR_WARNING &&
                        (why.find("extraneous bytes") != std::string::npos ||
                         why.find("unknown JFIF revision") != std::string::npos)))
      return;
    fail_damaged(name, why);
  };
  int width = 0, height = 0, subsampling = 0, colours = 0;
  const int status = tjDecompressHeader3(decoder.get(), bytes.data(), bytes.size(), &width, &height,
                                         &subsampling, &colours);
  if (width < 1) check(status);  // a subsampling that has no name there is read all the same
  DecodedImage image = make_image(name, height, width);
  const bool cmyk = colours == TJCS_CMYK || colours == TJCS_YCCK;
  std::vector<std::uint8_t> four(cmyk ? image.pixels.size() / 3 * 4 : 0);
  check(tjDecompress2(decoder.get(), bytes.data(), bytes.size(),
                      cmyk ? four.data() : image.pixels.data(), width, 0, height,
                      cmyk ? TJPF_CMYK : TJPF_RGB, 0));
  if (cmyk) cmyk_to_rgb(four, image.pixels);
  return image;
}
#endif

#ifdef VCAS_PNG
DecodedImage decode_png(Bytes bytes, const std::string& name) {
  const auto destroy = [](spng_ctx* context) { spng_ctx_free(context); };
  const std::unique_ptr<spng_ctx, decltype(destroy)> decoder(spng_ctx_new(0), destroy);
  if (!decoder) throw std::bad_alloc();
  const auto check = [&](int status) {
    if (status != 0) fail_damaged(name, spng_strerror(status));
  };
  check(spng_set_png_buffer(decoder.get(), bytes.data(), bytes.size()));
  spng_ihdr header;
  check(spng_get_ihdr(decoder.get(), &header));
  DecodedImage image = make_image(name, header.height, header.width);
  check(
      spng_decode_image(decoder.get(), image.pixels.data(), image.pixels.size(), SPNG_FMT_RGB8, 0));
  return image;
}
#endif

struct Format {
  const char* name;
  std::array<std::string_view, 2> endings;
  std::string_view magic;
  DecodedImage (*decode)(Bytes, const std::string&);  // null: not built in
  const char* package;
};

const std::array<Format, 2>& formats() {
  static const std::array<Format, 2> all = {{
      {"JPEG",
       {".jpg", ".jpeg"},
       "\xFF\xD8\xFF",
#ifdef VCAS_JPEG
       decode_jpeg,
#else
       nullptr,
#endif
       "libturbojpeg0-dev"},
      {"PNG",
       {".png", ".png"},
       "\x89PNG\r\n\x1A\n",
#ifdef VCAS_PNG
       decode_png,
#else
       nullptr,
#endif
       "libspng-dev"},
  }};
  return all;
}

std::string small_ending(const std::filesystem::path& path) {
  return ascii_lower(path.extension().string());
}

void require(const Format& format, const std::string& name) {
  if (format.decode) return;
  throw Error(ExitCode::kUnavailable,
              fmt::format("{}: this build cannot read {} files", name, format.name),
              fmt::format("apt-get install {} and build again", format.package));
}

}  // namespace

bool has_image_name(const std::filesystem::path& path) {
  const std::string ending = small_ending(path);
  for (const Format& format : formats()) {
    if (std::ranges::count(format.endings, ending) == 0) continue;
    require(format, path.string());
    return true;
  }
  return false;
}

bool has_text_name(const std::filesystem::path& path) {
  constexpr std::array kEndings = {".csv", ".json", ".md", ".tsv", ".txt", ".xml"};
  return std::ranges::find(kEndings, small_ending(path)) != kEndings.end();
}

DecodedImage decode_image(std::string_view bytes, const std::string& path) {
  for (const Format& format : formats()) {
    if (!bytes.starts_with(format.magic)) continue;
    require(format, path);
    return format.decode({reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()},
                         path);
  }
  throw Error(
      ExitCode::kBadData,
      fmt::format("{}: its {} bytes do not begin as a JPEG or PNG file does", path, bytes.size()),
      kBadFileHint);
}

DecodedImage read_image(const std::filesystem::path& path) {
  return decode_image(read_file(path), path.string());
}

std::string image_formats() {
  std::string text;
  for (const Format& format : formats())
    text += fmt::format("{}{}: {}", text.empty() ? "" : "  ", format.name,
                        format.decode ? "yes" : "no");
  return text;
}

}  // namespace vcas
