// Every key of the DeepSpeed schema, then whole configurations (data/config/deepspeed_cases.json).
#include <algorithm>
#include <random>

#include "config/deepspeed.h"
#include "config/option_table.h"
#include "config/value.h"
#include "unit/config_support.h"

namespace trireme::config {
namespace {

Json& place(Json& root, std::string_view path) {
  Json* at = &root;
  while (true) {
    const auto dot = std::min(path.find('.'), path.size());
    at = &(*at)[std::string(path.substr(0, dot))];
    if (dot == path.size()) return *at;
    path.remove_prefix(dot + 1);
  }
}

/// A configuration with this key, and with what its section cannot do without.
std::string document(std::string_view path, const Json& value) {
  Json root = Json::object();
  if (path.starts_with("optimizer.")) place(root, "optimizer.type") = "AdamW";
  if (path.starts_with("scheduler.")) {
    place(root, "scheduler.type") = "WarmupLR";
    place(root, "scheduler.params.warmup_type") = "linear";
    place(root, "scheduler.params.warmup_num_steps") = "auto";
  }
  place(root, path) = value;
  return dump_json(root);
}

std::string key_error(std::string_view path, const Json& value) {
  return parse_error({"--deepspeed", document(path, value)});
}

Json settings_of(std::string_view path, const Json& value) {
  Json settings = effective(parse_words({"--deepspeed", document(path, value)}).config);
  settings.erase("deepspeed");
  return settings;
}

TEST(DeepspeedKeys, MisspeltOnesAreErrorsThatNameTheNearest) {
  const Schema schema = deepspeed_schema();
  for (const SchemaKey& key : schema.keys()) {
    const auto leaf = key.path.substr(key.path.rfind('.') + 1);
    const std::string path =
        std::string(key.path.substr(0, key.path.size() - leaf.size())) + misspelt(leaf);
    const std::string error = key_error(path, 1);
    EXPECT_TRUE(contains(error, "unknown key " + path + " in the DeepSpeed JSON")) << error;
    EXPECT_TRUE(contains(error, fmt::format("did you mean '{}'", leaf))) << error;
  }
}

TEST(DeepspeedKeys, ValuesOfTheWrongTypeAreErrors) {
  const Schema schema = deepspeed_schema();
  for (const SchemaKey& key : schema.keys()) {
    if (key.kind == Kind::json && key.option.empty() && key.path != "optimizer.params.betas")
      continue;
    const std::string error = key_error(key.path, Json{{"a", 1}});
    EXPECT_TRUE(contains(error, fmt::format("{} = {{\"a\": 1}} in the DeepSpeed JSON: ", key.path)))
        << error;
  }
}

TEST(DeepspeedKeys, HonouredOnesActAsTheirOption) {
  const OptionTable table(train_options());
  const Schema schema = deepspeed_schema();
  for (const SchemaKey& key : schema.keys()) {
    if (key.support != Support::honoured || key.option.empty()) continue;
    const Option& option = table.at(key.option);
    const Json value = good_value(option);
    EXPECT_NE(option.get(RunConfig{}), value) << key.path;
    EXPECT_EQ(settings_of(key.path, value).at(std::string(key.option)), value) << key.path;
  }
  const Json betas = settings_of("optimizer.params.betas", Json::array({0.8, 0.95}));
  EXPECT_EQ(betas.at("adam_beta1"), 0.8);
  EXPECT_EQ(betas.at("adam_beta2"), 0.95);
  EXPECT_EQ(settings_of("optimizer.type", "SGD").at("optim"), "sgd");
  EXPECT_EQ(settings_of("scheduler.type", "WarmupDecayLR").at("lr_scheduler_type"),
            "warmupdecaylr");
}

TEST(DeepspeedKeys, MeaninglessOnesAreReportedWithTheReason) {
  const Schema schema = deepspeed_schema();
  for (const SchemaKey& key : schema.keys()) {
    if (key.support != Support::meaningless) continue;
    const bool quiet = is_neutral(key.neutral, true);
    const Json value = key.kind == Kind::boolean ? Json(!quiet) : Json("7");
    const ParseResult result = parse_words({"--deepspeed", document(key.path, value)});
    EXPECT_TRUE(
        contains(joined(result.notices),
                 fmt::format("{} in the DeepSpeed JSON has no effect: {}", key.path, key.why)))
        << joined(result.notices);
  }
}

TEST(DeepspeedKeys, RefusedOnesTakeOnlyTheirNeutralValues) {
  const Schema schema = deepspeed_schema();
  for (const SchemaKey& key : schema.keys()) {
    if (key.support != Support::refused) continue;
    for (const Json& neutral : key.neutral) EXPECT_EQ(key_error(key.path, neutral), "") << key.path;
    EXPECT_EQ(key_error(key.path, nullptr), "") << key.path;
    Json other = "something";
    if (key.kind == Kind::boolean) other = key.neutral.front() == false;
    if (key.kind == Kind::integer || key.kind == Kind::real) other = 7;
    EXPECT_TRUE(contains(
        key_error(key.path, other),
        fmt::format("{} = {} in the DeepSpeed JSON: {}", key.path, as_word(other), key.why)))
        << key_error(key.path, other);
  }
}

TEST(DeepspeedKeys, AutoIsAValueOfEveryKey) {
  Json root = Json::object();
  const Schema schema = deepspeed_schema();
  for (const SchemaKey& key : schema.keys()) place(root, key.path) = "auto";
  ParseResult result = parse_words({"--deepspeed", dump_json(root), "--zero_stage", "3"});
  resolve(result, kFacts, 4);
  const Json plain = effective(parse_words({"--zero_stage", "3"}).config);
  const Json settings = effective(result.config);
  EXPECT_EQ(settings.at("stage3_param_persistence_threshold"), 10 * kFacts.hidden_size);
  EXPECT_EQ(settings.at("reduce_bucket_size"), "auto");
  for (const auto& [name, value] : plain.items()) {
    const bool filled = name == "train_batch_size" || name == "max_seq_length" ||
                        name == "eval_packing" || name == "eval_steps" || name == "reduce_at" ||
                        name == "deepspeed" || name == "stage3_param_persistence_threshold";
    EXPECT_TRUE(filled || settings.at(name) == value) << name;
  }
}

TEST(DeepspeedKeys, OtherSpellingsAreTheSameKey) {
  const Schema schema = deepspeed_schema();
  for (const auto& [spelling, path] : schema.aliases()) {
    const bool section = path == "bf16";
    const std::string tail = section ? ".enabled" : "";
    EXPECT_EQ(key_error(std::string(spelling) + tail, "auto"), "") << spelling;
    const std::string error = key_error(std::string(spelling) + tail, Json{{"a", 1}});
    EXPECT_TRUE(contains(error, std::string(path) + tail)) << error;
  }
  EXPECT_EQ(
      settings_of("zero_optimization.max_live_parameters", 1e8).at("stage3_max_live_parameters"),
      100000000);
  EXPECT_EQ(settings_of("zero_optimization.stage3_max_live_parameters", INT64_MAX)
                .at("stage3_max_live_parameters"),
            INT64_MAX);
  EXPECT_NE(key_error("zero_optimization.stage3_max_live_parameters", UINT64_MAX), "");
}

TEST(DeepspeedFile, BrokenFilesAreNamed) {
  EXPECT_TRUE(contains(parse_error({"--deepspeed", "no/such/ds.json"}), "no/such/ds.json"));
  EXPECT_TRUE(contains(parse_error({"--deepspeed", "/"}), "/"));
  EXPECT_TRUE(contains(parse_error({"--deepspeed", "{\"a\": "}), "the DeepSpeed JSON:1"));
  EXPECT_TRUE(contains(parse_error({"--deepspeed", R"({"bf16": {"enabled": 1, "enabled": 1}})"}),
                       "enabled"));
  EXPECT_TRUE(contains(parse_error({"--deepspeed", "{" + std::string(2000000, ' ') + "}"}),
                       "the DeepSpeed JSON"));
  std::string deep = "{\"zero_optimization\":";
  for (int i = 0; i < 100000; ++i) deep += "[";
  EXPECT_TRUE(contains(parse_error({"--deepspeed", deep}), "the DeepSpeed JSON"));
}

TEST(DeepspeedFile, WholeConfigurationsGiveWhatTheySay) {
  const Json cases = parse_json(test_data("deepspeed_cases.json"), "deepspeed_cases.json");
  EXPECT_GE(cases.size(), 20u);
  for (Json each : cases) {
    Words words = with_required(each.at("flags").get<Words>());
    words.insert(words.end(), {"--deepspeed", dump_json(each.at("deepspeed"))});
    each["args"] = words;
    run_case(each);
  }
}

TEST(DeepspeedFile, DamagedTextIsReadOrRefusedNeverWorse) {
  const Json cases = parse_json(test_data("deepspeed_cases.json"), "deepspeed_cases.json");
  std::mt19937 random(1);
  for (const Json& each : cases) {
    for (int round = 0; round < 100; ++round) {
      std::string text = dump_json(each.at("deepspeed"));
      for (int change = 0; change < 3; ++change) {
        const size_t at = 1 + random() % (text.size() - 1);
        switch (random() % 3) {
          case 0:
            text[at] = static_cast<char>(random() % 256);
            break;
          case 1:
            text.erase(at, 1 + random() % 4);
            break;
          default:
            text.insert(at, text.substr(random() % text.size(), random() % 16));
            break;
        }
      }
      try {
        ParseResult result = parse_words({"--deepspeed", text});
        resolve(result, kFacts, 4);
        EXPECT_FALSE(effective(result.config).empty());
      } catch (const ConfigError&) {
      }
    }
  }
}

}  // namespace
}  // namespace trireme::config
