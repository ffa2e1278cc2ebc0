// Flags and a DeepSpeed JSON become one RunConfig, in two steps: parse() needs only the flags,
// resolve() also what the model and the number of ranks say. The configuration is complete and
// free of contradictions only after both.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/option.h"
#include "config/run_config.h"

namespace trireme::config {

struct ParseResult {
  RunConfig config;
  /// Names (of the table, not aliases) of the settings that the user wrote: flags, key=value and
  /// the configuration file.
  std::set<std::string> typed;
  /// Sentences for the banner: what was asked for and has no effect here, with why; values that
  /// follow from others.
  std::vector<std::string> notices;
  /// What became of each key of an imported file, one line each, with a title; empty for none.
  std::string import_table;
  /// `--help` was asked for; nothing else was looked at.
  bool help = false;

  /// Where a setting was said: name -> "--learning_rate" or "optimizer.params.lr in ds.json".
  std::map<std::string, std::string> origins;
  /// What resolve() reports together with its own contradictions.
  std::vector<std::string> contradictions;
};

/// nullopt when the variable is unset or empty.
using Environment = std::function<std::optional<std::string>(std::string_view name)>;

struct ParseSettings {
  /// False for commands that read no samples: `data_path` may be absent.
  bool needs_data = true;
  /// Rows of the command itself (extra_option).
  std::vector<Option> extra;
  /// Looks a variable up, for what accelerate says there; may be empty.
  Environment environment;
};

/// `args` without program and verb. The first may be a YAML or JSON file (config_file.h); key=value
/// words replace what it says, and flags what both say. `--name value`, `--name=value`, '-' as '_';
/// a boolean may stand alone, and `--no_NAME` turns off one that is on by default; the last of
/// several counts. Reads the files that it is told of. Throws ConfigError listing everything that
/// is wrong, one line each: unknown names (with the nearest known one), values of the wrong type or
/// out of range, settings that are refused and why, settings that do not go together.
ParseResult parse(std::span<const std::string> args, const ParseSettings& settings = {});

/// What the model folder says.
struct ModelFacts {
  int64_t hidden_size = 0;
  int64_t max_position_embeddings = 0;
};

/// Fills what was left open: the batch triple (train_batch_size = per_device_train_batch_size x
/// gradient_accumulation_steps x data ranks), max_seq_length, eval_packing, eval_steps, reduce_at,
/// the persistence threshold, the shard group (`host_ranks`: the ranks of one host; 0: all). Adds
/// notices. Throws ConfigError listing all contradictions: of the DeepSpeed file with typed flags,
/// within the file, of the layout with the `world_size`, and of the triple, with what could be
/// changed.
void resolve(ParseResult& result, const ModelFacts& facts, int64_t world_size,
             int64_t host_ranks = 0);

/// How the ranks of a resolved configuration lie.
mesh::Layout layout_of(const RunConfig& config, int64_t world_size);

}  // namespace trireme::config
