// A JPEG file in memory, for tests and benchmarks of reading it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>
// After <cstdio>, which it needs.
#include <jpeglib.h>

namespace vcas {

// `pixels` [height, width, 3 or 4], RGB or Adobe's inverted CMYK. `sampling`: pixels of a side that
// share a colour.
inline std::vector<std::uint8_t> encode_jpeg(std::span<const std::uint8_t> pixels, int height,
                                             int width, int sampling) {
  jpeg_error_mgr errors{};
  jpeg_compress_struct encoder{};
  encoder.err = jpeg_std_error(&errors);
  jpeg_create_compress(&encoder);
  unsigned char* file = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&encoder, &file, &size);
  const std::size_t row_bytes = pixels.size() / static_cast<std::size_t>(height);
  encoder.image_height = static_cast<JDIMENSION>(height);
  encoder.image_width = static_cast<JDIMENSION>(width);
  encoder.input_components = static_cast<int>(row_bytes) / width;
  const bool cmyk = encoder.input_components == 4;
  encoder.in_color_space = cmyk ? JCS_CMYK : JCS_RGB;
  jpeg_set_defaults(&encoder);
  if (cmyk) jpeg_set_colorspace(&encoder, JCS_YCCK);
  jpeg_set_quality(&encoder, 95, TRUE);
  encoder.comp_info[0].h_samp_factor = encoder.comp_info[0].v_samp_factor = sampling;
  if (cmyk) encoder.comp_info[3].h_samp_factor = encoder.comp_info[3].v_samp_factor = sampling;
  jpeg_start_compress(&encoder, TRUE);
  while (encoder.next_scanline < encoder.image_height) {
    auto* row = const_cast<std::uint8_t*>(&pixels[encoder.next_scanline * row_bytes]);
    jpeg_write_scanlines(&encoder, &row, 1);
  }
  jpeg_finish_compress(&encoder);
  std::vector<std::uint8_t> bytes(file, file + size);
  jpeg_destroy_compress(&encoder);
  std::free(file);
  return bytes;
}

}  // namespace vcas
