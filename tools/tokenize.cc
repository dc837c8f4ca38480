#include "tools/tokenize.h"

#include <fmt/format.h>
#include <unistd.h>

#include <vector>

#include "core/error.h"
#include "data/tokenizer.h"
#include "data/vocabulary.h"
#include "tools/input_lines.h"
#include "tools/output.h"

namespace vcas {

void tokenize_lines(const TokenizeRequest& request) {
  const auto tokenizer = read_tokenizer(request.vocabulary, !request.cased);
  if (request.cased && tokenizer->lower_case())
    throw Error(ExitCode::kUsage,
                fmt::format("--cased, but {} lower-cases", request.vocabulary.string()),
                "leave --cased out, or give the vocab.txt of a cased model");
  const std::int32_t cls = request.special ? tokenizer->cls() : -1;
  const std::int32_t sep = request.special ? tokenizer->sep() : -1;
  constexpr std::size_t kWriteBytes = 1 << 16;
  const bool at_once = ::isatty(STDIN_FILENO) == 1;
  std::vector<std::int32_t> ids;
  fmt::memory_buffer text;
  InputLines lines;
  for (std::string_view line; lines.next(line);) {
    if (const auto bad = first_invalid_utf8(line))
      lines.fail_line(fmt::format("byte {} is not valid UTF-8", *bad + 1));
    ids.clear();
    if (request.special) ids.push_back(cls);
    tokenizer->encode(line, ids);
    if (request.special) ids.push_back(sep);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const fmt::format_int digits(ids[i]);
      if (i > 0) text.push_back(' ');
      text.append(digits.data(), digits.data() + digits.size());
    }
    text.push_back('\n');
    if (at_once || text.size() >= kWriteBytes) {
      write_output({text.data(), text.size()});
      text.clear();
    }
  }
  write_output({text.data(), text.size()});
}

}  // namespace vcas
