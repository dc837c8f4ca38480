#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tests/support/check_error.h"
#include "tests/support/check_sampling.h"
#include "tests/support/check_slope.h"

using namespace vcas;

namespace {

constexpr std::int64_t kVocabulary = 11, kClasses = 3;

ModelOptions tiny_bert(const std::string& head = "classification",
                       const std::string& pooling = "first", double dropout = 0) {
  std::vector<std::string> settings = {"type=bert",     "width=8",      "depth=2",
                                       "heads=2",       "ffn_ratio=2",  "max_positions=8",
                                       "vocabulary=11", "head=" + head, "pooling=" + pooling};
  for (const char* key : {"dropout", "attention_dropout"})
    settings.push_back(fmt::format("{}={}", key, dropout));
  return read_model_options(settings);
}

struct Kind {
  std::string head, pooling;
};
const Kind kKinds[] = {{"classification", "first"},
                       {"classification", "mean"},
                       {"regression", "first"},
                       {"mlm", "first"}};

}  // namespace

TEST_CASE("the gradient of a BERT is the slope of its loss", "[model][bert]") {
  for (const auto& [head, pooling] : kKinds)
    for (const double dropout : {0.0, 0.2}) {
      const ModelOptions options = tiny_bert(head, pooling, dropout);
      ModelFixture f(options, {}, kClasses, 5, DType::kF64);
      enlarge_weights(f.model->graph.parameters(), 20);
      INFO(head << " " << pooling);
      check_slope(f, 1e-7);
    }
}

TEST_CASE("the mean of many sampled gradients of a BERT is the exact one", "[model][bert][law]") {
  for (const auto& [head, pooling] : kKinds) {
    INFO(head << " " << pooling);
    ModelFixture f(tiny_bert(head, pooling), {}, kClasses, 8, DType::kF64);
    enlarge_weights(f.model->graph.parameters(), 20);
    check_mean(f, "bert.encoder.layer.");
  }
}

TEST_CASE("ratios of one give the exact gradient of a BERT bit for bit", "[model][bert][law]") {
  for (const auto& [head, pooling] : kKinds) {
    ModelFixture f(tiny_bert(head, pooling), {}, kClasses, 8);
    check_ratios_of_one(f);
  }
}

TEST_CASE("sampled weight gradients of a BERT over all rows are the exact ones",
          "[model][bert][law]") {
  const double dropout = GENERATE(0.0, 0.2);
  for (const auto& [head, pooling] : kKinds) {
    const ModelOptions options = tiny_bert(head, pooling, dropout);
    ModelFixture f(options, {}, kClasses, 8, DType::kF64);
    enlarge_weights(f.model->graph.parameters(), 10);
    Exec exec = f.forward();
    const auto exact = f.gradient(exec, f.context(SamplingMode::kItems, 0.5, 1));
    const auto drawn =
        f.gradient(exec, f.context(SamplingMode::kItemsAndRows, 0.5, std::nextafter(1, 0)));
    for (std::size_t i = 0; i < exact.size(); ++i) CHECK(std::abs(drawn[i] - exact[i]) < 1e-13);
  }
}

TEST_CASE("the last block of [CLS] alone is that of all rows", "[model][bert]") {
  ModelFixture all(tiny_bert("classification", "mean"), {}, kClasses, 8);
  ModelFixture first(tiny_bert(), {}, kClasses, 8);
  enlarge_weights(all.model->graph.parameters(), 20);
  // Query, key and value are one matrix in the one model, two in the other.
  const Parameters& from = all.model->graph.parameters();
  for (const Parameter& to : first.model->graph.parameters().list()) {
    std::string name = to.name;
    std::int64_t skipped = 0;
    for (const auto& [part, rows] : {std::pair{".self.query.", 0}, {".self.key_value.", 8}})
      if (const std::size_t at = name.find(part); at != std::string::npos) {
        name.replace(at, std::string(part).size(), ".self.qkv.");
        skipped = rows * (to.shape.rank() == 2 ? 8 : 1);
      }
    const auto found = std::find_if(from.list().begin(), from.list().end(),
                                    [&](const Parameter& p) { return p.name == name; });
    if (found == from.list().end()) {
      CHECK(name.starts_with("bert.pooler."));
      continue;
    }
    std::copy_n(found->value.ptr<float>() + skipped, to.value.elements(), to.value.ptr<float>());
  }
  all.forward();
  first.forward();
  const Batch batch = random_text(8, kVocabulary, kClasses);
  const auto rows = wide_numbers(all.model->graph.tensor(all.model->hidden));
  const auto cls = wide_numbers(first.model->graph.tensor(first.model->hidden));
  REQUIRE(cls.size() == 8 * 8);
  for (std::size_t i = 0; i < cls.size(); ++i)
    CHECK(std::abs(cls[i] - rows[static_cast<std::size_t>(batch.offsets[i / 8]) * 8 + i % 8]) <=
          1e-6);
}

TEST_CASE("the items of a packed batch do not see each other", "[model][bert]") {
  for (const auto& [head, pooling] : kKinds) {
    const ModelOptions options = tiny_bert(head, pooling);
    ModelFixture f(options, {}, kClasses, 6, DType::kF64);
    enlarge_weights(f.model->graph.parameters(), 20);
    Exec exec = f.forward();
    const auto together = wide_numbers(f.model->graph.tensor(f.model->logits));
    const Batch batch = random_text(6, kVocabulary, kClasses);
    std::vector<double> alone;
    for (std::int64_t n = 0; n < 6; ++n) {
      f.model->load(*f.ops, batch, n, 1);
      f.model->graph.forward(exec);
      const auto logits = wide_numbers(f.model->graph.tensor(f.model->logits));
      alone.insert(alone.end(), logits.begin(), logits.end());
    }
    REQUIRE(alone.size() == together.size());
    for (std::size_t i = 0; i < alone.size(); ++i) CHECK(std::abs(alone[i] - together[i]) <= 1e-12);
  }
}

TEST_CASE("only masked positions reach the vocabulary", "[model][bert]") {
  ModelFixture f(tiny_bert("mlm"), {}, kClasses, 8);
  const Batch batch = random_text(8, kVocabulary, kClasses);
  const auto masked = static_cast<std::int64_t>(batch.masked_rows.size());
  CHECK(masked == 8);
  CHECK(f.model->loss_terms(batch, 0, 8) == masked);
  CHECK(f.model->loss_terms(batch, 1, 1) == 0);
  CHECK(f.model->graph.tensor(f.model->logits).shape == Shape{masked, kVocabulary});
  CHECK(f.model->graph.tensor(f.model->loss).rows() == masked);
  // An item without any is legal, and gives no gradient.
  f.model->load(*f.ops, batch, 1, 1);
  Exec exec = f.forward();
  PassSettings context = f.context(SamplingMode::kExact, 1, 1);
  context.adds_gradients = GENERATE(true, false);
  const auto gradient = f.gradient(exec, context);
  CHECK(std::all_of(gradient.begin(), gradient.end(), [](double g) { return g == 0; }));
}

TEST_CASE("logits do not depend on labels, which may be unknown", "[model][bert]") {
  for (const std::string head : {"classification", "regression"}) {
    ModelFixture f(tiny_bert(head), {}, kClasses, 4);
    Exec exec = f.forward();
    const auto known = wide_numbers(f.model->graph.tensor(f.model->logits));
    Batch batch = random_text(4, kVocabulary, kClasses);
    batch.labels.assign(4, -1);
    batch.targets.clear();
    f.model->load(*f.ops, batch, 0, 4);
    f.model->graph.forward(exec);
    CHECK(wide_numbers(f.model->graph.tensor(f.model->logits)) == known);
  }
}

TEST_CASE("text that does not fit a BERT is refused", "[model][bert]") {
  ModelFixture f(tiny_bert(), {}, kClasses, 4);
  Batch batch = random_text(4, kVocabulary, kClasses);
  batch.tokens[2] = kVocabulary;
  CHECK_THROWS_WITH(f.model->load(*f.ops, batch, 0, 4),
                    ContainsSubstring("token 11") && ContainsSubstring("the model knows 11"));
  batch.tokens[2] = -1;
  CHECK_THROWS_WITH(f.model->load(*f.ops, batch, 0, 4), ContainsSubstring("token -1"));
  batch = random_text(4, kVocabulary, kClasses);
  batch.token_types[3] = 2;
  CHECK_THROWS_WITH(f.model->load(*f.ops, batch, 0, 4),
                    ContainsSubstring("text type 2, and the model knows 2"));
  batch = random_text(4, kVocabulary, kClasses);
  batch.tokens.insert(batch.tokens.end(), 9, 1);
  batch.token_types.insert(batch.token_types.end(), 9, 0);
  batch.offsets.back() += 9;
  check_error([&] { f.model->load(*f.ops, batch, 0, 4); }, ExitCode::kBadData,
              "an item of 12 tokens, and the model has 8 positions",
              "data.text.max_length cuts items off");
  batch = random_text(4, kVocabulary, kClasses);
  batch.labels[1] = kClasses;
  CHECK_THROWS_WITH(f.model->load(*f.ops, batch, 0, 4),
                    ContainsSubstring("label 3, and the model knows 3"));
  ModelOptions options = tiny_bert();
  options.kind->set_vocabulary(0);
  check_error([&] { build_model(options, {}, kClasses, 0.0); }, ExitCode::kBadConfig,
              "model.type \"bert\" needs text, and the data holds none",
              "set model.type to \"vit\" or \"mlp\"");
}
