// Pieces that several models are made of.
#pragma once

#include "models/model.h"

namespace vcas {

// Adds a dropout node unless p is 0.
Value add_dropout(Graph& graph, const std::string& name, Value x, double p);

// residual + dropout of x, by one node.
Value add_residual(Graph& graph, const std::string& name, Value residual, Value x, double p);

// `init_std` 0: the layer's own.
Value add_linear(Graph& graph, const std::string& name, std::int64_t width, Value x,
                 double init_std = 0, bool sampled = true);

Value add_norm(Graph& graph, const std::string& name, Value x, double eps);

// Adds the classifier, the labels and the loss of one class an item.
void add_classifier(Model& model, Value features, std::int64_t classes, double label_smoothing);

// Adds the labels, with as many rows as the logits, and the loss.
void add_cross_entropy(Model& model, double label_smoothing);

void build_vit(Model& model, const ModelOptions& options,
               const std::vector<std::int64_t>& item_shape, std::int64_t classes,
               double label_smoothing);
void build_bert(Model& model, const ModelOptions& options, std::int64_t classes,
                double label_smoothing);
void build_mlp(Model& model, const ModelOptions& options, std::int64_t classes,
               double label_smoothing);

}  // namespace vcas
