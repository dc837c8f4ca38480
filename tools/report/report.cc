#include "tools/report/report.h"

#include <fmt/format.h>

#include <set>

#include "core/error.h"
#include "core/files.h"
#include "core/log.h"
#include "tools/report/exports.h"
#include "tools/report/page.h"
#include "tools/report/run_plots.h"
#include "tools/report/run_record.h"
#include "tools/run_folder.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

void say(const std::string& line) { write_stderr(line + "\n"); }

void write(const fs::path& file, const std::string& content, const std::string& option) {
  const std::string hint = "choose another place for " + option;
  if (file.has_parent_path()) make_folder(file.parent_path(), hint);
  try {
    atomic_write(file, content);
  } catch (const Error& error) {
    throw Error(error.code(), error.what(), hint);
  }
}

void write_and_say(const fs::path& file, const std::string& content, const std::string& option) {
  write(file, content, option);
  say(fmt::format("wrote {} ({:.0f} kB)", file.string(),
                  std::ceil(static_cast<double>(content.size()) / 1000)));
}

void write_svgs(const fs::path& folder, const std::vector<PlotSection>& sections) {
  std::size_t count = 0;
  for (const PlotSection& section : sections)
    for (const Plot& plot : section.plots) {
      write(folder / (plot.id + ".svg"), svg_file(plot), "--svg");
      ++count;
    }
  say(fmt::format("wrote {} plots to {}", count, folder.string()));
}

// The place of a run's events, below the folder asked for. A run's name may be a whole path.
fs::path events_folder(const ReportRequest& request, const RunRecord& run) {
  return request.tensorboard_folder / fs::path(run.name).relative_path();
}

// TensorBoard mixes all events of a folder: those of a run that this one replaced go.
void write_events(const fs::path& folder, const RunRecord& run) {
  const std::string name = tensorboard_name(run);
  write_and_say(folder / name, tensorboard_events(run), "--tensorboard");
  std::vector<fs::path> others;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (const std::string other = entry.path().filename().string();
        is_tensorboard_name(other) && other != name)
      others.push_back(entry.path());
  for (const fs::path& other : others) fs::remove(other);
}

// The runs on the page, which has a colour for each. A larger comparison has the first seed of each
// variant there.
std::vector<RunRecord> shown_of(const std::vector<RunRecord>& runs,
                                std::vector<std::string>& left_out) {
  constexpr auto kMost = static_cast<std::size_t>(kPlotColours);
  if (runs.size() <= kMost) return runs;
  std::vector<RunRecord> shown;
  std::set<fs::path> variants;
  for (const RunRecord& run : runs)
    if (!run.of_comparison || !run.folder.filename().string().starts_with("seed") ||
        variants.insert(run.folder.parent_path()).second)
      shown.push_back(run);
    else
      left_out.push_back(fmt::format("{}: the page has room for {} runs", run.name, kMost));
  if (shown.size() > kMost)
    throw Error(ExitCode::kUsage,
                fmt::format("a report shows {} runs at most, in as many colours; got {}", kMost,
                            shown.size()),
                "make several reports, each with its own --to");
  return shown;
}

}  // namespace

void report(const ReportRequest& request) {
  std::vector<std::string> left_out;
  const std::vector<RunRecord> runs = read_runs(request.runs, left_out),
                               shown = shown_of(runs, left_out);
  const fs::path page = request.page.empty() ? request.runs.front() / "report.html" : request.page;
  std::error_code error;
  if (!request.csv.empty() &&
      fs::weakly_canonical(request.csv, error) == fs::weakly_canonical(page, error))
    throw Error(ExitCode::kUsage, request.csv.string() + ": both --csv and the page",
                "choose another place for --csv");
  check_output(page, "--to", kPageBegin);
  if (!request.csv.empty()) check_output(request.csv, "--csv", kCsvBegin);
  if (!request.svg_folder.empty()) check_output(request.svg_folder, "--svg");
  if (!request.tensorboard_folder.empty())
    for (const RunRecord& run : runs) check_output(events_folder(request, run), "--tensorboard");
  for (const std::string& reason : left_out) say("left out: " + reason);
  for (const RunRecord& run : runs) {
    say(fmt::format("{}: {} train, {} eval, {} variance events of {}", run.name, run.train.size(),
                    run.eval.size(), run.variance.size(), (run.folder / "metrics.jsonl").string()));
    for (const std::string& gap : run.gaps) say("  " + gap);
  }
  const std::vector<PlotSection> sections = plot_sections(shown);
  for (const PlotSection& section : sections)
    for (const std::string& missing : section.missing) say("  " + missing);
  if (!request.svg_folder.empty()) write_svgs(request.svg_folder, sections);
  if (!request.csv.empty()) write_and_say(request.csv, metrics_csv(runs), "--csv");
  if (!request.tensorboard_folder.empty())
    for (const RunRecord& run : runs) write_events(events_folder(request, run), run);
  write_and_say(page, report_page(shown, sections, left_out), "--to");
}

}  // namespace vcas
