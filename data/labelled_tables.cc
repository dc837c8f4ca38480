// data.type "text": tables whose rows have a text, or a pair, and its label.
#include "data/text_kind.h"

namespace vcas {

namespace {

class LabelledTables final : public LabelledTextKind {
 public:
  void fields(Setting& v) {
    Setting& text = v.section("text", kTextHelp);
    files_.fields(text, "Table to train on: .tsv, .csv or .jsonl, maybe .gz, .xz or .zst.");
    text.field("label", label_, "Column of the label.");
    add_text_fields(text);
  }

  std::string summary() const override { return "labelled tables"; }
  DataFacts facts() const override { return text_facts(LabelKind::kAny); }
  void check(const DataOptions& data, ConfigErrors& errors) const override {
    files_.check(data,
                 "such as train.tsv with the line \"sentence<TAB>label\" and a text and its label "
                 "on each line after it",
                 errors);
    if (label_.empty())
      errors.add({"text.label", "type"},
                 "is missing: which column has the labels? \"label\" is that of a table with the "
                 "line \"sentence<TAB>label\"");
    else if (label_ == columns_.first_column() || label_ == columns_.second)
      errors.add({"text.label", "type"},
                 "is the column of a text, which would give the answer away");
  }

  OpenedData open(const DataRequest& request) const override {
    return opened(load_table(request, files_.of(request.split), columns_, label_));
  }

 private:
  FileSettings files_;
  std::string label_ = "label";
};

VCAS_REGISTER_PART(DataKind, "text", LabelledTables);

}  // namespace

}  // namespace vcas
