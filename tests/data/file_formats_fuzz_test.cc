// Fuzz targets as ordinary tests, each under a name of its own.
#define LLVMFuzzerTestOneInput fuzz_cifar
#include "tests/fuzz/cifar_fuzz.cc"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_compressed
#include "tests/fuzz/compressed_fuzz.cc"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_idx
#include "tests/fuzz/idx_fuzz.cc"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_image_folder
#include "tests/fuzz/image_folder_fuzz.cc"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_token_stream
#include "tests/fuzz/token_stream_fuzz.cc"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_wordnet
#include "core/files.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/wordnet_fuzz.cc"

using namespace std::string_literals;

namespace {

std::string from_hex(const std::string& digits) {
  std::string bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  return bytes;
}

}  // namespace

TEST_CASE("compressed files survive mutation", "[compressed][fuzz]") {
  fuzz(fuzz_compressed,
       {"\0plain"s, from_hex("011f8b08000000000002034b4c4a4ec48d0081fcb1481e000000"),
        from_hex("02fd377a585a0000016922de360200210116000000742fe5a30100026162630000"
                 "c24124350001170307600cbc9042990d010000000001595a"),
        from_hex("0328b52ffd2003190000616263")},
       "\x1F\x8B\x08\xFD\x37\0\1\2\xFF"s, 2000);
}

TEST_CASE("IDX files survive mutation", "[idx][fuzz]") {
  fuzz(fuzz_idx,
       {"\0\0\0\x08\1\0\0\0\3abc"s, "\1\0\0\x08\3\0\0\0\2\0\0\0\1\0\0\0\2abcd"s,
        "\1\0\0\x08\3\0\0\0\2\0\0\0\0\0\0\0\2"s},
       "\0\1\2\3\x08\xFF"s, 2000);
}

TEST_CASE("WordNet's files survive mutation", "[wordnet][fuzz]") {
  const std::string synsets =
      "  1 licence\n"
      "00000012 03 n 01 entity 0 000 | that which is perceived\n"
      "00000070 03 n 02 thing 0 item 1 001 @ 00000012 n 0000 | a separate entity\n"
      "00000155 03 n 01 part 0 002 @ 00000070 n 0000 ~i 00000012 n 0000 | one of many\n";
  fuzz(fuzz_wordnet, {synsets, synsets.substr(0, 90)}, "0123456789 |@~nvars\n", 300);
}

TEST_CASE("CIFAR's files survive mutation", "[cifar][fuzz]") {
  fuzz(fuzz_cifar, {"\2\3"s, "\1\x13\x63pixels"s, "\x40\1"s}, "\0\1\x09\x13\x63\xFF"s, 300);
}

TEST_CASE("folders of images survive mutation", "[images][fuzz]") {
  fuzz(fuzz_image_folder,
       {"cat/1.jpgb\ndog/2.PNGb\ndog/deep/3.jpegb\n", "a/1.jpgl\na/2.jpgf\nb\xFF/.jpgb\n",
        ".hidden/1.jpgb\nemptyf\nx.jpgb\n"},
       "/.\nblfjpgPNG\xFF ", 300);
}

TEST_CASE("cached tokens survive mutation", "[stream][fuzz]") {
  const std::filesystem::path path = fuzz_path("seed");
  vcas::write_token_stream(path, [](const vcas::TokenSink& sink) {
    sink(std::vector<std::int32_t>{1, -2, 300000, 4});
    return 5;
  });
  const std::string whole = vcas::read_file(path);
  std::filesystem::remove(path);
  fuzz(fuzz_token_stream, {whole, whole.substr(16), ""}, "\0\1\4\xFF"s, 2000);
}
