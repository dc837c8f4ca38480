// Pieces that several models are made of.
#pragma once

#include "models/model.h"

namespace vcas {

// Adds a dropout node unless p is 0.
Value add_dropout(Graph& graph, const std::string& name, Value x, double p);

// Adds inputs, and at the end the classifier and the loss, which all classifiers share.
void add_inputs(Model& model, std::int64_t item_values);
void add_classifier(Model& model, Value features, std::int64_t classes, double label_smoothing);

void build_vit(Model& model, const ModelOptions& options,
               const std::vector<std::int64_t>& item_shape, std::int64_t classes,
               double label_smoothing);
void build_mlp(Model& model, const ModelOptions& options, std::int64_t classes,
               double label_smoothing);

}  // namespace vcas
