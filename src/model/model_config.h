// What a Hugging Face config.json says about a decoder-only model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace trireme::model {

enum class Family { llama, qwen2, qwen3, mistral };

enum class RopeKind { plain, linear, llama3 };
struct RopeConfig {
  RopeKind kind = RopeKind::plain;
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0;       // llama3
  double high_freq_factor = 4.0;      // llama3
  int64_t original_max_position = 0;  // llama3
};

struct ModelConfig {
  Family family = Family::llama;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t intermediate_size = 0;
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  RopeConfig rope;
  bool qkv_bias = false;
  bool output_bias = false;  // o_proj
  bool mlp_bias = false;
  bool qk_norm = false;  // per-head RMSNorm of q and k before the rotation (Qwen3)
  bool tie_word_embeddings = false;
  int64_t sliding_window = 0;  // 0: none
  int64_t pad_token_id = -1;   // row of the embedding that Hugging Face makes zero; -1: none
  double initializer_range = 0.02;
  DType stored_dtype = DType::f32;  // torch_dtype / dtype of the folder

  int64_t q_size() const { return num_heads * head_dim; }
  int64_t kv_size() const { return num_kv_heads * head_dim; }
  int64_t qkv_size() const { return q_size() + 2 * kv_size(); }
};

/// Reads `folder`/config.json (4.x and 5.x spellings). Throws ConfigError naming the key for a
/// family, activation, rope kind or value that is not supported; DataError for a broken file.
ModelConfig read_model_config(const std::filesystem::path& folder);

/// cos then sin, (max_position, head_dim) f32 row-major: head_dim/2 cosines then head_dim/2 sines
/// of each position, as Hugging Face computes them (inverse frequencies in f32, angles in f32).
std::vector<float> rope_table(const ModelConfig& config, int64_t max_position);

}  // namespace trireme::model
