// Against PyTorch and transformers: the folders that tests/golden/make_hf_golden.py made.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

#include "core/files.h"
#include "core/safetensors.h"
#include "models/weights_io.h"
#include "tests/core/temporary_folder.h"
#include "tests/support/catch.h"
#include "tests/support/model_fixture.h"

namespace fs = std::filesystem;
using namespace vcas;

namespace {

const char* kNames[] = {
    "bert_classification", "bert_regression",   "bert_mlm", "bert_mlm_untied", "vit", "vit_mean",
    "resnet_basic",        "resnet_bottleneck", "gpt2",     "gpt2_bare"};

fs::path golden_folder(const std::string& name) {
  return fs::path(VCAS_SOURCE_DIR) / "tests/golden/hf" / name;
}

// Integers of a file; empty where it has none of the name.
template <class T>
std::vector<T> integers(const SafetensorsFile& file, const char* name) {
  const StoredTensor* tensor = file.find(name);
  if (!tensor) return {};
  std::vector<T> out(tensor->bytes.size() / sizeof(T));
  std::memcpy(out.data(), tensor->bytes.data(), tensor->bytes.size());
  return out;
}

std::vector<float> floats(const SafetensorsFile& file, const char* name) {
  const StoredTensor* tensor = file.find(name);
  return tensor ? file.read_floats(*tensor) : std::vector<float>();
}

Batch read_batch(const SafetensorsFile& file) {
  Batch batch;
  batch.offsets = integers<std::int64_t>(file, "offsets");
  batch.values = floats(file, "values");
  batch.tokens = integers<std::int32_t>(file, "tokens");
  batch.token_types = integers<std::int32_t>(file, "token_types");
  batch.labels = integers<std::int32_t>(file, "labels");
  batch.targets = floats(file, "targets");
  batch.masked_offsets = integers<std::int64_t>(file, "masked_offsets");
  batch.masked_rows = integers<std::int32_t>(file, "masked_rows");
  batch.masked_labels = integers<std::int32_t>(file, "masked_labels");
  batch.items = batch.offsets.empty() ? std::ssize(batch.labels) : std::ssize(batch.offsets) - 1;
  return batch;
}

// A model of the golden configuration with the weights of `file`.
struct Loaded {
  HfModel description;
  Batch batch;
  std::unique_ptr<Ops> ops = make_ops("cpu");
  std::unique_ptr<Model> model;
  LoadReport report;

  Loaded(const fs::path& folder, const std::string& file, DType dtype = DType::kF32)
      : description(read_hf_config(folder / "config.json")),
        batch(read_batch(SafetensorsFile(folder / "batch.safetensors"))) {
    model = build_model(description.options, description.image_shape, 3, 0.0, dtype);
    const auto rows = static_cast<std::int64_t>(batch.tokens.size());
    if (model->hidden.index >= 0) model->graph.keep(model->hidden);
    model->graph.finish(*ops, {.max_items = batch.items, .max_tokens = rows, .max_masked = rows});
    model->graph.parameters().initialize(*ops, 1);
    report = load_hf_weights(folder / file, description.options, *model, *ops);
  }
};

double norm(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

// || got - want || / || want ||
double relative_error(std::vector<double> got, const std::vector<double>& want, double scale) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) got[i] -= want[i];
  return norm(got) / scale;
}
double relative_error(const std::vector<double>& got, const std::vector<float>& want) {
  const std::vector<double> wide(want.begin(), want.end());
  return relative_error(got, wide, norm(wide));
}

}  // namespace

TEST_CASE("logits, loss and every gradient are those of transformers", "[golden]") {
  for (const DType dtype : {DType::kF32, DType::kF64})
    for (const std::string name : kNames) {
      INFO(name << " " << std::string(dtype_name(dtype)));
      // What is stored is f32, so f64 cannot agree any better than that.
      const double tolerance = dtype == DType::kF32 ? 1e-5 : 2e-7;
      const fs::path folder = golden_folder(name);
      const SafetensorsFile expected(folder / "batch.safetensors");
      Loaded loaded(folder, "model.safetensors", dtype);
      CHECK(loaded.report.missing.empty());
      CHECK(loaded.report.unexpected.empty());
      Graph& graph = loaded.model->graph;
      loaded.model->load(*loaded.ops, loaded.batch, 0, loaded.batch.items);
      Exec exec = graph.make_exec(1, 0, true);
      graph.forward(exec);

      CHECK(relative_error(wide_numbers(graph.tensor(loaded.model->logits)),
                           floats(expected, "logits")) < tolerance);
      double loss = 0;
      const auto losses = wide_numbers(graph.tensor(loaded.model->loss));
      for (const double term : losses) loss += term / static_cast<double>(losses.size());
      CHECK(relative_error({loss}, floats(expected, "loss")) < tolerance);

      const std::vector<Tensor> written = graph.parameters().gradient_list();
      graph.backward(
          exec, {.gradients = {written}, .loss_scale = 1 / static_cast<double>(losses.size())});
      // The file of gradients has the names and shapes of the weights.
      const Loaded gradients(folder, "gradients.safetensors", dtype);
      const Parameters& want = gradients.model->graph.parameters();
      for (std::size_t p = 0; p < want.size(); ++p) {
        const std::vector<double> all = wide_numbers(want[p].value);
        const std::vector<double> got = wide_numbers(graph.parameters()[p].gradient);
        // Query, key and value each against its own size. That of the key's bias is zero: a
        // constant added to all scores of a query changes nothing.
        const std::string& of = want[p].name;
        const auto has = [&](const char* part) { return of.find(part) != std::string::npos; };
        const std::size_t parts = has("qkv") || has("c_attn") ? 3 : has("key_value") ? 2 : 1;
        for (std::size_t i = 0; i < parts; ++i) {
          const auto slice = [&](const std::vector<double>& x) {
            const auto size = static_cast<std::ptrdiff_t>(x.size() / parts);
            const auto begin = x.begin() + static_cast<std::ptrdiff_t>(i) * size;
            return std::vector<double>(begin, begin + size);
          };
          const double own = norm(slice(all)), whole = norm(all);
          INFO(of << " part " << i);
          CHECK(whole > 0);
          CHECK(relative_error(slice(got), slice(all), own > 1e-6 * whole ? own : whole) <
                tolerance);
        }
      }
    }
}

TEST_CASE("the last block's output is that of transformers, packed against padded", "[golden]") {
  for (const std::string name : {"bert_classification", "bert_mlm", "gpt2", "gpt2_bare"}) {
    INFO(name);
    const SafetensorsFile expected(golden_folder(name) / "batch.safetensors");
    Loaded loaded(golden_folder(name), "model.safetensors");
    loaded.model->load(*loaded.ops, loaded.batch, 0, loaded.batch.items);
    Exec exec = loaded.model->graph.make_exec(1, 0, false);
    loaded.model->graph.forward(exec);
    const auto got = wide_numbers(loaded.model->graph.tensor(loaded.model->hidden));
    std::vector<float> want = floats(expected, "hidden");
    if (name == "bert_classification") {  // which computes the first row of each item alone
      const auto width = to_json(loaded.description.options)["width"].get<std::ptrdiff_t>();
      std::vector<float> rows;
      for (std::int64_t n = 0; n < loaded.batch.items; ++n) {
        const auto row = want.begin() + loaded.batch.offsets[static_cast<std::size_t>(n)] * width;
        rows.insert(rows.end(), row, row + width);
      }
      want = rows;
    }
    CHECK(relative_error(got, want) < 1e-6);
  }
}

TEST_CASE("running statistics after two forwards, and an evaluation, are those of PyTorch",
          "[golden]") {
  for (const DType dtype : {DType::kF32, DType::kF64})
    for (const std::string name : {"resnet_basic", "resnet_bottleneck"}) {
      INFO(name << " " << std::string(dtype_name(dtype)));
      const double tolerance = dtype == DType::kF32 ? 1e-5 : 2e-7;
      const fs::path folder = golden_folder(name);
      Loaded loaded(folder, "model.safetensors", dtype);
      Graph& graph = loaded.model->graph;
      Batch squares = loaded.batch;
      for (float& value : squares.values) value *= value;
      for (const Batch* batch : {&loaded.batch, &squares}) {
        loaded.model->load(*loaded.ops, *batch, 0, batch->items);
        Exec exec = graph.make_exec(1, 0, true);
        exec.updates_state = true;
        graph.forward(exec);
      }
      const Loaded after(folder, "after.safetensors", dtype);
      const std::vector<Parameter>& want = after.model->graph.parameters().state();
      REQUIRE(want.size() > 10);
      for (std::size_t i = 0; i < want.size(); ++i) {
        INFO(want[i].name);
        const std::vector<double> expected = wide_numbers(want[i].value);
        CHECK(relative_error(wide_numbers(graph.parameters().state()[i].value), expected,
                             norm(expected)) < tolerance);
      }
      loaded.model->load(*loaded.ops, loaded.batch, 0, loaded.batch.items);
      Exec evaluation = graph.make_exec(1, 0, false);
      graph.forward(evaluation);
      const SafetensorsFile stored(folder / "batch.safetensors");
      CHECK(relative_error(wide_numbers(graph.tensor(loaded.model->logits)),
                           floats(stored, "evaluated")) < tolerance);
    }
}

TEST_CASE("weights survive the way here and back bit for bit", "[golden]") {
  for (const std::string name : kNames) {
    TemporaryFolder out;
    Loaded loaded(golden_folder(name), "model.safetensors");
    save_hf_model(out.path() / "hf", loaded.description, *loaded.model, *loaded.ops);
    const SafetensorsFile before(golden_folder(name) / "model.safetensors");
    const SafetensorsFile after(out.path() / "hf/model.safetensors");
    REQUIRE(after.tensors().size() == before.tensors().size());
    for (const StoredTensor& want : before.tensors()) {
      INFO(name << " " << want.name);
      const StoredTensor* got =
          after.find(name == "gpt2_bare" ? "transformer." + want.name : want.name);
      REQUIRE(got);
      CHECK(got->shape == want.shape);
      // The bias of a tied decoder, which transformers 5 writes and does not read.
      if (name == "bert_mlm_untied" && want.name == "cls.predictions.bias") continue;
      CHECK(std::equal(got->bytes.begin(), got->bytes.end(), want.bytes.begin(), want.bytes.end()));
    }
    const HfModel again = read_hf_config(out.path() / "hf/config.json");
    CHECK(again.labels == loaded.description.labels);
    CHECK(again.image_shape == loaded.description.image_shape);
    CHECK(to_json(again.options) == to_json(loaded.description.options));
  }
}
