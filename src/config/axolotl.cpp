// axolotl's YAML: its own keys. All others are Hugging Face's.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/text.h"
#include "config/import_reader.h"
#include "config/value.h"

namespace trireme::config {
namespace {

constexpr std::string_view kNoAdapter = "adapter is off";
constexpr std::string_view kModelFolder = "the model folder says what the model is";
constexpr std::string_view kPrepared = "no prepared copy is kept";
constexpr std::string_view kNoHub = "not supported; a run needs no network";

void add_model(Schema& schema) {
  schema.honour("base_model", "model_name_or_path");
  schema.ignore_all(
      kModelFolder,
      {"model_type", "tokenizer_type", "processor_type", "type_of_model", "is_falcon_derived_model",
       "is_llama_derived_model", "is_mistral_derived_model", "is_qwen_derived_model",
       "tokenizer_use_fast", "tokenizer_legacy"});
  schema.refuse_all(
      kText, {""},
      {"base_model_config", "tokenizer_config", "revision_of_model", "adapter", "lora_model_dir"});
  schema.refuse_all(
      kJson, {Json::object(), Json::array(), ""},
      {"overrides_of_model_config", "overrides_of_model_kwargs", "tokens", "added_tokens_overrides",
       "unfrozen_parameters", "lr_groups", "peft", "qat", "quantization", "rope_scaling"});
  schema.refuse_all(kBool, {false},
                    {"load_in_8bit", "load_in_4bit", "gptq", "relora", "reinit_weights",
                     "resize_token_embeddings_to_32x", "fix_untrained_tokens", "reward_model",
                     "process_reward_model", "llama4_linearized_experts", "scaling_softmax"});
  schema.refuse_all(kText, {""}, {"rl", "trainer_cls"});
  schema.honour_in_code("special_tokens", kJson,
                        "`pad_token` is without effect: nothing is padded with a token; others "
                        "are refused");
  schema.honour_in_code("plugins", kJson, "those of kernels are without effect, others refused");
  schema.ignore_all(
      kNoAdapter,
      {"lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target_linear",
       "lora_target_parameters", "lora_modules_to_save", "lora_fan_in_fan_out", "lora_mlp_kernel",
       "lora_qkv_kernel", "lora_o_kernel", "peft_use_dora", "peft_use_rslora", "loraplus_lr_ratio",
       "loraplus_lr_embedding", "qlora_sharded_model_loading", "lora_on_cpu"});
}

void add_data(Schema& schema) {
  schema.honour_in_code("datasets", kJson,
                        "`--data_path`: one, of a local JSONL file, of `type: completion`");
  schema.honour_in_code("test_datasets", kJson, "`--eval_path`, in the same way");
  schema.refuse("val_set_size", kReal, {0},
                "not supported yet; name the samples to evaluate on with test_datasets");
  schema.refuse("pretraining_dataset", kJson, {Json::array(), ""},
                "not supported yet; name a JSONL file with datasets");
  schema.honour("sequence_len", "max_seq_length");
  schema.honour_in_code("excess_length_strategy", kText,
                        "`--on_long`: drop is skip, raise is error; drop when it is left out");
  schema.honour("sample_packing", "packing");
  schema.honour("eval_sample_packing", "eval_packing");
  schema.ignore_all(kNoPadding,
                    {"pad_to_sequence_len", "multipack_real_batches", "batch_flattening"});
  schema.ignore_all("all samples are packed at once, as many to a pack as fit",
                    {"sample_packing_group_size", "sample_packing_bin_size"});
  schema.ignore("sample_packing_eff_est", kReal,
                "packs are made and counted before the first step");
  schema.ignore("sample_packing_mp_start_method", kText, "packing takes no processes");
  schema.refuse("sample_packing_sequentially", kBool, {false},
                "not supported; a pack takes the samples that fit best");
  schema.refuse_all(kBool, {false},
                    {"use_pose", "curriculum_sampling", "dataset_exact_deduplication"});
  schema.refuse_all(kInt, {}, {"min_sample_len", "eval_sequence_len"});
  schema.ignore("train_on_inputs", kBool, "rows of text are trained whole");
  schema.ignore_all("rows of text have no template",
                    {"chat_template", "chat_template_jinja", "chat_template_kwargs",
                     "default_system_message", "eot_tokens"});
  schema.ignore_all(kPrepared, {"dataset_processes", "dataset_num_proc", "dataset_keep_in_memory",
                                "dataset_shard_num", "dataset_shard_idx", "skip_prepare_dataset",
                                "num_dataset_shards_to_save", "max_prompt_len",
                                "shuffle_before_merging_datasets"});
  schema.ignore("shuffle_merged_datasets", kBool,
                "the order of the samples is that of --train_sampling_strategy");
  schema.refuse_all(kText, {""}, {"push_dataset_to_hub"}, kNoHub);
  schema.ignore("hf_use_auth_token", kBool, "nothing is downloaded");
}

void add_training(Schema& schema) {
  schema.honour("micro_batch_size", "per_device_train_batch_size");
  schema.honour("eval_batch_size", "per_device_eval_batch_size");
  schema.refuse("batch_size", kInt, {},
                "not supported; give micro_batch_size and gradient_accumulation_steps");
  schema.honour("num_epochs", "num_train_epochs");
  schema.honour("optimizer", "optim");
  schema.honour("lr_scheduler", "lr_scheduler_type");
  schema.refuse_all(kReal, {},
                    {"cosine_min_lr_ratio", "cosine_constant_lr_ratio", "lr_div_factor",
                     "embedding_lr", "embedding_lr_scale", "adam_epsilon2", "adam_beta3"});
  schema.refuse("lr_quadratic_warmup", kBool, {false}, kLater);
  schema.honour_in_code("bf16", kText,
                        "`--bf16`; auto is true; full also `--master_dtype` and `--moment_dtype` "
                        "bfloat16, stochastically "
                        "rounded, and gradients stay fp32");
  schema.honour("bfloat16", "bf16");
  schema.refuse_all(kBool, {false}, {"float16", "fp8"}, "not supported; bf16 needs no loss scale");
  schema.ignore("float32", kBool, "bf16 says what is computed in");
  schema.ignore("fp32_norms", kBool, "norms are always computed in fp32");
  schema.honour_in_code("gradient_checkpointing", kText,
                        "`--gradient_checkpointing`; offload and offload_disk are refused");
  schema.refuse_all(kText, {"", "false"}, {"activation_offloading", "layer_offloading"});
  schema.refuse("selective_checkpointing", kJson, {false, Json::object()},
                "not supported yet; --recompute chooses what is kept");
  schema.refuse_all(kInt, {}, {"early_stopping_patience", "loss_watchdog_patience"});
  schema.refuse("loss_watchdog_threshold", kReal, {}, kLater);
}

void add_layout(Schema& schema) {
  schema.refuse("sequence_parallel_degree", kInt, {1}, kLater);
  schema.ignore("heads_k_stride", kInt, "sequences are not split");
  schema.ignore("ring_attn_func", kText, "sequences are not split");
  schema.ignore("fsdp_version", kInt, "there is one way of sharding");
  schema.ignore("fsdp_final_state_dict_type", kText, "the trained model is always written whole");
  schema.refuse("use_ray", kBool, {false}, kLater);
  schema.ignore_all("use_ray is off", {"ray_run_name", "ray_num_workers", "resources_per_worker"});
  schema.ignore_all(
      "a rank's place is read from the environment",
      {"world_size", "ddp", "device_map", "max_memory", "gpu_memory_limit", "low_cpu_mem_usage"});
  schema.ignore_all(kKernels, {"flash_attention",
                               "xformers_attention",
                               "sdp_attention",
                               "flex_attention",
                               "sage_attention",
                               "eager_attention",
                               "flash_attn_cross_entropy",
                               "flash_attn_rms_norm",
                               "flash_attn_fuse_mlp",
                               "flash_attn_fuse_qkv",
                               "s2_attention",
                               "fused_attn_kernel",
                               "chunked_cross_entropy",
                               "chunked_cross_entropy_num_chunks",
                               "tiled_mlp",
                               "tiled_mlp_num_shards",
                               "cut_cross_entropy",
                               "liger_rope",
                               "liger_rms_norm",
                               "liger_layer_norm",
                               "liger_glu_activation",
                               "liger_swiglu",
                               "liger_cross_entropy",
                               "liger_fused_linear_cross_entropy",
                               "torch_compile",
                               "torch_compile_options",
                               "deepcompile",
                               "use_kernels",
                               "gc_steps",
                               "gc_collect_steps"});
}

void add_output(Schema& schema) {
  schema.honour_in_code("evals_per_epoch", kInt, "`--eval_strategy` and `--eval_steps`");
  schema.honour_in_code("saves_per_epoch", kInt, "`--save_strategy` and `--save_steps`");
  schema.refuse_all(kBool, {false},
                    {"save_first_step", "auto_resume_from_checkpoints", "do_causal_lm_eval",
                     "do_bench_eval", "generate_samples"});
  schema.refuse_all(kText, {""}, {"hub_model_id"}, kNoHub);
  schema.honour_in_code("use_tensorboard", kBool, "`--report_to` tensorboard when true");
  schema.ignore_all(
      kNoTracker, {"use_wandb", "wandb_name", "wandb_run_id", "wandb_mode", "wandb_project",
                   "wandb_entity", "wandb_watch", "wandb_log_model", "use_mlflow",
                   "mlflow_tracking_uri", "mlflow_run_name", "mlflow_experiment_name", "use_comet",
                   "comet_project_name", "use_trackio", "trackio_project_name"});
  schema.ignore_all("only the loss is measured",
                    {"eval_table_size", "eval_max_new_tokens", "eval_causal_lm_metrics"});
  schema.refuse("profiler_steps", kInt, {0}, kLater);
  schema.ignore("include_tkps", kBool, "tokens_per_second is always in metrics.jsonl");
  schema.ignore("strict", kBool, "unknown keys are always errors");
}

class AxolotlReader final : public ImportReader {
 public:
  using ImportReader::ImportReader;

 private:
  void read_in_code(const std::string& path, const Json& value) override {
    if (path == "datasets") {
      read_dataset(path, value, "data_path");
    } else if (path == "test_datasets") {
      read_dataset(path, value, "eval_path");
    } else if (path == "excess_length_strategy") {
      read_long_rows(path, value);
    } else if (path == "bf16") {
      const bool full = shown(value) == "full";
      set("bf16", full || value == "auto" ? Json(true) : value, path);
      if (full) set_narrow_state(path);
    } else if (path == "gradient_checkpointing") {
      const bool offloads = shown(value).starts_with("offload");
      if (offloads) throw BadValue("not supported yet; true recomputes and offloads nothing");
      set("gradient_checkpointing", value, path);
    } else if (path == "special_tokens") {
      read_special_tokens(path, value);
    } else if (path == "plugins") {
      read_plugins(path, value);
    } else if (path == "use_tensorboard") {
      if (coerce_json({.kind = kBool}, value) == true) set("report_to", "tensorboard", path);
    } else if (path == "evals_per_epoch") {
      evals_ = coerce_json({.kind = kInt, .range = {.low = 0}}, value).get<int64_t>();
    } else {
      saves_ = coerce_json({.kind = kInt, .range = {.low = 0}}, value).get<int64_t>();
    }
  }

  void finish() override {
    set_default("num_train_epochs", 1, "num_epochs");
    set_default("per_device_train_batch_size", 1, "micro_batch_size");
    set_default("per_device_eval_batch_size", value_of("per_device_train_batch_size"),
                "eval_batch_size");
    set_default("lr_scheduler_type", "cosine", "lr_scheduler");
    set_default("max_seq_length", 512, "sequence_len");
    set_default("on_long", "skip", "excess_length_strategy");
    set_default("warmup_steps", 0.03, "warmup_ratio");
    set_default("logging_steps", 10, "logging_steps");
    settle_pace("saves_per_epoch", saves_, "save_strategy", "save_steps");
    set_default("save_total_limit", 4, "save_total_limit");
    if (sets("eval_path")) settle_pace("evals_per_epoch", evals_, "eval_strategy", "eval_steps");
    if (sets("fsdp_config")) set_default("fsdp", "full_shard", "fsdp");
  }

  Json value_of(std::string_view option) {
    const auto& settings = reading().settings;
    const auto found = std::ranges::find(settings, option, &Setting::option);
    return found == settings.end() ? Json() : found->value;
  }

  /// N times an epoch is a share of all steps; once is each epoch's end, as is nothing said.
  void settle_pace(const std::string& key, int64_t times, std::string_view strategy,
                   std::string_view steps) {
    const double share =
        times > 0 ? 1.0 / (static_cast<double>(times) * value_of("num_train_epochs").get<double>())
                  : 1.0;
    if (times > 1 && share < 1) {
      set(strategy, "steps", key);
      set(steps, share, key);
    } else if (sets(steps)) {
      set_default(strategy, "steps", strategy);
    } else {
      set_default(strategy, "epoch", times > 0 ? key : strategy);
    }
  }

  void read_long_rows(const std::string& path, const Json& value) {
    const std::string word = shown(value);
    if (word != "drop" && word != "truncate" && word != "raise") {
      throw BadValue("expects one of drop, truncate, raise");
    }
    set("on_long", word == "drop" ? "skip" : word == "raise" ? "error" : word, path);
  }

  void read_special_tokens(const std::string& path, const Json& value) {
    if (!value.is_object()) throw BadValue("expects names and tokens");
    for (const auto& [name, token] : value.items()) {
      const std::string key = path + "." + name;
      if (token.is_null()) continue;
      if (name == "pad_token") {
        on_ignored(key, token, "nothing is padded with a token");
      } else {
        bad_value(key, token, "not supported yet; the tokenizer's own tokens are used");
      }
    }
  }

  void read_plugins(const std::string& path, const Json& value) {
    static constexpr std::array<std::string_view, 2> kKernelPlugins = {
        "axolotl.integrations.liger.LigerPlugin",
        "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"};
    for (const Json& plugin : value) {
      const auto is_plugin = [&](std::string_view name) { return plugin == name; };
      if (std::ranges::none_of(kKernelPlugins, is_plugin)) {
        throw BadValue("not supported; no plugins are run");
      }
    }
    on_ignored(path, value, kKernels);
  }

  void read_dataset(const std::string& path, const Json& value, std::string_view option) {
    if (!value.is_array() || value.size() != 1 || !value.front().is_object()) {
      bad_value(path, value, "not supported yet; give one data set, with a path");
      return;
    }
    const Json& entry = value.front();
    Json file = entry.value("path", Json());
    const Json data_files = entry.value("data_files", Json());
    if (file == "json" && !data_files.is_null()) {
      const bool one = data_files.is_array() && data_files.size() == 1;
      file = one ? data_files.front() : data_files;
    }
    for (const auto& [name, said] : entry.items()) check_entry(path + "." + name, name, said);
    if (!file.is_string()) {
      bad_value(path, value, "not supported yet; give one data set, with the path of one file");
    } else {
      set(option, file, path);
    }
  }

  void check_entry(const std::string& key, const std::string& name, const Json& value) {
    const bool fine = value.is_null() || name == "path" || name == "data_files" ||
                      (name == "ds_type" && value == "json") ||
                      (name == "split" && value == "train") ||
                      (name == "field" && value == "text") ||
                      (name == "type" && value == "completion") || name == "trust_remote_code";
    if (fine) return;
    bad_value(key, value,
              name == "type" ? "not supported yet; completion is, and rows of input_ids and labels"
                             : "not supported yet");
  }

  int64_t evals_ = 0;
  int64_t saves_ = 0;
};

}  // namespace

Schema axolotl_schema() {
  Schema schema;
  add_model(schema);
  add_data(schema);
  add_training(schema);
  add_layout(schema);
  add_output(schema);
  return schema;
}

Import import_axolotl(const Json& root, const OptionTable& table, const std::string& source) {
  const Schema schema = axolotl_schema();
  return AxolotlReader(schema, table, source).read_import(root, "axolotl");
}

}  // namespace trireme::config
