// Puts column_gain between a linear layer and a loss, and checks its gradients against finite
// differences.
#include <cmath>
#include <cstdio>

#include "layers/graph.h"

using namespace vcas;

int main() {
  constexpr std::int64_t kItems = 3, kWidth = 4;
  const auto ops = make_ops("cpu");
  Graph graph(DType::kF64);
  const Value x = graph.input("x", {kWidth, Layout::items(1), DType::kF64});
  const Value labels = graph.input("labels", {1, Layout::items(1), DType::kI32});
  Value y = graph.add("linear", make_layer("linear", {{"width", kWidth}, {"init_std", 1}}), {x});
  y = graph.add("gain", make_layer("column_gain", {{"start", 0.5}}), {y});
  const Value loss = graph.add("loss", make_layer("softmax_cross_entropy"), {y, labels});
  graph.finish(*ops, {.max_items = kItems});
  graph.parameters().initialize(*ops, 1);

  graph.set_batch(kItems, {});
  const double values[kItems * kWidth] = {1, -2, 3, 0.5, 0, 1, -1, 2, 4, 0.25, -3, 1};
  const std::int32_t classes[kItems] = {0, 3, 1};
  ops->copy_to_device(graph.tensor(x).data, values, sizeof values);
  ops->copy_to_device(graph.tensor(labels).data, classes, sizeof classes);

  const auto total_loss = [&] {
    Exec exec = graph.make_exec(1, 0, true);
    graph.forward(exec);
    double losses[kItems], sum = 0;
    ops->copy_to_host(losses, graph.tensor(loss).data, sizeof losses);
    for (const double item : losses) sum += item;
    return sum;
  };

  total_loss();
  const std::vector<Tensor> gradients = graph.parameters().gradient_list();
  Exec exec = graph.make_exec(1, 0, true);
  graph.backward(exec, {.gradients = {gradients}});

  int wrong = 0;
  for (const Parameter& parameter : graph.parameters().list())
    for (std::int64_t i = 0; i < parameter.shape.elements(); ++i) {
      constexpr double kStep = 1e-5;
      double& value = parameter.value.ptr<double>()[i];  // the cpu's memory is the program's own
      const double middle = value;
      value = middle + kStep;
      const double above = total_loss();
      value = middle - kStep;
      const double below = total_loss();
      value = middle;
      const double want = (above - below) / (2 * kStep);
      const double got = parameter.gradient.ptr<double>()[i];
      if (std::abs(got - want) <= 1e-7) continue;
      std::printf("%s[%lld]: gradient %g, finite difference %g\n", parameter.name.c_str(),
                  static_cast<long long>(i), got, want);
      ++wrong;
    }
  std::printf("column_gain: %s\n", wrong ? "wrong gradients" : "all gradients right");
  return wrong != 0;
}
