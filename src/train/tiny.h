// Tiny models, samples and weights, for trials.
#pragma once

#include <cstdint>
#include <vector>

#include "data/dataset.h"
#include "model/graph.h"
#include "train/state_sources.h"

namespace trireme::train {

struct TinyModel {
  model::Family family = model::Family::qwen2;
  int64_t hidden = 32, layers = 2, heads = 4, kv_heads = 2, head_dim = 8, ffn = 48, vocab = 67;
  bool tied = false;
  int64_t window = 0;

  bool operator==(const TinyModel&) const = default;
};
model::ModelGraph tiny_model(const TinyModel& spec = {});

/// Samples of random tokens with the given lengths; every fifth label is not trained.
data::Dataset random_dataset(const std::vector<int64_t>& lengths, int64_t vocab, uint64_t seed);

/// Every parameter random around what Hugging Face starts with, biases and gains too, so that each
/// of them matters to the loss.
class RoughSource final : public FreshSource {
 public:
  explicit RoughSource(uint64_t seed) : seed_(seed) {}

 private:
  void read_master(const model::Parameter& parameter, const mesh::Box& box, float* out) override;
  uint64_t seed_;
};

}  // namespace trireme::train
