// LLaMA-Factory's YAML: its own keys. All others are Hugging Face's.
#include <fmt/format.h>

#include <filesystem>

#include "base/text.h"
#include "config/import_reader.h"
#include "config/value.h"

namespace trireme::config {
namespace {

constexpr std::string_view kFull = "finetuning_type is full";
constexpr std::string_view kStages = "stage is pt or sft";
constexpr std::string_view kNoHub = "nothing is downloaded";
constexpr std::string_view kNoMedia = "samples are text";
constexpr std::string_view kNoGeneration = "training generates nothing";
constexpr std::string_view kNoTemplate = "no template is applied";

void add_method(Schema& schema) {
  schema.honour_in_code("stage", kText,
                        "pt: rows of text, trained whole and packed as `--packing_strategy` "
                        "wrapped unless `packing` is false; sft: rows of input_ids and labels. "
                        "Others are refused");
  schema.honour_in_code("finetuning_type", kText,
                        "full, and it must be said: the default is lora, which is refused");
  schema.honour("train_from_scratch", "init_from_config");
  schema.honour_in_code("disable_gradient_checkpointing", kBool,
                        "`--gradient_checkpointing` is its opposite, and on when it is left out");
  schema.refuse_all(
      kBool, {false},
      {"use_galore", "use_apollo", "use_badam", "use_adam_mini", "use_llama_pro", "use_mca",
       "use_megatron_bridge", "use_hyper_parallel", "use_dft_loss", "use_asft_loss",
       "use_eaft_loss", "use_kt", "fp8", "create_new_adapter", "use_ray"});
  schema.honour_in_code("pure_bf16", kBool,
                        "true: `--bf16`, and `--master_dtype` and `--moment_dtype` bfloat16, "
                        "stochastically rounded; gradients stay fp32");
  schema.refuse_all(kText, {""}, {"adapter_name_or_path", "adapter_folder", "mixture_of_depths"});
  schema.refuse_all(kInt, {}, {"quantization_bit", "early_stopping_steps"});
  schema.refuse_all(kReal, {0}, {"moe_aux_loss_coef"});
}

/// What belongs to methods that are refused.
void add_other_methods(Schema& schema) {
  schema.ignore_all(kFull, {"lora_rank",
                            "lora_alpha",
                            "lora_dropout",
                            "lora_target",
                            "additional_target",
                            "loraplus_lr_ratio",
                            "loraplus_lr_embedding",
                            "use_rslora",
                            "use_dora",
                            "pissa_init",
                            "pissa_iter",
                            "pissa_convert",
                            "module_dropout",
                            "oft_rank",
                            "oft_block_size",
                            "oft_target",
                            "freeze_trainable_layers",
                            "freeze_trainable_modules",
                            "freeze_extra_modules",
                            "quantization_method",
                            "quantization_type",
                            "double_quantization",
                            "quantization_device_map"});
  schema.ignore_all(kStages, {"pref_beta",
                              "pref_ftx",
                              "pref_bco_weight",
                              "pref_loss",
                              "dpo_label_smoothing",
                              "kto_chosen_weight",
                              "kto_rejected_weight",
                              "simpo_gamma",
                              "ppo_buffer_size",
                              "ppo_epochs",
                              "ppo_score_norm",
                              "ppo_target",
                              "ppo_whiten_rewards",
                              "ref_model",
                              "ref_model_adapters",
                              "ref_model_quantization_bit",
                              "reward_model",
                              "reward_model_adapters",
                              "reward_model_quantization_bit",
                              "reward_model_type"});
}

void add_model(Schema& schema) {
  schema.refuse_all(kBool, {false}, {"resize_vocab", "split_special_tokens", "shift_attn"});
  schema.refuse("upcast_lmhead_output", kBool, {false}, kLater);
  schema.refuse_all(
      kText, {""},
      {"add_tokens", "add_special_tokens", "new_special_tokens_config", "rope_scaling"});
  schema.refuse("model_revision", kText, {"main"},
                "not supported; write model_name_or_path as ID@REVISION");
  schema.ignore("upcast_layernorm", kBool, "norms are always computed in fp32");
  schema.ignore_all(
      kKernels, {"flash_attn", "use_unsloth", "use_unsloth_gc", "enable_liger_kernel",
                 "use_v1_kernels", "use_reentrant_gc", "low_cpu_mem_usage", "use_fast_tokenizer"});
  schema.ignore_all(
      kNoHub, {"cache_dir", "hf_hub_token", "ms_hub_token", "om_hub_token", "offload_folder"});
  schema.ignore_all(
      kNoMedia, {"media_dir", "image_max_pixels", "image_min_pixels", "image_do_pan_and_scan",
                 "crop_to_patches", "video_max_pixels", "video_min_pixels", "video_fps",
                 "video_maxlen", "use_audio_in_video", "audio_sampling_rate", "freeze_vision_tower",
                 "freeze_multi_modal_projector"});
  schema.ignore_all(
      kNoGeneration,
      {"infer_backend", "infer_dtype", "use_kv_cache", "do_sample", "temperature", "top_p", "top_k",
       "num_beams", "max_length", "max_new_tokens", "repetition_penalty", "length_penalty",
       "skip_special_tokens", "eval_num_beams", "vllm_maxlen", "vllm_gpu_util",
       "vllm_enforce_eager", "vllm_config", "sglang_maxlen"});
  schema.ignore("print_param_status", kBool, "trireme plan shows the parameters");
}

void add_data(Schema& schema) {
  schema.honour_in_code("dataset", kText,
                        "`--data_path`: the file that dataset_info.json in `dataset_dir` names; "
                        "one data set, of a JSONL file");
  schema.honour_in_code("eval_dataset", kText, "`--eval_path`, in the same way");
  schema.honour_in_code("dataset_dir", kText, "where dataset_info.json lies; `data`");
  schema.honour_in_code("template", kText, "without effect in stage pt, refused in stage sft");
  schema.honour_in_code("packing", kBool,
                        "stage pt: `--packing`, true when left out, with `--packing_strategy` "
                        "wrapped; a text keeps the first token that the tokenizer gives it, which "
                        "LLaMA-Factory writes over that of each block. Stage sft: false, or true "
                        "with `neat_packing`");
  schema.honour_in_code("neat_packing", kBool,
                        "true: `--packing`, in packs of at most cutoff_len tokens; refused in "
                        "stage pt, as LLaMA-Factory does");
  schema.honour("cutoff_len", "max_seq_length");
  schema.honour_in_code("disable_shuffling", kBool,
                        "`--train_sampling_strategy` sequential when true");
  schema.refuse_all(kBool, {false}, {"eval_on_each_dataset", "compute_accuracy"});
  schema.refuse("predict_with_generate", kBool, {false}, kLater);
  schema.ignore_all(kNoTemplate,
                    {"tool_format", "default_system", "enable_thinking", "preserve_thinking"});
  schema.ignore("overwrite_cache", kBool, "no prepared copy is kept");
  schema.ignore("preprocessing_batch_size", kInt, "rows are read in chunks, by all cores");
  schema.ignore("data_shared_file_system", kBool, "every rank reads the file itself");
  schema.ignore("ignore_pad_token_for_loss", kBool, "there is no padding that could be trained");
}

void add_watching(Schema& schema) {
  schema.ignore_all(kNoTracker,
                    {"use_swanlab", "swanlab_project", "swanlab_workspace", "swanlab_run_name",
                     "swanlab_mode", "swanlab_api_key", "swanlab_logdir"});
  schema.ignore("include_effective_tokens_per_second", kBool,
                "tokens_per_second is always in metrics.jsonl");
  schema.refuse("enable_torch_profiler", kBool, {false}, kLater);
  schema.ignore_all("enable_torch_profiler is off",
                    {"profiler_output_dir", "profiler_wait_steps", "profiler_warmup_steps",
                     "profiler_active_steps", "profiler_repeat"});
  schema.ignore_all("use_ray is off",
                    {"ray_run_name", "ray_storage_path", "ray_num_workers", "resources_per_worker",
                     "placement_strategy", "ray_init_kwargs"});
}

class LlamaFactoryReader final : public ImportReader {
 public:
  using ImportReader::ImportReader;

 private:
  void read_in_code(const std::string& path, const Json& value) override {
    if (value == "auto") return;
    if (path == "disable_gradient_checkpointing") {
      set("gradient_checkpointing", !coerce_json({.kind = kBool}, value).get<bool>(), path);
    } else if (path == "pure_bf16") {
      if (coerce_json({.kind = kBool}, value) != true) return;
      set("bf16", true, path);
      set_narrow_state(path);
    } else if (path == "disable_shuffling") {
      if (coerce_json({.kind = kBool}, value) == true) {
        set("train_sampling_strategy", "sequential", path);
      }
    } else {
      said_[path] = checked(path, value);  // finish() looks at it
    }
  }

  /// Null where it is no value at all, which is told here.
  Json checked(const std::string& path, const Json& value) {
    try {
      const bool flag = path == "packing" || path == "neat_packing";
      if (flag) return coerce_json({.kind = kBool}, value);
      const bool names = path == "dataset" || path == "eval_dataset";
      if (names && !value.is_string() && !value.is_array()) {
        throw BadValue("expects the name of a data set");
      }
      return value;
    } catch (const BadValue& bad) {
      bad_value(path, value, bad.what());
      return {};
    }
  }

  void finish() override {
    check_method();
    check_packing();
    check_template();
    find_data("dataset", "data_path");
    find_data("eval_dataset", "eval_path");
    set_default("max_seq_length", kDefaultCutoff, "cutoff_len");
    set_default("gradient_checkpointing", true, "disable_gradient_checkpointing");
  }

  std::string word(const std::string& key, std::string_view otherwise) const {
    const auto found = said_.find(key);
    return found == said_.end() ? std::string(otherwise) : shown(found->second);
  }

  bool pretrains() const { return word("stage", "sft") == "pt"; }

  void check_method() {
    const std::string stage = word("stage", "sft");
    if (stage == "pt") {
      on_ignored("stage", stage, "the rows say what is trained: here all of their text");
    } else if (stage == "sft") {
      on_ignored("stage", stage, "the rows say what is trained: their labels");
    } else {
      refuse("stage", stage, "not supported yet; pt and sft are");
    }
    const std::string type = word("finetuning_type", "");
    if (type.empty()) {
      problem(
          "finetuning_type is missing in {}: LLaMA-Factory's default is lora, which is not "
          "supported yet; say finetuning_type: full",
          reading().source);
    } else if (type != "full") {
      refuse("finetuning_type", type, "not supported yet; full is");
    } else {
      on_ignored("finetuning_type", type, "all weights are trained");
    }
  }

  bool says(const std::string& key, bool value) const {
    const auto found = said_.find(key);
    return found != said_.end() && found->second == value;
  }

  void check_packing() {
    const bool given = says("packing", true) || says("packing", false);
    if (says("neat_packing", true)) {
      if (pretrains()) {
        return refuse("neat_packing", true, "stage pt has no such packing; leave it out");
      }
      set("packing", true, "neat_packing");
      if (given) on_ignored("packing", said_.at("packing"), "neat_packing says it");
      return;
    }
    if (says("neat_packing", false)) on_ignored("neat_packing", false, "packing says it");
    if (!pretrains() && says("packing", true)) {
      return refuse("packing", true,
                    "not supported; samples in a pack would see each other, unless you give "
                    "neat_packing: true");
    }
    if (given) set("packing", said_.at("packing"), "packing");
    if (!pretrains() || says("packing", false)) return;
    set_default("packing", true, "packing");
    set_default("packing_strategy", "wrapped", "packing_strategy");
  }

  void check_template() {
    const auto given = said_.find("template");
    if (given == said_.end()) return;
    if (pretrains() && given->second != "llama3") {
      on_ignored("template", given->second, "stage pt applies none");
    } else {
      refuse("template", given->second,
             "not supported yet; leave it out, and give rows of input_ids and labels");
    }
  }

  /// The file of a data set, by dataset_info.json.
  void find_data(const std::string& key, std::string_view option) {
    const auto given = said_.find(key);
    if (given == said_.end() || given->second.is_null()) return;
    const Json names = coerce_json({.kind = Kind::list}, given->second);
    if (names.size() != 1) {
      refuse(key, given->second, "not supported yet; name one data set");
      return;
    }
    const std::string name = names.front().get<std::string>();
    const std::filesystem::path folder = word("dataset_dir", "data");
    const std::string info_path = (folder / "dataset_info.json").string();
    try {
      const Json info = read_json(info_path, {.max_bytes = 16 << 20, .max_depth = 32});
      if (!info.is_object() || !info.contains(name) || !info.at(name).is_object()) {
        refuse(key, name, fmt::format("{} has no such data set", printable(info_path)));
        return;
      }
      set(option, (folder / file_of(info.at(name))).string(), key);
    } catch (const std::runtime_error& error) {
      refuse(key, name, error.what());
    }
  }

  /// `file_name` of an entry of dataset_info.json, whose rows must be ours already.
  std::string file_of(const Json& entry) const {
    for (const auto& [name, value] : entry.items()) {
      const bool known = name == "file_name" || name == "columns" || name == "formatting" ||
                         (name == "split" && value == "train") ||
                         (name == "ranking" && value == false);
      if (!known) {
        throw BadValue(
            fmt::format("{} in dataset_info.json is not supported yet; name a JSONL file "
                        "with data_path",
                        printable(name)));
      }
    }
    if (entry.value("formatting", Json("alpaca")) != "alpaca") {
      throw BadValue(
          "its rows are conversations, which are not supported yet; give rows of text, "
          "or of input_ids and labels");
    }
    const Json columns = entry.value("columns", Json::object());
    if (pretrains() && columns != Json{{"prompt", "text"}}) {
      throw BadValue(
          "its text must lie in a column text: {\"columns\": {\"prompt\": \"text\"}} in "
          "dataset_info.json");
    }
    if (!pretrains() && !columns.empty()) {
      throw BadValue("its columns are not supported yet; give rows of input_ids and labels");
    }
    const Json file = entry.value("file_name", Json());
    if (!file.is_string()) throw BadValue("names no file_name in dataset_info.json");
    return file.get<std::string>();
  }

  static constexpr int64_t kDefaultCutoff = 2048;
  std::map<std::string, Json> said_;
};

}  // namespace

Schema llama_factory_schema() {
  Schema schema;
  add_method(schema);
  add_other_methods(schema);
  add_data(schema);
  add_model(schema);
  add_watching(schema);
  return schema;
}

Import import_llama_factory(const Json& root, const OptionTable& table, const std::string& source) {
  const Schema schema = llama_factory_schema();
  return LlamaFactoryReader(schema, table, source).read_import(root, "LLaMA-Factory");
}

}  // namespace trireme::config
