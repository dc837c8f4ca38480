#include "data/data_kind.h"

#include <fmt/format.h>

#include "core/error.h"

namespace vcas {

OpenedData DataKind::open_unlabelled(const DataRequest&, const std::vector<std::filesystem::path>&,
                                     const std::vector<std::int64_t>&) const {
  VCAS_CHECK(false, "these data have no unlabelled items");
  return {};
}

void DataOptions::fields(Setting& v) {
  kind.fields(v);
  v.field("folder", folder,
          "Where the data files are; empty: where Debian installs them (fashion_mnist, wordnet), "
          "glue/TASK (glue).");
  v.field("limit", limit, "Train on so many items, the same at every seed; 0: on all.",
          at_least(0));
  v.field("eval_limit", eval_limit, "Evaluate on so many items, the same at every seed; 0: on all.",
          at_least(0));
  v.field("validation_share", validation_share,
          "Share of the training items to hold out and evaluate on, in place of evaluation data; "
          "0: none.",
          at_least(0.0), below(1.0));
  v.field("skip_bad_rows", skip_bad_rows,
          "Leave bad rows of tables and damaged images out instead of stopping.");
  v.formerly("data.text.skip_bad_rows");
  v.field("threads", threads,
          "Threads that decode and change images ahead of training; batches are the same.",
          between(1, 256));
}

void DataOptions::check_folder(const char* example, ConfigErrors& errors) const {
  if (folder.empty())
    errors.add(
        {"folder", "type"},
        fmt::format("is missing: data.type \"{}\" reads a folder with {}", kind.type, example));
}

}  // namespace vcas
