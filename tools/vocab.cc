#include "tools/vocab.h"

#include <string>

#include "core/error.h"
#include "data/text_lines.h"
#include "tools/input_lines.h"

namespace vcas {

void print_vocabulary(const VocabularyOptions& options, std::FILE* in, std::ostream& out) {
  InputLines lines(in);
  const auto next_line = [&](std::string& text) {
    std::string_view line;
    if (!lines.next(line)) return false;
    text = line;
    if (const std::string fault = text_fault(text); !fault.empty()) lines.fail_line(fault);
    return true;
  };
  for (const std::string& token : train_vocabulary(next_line, options)) out << token << '\n';
  if (!out.flush()) throw Error(ExitCode::kIoError, "standard output: cannot write");
}

}  // namespace vcas
