#include "config/accelerate.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "config/document.h"
#include "config/fsdp.h"
#include "config/value.h"

namespace trireme::config {
namespace {

constexpr std::string_view kLauncher = "the ranks are started by a launcher, which says where";
constexpr std::string_view kNoTpu = "there is no TPU";
constexpr std::string_view kEnvironment = "the environment";

std::string upper_case(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  return result;
}

std::string in_fsdp_section(const std::string& key) { return "fsdp_config.fsdp_" + key; }
std::string in_parallelism_section(const std::string& key) {
  return "parallelism_config.parallelism_config_" + key;
}
std::string as_fsdp_variable(const std::string& key) { return "FSDP_" + upper_case(key); }
std::string as_parallelism_variable(const std::string& key) {
  return "PARALLELISM_CONFIG_" + upper_case(key);
}

void add_deepspeed(Schema& schema) {
  schema.honour("deepspeed_config.zero_stage", "zero_stage");
  schema.honour("deepspeed_config.gradient_accumulation_steps", "gradient_accumulation_steps");
  schema.honour("deepspeed_config.gradient_clipping", "max_grad_norm");
  schema.honour("deepspeed_config.deepspeed_config_file", "deepspeed");
  for (const std::string_view path :
       {"deepspeed_config.offload_optimizer_device", "deepspeed_config.offload_param_device"}) {
    schema.refuse(path, kText, {"none"}, kNoOffload);
  }
  for (const std::string_view path : {"deepspeed_config.offload_optimizer_nvme_path",
                                      "deepspeed_config.offload_param_nvme_path"}) {
    schema.ignore(path, kText, "nothing is offloaded", {"none"});
  }
  schema.ignore("deepspeed_config.zero3_init_flag", kBool, kOwnSlice);
  schema.ignore("deepspeed_config.zero3_save_16bit_model", kBool,
                "the Hugging Face weights are always written whole");
  for (const std::string_view path :
       {"deepspeed_config.deepspeed_multinode_launcher", "deepspeed_config.deepspeed_hostfile",
        "deepspeed_config.deepspeed_exclusion_filter",
        "deepspeed_config.deepspeed_inclusion_filter"}) {
    schema.ignore(path, kText, kLauncher);
  }
  schema.ignore("deepspeed_config.deepspeed_moe_layer_cls_names", kText, "there are no experts");
}

/// What starts the ranks; says which section acts.
enum class Type { plain, fsdp, deepspeed, other };

Type type_of(const Json& root) {
  if (!root.is_object() || !root.contains("distributed_type")) return Type::plain;
  const std::string word = upper_case(shown(root.at("distributed_type")));
  if (word == "FSDP") return Type::fsdp;
  if (word == "DEEPSPEED") return Type::deepspeed;
  return word == "NO" || word == "NONE" || word.starts_with("MULTI_") ? Type::plain : Type::other;
}

class AccelerateReader final : public SchemaReader {
 public:
  AccelerateReader(const Schema& schema, const OptionTable& table, std::string source,
                   bool from_environment)
      : SchemaReader(schema, table, std::move(source)), from_environment_(from_environment) {}

  Reading read(const Json& root) {
    type_ = type_of(root);
    return SchemaReader::read(root);
  }

 private:
  std::string label(const std::string& path) const override {
    if (!from_environment_) return path;
    for (const AccelerateVariable& variable : accelerate_variables()) {
      if (variable.path == path) return std::string(variable.name);
    }
    return path;
  }

  bool enters(const std::string& path, const Json& section) override {
    const bool acts = type_ == Type::deepspeed;  // the only section of the schema
    if (!acts && !section.empty()) on_ignored(path, section, "distributed_type is not DEEPSPEED");
    return acts;
  }

  void read_in_code(const std::string& path, const Json& value) override {
    if (path == "mixed_precision") {
      read_precision(path, value);
    } else if (path == "use_cpu") {
      if (coerce_json({.kind = kBool}, value) == true) set("device", "cpu", path);
    } else if (path == "distributed_type") {
      if (type_ == Type::other) {
        throw BadValue("not supported; NO, MULTI_GPU, MULTI_CPU, DEEPSPEED and FSDP are");
      }
    } else if (!value.is_object()) {
      throw BadValue("expects names and values");
    } else if (path == "parallelism_config") {
      reading().append(read_parallelism(
          value, reading().source,
          from_environment_ ? as_parallelism_variable : in_parallelism_section, table()));
    } else if (type_ == Type::fsdp) {
      fsdp_ = value;
    } else if (!value.empty()) {
      on_ignored(path, value, "distributed_type is not FSDP");
    }
  }

  void read_precision(const std::string& path, const Json& value) {
    const std::string word = lower_case(shown(value));
    if (word != "no" && word != "bf16" && word != "false") {
      throw BadValue("not supported; bf16 and no are, and bf16 needs no loss scale");
    }
    set("bf16", word == "bf16", path);
  }

  bool sets(std::string_view option) {
    return std::ranges::any_of(reading().settings,
                               [&](const Setting& each) { return each.option == option; });
  }

  void finish() override {
    if (type_ == Type::deepspeed && !sets("deepspeed") && !sets("zero_stage")) {
      set("zero_stage", 2, "deepspeed_config.zero_stage, left out,");
    }
    if (type_ != Type::fsdp) return;
    FsdpRequest request;
    request.keys = fsdp_;
    request.keys_source = reading().source;
    request.spelling = from_environment_ ? as_fsdp_variable : in_fsdp_section;
    reading().append(read_fsdp(request, table()));
  }

  bool from_environment_;
  Type type_ = Type::plain;
  Json fsdp_ = Json::object();
};

bool is_on(const Environment& environment, std::string_view name) {
  const auto value = environment(name);
  if (!value) return false;
  const std::string word = lower_case(*value);
  return word == "1" || word == "true" || word == "yes" || word == "on" || word == "y";
}

/// The variables of one section that are set.
Json section_of(const Environment& environment, const Schema& schema, std::string_view prefix) {
  Json section = Json::object();
  const auto look = [&](std::string_view key) {
    if (auto value = environment(std::string(prefix) + upper_case(key))) {
      if (lower_case(*value) != "none") section[std::string(key)] = *value;
    }
  };
  for (const SchemaKey& key : schema.keys()) {
    if (key.path.find('.') == std::string_view::npos) look(key.path);
  }
  for (const auto& [spelling, path] : schema.aliases()) look(spelling);
  return section;
}

void put(Json& root, std::string_view path, const std::string& value) {
  const auto dot = path.find('.');
  if (dot == std::string_view::npos) {
    root[std::string(path)] = value;
  } else {
    root[std::string(path.substr(0, dot))][std::string(path.substr(dot + 1))] = value;
  }
}

}  // namespace

Schema accelerate_schema() {
  Schema schema;
  schema.honour_in_code("mixed_precision", kText, "`--bf16`: bf16 or no; others are refused");
  schema.honour_in_code("use_cpu", kBool, "`--device` cpu when true");
  schema.honour_in_code("distributed_type", kText,
                        "FSDP: fsdp_config acts; DEEPSPEED: deepspeed_config acts, and the stage "
                        "is 2 where neither it nor a file says one; NO and MULTI_...: neither");
  add_deepspeed(schema);
  schema.honour_in_code("fsdp_config", kJson, "as `--fsdp_config`, with full_shard");
  schema.honour_in_code("parallelism_config", kJson, "as `--parallelism_config`");
  for (const std::string_view path :
       {"compute_environment", "num_processes", "num_machines", "machine_rank", "gpu_ids",
        "main_process_ip", "main_process_port", "main_training_function", "rdzv_backend",
        "same_network", "enable_cpu_affinity", "mpirun_config", "commands", "command_file",
        "num_cpu_threads_per_process"}) {
    schema.ignore(path, kJson, kLauncher);
  }
  for (const std::string_view path :
       {"tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo", "tpu_vm", "tpu_env"}) {
    schema.ignore(path, kJson, kNoTpu, {Json::array(), "false", false});
  }
  schema.refuse("downcast_bf16", kText, {"no", "false"}, kNoTpu);
  schema.ignore("debug", kBool, "the ranks' programs are always compared before the run", {false});
  schema.ignore("dynamo_config", kJson, kKernels);
  schema.ignore("dynamo_backend", kText, kKernels, {"NO", "no"});
  schema.refuse("megatron_lm_config", kJson, {Json::object()}, kLater);
  schema.refuse("fp8_config", kJson, {Json::object()}, kLater);
  schema.ignore("ipex_config", kJson, kKernels);
  return schema;
}

std::vector<AccelerateVariable> accelerate_variables() {
  return {
      {"ACCELERATE_MIXED_PRECISION", "mixed_precision"},
      {"ACCELERATE_USE_CPU", "use_cpu"},
      {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "deepspeed_config.gradient_accumulation_steps"},
      {"ACCELERATE_GRADIENT_CLIPPING", "deepspeed_config.gradient_clipping"},
      {"ACCELERATE_DEEPSPEED_CONFIG_FILE", "deepspeed_config.deepspeed_config_file"},
      {"ACCELERATE_DEEPSPEED_ZERO_STAGE", "deepspeed_config.zero_stage"},
      {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
       "deepspeed_config.offload_optimizer_device"},
      {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "deepspeed_config.offload_param_device"},
      {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH",
       "deepspeed_config.offload_optimizer_nvme_path"},
      {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH", "deepspeed_config.offload_param_nvme_path"},
      {"ACCELERATE_DEEPSPEED_ZERO3_INIT", "deepspeed_config.zero3_init_flag"},
      {"ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "deepspeed_config.zero3_save_16bit_model"},
      {"ACCELERATE_DYNAMO_BACKEND", "dynamo_backend"},
  };
}

Reading read_accelerate_file(const std::string& given, const OptionTable& table) {
  Reading failed;
  Json root;
  const std::string extension = given.substr(std::min(given.rfind('.'), given.size()));
  std::error_code unreadable;
  if ((extension == ".yaml" || extension == ".yml") && std::filesystem::exists(given, unreadable)) {
    failed.source = printable(given);
    try {
      root = read_document(given);
    } catch (const std::runtime_error& error) {
      failed.problems.push_back(error.what());
    }
  } else {
    root = read_given_json("accelerate_config", given, "the accelerate JSON", &failed);
  }
  if (!failed.problems.empty()) return failed;
  const Schema schema = accelerate_schema();
  return AccelerateReader(schema, table, failed.source, false).read(root);
}

Reading read_accelerate_environment(const Environment& environment, const OptionTable& table) {
  if (is_on(environment, "ACCELERATE_USE_MEGATRON_LM")) {
    Reading refused;
    refused.problems.push_back(
        fmt::format("ACCELERATE_USE_MEGATRON_LM = true in the environment: {}", kLater));
    return refused;
  }
  const bool uses_fsdp = is_on(environment, "ACCELERATE_USE_FSDP");
  const bool uses_deepspeed = is_on(environment, "ACCELERATE_USE_DEEPSPEED");
  Json root = Json::object();
  for (const AccelerateVariable& variable : accelerate_variables()) {
    const bool applies = !variable.path.starts_with("deepspeed_config") || uses_deepspeed;
    const auto value = environment(variable.name);
    if (applies && value && lower_case(*value) != "none") put(root, variable.path, *value);
  }
  if (uses_fsdp) {
    root["distributed_type"] = "FSDP";
    root["fsdp_config"] = section_of(environment, fsdp_schema(), "FSDP_");
  } else if (uses_deepspeed) {
    root["distributed_type"] = "DEEPSPEED";
  }
  if (is_on(environment, "ACCELERATE_USE_PARALLELISM_CONFIG")) {
    root["parallelism_config"] =
        section_of(environment, parallelism_schema(), "PARALLELISM_CONFIG_");
  }
  const Schema schema = accelerate_schema();
  return AccelerateReader(schema, table, std::string(kEnvironment), true).read(root);
}

}  // namespace trireme::config
