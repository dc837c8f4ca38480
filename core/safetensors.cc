#include "core/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "core/bfloat16.h"
#include "core/files.h"

namespace vcas {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian");

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr const char* kMetadataKey = "__metadata__";

struct TypeInfo {
  std::string_view name;
  std::size_t bytes;
};
constexpr TypeInfo kTypes[] = {{"BOOL", 1}, {"U8", 1},  {"F16", 2}, {"BF16", 2},
                               {"I32", 4},  {"F32", 4}, {"F64", 8}, {"I64", 8}};

const TypeInfo& info(StoredType dtype) { return kTypes[static_cast<std::size_t>(dtype)]; }

// Bytes of a tensor; none where the product does not fit into 64 bits or an extent is negative.
std::optional<std::uint64_t> tensor_bytes(StoredType dtype, std::span<const std::int64_t> shape) {
  std::uint64_t bytes = 1;
  for (const std::int64_t extent : shape)
    if (extent < 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes))
      return std::nullopt;
  if (__builtin_mul_overflow(bytes, stored_type_bytes(dtype), &bytes)) return std::nullopt;
  return bytes;
}

struct Header {
  struct Entry {
    std::string name;
    StoredType dtype = StoredType::kF32;
    std::vector<std::int64_t> shape = {}, offsets = {};
  };
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
};

// Takes the header apart event by event, because a JSON document would hide duplicate keys.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(const std::string& file) : file_(file) {}

  Header take() { return std::move(header_); }

  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kRoot;
    } else if (place_ == Place::kRoot) {
      place_ = name_ == kMetadataKey ? Place::kMetadata : Place::kEntry;
      if (place_ == Place::kEntry) header_.entries.push_back({.name = name_});
    } else {
      fail("an object is out of place");
    }
    keys_.clear();
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kEntry) {
      for (const char* needed : {"dtype", "shape", "data_offsets"})
        if (!keys_.contains(needed)) fail(fmt::format("{} is missing", needed));
      if (header_.entries.back().offsets.size() != 2) fail("data_offsets must be [begin, end]");
    }
    place_ = Place::kRoot;
    return true;
  }

  bool key(std::string& text) override {
    if (place_ == Place::kRoot) {
      name_ = text;
      if (!names_.insert(text).second) fail("occurs twice");
      return true;
    }
    key_ = text;
    if (!keys_.insert(text).second) fail(fmt::format("key \"{}\" occurs twice", text));
    if (place_ == Place::kEntry && text != "dtype" && text != "shape" && text != "data_offsets")
      fail(fmt::format("unknown key \"{}\"", text));
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::kEntry || key_ == "dtype") fail("an array is out of place");
    place_ = Place::kArray;
    return true;
  }

  bool end_array() override {
    place_ = Place::kEntry;
    return true;
  }

  bool string(std::string& text) override {
    if (place_ == Place::kMetadata) {
      header_.metadata[key_] = text;
      return true;
    }
    if (place_ != Place::kEntry || key_ != "dtype") fail("a string is out of place");
    const TypeInfo* found = std::ranges::find(kTypes, text, &TypeInfo::name);
    if (found == std::end(kTypes)) {
      fail(fmt::format("unknown dtype \"{}\"; known are F64 F32 F16 BF16 I64 I32 U8 BOOL", text));
    }
    header_.entries.back().dtype = static_cast<StoredType>(found - kTypes);
    return true;
  }

  bool number_unsigned(std::uint64_t value) override {
    if (place_ != Place::kArray) fail("a number is out of place");
    if (value > std::numeric_limits<std::int64_t>::max())
      fail(fmt::format("{} in {} is too large", value, key_));
    Header::Entry& entry = header_.entries.back();
    (key_ == "shape" ? entry.shape : entry.offsets).push_back(static_cast<std::int64_t>(value));
    return true;
  }

  bool number_integer(std::int64_t value) override {
    fail(fmt::format("{} is not a size or an offset", value));
  }
  bool number_float(double, const std::string& text) override {
    fail(fmt::format("{} is not a size or an offset", text));
  }
  bool null() override { fail("a null is out of place"); }
  bool boolean(bool) override { fail("a boolean is out of place"); }
  bool binary(nlohmann::json::binary_t&) override { fail("binary data is out of place"); }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) override {
    throw Error(ExitCode::kBadData, fmt::format("{}: header is not JSON at byte {}: {}", file_,
                                                position, error.what()));
  }

 private:
  enum class Place { kStart, kRoot, kMetadata, kEntry, kArray };

  [[noreturn]] void fail(const std::string& why) const {
    const std::string where = name_ == kMetadataKey ? name_ : "tensor " + name_;
    throw Error(ExitCode::kBadData, fmt::format("{}: {}: {}", file_, where, why));
  }

  const std::string& file_;
  Header header_;
  Place place_ = Place::kStart;
  std::set<std::string> names_, keys_;  // seen at the root and inside of the current name
  std::string name_;                    // key at the root: tensor or __metadata__
  std::string key_;                     // key inside of it
};

template <class T>
T load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t magnitude = (half & 0x7FFFu) << 13;
  const bool finite = (half & 0x7C00u) != 0x7C00u;
  // Exponent and mantissa now lie where f32 has them; only the bias differs, by 127 - 15.
  const float value = std::bit_cast<float>(magnitude) * 0x1p112f;
  return std::bit_cast<float>(
      sign | (finite ? std::bit_cast<std::uint32_t>(value) : 0x7F800000u | magnitude));
}

// One float from each T of the tensor.
template <class T, class Convert>
void convert_to_floats(std::span<const std::byte> bytes, std::span<float> out, Convert convert) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = convert(load<T>(&bytes[i * sizeof(T)]));
}

[[noreturn]] void fail(const std::string& file, const std::string& why, std::string hint = {}) {
  throw Error(ExitCode::kBadData, file + ": " + why, std::move(hint));
}

// The text of the header.
std::string_view header_text(std::span<const std::byte> bytes, const std::string& file) {
  if (bytes.size() < 8)
    fail(file, fmt::format("not a safetensors file: only {} bytes", bytes.size()));
  const std::uint64_t header_bytes = load<std::uint64_t>(bytes.data());
  if (header_bytes > kMaxHeaderBytes)
    fail(file, fmt::format("not a safetensors file: a header of {} bytes, at most {} are allowed",
                           header_bytes, kMaxHeaderBytes));
  if (header_bytes > bytes.size() - 8)
    fail(file,
         fmt::format("a header of {} bytes in a file of {} bytes", header_bytes, bytes.size()),
         "is the file cut off?");
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, header_bytes);
  if (!text.starts_with('{')) fail(file, "not a safetensors file: header does not start with {");
  // To the JSON reader a NUL is the end of its text, whatever follows.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos)
    fail(file, fmt::format("header is not JSON at byte {}: a NUL", nul),
         "a header is padded with spaces");
  return text;
}

}  // namespace

std::string_view stored_type_name(StoredType dtype) { return info(dtype).name; }
std::size_t stored_type_bytes(StoredType dtype) { return info(dtype).bytes; }

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

SafetensorsContent parse_safetensors(std::span<const std::byte> bytes, const std::string& file) {
  const std::string_view text = header_text(bytes, file);
  HeaderReader reader(file);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  Header header = reader.take();

  // Tensors without elements share their begin with the next one, hence the order by (begin, end).
  std::ranges::sort(header.entries, {}, [](const Header::Entry& entry) {
    return std::pair(entry.offsets[0], entry.offsets[1]);
  });
  const std::span<const std::byte> buffer = bytes.subspan(8 + text.size());
  SafetensorsContent content;
  content.metadata = std::move(header.metadata);
  std::uint64_t position = 0;
  for (Header::Entry& entry : header.entries) {
    const std::uint64_t begin = static_cast<std::uint64_t>(entry.offsets[0]);
    const std::uint64_t end = static_cast<std::uint64_t>(entry.offsets[1]);
    const auto fail_tensor = [&](const std::string& why) {
      fail(file, fmt::format("tensor {}: {}", entry.name, why));
    };
    if (end < begin) fail_tensor(fmt::format("data_offsets [{}, {}] run backwards", begin, end));
    if (begin != position)
      fail_tensor(fmt::format("data begins at {}, but the tensor before it ends at {} ({})", begin,
                              position, begin < position ? "overlap" : "hole"));
    const std::optional<std::uint64_t> want = tensor_bytes(entry.dtype, entry.shape);
    if (want != end - begin)
      fail_tensor(fmt::format("{} {} needs {} bytes, but data_offsets [{}, {}] hold {}",
                              stored_type_name(entry.dtype), shape_text(entry.shape),
                              want ? std::to_string(*want) : "more than 2^64", begin, end,
                              end - begin));
    if (end > buffer.size())
      fail(file,
           fmt::format("tensor {}: data ends at {}, but the file holds {} bytes of data",
                       entry.name, end, buffer.size()),
           "is the file cut off?");
    content.tensors.push_back({std::move(entry.name), entry.dtype, std::move(entry.shape),
                               buffer.subspan(begin, end - begin)});
    position = end;
  }
  if (position != buffer.size())
    fail(file, fmt::format("tensors end at byte {} of the data, but the file holds {}", position,
                           buffer.size()));
  return content;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path.string()), file_(path), content_(parse_safetensors(file_.bytes(), path_)) {}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = std::ranges::find(content_.tensors, name, &StoredTensor::name);
  return found == content_.tensors.end() ? nullptr : &*found;
}

void SafetensorsFile::read_floats(const StoredTensor& tensor, std::span<float> out) const {
  VCAS_CHECK(
      out.size() * stored_type_bytes(tensor.dtype) == tensor.bytes.size(),
      fmt::format("{} floats for tensor {} {}", out.size(), tensor.name, shape_text(tensor.shape)));
  constexpr auto cast = [](auto value) { return static_cast<float>(value); };
  switch (tensor.dtype) {
    case StoredType::kF32:
      return convert_to_floats<float>(tensor.bytes, out, cast);
    case StoredType::kF64:
      return convert_to_floats<double>(tensor.bytes, out, cast);
    case StoredType::kF16:
      return convert_to_floats<std::uint16_t>(tensor.bytes, out, half_to_float);
    case StoredType::kBF16:
      return convert_to_floats<bfloat16>(tensor.bytes, out, cast);
    default:
      throw Error(ExitCode::kBadData,
                  fmt::format("{}: tensor {}: dtype {} where floating point is needed", path_,
                              tensor.name, stored_type_name(tensor.dtype)));
  }
}

std::vector<float> SafetensorsFile::read_floats(const StoredTensor& tensor) const {
  std::vector<float> out(tensor.bytes.size() / stored_type_bytes(tensor.dtype));
  read_floats(tensor, out);
  return out;
}

void write_safetensors(const std::filesystem::path& path, std::vector<StoredTensor> tensors,
                       std::map<std::string, std::string> metadata) {
  std::ranges::sort(tensors, [](const StoredTensor& a, const StoredTensor& b) {
    return std::tie(b.dtype, a.name) < std::tie(a.dtype, b.name);
  });
  metadata.emplace("format", "pt");
  nlohmann::ordered_json header = {{kMetadataKey, metadata}};
  std::uint64_t position = 0;
  for (const StoredTensor& tensor : tensors) {
    VCAS_CHECK(tensor_bytes(tensor.dtype, tensor.shape) == tensor.bytes.size(),
               fmt::format("{} bytes for tensor {} {}", tensor.bytes.size(), tensor.name,
                           shape_text(tensor.shape)));
    VCAS_CHECK(!header.contains(tensor.name), "two tensors are named " + tensor.name);
    const std::uint64_t end = position + tensor.bytes.size();
    header[tensor.name] = {{"dtype", stored_type_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {position, end}}};
    position = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data starts aligned
  const std::uint64_t length = text.size();
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(text);
  for (const StoredTensor& tensor : tensors) file.write(tensor.bytes);
  file.commit();
}

}  // namespace vcas
