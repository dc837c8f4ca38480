// Includes between the folders point one way (docs/architecture.md).
#include <map>
#include <optional>
#include <regex>

#include "tests/lint/source_tree.h"
#include "tests/support/catch.h"

using namespace vcas;

namespace {

// What a folder may include besides itself. tools/ and tests/ may include everything.
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"core", {}},
    {"data", {"core"}},
    {"kernels", {"core"}},
    {"layers", {"core", "kernels"}},
    {"models", {"core", "kernels", "layers", "data/batch.h"}},
    {"optim", {"core", "kernels", "layers", "models", "data/batch.h"}},
};

// Libraries that belong to one place each.
const std::vector<std::pair<std::string, std::string>> kLibraryHomes = {
    {"Eigen/", "kernels/cpu/"}, {"CLI/", "tools/"},   {"utf8proc", "data/"}, {"xxhash", "core/"},
    {"cuda", "kernels/"},       {"mpi", "core/mpi/"}, {"nccl", "tests/"}};

std::optional<std::string> match(const std::string& line, const char* pattern) {
  std::smatch found;
  if (!std::regex_search(line, found, std::regex(pattern))) return std::nullopt;
  return found[1];
}

Violations include_violations(const SourceFile& file) {
  Violations violations;
  const auto allowed = kMayInclude.find(file.folder());
  for (std::size_t i = 0; i < file.lines.size(); ++i) {
    const std::string& line = file.lines[i];
    if (line.find("include") == std::string::npos) continue;
    if (const auto own = match(line, R"re(^\s*#\s*include\s+"([^"]+)")re")) {
      const std::string folder = own->substr(0, own->find('/'));
      if (own->starts_with("../") || own->find('/') == std::string::npos)
        violations.push_back(file.place(i) + *own + " is not named from the top of the tree");
      else if (allowed != kMayInclude.end() && folder != file.folder() &&
               !allowed->second.contains(folder) && !allowed->second.contains(*own))
        violations.push_back(file.place(i) + file.folder() + "/ may not include " + *own);
    }
    if (const auto library = match(line, R"re(^\s*#\s*include\s+<([^>]+)>)re"))
      for (const auto& [prefix, home] : kLibraryHomes)
        if (library->starts_with(prefix) && allowed != kMayInclude.end() &&
            !file.path.starts_with(home))
          violations.push_back(file.place(i) + "<" + *library + "> belongs in " + home);
  }
  return violations;
}

}  // namespace

TEST_CASE("the include rule itself") {
  const auto violations = [](const char* path, const char* line) {
    return include_violations({path, {line}}).size();
  };
  CHECK(violations("layers/gelu.cc", R"(#include "kernels/ops.h")") == 0);
  CHECK(violations("kernels/ops.h", R"(#include "layers/layer.h")") == 1);
  CHECK(violations("optim/trainer.h", R"(#include "data/batch.h")") == 0);
  CHECK(violations("optim/trainer.h", R"(#include "data/loader.h")") == 1);
  CHECK(violations("optim/trainer.cc", R"(#include "models/model.h")") == 0);
  CHECK(violations("models/model.h", R"(#include "optim/trainer.h")") == 1);
  CHECK(violations("data/loader.h", R"(  #  include "kernels/ops.h")") == 1);
  CHECK(violations("core/error.cc", R"(#include "error.h")") == 1);
  CHECK(violations("core/tensor.h", "#include <Eigen/Core>") == 1);
  CHECK(violations("kernels/cpu/gemm.cc", "#include <Eigen/Core>") == 0);
  CHECK(violations("core/tensor.h", "#include <vector>") == 0);
  CHECK(violations("tools/main.cc", R"(#include "optim/trainer.h")") == 0);
}

TEST_CASE("includes between the folders point one way") {
  Violations all;
  std::set<std::string> seen;
  for (const SourceFile& file : source_tree(VCAS_SOURCE_DIR)) {
    if (!file.is_cpp() || file.path.starts_with("examples/")) continue;
    seen.insert(file.folder());
    for (std::string& violation : include_violations(file)) all.push_back(std::move(violation));
  }
  for (const auto& [folder, allowed] : kMayInclude) CHECK(seen.contains(folder));
  expect_none(all);
}
