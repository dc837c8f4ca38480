// Operations refuse tensors that do not fit, on every backend alike.
#include <numeric>

#include "kernels/ops/samples.h"
#include "tests/support/check_error.h"
#include "tests/support/check_op.h"

namespace vcas {

namespace {

// Each of the named tensors a row short.
template <class Args>
void refuses_short(Samples& samples, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    Args args = samples.make<Args>();
    CHECK_NOTHROW(check_call(args));
    check_op_detail::Collect of;
    args.visit(of);
    const auto found = std::ranges::find(of.seen, name, &check_op_detail::Seen::name);
    REQUIRE(found != of.seen.end());
    Tensor& tensor = *found->tensor;
    tensor.shape = tensor.shape.rank() == 1 ? Shape{tensor.elements() - 1}
                                            : Shape{tensor.rows() - 1, tensor.width()};
    CHECK_THROWS_WITH(check_call(args), ContainsSubstring(Args::kName + (": " + name) + " " +
                                                          tensor.shape.text() + " has fewer"));
  }
}

}  // namespace

TEST_CASE("operations refuse tensors that are a row short", "[ops][refused]") {
  const auto ops = make_ops("cpu");
  Samples samples(*ops, {.items = 4, .tokens = 4, .width = 8, .hidden = 8, .keep = 2});
  refuses_short<LayerNormForward>(
      samples, {"x", "branch", "residual", "y_norm", "center", "rstd", "gamma", "beta"});
  refuses_short<LayerNormBackward>(
      samples, {"dx", "dbranch", "dx_norm", "dbranch_norm", "row", "dgamma", "dbeta", "gamma"});
  refuses_short<GroupNormForward>(samples, {"y_norm", "gamma", "beta"});
  refuses_short<CrossEntropyForward>(samples, {"loss", "correct", "labels"});
  refuses_short<CrossEntropyBackward>(samples, {"dlogits", "labels"});
  refuses_short<SquaredErrorForward>(samples, {"prediction", "target"});
  refuses_short<SquaredErrorBackward>(samples, {"prediction", "target"});
  refuses_short<MaxPoolForward>(samples, {"tap", "x"});
  refuses_short<MaxPoolBackward>(samples, {"dy", "row"});
  refuses_short<EmbeddingForward>(samples, {"tokens"});
  refuses_short<EmbeddingBackward>(samples, {"row"});
  refuses_short<ScatterRows>(samples, {"row", "dy_offsets", "item"});
  refuses_short<PoolForward>(samples, {"offsets"});
  refuses_short<PoolBackward>(samples, {"offsets"});
  refuses_short<LinearBackwardWeight>(samples, {"scale"});
  refuses_short<ColumnSum>(samples, {"sum"});
  refuses_short<KeepProbability>(samples, {"prob"});
  refuses_short<ItemNorm>(samples, {"offsets"});
  refuses_short<NarrowRows>(samples,
                            {"item", "scale", "offsets", "kept_scale", "source_row", "row_scale"});
  refuses_short<GatherScaledRows>(samples, {"y_norm", "source_row", "row_scale"});
  refuses_short<Gram>(samples, {"gram"});
}

TEST_CASE("operations refuse tensors that do not fit", "[ops][refused]") {
  const auto device = GENERATE(from_range(test_devices()));
  CAPTURE(device);
  const auto ops = make_ops(device);
  TestTensors t(*ops, DType::kF32);
  const Tensor x = t.normal({4, 16}), y = t.normal({4, 16}), rows = t.normal({4, 64});
  const Tensor norm = t.normal({4}), gamma = t.normal({16});
  const auto refuses = [&](const auto& args, const std::string& why) {
    CAPTURE(args.kName);
    try {
      ops->run(args);
      FAIL_CHECK("no error");
    } catch (const InternalError& error) {
      CHECK_THAT(error.what(), ContainsSubstring(why));
    }
  };
  refuses(GeluForward{.y = rows, .x = x}, "gelu_forward of [4, 16] to [4, 64]");
  refuses(GeluForward{.y = y}, "gelu_forward of [] to [4, 16]");
  refuses(GeluBackward{.dx = x, .dy = y, .saved_full = rows}, "of [4, 16] by rows of [4, 64]");
  refuses(GroupNormForward{.y = rows, .x = x}, "group_norm_forward of [4, 16] to [4, 64]");
  refuses(Dropout{.y = rows, .x = x}, "dropout of [4, 16] to [4, 64]");
  refuses(Add{.y = y, .a = x, .b = rows}, "add of [4, 64] to [4, 16]");
  refuses(LinearForward{.y = y, .x = x, .weight = t.normal({16, 16}), .bias = t.normal({3})},
          "bias [3] of rows [4, 16]");
  refuses(LinearBackwardWeight{.dweight = t.normal({16, 8}), .dy = y, .x_full = x},
          "shapes [16, 8], [4, 16], [4, 16]");
  refuses(LayerNormBackward{.dy = y,
                            .x_full = x,
                            .center_full = norm,
                            .rstd_full = norm,
                            .gamma = gamma,
                            .dbranch = rows},
          "the gradient of a branch without that of the sum");
  refuses(SgdStep{.param = x,
                  .grad = y,
                  .clip_factor = t.made<double>({1}, [](std::int64_t) { return 1; })},
          "sgd_step of [] to [4, 16]");
}

TEST_CASE("a device refuses more items than a grid has blocks for", "[ops][refused]") {
  constexpr std::int64_t kItems = 65536;
  std::vector<std::int64_t> offsets(kItems + 1);
  std::iota(offsets.begin(), offsets.end(), 0);
  on_emu_and_cuda(Precision::kF32, [&](TestTensors& t) {
    const GroupNormForward args{.y = t.unset({kItems, 1}),
                                .mean = t.unset({kItems, 1}),
                                .rstd = t.unset({kItems, 1}),
                                .x = t.unset({kItems, 1}),
                                .gamma = t.normal({1}),
                                .beta = t.normal({1}),
                                .offsets = t.offsets(offsets)};
    check_error([&] { t.ops().run(args); }, ExitCode::kBadConfig,
                "a device takes at most 65535 items at once");
  });
}

}  // namespace vcas
