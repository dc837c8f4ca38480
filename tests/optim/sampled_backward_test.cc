#include "optim/methods/sampled_backward.h"

#include <array>
#include <cmath>

#include "tests/support/check_error.h"
#include "tests/support/watched_ops.h"

using namespace vcas;

namespace {

constexpr std::int64_t kRows = 12, kIn = 4, kOut = 3;
constexpr int kDraws = 4096;

// A linear map's dy and x with row norms as the test wants them, in double on the cpu.
class Rows {
 public:
  Rows() {
    const PhiloxAddress address = philox_address({.seed = 11});
    for (std::uint64_t i = 0; i < dy_.size(); ++i) dy_[i] = philox_normal(address, i);
    for (std::uint64_t i = 0; i < x_.size(); ++i) x_[i] = philox_normal(address, 1000 + i);
  }

  Rows& scale_dy(std::int64_t row, double factor) {
    for (std::int64_t c = 0; c < kOut; ++c) dy_[static_cast<std::size_t>(row * kOut + c)] *= factor;
    return *this;
  }
  Rows& scale_x(std::int64_t row, double factor) {
    for (std::int64_t c = 0; c < kIn; ++c) x_[static_cast<std::size_t>(row * kIn + c)] *= factor;
    return *this;
  }

  // Makes x; dy is the absolute value, so that the norms of both turn alike.
  template <class Element>
  Rows& fill(Element element) {
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t c = 0; c < kIn; ++c)
        x_[static_cast<std::size_t>(r * kIn + c)] = element(r, c);
      for (std::int64_t c = 0; c < kOut; ++c)
        dy_[static_cast<std::size_t>(r * kOut + c)] = std::abs(element(r, c));
    }
    return *this;
  }

  struct Settings {
    bool samples_rows = true;
    Selection selection = Selection::kSystematic;
    double ratio = 1;
    std::uint32_t repeat = 0;
    double* variance = nullptr;  // also records the closed form
  };

  // The weight gradient, of the compact rows `rows` where given.
  std::vector<double> gradient(const Settings& settings, std::uint64_t step,
                               const RowSet* rows = nullptr) {
    *kept_ = -1;
    GraphPlan plan;
    plan.sampled_weights = {0};
    SampledBackward sampled(*ops_, plan);
    sampled.pass = {.ratios = {.act = {}, .weight = {settings.ratio}},
                    .selection = settings.selection,
                    .samples_rows = settings.samples_rows,
                    .repeat = settings.repeat,
                    .weight_variance = {settings.variance, DType::kF64, {1}}};
    return gradient(sampled, step, rows ? *rows : rows_);
  }
  std::vector<double> exact_gradient(const RowSet* rows = nullptr) {
    BackwardHooks exact;
    return gradient(exact, 0, rows ? *rows : rows_);
  }

  // How many rows the last gradient's draw kept; -1: there was none, or only the device knows.
  std::int64_t kept() const { return *kept_; }

  // From the definition.
  std::vector<double> exact() const {
    std::vector<double> out(kOut * kIn);
    for (std::size_t r = 0; r < kRows; ++r)
      for (std::size_t d = 0; d < kOut; ++d)
        for (std::size_t c = 0; c < kIn; ++c)
          out[d * kIn + c] += dy_[r * kOut + d] * x_[r * kIn + c];
    return out;
  }

 private:
  std::vector<double> gradient(BackwardHooks& hooks, std::uint64_t step, const RowSet& rows) {
    std::vector<double> dweight(kOut * kIn);
    scratch_.resize(BackwardHooks::scratch_bytes(kRows));
    Arena arena(scratch_.data(), scratch_.size());
    auto number = static_cast<std::int64_t>(step);
    Exec exec{.ops = *ops_,
              .scratch = arena,
              .scratch_beside = arena,
              .dtype = DType::kF64,
              .seed = 5,
              .step = {&number, DType::kI64, {1}}};
    hooks.begin(exec);
    hooks.weight_gradient(exec, {.site = 0,
                                 .dweight = {dweight.data(), DType::kF64, {kOut, kIn}},
                                 .dbias = {},
                                 .accumulate = true,
                                 .dy = {dy_.data(), DType::kF64, {rows.rows, kOut}},
                                 .dy_norm = {},
                                 .x_full = {x_.data(), DType::kF64, {kRows, kIn}},
                                 .x_norm_full = {},
                                 .rows = rows});
    hooks.flush(exec);
    return dweight;
  }

  std::shared_ptr<std::int64_t> kept_ = std::make_shared<std::int64_t>(-1);
  std::unique_ptr<Ops> ops_ = watched_ops([kept = kept_](const Draw& draw, const std::string&) {
    if (!draw.count) *kept = draw.kept.elements();
  });
  std::array<double, kRows * kOut> dy_;
  std::array<double, kRows * kIn> x_;
  RowSet rows_{.items = kRows, .rows = kRows, .item = {}, .scale = {}, .offsets = {}, .row = {}};
  std::vector<char> scratch_;
};

// Mean and standard error of a sequence (Welford's update).
class Statistics {
 public:
  void add(double value) {
    ++count_;
    const double before = value - mean_;
    mean_ += before / count_;
    squares_ += before * (value - mean_);
  }
  double mean() const { return mean_; }
  double standard_error() const { return std::sqrt(squares_ / (count_ - 1) / count_); }

 private:
  double count_ = 0, mean_ = 0, squares_ = 0;
};

struct Case {
  const char* name;
  Rows rows;
  double ratio;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  out.push_back({"one row kept", Rows(), 1.0 / kRows});
  out.push_back({"fractional budget", Rows(), 3.4 / kRows});
  out.push_back({"one dominating row", std::move(Rows().scale_dy(4, 50)), 2.5 / kRows});
  out.push_back(
      {"zero rows", std::move(Rows().scale_dy(0, 0).scale_dy(7, 0).scale_x(11, 0)), 3.0 / kRows});
  out.push_back({"most rows kept", Rows(), 10.5 / kRows});
  return out;
}

void check_close(const std::vector<double>& got, const std::vector<double>& want) {
  for (std::size_t i = 0; i < want.size(); ++i) CHECK(std::abs(got[i] - want[i]) <= 1e-12);
}

}  // namespace

TEST_CASE("the mean of sampled weight gradients is the exact one", "[sampled_backward]") {
  const Selection selection = GENERATE(Selection::kBernoulli, Selection::kSystematic);
  for (Case& test : cases()) {
    INFO(test.name);
    std::vector<Statistics> entries(kOut * kIn);
    for (std::uint64_t draw = 0; draw < kDraws; ++draw) {
      const std::vector<double> got =
          test.rows.gradient({.selection = selection, .ratio = test.ratio}, draw);
      for (std::size_t i = 0; i < got.size(); ++i) entries[i].add(got[i]);
    }
    const std::vector<double> want = test.rows.exact();
    for (std::size_t i = 0; i < want.size(); ++i) {
      INFO("entry " << i << ": " << entries[i].mean() << " +- " << entries[i].standard_error());
      CHECK(entries[i].standard_error() > 0);
      CHECK(std::abs(entries[i].mean() - want[i]) <= 5 * entries[i].standard_error());
    }
  }
}

TEST_CASE("the closed form of the variance is what independent draws show", "[sampled_backward]") {
  for (Case& test : cases()) {
    INFO(test.name);
    const std::vector<double> exact = test.rows.exact();
    double variance = -1;
    Statistics distance;
    for (std::uint64_t draw = 0; draw < kDraws; ++draw) {
      const std::vector<double> got = test.rows.gradient(
          {.selection = Selection::kBernoulli, .ratio = test.ratio, .variance = &variance}, draw);
      double sum = 0;
      for (std::size_t i = 0; i < got.size(); ++i) sum += std::pow(got[i] - exact[i], 2);
      distance.add(sum);
    }
    INFO(distance.mean() << " +- " << distance.standard_error());
    CHECK(std::abs(variance - distance.mean()) <= 5 * distance.standard_error());
  }
}

namespace {

// Mean ||dW - exact||^2 of systematic draws, and the closed form, which supposes independent ones.
struct SystematicVariance {
  Statistics drawn;
  double closed_form = 0;
};

SystematicVariance systematic_variance(Rows& rows, double ratio) {
  SystematicVariance out;
  const std::vector<double> exact = rows.exact_gradient();
  for (std::uint64_t draw = 0; draw < kDraws; ++draw) {
    const std::vector<double> got =
        rows.gradient({.ratio = ratio, .variance = &out.closed_form}, draw);
    double sum = 0;
    for (std::size_t i = 0; i < got.size(); ++i) sum += std::pow(got[i] - exact[i], 2);
    out.drawn.add(sum);
  }
  return out;
}

}  // namespace

TEST_CASE("neighbours that are alike make systematic draws better than Eq. 3",
          "[sampled_backward][law]") {
  // As the tokens of an image: directions turn slowly from row to row, and norms differ.
  Rows rows;
  rows.fill([](std::int64_t row, std::int64_t column) {
    const double angle = 0.4 * static_cast<double>(row) + 1.3 * static_cast<double>(column);
    return (1 + 0.6 * std::sin(2.1 * static_cast<double>(row))) * std::cos(angle);
  });
  for (const double ratio : {2.0 / kRows, 3.4 / kRows, 0.5}) {
    const SystematicVariance variance = systematic_variance(rows, ratio);
    INFO("ratio " << ratio << ": " << variance.drawn.mean() << " +- "
                  << variance.drawn.standard_error() << ", Eq. 3 " << variance.closed_form);
    CHECK(variance.drawn.mean() > 0);
    CHECK(variance.drawn.mean() + 5 * variance.drawn.standard_error() < variance.closed_form);
  }
}

TEST_CASE("rows that repeat in step with a systematic draw exceed Eq. 3",
          "[sampled_backward][law]") {
  // Equal scores and 3 of 12 rows: a draw keeps every fourth row. Every fourth is +a, the others
  // are -a. So a draw gives 12 a or -12 a, at 1 to 3: the right mean, -6 a, and the variance
  // 144 - 36 = 108 |a|^2, where 12 independent draws would have 12 (1 - 1/4) / (1/4) = 36.
  Rows rows;
  rows.fill([](std::int64_t row, std::int64_t) { return row % 4 == 0 ? 1 : -1; });
  const SystematicVariance variance = systematic_variance(rows, 0.25);
  CHECK(std::abs(variance.closed_form - 36 * kIn * kOut) <= 1e-9 * variance.closed_form);
  CHECK(std::abs(variance.drawn.mean() - 108 * kIn * kOut) <= 5 * variance.drawn.standard_error());
}

TEST_CASE("the variance is recorded without drawing", "[sampled_backward]") {
  double sampled = -1, whole = -1;
  Rows rows;
  rows.gradient({.ratio = 0.25, .variance = &sampled}, 0);
  CHECK(rows.kept() == 3);
  const std::vector<double> exact =
      rows.gradient({.samples_rows = false, .ratio = 0.25, .variance = &whole}, 0);
  check_close(exact, rows.exact());
  CHECK(whole == sampled);
  CHECK(whole > 0);
  CHECK(rows.kept() == -1);
}

TEST_CASE("systematic selection keeps the budget rounded up", "[sampled_backward]") {
  Rows rows;
  for (std::uint64_t step = 0; step < 100; ++step) {
    rows.gradient({.ratio = 3.4 / kRows}, step);
    CHECK(rows.kept() == 4);
  }
}

TEST_CASE("an empty independent draw gives a zero gradient", "[sampled_backward]") {
  // One row each is expected: a share of about (1 - 1 / 12)^12 = 0.35 of the draws is empty.
  Rows rows;
  int empty = 0;
  for (std::uint64_t step = 0; step < 100; ++step)
    empty += rows.gradient({.selection = Selection::kBernoulli, .ratio = 1.0 / kRows}, step) ==
             std::vector<double>(kOut * kIn, 0);
  CHECK(empty > 15);
  CHECK(empty < 60);
}

TEST_CASE("a ratio of 1 gives the bits of the exact gradient", "[sampled_backward]") {
  Rows rows;
  CHECK(rows.gradient({.ratio = 1}, 0) == rows.exact_gradient());
  check_close(rows.gradient({.ratio = 1}, 0), rows.exact());
}

TEST_CASE("draws differ between repeats and steps and agree for the same", "[sampled_backward]") {
  Rows rows;
  const auto draw = [&](std::uint64_t step, std::uint32_t repeat) {
    return rows.gradient({.selection = Selection::kBernoulli, .ratio = 0.4, .repeat = repeat},
                         step);
  };
  CHECK(draw(0, 0) == draw(0, 0));
  CHECK(draw(0, 0) != draw(0, 1));
  CHECK(draw(0, 0) != draw(1, 0));
}

TEST_CASE("compact rows are read through their full numbers", "[sampled_backward]") {
  Rows rows;
  std::int32_t row[2] = {3, 8};
  const RowSet two{.items = 2,
                   .rows = 2,
                   .item = {},
                   .scale = {},
                   .offsets = {},
                   .row = {row, DType::kI32, {2}}};
  std::vector<Statistics> entries(kOut * kIn);
  for (std::uint64_t step = 0; step < kDraws; ++step) {
    const std::vector<double> got = rows.gradient({.ratio = 0.5}, step, &two);
    for (std::size_t i = 0; i < got.size(); ++i) entries[i].add(got[i]);
  }
  const std::vector<double> want = rows.exact_gradient(&two);
  for (std::size_t i = 0; i < want.size(); ++i)
    CHECK(std::abs(entries[i].mean() - want[i]) <= 5 * entries[i].standard_error());
}

TEST_CASE("no rows give a zero gradient and no variance", "[sampled_backward]") {
  Rows rows;
  double variance = -1;
  const Selection selection = GENERATE(Selection::kBernoulli, Selection::kSystematic);
  const RowSet none{};
  const std::vector<double> got =
      rows.gradient({.selection = selection, .ratio = 0.5, .variance = &variance}, 0, &none);
  CHECK(got == std::vector<double>(kOut * kIn, 0));
  CHECK(variance == 0);
}

TEST_CASE("SampledBackward is of one graph, which is finished", "[sampled_backward]") {
  const auto ops = make_ops("cpu");
  GraphPlan unfinished;
  unfinished.nodes.resize(1);
  unfinished.gate_nodes = {0};
  check_whole_error([&] { SampledBackward(*ops, unfinished); }, ExitCode::kBadConfig,
                    "SampledBackward of a graph before Graph::finish",
                    "make it when the graph is finished");

  SampledBackward other(*ops, {});
  Arena arena;
  Exec exec{.ops = *ops, .scratch = arena, .scratch_beside = arena, .step = {}};
  const RowSet rows;
  Gradient gradient;
  const std::string place = "gate";
  const auto of_another = ContainsSubstring("SampledBackward of another graph");
  CHECK_THROWS_WITH(other.at_gate(exec,
                                  {.number = 0,
                                   .layout = Layout::items(1),
                                   .batch_items = 1,
                                   .mixing = 0,
                                   .kept = {},
                                   .sample_place = place,
                                   .probe_place = place},
                                  gradient, {}),
                    of_another);
  CHECK_THROWS_WITH(other.weight_gradient(exec, {.site = 0,
                                                 .dweight = {},
                                                 .dbias = {},
                                                 .accumulate = true,
                                                 .dy = {},
                                                 .dy_norm = {},
                                                 .x_full = {},
                                                 .x_norm_full = {},
                                                 .rows = rows}),
                    of_another);
}
