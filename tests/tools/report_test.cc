// `vcas report`: pages from metrics, and what it says of incomplete ones.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>

#include "core/files.h"
#include "tests/support/catch.h"
#include "tests/tools/report_runs.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++found;
  return found;
}

// The places of the first curve's points, from left to right.
std::vector<double> abscissas(const std::string& svg) {
  std::smatch path;
  REQUIRE(std::regex_search(svg, path, std::regex("class=\"curve s0\" d=\"([^\"]*)\"")));
  const std::string d = path[1];
  std::vector<double> out;
  const std::regex place("[ML]([-0-9.]+) ");
  for (auto at = std::sregex_iterator(d.begin(), d.end(), place); at != std::sregex_iterator();
       ++at)
    out.push_back(std::stod((*at)[1]));
  return out;
}

}  // namespace

TEST_CASE("report: a comparison is one page without other files") {
  const TinyRun tiny;
  succeeded(run(tiny.path(), {"compare", "tiny.json", "--folder", "twins"}));
  const Outcome outcome = succeeded(run(tiny.path(), {"report", "twins", "--svg", "plots"}));
  CHECK(outcome.out.empty());
  CHECK(contains(outcome.err, "wrote twins/report.html ("));
  const std::string page = content(tiny.path() / "twins/report.html");
  CHECK(page.size() < 1'000'000);
  for (const char* outside : {"<script", "<link", "src=", "url(", "@import"})
    CHECK_FALSE(contains(page, outside));
  for (const char* plot : {"loss-by-step", "loss-by-second", "test-0-by-step", "test-1-by-second",
                           "gradient-norm", "seconds-by-phase", "saved-2", "kept-items-2",
                           "kept-rows-2", "variance-2", "gate-norm-2", "gate-share-2"}) {
    INFO(plot);
    CHECK(count(page, "id=\"" + std::string(plot) + "\"") == 1);
    CHECK(contains(content(tiny.path() / "plots" / (std::string(plot) + ".svg")), "</svg>"));
  }
  CHECK(count(page, "<svg class=\"plot\"") ==
        static_cast<std::size_t>(std::distance(fs::directory_iterator(tiny.path() / "plots"), {})));
  CHECK_FALSE(contains(page, "nan"));
  for (const char* row : {"seconds saved", "conversion: seconds over FLOPs", "begun", "version",
                          "final training loss", "method.type"})
    check_contains(page, {row, " %, of exact</td>"});
}

TEST_CASE("report: probes log the norms at gates") {
  const TinyRun tiny;
  const std::string controller = GENERATE("paper", "budget");
  succeeded(tiny.train({"run.folder=out", "method.controller=" + controller}));
  std::size_t probes = 0;
  for (const json& line : events_of(tiny.path() / "out/metrics.jsonl", "variance")) {
    ++probes;
    REQUIRE(line["gate_norm"].size() == 2);
    REQUIRE(line["gate_share"].size() == 2);
    for (const double norm : line["gate_norm"]) CHECK(norm > 0);
    for (const double share : line["gate_share"]) CHECK((share > 0.3 && share <= 1));
  }
  CHECK(probes >= 2);
}

TEST_CASE("report: seconds saved are those of the twin") {
  const Runs runs;
  runs.add("exact", exact_run().text());
  runs.add("vcas", RunText().text());
  succeeded(runs.report({"exact", "vcas", "--to", "page.html"}));
  const std::string page = content(runs.path() / "page.html");
  CHECK(contains(page, "<td>20.0 %, of exact</td>"));  // 2 s a step of 2.5
  CHECK(contains(page, "<td>0.67</td>"));              // .2 of .3
  check_contains(page, {"30.0 % of FLOPs and 20.0 % of seconds saved in 40 steps",
                        "test accuracy: last, best</th><td>0.4000, 0.4000</td>"});

  RunText other;
  other.start["config"]["model"]["type"] = "mlp";
  runs.add("vcas", other.text());
  succeeded(runs.report({"exact", "vcas", "--to", "page.html"}));
  const std::string apart = content(runs.path() / "page.html");
  CHECK_FALSE(contains(apart, ", of exact</td>"));
  check_contains(apart, {"The seconds saved are not known",
                         "model.type</th><td>&quot;vit&quot;</td><td>&quot;mlp&quot;</td>"});

  RunText threads, shorter;
  threads.start["threads"] = 2;
  shorter.steps = 30;
  for (const RunText& none : {threads, shorter}) {
    runs.add("vcas", none.text());
    succeeded(runs.report({"exact", "vcas", "--to", "page.html"}));
    CHECK_FALSE(contains(content(runs.path() / "page.html"), ", of exact</td>"));
  }
}

TEST_CASE("report: a fork is no exact twin, and its headline says where it began") {
  const Runs runs;
  RunText fork = exact_run(), older = exact_run();
  fork.start["step"] = older.start["step"] = 30;
  fork.start["fork_of"] = "vcas/checkpoint-30";
  older.flops = 0.003;  // by a program that noted no forks
  runs.add("vcas", RunText().text());
  runs.add("exact", exact_run().text());
  for (const RunText& tail : {fork, older}) {
    runs.add("tail", tail.text());
    succeeded(runs.report({"tail", "vcas", "--to", "page.html"}));
    const std::string page = content(runs.path() / "page.html");
    check_contains(page, {"a fork, exact after step 30: 40 steps in 100 s", ", estimated</td>"});
    CHECK_FALSE(contains(page, "exact training: "));
    succeeded(runs.report({"tail", "vcas", "exact", "--to", "page.html"}));
    CHECK(contains(content(runs.path() / "page.html"), "<td>20.0 %, of exact</td>"));
  }
}

TEST_CASE("report: a run that went on elsewhere is no twin and has none") {
  const Runs runs;
  const auto resumed = [](RunText begun, const char* key, const json& value) {
    RunText later = begun;
    later.start[key] = value;
    begun.ends = false;
    return begun.text() + later.text();
  };
  const auto has_twin = [&] {
    succeeded(runs.report({"exact", "vcas", "--to", "page.html"}));
    return contains(content(runs.path() / "page.html"), ", of exact</td>");
  };
  runs.add("exact", exact_run().text());
  for (const auto& [key, value] : std::vector<std::pair<const char*, json>>{
           {"host", "there"}, {"device", "cuda"}, {"threads", 2}, {"ranks", 4}}) {
    CAPTURE(key);
    runs.add("vcas", resumed(RunText(), key, value));
    CHECK_FALSE(has_twin());
  }
  runs.add("vcas", resumed(RunText(), "threads", 1));
  CHECK(has_twin());
  runs.add("exact", resumed(exact_run(), "threads", 2));
  CHECK_FALSE(has_twin());
}

TEST_CASE("report: seconds of probes are not told from steps that lack some") {
  const Runs runs;
  RunText open;
  open.ends = false;
  runs.add("each", open.text());
  open.every = 2;
  runs.add("some", open.text());
  succeeded(runs.report({"each", "some", "--to", "page.html"}));
  const std::string page = content(runs.path() / "page.html");
  check_contains(page,
                 {"probe</th><td>0.0</td><td>–</td>", "forward</th><td>40.0</td><td>40.0</td>"});
}

TEST_CASE("report: a rival is no exact training, and costs are no measures") {
  const Runs runs;
  RunText rival;
  rival.start["config"]["method"] = {{"type", "uniform"}, {"keep", 0.5}};
  runs.add("exact", exact_run().text());
  runs.add("rival", rival.text());
  succeeded(runs.report({"exact", "rival"}));
  const std::string page = content(runs.path() / "exact/report.html");
  CHECK(contains(page, "30.0 % of FLOPs and 20.0 % of seconds saved in 40 steps"));
  CHECK(count(page, "exact training: ") == 1);
  CHECK(contains(page, "<td>uniform</td>"));
  CHECK_FALSE(contains(page, "train_flops"));
}

TEST_CASE("report: lists that differ are told, and the measure that chose is shown") {
  const Runs runs;
  RunText listed;
  listed.start["config"]["method"]["act_ratio"] = {0.5, 0.25};
  listed.best = {{"best_step", 40}, {"best_loss", 1.0}};
  RunText plain;
  plain.start["config"]["method"]["act_ratio"] = json::array();
  runs.add("listed", listed.text());
  runs.add("plain", plain.text());
  succeeded(runs.report({"listed", "plain"}));
  const std::string page = content(runs.path() / "listed/report.html");
  CHECK(contains(page, "method.act_ratio</th><td>[0.5,0.25]</td><td>[]</td>"));
  CHECK(count(page, "<span class=\"big\">1</span>test loss") == 2);
}

TEST_CASE("report: a run is named as its folder, and one that goes on is told") {
  const Runs runs;
  RunText open;
  open.ends = false;
  runs.add("open", open.text());
  const vcas::FolderLock lock(runs.path() / "open");
  const Outcome outcome = succeeded(run(runs.path() / "open", {"report", "."}));
  CHECK(contains(outcome.err, "its last logged step is 40 of 40; it is still going on\n"));
  CHECK(contains(content(runs.path() / "open/report.html"), "<title>open"));
}

TEST_CASE("report: what is missing is left out, and said") {
  const Runs runs;
  RunText torn;
  torn.ends = false;
  torn.old = true;
  std::string text = torn.text();
  text.resize(text.size() - 20);
  runs.add("torn", text);
  runs.add("good", RunText().text());
  runs.add("empty", "");
  runs.add("bad", "{\"event\":\"start\",\"step\":0}\nnonsense\n{\"event\":\"end\",\"step\":1}\n");
  fs::create_directories(runs.path() / "none");
  const Outcome outcome = succeeded(runs.report({"good", "torn", "empty", "bad", "none", "good/"}));
  const std::string page = content(runs.path() / "good/report.html");
  for (const char* reason :
       {"empty/metrics.jsonl: holds no event", "bad/metrics.jsonl:2: not a JSON object with a step",
        "none: not the folder of a run, which has metrics.jsonl", "good: was named twice",
        "the last line of metrics.jsonl is cut, and left out",
        "the run has not ended: its last logged step is 40 of 40",
        "torn: its metrics have no gate_norm and gate_share"}) {
    INFO(reason);
    CHECK(contains(outcome.err, reason));
    CHECK(contains(page, reason));
  }
  CHECK(contains(page, "40 of 40; it has saved nothing: train again with --overwrite"));
  fs::create_directories(runs.path() / "torn/checkpoint-20");
  write_text(runs.path() / "torn/checkpoint-20/manifest.json", "{}");
  CHECK(contains(runs.report({"torn"}).err, "40 of 40; vcas-train --resume goes on with it\n"));
  write_text(runs.path() / "compare.json", "{}");
  runs.add("vcas/seed0", text);
  for (const char* run : {"torn", "vcas/seed0"})
    CHECK(contains(runs.report({run}).err, "40 of 40; vcas compare --resume goes on with it\n"));
  CHECK(contains(page, "id=\"gate-norm-1\""));
  CHECK_FALSE(contains(page, "id=\"gate-norm-2\""));

  const auto fails = [&](const std::vector<std::string>& arguments, int code,
                         const std::string& why) {
    check_failure(runs.report(arguments), code, {why});
  };
  fails({"empty", "none"}, 65, "error: empty/metrics.jsonl: holds no event\n  hint: ");
  fails({"none"}, 66,
        "error: none: not the folder of a run, which has metrics.jsonl\n  hint: name");
  fails({"good", "typo"}, 66, "error: typo: there is no such folder\n  hint: name the folder of");
  fails({"good/metrics.jsonl"}, 66, "error: good/metrics.jsonl: is no folder\n");
  fails({}, 2, "runs is required");
  const std::string too_long(254, 'x');  // with ".tmp"
  for (const char* option : {"--to", "--csv"})
    for (const std::string& place : {std::string("good/report.html/x"), too_long})
      fails({"good", option, place}, 73,
            "\n  hint: choose another place for " + std::string(option));
  fails({"good", "--csv", "good/./report.html"}, 2,
        "error: good/./report.html: both --csv and the page\n"
        "  hint: choose another place for --csv\n");
  for (int i = 0; i < 9; ++i) runs.add("many/" + std::to_string(i), RunText().text());
  std::vector<std::string> many;
  for (int i = 0; i < 9; ++i) many.push_back("many/" + std::to_string(i));
  fails(many, 2, "error: a report shows 8 runs at most, in as many colours; got 9\n  hint: make");
}

TEST_CASE("report: of more seeds than a page shows, the first of each variant is on it") {
  const Runs runs;
  nlohmann::json comparison = {{"runs", nlohmann::json::array()}};
  for (const char* variant : {"a", "b"})
    for (int seed = 0; seed < 5; ++seed) {
      const std::string name = fmt::format("{}/seed{}", variant, seed);
      runs.add("c/" + name, RunText().text());
      comparison["runs"].push_back({{"name", name}});
    }
  write_text(runs.path() / "c/compare.json", comparison.dump());
  const Outcome outcome = succeeded(runs.report({"c", "--csv", "c.csv"}));
  CHECK(contains(outcome.err, "left out: b/seed4: the page has room for 8 runs\n"));
  CHECK(count(outcome.err, "left out: ") == 8);
  CHECK(contains(content(runs.path() / "c.csv"), "b/seed4"));
  // Runs that are named are all wanted.
  std::vector<std::string> named;
  for (int seed = 0; seed < 9; ++seed) {
    named.push_back(fmt::format("loop/seed{}", seed));
    runs.add(named.back(), RunText().text());
  }
  CHECK(runs.report(named).code == 2);
}

TEST_CASE("report: settings are those of the last start") {
  const Runs runs;
  RunText before, after;
  before.start["config"]["train"]["log_every"] = 1;
  after.start["config"]["train"]["log_every"] = 100;
  runs.add("run", before.text() + after.text());
  runs.add("other", before.text());
  succeeded(runs.report({"run", "other"}));
  CHECK(contains(content(runs.path() / "run/report.html"), "train.log_every"));
}

TEST_CASE("report: metrics of any content make no markup") {
  const Runs runs;
  RunText hostile;
  const std::string tag = "<script>alert('x')</script>&\"";
  hostile.start["linears"] = {tag + ".a", tag + ".b"};
  hostile.start["host"] = tag;
  hostile.start["config"]["model"]["type"] = tag;
  std::string text = hostile.text();
  text += json({{"event", "warning"}, {"step", 40}, {"message", tag}}).dump() + "\n";
  // Fields that are not of their types.
  text += "{\"event\":\"train\",\"step\":41,\"loss\":\"high\",\"seconds\":3}\n";
  text += "{\"event\":\"variance\",\"step\":41,\"act_ratio\":{},\"weight_ratio\":[null,\"a\"]}\n";
  text += "{\"event\":[],\"step\":41}\n";
  runs.add("<b>", text);
  runs.add("plain", RunText().text());
  succeeded(runs.report({"<b>", "plain", "--svg", "plots"}));
  const std::string page = content(runs.path() / "<b>/report.html");
  CHECK_FALSE(contains(page, "<script"));
  CHECK_FALSE(contains(page, "</span><b>"));
  check_contains(page, {"&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;", "&lt;b&gt;"});
  for (const auto& file : fs::directory_iterator(runs.path() / "plots"))
    CHECK_FALSE(contains(content(file.path()), "<script"));
}

TEST_CASE("report: findings say what to do") {
  const Runs runs;
  const auto page_of = [&](const RunText& text) {
    runs.add("run", text.text());
    succeeded(runs.report({"run"}));
    return content(runs.path() / "run/report.html");
  };
  RunText text;
  CHECK_FALSE(contains(page_of(text), "were clipped"));
  text.norm = 3;
  check_contains(page_of(text), {"40 of 40 logged gradients were clipped",
                                 "Set optimizer.max_gradient_norm (2) above the usual norm"});
  CHECK_FALSE(contains(page_of(text), "near 1 (items"));
  text.ratio = 0.95;
  check_contains(page_of(text), {"The last keep ratios are near 1 (items 0.95, rows 0.95)",
                                 "The seconds saved are not known"});
  text.start["config"]["optimizer"]["clip"] = "predicted";
  CHECK_FALSE(contains(page_of(text), "were clipped"));
  text.start["config"]["optimizer"]["clip"] = "norm";
  for (const auto& [factor, clipped] : {std::pair{0.0, false}, {0.5, true}, {1.0, false}}) {
    text.clip_factor = factor;
    CHECK(contains(page_of(text), "were clipped") == clipped);
  }
  text.clip_factor = nullptr;
  text.start["config"]["method"]["type"] = "exact";
  CHECK_FALSE(contains(page_of(text), "were clipped"));

  RunText poor, exact = exact_run();
  poor.seconds = 2.4;
  poor.best = {{"flops_saved", 0.4}};  // of the end, to which no step may be near
  for (const int every : {1, 100}) {
    CAPTURE(every);
    poor.every = exact.every = every;
    runs.add("exact", exact.text());
    runs.add("run", poor.text());
    succeeded(runs.report({"run", "exact"}));
    CHECK(contains(content(runs.path() / "run/report.html"),
                   "40.0 % of FLOPs saved are only 4.0 % of seconds: a conversion of 0.10."));
  }
}

TEST_CASE("report: a run that is worse than its exact twin is told") {
  const Runs runs;
  const auto finds = [&](const json& own, const json& exact, const char* text) {
    RunText run, twin = exact_run();
    run.best = own;
    twin.best = exact;
    runs.add("run", run.text());
    runs.add("exact", twin.text());
    succeeded(runs.report({"run", "exact"}));
    return contains(content(runs.path() / "run/report.html"), text);
  };
  // Chance among 64 items makes 0.18.
  const char* accuracy = "best_accuracy is 0.5600, and 0.7500 of the exact twin.";
  CHECK(finds({{"best_accuracy", 0.56}, {"best_step", 1}}, {{"best_accuracy", 0.75}}, accuracy));
  CHECK(finds({{"best_loss", 1.1}}, {{"best_loss", 1.0}},
              "best_loss is 1.1000, and 1.0000 of the exact twin."));
  const char* any = "of the exact twin.";
  CHECK_FALSE(finds({{"best_accuracy", 0.58}, {"best_step", 1}},
                    {{"best_accuracy", 0.75}, {"best_step", 9}}, any));
  // Correlations differ twice as much by chance, and F1 by how rare its class is.
  CHECK(finds({{"best_matthews", 0.3}}, {{"best_matthews", 0.7}}, any));
  CHECK_FALSE(finds({{"best_matthews", 0.4}}, {{"best_matthews", 0.7}}, any));
  CHECK_FALSE(finds({{"best_f1", 0.1}}, {{"best_f1", 0.9}}, any));
  CHECK_FALSE(finds({{"best_loss", 1.04}}, {{"best_loss", 1.0}}, any));
  CHECK_FALSE(finds({{"best_f1", 0.1}}, {{"best_accuracy", 0.9}}, any));
}

TEST_CASE("report: draws of rows that add more than Eq. 3 are told") {
  const Runs runs;
  RunText text;
  for (const auto& [factor, told] : {std::pair{1.9, false}, {2.6, true}}) {
    text.probed["row_factor"] = {0.5, factor};
    runs.add("run", text.text());
    succeeded(runs.report({"run"}));
    CHECK(contains(content(runs.path() / "run/report.html"),
                   "Draws of rows add up to 2.6 times as much variance as Eq. 3 says") == told);
  }
  text.start["config"]["method"]["selection"] = "bernoulli";
  runs.add("run", text.text());
  succeeded(runs.report({"run"}));
  CHECK_FALSE(contains(content(runs.path() / "run/report.html"), "Draws of rows"));
}

TEST_CASE("report: the budget is that of what is sampled") {
  const Runs runs;
  RunText text;
  json& method = text.start["config"]["method"];
  method["tau_w"] = 0.04;
  const auto svg_of = [&](const json& probed) {
    text.probed = probed;
    runs.add("run", text.text());
    succeeded(runs.report({"run", "--svg", "plots"}));
    return content(runs.path() / "plots/variance-1.svg");
  };
  const auto is_near_budget = [](const std::string& svg) {
    std::smatch curve, level;
    REQUIRE(std::regex_search(svg, curve, std::regex("class=\"curve s[01]\" d=\"M\\S+ ([0-9.]+)")));
    REQUIRE(std::regex_search(svg, level, std::regex("class=\"level\" d=\"M\\S+ ([0-9.]+)")));
    return curve[1] == level[1] && contains(svg, ">budget</text>") &&
           count(svg, "class=\"level\"") == 1;
  };
  CHECK(count(svg_of(json::object()), "class=\"level\"") == 2);
  for (const auto& [sample, act, weight] :
       {std::tuple{"items", 0.025, 0.0}, std::tuple{"rows", 0.0, 0.04}}) {
    CAPTURE(sample);
    method["sample"] = sample;
    CHECK(is_near_budget(svg_of({{"v_act", 10 * act}, {"v_w", 10 * weight}})));
    CHECK(is_near_budget(svg_of({{"spent_act", act}, {"spent_w", weight}, {"spent_f", 0.0}})));
  }
}

TEST_CASE("report: a long run is thinned to what the eye can see") {
  const Runs runs;
  RunText text;
  text.steps = 40'000;
  runs.add("long", text.text());
  succeeded(runs.report({"long", "--svg", "plots"}));
  CHECK(fs::file_size(runs.path() / "long/report.html") < 1'000'000);
  const std::string svg = content(runs.path() / "plots/loss-by-step.svg");
  const std::size_t begin = svg.find("class=\"curve s0\"");
  const std::string path = svg.substr(begin, svg.find("/>", begin) - begin);
  CHECK(count(path, "L") == 199);
  CHECK(count(path, "M") == 1);
  CHECK(contains(svg, "class=\"band f0\""));
  CHECK(contains(content(runs.path() / "long/report.html"), "the mean of neighbouring steps"));
}

TEST_CASE("report: evaluations lie at their own seconds, wherever steps were logged") {
  const Runs runs;
  RunText text;
  text.every = 25;
  runs.add("run", text.text());
  const auto places = [&] {
    succeeded(runs.report({"run", "--svg", "plots"}));
    return abscissas(content(runs.path() / "plots/test-0-by-second.svg"));
  };
  std::vector<double> x = places();  // of 20, 40, 60 and 80 seconds
  REQUIRE(x.size() == 4);
  for (std::size_t i = 1; i < x.size(); ++i)
    CHECK(std::abs(x[i] - x[i - 1] - (x[3] - x[0]) / 3) <= 0.2);  // the places have one decimal
  // Older programs noted no seconds there.
  std::string old;
  for (json line : vcas::read_metrics(runs.path() / "run/metrics.jsonl")) {
    if (line["event"] == "eval") line.erase("train_seconds");
    old += line.dump() + "\n";
  }
  runs.add("run", old);
  x = places();
  CHECK((x[0] == x[1] && x[1] < x[2] && x[2] == x[3]));
}

TEST_CASE("report: a replaced run takes its report along") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out"}));
  succeeded(run(tiny.path(), {"report", "out"}));
  REQUIRE(fs::exists(tiny.path() / "out/report.html"));
  succeeded(tiny.train({"run.folder=out", "--overwrite"}));
  CHECK_FALSE(fs::exists(tiny.path() / "out/report.html"));
}
