#include "config/parse.h"

#include <algorithm>

#include "config/accelerate.h"
#include "config/arguments.h"
#include "config/assembly.h"
#include "config/config_file.h"
#include "config/deepspeed.h"
#include "config/fsdp.h"
#include "config/problems.h"
#include "config/validate.h"
#include "config/value.h"

namespace trireme::config {
namespace {

constexpr std::string_view kOrAuto = ", or write \"auto\" in the file";

/// A section of a configuration file is called by its place there.
std::string source_of(const std::string& read, const std::string& origin) {
  return read.ends_with(" JSON") && !origin.starts_with("--") ? origin : read;
}

void apply_fsdp(Assembly& assembly, const OptionTable& table) {
  const RunConfig& config = assembly.config();
  if (config.fsdp.empty() && config.fsdp_config.empty()) return;
  FsdpRequest request;
  request.words = config.fsdp;
  const auto origin = assembly.result().origins.find("fsdp");
  if (origin != assembly.result().origins.end()) request.words_source = origin->second;
  Reading given;
  if (config.fsdp_config.empty()) {
    request.keys_source = "fsdp_config";
  } else {
    request.keys = read_given_json("fsdp_config", config.fsdp_config, "the FSDP JSON", &given);
    request.keys_source = source_of(given.source, assembly.result().origins.at("fsdp_config"));
    if (!given.problems.empty()) return assembly.apply_beside(given, "");
  }
  Reading reading = read_fsdp(request, table);
  if (config.fsdp.empty()) {
    reading.settings.clear();
    reading.notices = {"fsdp_config has no effect: fsdp is not given"};
  }
  if (!config.fsdp.empty() && !config.deepspeed.empty()) {
    reading.problems.push_back(
        "fsdp and deepspeed are both given: both say how to shard; give one");
  }
  const bool recomputes = std::ranges::any_of(
      reading.settings, [](const Setting& each) { return each.option == "recompute"; });
  if (recomputes && assembly.knows("gradient_checkpointing") && config.gradient_checkpointing) {
    reading.problems.push_back(fmt::format(
        "activation_checkpointing in {} and gradient_checkpointing are the same: give one",
        request.keys_source));
  }
  assembly.apply_beside(reading, "");
}

void apply_parallelism(Assembly& assembly, const OptionTable& table) {
  const std::string& given = assembly.config().parallelism_config;
  if (given.empty()) return;
  Reading reading;
  const Json keys = read_given_json("parallelism_config", given, "the parallelism JSON", &reading);
  if (reading.problems.empty()) {
    const std::string& origin = assembly.result().origins.at("parallelism_config");
    reading = read_parallelism(keys, source_of(reading.source, origin), nullptr, table);
  }
  assembly.apply_beside(reading, "");
}

/// What accelerate says counts where nothing else does; the environment least of all.
std::vector<Reading> read_accelerate(const RunConfig& config, const Environment& environment,
                                     const OptionTable& table) {
  std::vector<Reading> readings;
  if (!config.accelerate_config.empty()) {
    readings.push_back(read_accelerate_file(config.accelerate_config, table));
  }
  if (environment) readings.push_back(read_accelerate_environment(environment, table));
  return readings;
}

void settle_recompute(Assembly& assembly) {
  if (assembly.config().gradient_checkpointing && !assembly.knows("recompute")) {
    assembly.config().recompute = {{Recompute::block, -1}};
  }
}

void settle_report_to(ParseResult& result) {
  std::set<std::string> kept;
  for (const std::string& name : result.config.report_to) {
    if (name == "jsonl" || name == "tensorboard") {
      kept.insert(name);
    } else if (name == "all") {
      kept.insert({"jsonl", "tensorboard"});
    } else if (name != "none") {
      result.notices.push_back(fmt::format(
          "report_to {} has no effect: not supported yet; metrics.jsonl has every update", name));
    }
  }
  result.config.report_to = {kept.begin(), kept.end()};
  if (!result.config.logging_dir.empty() && !kept.contains("tensorboard")) {
    result.notices.push_back("logging_dir has no effect: report_to does not name tensorboard");
  }
}

}  // namespace

ParseResult parse(std::span<const std::string> args, const ParseSettings& settings) {
  std::vector<Option> rows = train_options();
  rows.insert(rows.end(), settings.extra.begin(), settings.extra.end());
  const OptionTable table(std::move(rows));
  Arguments arguments = read_arguments(args, table);
  if (arguments.help) {
    ParseResult result;
    result.help = true;
    return result;
  }
  Assembly assembly(table);
  if (!arguments.config_file.empty() || !arguments.overrides.empty()) {
    Import import = read_config_file(arguments.config_file, arguments.overrides, table);
    assembly.result().import_table = std::move(import.table);
    assembly.apply_typed(import.reading);
  }
  assembly.apply_typed(arguments.flags);
  const RunConfig& config = assembly.config();
  const std::vector<Reading> below = read_accelerate(config, settings.environment, table);
  for (const Reading& reading : below) assembly.apply_below(reading, "deepspeed");
  if (!config.deepspeed.empty()) {
    assembly.apply_beside(read_deepspeed(config.deepspeed, table), kOrAuto);
  }
  apply_fsdp(assembly, table);
  apply_parallelism(assembly, table);
  for (const Reading& reading : below) {
    assembly.apply_below(reading);
    assembly.take_messages(reading);
  }
  settle_recompute(assembly);
  settle_report_to(assembly.result());

  std::vector<std::string> problems = std::move(assembly.problems());
  for (std::string& line : validate(assembly.result(), settings)) {
    problems.push_back(std::move(line));
  }
  if (!problems.empty()) {
    const auto& contradictions = assembly.result().contradictions;
    problems.insert(problems.end(), contradictions.begin(), contradictions.end());
    throw_if_any(problems);
  }
  return std::move(assembly.result());
}

}  // namespace trireme::config
