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
                    "numbers", "unknown_measure"}));
  }
  std::string summary() const override { return "data that may have a mistake"; }
  DataFacts facts() const override {
    return {.labels = fault == "numbers" ? LabelKind::kNumbers : LabelKind::kClasses};
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

// A classifier in which no weight is sampled.
struct FaultyModel final : ModelKind {
  std::string fault = "none";

  void fields(Setting& v) {
    v.field("fault", fault, "What is wrong.",
            one_of({"none", "more_logits", "no_logits", "no_accuracy", "regression"}));
  }
  std::string head() const override {
    return fault == "regression" ? "regression" : "classification";
  }
  void build(Model& model, const std::vector<std::int64_t>& item_shape, std::int64_t classes,
             double label_smoothing) const override {
    const Value values = add_values(model, item_shape, model.graph.dtype());
    const Value x = add_linear(model.graph, "hidden", 8, values, 0, /*sampled=*/false);
    model.graph.gate(x);
    add_classifier(model, x, fault == "more_logits" ? classes + 1 : classes, label_smoothing);
    if (fault == "no_logits") model.logits = {};
    model.has_accuracy = fault != "no_accuracy";
  }
};
VCAS_REGISTER_PART(ModelKind, "faulty", FaultyModel);

struct FaultyMethod final : MethodKind {
  std::string summary() const override { return "none at all"; }
  void fields(Setting&) {}
  std::unique_ptr<Method> make(const Training&) const override { return nullptr; }
};
VCAS_REGISTER_PART(MethodKind, "faulty", FaultyMethod);

}  // namespace

int main(int argc, char** argv) { return run_program(argc, argv); }
