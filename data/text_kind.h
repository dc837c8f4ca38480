// What kinds of texts have in common: settings in data.text, the tokenizer, tables of texts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/data_kind.h"
#include "data/text_dataset.h"

namespace vcas {

inline constexpr const char* kTextHelp = "Texts and their tokens.";  // of data.text
inline constexpr std::int64_t kLeastMaxLength = 8;                   // of data.text.max_length

// How texts become tokens.
struct TokenSettings {
  std::string vocabulary;
  bool lower_case = true;
  std::int64_t max_length = 128;
  bool cache = true;

  void fields(Setting& v);
};

// Texts, or pairs of texts, in the columns of a table.
struct ColumnSettings {
  std::string first, second;
  bool header = true;

  void fields(Setting& v);
  std::string first_column() const { return first.empty() ? "sentence" : first; }
};

// Names of the classes in the order of their numbers.
void add_class_names(Setting& v, std::vector<std::string>& names);
void add_header(Setting& v, bool& header);

// Files that the settings name.
struct FileSettings {
  std::string train_file, test_file;

  void fields(Setting& v, const char* train_help);
  // `example`: a file to train on.
  void check(const DataOptions& data, const char* example, ConfigErrors& errors) const;
  const std::string& of(Split split) const {
    return split == Split::kTrain ? train_file : test_file;
  }
};

class TextKind : public DataKind {
 public:
  // Throws as read_tokenizer does. kBadConfig: a vocabulary with capitals for texts in lower case.
  std::unique_ptr<Tokenizer> make_tokenizer(const std::filesystem::path& pretrained) const override;
  TokenSettings* tokens() override { return &tokens_; }

 protected:
  DataFacts text_facts(LabelKind labels, std::string task = {}) const;

  TokenSettings tokens_;
};

// Texts whose labels are classes or numbers, and tables of more of them.
class LabelledTextKind : public TextKind {
 public:
  OpenedData open_unlabelled(const DataRequest& request,
                             const std::vector<std::filesystem::path>& inputs,
                             const std::vector<std::int64_t>& item_shape) const override;
  std::vector<std::string> given_classes() const override { return classes_; }

 protected:
  // All but what belongs to one kind.
  void add_text_fields(Setting& v);
  // `label`: its column; empty: the rows have none.
  std::unique_ptr<TextDataset> load_table(const DataRequest& request,
                                          const std::filesystem::path& file,
                                          const ColumnSettings& columns,
                                          const std::string& label) const;
  // DataKind::idle_settings of data whose files have columns of their own.
  std::vector<std::string> idle_columns() const;
  // `texts` as what was opened.
  static OpenedData opened(std::unique_ptr<TextDataset> texts);

  ColumnSettings columns_;
  std::vector<std::string> classes_;
};

}  // namespace vcas
