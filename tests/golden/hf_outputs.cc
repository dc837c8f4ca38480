// vcas_hf_outputs FOLDER BATCH OUT: what a BERT or a GPT-2 in Hugging Face's form makes of a packed
// batch, for tests/golden/check_hf.py. BATCH holds tokens, token_types (I32) and offsets (I64). OUT
// gets outputs.safetensors and export/, the model written back. Outputs are `hidden`, the last
// block's output of all rows, and `logits`: of two classes, or of the next token of each row.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>

#include "core/safetensors.h"
#include "models/hf_files.h"
#include "models/weights_io.h"

namespace fs = std::filesystem;
using namespace vcas;

namespace {

constexpr std::int64_t kItems = 25, kClasses = 2;  // at a time

template <class T>
std::vector<T> integers(const SafetensorsFile& file, const char* name) {
  const StoredTensor* tensor = file.find(name);
  if (!tensor) throw Error(ExitCode::kBadData, fmt::format("the batch lacks {}", name));
  std::vector<T> out(tensor->bytes.size() / sizeof(T));
  std::memcpy(out.data(), tensor->bytes.data(), tensor->bytes.size());
  return out;
}

struct Outputs {
  std::vector<float> hidden, logits;
};

// `settings`: what is not as config.json says.
Outputs run(const HfFiles& files, const std::vector<std::string>& settings, const Batch& batch,
            const fs::path& export_folder) {
  HfModel description = read_hf_config(files.config);
  read_config(description.options, {.overrides = settings});
  description.labels.clear();
  const std::unique_ptr<Ops> ops = make_ops("cpu");
  const std::unique_ptr<Model> model = build_model(description.options, {}, kClasses, 0.0);
  std::int64_t tokens = 0;
  for (std::int64_t first = 0; first < batch.items; first += kItems)
    tokens = std::max(
        tokens, batch.offsets[static_cast<std::size_t>(std::min(first + kItems, batch.items))] -
                    batch.offsets[static_cast<std::size_t>(first)]);
  model->graph.keep(model->hidden);
  model->graph.finish(*ops, {.max_items = kItems, .max_tokens = tokens, .max_masked = tokens});
  model->graph.parameters().initialize(*ops, 1);
  const LoadReport report = load_hf_weights(files.weights, description.options, *model, *ops);
  std::printf("%s\n", report.text().c_str());
  Outputs out;
  for (std::int64_t first = 0; first < batch.items; first += kItems) {
    model->load(*ops, batch, first, std::min(kItems, batch.items - first));
    Exec exec = model->graph.make_exec(1, 0, false);
    model->graph.forward(exec);
    for (const auto& [value, to] :
         {std::pair{model->hidden, &out.hidden}, {model->logits, &out.logits}}) {
      const Tensor tensor = model->graph.tensor(value);
      to->insert(to->end(), tensor.ptr<float>(), tensor.ptr<float>() + tensor.elements());
    }
  }
  if (!export_folder.empty()) save_hf_model(export_folder, description, *model, *ops);
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: vcas_hf_outputs FOLDER BATCH OUT\n", stderr);
    return static_cast<int>(ExitCode::kUsage);
  }
  try {
    const HfFiles files = find_hf_files(argv[1]);
    const SafetensorsFile file(argv[2]);
    const fs::path out = argv[3];
    Batch batch;
    batch.offsets = integers<std::int64_t>(file, "offsets");
    batch.tokens = integers<std::int32_t>(file, "tokens");
    batch.token_types = integers<std::int32_t>(file, "token_types");
    batch.items = std::ssize(batch.offsets) - 1;
    batch.labels.assign(static_cast<std::size_t>(batch.items), 0);
    batch.masked_offsets = batch.offsets;
    batch.masked_rows.resize(batch.tokens.size());
    std::iota(batch.masked_rows.begin(), batch.masked_rows.end(), 0);
    batch.masked_labels.assign(batch.tokens.size(), 0);
    const bool words = read_hf_config(files.config).options.kind.type == "gpt";
    Outputs outputs;
    if (words) {
      outputs = run(files, {}, batch, out / "export");
    } else {
      const auto pooled = [&](const std::string& pooling, const fs::path& export_folder) {
        return run(files, {"type=bert", "head=classification", "pooling=" + pooling}, batch,
                   export_folder);
      };
      outputs = {pooled("mean", {}).hidden, pooled("first", out / "export").logits};
    }
    const auto stored = [&](const char* name, const std::vector<float>& values, std::int64_t rows) {
      return StoredTensor{name,
                          StoredType::kF32,
                          {rows, std::ssize(values) / rows},
                          std::as_bytes(std::span(values))};
    };
    write_safetensors(
        out / "outputs.safetensors",
        {stored("hidden", outputs.hidden, std::ssize(batch.tokens)),
         stored("logits", outputs.logits, words ? std::ssize(batch.tokens) : batch.items)});
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "vcas_hf_outputs: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
