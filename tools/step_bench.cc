#include "tools/step_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "core/error.h"
#include "core/hardware.h"
#include "core/progress.h"
#include "kernels/buffer.h"
#include "optim/methods/vcas.h"
#include "tools/output.h"
#include "tools/report_text.h"
#include "tools/session.h"

namespace vcas {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kWarmupSteps = 2;
// Steps of one kind in a row. A turn is short against what else the machine does.
// It is long enough that most steps begin while a device is at the one before, as in training.
constexpr std::int64_t kTurn = 4;
constexpr int kTimedProbes = 3;

// Until the device has done all that it was given. `data` is some of its memory.
void wait_for(Ops& ops, const void* data) {
  std::byte first;
  ops.copy_to_host(&first, data, sizeof first);
}

// One kind of step: its session and what was measured of it.
struct Subject {
  Session session;
  Loader loader;
  std::int64_t resident_bytes = 0;  // what the session added to the process
  std::vector<double> seconds;      // of a step, probes left out
  std::vector<double> forward, backward, optimizer;
  double best_rate = 0;  // FLOP/s of the best step: steps of text differ in size

  Subject(const RunConfig& config, const RunData& data, bool one_branch)
      : session(config, data), loader(*data.train, session.loader_options()) {
    session.ops().set_one_branch(one_branch);
  }

  void warm_up(std::int64_t resident_before) {
    for (int i = 0; i < kWarmupSteps; ++i) session.trainer().step(loader.next());
    resident_bytes = vcas::resident_bytes() - resident_before;
  }

  void start_timing() {
    session.ops().reset();
    session.ops().set_timing(!queues());
  }
  // Whether a device queues its work. Its operations are timed apart, in passes that do not repeat.
  bool queues() { return session.ops().name() != "cpu"; }

  // All batches are there before the first step: data that come late would give a device time to
  // work that nobody counts.
  void run(std::int64_t steps) {
    std::vector<Batch> batches;
    for (std::int64_t i = 0; i < steps; ++i) batches.push_back(loader.next());
    Trainer& trainer = session.trainer();
    const void* memory = session.model().graph.parameters().gradients().data;
    std::vector<double> flops;  // of each
    const std::size_t before_turn = seconds.size();
    wait_for(session.ops(), memory);
    const double start = monotonic_seconds();
    for (std::int64_t i = 1; i <= steps; ++i) {
      const double before = done_flops();
      trainer.queue(batches[i - 1]);
      flops.push_back(done_flops() - before);
      while (trainer.queued() > 0 && (i == steps || trainer.full())) {
        const StepReport report = trainer.finish();
        seconds.push_back(report.seconds.total() - report.seconds.probe);
        forward.push_back(report.seconds.forward);
        backward.push_back(report.seconds.backward);
        optimizer.push_back(report.seconds.optimizer);
      }
    }
    wait_for(session.ops(), memory);
    // Where a device is behind the host only the whole turn can be timed.
    if (queues())
      std::fill(seconds.begin() + before_turn, seconds.end(),
                (monotonic_seconds() - start) / static_cast<double>(steps));
    for (std::size_t i = 0; i < flops.size(); ++i)
      best_rate = std::max(best_rate, flops[i] / seconds[before_turn + i]);
  }

  double done_flops() const {
    return session.flops(Phase::kForward) + session.flops(Phase::kBackward);
  }
  double step_flops() const { return done_flops() / static_cast<double>(seconds.size()); }

  struct Families {
    std::map<std::string, double> seconds, launches;  // of a step, means
  };
  // By family of operations; "rest" takes what the CPU spent between them.
  Families families() {
    CountOps& ops = session.ops();
    auto steps = static_cast<double>(seconds.size());
    if (queues()) {
      steps = kTurn;
      ops.reset();
      ops.set_timing(true);
      for (std::int64_t i = 0; i < kTurn; ++i) session.trainer().step(loader.next());
    }
    Families sums;
    for (const CostRow& row : ops.rows()) {
      if (row.phase == Phase::kProbe) continue;
      const char* family = kFamilyNames[static_cast<int>(row.family)];
      sums.seconds[family] += row.seconds / steps;
      sums.launches[family] += static_cast<double>(row.launches) / steps;
      if (!queues()) sums.seconds["rest"] -= row.seconds / steps;
    }
    for (const double s : seconds) sums.seconds["rest"] += queues() ? 0 : s / steps;
    if (queues()) ops.set_timing(false);
    return sums;
  }

  Json to_json() {
    const double flops = step_flops();  // of the steps before those that `families` makes
    const Families by_family = families();
    return {{"median_seconds", median(seconds)},
            {"best_seconds", *std::min_element(seconds.begin(), seconds.end())},
            {"forward_seconds", median(forward)},
            {"backward_seconds", median(backward)},
            {"optimizer_seconds", median(optimizer)},
            {"flops", flops},
            {"families", by_family.seconds},
            {"family_launches", by_family.launches},
            {"planned_bytes", session.trainer().planned_bytes()},
            {"resident_bytes", resident_bytes}};
  }
};

// Items filled up to a fixed length: what training without packed rows computes.
class PaddedDataset final : public ForwardingDataset {
 public:
  PaddedDataset(std::unique_ptr<Dataset> inner, std::int64_t tokens, std::int32_t pad)
      : ForwardingDataset(std::move(inner)), tokens_(tokens), pad_(pad) {}

  std::vector<std::int64_t> item_shape() const override { return {tokens_}; }
  std::int64_t rows(std::int64_t) const override { return tokens_; }
  void append(std::int64_t index, const ItemDraw& draw, Batch& out) const override {
    const std::int64_t begin = out.offsets.empty() ? 0 : out.offsets.back();
    inner_->append(index, draw, out);
    const auto end = static_cast<std::size_t>(begin + tokens_);
    if (out.tokens.size() > end)
      throw Error(ExitCode::kUsage,
                  fmt::format("an item has {} tokens, more than --pad-to {}",
                              out.tokens.size() - static_cast<std::size_t>(begin), tokens_),
                  "raise it to the tokens of the longest item");
    out.tokens.resize(end, pad_);
    out.token_types.resize(end, 0);
    out.offsets.back() = static_cast<std::int64_t>(end);
  }

 private:
  std::int64_t tokens_;
  std::int32_t pad_;
};

RunData padded_data(const RunConfig& config, std::int64_t tokens) {
  if (config.model.kind->head() == "lm")
    throw Error(ExitCode::kUsage,
                "--pad-to is for texts of different lengths, and items of next words have one",
                "leave it out: data.text.max_length is their length");
  RunData data(config);
  if (!data.tokenizer) throw Error(ExitCode::kUsage, "--pad-to needs text");
  data.train =
      std::make_unique<PaddedDataset>(std::move(data.train), tokens, data.tokenizer->pad());
  data.limits.tokens = std::max(data.limits.tokens, tokens);
  return data;
}

// The fastest products that this device makes, through the operation that layers use.
class GemmRate {
 public:
  GemmRate(const RunConfig& config, Subject& subject)
      : ops_(make_ops(config)), dtype_(compute_dtype(precision_of(config))) {
    shapes_.insert({1024, 1024, 1024});
    std::map<std::string, double> rows_of;  // node: rows of a call
    for (const CostRow& row : subject.session.ops().rows())
      if (row.phase == Phase::kForward && row.op == std::string(LinearForward::kName))
        rows_of[row.place.substr(0, row.place.rfind('/'))] =
            row.flops / static_cast<double>(row.calls);
    const Graph& graph = subject.session.model().graph;
    for (const int weight : graph.sampled_weights()) {
      const Parameter& parameter = graph.parameters()[weight];
      const std::string node = parameter.name.substr(0, parameter.name.rfind('.'));
      const double products = 2 * static_cast<double>(parameter.shape.elements());
      shapes_.insert({static_cast<std::int64_t>(rows_of[node] / products), parameter.shape[1],
                      parameter.shape[0]});
    }
    std::int64_t most = 0;
    for (const auto& [rows, in, out] : shapes_)
      most = std::max({most, rows * in, in * out, rows * out});
    for (Buffer& buffer : buffers_) {
      buffer = Buffer(*ops_, static_cast<std::size_t>(most) * dtype_bytes(dtype_));
      ops_->run(Fill{.y = buffer.at(0, dtype_, {most}), .value = 0.5});
    }
  }

  void measure() {
    // Where a device is behind the host one is too short to be timed.
    const int products = ops_->name() == "cpu" ? 1 : 20;
    for (const auto& shape : shapes_) {
      const auto& [rows, in, out] = shape;
      wait_for(*ops_, buffers_[0].data());
      const double start = monotonic_seconds();
      for (int i = 0; i < products; ++i)
        ops_->run(LinearForward{.y = buffers_[0].at(0, dtype_, {rows, out}),
                                .x = buffers_[1].at(0, dtype_, {rows, in}),
                                .weight = buffers_[2].at(0, dtype_, {out, in}),
                                .bias = {}});
      wait_for(*ops_, buffers_[0].data());
      const double seconds = (monotonic_seconds() - start) / products;
      double& rate = rates_[shape];
      rate = std::max(rate, 2.0 * static_cast<double>(rows * in * out) / seconds);
    }
  }

  double best() const {
    double rate = 0;
    for (const auto& entry : rates_) rate = std::max(rate, entry.second);
    return rate;
  }

  Json to_json() const {
    Json list = Json::array();
    for (const auto& [shape, rate] : rates_)
      list.push_back({{"rows", std::get<0>(shape)},
                      {"in", std::get<1>(shape)},
                      {"out", std::get<2>(shape)},
                      {"flops_per_second", rate}});
    return list;
  }

 private:
  using Product = std::tuple<std::int64_t, std::int64_t, std::int64_t>;  // rows, in, out
  std::unique_ptr<Ops> ops_;
  DType dtype_;
  std::set<Product> shapes_;
  std::map<Product, double> rates_;
  Buffer buffers_[3];
};

const Vcas& vcas_of(Session& session) {
  return dynamic_cast<const Vcas&>(session.trainer().method());
}

// Median seconds that a probe in place adds to its steps, with the choice of ratios after it.
// None where the ratios are fixed.
std::optional<double> probe_seconds(RunConfig config, const RunData& data) {
  config.method.type = "vcas";
  VcasOptions& options = *find_vcas(config.method);
  if (options.pinned()) return {};
  const int steps = options.probe_batches() + 1;  // the least from probe to probe
  options.update_every = steps;
  config.train.steps = steps * (1 + kTimedProbes);
  Session session(config, data);
  const auto one_probe = [&] {
    double seconds = 0;
    for (int i = 0; i < steps; ++i) seconds += session.step().seconds.probe;
    return seconds;
  };
  one_probe();
  std::vector<double> seconds;
  for (int i = 0; i < kTimedProbes; ++i) seconds.push_back(one_probe());
  return median(seconds);
}

std::string benchmark_text(const Json& json) {
  const auto ms = [](const Json& seconds) {
    return fmt::format("{:.2f}", 1e3 * seconds.get<double>());
  };
  const Json& exact = json["exact"];
  const Json& sampled = json["sampled"];
  std::vector<std::vector<std::string>> rows = {{"milliseconds of a step", "exact", "sampled"}};
  const auto add = [&](const std::string& label, const char* key) {
    rows.push_back({label, ms(exact[key]), ms(sampled[key])});
  };
  add("median", "median_seconds");
  add("best", "best_seconds");
  add("  forward", "forward_seconds");
  add("  backward", "backward_seconds");
  add("  optimizer", "optimizer_seconds");
  rows.push_back({"by operation (means, launches)"});
  for (const char* family : kFamilyNames) {
    const auto entry = [&](const Json& subject) {
      return fmt::format("{} ({:.0f})", ms(subject["families"].value(family, 0.0)),
                         subject["family_launches"].value(family, 0.0));
    };
    rows.push_back({std::string("  ") + family, entry(exact), entry(sampled)});
  }
  rows.push_back({"GFLOP of a step", fmt::format("{:.2f}", exact["flops"].get<double>() / 1e9),
                  fmt::format("{:.2f}", sampled["flops"].get<double>() / 1e9)});
  const auto bytes = [](const Json& value) { return format_bytes(value.get<double>()); };
  rows.push_back(
      {"memory planned", bytes(exact["planned_bytes"]), bytes(sampled["planned_bytes"])});
  rows.push_back(
      {"memory resident", bytes(exact["resident_bytes"]), bytes(sampled["resident_bytes"])});

  std::string text = format_table(rows);
  text += fmt::format("sampled at {}\n", json["sampling"].get<std::string>());
  text += fmt::format("exact / sampled time {:.3f} (FLOPs {})\n", json["time_ratio"].get<double>(),
                      format_share(json["flops_ratio"].get<double>()));
  text += fmt::format(
      "best exact step at {:.1f} GFLOP/s, {:.1f}% of the best product ({:.1f} GFLOP/s)\n",
      json["exact_best_flops_per_second"].get<double>() / 1e9,
      100 * json["exact_share_of_peak"].get<double>(),
      json["peak_flops_per_second"].get<double>() / 1e9);
  for (const Json& product : json["products"])
    text += fmt::format("  product {} x {} x {}: {:.1f} GFLOP/s\n", product["rows"].get<int>(),
                        product["in"].get<int>(), product["out"].get<int>(),
                        product["flops_per_second"].get<double>() / 1e9);
  text += json.contains("probe_seconds")
              ? fmt::format("a probe adds {} ms: {:.2f}% of the time at one every {} steps\n",
                            ms(json["probe_seconds"]), 100 * json["probe_share"].get<double>(),
                            json["probe_every"].get<std::int64_t>())
              : "no probes: the ratios are fixed\n";
  if (json.contains("padded_seconds"))
    text += fmt::format("exact steps padded to {} tokens: {} ms, {:.2f} times the packed ones\n",
                        json["padded_to"].get<std::int64_t>(), ms(json["padded_seconds"]),
                        json["padded_over_packed"].get<double>());
  text += fmt::format("peak memory of the process {}\n", bytes(json["peak_resident_bytes"]));
  return text;
}

// Ratios to time, where the configuration has none of its own. Both kinds of steps take all items.
void fix_ratios(Part<MethodKind>& method, int gates) {
  method.type = "vcas";
  auto& vcas = dynamic_cast<VcasKind&>(*method);
  vcas.forward = false;
  if (vcas.pinned()) return;
  if (vcas.samples_items())
    for (int i = 0; i < gates; ++i)
      vcas.act_ratio.push_back(0.2 + 0.3 * i / std::max(1, gates - 1));
  if (vcas.samples_rows()) vcas.weight_ratio = {0.5};
}

Json compared(Subject& exact, Subject& sampled, const GemmRate& products) {
  const double exact_seconds = median(exact.seconds);
  const double peak = products.best(), best = exact.best_rate;
  const KeepRatios& ratios = vcas_of(sampled.session).sampling().ratios;
  const double flops_ratio = exact.step_flops() / sampled.step_flops();
  const double exact_flops = exact.step_flops();
  return {{"exact", exact.to_json()},
          {"sampled", sampled.to_json()},
          {"steps", std::ssize(exact.seconds)},
          {"sampling", sampled.session.trainer().method().summary()},
          {"act_ratio", ratios.act},
          {"weight_ratio", ratios.weight},
          {"time_ratio", exact_seconds / median(sampled.seconds)},
          {"flops_ratio", flops_ratio},
          {"exact_flops_per_second", exact_flops / exact_seconds},
          {"peak_flops_per_second", peak},
          // The best of both: other load on the machine slows a median, but not a best product.
          {"exact_best_flops_per_second", best},
          {"exact_share_of_peak", best / peak},
          {"products", products.to_json()}};
}

}  // namespace

void bench_steps(const LoadedConfig& loaded, const BenchRequest& request) {
  RunConfig config = loaded.config;
  const RunData data(config);
  RunConfig exact_config = config;
  exact_config.method.type = "exact";
  const std::int64_t resident_at_start = resident_bytes();
  Subject exact(exact_config, data, request.one_branch);
  exact.warm_up(resident_at_start);
  fix_ratios(config.method, exact.session.model().graph.gates());
  GemmRate products(config, exact);
  const std::int64_t resident_with_exact = resident_bytes();
  Subject sampled(config, data, request.one_branch);
  sampled.warm_up(resident_with_exact);
  std::optional<RunData> long_data;
  std::optional<Subject> padded;
  if (request.pad_to > 0) {
    long_data.emplace(padded_data(config, request.pad_to));
    padded.emplace(exact_config, *long_data, request.one_branch);
    padded->warm_up(0);
  }
  exact.start_timing();
  sampled.start_timing();

  for (std::int64_t left = request.steps; left > 0; left -= kTurn) {
    const std::int64_t steps = std::min(left, kTurn);
    if (padded) padded->run(steps);
    exact.run(steps);
    products.measure();
    sampled.run(steps);
    products.measure();
  }

  Json json = compared(exact, sampled, products);
  const double exact_seconds = median(exact.seconds), sampled_seconds = median(sampled.seconds);
  json["peak_resident_bytes"] = peak_resident_bytes();
  const std::optional<double> probe = probe_seconds(loaded.config, data);
  if (padded) {
    json["padded_seconds"] = median(padded->seconds);
    json["padded_over_packed"] = median(padded->seconds) / exact_seconds;
    json["padded_to"] = request.pad_to;
  }
  if (probe) {
    const std::int64_t every =
        vcas_of(sampled.session).options().probe_interval(sampled.session.total_steps());
    json["probe_seconds"] = *probe;
    json["probe_every"] = every;
    json["probe_share"] = *probe / (static_cast<double>(every) * sampled_seconds + *probe);
  }
  json["device"] = exact.session.ops().name();
  json["precision"] = config.precision;
  json["threads"] = use_threads(config);
  print_text(request.json ? json.dump(2) + "\n" : benchmark_text(json));
}

}  // namespace vcas
