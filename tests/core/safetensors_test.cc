#include "core/safetensors.h"

#include <cmath>
#include <limits>

#include "core/files.h"
#include "tests/core/temporary_folder.h"
#include "tests/support/check_error.h"

using namespace vcas;

namespace {

const char* const kGolden = VCAS_SOURCE_DIR "/tests/golden/original.safetensors";

std::string with_length(const std::string& header, const std::string& data = {}) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

std::string parse_failure(const std::string& file) {
  return error_text([&] { parse_safetensors(std::as_bytes(std::span(file)), "m.safetensors"); },
                    ExitCode::kBadData);
}

template <class T>
StoredTensor tensor_of(std::string name, StoredType dtype, std::vector<std::int64_t> shape,
                       const std::vector<T>& values) {
  return {std::move(name), dtype, std::move(shape), std::as_bytes(std::span(values))};
}

}  // namespace

TEST_CASE("safetensors: a file of the original library is read", "[safetensors]") {
  const SafetensorsFile file(kGolden);
  CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}});
  REQUIRE(file.tensors().size() == 10);

  const StoredTensor* matrix = file.find("z.f32");
  REQUIRE(matrix);
  CHECK(matrix->dtype == StoredType::kF32);
  CHECK(matrix->shape == std::vector<std::int64_t>{2, 3});
  CHECK(file.read_floats(*matrix) == std::vector<float>{1.5f, -2.0f, 3.25f, 0.0f, 1e-30f,
                                                        -std::numeric_limits<float>::infinity()});
  CHECK(file.find("a.f32")->shape.empty());
  CHECK(file.read_floats(*file.find("a.f32")) == std::vector<float>{0.5f});
  CHECK(file.read_floats(*file.find("f16")) == std::vector<float>{1.0f, -0.5f, 65504.0f, 0x1p-24f});
  CHECK(file.read_floats(*file.find("f64"))[0] == 1.0f / 3.0f);
  CHECK(file.read_floats(*file.find("empty")).empty());
  CHECK(file.read_floats(*file.find("na\u00efve \"name\"")) == std::vector<float>{9.0f});
  CHECK(file.find("bool")->dtype == StoredType::kBool);
  CHECK(file.find("no such tensor") == nullptr);
  CHECK_THROWS_WITH(
      file.read_floats(*file.find("i64")),
      std::string(kGolden) + ": tensor i64: dtype I64 where floating point is needed");
}

TEST_CASE("safetensors: our writer gives the bytes of the original library", "[safetensors]") {
  TemporaryFolder folder;
  const SafetensorsFile original(kGolden);
  std::vector<StoredTensor> tensors = original.tensors();
  std::ranges::reverse(tensors);
  write_safetensors(folder.path() / "ours.safetensors", tensors, original.metadata());
  CHECK(read_file(folder.path() / "ours.safetensors") == read_file(kGolden));
}

TEST_CASE("safetensors: values, shapes and metadata make the round trip", "[safetensors]") {
  TemporaryFolder folder;
  const auto path = folder.path() / "a.safetensors";
  const std::vector<float> weights = {1, 2, 3, 4, 5, 6};
  const std::vector<std::uint8_t> flags = {7};
  const std::vector<std::uint16_t> brain = {0x3F80, 0xC000, 0x7F80};
  write_safetensors(path,
                    {tensor_of("flags", StoredType::kU8, {}, flags),
                     tensor_of("brain", StoredType::kBF16, {3}, brain),
                     tensor_of("weights", StoredType::kF32, {3, 2}, weights)},
                    {{"vcas.step", "12"}});
  const SafetensorsFile file(path);
  CHECK(file.metadata() ==
        std::map<std::string, std::string>{{"format", "pt"}, {"vcas.step", "12"}});
  CHECK(file.tensors()[0].name == "weights");
  CHECK(file.read_floats(*file.find("weights")) == weights);
  CHECK(file.read_floats(*file.find("brain")) ==
        std::vector<float>{1.0f, -2.0f, std::numeric_limits<float>::infinity()});
  CHECK(file.find("flags")->bytes[0] == std::byte{7});
  CHECK(reinterpret_cast<std::uintptr_t>(file.find("weights")->bytes.data()) % 8 == 0);

  write_safetensors(path, {});
  CHECK(SafetensorsFile(path).tensors().empty());

  CHECK_THROWS_AS(write_safetensors(path, {tensor_of("w", StoredType::kF32, {5}, weights)}),
                  InternalError);
  CHECK_THROWS_AS(write_safetensors(path, {tensor_of("w", StoredType::kF32, {6}, weights),
                                           tensor_of("w", StoredType::kF32, {6}, weights)}),
                  InternalError);
}

TEST_CASE("safetensors: every half-precision number is converted exactly", "[safetensors]") {
  TemporaryFolder folder;
  std::vector<std::uint16_t> halves(1 << 16);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  const auto path = folder.path() / "halves.safetensors";
  write_safetensors(path, {tensor_of("h", StoredType::kF16, {1 << 16}, halves)});
  const SafetensorsFile file(path);
  const std::vector<float> got = file.read_floats(file.tensors()[0]);
  int wrong = 0;
  for (int i = 0; i < 1 << 16; ++i) {
    const int exponent = (i >> 10) & 31;
    const int mantissa = i & 1023;
    const float sign = i >> 15 ? -1.0f : 1.0f;
    float want = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                               : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
    if (exponent == 31) want = mantissa ? NAN : INFINITY;
    const float value = got[static_cast<std::size_t>(i)];
    const bool same = std::isnan(want) ? std::isnan(value) : value == sign * want;
    wrong += !same || std::signbit(value) != (i >> 15 != 0);
  }
  CHECK(wrong == 0);
}

TEST_CASE("safetensors: what breaks a rule of the format is refused", "[safetensors]") {
  const auto entry = [](const std::string& text, const std::string& data = "12345678") {
    return parse_failure(with_length("{\"w\":{" + text + "}}", data));
  };
  CHECK(parse_failure("1234") == "m.safetensors: not a safetensors file: only 4 bytes");
  CHECK(parse_failure(std::string("\x01\xe1\xf5\x05\0\0\0\0{", 9)) ==
        "m.safetensors: not a safetensors file: a header of 100000001 bytes, at most 100000000 are "
        "allowed");
  CHECK(parse_failure(std::string(8, '\xff')).find("at most 100000000") != std::string::npos);
  CHECK(parse_failure(std::string("\x0a\0\0\0\0\0\0\0{}", 10)) ==
        "m.safetensors: a header of 10 bytes in a file of 10 bytes");
  CHECK(parse_failure(with_length("")) ==
        "m.safetensors: not a safetensors file: header does not start with {");
  CHECK_THAT(parse_failure(with_length(" {}")), ContainsSubstring("does not start with {"));
  CHECK_THAT(parse_failure(with_length("{\"w\":")),
             ContainsSubstring("m.safetensors: header is not JSON at byte "));
  CHECK_THAT(parse_failure(with_length("{}{}")), ContainsSubstring("not JSON"));
  CHECK_THAT(parse_failure(with_length("{\"\xff\":{}}")), ContainsSubstring("not JSON"));

  CHECK(entry(R"("dtype":"F32","shape":[2])") ==
        "m.safetensors: tensor w: data_offsets is missing");
  CHECK(entry(R"("shape":[2],"data_offsets":[0,8])") ==
        "m.safetensors: tensor w: dtype is missing");
  CHECK(entry(R"("dtype":"F32","data_offsets":[0,8])") ==
        "m.safetensors: tensor w: shape is missing");
  CHECK(entry(R"("dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8])") ==
        "m.safetensors: tensor w: unknown dtype \"F8_E4M3\"; known are F64 F32 F16 BF16 I64 I32 U8 "
        "BOOL");
  CHECK(entry(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])") ==
        "m.safetensors: tensor w: F32 [3] needs 12 bytes, but data_offsets [0, 8] hold 8");
  CHECK(entry(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])") ==
        "m.safetensors: tensor w: F32 [4294967296, 4294967296] needs more than 2^64 bytes, but "
        "data_offsets [0, 8] hold 8");
  CHECK_THAT(entry(R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0])", ""),
             ContainsSubstring("more than 2^64"));
  CHECK(entry(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])") ==
        "m.safetensors: tensor w: -2 is not a size or an offset");
  CHECK(entry(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])") ==
        "m.safetensors: tensor w: 2.0 is not a size or an offset");
  CHECK(entry(R"("dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8])") ==
        "m.safetensors: tensor w: 18446744073709551615 in shape is too large");
  CHECK(entry(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])") ==
        "m.safetensors: tensor w: data_offsets [8, 0] run backwards");
  CHECK(entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,8])") ==
        "m.safetensors: tensor w: data_offsets must be [begin, end]");
  CHECK(entry(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])") ==
        "m.safetensors: tensor w: data begins at 4, but the tensor before it ends at 0 (hole)");
  CHECK(entry(R"("dtype":"F32","shape":[4],"data_offsets":[0,16])") ==
        "m.safetensors: tensor w: data ends at 16, but the file holds 8 bytes of data");
  CHECK(entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])") ==
        "m.safetensors: tensors end at byte 4 of the data, but the file holds 8");
  CHECK(entry(R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])") ==
        "m.safetensors: tensor w: key \"dtype\" occurs twice");
  CHECK(entry(R"("dtype":"F32","shape":[2],"offsets":[0,8])") ==
        "m.safetensors: tensor w: unknown key \"offsets\"");
  CHECK_THAT(entry(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])"),
             ContainsSubstring("tensor w: an array is out of place"));
  CHECK_THAT(entry(R"("dtype":true)"), ContainsSubstring("tensor w: a boolean is out of place"));
  CHECK_THAT(entry(R"("shape":"x")"), ContainsSubstring("tensor w: a string is out of place"));
  CHECK_THAT(entry(R"("dtype":null)"), ContainsSubstring("tensor w: a null is out of place"));
  CHECK_THAT(entry(R"("dtype":7)"), ContainsSubstring("tensor w: a number is out of place"));
  CHECK_THAT(entry(R"("shape":{})"), ContainsSubstring("tensor w: an object is out of place"));

  const std::string tensor = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  CHECK(parse_failure(with_length("{\"w\":" + tensor + ",\"w\":" + tensor + "}", "1234")) ==
        "m.safetensors: tensor w: occurs twice");
  CHECK(parse_failure(with_length("{\"v\":" + tensor + ",\"w\":" + tensor + "}", "1234")) ==
        "m.safetensors: tensor w: data begins at 0, but the tensor before it ends at 4 (overlap)");
  CHECK(parse_failure(with_length(R"({"__metadata__":{"a":"1","a":"2"}})")) ==
        "m.safetensors: __metadata__: key \"a\" occurs twice");
  CHECK(parse_failure(with_length(R"({"__metadata__":{"a":1}})")) ==
        "m.safetensors: __metadata__: a number is out of place");
  CHECK(parse_failure(with_length("{}")) == "");
  CHECK(parse_failure(with_length("{}      ")) == "");
  CHECK(parse_failure(with_length(std::string("{} \0", 4))) ==
        "m.safetensors: header is not JSON at byte 3: a NUL");
  CHECK(parse_failure(with_length(std::string("{}\0 junk", 8))) ==
        "m.safetensors: header is not JSON at byte 2: a NUL");
}
