// What models of text read of a batch.
#pragma once

#include <vector>

#include "models/model.h"

namespace vcas {

// Adds a table [entries, width], N(0, 0.02^2) at first, and looks up the rows [R] that `fill`
// names. `name`: of the table's node. `input`: of the numbers of its rows.
Value add_lookup(Model& model, const std::string& name, std::int64_t entries, std::int64_t width,
                 const std::string& input, const ModelInput::Fill& fill);

// The ids of tokens or texts, all below `limit`. `what` they are is for messages.
ModelInput::Fill token_ids(std::vector<std::int32_t> Batch::*all, std::int64_t limit,
                           const char* what);

// The number of each token in its item, below `limit`.
ModelInput::Fill token_positions(std::int64_t limit);

// Rows of x whose words are to be predicted: [P, width of x].
Value add_masked_rows(Model& model, const std::string& name, Value x);

// Adds the words of these rows, all below `vocabulary`, and the loss of the logits [P, vocabulary].
void add_word_loss(Model& model, std::int64_t vocabulary, double label_smoothing);

}  // namespace vcas
