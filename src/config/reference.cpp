// docs/configuration.md, written from the tables.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "config/accelerate.h"
#include "config/deepspeed.h"
#include "config/fsdp.h"
#include "config/import_reader.h"
#include "config/print.h"
#include "config/scheduler_kwargs.h"
#include "config/value.h"
#include "config/words.h"

namespace trireme::config {
namespace {

constexpr std::string_view kIntroduction = R"(# Configuration

This page is written from the tables in `src/config`; a test fails when it is stale.

Every setting is a flag: `--name value` or `--name=value`; `-` and `_` are the same. A boolean may
stand alone (`--bf16`), takes true, yes, 1, on, false, no, 0, off, and `--no_NAME` turns off one that
is on by default. Whole numbers may be written `1e9`. When a flag is given twice, the last counts. A
step count below 1 is a share of all steps, rounded up.

The first argument of `train` and `plan` may be a YAML or JSON file of settings instead, with
`key=value` words after it that replace what it says (`a.b=1` reaches into sections), and flags that
replace both: `trireme train run.yaml learning_rate=1e-5 --output_dir out`. A value that is empty
or null is not said. Files of LLaMA-Factory and axolotl are known by their keys and read by the
tables below, and what became of each key is printed.

The names are those of Hugging Face's `TrainingArguments`, in 4.x and 5.x spellings, and common ones
of TRL, LLaMA-Factory, axolotl and DeepSpeed. Each is either honoured (the first tables), reported
as without effect here, or refused: a run is never quietly anything but what was asked for.
The effective configuration is printed at the start and saved with the run.

Everything that is wrong is told in one message, and the exit code is 2.

## Files in output_dir

| file | what is in it |
|---|---|
| `checkpoint-N/` | the state after update N, its Hugging Face model and `trainer_state.json` |
| `latest` | the name of the newest checkpoint |
| `run_id` | the run that this folder is used by |
| `config.json`, `model.safetensors`, ... | at the end: the trained model, as a Hugging Face folder |
| `run_config.json` | the effective configuration |
| `metrics.jsonl` | one line an update and one an evaluation |
| `trainer_log.jsonl` | one line for each that is printed, in LLaMA-Factory's keys |
| `trainer_state.json` | at the end: Hugging Face's state with all lines, `best_metric` and `best_model_checkpoint` |
| `train_results.json`, `eval_results.json`, `all_results.json` | at the end: Hugging Face's results; those of `eval` are of the last evaluation |

A resumed run cuts the logs back to its checkpoint and goes on, so that they read as those of an
unbroken run.

The best checkpoint so far of a run that goes on elsewhere (`best_model_checkpoint`, and what
`load_best_model_at_end` loads) is the one beside the checkpoint that is resumed from, or where that
says it was. Where it is at neither place, `load_best_model_at_end` chooses among later ones, and
the start says so. `save_total_limit` counts what is in this folder alone.

A run that starts afresh gets an id, which its checkpoints carry, and so do those of every run that
resumes from them. In a folder that holds checkpoints of another run, only those of the run that was
started last are resumed from with `true`, taken instead of a damaged one, counted and removed for
`save_total_limit`. A run is started, and the folder is its own, once its settings and its model are
known to be sound: if it dies while it reads data or before its ranks have met, `true` and a launcher
that starts it again do not go on from an earlier run. The others stay: the start names them, and one
whose `checkpoint-N` is needed is renamed to `checkpoint-N-of-RUN`. Give its path to resume from it.
Logs are set aside as `metrics-of-RUN.jsonl` and `trainer_log-of-RUN.jsonl`, and are `metrics.jsonl`
and `trainer_log.jsonl` again when that run is resumed.
)";

constexpr std::string_view kFsdp = R"(
## FSDP

`--fsdp "full_shard auto_wrap"` shards as `--zero_stage` 3 does, `shard_grad_op` as 2, `no_shard` as
0; `hybrid_shard` and `hybrid_shard_zero2` keep one copy of the state a host
(`--shard_group_size host`). `auto_wrap` has no effect: the units that are sharded are the model's
blocks. `--fsdp_config FILE`, or the JSON itself, takes these keys with or without `fsdp_` before
them. What it says must agree with flags that say the same.
)";

constexpr std::string_view kParallelism = R"(
### parallelism_config

With or without `parallelism_config_` before each key.
)";

constexpr std::string_view kAccelerate = R"(
## accelerate

`--accelerate_config FILE` takes accelerate's YAML, and under `accelerate launch` its environment is
read. Both count only where nothing else is said, the environment last.
)";

constexpr std::string_view kLlamaFactory = R"(
## LLaMA-Factory

A file with one of the keys stage, finetuning_type, dataset, dataset_dir, template. Its other keys
are names of this page. Left out, these have LLaMA-Factory's defaults: `cutoff_len` 2048, gradient
checkpointing on, and in stage pt packing.
)";

constexpr std::string_view kAxolotl = R"(
## axolotl

A file with one of the keys base_model, datasets, test_datasets, sequence_len, micro_batch_size,
val_set_size, adapter. Its other keys are names of this page. Left out, these have axolotl's
defaults: one epoch, `micro_batch_size` 1, `sequence_len` 512, longer rows left out, cosine, a
warm-up of 3 % of all steps (which axolotl bounds by 100, and this does not), a line at least every
10 steps, a checkpoint each epoch, of which 4 are kept.
)";

constexpr std::string_view kSchedules = R"(
### lr_scheduler_kwargs

A schedule has these parts, which `--lr_scheduler_kwargs` takes as JSON or as a JSON file. The
formulas are those of transformers, and of DeepSpeed for the schedulers named after its own; the
first update uses the rate of step 0.

| name | taken by | what it is |
|---|---|---|
)";

constexpr std::string_view kDeepspeed = R"(
## DeepSpeed JSON

`--deepspeed FILE`, or the JSON itself. Every key at every depth is in the tables below; an unknown
one is an error that names the nearest, and so is a key given twice.

- A value in the file stands against a flag only when that flag was typed: then both must be equal.
  All contradictions are listed at once.
- `train_batch_size` = `train_micro_batch_size_per_gpu` x `gradient_accumulation_steps` x data
  ranks. Of the three, what is neither in the file nor typed follows from the others; with
  `train_batch_size` alone, `gradient_accumulation_steps` is 1.
- `"auto"` is accepted for every key and leaves the flag's value, or its default. For
  `stage3_param_persistence_threshold` it is 10 x hidden_size, as Hugging Face has it; for the
  bucket sizes it is a whole unit (embedding, block or head).
- A key that is left out has the default of its flag, which is not always DeepSpeed's.
- Sizes are in elements. They act on whole units: a prefetch or a limit of live parameters is
  rounded up, a prefetch of 0 is none.
)";

std::string cell(std::string_view words) {
  std::string result;
  for (const char c : words) {
    if (c == '|') result += '\\';
    result += c;
  }
  return result;
}

std::string code_list(const std::vector<std::string_view>& names) {
  std::string words;
  for (const std::string_view name : names) {
    words += fmt::format("{}`{}`", words.empty() ? "" : ", ", name);
  }
  return words;
}

std::string value_words(const ValueRule& rule) {
  std::string words;
  switch (rule.kind) {
    case Kind::boolean:
      words = "boolean";
      break;
    case Kind::integer:
      words = "integer";
      break;
    case Kind::real:
      words = "number";
      break;
    case Kind::steps:
      words = "steps or share";
      break;
    case Kind::text:
      words = "word";
      break;
    case Kind::path:
      words = "path";
      break;
    case Kind::json:
    case Kind::document:
      words = "JSON, or its file";
      break;
    case Kind::list:
      words = "words: ";
      break;
    case Kind::choice:
      break;
  }
  std::string choices;
  for (const Choice& choice : rule.choices) {
    if (!choice.refusal.empty()) continue;
    choices += choices.empty() ? "" : ", ";
    choices += choice.word;
    if (!choice.means.empty()) choices += fmt::format(" (= {})", choice.means);
  }
  words += choices;
  const std::string range = range_words(rule.range);
  if (!range.empty()) words += " " + range;
  if (!rule.unset.empty()) words += fmt::format(", or {}", rule.unset);
  return words;
}

std::string default_cell(const Option& row) {
  if (!row.maps_to.empty()) return fmt::format("sets `{}`", row.maps_to);
  const Json value = row.get(RunConfig{});
  if (value.is_null()) return std::string(row.rule.unset);
  return value.empty() || value == "" ? "none" : shown(value);
}

std::string refused_words(const Option& row) {
  std::string words;
  for (const Choice& choice : row.rule.choices) {
    if (choice.refusal.empty()) continue;
    words += fmt::format("{}{}", words.empty() ? "" : ", ", choice.word);
  }
  return words.empty() ? "" : " Refused: " + words + ".";
}

std::string neutral_words(const std::vector<Json>& neutral) {
  std::string words;
  for (const Json& value : neutral) {
    if (value == "" || value == Json::object() || value == Json::array()) continue;
    words += (words.empty() ? "" : ", ") + shown(value);
  }
  return words.empty() ? "none" : words;
}

void write_honoured(std::string& text, const std::vector<Option>& rows, OptionGroup group,
                    std::string_view title) {
  auto out = std::back_inserter(text);
  fmt::format_to(out, "\n## {}\n\n| name | value | default | what it does |\n|---|---|---|---|\n",
                 title);
  for (const Option& row : rows) {
    if (row.group != group || row.support != Support::honoured) continue;
    std::string help(row.help);
    if (!row.aliases.empty()) help += fmt::format(" (also {})", code_list(row.aliases));
    fmt::format_to(out, "| `{}` | {} | {} | {}.{} |\n", row.name, cell(value_words(row.rule)),
                   cell(default_cell(row)), cell(help), refused_words(row));
  }
}

std::string names_cell(const Option& row) {
  std::vector<std::string_view> names = {row.name};
  names.insert(names.end(), row.aliases.begin(), row.aliases.end());
  return code_list(names);
}

void write_schedules(std::string& text) {
  text += kSchedules;
  for (const KwargFacts& facts : scheduler_kwargs()) {
    std::string takers;
    for (const Scheduler scheduler : facts.schedulers) {
      takers += fmt::format("{}{}", takers.empty() ? "" : ", ", word_of(scheduler));
    }
    fmt::format_to(std::back_inserter(text), "| `{}` | {} | {} |\n", facts.name, takers,
                   facts.help);
  }
}

void write_others(std::string& text, const std::vector<Option>& rows) {
  auto out = std::back_inserter(text);
  text += "\n## Without effect here\n\n| name | why |\n|---|---|\n";
  for (const Option& row : rows) {
    if (row.support != Support::meaningless) continue;
    fmt::format_to(out, "| {} | {} |\n", names_cell(row), cell(row.help));
  }
  text += "\n## Refused\n\nOnly the value that changes nothing is accepted.\n\n";
  text += "| name | accepted | why |\n|---|---|---|\n";
  for (const Option& row : rows) {
    if (row.support != Support::refused) continue;
    fmt::format_to(out, "| {} | {} | {} |\n", names_cell(row), neutral_words(row.neutral),
                   cell(row.help));
  }
}

void write_schema(std::string& text, const Schema& schema) {
  auto out = std::back_inserter(text);
  const auto table = [&](Support support, std::string_view head, auto row) {
    const auto of_it = [&](const SchemaKey& key) { return key.support == support; };
    if (std::ranges::none_of(schema.keys(), of_it)) return;
    text += head;
    for (const SchemaKey& key : schema.keys()) {
      if (of_it(key)) row(key);
    }
  };
  table(Support::honoured, "\n| honoured key | acts as |\n|---|---|\n", [&](const SchemaKey& key) {
    fmt::format_to(out, "| `{}` | {} |\n", key.path,
                   key.option.empty() ? std::string(key.why) : fmt::format("`--{}`", key.option));
  });
  table(Support::meaningless, "\n| key without effect | why |\n|---|---|\n",
        [&](const SchemaKey& key) { fmt::format_to(out, "| `{}` | {} |\n", key.path, key.why); });
  table(Support::refused, "\n| refused key | accepted | why |\n|---|---|---|\n",
        [&](const SchemaKey& key) {
          fmt::format_to(out, "| `{}` | {} | {} |\n", key.path, neutral_words(key.neutral),
                         key.why);
        });
  if (schema.aliases().empty()) return;
  text += "\n| other spelling | is |\n|---|---|\n";
  for (const auto& [spelling, path] : schema.aliases()) {
    fmt::format_to(out, "| `{}` | `{}` |\n", spelling, path);
  }
}

void write_variables(std::string& text) {
  auto out = std::back_inserter(text);
  text += "\n| variable | is |\n|---|---|\n";
  for (const AccelerateVariable& variable : accelerate_variables()) {
    fmt::format_to(out, "| `{}` | `{}` |\n", variable.name, variable.path);
  }
  text +=
      "| `FSDP_KEY`, with `ACCELERATE_USE_FSDP` | `fsdp_config.fsdp_key` |\n"
      "| `PARALLELISM_CONFIG_KEY`, with `ACCELERATE_USE_PARALLELISM_CONFIG` | "
      "`parallelism_config.parallelism_config_key` |\n"
      "| `ACCELERATE_USE_DEEPSPEED` | `distributed_type` DEEPSPEED |\n"
      "| `ACCELERATE_USE_MEGATRON_LM` | refused |\n";
}

}  // namespace

std::string markdown_reference() {
  const std::vector<Option> rows = train_options();
  std::string text(kIntroduction);
  for (const auto& [group, title] : option_groups()) {
    if (group != OptionGroup::command) write_honoured(text, rows, group, title);
    if (group == OptionGroup::optimizer) write_schedules(text);
  }
  write_others(text, rows);
  text += kDeepspeed;
  write_schema(text, deepspeed_schema());
  text += kFsdp;
  write_schema(text, fsdp_schema());
  text += kParallelism;
  write_schema(text, parallelism_schema());
  text += kAccelerate;
  write_schema(text, accelerate_schema());
  write_variables(text);
  text += kLlamaFactory;
  write_schema(text, llama_factory_schema());
  text += kAxolotl;
  write_schema(text, axolotl_schema());
  return text;
}

}  // namespace trireme::config
