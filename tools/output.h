// Standard output of the commands.
#pragma once

#include <string>
#include <string_view>

namespace vcas {

// Prints to standard output. Commands end with write_output, which lets it arrive.
void print_text(const std::string& text);

// Standard output has the text when this returns, and all that was printed before: it is the
// result. Throws Error(kIoError). Ends the process with that code where the reader has enough.
void write_output(std::string_view text);

}  // namespace vcas
