// Small files for the readers' tests, and what a reader says about a bad one.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "tests/core/temporary_folder.h"
#include "tests/support/catch.h"
#include "tests/support/check_error.h"

namespace vcas {

using Bytes = std::vector<std::uint8_t>;

class DataFolder : public TemporaryFolder {
 public:
  std::filesystem::path write(const std::string& name, const Bytes& bytes) const {
    std::ofstream file(path() / name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
    REQUIRE(file.good());
    return path() / name;
  }
  std::filesystem::path write_text(const std::string& name, const std::string& text) const {
    return write(name, Bytes(text.begin(), text.end()));
  }
};

// Gives these lines, one a call, as trainers of vocabularies read them.
inline std::function<bool(std::string&)> each_of(std::vector<std::string> lines) {
  return [lines = std::move(lines), given = std::size_t{0}](std::string& line) mutable {
    if (given == lines.size()) return false;
    line = lines[given++];
    return true;
  };
}

inline Bytes gzip(const Bytes& plain) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  Bytes packed(deflateBound(&stream, plain.size()) + 64);
  stream.next_in = const_cast<Bytef*>(plain.data());
  stream.avail_in = static_cast<uInt>(plain.size());
  stream.next_out = packed.data();
  stream.avail_out = static_cast<uInt>(packed.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

inline Bytes operator+(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace vcas
