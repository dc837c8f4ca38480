#include "data/dataset.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "core/error.h"
#include "data/text_lines.h"

namespace vcas {

std::vector<std::string> numbered_classes(std::int64_t classes) {
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < classes; ++i) names.push_back(std::to_string(i));
  return names;
}

std::vector<std::string> read_class_names(const std::filesystem::path& file) {
  std::vector<std::string> names;
  std::set<std::string> known;
  TextLines lines(file);
  for (std::string line; lines.next(line);) {
    if (line.empty()) continue;
    if (const std::string fault = text_fault(line); !fault.empty())
      throw Error(ExitCode::kBadData, fmt::format("{}: {}", lines.place(), fault),
                  "names of classes are UTF-8; iconv -f latin1 -t utf-8 converts them");
    if (!known.insert(line).second)
      throw Error(ExitCode::kBadData,
                  fmt::format("{}: an earlier line has the name \"{}\" too", lines.place(), line),
                  "each class needs a name of its own");
    names.push_back(line);
  }
  if (names.empty())
    throw Error(ExitCode::kBadData,
                fmt::format("{}: no line has the name of a class", file.string()),
                "without this file the classes have numbers");
  return names;
}

RelabelledDataset::RelabelledDataset(std::unique_ptr<Dataset> inner, std::vector<std::int32_t> ids)
    : ForwardingDataset(std::move(inner)), ids_(std::move(ids)), class_names_(ids_.size()) {
  VCAS_CHECK(std::ssize(ids_) == inner_->classes(), "one number for each class");
  VCAS_CHECK(std::set(ids_.begin(), ids_.end()).size() == ids_.size(), "a number of its own each");
  for (std::size_t i = 0; i < ids_.size(); ++i) class_names_.at(ids_[i]) = inner_->class_names()[i];
}

VectorDataset::VectorDataset(VectorContent content) : content_(std::move(content)) {
  if (std::ssize(content_.values) != size() * content_.width)
    throw Error(ExitCode::kBadData,
                fmt::format("{} values, and {} items of width {} need {}", content_.values.size(),
                            size(), content_.width, size() * content_.width),
                "VectorContent::values has those of all items, and labels one an item");
  for (std::int64_t i = 0; i < size(); ++i)
    if (label(i) < -1 || label(i) >= classes())
      throw Error(
          ExitCode::kBadData,
          fmt::format("label {} of item {}, and there are {} classes", label(i), i, classes()),
          "labels count from 0, and -1 is an unknown one");
}

void VectorDataset::append(std::int64_t index, const ItemDraw&, Batch& out) const {
  VCAS_CHECK(index >= 0 && index < size(), fmt::format("item {} of {}", index, size()));
  const auto begin = content_.values.begin() + index * content_.width;
  out.values.insert(out.values.end(), begin, begin + content_.width);
}

}  // namespace vcas
