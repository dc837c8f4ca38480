// Steps and evaluations of models whose items differ in length and whose losses in terms.
#include <cmath>

#include "tests/optim/text_fixture.h"
#include "tests/optim/trainer_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/watched_ops.h"

using namespace vcas;

TEST_CASE("micro-batches of text are divided by the terms of the whole step", "[trainer][text]") {
  for (const std::string head : {"classification", "regression", "mlm", "lm"}) {
    OneBatch source;
    Batch batch = source.next();
    if (head == "classification") batch.weights = {1, 2, 3, 4, 5, 6, 7, 8};
    TextTrainer whole(head), parts(head, 3);  // 3, 3 and 2 items: other numbers of masked words
    for (int step = 0; step < 3; ++step) {
      const StepReport a = whole.trainer->step(batch);
      const StepReport b = parts.trainer->step(batch);
      INFO(head << " step " << step);
      CHECK(std::abs(a.loss - b.loss) <= 1e-5 * a.loss);
      CHECK(std::abs(a.gradient_norm - b.gradient_norm) <= 1e-5 * a.gradient_norm);
      CHECK(a.accuracy == b.accuracy);
    }
  }
}

TEST_CASE("items of different lengths cost a wait at each gate", "[trainer][text]") {
  VcasOptions vcas;
  vcas.act_ratio = {0.3, 0.6};
  vcas.weight_ratio = {0.5};
  for (const std::string head : {"classification", "regression", "mlm", "lm"}) {
    INFO(head);
    TextTrainer exact(head), sampled(head, 0, vcas);
    OneBatch source;
    const auto waits_of_a_step = [&](TextTrainer& text, const Batch& batch) {
      text.trainer->step(batch);
      text.ops.reset();
      text.trainer->step(batch);
      return text.ops.waits();
    };
    CHECK(waits_of_a_step(exact, source.next()) == 1);
    CHECK(waits_of_a_step(sampled, source.next()) == 1 + 2);
    if (head.ends_with("lm")) continue;
    Batch even = source.next();  // of as many tokens in each item
    even.tokens.resize(static_cast<std::size_t>(TextTrainer::kItems), 1);
    even.token_types.resize(even.tokens.size());
    for (std::size_t n = 0; n < even.offsets.size(); ++n)
      even.offsets[n] = static_cast<std::int64_t>(n);
    CHECK(waits_of_a_step(sampled, even) == 1);
  }
}

TEST_CASE("a gate at a layer norm copies no rows", "[trainer][text]") {
  int copies = 0, gathers = 0;
  const auto copy = [&](const GatherScaledRows&, const std::string&) { ++copies; };
  const auto gather = [&](const LayerNormBackward& args, const std::string&) {
    gathers += bool{args.dy_row};
  };
  TrainerOptions options = TrainerFixture::defaults();
  vcas_of(options).act_ratio = {0.3, 0.6};
  TextTrainer texts("classification", 0, vcas_of(options), watched_ops(copy, gather));
  OneBatch source;
  texts.trainer->step(source.next());
  CHECK(copies == 0);
  CHECK(gathers == 2);
  TrainerFixture images(options, 0, watched_ops(copy, gather));  // whose gates lie at sums
  images.run(1);
  CHECK(copies == 2);
  CHECK(gathers == 2);
}

TEST_CASE("attention below a gate is of the items that are left", "[trainer][text]") {
  VcasOptions vcas;
  vcas.act_ratio = {0.3, 0.6};
  OneBatch source;
  int looks = 0;
  const auto look = [&](const AttentionBackward& args, const std::string&) {
    if (args.query_full) return;  // of first rows alone
    std::int64_t pairs = 0;
    const auto* offset = args.offsets.ptr<std::int64_t>();
    for (std::int64_t n = 0; n + 1 < args.offsets.elements(); ++n)
      pairs += (offset[n + 1] - offset[n]) * (offset[n + 1] - offset[n]);
    CHECK(args.pairs == pairs);
    ++looks;
  };
  TextTrainer texts("classification", 0, vcas, watched_ops(look));
  TrainerOptions options = TrainerFixture::defaults();
  vcas_of(options) = vcas;
  TrainerFixture images(options, 0, watched_ops(look));
  texts.trainer->step(source.next());
  images.run(1);
  CHECK(looks == 3);

  // Where only a device knows which items are left, their mean is counted.
  const auto flops = [&](const std::optional<VcasOptions>& method) {
    TextTrainer text("classification", 0, method, make_ops("emu"));
    text.trainer->step(source.next());
    for (const CostRow& row : text.ops.rows())
      if (row.place.starts_with("bert.encoder.layer.0.") &&
          row.op == std::string_view(AttentionBackward::kName))
        return row.flops;
    return 0.0;
  };
  CHECK_THAT(flops(vcas) / flops({}), WithinAbs(3.0 / 8, 0.01));
}

TEST_CASE("training lowers the loss of every head", "[trainer][text]") {
  for (const std::string head : {"classification", "regression", "mlm", "lm"}) {
    OneBatch source;
    TextTrainer text(head);
    const double before = text.trainer->evaluate(source.next()).loss;
    while (!text.trainer->done()) text.trainer->step(source.next());
    INFO(head);
    CHECK(text.trainer->evaluate(source.next()).loss < 0.9 * before);
  }
}

TEST_CASE("an evaluation gives the logits back", "[trainer][text]") {
  CHECK(per_term(0) == 1);  // an evaluation without terms has a loss of 0
  for (const std::string head : {"classification", "regression", "mlm", "lm"}) {
    OneBatch source;
    const Batch& batch = source.next();
    TextTrainer whole(head), parts(head, 3);
    std::vector<float> a, b;
    const Evaluation once = whole.trainer->evaluate(batch, &a);
    const Evaluation split = parts.trainer->evaluate(batch, &b);
    const bool words = head.ends_with("lm"), classes = head == "classification";
    const std::int64_t terms = words ? std::ssize(batch.masked_rows) : TextTrainer::kItems;
    CHECK(once.items == TextTrainer::kItems);
    CHECK(once.terms == terms);
    CHECK(std::ssize(a) == terms * (words     ? TextTrainer::kVocabulary
                                    : classes ? TextTrainer::kClasses
                                              : 1));
    REQUIRE(a.size() == b.size());
    for (std::size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) <= 1e-6);
    CHECK(std::abs(once.loss - split.loss) <= 1e-6 * once.loss);
    if (head != "regression") continue;
    double loss = 0;
    for (std::size_t n = 0; n < TextTrainer::kItems; ++n)
      loss += std::pow(a[n] - batch.targets[n], 2) / TextTrainer::kItems;
    CHECK(std::abs(once.loss - loss) <= 1e-5 * loss);
    CHECK(once.accuracy == 0);
  }
}
