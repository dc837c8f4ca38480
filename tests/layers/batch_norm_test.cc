// Norms over the rows of a batch or of an item.
#include <cmath>

#include "layers/graph.h"
#include "tests/support/check_error.h"
#include "tests/support/check_layer.h"
#include "tests/support/fewer_cases.h"

using namespace vcas;

namespace {

constexpr double kEps = 0.01;

// Normalised over the rows [begin, end) and groups of columns, then scaled.
void normalize(std::vector<double>& y, const LayerValues& v, std::size_t width, std::size_t columns,
               std::size_t begin, std::size_t end) {
  for (std::size_t group = 0; group < width; group += columns) {
    const auto count = static_cast<double>((end - begin) * columns);
    double mean = 0, variance = 0;
    const auto for_each = [&](const auto& f) {
      for (std::size_t r = begin; r < end; ++r)
        for (std::size_t c = group; c < group + columns; ++c) f(y[r * width + c], c);
    };
    for_each([&](double& x, std::size_t) { mean += x / count; });
    for_each([&](double& x, std::size_t) { variance += std::pow(x - mean, 2) / count; });
    for_each([&](double& x, std::size_t c) {
      x = (x - mean) / std::sqrt(variance + kEps) * v.parameters[0][c] + v.parameters[1][c];
    });
  }
}

}  // namespace

TEST_CASE("batch_norm", "[layer]") {
  check_layer({.kind = "batch_norm",
               .config = {{"eps", kEps}},
               .inputs = {{.width = 6}},
               .formula = [](const LayerValues& v) {
                 std::vector<double> y = v.inputs[0];
                 normalize(y, v, 6, 1, 0, y.size() / 6);
                 return y;
               }});
}

TEST_CASE("batch_norm that is frozen keeps items apart", "[layer]") {
  check_layer({.kind = "batch_norm",
               .config = {{"frozen", true}, {"eps", kEps}},
               .inputs = {{.width = 6}},
               .formula = [](const LayerValues& v) {
                 std::vector<double> y = v.inputs[0];
                 for (std::size_t i = 0; i < y.size(); ++i)
                   y[i] =
                       y[i] / std::sqrt(1 + kEps) * v.parameters[0][i % 6] + v.parameters[1][i % 6];
                 return y;
               }});
}

TEST_CASE("group_norm", "[layer]") {
  for (const std::size_t groups : cases_to_run<std::size_t>({1, 3, 12}))
    check_layer({.kind = "group_norm",
                 .config = {{"groups", groups}, {"eps", kEps}},
                 .inputs = {{.width = 12}},
                 .formula = [groups](const LayerValues& v) {
                   std::vector<double> y = v.inputs[0];
                   for (std::size_t n = 0; n + 1 < v.offsets.size(); ++n)
                     normalize(y, v, 12, 12 / groups, static_cast<std::size_t>(v.offsets[n]),
                               static_cast<std::size_t>(v.offsets[n + 1]));
                   return y;
                 }});
}

TEST_CASE("settings of norms that cannot be are refused", "[layer]") {
  CHECK_THROWS_WITH(make_layer("batch_norm", {{"eps", 0.0}}),
                    ContainsSubstring("must be positive"));
  CHECK_THROWS_WITH(make_layer("group_norm", {{"groups", 1}, {"eps", 0.0}}),
                    ContainsSubstring("must be positive"));
  for (const double momentum : {-0.5, 1.5})
    CHECK_THROWS_WITH(
        make_layer("batch_norm", {{"momentum", momentum}}),
        ContainsSubstring("must be from 0 to 1, got " + std::to_string(momentum).substr(0, 3)));
}

namespace {

// x [items, rows, 2] -> batch norm -> mean -> loss, in f64.
struct NormedRows {
  std::unique_ptr<Ops> ops = make_ops("cpu");
  Graph graph{DType::kF64};
  Value x, normed;

  explicit NormedRows(std::int64_t items, bool frozen = false, std::int64_t rows = 3) {
    x = graph.input("x", {2, Layout::items(rows), DType::kF64});
    const Value labels = graph.input("labels", {1, Layout::items(1), DType::kI32});
    normed = graph.add("norm", make_layer("batch_norm", {{"frozen", frozen}}), {x});
    graph.keep(normed);
    const Value pooled = graph.add("pool", make_layer("pool", {{"pooling", "mean"}}), {normed});
    graph.add("loss", make_layer("softmax_cross_entropy"), {pooled, labels});
    graph.finish(*ops, {.max_items = items});
    graph.parameters().initialize(*ops, 1);
    graph.set_batch(items, {});
  }

  std::vector<double> forward(const std::vector<double>& values, bool training, bool updates) {
    const Tensor to = graph.tensor(x);
    ops->copy_to_device(to.data, values.data(), to.bytes());
    Exec exec = graph.make_exec(1, 0, training);
    exec.updates_state = updates;
    graph.forward(exec);
    const auto* y = graph.tensor(normed).ptr<double>();
    return {y, y + graph.tensor(normed).elements()};
  }
  double state(std::size_t which, std::int64_t column) const {
    return graph.parameters().state()[which].value.ptr<double>()[column];
  }
};

}  // namespace

TEST_CASE("batch_norm keeps running statistics, and evaluates with them", "[layer][state]") {
  NormedRows net(2);
  // Columns: 0 .. 5 and 10.
  std::vector<double> values;
  for (int r = 0; r < 6; ++r) values.insert(values.end(), {double(r), 10.0});
  net.forward(values, true, false);
  CHECK((net.state(0, 0) == 0 && net.state(1, 0) == 1));  // a probe changes nothing
  net.forward(values, true, true);
  // Mean 2.5; the variance 35 / 12 of 6 numbers, times 6 / 5.
  CHECK(std::abs(net.state(0, 0) - 0.25) < 1e-12);
  CHECK(std::abs(net.state(1, 0) - (0.9 + 0.1 * 3.5)) < 1e-12);
  CHECK(std::abs(net.state(0, 1) - 1) < 1e-12);
  CHECK(std::abs(net.state(1, 1) - 0.9) < 1e-12);
  net.forward(values, true, true);
  CHECK(std::abs(net.state(0, 0) - (0.9 * 0.25 + 0.25)) < 1e-12);
  const double mean = net.state(0, 0), variance = net.state(1, 0);
  const std::vector<double> y = net.forward(values, false, false);
  CHECK(std::abs(y[6] - (3 - mean) / std::sqrt(variance + 1e-5)) < 1e-12);
  CHECK((net.state(0, 0) == mean && net.state(1, 0) == variance));

  NormedRows frozen(2, true);
  const std::vector<double> as_given = frozen.forward(values, true, true);
  CHECK((frozen.state(0, 0) == 0 && frozen.state(1, 0) == 1));
  CHECK(std::abs(as_given[6] - 3 / std::sqrt(1 + 1e-5)) < 1e-12);
}

TEST_CASE("batch_norm refuses to train on one row, and evaluates it", "[layer][error]") {
  NormedRows single(1, false, 1);
  check_error(
      [&] {
        single.forward({5, 6}, true, true);
      },
      ExitCode::kBadConfig, "batch_norm: one row has no variance to train with",
      "each micro-batch needs two items");
  CHECK(single.state(0, 0) == 0);
  CHECK(std::abs(single.forward({5, 6}, false, false)[0] - 5 / std::sqrt(1 + 1e-5)) < 1e-12);
  NormedRows frozen(1, true, 1);
  CHECK(std::abs(frozen.forward({5, 6}, true, true)[0] - 5 / std::sqrt(1 + 1e-5)) < 1e-12);
}

TEST_CASE("a gate above batch_norm needs items of equal size, above its frozen kind it does not",
          "[layer]") {
  const auto mixed_below = [](bool frozen, Layout layout) {
    auto ops = make_ops("cpu");
    Graph graph(DType::kF32);
    const Value x = graph.input("x", {4, layout, DType::kF32});
    const Value labels = graph.input("labels", {1, Layout::items(1), DType::kI32});
    Value y = graph.add("norm", make_layer("batch_norm", {{"frozen", frozen}}), {x});
    y = graph.add("pool", make_layer("pool", {{"pooling", "mean"}}), {y});
    graph.gate(y);
    graph.add("loss", make_layer("softmax_cross_entropy"), {y, labels});
    graph.finish(*ops, {.max_items = 4, .max_tokens = 12});
    return graph.plan().nodes[static_cast<std::size_t>(y.index)].mixed_below;
  };
  CHECK(mixed_below(true, Layout::tokens()) == 0);
  CHECK(mixed_below(false, Layout::items(3)) == 1);
  CHECK_THROWS_WITH(mixed_below(false, Layout::tokens()),
                    "sampling gate at pool: norm below it mixes the items of a batch, and items "
                    "have different numbers of rows in x");
}
