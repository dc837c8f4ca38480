#include "data/text_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/nearest_name.h"
#include "core/parse_number.h"
#include "core/signals.h"
#include "core/utf8.h"

namespace vcas {
namespace {

// Changes whenever the same files and options give other tokens.
constexpr std::uint64_t kTextFormatVersion = 5;

bool is_number(const std::string& text) { return parse_number<std::int64_t>(text).has_value(); }

// Says nothing about what the class is.
bool is_bare(const std::string& name) {
  return is_number(name) || (name.starts_with("LABEL_") && is_number(name.substr(6)));
}

constexpr const char* kBadLabelHint =
    "is this the right file and label column? data.skip_bad_rows=true leaves such rows out";

// For messages: the wrong column may hold whole texts.
std::string start_of(const std::string& text, std::size_t letters) {
  const std::size_t shown = bytes_of_code_points(text, letters);
  return text.substr(0, shown) + (shown < text.size() ? "..." : "");
}

// Labels of a file as class ids.
class LabelReader {
 public:
  LabelReader(const std::vector<std::string>& names, bool numbers)
      : names_(names),
        found_(names.empty()),
        numbers_(numbers && std::none_of(names.begin(), names.end(), is_number)) {
    for (const std::string& name : names)
      if (!ids_.emplace(ascii_lower(name), std::ssize(ids_)).second)
        throw Error(ExitCode::kBadConfig, fmt::format("data.text.labels has \"{}\" twice", name));
  }

  // None of a bad label. `throw_bad` says what is wrong with it, which takes long with many
  // classes.
  std::optional<std::int32_t> id_of(const std::string& label) {
    if (found_) {
      if (has_blanks(label) || label == "-") return std::nullopt;
      const auto [place, is_new] = ids_.emplace(ascii_lower(label), std::ssize(ids_));
      if (is_new) names_.push_back(label);
      return static_cast<std::int32_t>(place->second);
    }
    const auto known = ids_.find(ascii_lower(label));
    if (known != ids_.end()) return static_cast<std::int32_t>(known->second);
    const auto number = parse_number<std::int32_t>(label);
    return numbers_ && number && *number >= 0 && *number < std::ssize(names_) ? number
                                                                              : std::nullopt;
  }

  [[noreturn]] void throw_bad(const std::string& label, const TextRows& rows) const {
    if (found_ && has_blanks(label))
      throw Error(ExitCode::kBadData,
                  fmt::format("{}: label \"{}\" {}", rows.place(), label,
                              label.empty() ? "is empty" : "has white space around it"),
                  kBadLabelHint);
    if (found_)  // as SNLI has it
      throw Error(ExitCode::kBadData,
                  fmt::format("{}: the label \"-\" stands for none", rows.place()),
                  "data.skip_bad_rows=true leaves such rows out; if it is a class, list all "
                  "classes in data.text.labels");
    const std::string nearest = nearest_name(label, names_);
    throw Error(ExitCode::kBadData,
                fmt::format("{}: label \"{}\" is not one of {}{}", rows.place(),
                            start_of(label, 60), some_names(),
                            nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest)),
                std::string(kBadLabelHint) + "; data.text.labels names the classes");
  }

  // Found labels were numbered as they came; now they get their order.
  void finish(TokenContent& content) {
    if (found_) {
      const bool numeric = std::all_of(names_.begin(), names_.end(), is_number);
      std::vector<std::string> sorted = names_;
      const auto before = [&](const std::string& a, const std::string& b) {
        const auto key = [&](const std::string& name) {
          return std::pair(numeric ? *parse_number<std::int64_t>(name) : 0, std::string_view(name));
        };
        return key(a) < key(b);
      };
      std::sort(sorted.begin(), sorted.end(), before);
      std::vector<std::int32_t> rank;
      for (const std::string& name : names_)
        rank.push_back(static_cast<std::int32_t>(
            std::lower_bound(sorted.begin(), sorted.end(), name, before) - sorted.begin()));
      for (std::int32_t& label : content.labels) label = rank[label];
      names_ = std::move(sorted);
    }
    content.class_names = names_;
  }

 private:
  static bool has_blanks(const std::string& label) {
    return label.empty() || label.front() == ' ' || label.back() == ' ';
  }

  std::string some_names() const {
    constexpr std::size_t kLetters = 300;
    std::string names;
    for (const std::string& name : names_)
      if (names.size() <= kLetters) names += (names.empty() ? "" : ", ") + name;
    return start_of(names, kLetters);
  }

  std::vector<std::string> names_;
  bool found_, numbers_;
  std::map<std::string, std::int64_t> ids_;
};

constexpr double kMostTarget = 1e18;  // its square is a finite f32

std::optional<float> find_target(const std::string& label) {
  const auto target = parse_number<double>(label);
  if (!target || !(std::abs(*target) <= kMostTarget)) return std::nullopt;
  return static_cast<float>(*target);
}

[[noreturn]] void throw_bad_target(const std::string& label, const TextRows& rows) {
  throw Error(ExitCode::kBadData,
              fmt::format("{}: the target \"{}\" is not a number from {} to {}", rows.place(),
                          label, -kMostTarget, kMostTarget),
              kBadLabelHint);
}

// Tokens of each text that fit into `room` together, longest first, as the `tokenizers` library
// counts: texts that are both too long get half each, the longer one (or else the second) the odd
// token.
std::pair<std::size_t, std::size_t> fit_pair(std::size_t first, std::size_t second,
                                             std::size_t room) {
  if (first + second <= room) return {first, second};
  const std::size_t shorter = std::min({first, second, room / 2});
  return first > second ? std::pair{room - shorter, shorter} : std::pair{shorter, room - shorter};
}

class TableRows final : public TextRows {
 public:
  explicit TableRows(const TextOptions& options)
      : table_(options.file, columns(options), options.table),
        pairs_(!options.second.empty()),
        labelled_(!options.label.empty()) {}

  bool next(TextRow& row) override {
    if (!table_.next(fields_)) return false;
    std::swap(row.first, fields_[0]);
    if (pairs_) std::swap(row.second, fields_[1]);
    if (labelled_) std::swap(row.label, fields_.back());
    return true;
  }
  std::string place() const override { return table_.place(); }
  std::int64_t skipped() const override { return table_.skipped(); }

 private:
  static std::vector<std::string> columns(const TextOptions& options) {
    std::vector<std::string> names = {options.first};
    if (!options.second.empty()) names.push_back(options.second);
    if (!options.label.empty()) names.push_back(options.label);
    return names;
  }

  TextTable table_;
  bool pairs_, labelled_;
  std::vector<std::string> fields_;
};

// Where each name stands in `known`; empty if one does not, or two stand at one place.
std::vector<std::int32_t> places_of(const std::vector<std::string>& names,
                                    const std::vector<std::string>& known, bool any_case) {
  const auto key = [&](const std::string& name) { return any_case ? ascii_lower(name) : name; };
  std::map<std::string, std::int32_t> left;
  for (std::size_t i = 0; i < known.size(); ++i)
    if (!left.emplace(key(known[i]), static_cast<std::int32_t>(i)).second) return {};
  std::vector<std::int32_t> places;
  for (const std::string& name : names) {
    const auto found = left.find(key(name));
    if (found == left.end()) return {};
    places.push_back(found->second);
    left.erase(found);
  }
  return places;
}

}  // namespace

TextDataset::TextDataset(TokenContent content) : content_(std::move(content)) {
  const std::vector<std::int64_t>& offsets = content_.offsets;
  VCAS_CHECK(!offsets.empty() && offsets.back() == std::ssize(content_.tokens),
             "offsets do not match tokens");
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i)
    longest_ = std::max(longest_, offsets[i + 1] - offsets[i]);
}

void TextDataset::append(std::int64_t index, const ItemDraw&, Batch& out) const {
  VCAS_CHECK(index >= 0 && index < size(), fmt::format("item {} of {}", index, size()));
  const auto begin = content_.tokens.begin() + content_.offsets[index];
  const auto end = content_.tokens.begin() + content_.offsets[index + 1];
  const std::int64_t first =
      content_.first_lengths.empty() ? end - begin : content_.first_lengths[index];
  if (out.offsets.empty()) out.offsets.push_back(0);
  out.tokens.insert(out.tokens.end(), begin, end);
  out.token_types.resize(out.offsets.back() + first, 0);
  out.token_types.resize(out.tokens.size(), 1);
  out.offsets.push_back(std::ssize(out.tokens));
  if (!content_.targets.empty()) out.targets.push_back(content_.targets[index]);
}

std::vector<std::int32_t> match_labels(const std::vector<std::string>& data_names,
                                       const std::vector<std::string>& model_names,
                                       bool names_are_given) {
  const auto fail = [&](const std::string& why, const std::string& hint) {
    throw Error(ExitCode::kBadConfig,
                fmt::format("the model's classes are {}, the data's {}: {}",
                            fmt::join(model_names, ", "), fmt::join(data_names, ", "), why),
                hint);
  };
  const std::string other_task =
      "take a model of this task, or train with model.pretrained and model.new_classifier=true";
  if (data_names.size() != model_names.size())
    fail(fmt::format("{} and {} classes", model_names.size(), data_names.size()), other_task);
  for (const bool any_case : {false, true})
    if (const auto match = places_of(data_names, model_names, any_case); !match.empty())
      return match;
  const bool bare_model = std::all_of(model_names.begin(), model_names.end(), is_bare);
  if (!bare_model && !std::all_of(data_names.begin(), data_names.end(), is_bare))
    fail("the names differ", other_task);
  if (!bare_model || !names_are_given)
    fail("they cannot be matched by name, and numbers may stand for another order",
         "set data.text.labels to the names of the classes, in the order of the numbers");
  std::vector<std::int32_t> same_order(data_names.size());
  std::iota(same_order.begin(), same_order.end(), 0);
  return same_order;
}

void ItemOptions::add_to(ContentHash& hash) const {
  for (const bool flag : {pairs, labelled, regression, skip_bad_labels, label_numbers})
    hash.add_number(flag);
  hash.add_number(labels.size());
  for (const std::string& name : labels) hash.add(name);
  hash.add_number(static_cast<std::uint64_t>(max_length));
  hash.add_number(kTextFormatVersion);
}

TokenContent tokenise_rows(TextRows& rows, const Tokenizer& tokenizer, const ItemOptions& options) {
  const std::int64_t special = options.pairs ? 3 : 2;
  if (options.max_length <= special)
    throw Error(
        ExitCode::kBadConfig,
        fmt::format("data.text.max_length must be above {}, the special tokens of an item, got {}",
                    special, options.max_length));
  const auto room = static_cast<std::size_t>(options.max_length - special);
  LabelReader labels(options.regression ? std::vector<std::string>{} : options.labels,
                     options.label_numbers);
  TokenContent content;
  content.offsets.push_back(0);
  std::vector<std::int32_t> first, second;
  TextRow row;
  const auto take_label = [&](const std::string& label) {
    if (options.regression) {
      const std::optional<float> target = find_target(label);
      if (target) content.targets.push_back(*target);
      return target.has_value();
    }
    const std::optional<std::int32_t> id = labels.id_of(label);
    if (id) content.labels.push_back(*id);
    return id.has_value();
  };
  std::int64_t bad_labels = 0;
  while (rows.next(row)) {
    stop_if_asked();
    if (options.labelled && !take_label(row.label)) {
      if (options.skip_bad_labels) {
        ++bad_labels;
        continue;
      }
      if (options.regression) throw_bad_target(row.label, rows);
      labels.throw_bad(row.label, rows);
    }
    first.clear();
    second.clear();
    tokenizer.encode(row.first, first);
    if (options.pairs) tokenizer.encode(row.second, second);
    const auto [first_size, second_size] = fit_pair(first.size(), second.size(), room);
    content.cut_rows += first_size < first.size() || second_size < second.size();
    first.resize(first_size);
    second.resize(second_size);

    std::vector<std::int32_t>& tokens = content.tokens;
    tokens.push_back(tokenizer.cls());
    tokens.insert(tokens.end(), first.begin(), first.end());
    tokens.push_back(tokenizer.sep());
    if (options.pairs) {
      content.first_lengths.push_back(static_cast<std::int32_t>(first.size() + 2));
      tokens.insert(tokens.end(), second.begin(), second.end());
      tokens.push_back(tokenizer.sep());
    }
    content.offsets.push_back(std::ssize(tokens));
  }
  content.skipped_rows = rows.skipped() + bad_labels;
  if (content.offsets.size() == 1)
    throw Error(ExitCode::kBadData, fmt::format("{}: there are no rows{}", rows.place(),
                                                bad_rows_text(content.skipped_rows)));
  if (!options.regression) labels.finish(content);
  if (!content.labels.empty() && content.class_names.size() < 2)
    throw Error(ExitCode::kBadData,
                fmt::format("{}: \"{}\" is the only class, and a classifier needs two",
                            rows.place(), content.class_names.front()),
                "is this the right label column?");
  return content;
}

std::unique_ptr<TextDataset> load_text(const TextOptions& given, const Tokenizer& tokenizer) {
  TextOptions options = given;
  options.file = find_plain_or_compressed(given.file, given.missing_hint);
  options.items.pairs = !options.second.empty();
  options.items.labelled = !options.label.empty();
  const SourceFile source = source_file(options.file);
  const auto make = [&] {
    TableRows rows(options);
    TokenContent content = tokenise_rows(rows, tokenizer, options.items);
    check_unchanged({&source, 1});
    return content;
  };
  ContentHash key;
  key.add_number(source.hash);
  key.add(options.file.extension().string());  // says how it is compressed
  for (const std::string& column : {options.first, options.second, options.label}) key.add(column);
  key.add_number(static_cast<std::uint64_t>(table_format(options.file, options.table.format)));
  const TableOptions& table = options.table;
  for (const bool flag :
       {table.header, table.skip_bad_rows, table.skip_uneven_rows, table.blank_rows})
    key.add_number(flag);
  options.items.add_to(key);
  key.add_number(tokenizer.fingerprint());
  auto dataset =
      std::make_unique<TextDataset>(options.cache ? cached_tokens(key.value(), make) : make());
  dataset->set_sources({source});
  return dataset;
}

}  // namespace vcas
