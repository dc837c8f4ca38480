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
    "data.text.train_file and data.text.test_file each name a text with a document on each line, a "
    "folder, or files by a pattern; apt-get install wordnet-base, then sed -n 's/.* | //p' "
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
    const std::string fault = text_fault(line);
    if (fault.empty()) {
      use(line);
    } else if (skip_bad) {
      ++skipped;
    } else {
      throw Error(ExitCode::kBadData, fmt::format("{}: {}", lines.place(), fault),
                  "if the text is Latin-1, iconv -f latin1 -t utf-8 converts it; "
                  "data.skip_bad_rows=true leaves bad lines out");
    }
  }
  return skipped;
}

// Perhaps: the last of these begins other punctuation too.
bool begins_with_blank(std::string_view line) {
  static constexpr std::string_view kBlanks[] = {
      " ", "\t", "\v", "\f", "\r", "\u0085", "\u00A0", "\u1680", "\u205F", "\u3000", "\xE2\x80"};
  return line.empty() || std::ranges::any_of(kBlanks, [&](std::string_view blank) {
           return line.starts_with(blank);
         });
}

// A file in texts that tokenizers may see apart: each ends with a line end, and no blank follows.
std::int64_t for_each_stretch(const std::filesystem::path& file, bool skip_bad,
                              const UseText& use) {
  std::string text;
  bool begins = true;
  const auto flush = [&] {
    if (!text.empty()) use(text, std::exchange(begins, false));
    text.clear();
  };
  const std::int64_t skipped = for_each_line(file, skip_bad, [&](const std::string& line) {
    if (!begins_with_blank(line)) flush();
    text += line;
    text += '\n';
  });
  flush();
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
  while (table.next(fields)) use(fields[0], true);
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
            skipped += for_each_text(file, options, [&](const std::string& text, bool begins) {
              stop_if_asked();
              use(text, begins);
            });
        },
        [&](std::span<const std::int32_t> ids) {
          sink(ids);
          empty = false;
        });
    if (empty)
      throw Error(ExitCode::kBadData, fmt::format("{}: there is no text{}", files.back().string(),
                                                  bad_rows_text(skipped)));
    return skipped;
  };
  return {options.cache ? cached_token_stream(key.value(), make) : token_stream_in_memory(make),
          std::move(sources)};
}

std::vector<std::filesystem::path> corpus_files(const std::string& name) {
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
  return files;
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
