// A loss with a term for each token.
#include "tests/optim/distance.h"
#include "tests/optim/trainer_fixture.h"
#include "tests/support/check_error.h"
#include "tests/support/thread_ranks.h"

using namespace vcas;

namespace {

// Keeps every other item, and weighs none.
class EveryOther final : public Method, private ItemChooser {
 public:
  PassKind next(std::int64_t) const override { return PassKind::kExact; }
  ItemChooser* chooser() override { return this; }
  std::string summary() const override { return "every other item"; }

 private:
  ItemChoice choose_items(std::int64_t, std::span<const std::int64_t> items,
                          std::span<const std::int64_t>) override {
    ItemChoice choice;
    for (std::int64_t i = 0; i < std::ssize(items); i += 2) choice.kept.push_back(i);
    return choice;
  }
};

struct EveryOtherKind final : MethodKind {
  std::string summary() const override { return "every other item"; }
  std::unique_ptr<Method> make(const Training&) const override {
    return std::make_unique<EveryOther>();
  }
};
VCAS_REGISTER_PART(MethodKind, "every_other", EveryOtherKind);

// Each token predicts itself.
struct TokenTrainer {
  static constexpr std::int64_t kItems = 4, kVocabulary = 7;

  std::unique_ptr<Ops> ops = make_ops("cpu");
  Model model{DType::kF32};
  std::unique_ptr<Trainer> trainer;

  explicit TokenTrainer(const std::string& method, std::shared_ptr<Ranks> ranks = one_rank()) {
    const Value tokens =
        model.input("tokens", {1, Layout::tokens(), DType::kI32}, [](const BatchPart& part) {
          return std::as_bytes(part.of(part.batch.tokens, Layout::tokens(), "tokens"));
        });
    const Value x = model.graph.add(
        "table", make_layer("embedding", {{"vocabulary", kVocabulary}, {"width", 5}}), {tokens});
    model.logits = model.graph.add("out", make_layer("linear", {{"width", kVocabulary}}), {x});
    model.loss =
        model.graph.add("loss", make_layer("softmax_cross_entropy"), {model.logits, tokens});
    model.graph.finish(
        *ops, {.max_items = kItems, .max_tokens = 16, .max_masked = 0, .ranks = ranks->size()});
    model.graph.parameters().initialize(*ops, 1);
    TrainerOptions options{.total_steps = 2, .batch = kItems, .ranks = ranks};
    options.optimizer.kind.type = "sgd";
    options.schedule.learning_rate = 0.1;
    options.method.type = method;
    trainer = std::make_unique<Trainer>(model, *ops, options, nullptr);
  }
  std::vector<float> weights() const {
    const float* const values = model.graph.parameters().masters().ptr<float>();
    return {values, values + model.graph.parameters().elements()};
  }
};

// Items of 1, 2, 5 and 8 tokens, of which each rank has its share.
Batch texts(const Place& place) {
  const std::vector<std::int64_t> ends = {0, 1, 3, 8, 16};
  Batch batch{.items = TokenTrainer::kItems / place.size};
  const std::int64_t first = place.rank * batch.items;
  for (std::int64_t i = first; i <= first + batch.items; ++i)
    batch.offsets.push_back(ends[i] - ends[first]);
  for (std::int64_t r = ends[first]; r < ends[first + batch.items]; ++r)
    batch.tokens.push_back(static_cast<std::int32_t>(r * r % TokenTrainer::kVocabulary));
  return batch;
}

}  // namespace

TEST_CASE("ranks weigh tokens by the terms of all", "[ranks][law]") {
  TokenTrainer one("exact");
  const StepReport want = one.trainer->step(texts({}));
  std::vector<std::vector<float>> got(2);
  std::vector<StepReport> reports(2);
  on_thread_ranks(2, [&](std::shared_ptr<Ranks> own) {
    TokenTrainer f("exact", own);
    const auto rank = static_cast<std::size_t>(own->place().rank);
    reports[rank] = f.trainer->step(texts(own->place()));
    got[rank] = f.weights();
  });
  for (std::size_t rank = 0; rank < 2; ++rank) {
    CHECK_THAT(reports[rank].loss, WithinRel(want.loss, 1e-6));
    CHECK_THAT(reports[rank].gradient_norm, WithinRel(want.gradient_norm, 1e-5));
    CHECK(got[rank] == got[0]);
  }
  CHECK(distance(got[0], one.weights()) < 1e-7);
}

TEST_CASE("a method of one's own leaves no items out of a loss of tokens", "[trainer][error]") {
  check_error([] { TokenTrainer("every_other"); }, ExitCode::kBadConfig,
              "method.type=every_other: the loss has a term for each predicted word or part of an "
              "item, and nobody knows how many an item has that is not read",
              "choose another method.type");
  TrainerOptions options = TrainerFixture::defaults();
  options.method.type = "every_other";
  CHECK_NOTHROW(TrainerFixture(options));
}
