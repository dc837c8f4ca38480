#include "tools/vocab.h"

#include <fmt/format.h>

#include <string>

#include "core/error.h"
#include "data/text_lines.h"

namespace vcas {

void print_vocabulary(const VocabularyOptions& options, std::istream& in, std::ostream& out) {
  std::int64_t number = 0;
  const auto next_line = [&](std::string& line) {
    if (!std::getline(in, line)) return false;
    ++number;
    if (const std::string fault = text_fault(line); !fault.empty())
      throw Error(ExitCode::kBadData, fmt::format("standard input:{}: {}", number, fault),
                  "if the text is Latin-1, iconv -f latin1 -t utf-8 converts it");
    return true;
  };
  for (const std::string& token : train_vocabulary(next_line, options)) out << token << '\n';
  if (!out.flush()) throw Error(ExitCode::kIoError, "standard output: cannot write");
}

}  // namespace vcas
