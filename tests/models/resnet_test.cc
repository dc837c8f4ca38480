// Residual networks: shapes, names, refusals, and what sampling leaves of them.
#include <regex>

#include "core/safetensors.h"
#include "models/hf_config.h"
#include "models/hf_format.h"
#include "models/weights_io.h"
#include "tests/core/temporary_folder.h"
#include "tests/support/catch.h"
#include "tests/support/fewer_cases.h"
#include "tests/support/model_fixture.h"
#include "tests/support/watched_ops.h"

using namespace vcas;

namespace {

ModelOptions resnet(std::vector<std::string> settings = {}) {
  std::vector<std::string> all = {"type=resnet", "stem=cifar", "stages=[1, 2]", "widths=[8,12]",
                                  "group_width=4"};
  all.insert(all.end(), settings.begin(), settings.end());
  return read_model_options(all);
}

std::int64_t parameters_of(const ModelOptions& options, const std::vector<std::int64_t>& shape,
                           std::int64_t classes) {
  auto ops = make_ops("cpu");
  auto model = build_model(options, shape, classes, 0.0);
  model->graph.finish(*ops, {.max_items = 1});
  return model->graph.parameters().count();
}

// The last gain of a block is 0 at first, and no gradient passes its branch.
template <class T = double>
void open_blocks(ModelFixture& f) {
  for (const Parameter& parameter : f.model->graph.parameters().list())
    for (std::int64_t i = 0; i < parameter.value.elements(); ++i) {
      T& value = parameter.value.ptr<T>()[i];
      if (parameter.name.ends_with(".weight") && parameter.shape.rank() == 1 && value == 0)
        value = T(0.5);
      if (parameter.name.ends_with(".bias")) value = T(0.1) * static_cast<T>(1 + i % 3);
    }
}

}  // namespace

TEST_CASE("residual networks have the parameters of the papers", "[resnet]") {
  // torchvision's resnet18 and resnet50.
  CHECK(parameters_of(read_model_options({"type=resnet"}), {3, 64, 64}, 1000) == 11'689'512);
  CHECK(parameters_of(read_model_options({"type=resnet", "stages=[3, 4, 6, 3]", "block=bottleneck",
                                          "widths=[256, 512, 1024, 2048]"}),
                      {3, 64, 64}, 1000) == 25'557'032);
  // ResNet-20 (0.27 M, He et al. 2016a), with projections as shortcuts.
  CHECK(parameters_of(read_model_options(
                          {"type=resnet", "stem=cifar", "stages=[3, 3, 3]", "widths=[16, 32, 64]"}),
                      {3, 32, 32}, 10) == 272'474);
  // WRN-16-4 (2.7 M, Zagoruyko & Komodakis 2016).
  CHECK(
      parameters_of(read_model_options({"type=resnet", "stem=cifar", "stages=[2, 2, 2]",
                                        "widths=[64, 128, 256]", "stem_width=16", "block=preact"}),
                    {3, 32, 32}, 10) == 2'748'890);
}

TEST_CASE("a block of a residual network begins as its shortcut", "[resnet]") {
  for (const auto& [block, last] :
       {std::pair("basic", ".norm.1.weight"), std::pair("bottleneck", ".norm.2.weight")}) {
    ModelFixture f(resnet({std::string("block=") + block}), {3, 8, 8}, 3, 2);
    int closed = 0;
    for (const Parameter& parameter : f.model->graph.parameters().list()) {
      if (parameter.name.find("norm.") == std::string::npos) continue;
      INFO(parameter.name);
      closed += parameter.name.ends_with(last);
      const bool open = parameter.name.ends_with(".weight") && !parameter.name.ends_with(last);
      CHECK(parameter.init.value == (open ? 1 : 0));
    }
    CHECK(closed == 3);
  }
}

TEST_CASE("every gradient of a small residual network has the slope of the loss", "[resnet]") {
  for (const char* block : {"basic", "bottleneck", "preact"})
    for (const char* norm : {"batch", "group", "frozen"}) {
      INFO(block << ", " << norm);
      const std::string group =
          std::string(block) == "bottleneck" ? "group_width=1" : "group_width=4";
      ModelFixture f(resnet({std::string("block=") + block, std::string("norm=") + norm, group}),
                     {2, 8, 6}, 3, 4, DType::kF64);
      open_blocks(f);
      Exec exec = f.exec();
      f.mean_loss(exec);
      const std::vector<double> gradient = f.gradient(exec, f.context(SamplingMode::kExact, 1, 1));
      for (const Parameter& parameter : f.model->graph.parameters().list()) {
        INFO(parameter.name);
        const std::int64_t entry = parameter.value.elements() / 2;
        double& value = parameter.value.ptr<double>()[entry];
        const double middle = value, step = 0x1p-20;
        value = middle + step;
        const double above = f.mean_loss(exec);
        value = middle - step;
        const double below = f.mean_loss(exec);
        value = middle;
        CHECK(std::abs((above - below) / (2 * step) -
                       gradient[f.range(parameter).first + static_cast<std::size_t>(entry)]) <
              1e-6);
      }
    }
}

namespace {

// Each parameter's gradient in a direction of signs.
std::vector<double> along_signs(const ModelFixture& f, const std::vector<double>& gradient) {
  std::vector<double> out;
  for (const Parameter& parameter : f.model->graph.parameters().list()) {
    const auto [begin, end] = f.range(parameter);
    double& sum = out.emplace_back(0);
    for (std::size_t i = begin; i < end; ++i)
      sum += (i * i + i / 3) % 7 < 3 ? gradient[i] : -gradient[i];
  }
  return out;
}

struct MeanErrors {
  int wrong = 0, moved = 0;  // parameters beyond five standard errors, and with any
  std::string names;         // of the wrong ones
};

// Sampled gradients, over `draws` draws.
MeanErrors mean_errors(ModelFixture& f, const PassSettings& settings, int draws, bool keeps_norms) {
  Exec exec = f.exec();
  exec.keeps_norms = keeps_norms;
  f.mean_loss(exec);
  const std::vector<double> want =
      along_signs(f, f.gradient(exec, f.context(SamplingMode::kExact, 1, 1)));
  std::vector<double> sum(want.size()), squares(want.size());
  for (int draw = 0; draw < draws; ++draw) {
    Exec at = f.exec(static_cast<std::uint64_t>(draw));
    at.keeps_norms = keeps_norms;
    const std::vector<double> got = along_signs(f, f.gradient(at, settings));
    for (std::size_t i = 0; i < want.size(); ++i) {
      sum[i] += got[i] - want[i];
      squares[i] += std::pow(got[i] - want[i], 2);
    }
  }
  MeanErrors errors;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double error = std::sqrt(squares[i]);  // of the sum
    errors.moved += error > 1e-6;
    if (std::abs(sum[i]) <= 5 * error + 1e-9) continue;
    ++errors.wrong;
    errors.names += f.model->graph.parameters()[i].name + " ";
  }
  return errors;
}

}  // namespace

TEST_CASE("the mean of sampled gradients of a residual network is the exact one", "[resnet][law]") {
  const char* norm = GENERATE("group", "frozen");
  const Selection selection = GENERATE(Selection::kBernoulli, Selection::kSystematic);
  const bool keeps_norms = GENERATE(false, true);
  INFO(norm);
  ModelFixture f(resnet({std::string("norm=") + norm}), {2, 6, 6}, 3, 6, DType::kF64);
  open_blocks(f);
  const MeanErrors errors = mean_errors(
      f, f.context(SamplingMode::kItemsAndRows, 0.6, 0.5, selection), 1000, keeps_norms);
  INFO("wrong: " << errors.names);
  CHECK(errors.wrong == 0);
  CHECK(errors.moved >= 7);
}

TEST_CASE("so it is above batch norms, by echoes", "[resnet][law][echo]") {
  const char* block = GENERATE("basic", "bottleneck", "preact");
  const Selection selection = GENERATE(Selection::kBernoulli, Selection::kSystematic);
  INFO(block);
  ModelFixture f(resnet({std::string("block=") + block}), {2, 6, 6}, 3, 12, DType::kF64);
  open_blocks(f);
  for (const std::int64_t echoes : {0, 2}) {
    PassSettings settings = f.context(SamplingMode::kItemsAndRows, 0.4, 0.5, selection);
    settings.sampling.echoes = echoes;
    const MeanErrors errors = mean_errors(f, settings, repetitions(4096), echoes == 0);
    INFO(echoes << " echoes, wrong: " << errors.names);
    CHECK(errors.wrong == 0);
    CHECK(errors.moved >= 7);
  }
}

TEST_CASE("without what batch norms leave of dropped items it is not", "[resnet][law][echo]") {
  const auto neglect = [](const GroupNormBackward& args, const std::string&) {
    for (std::int64_t i = args.dy.elements(); i < args.dx.elements(); ++i)
      args.dx.ptr<double>()[i] = 0;
  };
  ModelFixture f(resnet(), {2, 6, 6}, 3, 12, DType::kF64, watched_ops(neglect));
  open_blocks(f);
  CHECK(mean_errors(f, f.context(SamplingMode::kItems, 0.4, 1), 4096, false).wrong >= 3);
}

TEST_CASE("each batch norm below a gate adds echoes to the rows", "[resnet][echo]") {
  struct Norm {
    std::string name;
    std::int64_t items, echoes;
    bool operator==(const Norm&) const = default;
  };
  std::vector<Norm> norms;
  std::vector<std::int32_t> rows;  // of the last one
  const auto look = [&](const GroupNormBackward& args, const std::string& place) {
    const std::int64_t pixels = args.x_full.rows() / 12;
    norms.push_back({place.substr(0, place.find('/')), args.dy.rows() / pixels,
                     (args.dx.rows() - args.dy.rows()) / pixels});
    if (args.row)
      rows.assign(args.row.ptr<std::int32_t>(), args.row.ptr<std::int32_t>() + args.dx.rows());
  };
  ModelFixture f(resnet(), {2, 6, 6}, 3, 12, DType::kF64, watched_ops(look));
  PassSettings settings =
      f.context(SamplingMode::kItems, 0.5, 1, Selection::kSystematic);  // 6 items
  settings.sampling.ratios.act = {0.25, 0.5, 0.5};
  Exec exec = f.exec();
  f.mean_loss(exec);
  f.gradient(exec, settings);
  const std::string block = "resnet.stage.";
  // The shortcut of the middle block sees what its last norm sees.
  CHECK(norms == std::vector<Norm>{{block + "1.block.1.norm.1", 6, 1},
                                   {block + "1.block.1.norm.0", 7, 1},
                                   {block + "1.block.0.norm.1", 6, 1},
                                   {block + "1.block.0.norm.0", 7, 1},
                                   {block + "1.block.0.shortcut.norm", 6, 1},
                                   {block + "0.block.0.norm.1", 3, 1},
                                   {block + "0.block.0.norm.0", 4, 1},
                                   {"resnet.stem.norm", 5, 1}});
  std::ranges::sort(rows);
  CHECK(std::ranges::adjacent_find(rows) == rows.end());  // no item twice

  // As many as there are items: the top gate stays open, and the others draw by themselves.
  norms.clear();
  settings.sampling.ratios.act = {0.25, 0.5, 0.9};
  f.gradient(exec, settings);
  CHECK((norms[0] == Norm{block + "1.block.1.norm.1", 12, 0} && norms[2].items == 6));
}

TEST_CASE("an item is drawn by its number in the batch, and no kept one is an echo",
          "[resnet][echo]") {
  std::vector<std::int32_t> left;  // by gates above, and their echoes
  const auto draw = [&](const Draw& args, const std::string&) {
    RandomKey key = args.key;
    key.step = static_cast<std::uint64_t>(*args.step.ptr<std::int64_t>());
    std::vector<std::int32_t> want, got;
    left.resize(static_cast<std::size_t>(args.prob.elements()));
    for (std::size_t i = 0; i < left.size(); ++i)
      if (static_cast<double>(philox_uniform(philox_address(key), left[i])) <
          args.prob.ptr<double>()[i])
        want.push_back(left[i]);
    for (std::int32_t k = 0; k < *args.count.ptr<std::int32_t>(); ++k)
      got.push_back(left.at(static_cast<std::size_t>(args.kept.ptr<std::int32_t>()[k])));
    CHECK(got == want);
    left = got;
  };
  int echoes = 0;
  const auto echo = [&](const DrawEcho& args, const std::string&) {
    CHECK(args.key.stream != Stream::kGate);  // other random numbers
    for (std::int64_t i = 0; i < args.item.elements(); ++i, ++echoes) {
      const std::int32_t item = args.item.ptr<std::int32_t>()[i];
      CHECK(std::ranges::count(left, item) == 0);
      left.push_back(item);
    }
  };
  ModelFixture f(resnet(), {2, 6, 6}, 3, 12, DType::kF64, watched_ops(draw, echo));
  open_blocks(f);
  PassSettings settings = f.context(SamplingMode::kItems, 0.5, 1);
  settings.sampling.ratios.act = {0.25, 0.5, 0.75};
  for (std::uint64_t step = 0; step < 20; ++step) {
    for (left.clear(); left.size() < 12;) left.push_back(static_cast<std::int32_t>(left.size()));
    Exec exec = f.exec(step);
    f.mean_loss(exec);
    f.gradient(exec, settings);
  }
  CHECK(echoes > 100);
}

TEST_CASE("ratios of one leave the bits of a network with batch norms", "[resnet][law][echo]") {
  ModelFixture f(resnet(), {2, 6, 6}, 3, 12);
  open_blocks<float>(f);
  Exec exec = f.exec();
  f.mean_loss(exec);
  const auto exact = f.gradient(exec, f.context(SamplingMode::kExact, 1, 1));
  CHECK(f.gradient(exec, f.context(SamplingMode::kItemsAndRows, 1, 1)) == exact);
  const auto sampled = f.gradient(exec, f.context(SamplingMode::kItems, 0.5, 1));
  CHECK(sampled != exact);
  CHECK(f.gradient(exec, f.context(SamplingMode::kItems, 0.5, 1)) == sampled);
}

TEST_CASE("the emulated device samples above batch norms as the cpu does", "[resnet][echo]") {
  for (const Selection selection : {Selection::kBernoulli, Selection::kSystematic}) {
    ModelFixture cpu(resnet({"block=preact"}), {2, 6, 6}, 3, 12, DType::kF64);
    ModelFixture emu(resnet({"block=preact"}), {2, 6, 6}, 3, 12, DType::kF64, make_ops("emu"));
    std::vector<std::vector<double>> gradients;
    for (ModelFixture* f : {&cpu, &emu}) {
      open_blocks(*f);
      Exec exec = f->exec();
      exec.keeps_norms = true;
      f->mean_loss(exec);
      gradients.push_back(
          f->gradient(exec, f->context(SamplingMode::kItemsAndRows, 0.5, 0.5, selection)));
    }
    for (std::size_t i = 0; i < gradients[0].size(); ++i)
      CHECK(std::abs(gradients[0][i] - gradients[1][i]) < 1e-10);
  }
}

TEST_CASE("the variance that sampling rows of convolutions adds is Eq. 3's", "[resnet][law]") {
  ModelFixture f(resnet(), {2, 6, 6}, 3, 6, DType::kF64);
  open_blocks(f);
  Exec exec = f.exec();
  exec.keeps_norms = GENERATE(false, true);
  f.mean_loss(exec);
  const std::vector<double> exact = f.gradient(exec, f.context(SamplingMode::kExact, 1, 1));
  PassSettings settings = f.context(SamplingMode::kItemsAndRows, 1, 0.4);
  const std::size_t linears = f.model->graph.sampled_weights().size();
  std::vector<double> closed(linears), squares(linears), fourths(linears);
  settings.sampling.weight_variance = {
      closed.data(), DType::kF64, {static_cast<std::int64_t>(linears)}};
  constexpr int kDraws = 800;
  for (int draw = 0; draw < kDraws; ++draw) {
    Exec at = f.exec(static_cast<std::uint64_t>(draw));
    at.keeps_norms = exec.keeps_norms;
    const std::vector<double> sampled = f.gradient(at, settings);
    for (std::size_t k = 0; k < linears; ++k) {
      const int weight = f.model->graph.sampled_weights()[k];
      const auto [begin, end] =
          f.range(f.model->graph.parameters()[static_cast<std::size_t>(weight)]);
      double distance = 0;
      for (std::size_t i = begin; i < end; ++i) distance += std::pow(sampled[i] - exact[i], 2);
      squares[k] += distance / kDraws;
      fourths[k] += distance * distance / kDraws;
    }
  }
  for (std::size_t k = 0; k < linears; ++k) {
    const double error = std::sqrt((fourths[k] - squares[k] * squares[k]) / kDraws);
    INFO("linear " << k << ": " << squares[k] << " +- " << error << ", Eq. 3 " << closed[k]);
    CHECK(error < 0.1 * squares[k]);
    CHECK(std::abs(squares[k] - closed[k]) < 5 * error);
  }
}

TEST_CASE("a residual network has a gate for each block", "[resnet]") {
  auto ops = make_ops("cpu");
  for (const char* norm : {"batch", "group", "frozen"}) {
    auto model = build_model(resnet({std::string("norm=") + norm}), {3, 8, 8}, 2, 0.0);
    model->graph.finish(*ops, {.max_items = 2});
    CHECK(model->graph.gates() == 3);
    CHECK(model->graph.sampled_weights().size() == 7);  // three blocks of two, a projection
  }
}

TEST_CASE("an input that cannot work with a residual network is refused", "[resnet]") {
  CHECK_THROWS_WITH(build_model(resnet(), {7}, 2, 0.0), ContainsSubstring("needs images"));
  CHECK_THROWS_WITH(resnet({"widths=[8]"}),
                    ContainsSubstring("must have as many numbers as model.stages, 2, got 1"));
  for (const char* widths : {"widths=[]", "widths=[8]"})
    CHECK_THROWS_WITH(resnet({"stages=[]", widths}),
                      ContainsSubstring("stages must have at least one number\n1 error;"));
  CHECK_THROWS_WITH(resnet({"norm=group", "group_width=5"}),
                    ContainsSubstring("must divide all widths, and 5 does not divide 8"));
  CHECK_THROWS_WITH(resnet({"block=bottleneck", "widths=[8, 10]"}),
                    ContainsSubstring("must be multiples of 4, got 10"));
  CHECK_THROWS_WITH(resnet({"norm=layer"}), ContainsSubstring("norm"));
  const HfModel exported{.options = resnet(), .image_shape = {3, 8, 8}};
  CHECK_THAT(hf_obstacle(exported.options, exported.image_shape),
             ContainsSubstring("model.stem \"cifar\""));
}

TEST_CASE("weights under the names of torchvision are read", "[resnet]") {
  const std::filesystem::path golden =
      std::filesystem::path(VCAS_SOURCE_DIR) / "tests/golden/hf/resnet_bottleneck";
  const SafetensorsFile stored(golden / "model.safetensors");
  const std::pair<std::regex, const char*> names[] = {
      {std::regex("^resnet\\.embedder\\.embedder\\.convolution"), "conv1"},
      {std::regex("^resnet\\.embedder\\.embedder\\.normalization"), "bn1"},
      {std::regex("^resnet\\.encoder\\.stages\\.0"), "layer1"},
      {std::regex("^resnet\\.encoder\\.stages\\.1"), "layer2"},
      {std::regex("\\.layers\\."), "."},
      {std::regex("\\.shortcut\\.convolution"), ".downsample.0"},
      {std::regex("\\.shortcut\\.normalization"), ".downsample.1"},
      {std::regex("\\.layer\\.0\\.convolution"), ".conv1"},
      {std::regex("\\.layer\\.1\\.convolution"), ".conv2"},
      {std::regex("\\.layer\\.2\\.convolution"), ".conv3"},
      {std::regex("\\.layer\\.0\\.normalization"), ".bn1"},
      {std::regex("\\.layer\\.1\\.normalization"), ".bn2"},
      {std::regex("\\.layer\\.2\\.normalization"), ".bn3"},
      {std::regex("^classifier\\.1"), "fc"},
  };
  std::vector<StoredTensor> tensors;
  for (StoredTensor tensor : stored.tensors()) {
    for (const auto& [hf, torchvision] : names)
      tensor.name = std::regex_replace(tensor.name, hf, torchvision);
    tensors.push_back(tensor);
  }
  TemporaryFolder folder;
  write_safetensors(folder.path() / "torchvision.safetensors", tensors);
  const HfModel description = read_hf_config(golden / "config.json");
  const auto loaded = [&](const std::filesystem::path& file) {
    auto ops = make_ops("cpu");
    auto model = build_model(description.options, description.image_shape, 3, 0.0);
    model->graph.finish(*ops, {.max_items = 1});
    model->graph.parameters().initialize(*ops, 1);
    const LoadReport report = load_hf_weights(file, description.options, *model, *ops);
    CHECK((report.missing.empty() && report.unexpected.empty()));
    return stored_numbers(*model);
  };
  CHECK(loaded(folder.path() / "torchvision.safetensors") == loaded(golden / "model.safetensors"));
}

TEST_CASE("names of torchvision become those of transformers, and others stay", "[resnet]") {
  const ModelOptions options = read_model_options({"type=resnet"});
  const HfFormat& format = *options.kind->hugging_face();
  for (const auto& [theirs, hf] : std::initializer_list<std::pair<std::string, std::string>>{
           {"conv1.weight", "resnet.embedder.embedder.convolution.weight"},
           {"bn1.running_mean", "resnet.embedder.embedder.normalization.running_mean"},
           {"fc.bias", "classifier.1.bias"},
           {"layer1.0.conv1.weight", "resnet.encoder.stages.0.layers.0.layer.0.convolution.weight"},
           {"layer4.22.bn3.weight",
            "resnet.encoder.stages.3.layers.22.layer.2.normalization.weight"},
           {"layer2.0.downsample.0.weight",
            "resnet.encoder.stages.1.layers.0.shortcut.convolution.weight"},
           {"layer2.0.downsample.1.bias",
            "resnet.encoder.stages.1.layers.0.shortcut.normalization.bias"},
           {"encoder.stages.0.layers.0.layer.0.convolution.weight",
            "resnet.encoder.stages.0.layers.0.layer.0.convolution.weight"}}) {
    CAPTURE(theirs);
    CHECK(format.current_name(theirs) == hf);
  }
  const std::string digits(300'000, '1');
  for (const std::string& name :
       {"layer" + digits + ".0.conv1.weight", "layer1." + digits + ".conv1.weight",
        "layer1.0.conv" + digits + ".weight", std::string("layer99999999999.0.conv1.weight"),
        std::string("layer0.0.conv1.weight"), std::string("layer-1.0.conv1.weight"),
        std::string("layer1.0.conv1"), std::string("layer1.0"), std::string("layer1"),
        std::string("layer"), std::string("layer1conv1.weight"), std::string("my.fc.weight")})
    CHECK(format.current_name(name) == name);
}

TEST_CASE("a tensor whose name has too large a number is left over", "[resnet]") {
  const std::filesystem::path golden =
      std::filesystem::path(VCAS_SOURCE_DIR) / "tests/golden/hf/resnet_basic";
  const SafetensorsFile stored(golden / "model.safetensors");
  std::vector<StoredTensor> tensors(stored.tensors().begin(), stored.tensors().end());
  const std::vector<std::string> names = {"layer" + std::string(300'000, '1') + ".0.conv1.weight",
                                          "layer99999999999.0.conv1.weight"};
  for (const std::string& name : names) {
    StoredTensor tensor = tensors[0];
    tensor.name = name;
    tensors.push_back(tensor);
  }
  TemporaryFolder folder;
  write_safetensors(folder.path() / "model.safetensors", tensors);
  const HfModel description = read_hf_config(golden / "config.json");
  auto ops = make_ops("cpu");
  auto model = build_model(description.options, description.image_shape, 3, 0.0);
  model->graph.finish(*ops, {.max_items = 1});
  const LoadReport report =
      load_hf_weights(folder.path() / "model.safetensors", description.options, *model, *ops);
  CHECK(report.missing.empty());
  CHECK(report.unexpected == names);
}
