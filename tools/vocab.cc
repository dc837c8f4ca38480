#include "tools/vocab.h"

#include <string>

#include "core/error.h"
#include "data/byte_bpe.h"
#include "data/text_lines.h"
#include "tools/input_lines.h"

namespace vcas {
namespace {

bool next_text(InputLines& lines, std::string& text) {
  std::string_view line;
  if (!lines.next(line)) return false;
  text = line;
  if (const std::string fault = text_fault(text); !fault.empty()) lines.fail_line(fault);
  return true;
}

void flush(std::ostream& out) {
  if (!out.flush()) throw Error(ExitCode::kIoError, "standard output: cannot write");
}

}  // namespace

void print_vocabulary(const VocabularyOptions& options, std::FILE* in, std::ostream& out) {
  InputLines lines(in);
  const auto next_line = [&](std::string& text) { return next_text(lines, text); };
  for (const std::string& token : train_vocabulary(next_line, options)) out << token << '\n';
  flush(out);
}

void print_byte_bpe(std::int64_t size, std::FILE* in, std::ostream& out) {
  InputLines lines(in);
  const auto next_line = [&](std::string& text) {
    if (!next_text(lines, text)) return false;
    text += '\n';  // as the files of a corpus have it
    return true;
  };
  const ByteBpe tokenizer(train_byte_bpe(next_line, size));
  out << tokenizer.files(/*max_length=*/0).at("tokenizer.json");
  flush(out);
}

}  // namespace vcas
