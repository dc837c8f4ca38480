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
#include <csetjmp>
#include <cstdio>
// After <cstdio>, which it needs.
#include <jerror.h>
#include <jpeglib.h>
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

// What is missing or wrong inside a file is a warning of the decoder, which fills the rest with
// grey. Some do no harm: bytes between two parts of the file, a later revision of JFIF, an unknown
// colour transform. Phones write sequential scans that name other coefficients.
bool is_harmless(int message) {
  constexpr std::array kHarmless = {JWRN_EXTRANEOUS_DATA, JWRN_JFIF_MAJOR, JWRN_ADOBE_XFORM,
                                    JWRN_NOT_SEQUENTIAL};
  return std::ranges::count(kHarmless, message) > 0;
}

class JpegDecoder {
 public:
  explicit JpegDecoder(const std::string& name) : name_(name) {
    image_.err = jpeg_std_error(&errors_);
    image_.client_data = this;
    errors_.error_exit = leave;
    errors_.emit_message = [](j_common_ptr image, int level) {
      if (level < 0 && !is_harmless(image->err->msg_code)) leave(image);
    };
    run([&] { jpeg_create_decompress(&image_); });
  }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;
  ~JpegDecoder() { jpeg_destroy_decompress(&image_); }

  DecodedImage decode(Bytes bytes) {
    run([&] {
      jpeg_mem_src(&image_, bytes.data(), bytes.size());
      jpeg_read_header(&image_, TRUE);
    });
    DecodedImage image = make_image(name_, image_.image_height, image_.image_width);
    const bool cmyk = image_.jpeg_color_space == JCS_CMYK || image_.jpeg_color_space == JCS_YCCK;
    image_.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    std::vector<std::uint8_t> four(cmyk ? image.pixels.size() / 3 * 4 : 0);
    std::uint8_t* row = cmyk ? four.data() : image.pixels.data();
    const std::size_t row_bytes = static_cast<std::size_t>(image.width) * (cmyk ? 4 : 3);
    run([&] {
      jpeg_start_decompress(&image_);
      for (; image_.output_scanline < image_.output_height; row += row_bytes)
        jpeg_read_scanlines(&image_, &row, 1);
      jpeg_finish_decompress(&image_);
    });
    if (cmyk) cmyk_to_rgb(four, image.pixels);
    return image;
  }

 private:
  // A call that fails jumps back to here. So nothing within `calls` may have a destructor.
  template <class Calls>
  void run(const Calls& calls) {
    if (setjmp(jump_) != 0) fail_damaged(name_, text_);
    calls();
  }
  [[noreturn]] static void leave(j_common_ptr image) {
    auto& own = *static_cast<JpegDecoder*>(image->client_data);
    image->err->format_message(image, own.text_);
    longjmp(own.jump_, 1);
  }

  const std::string& name_;
  jpeg_decompress_struct image_{};
  jpeg_error_mgr errors_{};
  char text_[JMSG_LENGTH_MAX] = {};
  std::jmp_buf jump_;
};

DecodedImage decode_jpeg(Bytes bytes, const std::string& name) {
  return JpegDecoder(name).decode(bytes);
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
       "libjpeg-dev"},
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
