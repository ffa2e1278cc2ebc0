#include "config/deepspeed.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "config/scheduler_kwargs.h"
#include "config/value.h"
#include "config/words.h"

namespace trireme::config {
namespace {

constexpr std::string_view kSchedulerParams = "scheduler.params.";

class DeepspeedReader final : public SchemaReader {
 public:
  using SchemaReader::SchemaReader;

 private:
  void read_in_code(const std::string& path, const Json& value) override {
    if (value == "auto") return;
    if (path == "optimizer.params.betas") {
      if (!value.is_array() || value.size() != 2) throw BadValue("expects a list of two numbers");
      set("adam_beta1", value[0], path);
      set("adam_beta2", value[1], path);
    } else if (path == "zero_optimization.mics_shard_size") {
      const Json size = coerce_json({.kind = Kind::integer}, value);
      if (size != -1) set("shard_group_size", size, path);
    } else if (path == "tensor_parallel.autotp_size") {
      const Json size = coerce_json({.kind = Kind::integer}, value);
      if (size != 0) set("tensor_parallel_size", size, path);
    } else if (path == "bf16.bf16_master_weights_and_grads") {
      set("master_dtype", precision_of(value), path);
    } else if (path == "bf16.bf16_optimizer_states") {
      set("moment_dtype", precision_of(value), path);
    } else if (path.starts_with("tensorboard.") || path.starts_with("csv_monitor.")) {
      const Kind kind = path.ends_with(".enabled") ? Kind::boolean : Kind::text;
      monitors_[path] = coerce_json({.kind = kind}, value);
    } else if (path.starts_with(kSchedulerParams)) {
      const std::string name = path.substr(kSchedulerParams.size());
      parse_scheduler_kwargs({{name, value}});
      kwargs_[name] = value;
    }  // the types were read before their sections
  }

  static Json precision_of(const Json& value) {
    const bool narrow = coerce_json({.kind = Kind::boolean}, value) == true;
    return std::string(word_of(narrow ? Precision::bfloat16 : Precision::float32));
  }

  /// What a section says that is off needs no report.
  void on_ignored(const std::string& path, const Json& value, std::string_view why) override {
    if (!off_.contains(path.substr(0, path.rfind('.')))) SchemaReader::on_ignored(path, value, why);
  }

  /// Reads `type` of optimizer and scheduler; where it is refused, the rest is moot.
  bool enters(const std::string& path, const Json& section) override {
    const std::string state = shown(section.value("enabled", section.value("device", Json(""))));
    if (state == "false" || state == "auto" || state == "none") off_.insert(path);
    if (path != "optimizer" && path != "scheduler") return true;
    const auto type = section.find("type");
    if (type == section.end()) {
      problem("{}.type is missing in {}: name it, or leave {} out", path, reading().source, path);
      return false;
    }
    if (*type == "auto") return true;
    const std::string word = type->is_string() ? type->get<std::string>() : "";
    const bool accepted =
        path == "optimizer" ? accept_optimizer(word) : accept_scheduler(word, section);
    if (!accepted) {
      bad_value(path + ".type", *type,
                path == "optimizer"
                    ? "not supported yet; AdamW, Adam and SGD are"
                    : "not supported yet; WarmupLR, WarmupDecayLR and WarmupCosineLR are, and "
                      "without a scheduler section --lr_scheduler_type");
    }
    return accepted;
  }

  bool accept_optimizer(const std::string& type) {
    const std::string word = lower_case(type);
    if (word != "adam" && word != "adamw" && word != "sgd") return false;
    set("optim", word == "sgd" ? "sgd" : "adamw", fmt::format("optimizer.type ({})", type));
    return true;
  }

  bool accept_scheduler(const std::string& type, const Json& section) {
    const std::string word = lower_case(type);
    if (word != "warmuplr" && word != "warmupdecaylr" && word != "warmupcosinelr") return false;
    set("lr_scheduler_type", word, fmt::format("scheduler.type ({})", type));
    const Json params = section.value("params", Json::object());
    if (!params.is_object()) return true;
    if (!params.contains("warmup_num_steps")) {
      set("warmup_steps", kDefaultWarmup, "scheduler.params.warmup_num_steps, left out,");
    }
    if (word == "warmupdecaylr" && !params.contains("warmup_max_lr")) {
      reading().notices.push_back(fmt::format(
          "scheduler.params.warmup_max_lr is not given in {}: the peak is learning_rate, not the "
          "0.001 of DeepSpeed",
          reading().source));
    }
    return true;
  }

  void finish() override {
    if (!kwargs_.empty()) set("lr_scheduler_kwargs", kwargs_, "scheduler.params");
    set_monitor("tensorboard", "monitor_tensorboard_dir");
    set_monitor("csv_monitor", "monitor_csv_dir");
  }

  /// DeepSpeed writes to output_path/job_name.
  void set_monitor(const std::string& section, std::string_view option) {
    if (monitors_.value(section + ".enabled", false) == false) return;
    const std::string path = monitors_.value(section + ".output_path", "");
    const std::string job = monitors_.value(section + ".job_name", "DeepSpeedJobName");
    set(option, (std::filesystem::path(path) / job).string(), section);
  }

  static constexpr int64_t kDefaultWarmup = 1000;
  Json kwargs_ = Json::object();
  std::set<std::string> off_;  // sections
  Json monitors_ = Json::object();  // path -> value
};

}  // namespace

Reading read_deepspeed(const std::string& given, const OptionTable& table) {
  Reading failed;
  const Json root = read_given_json("deepspeed", given, "the DeepSpeed JSON", &failed);
  if (!failed.problems.empty()) return failed;
  const Schema schema = deepspeed_schema();
  return DeepspeedReader(schema, table, failed.source).read(root);
}

}  // namespace trireme::config
