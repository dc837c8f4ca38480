// Whatever the bytes, reading a table either throws kBadData or gives rows of valid text. The first
// byte chooses format and options.
#include "data/text_table.h"
#include "tests/fuzz/fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static const std::filesystem::path path = fuzz_path("table");
  write_fuzz_file(path, data + 1, size - 1);
  constexpr vcas::TableFormat kFormats[] = {vcas::TableFormat::kTsv, vcas::TableFormat::kCsv,
                                            vcas::TableFormat::kJsonl};
  const vcas::TableOptions options{.format = kFormats[data[0] % 3],
                                   .header = data[0] % 2 == 0 || data[0] % 3 == 2,
                                   .skip_bad_rows = data[0] % 5 == 0};
  const std::vector<std::string> columns =
      options.header ? std::vector<std::string>{"a", "b"} : std::vector<std::string>{"0", "1"};
  fuzz_read(
      [&] {
        vcas::TextTable table(path, columns, options);
        std::vector<std::string> fields;
        while (table.next(fields)) {
          if (fields.size() != 2) std::abort();
          for (const std::string& field : fields)
            if (!vcas::text_fault(field).empty()) std::abort();
        }
      },
      {vcas::ExitCode::kBadData});
  std::filesystem::remove(path);
  return 0;
}
