// Text tasks made from WordNet 3.0 (Miller, "WordNet: a lexical database for English", 1995) as
// Debian's package wordnet-base installs it: real English text for training from scratch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/text_dataset.h"

namespace vcas {

enum class WordNetTask {
  // Is the second gloss that of the first one's hypernym? Nouns and verbs, classes "other", "is_a".
  // A synset with a hypernym gives two pairs.
  // One is with its first hypernym, and one with a random synset.
  // The random one is of the same part of speech and none of its ancestors.
  kIsA,
  // Which of the 45 lexicographer files (noun.animal, verb.motion, ...) has the gloss?
  kLexicographerFile,
};

struct WordNetOptions {
  std::filesystem::path folder = "/usr/share/wordnet";  // holds data.{noun,verb,adj,adv}
  WordNetTask task = WordNetTask::kIsA;
  Split split = Split::kTrain;  // one synset in 11 is for testing, with its pairs
  std::int64_t max_length = 128;
  bool cache = true;
};

struct Synset {
  char part_of_speech = 'n';  // n, v, a (satellites too), r
  std::int32_t lexicographer_file = 0;
  std::string gloss;
  std::vector<std::int64_t> hypernyms;  // by number in the list
};

// All synsets, in the order of the files. Missing files: kNoInput with the package.
// Lines that are not those of wndb(5): kBadData with file:line.
std::vector<Synset> read_wordnet(const std::filesystem::path& folder);

// The names of the lexicographer files, by their number (lexnames(5)).
const std::vector<std::string>& lexicographer_files();

// The rows of a task: a fixed function of the synsets.
std::vector<TextRow> wordnet_rows(const std::vector<Synset>& synsets, WordNetTask task,
                                  Split split);

std::unique_ptr<TextDataset> load_wordnet(const WordNetOptions& options,
                                          const Tokenizer& tokenizer);

}  // namespace vcas
