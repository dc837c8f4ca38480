#include "tools/report/page.h"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <set>

#include "core/progress.h"
#include "tools/evaluation.h"
#include "tools/report/findings.h"
#include "tools/version.h"

namespace vcas {
namespace {

using nlohmann::json;

// Inks reach a contrast of 4.5 on their pages. Tables scroll in their own boxes.
constexpr const char* kStyle = R"css(
:root{color-scheme:light dark;--page:#fff;--card:#f6f8fa;--ink:#1f2328;--dim:#59636e;--line:#d1d9e0;
--warn:#fff4e0}
@media (prefers-color-scheme:dark){:root{--page:#0d1117;--card:#161b22;--ink:#e6edf3;--dim:#9da7b1;
--line:#30363d;--warn:#2d2211}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1240px;padding:16px;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.6rem;line-height:1.25;margin:.3em 0}h2{font-size:1.25rem;margin:2em 0 .2em}
h3{font-size:1rem;margin:0}p{margin:.3em 0}.dim{color:var(--dim)}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));gap:16px;
align-items:start;margin-top:12px}
.cards{grid-template-columns:repeat(auto-fit,minmax(min(100%,260px),1fr))}
figure,.box{margin:0;padding:14px;border:1px solid var(--line);border-radius:10px;
background:var(--card);min-width:0}
figcaption{margin-bottom:8px}figcaption p{color:var(--dim);font-size:.9rem}
svg.plot{display:block;width:100%;height:auto}
.dot{display:inline-block;width:12px;height:12px;margin-right:7px}
.big{font-size:1.5rem;font-weight:650;margin-right:.3em}
.warn{background:var(--warn)}.warn li{margin:.4em 0}ul{margin:.3em 0;padding-left:1.2em}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.92rem;
font-variant-numeric:tabular-nums}td,th{padding:4px 14px 4px 0;text-align:left;vertical-align:top;
border-bottom:1px solid var(--line);overflow-wrap:normal;min-width:6em;max-width:24em}
tr>:first-child{font-weight:400;color:var(--dim);min-width:11em}
)css";

std::string paragraph(const std::string& text, const char* kind = "") {
  return text.empty() ? "" : fmt::format("<p{}>{}</p>\n", kind, escape_xml(text));
}

std::string number_text(double value, const char* format) {
  return std::isfinite(value) ? fmt::format(fmt::runtime(format), value) : "–";
}

std::string percent_text(double share) { return number_text(100 * share, "{:.1f} %"); }

std::string dot(std::size_t run) {
  return fmt::format(
      "<svg class=\"dot\" viewBox=\"0 0 10 10\" aria-hidden=\"true\"><circle class=\"f{}\" "
      "cx=\"5\" "
      "cy=\"5\" r=\"5\"/></svg>",
      run);
}

// "vcas, budget controller" or "uniform"
std::string method_text(const RunRecord& run) {
  const json& method = member(run.config, "method");
  if (!run.has_ratios()) return text(method, "type");
  const bool pinned =
      !numbers(method, "act_ratio").empty() || !numbers(method, "weight_ratio").empty();
  return fmt::format("{}, {}{}", text(method, "type"),
                     pinned ? "fixed ratios" : text(method, "controller") + " controller",
                     member(method, "forward") == true ? ", SampleF" : "");
}

std::string task_text(const RunRecord& run) {
  const json& data = member(run.config, "data");
  const std::string type = text(data, "type"), folder = text(data, "folder");
  const json& texts = member(data, "text");
  for (const std::string& part : {text(texts, "task"), text(texts, "train_file"), folder})
    if (!part.empty()) return type + ", " + part;
  return type;
}

std::string model_text(const RunRecord& run) {
  const double parameters = number(run.start, "parameters");
  return text(member(run.config, "model"), "type") +
         (std::isfinite(parameters) ? fmt::format(", {:.2f} M parameters", parameters / 1e6) : "");
}

std::string device_text(const RunRecord& run) {
  const double threads = number(run.start, "threads");
  return fmt::format("{}, {}{}", text(run.start, "device"), text(run.start, "precision"),
                     std::isfinite(threads) ? fmt::format(", {:.0f} threads", threads) : "");
}

double best_of(const std::vector<double>& values, bool is_loss) {
  double best = std::nan("");
  for (const double value : values)
    best = is_loss ? std::fmin(best, value) : std::fmax(best, value);
  return best;
}

// The mean of the last tenth of the logged losses where the run has not noted its own.
double final_loss(const RunRecord& run) {
  if (const double noted = number(run.end, "train_loss"); std::isfinite(noted)) return noted;
  const std::vector<double> losses = column(run.train, "loss");
  return mean({losses.begin() + std::ssize(losses) * 9 / 10, losses.end()});
}

struct Row {
  std::string name;
  std::function<std::string(const RunRecord&)> cell;
};

std::vector<Row> result_rows(const std::vector<RunRecord>& runs) {
  std::vector<Row> rows = {{"task", task_text}, {"model", model_text}, {"method", method_text}};
  rows.push_back({"steps", [](const RunRecord& run) {
                    const double total = number(run.start, "total_steps");
                    return format_count(run.steps()) + (static_cast<double>(run.steps()) < total
                                                            ? fmt::format(" of {:.0f}", total)
                                                            : "");
                  }});
  rows.push_back({"final training loss",
                  [](const RunRecord& run) { return number_text(final_loss(run), "{:.4f}"); }});
  for (const std::string& measure : measures_of(runs))
    rows.push_back({fmt::format("test {}: last, best", measure), [measure](const RunRecord& run) {
                      const std::vector<double> values = column(run.eval, measure);
                      const double best = best_of(values, lower_is_better(measure));
                      return std::isfinite(best)
                                 ? fmt::format("{}, {}", number_text(values.back(), "{:.4f}"),
                                               number_text(best, "{:.4f}"))
                                 : "–";
                    }});
  return rows;
}

std::vector<Row> cost_rows(const std::vector<RunRecord>& runs) {
  const auto share = [](const char* key) {
    return [key](const RunRecord& run) { return percent_text(run.last_number(key)); };
  };
  const auto time = [&runs](const RunRecord& run) {
    return time_saved(run, exact_twin(run, runs));
  };
  std::vector<Row> rows = {
      {"FLOPs saved, counted", share("flops_saved")},
      {"FLOPs saved, by the paper's formula", share("formula_flops_saved")},
      {"FLOPs of backward saved, counted", share("backward_flops_saved")},
      {"seconds saved",
       [time, &runs](const RunRecord& run) {
         const RunRecord* twin = exact_twin(run, runs);
         if (!run.samples()) return std::string("–");
         const bool is_measured = twin != nullptr && twin->steps() == run.steps();
         return percent_text(time(run)) + (is_measured ? ", of " + twin->name : ", estimated");
       }},
      {"conversion: seconds over FLOPs",
       [time](const RunRecord& run) {
         const double flops = run.last_number("flops_saved");
         return number_text(flops > 0 ? time(run) / flops : std::nan(""), "{:.2f}");
       }},
      {"seconds of training",
       [](const RunRecord& run) { return number_text(run.train_seconds(), "{:.1f}"); }}};
  const std::vector<PhaseSeconds> phases = seconds_by_phase(runs.front());
  for (std::size_t i = 0; i < phases.size(); ++i)
    rows.push_back({"   " + phases[i].label, [i](const RunRecord& run) {
                      return number_text(seconds_by_phase(run)[i].seconds, "{:.1f}");
                    }});
  const auto of_start = [](const char* key) {
    return [key](const RunRecord& run) { return text(run.start, key); };
  };
  rows.insert(rows.end(), {{"begun", of_start("date")},
                           {"host", of_start("host")},
                           {"device", device_text},
                           {"version", of_start("version")},
                           {"folder", [](const RunRecord& run) { return run.folder.string(); }}});
  return rows;
}

std::string table(const std::vector<RunRecord>& runs, const std::vector<Row>& rows) {
  std::string out = "<div class=\"scroll\"><table>\n<tr><th></th>";
  for (std::size_t i = 0; i < runs.size(); ++i)
    out += fmt::format("<th>{}{}</th>", dot(i), escape_xml(runs[i].name));
  out += "</tr>\n";
  for (const Row& row : rows) {
    const std::size_t indent = row.name.find_first_not_of(' ');
    out += fmt::format("<tr><th>{}{}</th>", indent > 0 ? "&emsp;" : "",
                       escape_xml(row.name.substr(indent)));
    for (const RunRecord& run : runs) out += fmt::format("<td>{}</td>", escape_xml(row.cell(run)));
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

// Adds the settings of `from` by their names with dots. A list is one value.
void add_settings(const json& from, const std::string& prefix, json& to) {
  for (const auto& [key, value] : from.items())
    if (value.is_object())
      add_settings(value, prefix + key + ".", to);
    else
      to[prefix + key] = value;
}

// Settings that are not the same in all runs that have them.
std::string differences(const std::vector<RunRecord>& runs) {
  std::vector<json> flat;
  std::set<std::string> keys;
  for (const RunRecord& run : runs) {
    flat.push_back(json::object());
    if (run.config.is_object()) add_settings(run.config, "", flat.back());
    for (const auto& [key, value] : flat.back().items())
      if (!key.starts_with("run.")) keys.insert(key);
  }
  std::vector<Row> rows;
  for (const std::string& key : keys) {
    std::set<json> values;
    for (const json& config : flat)
      if (config.contains(key)) values.insert(member(config, key));
    if (values.size() < 2) continue;
    rows.push_back({key, [&, key](const RunRecord& run) {
                      const json& value = member(flat[&run - runs.data()], key);
                      return value.is_null() ? "–" : value.dump();
                    }});
  }
  if (rows.empty()) return "";
  return "<h2>Settings that differ</h2>\n" + table(runs, rows);
}

// What chose the best checkpoint; where no run says it, any measure but the loss.
std::string main_measure(const std::vector<RunRecord>& runs) {
  const std::vector<std::string> measures = measures_of(runs);
  for (const RunRecord& run : runs)
    for (const std::string& measure : measures)
      if (std::isfinite(number(run.end, "best_" + measure))) return measure;
  return measures.empty() ? "" : measures[measures.size() > 1 ? 1 : 0];
}

std::string headline(const std::vector<RunRecord>& runs) {
  std::string out = "<div class=\"grid cards\">\n";
  const std::string measure = main_measure(runs);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const RunRecord& run = runs[i];
    const std::vector<double> values = column(run.eval, measure);
    out += fmt::format("<div class=\"box\"><h3>{}{}</h3><p>", dot(i), escape_xml(run.name));
    if (!values.empty())
      out += fmt::format("<span class=\"big\">{}</span>test {}",
                         number_text(values.back(), "{:.4g}"), escape_xml(measure));
    out += "</p>";
    const auto share = [](double saved) {
      return std::isfinite(saved) ? percent_text(saved) : "an unknown share";
    };
    out += paragraph(
        run.samples()
            ? fmt::format("{} of FLOPs and {} of seconds saved in {} steps",
                          share(run.last_number("flops_saved")),
                          share(time_saved(run, exact_twin(run, runs))), format_count(run.steps()))
            : fmt::format("{}: {} steps in {} s",
                          run.is_exact()
                              ? "exact training"
                              : fmt::format("a fork, exact after step {}",
                                            number_text(number(run.start, "step"), "{:.0f}")),
                          format_count(run.steps()), number_text(run.train_seconds(), "{:.0f}")),
        " class=\"dim\"");
    out += "</div>\n";
  }
  return out + "</div>\n";
}

std::string warnings(const std::vector<RunRecord>& runs, const std::vector<std::string>& left_out) {
  std::string items;
  const auto add = [&](const std::string& who, const std::string& what, const std::string& advice) {
    items += fmt::format("<li><b>{}</b> {} <span class=\"dim\">{}</span></li>\n", escape_xml(who),
                         escape_xml(what), escape_xml(advice));
  };
  for (const std::string& reason : left_out) add("Left out:", reason, "");
  for (const RunRecord& run : runs) {
    for (const Finding& finding : findings(run, exact_twin(run, runs)))
      add(run.name + ":", finding.what, finding.advice);
    for (const std::string& message : run.warnings) add(run.name + " warned:", message, "");
    for (const std::string& gap : run.gaps) add(run.name + ":", gap + ".", "");
  }
  return items.empty()
             ? paragraph("Nothing conspicuous was found in these runs.")
             : "<div class=\"box warn\"><h3>Worth a look</h3>\n<ul>\n" + items + "</ul></div>\n";
}

std::string section_text(const PlotSection& section) {
  std::string out = fmt::format("<h2>{}</h2>\n", escape_xml(section.title));
  out += paragraph(section.text, " class=\"dim\"");
  for (const std::string& missing : section.missing) out += paragraph(missing, " class=\"dim\"");
  out += "<div class=\"grid\">\n";
  for (const Plot& plot : section.plots)
    out += fmt::format("<figure><figcaption><h3>{}</h3><p>{}</p></figcaption>\n{}</figure>\n",
                       escape_xml(plot.title), escape_xml(plot.hint), draw(plot));
  return out + "</div>\n";
}

}  // namespace

std::string report_page(const std::vector<RunRecord>& runs,
                        const std::vector<PlotSection>& sections,
                        const std::vector<std::string>& left_out) {
  std::string names;
  for (const RunRecord& run : runs) names += (names.empty() ? "" : ", ") + run.name;
  std::string out = fmt::format(
      "{3}\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{0} - vcas report</title>\n<style>{1}{2}</style>\n</head>\n<body>\n<h1>{0}</h1>\n",
      escape_xml(names), kStyle, plot_style(), kPageBegin);
  out += headline(runs);
  out += "<h2>Findings</h2>\n" + warnings(runs, left_out);
  std::vector<Row> rows = result_rows(runs);
  for (Row& row : cost_rows(runs)) rows.push_back(std::move(row));
  out += "<h2>Summary</h2>\n" + table(runs, rows);
  if (runs.size() > 1) out += differences(runs);
  for (const PlotSection& section : sections) out += section_text(section);
  return out + paragraph(version_line() + ", " + utc_time(), " class=\"dim\"") +
         "</body>\n</html>\n";
}

}  // namespace vcas
