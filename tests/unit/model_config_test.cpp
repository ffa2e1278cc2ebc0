#include "model/model_config.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "model/init.h"
#include "support/temp_folder.h"

namespace trireme::model {
namespace {

using test::message_of;
using test::TempFolder;

class ModelConfigTest : public testing::Test {
 protected:
  /// A small model with these keys changed; null values stay in the file, "" keys are dropped.
  ModelConfig read(const std::string& changes) {
    Json json = parse_json(R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4,
      "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 176,
      "vocab_size": 512, "max_position_embeddings": 256, "rms_norm_eps": 1e-05,
      "hidden_act": "silu", "torch_dtype": "bfloat16"})",
                           "base");
    const Json patch = parse_json(changes, "changes");
    for (const auto& [key, value] : patch.items()) {
      if (value == "REMOVED") {
        json.erase(key);
      } else {
        json[key] = value;
      }
    }
    remove_tree(folder_ / "config.json");
    write_new_file(folder_ / "config.json", dump_json(json, 2));
    return read_model_config(folder_.path());
  }
  std::string unsupported(const std::string& changes) {
    return message_of<ConfigError>([&] { read(changes); });
  }
  std::string wrong(const std::string& changes) {
    return message_of<DataError>([&] { read(changes); });
  }
  std::string path() const { return (folder_ / "config.json").string(); }
  TempFolder folder_;
};

TEST_F(ModelConfigTest, LlamaAndItsDefaults) {
  const ModelConfig config = read("{}");
  EXPECT_EQ(config.family, Family::llama);
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.num_layers, 4);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.qkv_size(), 128);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.rope.kind, RopeKind::plain);
  EXPECT_EQ(config.rope.theta, 10000.0);
  EXPECT_FALSE(config.qkv_bias || config.output_bias || config.mlp_bias || config.qk_norm);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.stored_dtype, DType::bf16);
  EXPECT_EQ(config.pad_token_id, -1);
  EXPECT_EQ(config.initializer_range, 0.02);
  EXPECT_EQ(read(R"({"num_key_value_heads": "REMOVED"})").num_kv_heads, 4);
  EXPECT_EQ(read(R"({"head_dim": null})").head_dim, 16);
  EXPECT_EQ(read(R"({"head_dim": 32})").head_dim, 32);
  const ModelConfig biased = read(R"({"attention_bias": true, "mlp_bias": true})");
  EXPECT_TRUE(biased.qkv_bias && biased.output_bias && biased.mlp_bias);
}

TEST_F(ModelConfigTest, OtherFamilies) {
  const ModelConfig qwen2 = read(R"({"model_type": "qwen2", "tie_word_embeddings": true,
      "sliding_window": 131072, "use_sliding_window": false, "pad_token_id": 3})");
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.output_bias && qwen2.tie_word_embeddings);
  EXPECT_EQ(qwen2.sliding_window, 0);
  EXPECT_EQ(qwen2.pad_token_id, 3);
  const ModelConfig qwen3 = read(R"({"model_type": "qwen3"})");
  EXPECT_TRUE(qwen3.qk_norm && !qwen3.qkv_bias);
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_EQ(read(R"({"model_type": "mistral", "sliding_window": 16})").sliding_window, 16);
  EXPECT_EQ(read(R"({"model_type": "mistral", "sliding_window": null})").sliding_window, 0);
  EXPECT_EQ(read(R"({"model_type": "mistral"})").sliding_window, 4096);
}

/// The spellings of transformers 4 and 5 say the same.
TEST_F(ModelConfigTest, Qwen3InBothSpellings) {
  const ModelConfig old = read(R"({"model_type": "qwen3", "head_dim": 32, "attention_bias": false,
      "rope_theta": 1000000, "rope_scaling": null, "sliding_window": null, "max_window_layers": 2,
      "use_sliding_window": false, "tie_word_embeddings": true})");
  const ModelConfig recent = read(R"({"model_type": "qwen3", "head_dim": 32, "dtype": "bfloat16",
      "torch_dtype": "REMOVED", "rope_parameters": {"rope_theta": 1000000,
      "rope_type": "default"}, "layer_types": ["full_attention", "full_attention",
      "full_attention", "full_attention"], "sliding_window": null, "use_sliding_window": false,
      "tie_word_embeddings": true})");
  for (const ModelConfig& config : {old, recent}) {
    EXPECT_EQ(config.q_size(), 128) << "heads of their own size, not hidden_size / heads";
    EXPECT_EQ(config.rope.theta, 1e6);
    EXPECT_EQ(config.sliding_window, 0);
    EXPECT_EQ(config.stored_dtype, DType::bf16);
    EXPECT_TRUE(config.qk_norm && config.tie_word_embeddings && !config.qkv_bias);
  }
  const ModelConfig biased = read(R"({"model_type": "qwen3", "attention_bias": true})");
  EXPECT_TRUE(biased.qkv_bias && biased.output_bias);
}

TEST_F(ModelConfigTest, SlidingWindowOfQwen) {
  const std::string on =
      R"("model_type": "qwen2", "use_sliding_window": true, "sliding_window": 8)";
  EXPECT_EQ(read("{" + on + R"(, "max_window_layers": 4})").sliding_window, 0);
  EXPECT_EQ(read(R"({"model_type": "qwen2", "use_sliding_window": true, "max_window_layers": 0})")
                .sliding_window,
            4096);
  EXPECT_EQ(read("{" + on + R"(, "max_window_layers": 0})").sliding_window, 8);
  EXPECT_NE(unsupported("{" + on + R"(, "max_window_layers": 2})").find("max_window_layers = 2"),
            std::string::npos);
  EXPECT_EQ(read("{" + on + R"(, "max_window_layers": 2, "layer_types": ["sliding_attention",
      "sliding_attention", "sliding_attention", "sliding_attention"]})")
                .sliding_window,
            8);
  EXPECT_NE(unsupported("{" + on + R"(, "layer_types": ["full_attention",
      "sliding_attention", "sliding_attention", "sliding_attention"]})")
                .find("layer_types"),
            std::string::npos);
  EXPECT_NE(wrong("{" + on + R"(, "layer_types": ["full_attention"]})"), "");
  const std::string all = R"("layer_types": ["sliding_attention", "sliding_attention",
      "sliding_attention", "sliding_attention"]})";
  EXPECT_EQ(read(R"({"model_type": "mistral", "sliding_window": 8, )" + all).sliding_window, 8);
  EXPECT_NE(unsupported(R"({"model_type": "qwen3", "sliding_window": 8, )" + all)
                .find("no sliding_window is in use"),
            std::string::npos);
  EXPECT_NE(unsupported(R"({"model_type": "qwen3", "layer_types": ["full_attention",
      "full_attention", "full_attention", "linear_attention"]})")
                .find("the supported types are"),
            std::string::npos);
}

TEST_F(ModelConfigTest, RopeInBothSpellings) {
  const ModelConfig old = read(R"({"rope_theta": 500000.0, "rope_scaling": {"factor": 8.0,
      "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
      "rope_type": "llama3"}, "dtype": "float32"})");
  const ModelConfig recent = read(R"({"rope_parameters": {"rope_theta": 500000.0, "factor": 8.0,
      "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
      "rope_type": "llama3"}})");
  for (const ModelConfig& config : {old, recent}) {
    EXPECT_EQ(config.rope.kind, RopeKind::llama3);
    EXPECT_EQ(config.rope.theta, 500000.0);
    EXPECT_EQ(config.rope.factor, 8.0);
    EXPECT_EQ(config.rope.original_max_position, 64);
  }
  EXPECT_EQ(old.stored_dtype, DType::f32) << "dtype before torch_dtype";
  const ModelConfig linear = read(R"({"rope_scaling": {"type": "linear", "factor": 2.0}})");
  EXPECT_EQ(linear.rope.kind, RopeKind::linear);
  EXPECT_EQ(linear.rope.factor, 2.0);
  EXPECT_EQ(read(R"({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}})").rope.theta,
            7.0);
  EXPECT_EQ(read(R"({"rope_scaling": null, "rope_theta": 1000000})").rope.theta, 1e6);
}

TEST_F(ModelConfigTest, UnsupportedValuesAreRefusedByKey) {
  EXPECT_EQ(unsupported(R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}})"),
            "rope_scaling.rope_type = \"yarn\" (" + path() +
                "): the supported kinds are default, linear and llama3");
  EXPECT_EQ(unsupported(R"({"model_type": "qwen22"})"),
            "model_type = \"qwen22\" (" + path() +
                "): only llama, qwen2, qwen3 and mistral models "
                "are supported (did you mean 'qwen2'?)");
  EXPECT_NE(unsupported(R"({"hidden_act": "gelu"})"), "");
  EXPECT_NE(unsupported(R"({"torch_dtype": "float8"})"), "");
  EXPECT_NE(unsupported(R"({"attention_dropout": 0.1})"), "");
  EXPECT_NE(unsupported(R"({"quantization_config": {}})"), "");
  EXPECT_NE(unsupported(R"({"rope_parameters": {"partial_rotary_factor": 0.5}})"), "");
  EXPECT_EQ(unsupported(R"({"attention_dropout": 0})"), "");
}

TEST_F(ModelConfigTest, BrokenValuesAreDataErrors) {
  EXPECT_EQ(wrong(R"({"hidden_size": "REMOVED"})"), path() + ": key 'hidden_size' is missing");
  EXPECT_EQ(wrong(R"({"hidden_size": "64"})"),
            path() + ": hidden_size = \"64\": a positive whole number is needed");
  for (const char* changes :
       {R"({"hidden_size": 0})", R"({"hidden_size": -1})", R"({"hidden_size": 1.5})",
        R"({"hidden_size": 4294967296})", R"({"num_key_value_heads": 3})",
        R"({"num_attention_heads": 5, "num_key_value_heads": 5})", R"({"head_dim": 12})",
        R"({"hidden_size": 48})", R"({"rms_norm_eps": NaN})", R"({"rms_norm_eps": -1e-6})",
        R"({"tie_word_embeddings": 1})", R"({"model_type": 3})", R"({"rope_scaling": []})",
        R"({"pad_token_id": 512})", R"({"pad_token_id": 1.5})", R"({"rope_theta": "x"})",
        R"({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}})",
        R"({"rope_scaling": {"type": "linear", "factor": 0.5}})"}) {
    EXPECT_TRUE(wrong(changes).starts_with(path())) << changes << "\n" << wrong(changes);
  }
  remove_tree(folder_ / "config.json");
  EXPECT_NE(message_of<DeviceError>([&] { read_model_config(folder_.path()); }), "");
  write_new_file(folder_ / "config.json", "[]");
  EXPECT_NE(message_of<DataError>([&] { read_model_config(folder_.path()); }), "");
}

TEST_F(ModelConfigTest, RopeTableIsCosinesThenSines) {
  const ModelConfig config = read(R"({"rope_theta": 10000})");
  const std::vector<float> table = rope_table(config, 100);
  ASSERT_EQ(table.size(), 1600u);
  for (int64_t position : {0, 1, 50, 99}) {
    for (int64_t i = 0; i < 8; ++i) {
      const double angle =
          static_cast<double>(position) * std::pow(10000.0, -2.0 * static_cast<double>(i) / 16);
      EXPECT_NEAR(table[static_cast<size_t>(position * 16 + i)], std::cos(angle), 2e-5);
      EXPECT_NEAR(table[static_cast<size_t>(position * 16 + 8 + i)], std::sin(angle), 2e-5);
    }
  }
}

/// Inverse frequencies back from the sines of position 1 (all below pi / 2 from i = 1 on).
TEST_F(ModelConfigTest, RopeScaling) {
  const auto frequency = [](const ModelConfig& config, int64_t i) {
    return std::asin(static_cast<double>(rope_table(config, 2)[static_cast<size_t>(16 + 8 + i)]));
  };
  const ModelConfig linear = read(R"({"rope_scaling": {"type": "linear", "factor": 4.0}})");
  EXPECT_NEAR(frequency(linear, 1), std::pow(10000.0, -0.125) / 4, 1e-6);
  const ModelConfig llama3 = read(R"({"rope_theta": 10000, "rope_scaling": {"factor": 8.0,
      "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
      "rope_type": "llama3"}})");
  for (int64_t i = 1; i < 8; ++i) {
    const double plain = std::pow(10000.0, -2.0 * static_cast<double>(i) / 16);
    const double wave = 2 * M_PI / plain;
    const double smooth = (64 / wave - 1) / 3;
    const double expected = wave < 16   ? plain
                            : wave > 64 ? plain / 8
                                        : (1 - smooth) * plain / 8 + smooth * plain;
    EXPECT_NEAR(frequency(llama3, i) / expected, 1.0, 1e-5) << i;
  }
  const double between = 2 * M_PI / std::pow(10000.0, -0.25);
  EXPECT_TRUE(between > 16 && between < 64) << "the blended case is covered";
}

TEST_F(ModelConfigTest, InitDependsOnSeedNameAndElementOnly) {
  const ModelConfig config = read(R"({"pad_token_id": 3, "initializer_range": 0.5})");
  const Parameter embedding{.name = "model.embed_tokens.weight", .shape = {8, 40}};
  std::vector<float> whole(320);
  init_box(config, embedding, 7, mesh::whole({8, 40}), whole.data());
  const mesh::Box box{{2, 10}, {4, 20}};
  std::vector<float> part(80);
  init_box(config, embedding, 7, box, part.data());
  double squares = 0;
  for (size_t r = 0; r < 4; ++r) {
    for (size_t c = 0; c < 20; ++c) EXPECT_EQ(part[r * 20 + c], whole[(r + 2) * 40 + c + 10]);
  }
  for (size_t c = 0; c < 40; ++c) EXPECT_EQ(whole[3 * 40 + c], 0.0f) << "the padding row";
  for (const float x : whole) squares += static_cast<double>(x) * x;
  EXPECT_NEAR(std::sqrt(squares / 280), 0.5, 0.1);
  std::vector<float> other(320);
  init_box(config, embedding, 8, mesh::whole({8, 40}), other.data());
  EXPECT_NE(other, whole);
  const Parameter head{.name = "lm_head.weight", .shape = {8, 40}};
  init_box(config, head, 7, mesh::whole({8, 40}), other.data());
  EXPECT_NE(other, whole);
  EXPECT_NE(other[3 * 40], 0.0f);
  const Parameter norm{.name = "model.norm.weight", .shape = {2}, .init = Init::ones};
  init_box(config, norm, 7, mesh::whole({2}), other.data());
  EXPECT_EQ(other[0] + other[1], 2.0f);
}

}  // namespace
}  // namespace trireme::model
