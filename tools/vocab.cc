#include "tools/vocab.h"

#include <string>

#include "data/byte_bpe.h"
#include "data/text_lines.h"
#include "tools/input_lines.h"
#include "tools/output.h"

namespace vcas {
namespace {

bool next_text(InputLines& lines, std::string& text) {
  std::string_view line;
  if (!lines.next(line)) return false;
  text = line;
  if (const std::string fault = text_fault(text); !fault.empty()) lines.fail_line(fault);
  return true;
}

}  // namespace

void print_vocabulary(const VocabularyOptions& options) {
  InputLines lines;
  const auto next_line = [&](std::string& text) { return next_text(lines, text); };
  for (const std::string& token : train_vocabulary(next_line, options)) print_text(token + '\n');
  write_output("");
}

void print_byte_bpe(std::int64_t size) {
  InputLines lines;
  const auto next_line = [&](std::string& text) {
    if (!next_text(lines, text)) return false;
    text += '\n';  // as the files of a corpus have it
    return true;
  };
  const ByteBpe tokenizer(train_byte_bpe(next_line, size));
  write_output(tokenizer.files(/*max_length=*/0).at("tokenizer.json"));
}

}  // namespace vcas
