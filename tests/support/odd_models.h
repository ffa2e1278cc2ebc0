// Models that no family has: what the engine must train without knowing them.
#pragma once

#include <cstdint>
#include <memory>

#include "model/graph.h"
#include "train/tiny.h"

namespace trireme::testing {

using train::RoughSource;

/// Attention and MLP side by side behind one norm, and a square weight ("mix") that each such block
/// uses twice: embed, block.0 (parallel), block.1 (plain), block.2 (parallel), head.
struct ParallelModel {
  bool frozen_embedding = true;
  bool frozen_middle = true;  // all of block.1
  bool frozen_body = false;   // everything but the head
  bool shared_mix = true;     // block.0 and block.2 use one weight: four uses
  bool two_slots = false;     // the second use goes through a slot of its own
};
model::ModelGraph parallel_model(const ParallelModel& spec);

/// `seed` decides everything: how values are combined, which slots are used again and which
/// recomputation level drops what. Matrices of every shape of `config`.
model::UnitGraph random_graph(const model::ModelConfig& config, uint32_t seed, int num_nodes);

/// Embedding, three random blocks of two kinds, head; tensors shared and frozen at random.
model::ModelGraph random_model(uint32_t seed, int num_nodes);

/// hidden 24, 3 heads, 1 key/value head, head_dim 8, ffn 20, vocabulary 53.
model::ModelConfig odd_config();

}  // namespace trireme::testing
