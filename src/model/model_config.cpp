#include "model/model_config.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/math.h"
#include "base/text.h"
#include "model/config_keys.h"

namespace trireme::model {

namespace {

/// What a family's class in transformers takes for granted when a key is absent.
struct FamilyRow {
  std::string_view name;
  Family family;
  int64_t num_kv_heads;  // 0: as many as heads
  int64_t head_dim;      // 0: hidden_size / heads
  int64_t max_positions;
};
constexpr std::array<FamilyRow, 4> kFamilies = {{{"llama", Family::llama, 0, 0, 2048},
                                                 {"qwen2", Family::qwen2, 32, 0, 32768},
                                                 {"qwen3", Family::qwen3, 32, 128, 32768},
                                                 {"mistral", Family::mistral, 8, 0, 131072}}};

const FamilyRow& family_of(const ConfigKeys& keys) {
  const std::string name = keys.text("model_type", "");
  std::vector<std::string_view> names;
  for (const FamilyRow& row : kFamilies) {
    if (row.name == name) return row;
    names.push_back(row.name);
  }
  keys.unsupported("model_type",
                   fmt::format("only llama, qwen2, qwen3 and mistral models are supported{}",
                               did_you_mean(name, names)));
}

DType stored_dtype_of(const ConfigKeys& keys) {
  const char* key = keys.has("dtype") ? "dtype" : "torch_dtype";
  std::string name = keys.text(key, "float32");
  if (name.starts_with("torch.")) name = name.substr(6);
  if (name == "float32") return DType::f32;
  if (name == "bfloat16") return DType::bf16;
  if (name == "float16") return DType::f16;
  keys.unsupported(key, "weights must be float32, bfloat16 or float16");
}

RopeConfig scaled_rope(const ConfigKeys& keys, RopeConfig rope) {
  const char* kind_key = keys.has("rope_type") ? "rope_type" : "type";
  const std::string kind = keys.text(kind_key, "default");
  rope.theta = keys.positive_number("rope_theta", rope.theta);
  if (keys.has("partial_rotary_factor") && keys.positive_number("partial_rotary_factor") != 1.0) {
    keys.unsupported("partial_rotary_factor", "only whole heads are rotated here");
  }
  if (kind == "default") return rope;
  if (kind != "linear" && kind != "llama3") {
    keys.unsupported(kind_key, "the supported kinds are default, linear and llama3");
  }
  rope.kind = kind == "linear" ? RopeKind::linear : RopeKind::llama3;
  rope.factor = keys.positive_number("factor");
  if (rope.factor < 1.0) keys.wrong("factor", "at least 1 is needed");
  if (rope.kind == RopeKind::linear) return rope;
  rope.low_freq_factor = keys.positive_number("low_freq_factor");
  rope.high_freq_factor = keys.positive_number("high_freq_factor");
  rope.original_max_position = keys.positive("original_max_position_embeddings");
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    keys.wrong("high_freq_factor", "it must be greater than low_freq_factor");
  }
  return rope;
}

/// 4.x: rope_theta beside rope_scaling; 5.x: both inside rope_parameters.
RopeConfig rope_of(const ConfigKeys& keys) {
  RopeConfig rope;
  rope.theta = keys.positive_number("rope_theta", rope.theta);
  const char* key = keys.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!keys.has(key)) return rope;
  return scaled_rope(keys.nested(key), rope);
}

constexpr int64_t kDefaultWindow = 4096;  // of a config.json that does not say; null is none

/// How many layers slide by layer_types; nothing where the key is absent.
std::optional<int64_t> num_sliding_listed(const ConfigKeys& keys, int64_t num_layers) {
  const Json& types = keys.raw("layer_types");
  if (types.is_null()) return {};
  if (!types.is_array() || static_cast<int64_t>(types.size()) != num_layers) {
    keys.wrong("layer_types", fmt::format("{} layers are needed", num_layers));
  }
  int64_t num_sliding = 0;
  for (const Json& type : types) {
    if (type != "full_attention" && type != "sliding_attention") {
      keys.unsupported("layer_types", "the supported types are full_attention, sliding_attention");
    }
    num_sliding += type == "sliding_attention" ? 1 : 0;
  }
  return num_sliding;
}

/// Layers that slide by max_window_layers: those from it on.
int64_t num_sliding_after(const ConfigKeys& keys, int64_t num_layers) {
  const Json& first = keys.raw("max_window_layers");
  const bool usable = first.is_number_unsigned() && first.get<uint64_t>() <= INT32_MAX;
  if (!first.is_null() && !usable) keys.wrong("max_window_layers", "a whole number is needed");
  return std::max<int64_t>(0, num_layers - (usable ? first.get<int64_t>() : 28));
}

/// The window of sliding attention when all layers slide, 0 when none does. A mix is refused.
int64_t sliding_window_of(const ConfigKeys& keys, const ModelConfig& config) {
  if (config.family == Family::llama) return 0;  // transformers does not read it
  const bool by_switch = config.family == Family::qwen2 || config.family == Family::qwen3;
  const bool on = by_switch ? keys.boolean("use_sliding_window", false) : true;
  const int64_t fallback = keys.contains("sliding_window") ? 0 : kDefaultWindow;
  const int64_t window = on ? keys.positive("sliding_window", fallback) : 0;
  const std::optional<int64_t> listed = num_sliding_listed(keys, config.num_layers);
  if (window == 0) {
    if (listed.value_or(0) > 0) {
      keys.unsupported("layer_types", "no sliding_window is in use that its layers could slide by");
    }
    return 0;
  }
  const int64_t num_sliding = listed      ? *listed
                              : by_switch ? num_sliding_after(keys, config.num_layers)
                                          : config.num_layers;
  if (num_sliding == 0) return 0;
  if (num_sliding < config.num_layers) {
    keys.unsupported(listed ? "layer_types" : "max_window_layers",
                     "layers with and without a sliding window cannot be mixed");
  }
  return window;
}

void read_sizes(const ConfigKeys& keys, const FamilyRow& family, ModelConfig* config) {
  config->hidden_size = keys.positive("hidden_size");
  config->num_layers = keys.positive("num_hidden_layers");
  config->num_heads = keys.positive("num_attention_heads");
  config->num_kv_heads = keys.positive(
      "num_key_value_heads", family.num_kv_heads == 0 ? config->num_heads : family.num_kv_heads);
  config->intermediate_size = keys.positive("intermediate_size");
  config->vocab_size = keys.positive("vocab_size");
  config->max_position_embeddings = keys.positive("max_position_embeddings", family.max_positions);
  if (config->num_heads % config->num_kv_heads != 0) {
    keys.wrong("num_key_value_heads",
               fmt::format("it must divide num_attention_heads = {}", config->num_heads));
  }
  if (!keys.has("head_dim") && family.head_dim == 0 &&
      config->hidden_size % config->num_heads != 0) {
    keys.wrong("num_attention_heads",
               fmt::format("it must divide hidden_size = {}", config->hidden_size));
  }
  config->head_dim = keys.positive(
      "head_dim", family.head_dim != 0 ? family.head_dim : config->hidden_size / config->num_heads);
  if (config->head_dim % 8 != 0) {
    keys.wrong("head_dim",
               fmt::format("it is {} here, and a multiple of 8 is needed", config->head_dim));
  }
}

void read_pad_token(const ConfigKeys& keys, ModelConfig* config) {
  const Json& pad = keys.raw("pad_token_id");
  if (pad.is_null()) return;
  if (!pad.is_number_integer()) keys.wrong("pad_token_id", "a whole number is needed");
  const auto id = pad.get<int64_t>();
  if (id >= config->vocab_size) keys.wrong("pad_token_id", "it is outside the vocabulary");
  config->pad_token_id = id < 0 ? -1 : id;
}

}  // namespace

ModelConfig read_model_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  const Json json = read_json(path);
  const ConfigKeys keys(json, path.string());
  const FamilyRow& family = family_of(keys);
  ModelConfig config;
  config.family = family.family;
  read_sizes(keys, family, &config);
  read_pad_token(keys, &config);
  config.rms_norm_eps = keys.positive_number("rms_norm_eps", config.rms_norm_eps);
  config.initializer_range = keys.positive_number("initializer_range", config.initializer_range);
  config.rope = rope_of(keys);
  config.tie_word_embeddings = keys.boolean("tie_word_embeddings", false);
  config.stored_dtype = stored_dtype_of(keys);
  config.sliding_window = sliding_window_of(keys, config);

  const bool has_switches = config.family == Family::llama || config.family == Family::qwen3;
  const bool attention_bias = has_switches && keys.boolean("attention_bias", false);
  config.qkv_bias = attention_bias || config.family == Family::qwen2;
  config.output_bias = attention_bias;
  config.mlp_bias = config.family == Family::llama && keys.boolean("mlp_bias", false);
  config.qk_norm = config.family == Family::qwen3;

  if (keys.text("hidden_act", "silu") != "silu") {
    keys.unsupported("hidden_act", "the supported activation is silu");
  }
  const Json& dropout = keys.raw("attention_dropout");
  if (!dropout.is_null() && dropout != 0.0) {
    keys.unsupported("attention_dropout", "dropout is not supported; set it to 0.0");
  }
  if (keys.has("quantization_config")) {
    keys.unsupported("quantization_config", "give a folder with unquantized weights");
  }
  return config;
}

namespace {

/// Inverse frequencies of head_dim / 2 pairs, in f32 as torch computes them.
std::vector<float> inverse_frequencies(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  std::vector<float> result(static_cast<size_t>(config.head_dim / 2));
  for (size_t i = 0; i < result.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.head_dim);
    result[i] = 1.0f / std::pow(static_cast<float>(rope.theta), exponent);
  }
  const auto factor = static_cast<float>(rope.factor);
  if (rope.kind == RopeKind::linear) {
    for (float& frequency : result) frequency /= factor;
  }
  if (rope.kind == RopeKind::llama3) {
    // Long waves are stretched by `factor`, short ones kept, those between blended.
    const auto old_context = static_cast<double>(rope.original_max_position);
    const auto longest = static_cast<float>(old_context / rope.low_freq_factor);
    const auto shortest = static_cast<float>(old_context / rope.high_freq_factor);
    const auto low = static_cast<float>(rope.low_freq_factor);
    const auto range = static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
    for (float& frequency : result) {
      const float wave_length = static_cast<float>(2.0 * M_PI) / frequency;
      if (wave_length < shortest) continue;
      if (wave_length > longest) {
        frequency /= factor;
        continue;
      }
      const float smooth = (static_cast<float>(old_context) / wave_length - low) / range;
      frequency = (1.0f - smooth) * frequency / factor + smooth * frequency;
    }
  }
  return result;
}

}  // namespace

std::vector<float> rope_table(const ModelConfig& config, int64_t max_position) {
  const std::vector<float> frequencies = inverse_frequencies(config);
  const auto half = static_cast<int64_t>(frequencies.size());
  std::vector<float> table(static_cast<size_t>(checked_mul(max_position, config.head_dim)));
  for (int64_t position = 0; position < max_position; ++position) {
    float* row = table.data() + position * config.head_dim;
    for (int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(position) * frequencies[static_cast<size_t>(i)];
      row[i] = std::cos(angle);
      row[half + i] = std::sin(angle);
    }
  }
  return table;
}

}  // namespace trireme::model
