// The fuzz target as an ordinary test.
#include "tests/fuzz/wordpiece_fuzz.cc"

#include "core/files.h"
#include "tests/fuzz/mutate.h"
#include "tests/support/catch.h"

TEST_CASE("the tokenizer survives mutated vocabularies and texts", "[wordpiece][fuzz]") {
  const std::string golden = VCAS_SOURCE_DIR "/tests/golden/wordpiece_";
  fuzz(
      LLVMFuzzerTestOneInput,
      {
          std::string("v").append(vcas::read_file(golden + "vocab.txt")),
          "v[UNK]\r\na\r\n##a",
          "v\xEF\xBB\xBF[UNK]\n",
          std::string("j").append(vcas::read_file(golden + "tokenizer.json")),
          R"(j{"normalizer":{"type":"BertNormalizer"},"pre_tokenizer":{"type":"BertPreTokenizer"},)"
          R"("model":{"type":"WordPiece","unk_token":"[UNK]","vocab":{"[UNK]":0,"a":1}},)"
          R"("added_tokens":[{"id":2,"content":"[MASK]"},)"
          R"({"id":3,"content":"Caf\u00c9","normalized":true}]})",
          "ta\u0301b [MASK] \u91ce\u200d\U0001f44d \uac01 \u0130",
          "t[UNK]ab,ba \xed\xa0\x80 \xc0\xaf \xf5",
      },
      "[]{}#\",:\n\r 0123456789abUNK\xc3\xa9\xcc\x81\xe9", 3000);
}
