// One test for any layer, from nothing but its settings and inputs (docs/layer_api.md).
//
// With random values, items of 5, 1, 7 and 3 rows and then items of equal size, it checks
//   - every gradient in double against finite differences, and f32, and bf16 where the device has
//     it, against f64; the output against `formula` where there is one;
//   - backward twice: the same bits; inputs, saved tensors and parameters unchanged;
//   - a backward on K = 0, 1, N/2 and N kept items against the exact backward of zeroed and
//     rescaled rows, with padding behind them too, and for a layer that mixes items with 0, 1 and
//     N - K echoes;
//   - that parameter gradients are added, replaced too where the plan says so, dx is added or
//     written in place as the plan says, and what is not wanted is left out;
//   - that a layer computes by operations, or says that it has loops of its own;
//   - that its plan is one that a graph takes, and that backward needs nothing that the object of
//     the forward keeps;
//   - rows of zeros behind the last item, which change no result;
//   - that forward leaves inputs and parameters, writes its output in an evaluation too, and a
//     finite state;
//   - that no byte is written outside the outputs, no more scratch taken than planned, and nothing
//     read that the plan does not ask to be kept.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "layers/layer.h"

namespace vcas {

struct LayerInput {
  std::int64_t width = 1;
  Layout layout = Layout::tokens();
  std::int64_t integers = 0;       // not 0: i32 values from 0 to below this, without a gradient
  bool image = false;              // f32 whatever the compute dtype, without a gradient
  bool own_rows = false;           // i32 rows of the item's own in input 0, without a gradient
  std::vector<double> kinks = {};  // no value is one of these: there the layer has no slope
};

// What a formula for the output is given, in double.
struct LayerValues {
  std::vector<std::vector<double>> inputs, parameters;
  std::vector<std::int64_t> offsets;  // [N + 1] rows of the items in the first input
};

struct LayerCase {
  std::string kind;
  nlohmann::json config = nlohmann::json::object();
  std::vector<LayerInput> inputs;
  bool loss = false;
  std::vector<std::int64_t> tokens = {5, 1, 7, 3};  // rows of each item in layout tokens
  std::vector<std::int64_t> masked = {2, 0, 4, 1};  // and in layout masked
  std::string device = "cpu";
  bool bf16 = true;  // false for a layer without it, as one with loops of its own over f32 and f64
  std::function<std::vector<double>(const LayerValues&)> formula = {};  // the output; optional
};

// What is wrong with the layer, one sentence each.
std::vector<std::string> layer_faults(const LayerCase& test);

}  // namespace vcas
