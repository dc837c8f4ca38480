#include "tools/tokenize.h"

#include <fmt/format.h>
#include <unistd.h>

#include <vector>

#include "core/error.h"
#include "core/files.h"
#include "data/tokenizer.h"
#include "data/vocabulary.h"
#include "tools/input_lines.h"

namespace vcas {
namespace {

constexpr const char* kOutput = "standard output";
constexpr std::size_t kWriteBytes = 1 << 16;

void write(const fmt::memory_buffer& text, std::FILE* out) {
  if (std::fwrite(text.data(), 1, text.size(), out) != text.size() || std::fflush(out) != 0)
    fail_errno(ExitCode::kIoError, kOutput, "cannot write");
}

}  // namespace

void tokenize_lines(const TokenizeRequest& request, std::FILE* in, std::FILE* out) {
  const auto tokenizer = read_tokenizer(request.vocabulary, !request.cased);
  if (request.cased && tokenizer->lower_case())
    throw Error(ExitCode::kUsage,
                fmt::format("--cased, but {} lower-cases", request.vocabulary.string()),
                "leave --cased out, or give the vocab.txt of a cased model");
  std::int32_t cls = -1, sep = -1;
  if (request.special) {
    cls = tokenizer->cls();
    sep = tokenizer->sep();
  }
  const bool at_once = ::isatty(::fileno(in)) == 1;
  std::vector<std::int32_t> ids;
  fmt::memory_buffer text;
  InputLines lines(in);
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
      write(text, out);
      text.clear();
    }
  }
  write(text, out);
}

}  // namespace vcas
