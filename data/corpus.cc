#include "data/corpus.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/signals.h"
#include "data/text_table.h"

namespace vcas {
namespace {

constexpr const char* kMissingHint =
    "data.text.train_file and data.text.test_file each name a text, a folder, or files by a "
    "pattern; apt-get install wordnet-base, then sed -n 's/.* | //p' "
    "/usr/share/wordnet/data.noun > corpus.txt makes such a text";

// kAuto of plain text. Shards such as "c4.json-00001.gz" have a suffix of their own.
TableFormat format_of(const std::filesystem::path& file) {
  const std::string name = file.filename().string();
  for (const auto& [part, format] :
       {std::pair(".json", TableFormat::kJsonl), std::pair(".tsv", TableFormat::kTsv),
        std::pair(".csv", TableFormat::kCsv)})
    if (name.find(part) != std::string::npos) return format;
  return TableFormat::kAuto;
}

// How many bad lines were left out.
std::int64_t for_each_line(const std::filesystem::path& file, bool skip_bad,
                           const std::function<void(std::string&)>& use) {
  TextLines lines(file);
  std::string line;
  std::int64_t skipped = 0;
  while (lines.next(line)) {
    stop_if_asked();
    const std::string fault = text_fault(line);
    if (fault.empty()) {
      use(line);
    } else if (skip_bad) {
      ++skipped;
    } else {
      throw Error(ExitCode::kBadData, fmt::format("{}: {}", lines.place(), fault),
                  encoding_hint(line) + "; data.skip_bad_rows=true leaves bad lines out");
    }
  }
  return skipped;
}

// The end of the last word of a text, before white space: 0 where there is none.
// Words that end in these bytes may be white space of Unicode.
std::size_t end_of_words(std::string_view text) {
  const std::size_t last = text.find_last_not_of(" \t\n\v\f\r");
  if (last == std::string_view::npos) return 0;
  const std::string_view words = text.substr(0, last + 1);
  const std::string_view sign = words.substr(words.size() - std::min<std::size_t>(3, words.size()));
  for (const std::string_view blank : {"\u0085", "\u00A0", "\u1680", "\u205F", "\u3000"})
    if (sign.ends_with(blank)) return 0;
  return sign.starts_with("\xE2\x80") ? 0 : words.size();
}

// A file in texts that tokenizers may see apart: each ends with a word, and white space follows.
// Text that waits has no such end, so only the new line is searched for one.
std::int64_t for_each_stretch(const std::filesystem::path& file, bool skip_bad,
                              const UseText& use) {
  std::string text;
  bool begins = true;
  const std::int64_t skipped = for_each_line(file, skip_bad, [&](const std::string& line) {
    const std::size_t words = end_of_words(line);
    const std::size_t end = text.size() + words;
    text += line;
    text += '\n';
    if (words == 0) return;
    use(text.substr(0, end), std::exchange(begins, false));
    text.erase(0, end);
  });
  if (!text.empty()) use(text, begins);
  return skipped;
}

// How many bad rows or lines were left out.
std::int64_t for_each_text(const std::filesystem::path& file, const CorpusOptions& options,
                           const UseText& use) {
  const TableFormat format = format_of(file);
  if (format == TableFormat::kAuto && options.whole_files)
    return for_each_stretch(file, options.skip_bad_rows, use);
  if (format == TableFormat::kAuto)
    return for_each_line(file, options.skip_bad_rows, [&](std::string& line) { use(line, true); });
  TextTable table(file, {options.text_field},
                  {.format = format,
                   .header = options.header,
                   .skip_bad_rows = options.skip_bad_rows,
                   .column_hint = "data.text.first names the column of the text"});
  std::vector<std::string> fields;
  while (table.next(fields)) {
    stop_if_asked();
    use(fields[0], true);
  }
  return table.skipped();
}

}  // namespace

Corpus read_corpus(const CorpusOptions& options, ContentHash key,
                   const std::function<void(const EachText&, const TokenSink&)>& tokenise) {
  if (options.files.empty())
    throw Error(ExitCode::kBadConfig, "words are learned from text files, and none is named",
                kMissingHint);
  std::vector<std::filesystem::path> files;
  std::vector<SourceFile> sources;
  for (const std::filesystem::path& file : options.files) {
    files.push_back(find_plain_or_compressed(file, kMissingHint));
    sources.push_back(source_file(files.back()));
    key.add_number(sources.back().hash);
    key.add(files.back().extension().string());  // says how it is compressed
    key.add_number(static_cast<std::uint64_t>(format_of(files.back())));
  }
  key.add(options.text_field);
  for (const bool flag : {options.header, options.whole_files, options.skip_bad_rows})
    key.add_number(flag);
  const auto make = [&](const TokenSink& sink) {
    std::int64_t skipped = 0;
    bool empty = true;
    tokenise(
        [&](const UseText& use) {
          for (const std::filesystem::path& file : files)
            skipped += for_each_text(file, options, use);
        },
        [&](std::span<const std::int32_t> ids) {
          sink(ids);
          empty = false;
        });
    if (empty)
      throw Error(ExitCode::kBadData, fmt::format("{}: there is no text{}", files.back().string(),
                                                  bad_rows_text(skipped)));
    check_unchanged(sources);
    return skipped;
  };
  return {options.cache ? cached_token_stream(key.value(), make) : token_stream_in_memory(make),
          std::move(sources)};
}

CorpusDataset::CorpusDataset(TokenStream tokens, std::int64_t item_rows, std::int64_t targets)
    : stream_(std::move(tokens)),
      item_rows_(item_rows),
      targets_(targets),
      rows_(std::ssize(stream_.tokens()) - targets) {
  VCAS_CHECK(item_rows > 0 && rows_ > 0,
             fmt::format("items of {} rows, {} rows in all", item_rows, rows_));
}

std::span<const std::int32_t> CorpusDataset::item_tokens(std::int64_t index) const {
  VCAS_CHECK(index >= 0 && index < size(), fmt::format("item {} of {}", index, size()));
  const std::int64_t begin = index * item_rows_;
  return stream_.tokens().subspan(begin, std::min(item_rows_, rows_ - begin) + targets_);
}

std::int64_t CorpusDataset::append_tokens(std::span<const std::int32_t> tokens, Batch& out) {
  for (auto* offsets : {&out.offsets, &out.masked_offsets})
    if (offsets->empty()) offsets->push_back(0);
  const std::int64_t first = out.offsets.back();
  out.tokens.insert(out.tokens.end(), tokens.begin(), tokens.end());
  out.token_types.resize(out.tokens.size(), 0);
  out.offsets.push_back(first + std::ssize(tokens));
  return first;
}

OpenedData opened(std::unique_ptr<CorpusDataset> words) {
  const TokenStream& stream = words->stream();
  const std::int64_t most_masked = words->masked_count(words->item_shape()[0]);
  return {.items = std::move(words),
          .tokens = stream.tokens(),
          .most_masked = most_masked,
          .skipped_rows = stream.skipped_rows()};
}

std::vector<std::filesystem::path> corpus_files(const std::string& name) try {
  std::vector<std::filesystem::path> files;
  if (std::filesystem::is_directory(name)) {
    for (const auto& entry : std::filesystem::directory_iterator(name))
      if (entry.is_regular_file() && !entry.path().filename().string().starts_with('.'))
        files.push_back(entry.path());
    std::sort(files.begin(), files.end());
  } else if (!plain_or_compressed(name) && name.find_first_of("*?[") != std::string::npos) {
    glob_t found{};
    if (::glob(name.c_str(), 0, nullptr, &found) == 0)
      files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    ::globfree(&found);
  } else {
    files = {name};
  }
  if (files.empty())
    throw Error(ExitCode::kNoInput, fmt::format("{}: there are no such files", name), kMissingHint);
  for (const std::filesystem::path& file : files)
    if (const std::string fault = text_fault(file.string()); !fault.empty())
      throw Error(ExitCode::kBadData, fmt::format("{}: the path: {}", file.string(), fault),
                  "names of files are UTF-8: rename the file or its folder");
  return files;
} catch (const std::filesystem::filesystem_error& error) {
  fail_listing(error);
}

void CorpusSettings::fields(Setting& v, const char* train_help) {
  files.fields(v, train_help);
  v.field("first", first, "Column of the text in tables; empty: text.");
  add_header(v, header);
}

CorpusOptions CorpusSettings::options(const DataRequest& request,
                                      const TokenSettings& tokens) const {
  CorpusOptions options{.files = corpus_files(files.of(request.split)),
                        .header = header,
                        .skip_bad_rows = request.skip_bad_rows,
                        .cache = tokens.cache};
  if (!first.empty()) options.text_field = first;
  return options;
}

}  // namespace vcas
