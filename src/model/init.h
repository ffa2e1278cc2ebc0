// Random weights by Hugging Face's rules: normal(0, initializer_range) for matrices, zero biases,
// norms of one, a zero embedding row for the padding token.
#pragma once

#include <cstdint>

#include "mesh/box.h"
#include "model/graph.h"
#include "model/model_config.h"

namespace trireme::model {

/// The box of a fresh parameter, dense and row-major. An element depends on (seed, name, its global
/// index) only, so every layout makes the same model.
void init_box(const ModelConfig& config, const Parameter& parameter, uint64_t seed,
              const mesh::Box& box, float* out);

}  // namespace trireme::model
