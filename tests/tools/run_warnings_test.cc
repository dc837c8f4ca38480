#include <nlohmann/json.hpp>

#include "core/metrics.h"
#include "tests/support/catch.h"
#include "tests/tools/program.h"

TEST_CASE("steps that are clipped, most of them, are worth a warning") {
  const TinyRun tiny;
  const auto warnings = [&](const std::vector<std::string>& settings) {
    const Outcome outcome = succeeded(
        tiny.train(with({"run.folder=out", "run.overwrite=true", "train.steps=120"}, settings)));
    std::vector<std::string> messages;
    for (const nlohmann::json& line : vcas::read_metrics(tiny.path() / "out/metrics.jsonl"))
      if (line["event"] == "warning" && contains(line["message"], "max_gradient_norm")) {
        messages.push_back(line["message"]);
        CHECK(
            contains(outcome.err, "warning: " + messages.back() +
                                      "\n  hint: set optimizer.clip=predicted, or a norm above the "
                                      "usual one: docs/sampling.md, \"Clipping\"\n"));
      }
    return messages;
  };
  const auto clipped = warnings({"optimizer.max_gradient_norm=1e-3"});
  REQUIRE(clipped.size() == 1);
  CHECK(
      contains(clipped[0],
               "100 of 100 steps had a gradient longer than optimizer.max_gradient_norm (0.001)"));
  CHECK(warnings({"optimizer.max_gradient_norm=1000"}).empty());
  CHECK(warnings({}).empty());
  CHECK(warnings({"optimizer.max_gradient_norm=1e-3", "method.type=exact"}).empty());
  CHECK(warnings({"optimizer.max_gradient_norm=1e-3", "optimizer.clip=predicted"}).empty());
  // Steps of a fork count from its beginning.
  succeeded(tiny.train({"run.folder=old", "train.steps=300"}));
  CHECK(contains(run(tiny.path(), {"vcas-train", "--resume", "old", "--resume-mode=fork",
                                   "train.steps=520", "optimizer.max_gradient_norm=1e-3"})
                     .err,
                 "warning: 100 of 100 steps had a gradient longer"));
}

TEST_CASE("a run that is too short for a probe says so") {
  const TinyRun tiny;
  const Outcome outcome = succeeded(tiny.train(
      {"run.folder=out", "train.steps=30", "method.update_every=0", "method.repeats=31"}));
  CHECK(contains(outcome.err,
                 "warning: a probe takes 31 steps and the run has 30: all keep ratios stay 1 and "
                 "VCAS saves nothing\n"
                 "  hint: train for more steps, or set method.type=exact\n"));
}

TEST_CASE("a warm-up that the run never leaves is worth a warning") {
  const TinyRun tiny;
  const auto warns = [&](const std::string& warmup) {
    const Outcome outcome =
        succeeded(tiny.train({"run.folder=out", "run.overwrite=true", "train.steps=4", warmup}));
    return contains(outcome.err,
                    "warning: the warm-up takes 4 steps and the run 4: the learning rate never "
                    "reaches schedule.learning_rate\n"
                    "  hint: lower schedule.warmup_steps or schedule.warmup_ratio\n");
  };
  CHECK(warns("schedule.warmup_steps=4"));
  CHECK(!warns("schedule.warmup_steps=3"));
  CHECK(!warns("schedule.warmup_steps=0"));
  CHECK(warns("schedule.warmup_ratio=1"));
  CHECK(!warns("schedule.warmup_ratio=0.75"));
}

TEST_CASE("many items that no batch of an epoch has are worth a warning") {
  const TinyRun tiny;
  const auto validate = [&](const std::string& items) {
    return tiny.train({"--validate", "train.batch_size=16", "data.synthetic.items=" + items}).err;
  };
  CHECK(validate("19") ==
        "warning: 3 of 19 items, others each time, are left out of an epoch: it has whole batches "
        "of 16 (train.batch_size)\n");
  CHECK(validate("160").empty());
  CHECK(validate("161").empty());
}

TEST_CASE("micro-batches of one item run without probes, and say so") {
  const TinyRun tiny;
  const std::string setting = GENERATE("train.micro_batch=1", "train.batch_size=1");
  const std::string probe = GENERATE("method.probe=in_place", "method.probe=separate");
  const Outcome outcome = succeeded(tiny.train({setting, probe, "run.folder=out"}));
  check_contains(outcome.err,
                 {"warning: probes need two items in a micro-batch and there is one: all keep "
                  "ratios stay 1 and VCAS saves nothing\n"
                  "  hint: raise train.micro_batch or train.batch_size, or set "
                  "method.type=exact\n",
                  "  method   vcas   no probes: exact training\n"});
  int warnings = 0;
  for (const nlohmann::json& line : vcas::read_metrics(tiny.path() / "out/metrics.jsonl")) {
    CHECK(line["event"] != "variance");
    warnings += line["event"] == "warning";
  }
  CHECK(warnings == 1);
  succeeded(tiny.train({setting, "method.type=exact", "run.folder=exact"}));
  CHECK(tiny.weights("out") == tiny.weights("exact"));
}

TEST_CASE("a run whose ratios stay near 1 is told so, once") {
  const TinyRun tiny;
  const Outcome outcome =
      succeeded(tiny.train({"run.folder=out", "method.controller=budget", "method.tau_act=1e-9",
                            "method.tau_w=1e-9", "model.pooling=mean"}));
  const std::string text = "warning: The last keep ratios are near 1 (items ";
  const std::size_t first = outcome.err.find(text);
  CHECK(first != std::string::npos);
  CHECK(outcome.err.find(text, first + 1) == std::string::npos);
}

TEST_CASE("settings that nothing reads are worth a warning") {
  const TinyRun tiny;
  const auto warnings = [&](std::vector<std::string> settings) {
    settings.push_back("--validate");
    return succeeded(tiny.train(settings)).err;
  };
  CHECK(warnings({}).empty());
  const std::string budget = " has no effect: method.controller is \"budget\"\n";
  CHECK(warnings({"method.controller=budget", "method.s_step=0.5", "method.weight_multiplier=0.5",
                  "method.ratio_smoothing=0.5", "method.cost=flops"}) ==
        "warning: method.s_step" + budget + "warning: method.weight_multiplier" + budget +
            "warning: method.ratio_smoothing" + budget);
  const std::string paper = " has no effect: method.controller is \"paper\"\n";
  CHECK(warnings({"method.controller=paper", "method.cost=time", "method.budget=absolute"}) ==
        "warning: method.budget" + paper + "warning: method.cost" + paper);
  const std::string forward = " has no effect: method.forward is false\n";
  CHECK(warnings({"method.tau_f=0.5", "method.forward_ratio=0.5", "method.forward_floor=0.5"}) ==
        "warning: method.tau_f" + forward + "warning: method.forward_ratio" + forward +
            "warning: method.forward_floor" + forward);
  CHECK(warnings({"method.forward=true", "method.forward_ratio=0.5"}).empty());
  const std::string given = " has no effect: method.act_ratio is given\n";
  CHECK(warnings({"method.act_ratio=[0.5]", "method.tau_act=0.5", "method.update_every=3",
                  "method.s_step=0.01", "method.weight_multiplier=0.95", "method.cost=time"}) ==
        "warning: method.tau_act" + given + "warning: method.cost" + given +
            "warning: method.update_every" + given);
  CHECK(warnings({"method.sample=items", "method.tau_w=0.2"}) ==
        "warning: method.tau_w has no effect: method.sample is \"items\"\n");
  CHECK(warnings({"method.sample=rows", "method.tau_act=0.2"}) ==
        "warning: method.tau_act has no effect: method.sample is \"rows\"\n");
  const std::vector<std::string> ranked = {"method.type=selective_backprop",
                                           "method.selection=rank"};
  CHECK(warnings(ranked).empty());
  CHECK(warnings({ranked[0], ranked[1], "method.history=5"}) ==
        "warning: method.history has no effect: method.selection is \"rank\"\n");
  CHECK(warnings({"model.new_classifier=true"}) ==
        "warning: model.new_classifier has no effect: model.pretrained is empty\n");
  const std::string image = "data.synthetic.shape=[1,8,8]";
  CHECK(warnings({image, "data.image.crop_ratio=[1,2]", "data.image.fit=squeeze",
                  "data.image.interpolation=bilinear"}) ==
        "warning: data.image.crop_ratio has no effect: data.image.crop_scale is empty\n"
        "warning: data.image.fit has no effect: data.image.size is 0\n"
        "warning: data.image.interpolation has no effect: data.image.size is 0\n");
  CHECK(warnings({image, "data.image.crop_scale=[0.5,1]", "data.image.crop_ratio=[1,2]",
                  "data.image.interpolation=bilinear"})
            .empty());
  for (const char* key : {"size", "mean"})
    CHECK(contains(warnings({"data.synthetic.shape=[16]", "model.type=mlp", "model.dropout=0",
                             std::string("data.image.") + key + (key[0] == 's' ? "=8" : "=[0.5]")}),
                   std::string("warning: data.image.") + key +
                       " has no effect: data.synthetic.shape is one of vectors\n"));
  CHECK(warnings({"data.folder=x"}) ==
        "warning: data.folder has no effect: data.type is \"synthetic\"\n");
  CHECK(warnings({"method.echo=2"}) ==
        "warning: method.echo has no effect: the model has no BatchNorm\n");
  const std::string resnet = warnings({"model.type=resnet", "model.stages=[1]", "model.widths=[16]",
                                       "model.stem=cifar", "model.group_width=8", "method.echo=2"});
  CHECK(contains(resnet, "warning: model.group_width has no effect: model.norm is \"batch\"\n"));
  CHECK_FALSE(contains(resnet, "method.echo"));
  CHECK(warnings({"optimizer.name=sgd", "optimizer.nesterov=true"}).empty());
  CHECK(warnings({"optimizer.name=sgd", "optimizer.nesterov=true", "optimizer.momentum=0"}) ==
        "warning: optimizer.nesterov has no effect: optimizer.momentum is 0\n");
  CHECK(warnings({"optimizer.clip=predicted"}) ==
        "warning: optimizer.clip has no effect: optimizer.max_gradient_norm is 0\n");
  const std::string steps = "warning: train.epochs has no effect: train.steps is given\n";
  CHECK(warnings({"--epochs", "7"}) == steps);
  CHECK(warnings({"--epochs", "3"}) == steps);  // which is the default
  CHECK(warnings({"train.steps=60", "--epochs", "7"}) == steps);
  CHECK(warnings({"--epochs", "7", "train.steps=60"}) == steps);
  CHECK(warnings({"train.steps=60"}).empty());
  CHECK(warnings({"--epochs", "7", "train.steps=0"}).empty());
  succeeded(tiny.train({"train.steps=1", "run.folder=out"}));
  CHECK(run(tiny.path(), {"vcas-train", "out/config.json", "--validate"}).err.empty());
}
