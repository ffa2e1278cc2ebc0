#include "config/parse.h"

#include "config/arguments.h"
#include "config/assembly.h"
#include "config/deepspeed.h"
#include "config/problems.h"
#include "config/validate.h"
#include "config/value.h"

namespace trireme::config {
namespace {

constexpr std::string_view kOrAuto = ", or write \"auto\" in the file";

void settle_recompute(Assembly& assembly) {
  if (assembly.config().gradient_checkpointing && !assembly.knows("recompute")) {
    assembly.config().recompute = {{Recompute::block, -1}};
  }
}

void settle_report_to(ParseResult& result) {
  std::vector<std::string> kept;
  for (const std::string& name : result.config.report_to) {
    if (name == "jsonl") kept = {name};
    if (name == "jsonl" || name == "none") continue;
    result.notices.push_back(fmt::format(
        "report_to {} has no effect: not supported yet; metrics.jsonl has every update", name));
  }
  result.config.report_to = std::move(kept);
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
  assembly.apply_typed(std::move(arguments.flags));
  RunConfig& config = assembly.config();
  if (!config.deepspeed.empty()) {
    assembly.apply_beside(read_deepspeed(config.deepspeed, table), kOrAuto);
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
