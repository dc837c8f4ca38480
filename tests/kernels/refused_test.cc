// Operations refuse tensors that do not fit, on every backend alike.
#include <numeric>

#include "tests/support/check_error.h"
#include "tests/support/check_op.h"

namespace vcas {

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
  for (const std::string& device : test_devices()) {
    if (device == "cpu") continue;
    const auto ops = make_ops(device);
    TestTensors t(*ops, DType::kF32);
    const GroupNormForward args{.y = t.unset({kItems, 1}),
                                .mean = t.unset({kItems, 1}),
                                .rstd = t.unset({kItems, 1}),
                                .x = t.unset({kItems, 1}),
                                .gamma = t.normal({1}),
                                .beta = t.normal({1}),
                                .offsets = t.offsets(offsets)};
    check_error([&] { ops->run(args); }, ExitCode::kBadConfig,
                "a device takes at most 65535 items at once");
  }
}

}  // namespace vcas
