#include "tools/check.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/progress.h"
#include "optim/gradient_check.h"
#include "optim/methods/forward_sample.h"
#include "tools/output.h"
#include "tools/report_text.h"
#include "tools/session.h"

namespace vcas {
namespace {

constexpr double kLevel = 1e-3;
// Below this ratio rare outcomes have much weight, and few draws miss them.
constexpr double kUsualRatio = 0.25;
constexpr std::int64_t kManyDraws = 1024;
constexpr std::size_t kShown = 10;  // tensors
// Differences of the loss: in so many directions, on so few items.
constexpr int kDirections = 3;
constexpr std::int64_t kSlopeItems = 8;

// The same model in f64, with the weights of `session`, on a batch that begins as `batch`.
std::vector<Slope> slopes_of(const RunConfig& config, const RunData& data, Session& session,
                             const Batch& batch) {
  const std::unique_ptr<Ops> ops = make_ops(config.device, Precision::kF32);
  const std::int64_t items = std::min(kSlopeItems, batch.items);
  const std::unique_ptr<Model> model =
      make_model(*ops, DType::kF64, config, data.facts(), data.tokenizer.get(), data.limits, items);
  const std::vector<Parameter> from = session.model().graph.parameters().stored();
  const std::vector<Parameter> to = model->graph.parameters().stored();
  for (std::size_t p = 0; p < from.size(); ++p) {
    const auto host = to_host<float>(session.ops(), from[p].master);
    const std::vector<double> wide(host.begin(), host.end());
    ops->copy_to_device(to[p].master.data, wide.data(), to[p].master.bytes());
  }
  model->graph.parameters().round_values(*ops);
  return check_slopes(*model, *ops, batch, items, kDirections, config.seed);
}

std::string table_of(const SamplingCheck& check, bool all) {
  std::vector<std::vector<std::string>> rows = {
      {"sampling", "tensor", "z", "shift", "variance", "of its formula"}};
  const std::size_t shown = all ? check.tensors.size() : std::min(kShown, check.tensors.size());
  for (std::size_t i = 0; i < shown; ++i) {
    const SampledTensor& tensor = check.tensors[i];
    rows.push_back(
        {tensor.sampling, tensor.tensor, fmt::format("{:+.2f}", tensor.z),
         fmt::format("{:+.2f}%", 100 * tensor.shift), fmt::format("{:.3g}", tensor.variance),
         tensor.closed_form > 0 ? fmt::format("{:.2f}", tensor.variance / tensor.closed_form)
                                : "-"});
  }
  return format_table(rows);
}

// Variances that have a formula, by the kind of sampling.
std::string closed_forms(const SamplingCheck& check) {
  std::string text;
  for (const char* sampling : {"items, bernoulli", "rows, bernoulli"}) {
    std::vector<double> ratios;
    for (const SampledTensor& tensor : check.tensors)
      if (tensor.sampling == sampling && tensor.closed_form > 0)
        ratios.push_back(tensor.variance / tensor.closed_form);
    if (ratios.empty()) continue;
    const auto [low, high] = std::ranges::minmax(ratios);
    text += fmt::format("variance {}: {:.2f} to {:.2f} of its formula, median {:.2f} of {}\n",
                        sampling, low, high, median(ratios), ratios.size());
  }
  return text;
}

// What the draws can tell at all.
std::string least_shifts(const SamplingCheck& check) {
  std::vector<double> shifts;
  for (const SampledTensor& tensor : check.tensors) shifts.push_back(tensor.least_shift);
  return fmt::format(
      "shifts   are noticed from {:.1f}% of a gradient on; {:.1f}% where it varies "
      "most\n",
      100 * median(shifts), 100 * std::ranges::max(shifts));
}

std::string not_checked(const RunConfig& config, const Batch& batch) {
  std::string text;
  const auto add = [&](const std::string& what) { text += "not checked: " + what + "\n"; };
  if (config.method.type != "vcas")
    add(fmt::format("draws of method.type \"{}\": these are those of vcas", config.method.type));
  if (config.optimizer.max_gradient_norm > 0 && config.optimizer.clip == "norm")
    add("clipping, which biases sampled gradients");
  if (config.micro_batch() < batch.items)
    add(fmt::format("micro-batches after the first, of {} items", config.micro_batch()));
  return text;
}

bool drops_before_forward(const RunConfig& config) {
  const auto* options = dynamic_cast<const ForwardOptions*>(&*config.method);
  return options && options->forward;
}

// Throws for gradients that are wrong.
void judge(const SamplingCheck& sampling, double slope_error) {
  std::string faults;
  const bool slopes_fail = !(slope_error <= kMostSlopeError);
  if (slopes_fail)
    faults =
        fmt::format("exact gradients differ from differences of the loss by {:.2g}", slope_error);
  if (sampling.failed() > 0) {
    const SampledTensor& worst = sampling.tensors.front();
    faults += fmt::format(
        "{}sampling shifts the mean of {} gradients; the worst: {} by {}, z {:.1f}",
        faults.empty() ? "" : "; ", sampling.failed(), worst.tensor, worst.sampling, worst.z);
  }
  if (faults.empty()) return;
  const std::string by_chance = fmt::format(
      "see whether --draws {} fails too: by chance one check in {:.0f} does, and more "
      "where few draws miss rare ones, as at a small --ratio; ",
      kManyDraws, 1 / kLevel);
  throw Error(
      ExitCode::kInternal, faults,
      fmt::format("{}a layer of your own: docs/layer_api.md, \"The test\"; else it is a bug "
                  "in vcas, please report it",
                  slopes_fail ? "" : by_chance));
}

}  // namespace

void check_gradients(const LoadedConfig& loaded, const CheckRequest& request) {
  RunConfig config = loaded.config;
  config.method.type = "exact";
  const RunData data(config);
  print_warnings(data.warnings);
  const bool forward = drops_before_forward(loaded.config);
  if (forward) Session(loaded.config, data);  // throws for a run that cannot drop items so
  Session session(config, data);
  if (request.steps > session.total_steps())
    throw Error(ExitCode::kUsage, fmt::format("--steps is {}, and the run has {} steps",
                                              request.steps, session.total_steps()));
  while (session.trainer().steps() < request.steps) session.step();
  Loader loader(*data.train, session.loader_options(), request.steps);
  const Batch& batch = loader.next();
  const std::int64_t items = std::min(batch.items, config.micro_batch());
  SamplingCheckOptions options{.draws = request.draws,
                               .ratio = request.ratio,
                               .level = kLevel,
                               .seed = config.seed,
                               .rounding = config.precision == "tf32" ? 0x1p-11 : 0};
  LoaderOptions once = session.loader_options();
  once.prefetch = 1;
  if (forward)
    options.reload = [&](ItemChooser& chooser) {
      return Loader(*data.train, once, request.steps, &chooser).next();
    };
  const SamplingCheck sampling =
      check_sampling(session.model(), session.ops(), batch, items, options);
  double slope_error = 0;
  for (const Slope& slope : slopes_of(config, data, session, batch))
    slope_error = std::max(slope_error, slope.error());
  const std::string text = fmt::format(
      "{} parameters in {} tensors, {} items, after {} exact steps; {} draws of each kind, ratio "
      "{}\n{}{}"
      "bound    |z| <= {:.2f} in {} tests: a right model fails once in {:.0f} checks "
      "(Bonferroni),\n"
      "         more often where rare draws have much weight{}: more --draws decide\n"
      "{}"
      "slopes   exact gradient against differences of the loss, f64, {} items: off by {:.1e}, at "
      "most {:.0e}\n{}",
      format_count(session.model().graph.parameters().count()),
      session.model().graph.parameters().size(), items, request.steps, request.draws, request.ratio,
      table_of(sampling, request.all), closed_forms(sampling), sampling.bound,
      format_count(sampling.tests), 1 / kLevel,
      request.ratio < kUsualRatio ? ", as at so small a ratio" : "", least_shifts(sampling),
      std::min(kSlopeItems, batch.items), slope_error, kMostSlopeError,
      not_checked(loaded.config, batch));
  print_text(text);
  judge(sampling, slope_error);
  print_text("ok  no sampled gradient is shifted so far\n");
}

}  // namespace vcas
