// Models as runs and trained checkpoints have them, with memory for their batches.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "kernels/decorators/count_ops.h"
#include "kernels/decorators/finite_ops.h"
#include "kernels/decorators/range_ops.h"
#include "kernels/decorators/trace_ops.h"
#include "models/model.h"
#include "tools/run_data.h"

namespace vcas {

// What looks at operations besides.
struct Watch {
  std::filesystem::path trace = {};  // the file of a Chrome trace; empty: there is none
  bool finite = false;               // whether numbers are finite, from FiniteOps::watch() on
};

struct ReadyModel {
  std::unique_ptr<CountOps> ops;
  RangeOps* ranges = nullptr;    // of ops; null where the device has no profiler
  TraceOps* trace = nullptr;     // of ops; null: no trace is wanted
  FiniteOps* finite = nullptr;   // of ops; null: not wanted
  std::unique_ptr<Model> model;  // without weights
};

// For batches of `items` items.
// Throws kBadConfig where `limits` exceed the model's positions, and for logits of other classes.
ReadyModel make_model(const RunConfig& config, const ModelFacts& facts, const Tokenizer* tokenizer,
                      const BatchLimits& limits, std::int64_t items, const Watch& watch = {});
// Throws kOutOfMemory where OpenBLAS would try for ever to get its buffers: a limit of the address
// space leaves no room for one a thread. To be called before the first products.
void check_room_for_products(const RunConfig& config);
// The model alone, of this type, with its memory in `ops`.
std::unique_ptr<Model> make_model(Ops& ops, DType dtype, const RunConfig& config,
                                  const ModelFacts& facts, const Tokenizer* tokenizer,
                                  const BatchLimits& limits, std::int64_t items);

// What to build: the vocabulary follows from the tokenizer where the settings do not say it. Throws
// kBadConfig where the two do not fit.
ModelOptions model_options(const RunConfig& config, const Tokenizer* tokenizer);

// The files that a checkpoint needs besides weights and settings, by name: model.json, and those of
// the tokenizer or of images. `positions`: the most tokens of an item.
std::map<std::string, std::string> model_files(const ModelFacts& facts,
                                               const Tokenizer* tokenizer = nullptr,
                                               std::int64_t positions = 0);
// model.json of a checkpoint. Throws kBadData.
ModelFacts read_model_facts(const std::filesystem::path& checkpoint);

}  // namespace vcas
