// Whatever the bytes, reading a table either throws kBadData or gives rows of valid text. The first
// byte chooses format and options. Standalone: clang++ -std=c++20 -g
//   -fsanitize=fuzzer,address,undefined -I. tests/fuzz/text_table_fuzz.cc
//   data/{text_table,text_lines,vocabulary}.cc core/{compressed_file,files,error,nearest_name,
//   json_text}.cc -lfmt -lz -lutf8proc
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "core/error.h"
#include "data/text_table.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("vcas-table-fuzz-" + std::to_string(getpid()));
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data + 1), static_cast<std::streamsize>(size - 1));
  constexpr vcas::TableFormat kFormats[] = {vcas::TableFormat::kTsv, vcas::TableFormat::kCsv,
                                            vcas::TableFormat::kJsonl};
  const vcas::TableOptions options{.format = kFormats[data[0] % 3],
                                   .header = data[0] % 2 == 0 || data[0] % 3 == 2,
                                   .skip_bad_rows = data[0] % 5 == 0};
  std::vector<std::string> columns = {"a", "b"};
  if (!options.header) columns = {"0", "1"};
  try {
    vcas::TextTable table(path, columns, options);
    std::vector<std::string> fields;
    while (table.next(fields)) {
      if (fields.size() != 2) std::abort();
      for (const std::string& field : fields)
        if (!vcas::text_fault(field).empty()) std::abort();
    }
  } catch (const vcas::Error& error) {
    if (error.code() != vcas::ExitCode::kBadData) std::abort();
  }
  std::filesystem::remove(path);
  return 0;
}
