// The fuzz target as an ordinary test; under a name of its own, for there are others in the
// program.
#define LLVMFuzzerTestOneInput fuzz_text_table
#include "tests/fuzz/text_table_fuzz.cc"

#include "tests/fuzz/mutate.h"
#include "tests/support/catch.h"

TEST_CASE("the table reader survives mutated files", "[table][fuzz]") {
  using namespace std::string_literals;
  // Formats go by the first byte modulo 3 (TSV, CSV, JSON lines), headers by modulo 2, skipping by
  // modulo 5.
  std::vector<std::string> corpus;
  for (const char* first : {"\x06", "\x03", "\x0F", "\x1E"})
    corpus.push_back(std::string(first) + "a\tb\n1\t2\n\n3\t\xC3\xA9\r\n");
  for (const char* first : {"\x04", "\x01", "\x19", "\x0A"})
    corpus.push_back(std::string(first) + "a,b\n1,\"x, \"\"y\"\"\"\n\"two\nlines\",\"\"\n");
  for (const char* first : {"\x02", "\x05"})
    corpus.push_back(std::string(first) +
                     "{\"a\": \"q\\\"\\u00e9\", \"b\": 3}\n{\"a\": true, \"b\": \"\"}\n");
  corpus.push_back(
      "\x06\xEF\xBB\xBF"
      "b\ta\n1\t2\n");
  corpus.push_back("\x06\x1F\x8B\x08\0\0\0\0\0\0\3KJ\x02\0"s);
  fuzz(fuzz_text_table, corpus, "\t\n\r\",{}[]:\\u00ab\xC3\xFF\0"s, 4000);
}
