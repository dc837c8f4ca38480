// A folder with tables of text, a vocabulary, and tiny.json: a small BERT that learns from them.
#pragma once

#include <string>
#include <vector>

#include "tests/tools/program.h"

inline const std::vector<std::string> kCache = {"VCAS_CACHE_DIR=cache"};

// tiny.json: a small BERT on texts that are "good" where they hold more a than b.
class TinyText : public TinyFolder {
 public:
  TinyText()
      : TinyFolder(R"({
  "threads": 1,
  "data": {"type": "text",
           "text": {"train_file": "train.tsv", "test_file": "test.tsv", "vocabulary": "vocab.txt",
                    "labels": ["bad", "good"], "max_length": 12}},
  "model": {"type": "bert", "width": 16, "depth": 2, "heads": 2, "max_positions": 16,
            "dropout": 0.1},
  "train": {"steps": 40, "batch_size": 8, "eval_every": 20},
  "schedule": {"learning_rate": 0.003},
  "method": {"controller": "paper", "update_every": 5, "s_step": 0.1, "weight_multiplier": 0.7}
})",
                   kCache) {
    write_text(path() / "vocab.txt", "[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\n##a\n##b\n");
    write_text(path() / "train.tsv", table(64));
    write_text(path() / "test.tsv", table(16));
    write_text(path() / "cased.txt", "[UNK]\n[PAD]\n[CLS]\n[SEP]\nA\nB\nc\nd\n");
    write_text(path() / "corpus.txt", "a b c d a b c d a b\nc d a b c d a b c d a b c d\n");
  }

  static std::string table(int rows) {
    std::string text = "sentence\tlabel\n";
    for (int i = 0; i < rows; ++i) {
      const int a = i * 7 % 5, b = i * 11 % 6;
      for (int k = 0; k < a; ++k) text += "a ";
      for (int k = 0; k < b; ++k) text += "b ";
      text += a > b ? "c\tgood\n" : "c\tbad\n";
    }
    return text;
  }
};
