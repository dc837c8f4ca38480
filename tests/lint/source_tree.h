// The files of the source tree, as lines of text.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"

namespace vcas {

struct SourceFile {
  std::string path;  // relative to the top of the tree: "core/error.h"
  std::vector<std::string> lines;

  std::string folder() const { return path.substr(0, path.find('/')); }  // "core"
  std::string name() const { return path.substr(path.rfind('/') + 1); }  // "error.h"
  bool has_extension(const std::set<std::string>& extensions) const {
    return extensions.contains(std::filesystem::path(path).extension().string());
  }
  bool is_cpp() const { return has_extension({".h", ".c", ".cc", ".cuh", ".cu", ".inc"}); }
  bool is_script() const { return !lines.empty() && lines.front() == "#!/usr/bin/env bash"; }
  std::string place(std::size_t line) const { return path + ":" + std::to_string(line + 1) + ": "; }
};

inline SourceFile read_source(const std::filesystem::path& top, const std::string& path) {
  SourceFile file{path, {}};
  std::ifstream stream(top / path);
  for (std::string line; std::getline(stream, line);) file.lines.push_back(std::move(line));
  return file;
}

// Everything a person wrote: sources, build files, scripts, configurations and documents. The
// folders are listed because a build or a run may leave others beside them.
inline std::vector<SourceFile> source_tree(const std::filesystem::path& top) {
  namespace fs = std::filesystem;
  static const std::set<std::string> folders = {".ci",   "cmake",    "configs", "core",   "data",
                                                "docs",  "examples", "kernels", "layers", "models",
                                                "optim", "tests",    "tools"};
  static const std::set<std::string> extensions = {"",     ".c",  ".cc", ".cmake", ".cu",
                                                   ".cuh", ".h",  ".in", ".inc",   ".json",
                                                   ".md",  ".py", ".sh", ".txt"};
  std::vector<SourceFile> files;
  const auto add = [&](const fs::path& path) {
    files.push_back(read_source(top, path.lexically_relative(top).generic_string()));
  };
  for (const fs::directory_entry& entry : fs::directory_iterator(top)) {
    if (entry.path().filename() == ".git") continue;  // of a linked work tree, a file
    if (entry.is_regular_file() && extensions.contains(entry.path().extension().string()))
      add(entry.path());
    if (!entry.is_directory() || !folders.contains(entry.path().filename().string())) continue;
    for (const fs::directory_entry& inner : fs::recursive_directory_iterator(entry.path()))
      if (inner.is_regular_file() && extensions.contains(inner.path().extension().string()))
        add(inner.path());
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

using Violations = std::vector<std::string>;  // "core/error.h:12: longer than 100 columns"

inline void expect_none(const Violations& violations) {
  for (const std::string& violation : violations) FAIL_CHECK(violation);
  SUCCEED();
}

}  // namespace vcas
