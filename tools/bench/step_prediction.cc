// Counts what training steps ask of a GPU, without computing anything (kernels/op_cost.h).
// Prints a table, with the least time that an H200 could take for them.
//
//   vcas_step_prediction
//   vcas_step_prediction ranks                     what is left of the saving on several GPUs, by a
//                                                  model of the network
//   vcas_step_prediction ITEMS LONGEST < ids
//
// The last counts the rows of batches of texts on a device that repeats passes (docs/kernels.md).
// A batch has ITEMS random lines of ids, as `vcas tokenize` writes them, cut to LONGEST.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "core/row_bound.h"
#include "core/sizes.h"
#include "kernels/decorators/count_ops.h"
#include "kernels/dry_ops.h"
#include "optim/methods/vcas.h"
#include "optim/trainer.h"

namespace vcas {
namespace {

// An H200 SXM, by readings and its data sheet.
// Launches cost kLaunchSeconds on a stream. A kernel within a graph costs kGraphKernelSeconds.
constexpr double kBytesPerSecond = 4.3e12, kLaunchSeconds = 4e-6, kGraphKernelSeconds = 1.3e-6;
constexpr double kF32FlopsPerSecond = 67e12, kTf32FlopsPerSecond = 415e12,
                 kBf16FlopsPerSecond = 790e12;

struct Case {
  const char* name;
  ModelOptions model;
  std::vector<std::int64_t> item_shape;  // of images
  std::int64_t tokens;
  std::int64_t items = 0;
};

Batch batch_of(const Case& c) {
  Batch batch{.items = c.items};
  batch.labels.assign(c.items, 0);
  if (!c.item_shape.empty()) {
    batch.values.assign(c.items * product_of(c.item_shape), 0.0f);
    return batch;
  }
  for (std::int64_t n = 0; n <= c.items; ++n) batch.offsets.push_back(n * c.tokens);
  batch.tokens.assign(c.items * c.tokens, 0);
  batch.token_types = batch.tokens;
  return batch;
}

bool is_in_graph(const CostRow& row) {
  return row.place.ends_with("/forward") || row.place.ends_with("/backward") ||
         row.place.ends_with("/sample") || row.place.ends_with("/weights");
}

// The least time of the kernels, without their launches.
double kernel_seconds(const CostRow& row, double flops_per_second) {
  return std::max(row.flops / flops_per_second, row.bytes / kBytesPerSecond);
}

// An H200 has 132 multiprocessors with four warps a cycle. Six in ten cycles are used: a guess.
constexpr double kInstructionsPerSecond = 0.6 * 4 * 132 * 1.755e9;

// What a warp executes on sm_90a in bf16 for so many bytes or operations (docs/results/gpu).
struct Executed {
  std::string_view op;
  double instructions, bytes, flops;
};
constexpr Executed kExecuted[] = {{"gelu_forward", 109, 32 * 4 * 4, 0},
                                  {"gelu_backward", 130, 32 * 4 * 6, 0},
                                  {"layer_norm_forward", 910, 768 * 8, 0},
                                  {"layer_norm_backward", 1150, 768 * 10, 0},
                                  {"attention_forward", 858, 0, 4.0 * 16 * 64 * 64},
                                  {"attention_backward", 300 + 130, 0, 10.0 * 16 * 16 * 64}};
// Eight warps of a block multiply, four copy.
constexpr Executed kGathered = {"linear_backward_weight", 8 * 168 + 4 * 188, 0,
                                2.0 * 256 * 128 * 64};

// The least time of kernels in bf16, where their instructions may take longer than their bytes.
double issue_seconds(const CostRow& row) {
  const auto* executed = std::ranges::find(kExecuted, row.op, &Executed::op);
  if (row.op == kGathered.op && row.place.ends_with("/weights")) executed = &kGathered;
  const double least = kernel_seconds(row, kBf16FlopsPerSecond);
  if (executed == std::end(kExecuted)) return least;
  const double times =
      executed->bytes > 0 ? row.bytes / executed->bytes : row.flops / executed->flops;
  return std::max(least, times * executed->instructions / kInstructionsPerSecond);
}

struct Counted {
  std::vector<CostRow> rows;
  std::int64_t waits, parameters;

  Cost total() const {
    Cost sum;
    for (const CostRow& row : rows) {
      sum.flops += row.flops;
      sum.bytes += row.bytes;
      sum.launches += row.launches;
    }
    return sum;
  }
  // Launches that a graph holds.
  std::int64_t in_graph() const {
    std::int64_t sum = 0;
    for (const CostRow& row : rows)
      if (is_in_graph(row)) sum += row.launches;
    return sum;
  }
  double launch_seconds(bool with_graph) const {
    const auto launches = static_cast<double>(total().launches);
    const auto graph = static_cast<double>(in_graph());
    return with_graph ? kLaunchSeconds * (launches - graph + 1) + kGraphKernelSeconds * graph
                      : kLaunchSeconds * launches;
  }
  // "ms | ms with a graph"
  std::string times(double flops_per_second) const {
    double seconds = 0;
    for (const CostRow& row : rows) seconds += kernel_seconds(row, flops_per_second);
    return fmt::format("{:.1f} | {:.1f}", 1e3 * (seconds + launch_seconds(false)),
                       1e3 * (seconds + launch_seconds(true)));
  }
  // ms with a graph, in bf16
  double issue_time() const {
    double seconds = launch_seconds(true);
    for (const CostRow& row : rows) seconds += issue_seconds(row);
    return 1e3 * seconds;
  }
};

Counted count_step(const Case& c, bool exact, DType dtype) {
  CountOps ops(std::make_unique<DryOps>(true));
  const std::unique_ptr<Model> model = build_model(c.model, c.item_shape, 3, 0, dtype);
  model->graph.finish(ops, {.max_items = c.items, .max_tokens = c.items * c.tokens});
  TrainerOptions options{.total_steps = 2, .batch = c.items};
  VcasOptions& sampling = *find_vcas(options.method);
  for (int i = 0; i < model->graph.gates(); ++i)
    sampling.act_ratio.push_back(0.2 + 0.3 * i / (model->graph.gates() - 1));
  sampling.weight_ratio = {0.5};
  if (exact) options.method.type = "exact";
  Trainer trainer(*model, ops, options, nullptr);
  const Batch batch = batch_of(c);
  trainer.queue(batch);
  ops.reset();
  trainer.queue(batch);
  return {ops.rows(), ops.waits(), model->graph.parameters().elements()};
}

void print_step(const Case& c, bool exact) {
  const Counted f32 = count_step(c, exact, DType::kF32), bf16 = count_step(c, exact, DType::kBF16);
  const Cost step = f32.total(), in_bf16 = bf16.total();
  std::cout << fmt::format(
      "| {} | {} x {} | {} | {:.2f} | {:.1f} | {:.1f} | {} | {} | {} | {} | {} | {} | {:.1f} |\n",
      c.name, c.items, c.tokens, exact ? "exact" : "VCAS", step.flops / 1e12, step.bytes / 1e9,
      in_bf16.bytes / 1e9, in_bf16.launches, in_bf16.launches - bf16.in_graph() + 1, bf16.waits,
      f32.times(kF32FlopsPerSecond), f32.times(kTf32FlopsPerSecond),
      bf16.times(kBf16FlopsPerSecond), bf16.issue_time());
}

// What each GPU sends and receives, and what an exchange takes besides.
struct Network {
  const char* name;
  int ranks;
  double bytes_per_second, latency;
};

constexpr Network kNetworks[] = {{"8, NVLink", 8, 460e9, 20e-6},
                                 {"16 x 8, a NIC each", 128, 360e9, 80e-6},
                                 {"16 x 8, a NIC a node", 128, 46e9, 80e-6}};

// Seconds of one micro-batch and of the update, in bf16 with a graph.
struct StepTimes {
  double forward = 0, backward = 0, update = 0, parameters = 0;

  explicit StepTimes(const Counted& step) : parameters(static_cast<double>(step.parameters)) {
    for (const CostRow& row : step.rows) {
      double& part = row.phase == Phase::kForward    ? forward
                     : row.phase == Phase::kBackward ? backward
                                                     : update;
      part += kernel_seconds(row, kBf16FlopsPerSecond) +
              static_cast<double>(row.launches) *
                  (is_in_graph(row) ? kGraphKernelSeconds : kLaunchSeconds);
    }
  }
};

struct Exchanging {
  const char* name;
  double wire_bytes;  // of a gradient
  bool beside_backward = true, beside_forward = false;
  int micro_batches = 1;
};

constexpr Exchanging kExchanges[] = {{"f32, behind the backward", 4, false},
                                     {"f32", 4},
                                     {"bf16", 2},
                                     {"bf16, 4 micro-batches", 2, true, false, 4},
                                     {"bf16, 16", 2, true, false, 16},
                                     {"bf16, gathers beside the forward", 2, true, true}};

// For a step on ranks, over its micro-batches. Buckets of gradients are there at equal distances in
// the last backward. Parameters are gathered in bf16.
double seconds_a_micro_batch(const StepTimes& t, const Network& network, const Exchanging& how) {
  const double sent = (network.ranks - 1.0) / network.ranks / network.bytes_per_second;
  const auto bucket_bytes = static_cast<double>(TrainerOptions().bucket_bytes);
  const double buckets = std::ceil(sizeof(float) * t.parameters / bucket_bytes);
  const double bucket = network.latency + how.wire_bytes * t.parameters / buckets * sent;
  const double gather = buckets * network.latency + sizeof(bfloat16) * t.parameters * sent;
  const double forward = how.beside_forward ? std::max(t.forward, gather) : t.forward + gather;
  const double backward =
      how.beside_backward ? std::max(t.backward + bucket, t.backward / buckets + buckets * bucket)
                          : t.backward + buckets * bucket;
  const double last = forward + backward + t.update / network.ranks;
  return ((how.micro_batches - 1) * (t.forward + t.backward) + last) / how.micro_batches;
}

void print_on_ranks(const Case& c) {
  const StepTimes exact(count_step(c, true, DType::kBF16)),
      vcas(count_step(c, false, DType::kBF16));
  const auto alone = [](const StepTimes& t) { return t.forward + t.backward + t.update; };
  for (const Network& network : kNetworks) {
    std::cout << fmt::format("| {} {} | {} | {:.2f} ({:.1f}) |", c.name, c.items, network.name,
                             alone(exact) / alone(vcas), 1e3 * alone(vcas));
    for (const Exchanging& how : kExchanges) {
      const double seconds = seconds_a_micro_batch(vcas, network, how);
      std::cout << fmt::format(" {:.2f} ({:.1f}) |",
                               seconds_a_micro_batch(exact, network, how) / seconds, 1e3 * seconds);
    }
    std::cout << "\n";
  }
}

ModelOptions transformer(std::int64_t width, std::int64_t depth, std::vector<std::string> more) {
  more.insert(more.end(), {fmt::format("width={}", width), fmt::format("depth={}", depth),
                           fmt::format("heads={}", width / 64)});
  return read_model_options(more);
}

// Items by falling ratios, as gates keep them.
std::vector<std::int64_t> kept_items(std::int64_t items) {
  std::vector<std::int64_t> kept;
  for (int gate = 0; gate < 12; ++gate)
    kept.push_back(static_cast<std::int64_t>(
        whole_budget((0.2 + 0.3 * gate / 11) * static_cast<double>(items))));
  return kept;
}

// Prints what 400 batches waste. Padding is a share of the batch's rows.
// Rows at gates are a multiple of the rows that as many items have in the mean.
void print_texts(std::vector<std::int64_t> lengths, std::int64_t items) {
  constexpr int kBatches = 400, kStepsOfRatios = 100;
  std::mt19937 random(1);
  std::map<std::array<std::int64_t, 3>, int> seen;  // since the last new ratios
  double rows = 0, padded = 0, gate_mean = 0, gate_longest = 0, gate_bound = 0;
  int shapes = 0, repeated = 0;
  for (int batch = 0; batch < kBatches; ++batch) {
    std::vector<std::int64_t> chosen;
    std::ranges::sample(lengths, std::back_inserter(chosen), items, random);
    const RowBound bound(chosen, std::numeric_limits<std::int64_t>::max());
    std::ranges::sort(chosen, std::greater());
    const auto sum = [&](std::int64_t count) {
      return static_cast<double>(
          std::accumulate(chosen.begin(), chosen.begin() + count, std::int64_t{0}));
    };
    rows += sum(items);
    padded += static_cast<double>(bound.rows);
    for (const std::int64_t kept : kept_items(items)) {
      gate_mean += sum(items) * static_cast<double>(kept) / static_cast<double>(items);
      gate_longest += sum(kept);
      gate_bound += static_cast<double>(bound.of(kept));
    }
    if (batch % kStepsOfRatios == 0) seen.clear();
    const int before = seen[{bound.rows, bound.half, bound.quarter}]++;
    shapes += before == 0;
    repeated += before >= 2;
  }
  std::cout << fmt::format(
      "{:.0f} rows a batch, {:.1f} % padding; at gates {:.2f} times the mean rows, {:.2f} of the "
      "longest items; {:.0f} shapes in {} steps, {:.0f} % of steps repeated\n",
      rows / kBatches, 100 * (padded / rows - 1), gate_bound / gate_mean, gate_longest / gate_mean,
      static_cast<double>(shapes) * kStepsOfRatios / kBatches, kStepsOfRatios,
      100.0 * repeated / kBatches);
}

std::vector<std::int64_t> read_lengths(std::istream& in, std::int64_t longest) {
  std::vector<std::int64_t> lengths;
  for (std::string line; std::getline(in, line);) {
    const auto ids = std::ranges::count(line, ' ') + 1;
    lengths.push_back(std::min<std::int64_t>(ids, longest));
  }
  return lengths;
}

}  // namespace
}  // namespace vcas

int main(int count, char** arguments) {
  using namespace vcas;
  if (count == 3) {
    std::vector<std::int64_t> lengths = read_lengths(std::cin, std::stoll(arguments[2]));
    if (lengths.empty()) {
      std::cerr << "vcas_step_prediction: no texts on standard input, a line of ids each\n";
      return static_cast<int>(ExitCode::kNoInput);
    }
    print_texts(std::move(lengths), std::stoll(arguments[1]));
    return 0;
  }
  const bool on_ranks = count == 2 && std::string(arguments[1]) == "ranks";
  if (count > 1 && !on_ranks) {
    std::cerr << "usage: vcas_step_prediction [ranks | ITEMS LONGEST < ids]\n";
    return static_cast<int>(ExitCode::kUsage);
  }
  if (on_ranks) {
    std::cout << "| model, items a GPU | GPUs | one GPU |";
    for (const Exchanging& how : kExchanges) std::cout << " " << how.name << " |";
    std::cout << "\n|---|---|---|---|---|---|---|---|---|\n";
  } else {
    std::cout
        << "| model | items x tokens | step | TFLOP | GB | GB, bf16 | launches | with a graph | "
           "waits | ms, f32 | with a graph | ms, tf32 | with a graph | ms, bf16 | with a graph "
           "| by instructions |\n"
           "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";
  }
  const std::vector<std::int64_t> image = {3, 224, 224};
  const std::vector<std::string> bert = {"type=bert", "vocabulary=30522", "dropout=0.1",
                                         "attention_dropout=0.1"},
                                 vit = {"type=vit", "patch=16"};
  for (Case c : {Case{"BERT-base", transformer(768, 12, bert), {}, 128},
                 Case{"BERT-large", transformer(1024, 24, bert), {}, 128},
                 Case{"ViT-base", transformer(768, 12, vit), image, 197},
                 Case{"ViT-large", transformer(1024, 24, vit), image, 197}})
    for (const std::int64_t items : {32, 256}) {
      c.items = items;
      if (on_ranks) {
        print_on_ranks(c);
        continue;
      }
      for (const bool exact : {true, false}) print_step(c, exact);
    }
}
