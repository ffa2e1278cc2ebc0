#include "config/fsdp.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "config/value.h"

namespace trireme::config {
namespace {

constexpr std::string_view kPrefetch =
    "weights are gathered a unit ahead; --stage3_prefetch_bucket_size says how far";
constexpr std::string_view kNoXla = "there is no XLA";

/// A way of sharding: ZeRO's stage, and whether only the ranks of one host share the state.
struct Strategy {
  std::string_view word;
  int stage;
  bool hybrid;
};
constexpr std::array<Strategy, 5> kStrategies = {{{"full_shard", 3, false},
                                                  {"shard_grad_op", 2, false},
                                                  {"no_shard", 0, false},
                                                  {"hybrid_shard", 3, true},
                                                  {"hybrid_shard_zero2", 2, true}}};

/// By name, or by accelerate's number, from 1.
std::optional<Strategy> find_strategy(const std::string& text) {
  const std::string word = lower_case(text);
  for (size_t i = 0; i < kStrategies.size(); ++i) {
    if (word == kStrategies[i].word || word == std::to_string(i + 1)) return kStrategies[i];
  }
  return std::nullopt;
}

/// Keys without a prefix that they may have, and how each is written.
struct PlainKeys {
  Json keys = Json::object();
  std::map<std::string, std::string> written;

  /// A path as the document has it.
  std::string in_document(const std::string& path, KeySpelling spelling) const {
    if (spelling != nullptr) return spelling(path);
    const auto dot = std::min(path.find('.'), path.size());
    const auto found = written.find(path.substr(0, dot));
    return found == written.end() ? path : found->second + path.substr(dot);
  }
};

PlainKeys without_prefix(const Json& keys, std::string_view prefix, Reading* reading) {
  PlainKeys result;
  for (const auto& [name, value] : keys.items()) {
    const std::string lower = lower_case(name);
    const std::string key = lower.starts_with(prefix) ? lower.substr(prefix.size()) : lower;
    if (result.keys.contains(key)) {
      reading->problems.push_back(fmt::format(
          "{} is given twice in {}, with and without its prefix", key, reading->source));
    }
    result.keys[key] = value;
    result.written[key] = name;
  }
  return result;
}

class FsdpReader final : public SchemaReader {
 public:
  FsdpReader(const Schema& schema, const OptionTable& table, const FsdpRequest& request,
             const PlainKeys& plain)
      : SchemaReader(schema, table, request.keys_source), request_(request), plain_(plain) {
    for (const std::string& word : request.words) read_word(word);
  }

 private:
  std::string label(const std::string& path) const override {
    return plain_.in_document(path, request_.spelling);
  }

  void read_word(const std::string& word) {
    const auto strategy = find_strategy(word);
    if (!strategy) {  // auto_wrap
      reading().notices.push_back(
          fmt::format("{} in {} has no effect: {}", word, request_.words_source, kUnits));
    } else if (strategy_ && strategy_->word != strategy->word) {
      problem("{}: {} contradicts {}: give one", request_.words_source, strategy->word,
              strategy_->word);
    } else {
      strategy_ = strategy;
      strategy_origin_ = fmt::format("{} {}", request_.words_source, strategy->word);
    }
  }

  void read_in_code(const std::string& path, const Json& value) override {
    if (path == "sharding_strategy") {
      choose(path, value);
    } else if (path == "reshard_after_forward") {
      read_reshard(path, value);
    } else if (path == "activation_checkpointing") {
      if (coerce_json({.kind = kBool}, value) == true) set("recompute", "block", path);
    } else if (path == "mixed_precision_policy") {
      read_precision(path, value);
      set("reduce_dtype", value, path);
    } else {
      read_precision(path, value);
    }
  }

  void choose(const std::string& path, const Json& value) {
    const auto strategy = find_strategy(shown(value));
    if (!strategy) {
      throw BadValue(
          "expects one of full_shard, shard_grad_op, no_shard, hybrid_shard, "
          "hybrid_shard_zero2");
    }
    if (strategy_ && strategy_->word != strategy->word) {
      throw BadValue(fmt::format("contradicts {}; give one", strategy_origin_));
    }
    strategy_ = strategy;
    strategy_origin_ = fmt::format("{} in {}", label(path), reading().source);
  }

  /// FSDP2's booleans, or FSDP1's strategies under this name.
  void read_reshard(const std::string& path, const Json& value) {
    if (find_strategy(shown(value))) return choose(path, value);
    reshard_ = coerce_json({.kind = kBool}, value).get<bool>();
  }

  void read_precision(const std::string& path, const Json& value) {
    const std::string word = lower_case(shown(value));
    const std::string type = word.starts_with("torch.") ? word.substr(6) : word;
    if (type == "bf16" || type == "bfloat16") {
      set("bf16", true, path);
    } else if (type == "fp32" || type == "float32") {
      set("bf16", false, path);
    } else {
      throw BadValue("not supported; bf16 and fp32 are");
    }
  }

  void finish() override {
    if (!strategy_) {
      strategy_ = kStrategies[0];
      strategy_origin_ = request_.words_source.empty() ? reading().source : request_.words_source;
    }
    int stage = strategy_->stage;
    if (reshard_ == false && stage == 3) stage = 2;
    if (reshard_ == true && stage == 2) {
      problem("{} = true in {} contradicts {}, which keeps the weights gathered",
              label("reshard_after_forward"), reading().source, strategy_origin_);
    }
    reading().settings.push_back(
        {"zero_stage", stage, fmt::format("zero_stage in {}", strategy_origin_)});
    if (strategy_->hybrid) {
      reading().settings.push_back(
          {"shard_group_size", nullptr, fmt::format("shard_group_size in {}", strategy_origin_)});
    }
  }

  const FsdpRequest& request_;
  const PlainKeys& plain_;
  std::optional<Strategy> strategy_;
  std::string strategy_origin_;
  std::optional<bool> reshard_;
};

class ParallelismReader final : public SchemaReader {
 public:
  ParallelismReader(const Schema& schema, const OptionTable& table, std::string source,
                    KeySpelling spelling, const PlainKeys& plain)
      : SchemaReader(schema, table, std::move(source)), spelling_(spelling), plain_(plain) {}

 private:
  std::string label(const std::string& path) const override {
    return plain_.in_document(path, spelling_);
  }
  void read_in_code(const std::string& path, const Json& value) override {
    const auto size = coerce_json({.kind = kInt, .range = {.low = 1}}, value).get<int64_t>();
    if (path == "dp_replicate_size") {
      set("dp_replicate_size", size, path);
    } else if (size > 1) {
      set("shard_group_size", size, path);
    }
  }

  KeySpelling spelling_;
  const PlainKeys& plain_;
};

}  // namespace

Schema fsdp_schema() {
  Schema schema;
  schema.honour_in_code("sharding_strategy", kText, "as the words of `--fsdp`, or 1 to 5");
  schema.honour_in_code("reshard_after_forward", kBool,
                        "`--zero_stage`: 3, and 2 for false; or a word of `--fsdp`");
  schema.honour_in_code("activation_checkpointing", kBool,
                        "`--recompute` block; `--gradient_checkpointing` must not be on too");
  schema.honour_in_code("mixed_precision_policy", kJson,
                        "one word: `--bf16`, or not for fp32, and `--reduce_dtype`");
  schema.honour_in_code("mixed_precision_policy.param_dtype", kText, "`--bf16`, or not for fp32");
  schema.honour("mixed_precision_policy.reduce_dtype", "reduce_dtype");
  schema.ignore("mixed_precision_policy.buffer_dtype", kText, "the rotary table is always fp32");
  schema.ignore("mixed_precision_policy.output_dtype", kText, "the loss is always fp32");
  schema.ignore("mixed_precision_policy.cast_forward_inputs", kBool, "inputs are token ids");
  schema.refuse("offload_params", kBool, {false}, kNoOffload);
  schema.refuse("cpu_offload", kBool, {false}, kNoOffload);
  schema.ignore("cpu_offload_pin_memory", kBool, "nothing is offloaded");
  schema.ignore("version", kInt, "there is one way of sharding");
  for (const std::string_view path : {"auto_wrap_policy", "transformer_layer_cls_to_wrap"}) {
    schema.ignore(path, kJson, kUnits);
  }
  schema.ignore("min_num_params", kInt, kUnits);
  schema.refuse("ignored_modules", kJson, {""}, "not supported yet");
  schema.ignore("backward_prefetch", kText, kPrefetch);
  schema.ignore("forward_prefetch", kBool, kPrefetch);
  schema.ignore("limit_all_gathers", kBool,
                "memory is planned, so gathers never run too far ahead");
  schema.ignore("use_orig_params", kBool, "weights keep their names and shapes");
  schema.ignore("sync_module_states", kBool, kOwnSlice);
  schema.ignore("cpu_ram_efficient_loading", kBool, kOwnSlice);
  for (const std::string_view path : {"state_dict_type", "final_state_dict_type"}) {
    schema.ignore(path, kText, "checkpoints are sharded, and the model is always written whole");
  }
  schema.refuse("xla", kBool, {false}, kNoXla);
  schema.refuse("xla_fsdp_v2", kBool, {false}, kNoXla);
  schema.ignore("xla_fsdp_settings", kJson, kNoXla);
  schema.ignore("xla_fsdp_grad_ckpt", kBool, kNoXla);
  schema.alias("transformer_cls_to_wrap", "transformer_layer_cls_to_wrap");
  return schema;
}

Reading read_fsdp(const FsdpRequest& request, const OptionTable& table) {
  const Schema schema = fsdp_schema();
  Reading found;
  found.source = request.keys_source;
  const PlainKeys plain = without_prefix(request.keys, "fsdp_", &found);
  found.append(FsdpReader(schema, table, request, plain).read(plain.keys));
  return found;
}

Schema parallelism_schema() {
  Schema schema;
  schema.honour_in_code("dp_shard_size", kInt, "`--shard_group_size`, above 1");
  schema.honour_in_code("dp_replicate_size", kInt, "`--dp_replicate_size`");
  schema.honour("tp_size", "tensor_parallel_size");
  for (const std::string_view path : {"cp_size", "sp_size"}) {
    schema.refuse(path, kInt, {1}, "not supported yet");
  }
  for (const std::string_view path :
       {"cp_backend", "cp_comm_strategy", "sp_backend", "sp_seq_length",
        "sp_seq_length_is_variable", "sp_attn_implementation"}) {
    schema.ignore(path, kText, "sequences are not split");
  }
  return schema;
}

Reading read_parallelism(const Json& keys, const std::string& source, KeySpelling spelling,
                         const OptionTable& table) {
  const Schema schema = parallelism_schema();
  Reading found;
  found.source = source;
  const PlainKeys plain = without_prefix(keys, "parallelism_config_", &found);
  found.append(ParallelismReader(schema, table, source, spelling, plain).read(plain.keys));
  return found;
}

}  // namespace trireme::config
