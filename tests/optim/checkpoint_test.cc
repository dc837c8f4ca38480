#include "optim/checkpoint.h"

#include <fstream>
#include <limits>

#include "core/files.h"
#include "tests/core/temporary_folder.h"
#include "tests/support/check_error.h"

namespace fs = std::filesystem;
using namespace vcas;

namespace {

// A trainer of a small MLP that has made some steps.
struct Trained {
  std::unique_ptr<Ops> ops = make_ops("cpu");
  std::unique_ptr<Model> model;
  std::unique_ptr<Trainer> trainer;

  explicit Trained(std::int64_t width = 8, std::uint64_t seed = 1, int steps = 0,
                   const char* optimizer = "adamw") {
    model = build_model(
        read_model_options({"type=mlp", "depth=2", "width=" + std::to_string(width)}), {6}, 3, 0.0);
    model->graph.finish(*ops, {.max_items = 4});
    model->graph.parameters().initialize(*ops, seed);
    TrainerOptions options{.total_steps = 100, .batch = 4, .seed = seed};
    options.optimizer.kind.type = optimizer;
    trainer = std::make_unique<Trainer>(*model, *ops, options, nullptr);
    Batch batch{.items = 4, .labels = {0, 1, 2, 0}};
    for (int i = 0; i < 24; ++i) batch.values.push_back(static_cast<float>(i % 7) - 3);
    for (int i = 0; i < steps; ++i) trainer->step(batch);
  }

  void spoil(const Tensor& tensor, float value) {
    ops->copy_to_device(static_cast<float*>(tensor.data) + 1, &value, sizeof value);
  }

  std::vector<float> numbers() const {
    std::vector<float> all;
    const auto add = [&](const Tensor& slab) {
      const std::size_t begin = all.size();
      all.resize(begin + static_cast<std::size_t>(slab.elements()));
      ops->copy_to_host(all.data() + begin, slab.data, slab.bytes());
    };
    add(model->graph.parameters().values());
    for (const NamedTensor& state : trainer->optimizer().state()) add(state.tensor);
    return all;
  }
};

void save(const fs::path& run, Trained& trained) {
  save_checkpoint(checkpoint_folder(run, trained.trainer->steps()), *trained.trainer,
                  {{"answer", 42}}, {{"config.json", "{}\n"}});
}

}  // namespace

TEST_CASE("a checkpoint restores weights and optimizer bit for bit") {
  const TemporaryFolder folder;
  Trained saved(8, 1, 4);
  save(folder.path(), saved);
  Trained loaded(8, 2);
  REQUIRE(loaded.numbers() != saved.numbers());
  const nlohmann::json state = load_checkpoint(folder.path() / "checkpoint-4", *loaded.trainer);
  CHECK(state == nlohmann::json{{"answer", 42}});
  CHECK(loaded.numbers() == saved.numbers());
}

TEST_CASE("a checkpoint of another model is refused by the tensor's name") {
  const TemporaryFolder folder;
  Trained saved(8, 1, 2), wider(12);
  save(folder.path(), saved);
  check_whole_error([&] { load_checkpoint(folder.path() / "checkpoint-2", *wider.trainer); },
                    ExitCode::kBadConfig,
                    "mlp.layer.0.dense.weight has shape [8, 6] in " +
                        (folder.path() / "checkpoint-2/model.safetensors").string() +
                        " but the model has [12, 6]",
                    "the file belongs to another model, or data.type or model.* differ");
}

TEST_CASE("a checkpoint of another optimizer is refused, and the weights stay") {
  const TemporaryFolder folder;
  Trained saved(8, 1, 2), loaded(8, 2, 2, "sgd");
  save(folder.path(), saved);
  const std::vector<float> before = loaded.numbers();
  check_whole_error([&] { load_checkpoint(folder.path() / "checkpoint-2", *loaded.trainer); },
                    ExitCode::kBadConfig,
                    (folder.path() / "checkpoint-2/optimizer.safetensors").string() +
                        " lacks 1 of 1 tensors to load: momentum",
                    "optimizer.name must be that of the checkpoint");
  CHECK(loaded.numbers() == before);
}

TEST_CASE("a damaged file is found before anything is read") {
  const TemporaryFolder folder;
  Trained saved(8, 1, 2);
  save(folder.path(), saved);
  {
    std::fstream file(folder.path() / "checkpoint-2/optimizer.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x55');
  }
  Trained loaded(8, 2);
  const std::vector<float> before = loaded.numbers();
  check_error([&] { load_checkpoint(folder.path() / "checkpoint-2", *loaded.trainer); },
              ExitCode::kBadData, "optimizer.safetensors");
  CHECK(loaded.numbers() == before);
}

TEST_CASE("a state that is none of a run is refused") {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "trainer_state.json";
  const nlohmann::json good = {
      {"step", 4}, {"session", nlohmann::json::object()}, {"data", {{"a.tsv", "xxh3:0"}}}};
  atomic_write(file, good.dump());
  CHECK(read_trainer_state(folder.path()) == good);
  nlohmann::json earlier = good;
  earlier.erase("data");
  atomic_write(file, earlier.dump());
  earlier["data"] = nlohmann::json::object();
  CHECK(read_trainer_state(folder.path()) == earlier);

  std::vector<nlohmann::json> bad = {nlohmann::json::array(), nullptr, 4, "step",
                                     nlohmann::json::object()};
  for (const auto& [key, value] : std::initializer_list<std::pair<const char*, nlohmann::json>>{
           {"step", "4"},
           {"step", 4.5},
           {"step", 1e300},
           {"step", 1ull << 63},
           {"step", nullptr},
           {"session", 1},
           {"session", nlohmann::json::array()},
           {"session", nullptr},
           {"data", 5},
           {"data", nlohmann::json::array()},
           {"data", {{"a.tsv", 5}}},
           {"data", nullptr}}) {
    bad.push_back(good);
    bad.back()[key] = value;
  }
  for (const char* key : {"step", "session"}) {
    bad.push_back(good);
    bad.back().erase(key);
  }
  for (const nlohmann::json& state : bad) {
    CAPTURE(state.dump());
    atomic_write(file, state.dump());
    check_whole_error(
        [&] { read_trainer_state(folder.path()); }, ExitCode::kBadData,
        file.string() +
            ": no object with an integer \"step\", an object \"session\" and texts in "
            "\"data\"",
        "use an earlier checkpoint");
  }
}

TEST_CASE("the newest complete checkpoint is found and the others are named") {
  const TemporaryFolder folder;
  CHECK_FALSE(find_newest_checkpoint(folder.path()).step);
  CHECK_FALSE(find_newest_checkpoint(folder.path() / "none").step);
  Trained saved(8, 1, 2);
  save(folder.path(), saved);
  fs::copy(folder.path() / "checkpoint-2", folder.path() / "checkpoint-10");
  fs::copy(folder.path() / "checkpoint-2", folder.path() / "checkpoint-30");
  fs::resize_file(folder.path() / "checkpoint-30/model.safetensors", 5);
  fs::create_directory(folder.path() / "checkpoint-40");
  fs::create_directory(folder.path() / "checkpoint-50.tmp");
  fs::create_directory(folder.path() / "checkpoint-x");
  const NewestCheckpoint newest = find_newest_checkpoint(folder.path());
  CHECK(newest.step == 10);
  CHECK(newest.ignored.size() == 3);
  CHECK(checkpoint_steps(folder.path()) == std::vector<std::int64_t>{2, 10, 30});
}

TEST_CASE("links move in one go, and spared checkpoints are not pruned") {
  const TemporaryFolder folder;
  Trained saved(8, 1, 1);
  save(folder.path(), saved);
  for (const int step : {2, 3, 4, 5, 6})
    fs::copy(folder.path() / "checkpoint-1",
             folder.path() / ("checkpoint-" + std::to_string(step)));
  fs::create_symlink("nowhere", folder.path() / "best.tmp");  // of a run that was killed
  link_checkpoint(folder.path(), "best", 1);
  link_checkpoint(folder.path(), "best", 2);
  CHECK(fs::read_symlink(folder.path() / "best") == "checkpoint-2");
  CHECK(fs::exists(folder.path() / "best/model.safetensors"));
  prune_checkpoints(folder.path(), 2, {2});
  CHECK(checkpoint_steps(folder.path()) == std::vector<std::int64_t>{2, 5, 6});
  prune_checkpoints(folder.path(), 1, {2, 5});
  CHECK(checkpoint_steps(folder.path()) == std::vector<std::int64_t>{2, 5, 6});
  remove_checkpoints_after(folder.path(), 5);
  CHECK(checkpoint_steps(folder.path()) == std::vector<std::int64_t>{2, 5});
  prune_checkpoints(folder.path(), -3, {5});
  CHECK(checkpoint_steps(folder.path()) == std::vector<std::int64_t>{5});
  for (const fs::directory_entry& left : fs::directory_iterator(folder.path()))
    CHECK(left.path().extension() != ".tmp");
}

TEST_CASE("numbers that are not finite are not saved") {
  const TemporaryFolder folder;
  const float bad =
      GENERATE(std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
               std::numeric_limits<float>::quiet_NaN());
  Trained weights(8, 1, 2);
  weights.spoil(weights.model->graph.parameters()[0].master, bad);
  const std::string text = error_text([&] { save(folder.path(), weights); }, ExitCode::kDiverged);
  CHECK(text.starts_with(weights.model->graph.parameters()[0].name + " is "));
  CHECK_THAT(text, ContainsSubstring(" at element 1, and is not saved"));
  Trained moments(8, 1, 2);
  const NamedTensor last = moments.trainer->optimizer().state().back();
  moments.spoil(last.tensor, bad);
  CHECK(error_text([&] { save(folder.path(), moments); }, ExitCode::kDiverged)
            .starts_with(last.name + " is "));
  Trained state(8, 1, 2);
  const nlohmann::json spoilt = {{"method", {1.5, {{"level", bad}}}}};
  CHECK(error_text([&] { save_checkpoint(folder.path() / "a", *state.trainer, spoilt, {}); },
                   ExitCode::kDiverged)
            .starts_with("trainer_state.json: /method/1/level is "));
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("texts of a checkpoint are files of its folder, besides its own") {
  const TemporaryFolder folder;
  Trained trained;
  for (const std::string name : {"", ".", "..", "../a.txt", "a/b.txt", "model.safetensors",
                                 "trainer_state.json", "manifest.json"}) {
    check_whole_error(
        [&] {
          save_checkpoint(folder.path() / "a", *trained.trainer, {}, {{name, ""}});
        },
        ExitCode::kBadConfig, "a checkpoint cannot have a text called \"" + name + "\"",
        "take the plain name of a file that a checkpoint does not have");
  }
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("what a link leads to is not pruned") {
  const TemporaryFolder folder, elsewhere;
  Trained saved(8, 1, 9);
  save(folder.path(), saved);
  save(elsewhere.path(), saved);
  fs::create_directory_symlink(elsewhere.path() / "checkpoint-9", folder.path() / "checkpoint-3");
  CHECK(checkpoint_steps(folder.path()) == std::vector<std::int64_t>{9});
  prune_checkpoints(folder.path(), 0, {});
  remove_checkpoints_after(folder.path(), 0);
  CHECK(fs::is_symlink(folder.path() / "checkpoint-3"));
  CHECK_FALSE(find_newest_checkpoint(folder.path()).step);
  check_manifest(elsewhere.path() / "checkpoint-9");
}
