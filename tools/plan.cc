#include "tools/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "core/error.h"
#include "core/hardware.h"
#include "core/log.h"
#include "core/progress.h"
#include "kernels/dry_ops.h"
#include "optim/methods/sampled_backward.h"
#include "tools/output.h"
#include "tools/report_text.h"
#include "tools/session.h"

namespace vcas {
namespace {

using Json = nlohmann::ordered_json;

// Batches that are timed: at most so many, and none begins after so many seconds.
constexpr std::int64_t kTimedBatches = 12;
constexpr double kTimedSeconds = 30;

// The run of a configuration with no memory and no numbers.
struct DryRun {
  std::int64_t steps_per_epoch, total_steps;
  const DryOps* device;  // of ops
  std::unique_ptr<CountOps> ops;
  std::unique_ptr<Model> model;
  std::unique_ptr<Trainer> trainer;

  DryRun(const RunConfig& config, const RunData& data, std::int64_t epoch)
      : steps_per_epoch(epoch), total_steps(vcas::total_steps(config, epoch)) {
    const std::string name = device_name(config);
    auto dry = std::make_unique<DryOps>(name != "cpu" && !name.starts_with("check:cpu"));
    device = dry.get();
    ops = std::make_unique<CountOps>(std::move(dry));
    model = make_model(*ops, compute_dtype(precision_of(config)), config, data.facts(),
                       data.tokenizer.get(), data.limits,
                       std::max(config.micro_batch(), config.eval_batch()));
    TrainerOptions options = trainer_options(config, total_steps, steps_per_epoch);
    options.items = data.train->size();
    const auto no_batches = [](std::int64_t) { return std::unique_ptr<BatchSource>(); };
    trainer = std::make_unique<Trainer>(*model, *ops, options, no_batches);  // and it runs no step
  }

  const Graph& graph() const { return model->graph; }
  // Steps between evaluations. The last step has one too.
  std::int64_t evaluated_every(const RunConfig& config) const {
    const std::int64_t every = config.train.eval_every.steps(steps_per_epoch);
    return every > 0 ? every : steps_per_epoch;
  }
  std::int64_t evaluations(const RunConfig& config) const {
    const std::int64_t each = evaluated_every(config);
    return (total_steps + each - 1) / each;
  }
};

struct StepTimes {
  std::vector<double> exact;                 // seconds of the steps, without waiting for data
  std::vector<std::vector<double>> sampled;  // [ratio]: of the same batches
  double evaluation = 0;                     // of the test data
  std::int64_t resident_bytes = 0;
};

// Seconds of forward and backward with `hooks`.
double time_passes(Session& session, const RunConfig& config, const Batch& batch,
                   BackwardHooks& hooks) {
  Graph& graph = session.model().graph;
  const std::vector<Tensor> gradients = graph.parameters().gradient_list();
  const double start = monotonic_seconds();
  const auto step = static_cast<std::uint64_t>(session.trainer().steps());
  for (std::int64_t first = 0; first < batch.items; first += config.micro_batch()) {
    const std::int64_t items = std::min(config.micro_batch(), batch.items - first);
    session.model().load(session.ops(), batch, first, items);
    Exec exec = graph.make_exec(config.seed, step, true);
    exec.keeps_norms = true;
    graph.forward(exec);
    const auto terms = static_cast<double>(session.model().loss_terms(batch, 0, batch.items));
    graph.backward(
        exec,
        {.gradients = {gradients, first > 0}, .loss_scale = per_term(terms), .hooks = &hooks});
  }
  float last = 0;  // a device that queues its work is waited for
  session.ops().copy_to_host(&last, graph.parameters().gradients().data, sizeof last);
  return monotonic_seconds() - start;
}

// Each batch is an exact step, then passes at each of the ratios. The first one is not counted.
StepTimes time_steps(RunConfig config, const RunData& data, const std::vector<double>& ratios,
                     std::int64_t total_steps) {
  config.method.type = "exact";
  config.train.steps = std::max(total_steps, kTimedBatches);
  Session session(config, data);
  const Graph& graph = session.model().graph;
  SampledBackward sampled(session.ops(), graph.plan());
  Loader loader(*data.train, session.loader_options());
  StepTimes times;
  times.sampled.resize(ratios.size());
  const double start = monotonic_seconds();
  for (std::int64_t i = 0; i < kTimedBatches; ++i) {
    if (i > 1 && monotonic_seconds() - start > kTimedSeconds) break;
    const Batch& batch = loader.next();
    const StepSeconds exact = session.trainer().step(batch).seconds;
    if (i > 0) times.exact.push_back(exact.total());
    for (std::size_t r = 0; r < ratios.size(); ++r) {
      sampled.pass.ratios = equal_ratios(graph.plan(), ratios[r], ratios[r]);
      const double passes = time_passes(session, config, batch, sampled);
      if (i > 0) times.sampled[r].push_back(passes + exact.optimizer);
    }
  }
  Loader tests(*data.test, eval_loader_options(config));
  const Batch& batch = tests.next();
  const double before = monotonic_seconds();
  session.trainer().evaluate(batch);
  double items = static_cast<double>(data.test->size());
  if (data.mismatched) items += static_cast<double>(data.mismatched->size());
  times.evaluation = (monotonic_seconds() - before) * items / static_cast<double>(batch.items);
  times.resident_bytes = resident_bytes();
  return times;
}

Json memory_of(const RunConfig& config, const DryRun& run) {
  const MemoryPlan& graph = run.graph().memory();
  const std::size_t gradients = run.graph().parameters().gradients().bytes();
  const std::size_t optimizer = run.trainer->optimizer().bytes(),
                    method = run.trainer->method().bytes(), all = run.device->allocated();
  Json json = {{"weights", graph.parameters - gradients},
               {"weight_gradients", gradients},
               {"optimizer", optimizer},
               {"activations", graph.activations},
               {"activation_gradients", graph.gradients},
               {"scratch", graph.scratch + graph.rows},
               {"method", method},
               {"rest", all - graph.total() - optimizer - method},
               {"total", all},
               {"program_and_data", resident_bytes()},
               {"free", nullptr},
               {"fits", nullptr}};
  if (device_name(config) == "cuda") return json;  // another memory than the host's
  json["free"] = available_memory_bytes();
  json["fits"] = static_cast<std::int64_t>(all) <= available_memory_bytes();
  return json;
}

// Settings under which the run fits: the fewest micro-batches.
Json fitting_settings(const RunConfig& config, const RunData& data, std::int64_t epoch) {
  RunConfig smaller = config;
  const std::int64_t batch = config.train.batch_size;
  for (std::int64_t items = config.micro_batch(), parts = 1; items > 1;) {
    const std::int64_t before = items;
    do items = (batch + parts) / (parts + 1), ++parts;  // rounded up
    while (items >= before);
    if (config.train.balance_lengths && batch % items != 0) continue;
    smaller.train.micro_batch = items;
    const bool large_tests = config.train.eval_batch > items;
    if (large_tests) smaller.train.eval_batch = items;
    const std::size_t bytes = DryRun(smaller, data, epoch).device->allocated();
    if (static_cast<std::int64_t>(bytes) > available_memory_bytes()) continue;
    Json settings = {fmt::format("train.micro_batch={}", items)};
    if (large_tests) settings.push_back(fmt::format("train.eval_batch={}", items));
    return {{"settings", settings}, {"bytes", bytes}};
  }
  return nullptr;
}

// Weights and optimizer, as files have them, how many stay, and one more while it is written.
// Each evaluation may be the best, and is saved then. The last step has one.
Json checkpoints_of(const LoadedConfig& loaded, const DryRun& run) {
  const RunConfig& config = loaded.config;
  std::size_t bytes = run.trainer->item_memory().size_bytes();
  for (const Parameter& stored : run.graph().parameters().stored())
    bytes += static_cast<std::size_t>(stored.shape.elements()) * dtype_bytes(stored.master.dtype);
  for (const NamedTensor& state : run.trainer->optimizer().state()) bytes += state.tensor.bytes();
  const std::int64_t every = config.train.checkpoint_every.steps(run.steps_per_epoch);
  const std::int64_t before_last = run.total_steps - 1;
  const std::int64_t evaluated = run.evaluated_every(config);
  const std::int64_t others =  // which no evaluation saves
      every > 0
          ? before_last / every - before_last / every / (evaluated / std::gcd(every, evaluated))
          : 0;
  const std::int64_t made = run.evaluations(config) + others;
  const std::int64_t kept =
      config.train.keep_checkpoints < made ? config.train.keep_checkpoints + 1 : made;
  constexpr double kMost = 9e18;
  const double disk_bytes = static_cast<double>(bytes) * (static_cast<double>(kept) + 1);
  return {{"bytes", bytes},
          {"made", made},
          {"kept", kept},
          {"disk_bytes", static_cast<std::int64_t>(std::min(disk_bytes, kMost))},
          {"free_disk_bytes", free_disk_bytes(loaded.folder())}};
}

// Counts one step. `formula` has none yet.
Json savings_of(FormulaFlops formula, const Graph& graph, double ratio) {
  const auto [act, weight] = equal_ratios(graph.plan(), ratio, ratio);
  formula.add_sampled_step(act, weight);
  return {{"ratio", ratio},
          {"formula_flops_saved", formula.saved()},
          {"formula_backward_flops_saved", formula.backward_saved()}};
}

Json time_of(const StepTimes& times, const DryRun& run, const RunConfig& config) {
  const double seconds = median(times.exact);
  const auto [low, high] = std::ranges::minmax(times.exact);
  const auto evaluations = static_cast<double>(run.evaluations(config));
  return {{"batches", times.exact.size()},
          {"step_seconds", seconds},
          {"least_step_seconds", low},
          {"most_step_seconds", high},
          {"evaluation_seconds", times.evaluation},
          {"run_seconds",
           static_cast<double>(run.total_steps) * seconds + evaluations * times.evaluation},
          {"resident_bytes", times.resident_bytes}};
}

// Adds the seconds of sampled steps to the savings of each ratio.
void add_times(Json& plan, const StepTimes& times, std::int64_t total_steps) {
  for (std::size_t r = 0; r < times.sampled.size(); ++r) {
    std::vector<double> saved;
    for (std::size_t i = 0; i < times.exact.size(); ++i)
      saved.push_back(1 - times.sampled[r][i] / times.exact[i]);
    std::ranges::sort(saved);
    const double seconds = median(times.sampled[r]);
    Json& json = plan["ratios"][r];
    json["step_seconds"] = seconds;
    json["run_seconds"] =
        plan["time"]["run_seconds"].get<double>() +
        static_cast<double>(total_steps) * (seconds - plan["time"]["step_seconds"].get<double>());
    json["time_saved"] = median(saved);
    json["time_saved_interval"] = nullptr;
    if (const std::optional<Estimate> estimate = estimate_median(saved))
      json["time_saved_interval"] = {estimate->low, estimate->high};
  }
}

std::string memory_text(const Json& memory) {
  static constexpr std::pair<const char*, const char*> kParts[] = {
      {"weights", "weights"},
      {"weight_gradients", "gradients of weights"},
      {"optimizer", "optimizer"},
      {"activations", "activations"},
      {"activation_gradients", "gradients of activations"},
      {"scratch", "scratch and row sets"},
      {"method", "gates, sketches and memory of the method"},
      {"rest", "losses and evaluation"},
      {"total", "all of these"},
      {"program_and_data", "program and data, now"},
      {"free", "free"}};
  std::vector<std::vector<std::string>> rows = {{"memory"}};
  for (const auto& [key, name] : kParts)
    if (!memory[key].is_null())
      rows.push_back({std::string("  ") + name, format_bytes(memory[key].get<double>())});
  return format_table(rows);
}

std::string savings_text(const Json& plan) {
  const bool timed = plan.contains("time");
  std::vector<std::vector<std::string>> rows = {
      {"items, rows kept by vcas", "FLOPs", "of backward"}};
  if (timed) rows[0].insert(rows[0].end(), {"step", "time", "95 % interval", "run"});
  const auto milliseconds = [](const Json& seconds) {
    return fmt::format("{:.2f} ms", 1e3 * seconds.get<double>());
  };
  rows.push_back({"  all: exact", "", ""});
  if (timed)
    rows.back().insert(rows.back().end(), {milliseconds(plan["time"]["step_seconds"]), "", "",
                                           format_duration(plan["time"]["run_seconds"])});
  for (const Json& ratio : plan["ratios"]) {
    rows.push_back({fmt::format("  {}", ratio["ratio"].get<double>()),
                    format_change(ratio["formula_flops_saved"].get<double>()),
                    format_change(ratio["formula_backward_flops_saved"].get<double>())});
    if (!timed) continue;
    const Json& interval = ratio["time_saved_interval"];
    rows.back().insert(
        rows.back().end(),
        {milliseconds(ratio["step_seconds"]), format_change(ratio["time_saved"].get<double>()),
         interval.is_null() ? "too few batches"
                            : fmt::format("{} to {}", format_change(interval[1].get<double>()),
                                          format_change(interval[0].get<double>())),
         format_duration(ratio["run_seconds"])});
  }
  return format_table(rows);
}

std::string plan_text(const Json& plan) {
  const auto count = [](const Json& number) { return format_count(number.get<std::int64_t>()); };
  const auto bytes = [](const Json& number) { return format_bytes(number.get<double>()); };
  const Json &flops = plan["flops"], &checkpoints = plan["checkpoints"];
  std::string text = fmt::format(
      "model        {}, {} tensors, {} parameters\n"
      "data         {} train, {} test, {}\n"
      "steps        {}: {:.4g} epochs of {}, batch {} in parts of {}\n"
      "FLOPs        {:.4g} GFLOP an exact step of the first batch: {:.4g} forward, {:.4g} "
      "backward\n"
      "checkpoints  {} each, at most {} on disk and one being written: {} ({} free)\n"
      "device       {}, {}, {} threads\n",
      plan["model"].get<std::string>(), count(plan["tensors"]), count(plan["parameters"]),
      count(plan["train_items"]), count(plan["test_items"]),
      plan["classes"] == 0 ? "no classes" : count(plan["classes"]) + " classes",
      count(plan["steps"]), plan["epochs"].get<double>(), count(plan["steps_per_epoch"]),
      count(plan["batch_size"]), count(plan["micro_batch"]), flops["step"].get<double>() / 1e9,
      flops["forward"].get<double>() / 1e9, flops["backward"].get<double>() / 1e9,
      bytes(checkpoints["bytes"]), count(checkpoints["kept"]), bytes(checkpoints["disk_bytes"]),
      bytes(checkpoints["free_disk_bytes"]), plan["device"].get<std::string>(),
      plan["precision"].get<std::string>(), plan["threads"].get<int>());
  text += memory_text(plan["memory"]) + savings_text(plan);
  if (!plan.contains("time"))
    return text + "FLOPs by the formula, without probes; time was not measured\n";
  const Json& time = plan["time"];
  return text +
         fmt::format(
             "FLOPs by the formula. Steps: medians of {} batches, exact ones {:.0f}% to {:.0f}% "
             "of theirs\n"
             "neither has probes: vcas bench times them\n"
             "run: all steps alike, with evaluations of {:.2f} s; not waiting for data, not "
             "saving\n"
             "resident after these steps {}\n",
             time["batches"].get<int>(),
             100 * time["least_step_seconds"].get<double>() / time["step_seconds"].get<double>(),
             100 * time["most_step_seconds"].get<double>() / time["step_seconds"].get<double>(),
             time["evaluation_seconds"].get<double>(), bytes(time["resident_bytes"]));
}

Json facts_of(const LoadedConfig& loaded, const RunData& data, const DryRun& run,
              const StepFlops& flops) {
  const RunConfig& config = loaded.config;
  return {
      {"model", config.model.kind.type},
      {"tensors", run.graph().parameters().size()},
      {"parameters", run.graph().parameters().count()},
      {"train_items", data.train->size()},
      {"test_items", data.test->size()},
      {"classes", data.train->classes()},
      {"steps", run.total_steps},
      {"steps_per_epoch", run.steps_per_epoch},
      {"epochs", static_cast<double>(run.total_steps) / static_cast<double>(run.steps_per_epoch)},
      {"batch_size", config.train.batch_size},
      {"micro_batch", config.micro_batch()},
      {"flops",
       {{"step", flops.forward + flops.backward},
        {"forward", flops.forward},
        {"backward", flops.backward}}},
      {"checkpoints", checkpoints_of(loaded, run)},
      {"device", device_name(config)},
      {"precision", config.precision},
      {"threads", use_threads(config)},
      {"memory", memory_of(config, run)}};
}

}  // namespace

void plan_run(const LoadedConfig& loaded, const PlanRequest& request) {
  const RunConfig& config = loaded.config;
  const RunData data(config);
  print_warnings(data.warnings);
  Loader loader(*data.train, train_loader_options(config));
  const DryRun run(config, data, loader.steps_per_epoch());
  const Method::Complaint complaint = run.trainer->method().complaint();
  if (!complaint.message.empty())
    log_warning(fmt::format("{}\n  hint: {}", complaint.message, complaint.hint));
  const Batch& batch = loader.next();
  Json plan = facts_of(loaded, data, run, count_exact_step(*run.model, *run.ops, config, batch));
  const bool samples = run.graph().gates() > 0 || !run.graph().sampled_weights().empty();
  const std::vector<double> ratios = samples ? request.ratios : std::vector<double>{};
  plan["ratios"] = Json::array();
  for (const double ratio : ratios)
    plan["ratios"].push_back(savings_of(make_formula(run.graph(), batch), run.graph(), ratio));
  const bool fits = plan["memory"]["fits"] != false;
  if (!fits) plan["fitting"] = fitting_settings(config, data, run.steps_per_epoch);
  if (fits && request.timing) {
    const StepTimes times = time_steps(config, data, ratios, run.total_steps);
    plan["time"] = time_of(times, run, config);
    add_times(plan, times, run.total_steps);
  }
  print_text(request.json ? plan.dump(2) + "\n" : plan_text(plan));
  if (fits) return;
  const Json& fitting = plan["fitting"];
  throw Error(
      ExitCode::kOutOfMemory,
      fmt::format("the run needs {}, and {} are free",
                  format_bytes(plan["memory"]["total"].get<double>()),
                  format_bytes(plan["memory"]["free"].get<double>())),
      fitting.is_null()
          ? "not even train.micro_batch=1 fits: a smaller model or shorter items would"
          : fmt::format(
                "with {} it needs {}; exact gradients stay, unless there are BatchNorms or dropout",
                fmt::join(fitting["settings"].get<std::vector<std::string>>(), " "),
                format_bytes(fitting["bytes"].get<double>())));
}

}  // namespace vcas
