// The program with data, a model and a method outside its tree, each of which can have a mistake.
#include <memory>

#include "data/data_kind.h"
#include "models/blocks.h"
#include "optim/methods/method.h"
#include "tools/program.h"

using namespace vcas;

namespace {

// Vectors of 4 classes. They name no file.
struct FaultyData final : DataKind {
  std::string fault = "none";

  void fields(Setting& v) {
    v.field("fault", fault, "What is wrong.",
            one_of({"none", "no_items", "other_classes", "fewer_classes", "unknown_label",
                    "numbers", "text", "unknown_measure"}));
  }
  std::string summary() const override { return "data that may have a mistake"; }
  DataFacts facts() const override {
    return {.text = fault == "text",
            .labels = fault == "numbers" ? LabelKind::kNumbers : LabelKind::kClasses};
  }
  std::vector<std::string> measures() const override {
    return fault == "unknown_measure" ? std::vector<std::string>{"bogus"}
                                      : std::vector<std::string>();
  }
  OpenedData open(const DataRequest& request) const override {
    const bool is_test = request.split == Split::kTest;
    if (is_test && fault == "no_items") return {};
    const std::int32_t classes = is_test && fault == "fewer_classes" ? 3 : 4;
    VectorContent content{.width = 4, .class_names = numbered_classes(classes)};
    if (is_test && fault == "other_classes") content.class_names = {"a", "b", "c", "d"};
    for (std::int32_t i = 0; i < 64; ++i) {
      content.labels.push_back(i % classes);
      for (std::int32_t c = 0; c < 4; ++c)
        content.values.push_back(static_cast<float>((i * 7 + c * 13) % 11) + (c == i % 4 ? 4 : 0));
    }
    if (is_test && fault == "unknown_label") content.labels[7] = -1;
    return {.items = std::make_unique<VectorDataset>(std::move(content))};
  }
};
VCAS_REGISTER_PART(DataKind, "faulty", FaultyData);

// y = x * gain, in which no operation is counted.
class Gain final : public Layer {
 public:
  NodePlan plan(const PlanInput& in) const override {
    return {.output = in.inputs[0],
            .parameters = {{"gain", {in.inputs[0].width}, {Initializer::Kind::kConstant, 1}}},
            .saved_inputs = {0},
            .computes_on_host = true};
  }
  void forward(Exec&, const ForwardIo& io) const override {
    const auto *x = io.inputs[0].ptr<float>(), *gain = io.parameters[0].ptr<float>();
    for (std::int64_t i = 0; i < io.output.elements(); ++i)
      io.output.ptr<float>()[i] = x[i] * gain[i % io.output.width()];
  }
  void backward(Exec&, const BackwardIo& io) const override {
    const auto *x = io.inputs_full[0].ptr<float>(), *dy = io.dy.ptr<float>();
    for (std::int64_t i = 0; i < io.dy.elements(); ++i)
      io.gradients[0].ptr<float>()[i % io.dy.width()] += dy[i] * x[i];
  }
};

// y = x, and the gradient below is twice the one above.
class Doubling final : public Layer {
 public:
  NodePlan plan(const PlanInput& in) const override { return {.output = in.inputs[0]}; }
  void forward(Exec& exec, const ForwardIo& io) const override {
    exec.ops.run(Copy{.y = io.output, .x = io.inputs[0]});
  }
  void backward(Exec& exec, const BackwardIo& io) const override {
    exec.ops.run(Add{.y = io.dx[0], .a = io.dy, .b = io.dy});
  }
};

// A classifier in which no weight is sampled.
struct FaultyModel final : ModelKind {
  std::string fault = "none";

  void fields(Setting& v) {
    v.field("fault", fault, "What is wrong.",
            one_of({"none", "more_logits", "no_logits", "no_accuracy", "no_products", "regression",
                    "unknown_head", "wrong_slopes", "text_regression", "text_words"}));
  }
  bool reads_text() const override { return fault.starts_with("text"); }
  std::string head() const override {
    if (fault == "unknown_head") return "ranking";
    if (fault == "text_words") return "mlm";
    return fault.ends_with("regression") ? "regression" : "classification";
  }
  void build(Model& model, const std::vector<std::int64_t>& item_shape, std::int64_t classes,
             double label_smoothing) const override {
    const Value values = add_values(model, item_shape, model.graph.dtype());
    if (fault == "no_products") {
      model.logits = model.graph.add("gain", std::make_unique<Gain>(), {values});
      return add_cross_entropy(model, add_labels(model, classes), label_smoothing);
    }
    Value x = add_linear(model.graph, "hidden", 8, values, 0, /*sampled=*/false);
    if (fault == "wrong_slopes") x = model.graph.add("doubling", std::make_unique<Doubling>(), {x});
    model.graph.gate(x);
    add_classifier(model, x, fault == "more_logits" ? classes + 1 : classes, label_smoothing);
    if (fault == "no_logits") model.logits = {};
    model.has_accuracy = fault != "no_accuracy";
  }
};
VCAS_REGISTER_PART(ModelKind, "faulty", FaultyModel);

// Exact, on half of the items where it drops the others.
class Halves final : public Method, private ItemChooser {
 public:
  explicit Halves(std::string fault) : fault_(std::move(fault)) {}
  PassKind next(std::int64_t) const override { return PassKind::kExact; }
  ItemChooser* chooser() override { return fault_.ends_with("weights") ? this : nullptr; }
  bool at_rest() const override { return fault_ != "never_rests"; }
  bool samples() const override { return true; }
  std::string summary() const override { return fault_; }

 private:
  ItemChoice choose_items(std::int64_t, std::span<const std::int64_t> items,
                          std::span<const std::int64_t>) override {
    ItemChoice choice;
    for (std::int64_t i = 0; i < std::ssize(items); i += 2) choice.kept.push_back(i);
    if (fault_ == "zero_weights") choice.weights.assign(choice.kept.size(), 0);
    return choice;
  }

  std::string fault_;
};

struct FaultyMethod final : MethodKind {
  std::string fault = "no_method";

  std::string summary() const override { return "a method that may have a mistake"; }
  void fields(Setting& v) {
    v.field("fault", fault, "What is wrong.",
            one_of({"none", "no_method", "no_weights", "zero_weights", "never_rests"}));
  }
  std::unique_ptr<Method> make(const Training&) const override {
    return fault == "no_method" ? nullptr : std::make_unique<Halves>(fault);
  }
};
VCAS_REGISTER_PART(MethodKind, "faulty", FaultyMethod);

}  // namespace

int main(int argc, char** argv) { return run_program(argc, argv); }
