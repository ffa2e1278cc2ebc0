#include "train/tiny.h"

#include <cmath>

#include "base/random.h"

namespace trireme::train {

model::ModelGraph tiny_model(const TinyModel& spec) {
  model::ModelConfig config;
  config.family = spec.family;
  config.hidden_size = spec.hidden;
  config.num_layers = spec.layers;
  config.num_heads = spec.heads;
  config.num_kv_heads = spec.kv_heads;
  config.head_dim = spec.head_dim;
  config.intermediate_size = spec.ffn;
  config.vocab_size = spec.vocab;
  config.max_position_embeddings = 4096;
  config.qkv_bias = spec.family == model::Family::qwen2;
  config.qk_norm = spec.family == model::Family::qwen3;
  config.sliding_window = spec.window;
  config.tie_word_embeddings = spec.tied;
  config.initializer_range = 0.1;
  return model::build_model(config);
}

data::Dataset random_dataset(const std::vector<int64_t>& lengths, int64_t vocab, uint64_t seed) {
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<int32_t>> labels;
  uint64_t state = seed * 2 + 1;
  const auto next = [&] { return state = state * 6364136223846793005u + 1442695040888963407u; };
  for (int64_t length : lengths) {
    auto& row = ids.emplace_back();
    auto& trained = labels.emplace_back();
    for (int64_t t = 0; t < length; ++t) {
      row.push_back(static_cast<int32_t>((next() >> 33) % static_cast<uint64_t>(vocab)));
      trained.push_back((next() >> 33) % 5 == 0 ? -100 : row.back());
    }
  }
  return data::Dataset(ids, labels);
}

void RoughSource::read_master(const model::Parameter& parameter, const mesh::Box& box, float* out) {
  const RandomStream stream(seed_, parameter.name);
  const float mean = parameter.init == model::Init::ones ? 1.0f : 0.0f;
  const float deviation = parameter.init == model::Init::normal
                              ? 0.8f / std::sqrt(static_cast<float>(parameter.shape.back()))
                              : 0.2f;
  for (const mesh::Run& run : mesh::copy_runs(mesh::whole(parameter.shape), box)) {
    stream.fill_normal(run.from, run.count, mean, deviation, out + run.to);
  }
}

}  // namespace trireme::train
