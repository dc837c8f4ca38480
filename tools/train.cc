#include "tools/train.h"

#include <fmt/format.h>

#include "core/files.h"
#include "core/hardware.h"
#include "core/progress.h"
#include "core/signals.h"
#include "kernels/dry_ops.h"
#include "optim/checkpoint.h"
#include "tools/launch.h"
#include "tools/output.h"
#include "tools/report_text.h"
#include "tools/training_run.h"

namespace vcas {
namespace fs = std::filesystem;

namespace {

// Mistakes in settings, folders and the model are told before images are decoded for minutes.
void look_without_decoding(const TrainRequest& request) {
  RunConfig config = request.loaded.config;
  if (!config.data.kind->facts().has_class_folders) return;
  config.data.skip_bad_rows = false;
  const RunData data(config, /*check_images=*/false, request.from.checkpoint);
  DryOps ops;
  make_model(ops, compute_dtype(precision_of(config)), config, data.facts(), nullptr, data.limits,
             config.micro_batch());
  const Loader loader(*data.train, train_loader_options(config));
}

}  // namespace

void train(const TrainRequest& request) {
  check_request(request);
  const SignalHandlers signals;
  if (request.loaded.config.data.skip_bad_rows && request.ranks->size() == 1)
    look_without_decoding(request);
  const std::unique_ptr<RunData> data =
      read_data(request.loaded.config, *request.ranks, request.from.checkpoint);
  check_same_start(request, *data);
  check_same_files(request, *data);
  Progress progress(stderr, progress_options(2));
  TrainingRun run(request, *data, progress);
  run.start(request.folder(), request.use());
  while (!run.done()) run.advance(run.session().total_steps());
  progress.finish();
  print_text(run.finish());
  if (request.timing && request.ranks->is_first()) run.print_timing();
}

void dry_run(const LoadedConfig& loaded) {
  const RunData data(loaded.config);
  Session session(loaded.config, data);
  Trainer& trainer = session.trainer();
  const auto steps = [&] {
    do session.step();
    while (!trainer.at_rest() && !trainer.done() && stop_signal() == 0);
  };
  steps();
  if (!trainer.done()) steps();
  Loader loader(*data.test, eval_loader_options(loaded.config));
  trainer.evaluate(loader.next());
  fs::path folder = fs::absolute(loaded.folder());
  folder += ".dry-run";
  check_run_folder(loaded.folder() + ".dry-run", FolderUse::kAsItIs);
  const SignalHandlers signals;   // nothing of it stays then either
  std::vector<fs::path> parents;  // that are made for it
  for (fs::path parent = folder.parent_path(); !fs::exists(parent); parent = parent.parent_path())
    parents.push_back(parent);
  {
    const AtomicFolder scratch(folder);  // without a commit nothing of it stays
    save_checkpoint(
        scratch.path() / "checkpoint", trainer, session.state(),
        model_files(data.facts(), data.tokenizer.get(), loaded.config.model.kind->max_positions()));
    session.restore(load_checkpoint(scratch.path() / "checkpoint", trainer));
    if (!trainer.done()) steps();
  }
  std::error_code ignored;  // somebody else may use them by now
  for (const fs::path& parent : parents) fs::remove(parent, ignored);
  stop_if_asked();
}

std::string validate_run(const TrainRequest& request) {
  check_request(request);
  look_without_decoding(request);
  const LoadedConfig& loaded = request.loaded;
  const RunData data(loaded.config, /*check_images=*/true, request.from.checkpoint);
  Session session(loaded.config, data);
  print_warnings(run_warnings(request, data, session.model()));
  const Graph& graph = session.model().graph;
  fs::path folder = request.folder();
  if (request.use() == FolderUse::kNext) folder = next_run_folder(folder);
  try_run_folder(folder, request.use());
  std::string images;
  if (data.checked_images > 0)
    images = fmt::format(", images decoded: {}", format_count(data.checked_images));
  std::string notes;
  for (const std::string& note : data.notes) notes += "    note   " + note + "\n";
  return fmt::format(
      "ok  {} ({} settings, {} defaults)   model {} tensors, {} parameters   data {} train, {} "
      "test, {}{}\n{}    output {} writable ({} free)   memory {}   device {}\n",
      loaded.name, loaded.origins.count_given(), loaded.origins.count_defaults(),
      graph.parameters().size(), format_count(graph.parameters().count()),
      format_count(data.train->size()), format_count(data.test->size()),
      classes_text(data.train->class_names()), images, notes, folder.string(),
      format_bytes(static_cast<double>(free_disk_bytes(folder))),
      format_bytes(static_cast<double>(session.trainer().planned_bytes())), session.ops().name());
}

}  // namespace vcas
