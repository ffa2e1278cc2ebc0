// Every row of the option table, then the conventions of the command line and the rules between
// settings.
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "base/file.h"
#include "config/option_table.h"
#include "support/temp_folder.h"
#include "unit/config_support.h"

namespace trireme::config {
namespace {

/// Flags without which a row's good value would break a rule.
Words company(const Option& row) {
  Words words;
  if (row.name != "model_name_or_path") words.push_back("--model_name_or_path=model");
  if (row.name != "data_path") words.push_back("--data_path=data.jsonl");
  if (row.name == "lr_scheduler_kwargs") words.push_back("--lr_scheduler_type=cosine");
  if (row.name == "lr_scheduler_type") words.push_back("--learning_rate=0.5");
  if (row.name == "pipeline_layers") words.push_back("--pipeline_parallel_size=4");
  if (row.name == "virtual_pipeline_size" || row.name == "pipeline_schedule") {
    words.push_back("--pipeline_parallel_size=2");
    words.push_back(row.name == "pipeline_schedule" ? "--virtual_pipeline_size=2"
                                                    : "--pipeline_schedule=interleaved");
  }
  if (row.name == "master_dtype" || row.name == "moment_dtype") words.push_back("--bf16");
  if (row.name != "eval_path") words.push_back("--eval_path=eval.jsonl");
  if (row.name == "save_strategy" || row.name == "load_best_model_at_end") {
    words.push_back("--eval_strategy=steps");
  }
  return words;
}

TEST(OptionTable, KnowsEveryNameOfTheEcosystem) {
  const OptionTable table(train_options());
  std::istringstream lines(test_data("ecosystem_names.txt"));
  int64_t count = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream names(line);
    for (std::string name; names >> name; ++count) {
      EXPECT_NE(table.find(name).row, nullptr) << name;
    }
  }
  EXPECT_GT(count, 150);
}

TEST(OptionTable, MisspeltNamesAreErrorsThatNameTheRow) {
  for (const Option& row : train_options()) {
    std::vector<std::string_view> names = row.aliases;
    names.push_back(row.name);
    for (const std::string_view name : names) {
      const std::string error = parse_error({"--" + misspelt(name), "1"});
      EXPECT_TRUE(contains(error, "unknown flag --" + misspelt(name))) << error;
      EXPECT_TRUE(contains(error, "did you mean '" + std::string(name) + "'")) << error;
    }
  }
}

TEST(OptionTable, ValuesOfTheWrongTypeAreErrorsThatNameTheRow) {
  for (const Option& row : train_options()) {
    const std::string value = bad_value(row);
    if (value.empty()) continue;
    const std::string error = parse_error({"--" + std::string(row.name), value});
    EXPECT_TRUE(contains(error, std::string(row.name) + " = " + value + ": ")) << row.name << error;
  }
}

TEST(OptionTable, ValuesOutOfRangeAreErrors) {
  for (const Option& row : train_options()) {
    const Range& range = row.rule.range;
    std::vector<double> outside;
    if (std::isfinite(range.low)) outside.push_back(range.low_open ? range.low : range.low - 1);
    if (std::isfinite(range.high)) outside.push_back(range.high_open ? range.high : range.high + 1);
    for (const double value : outside) {
      const std::string word = fmt::format("{}", value);
      const std::string error = parse_error({fmt::format("--{}={}", row.name, word)});
      EXPECT_TRUE(contains(error, fmt::format("{} = {}: expects", row.name, word))) << error;
    }
  }
}

TEST(OptionTable, GoodValuesOfHonouredRowsChangeTheConfigurationAndArePrintedBack) {
  const Json defaults = effective(RunConfig{});
  for (const Option& row : train_options()) {
    if (row.support != Support::honoured) continue;
    const std::string name(row.maps_to.empty() ? row.name : row.maps_to);
    const Json value = good_value(row);
    const auto parsed = [&](std::string_view flag) {
      Words words = company(row);
      words.push_back("--" + std::string(flag));
      words.push_back(as_word(value));
      return parse(words);
    };
    const ParseResult result = parsed(row.name);
    const Json after = effective(result.config);
    EXPECT_NE(after.at(name), defaults.at(name)) << row.name;
    EXPECT_TRUE(result.typed.contains(std::string(row.name))) << row.name;
    EXPECT_TRUE(contains(describe(result.config), name)) << row.name;
    for (const std::string_view alias : row.aliases) {
      EXPECT_EQ(effective(parsed(alias).config), after) << alias;
    }
    if (!row.maps_to.empty()) continue;
    EXPECT_EQ(after.at(name), row.rule.kind == Kind::list ? Json::array({value}) : value) << name;
  }
}

TEST(OptionTable, RefusedRowsTakeOnlyTheirNeutralValues) {
  const Json plain = effective(parse_words({}).config);
  for (const Option& row : train_options()) {
    if (row.support != Support::refused) continue;
    const std::string flag = "--" + std::string(row.name);
    for (const Json& neutral : row.neutral) {
      const ParseResult result = parse_words({flag + "=" + as_word(neutral)});
      EXPECT_EQ(effective(result.config), plain) << row.name;
      EXPECT_TRUE(result.notices.empty()) << row.name;
    }
    EXPECT_EQ(parse_error({flag + "=none"}), "") << row.name;
    std::string other = "something";
    if (row.rule.kind == Kind::boolean) other = row.neutral.front() == true ? "false" : "true";
    if (row.rule.kind == Kind::integer) other = "5";
    if (row.rule.kind == Kind::real) other = "0.5";
    if (row.rule.kind == Kind::json) other = R"({"a": 1})";
    const std::string error = parse_error({flag + "=" + other});
    EXPECT_EQ(error, fmt::format("{} = {}: {}", row.name, other, row.help));
  }
}

TEST(OptionTable, MeaninglessRowsAreReportedWithTheReason) {
  const Json plain = effective(parse_words({}).config);
  for (const Option& row : train_options()) {
    if (row.support != Support::meaningless) continue;
    const bool text = row.rule.kind == Kind::text || row.rule.kind == Kind::json;
    const ParseResult result = parse_words({fmt::format("--{}={}", row.name, text ? "word" : "1")});
    EXPECT_EQ(effective(result.config), plain) << row.name;
    EXPECT_EQ(joined(result.notices), fmt::format("{} has no effect: {}\n", row.name, row.help));
  }
}

TEST(OptionTable, RefusedWordsOfAChoiceAreNamed) {
  EXPECT_EQ(parse_error({"--lr_scheduler_type", "reduce_lr_on_plateau"}),
            "lr_scheduler_type = reduce_lr_on_plateau: not supported: the rates of a run are known "
            "before it starts");
  EXPECT_EQ(parse_error({"--optim", "adafactor"}), "optim = adafactor: not supported yet");
  EXPECT_EQ(parse_error({"--train_sampling_strategy", "randm"}),
            "train_sampling_strategy = randm: expects one of random, sequential (did you mean "
            "'random'?)");
  EXPECT_EQ(parse_words({"--optim", "adamw_torch_fused"}).config.optim, Optimizer::adamw);
}

TEST(OptionTable, ThePrintedConfigurationReadsBackAsItself) {
  Words words;
  for (const Option& row : train_options()) {
    if (row.support != Support::honoured || !row.maps_to.empty() || row.name == "deepspeed")
      continue;
    words.push_back(fmt::format("--{}={}", row.name, as_word(good_value(row))));
  }
  const Json printed = effective(parse(words).config);
  Words again;
  for (const auto& [name, value] : printed.items()) {
    if (name == "deepspeed") continue;
    const std::string word = value.is_array() ? value.at(0).get<std::string>() : as_word(value);
    again.push_back(fmt::format("--{}={}", name, word));
  }
  EXPECT_EQ(effective(parse(again).config), printed);

  const Json plain = effective(parse_words({}).config);
  Words defaults;
  for (const auto& [name, value] : plain.items()) {
    if (name == "deepspeed" || value.is_array()) continue;
    defaults.push_back(fmt::format("--{}={}", name, as_word(value)));
  }
  EXPECT_EQ(effective(parse(defaults).config), plain);
}

TEST(CommandLine, TakesTheSpellingsPeopleType) {
  EXPECT_EQ(parse_words({"--learning-rate", "2e-5"}).config.learning_rate, 2e-5);
  EXPECT_EQ(parse_words({"--learning_rate=2e-5"}).config.learning_rate, 2e-5);
  EXPECT_EQ(parse_words({"--sub_group_size", "1e9"}).config.zero.sub_group_size, 1000000000);
  EXPECT_EQ(parse_words({"--max_steps", "-1"}).config.max_steps, -1);
  for (const char* yes : {"True", "true", "1", "yes", "on", "T"}) {
    EXPECT_TRUE(parse_words({"--bf16", yes}).config.bf16) << yes;
    EXPECT_TRUE(parse_words({std::string("--bf16=") + yes}).config.bf16) << yes;
  }
  for (const char* no : {"False", "false", "0", "no", "off", "n"}) {
    EXPECT_FALSE(parse_words({"--bf16", no}).config.bf16) << no;
  }
  EXPECT_TRUE(parse_words({"--bf16"}).config.bf16);
  EXPECT_TRUE(parse_words({"--bf16", "--seed", "1"}).config.bf16);
  EXPECT_FALSE(parse_words({"--no_overlap_comm"}).config.zero.overlap_comm);
  EXPECT_FALSE(parse_words({"--no-overlap-comm"}).config.zero.overlap_comm);
  EXPECT_TRUE(contains(parse_error({"--no_bf16"}), "unknown flag --no_bf16"));
  EXPECT_TRUE(contains(parse_error({"--no_overlap_comm=1"}), "takes no value"));
  EXPECT_TRUE(
      contains(joined(parse_words({"--local-rank=3"}).notices), "local_rank has no effect"));
  EXPECT_TRUE(parse(Words{"--seed", "x", "-h"}).help);
}

TEST(CommandLine, ReportsWhatCannotBeRead) {
  EXPECT_EQ(parse_error({"--seed"}), "--seed needs a value");
  EXPECT_EQ(parse_error({"--output_dir", "--bf16"}), "--output_dir needs a value");
  EXPECT_EQ(parse_error({"train.yaml"}),
            "unexpected argument 'train.yaml': settings are given as --name value");
  EXPECT_EQ(parse_error({"--wholly_unlike_anything"}),
            "unknown flag --wholly_unlike_anything; --help lists what there is");
  EXPECT_EQ(parse_error({"--seed", "9223372036854775808"}),
            "seed = 9223372036854775808: expects an integer at least 0");
  EXPECT_EQ(parse_error({"--learning_rate", "nan"}),
            "learning_rate = nan: expects a number at least 0");
  EXPECT_EQ(parse_error({"--adam_beta1", "1"}), "adam_beta1 = 1: expects a number in [0, 1)");
}

TEST(CommandLine, TellsEverythingAtOnce) {
  EXPECT_EQ(parse_error({"--sede", "1", "--fp16", "--save_steps", "0", "--bf16=x"}),
            "4 things stand in the way:\n"
            "  unknown flag --sede (did you mean 'seed'?)\n"
            "  fp16 = true: not supported; --bf16 needs no loss scale\n"
            "  bf16 = x: expects true or false\n"
            "  save_steps = 0: expects a number of steps above 0, or --save_strategy no");
}

TEST(CommandLine, TheLastOfSeveralCountsButTwoNamesMustAgree) {
  const ParseResult result = parse_words({"--seed", "1", "--seed", "2"});
  EXPECT_EQ(result.config.seed, 2);
  EXPECT_EQ(joined(result.notices), "--seed is given twice, 1 and 2: the last counts\n");
  EXPECT_EQ(parse_error({"--max_length", "512", "--cutoff_len", "1024"}),
            "--max_length 512 contradicts --cutoff_len 1024: they are one setting; give one");
  EXPECT_EQ(parse_words({"--max_length", "512", "--cutoff_len", "512"}).config.max_seq_length, 512);
}

TEST(CommandLine, ListsTakeCommasOrSpaces) {
  for (const Words& words : {Words{"--report_to", "tensorboard,jsonl,wandb", "--bf16"},
                             Words{"--report_to", "wandb", "tensorboard", "jsonl", "--bf16"}}) {
    const ParseResult result = parse_words(words);
    EXPECT_EQ(result.config.report_to, (Words{"jsonl", "tensorboard"}));
    EXPECT_TRUE(result.config.bf16);
    EXPECT_TRUE(contains(joined(result.notices), "report_to wandb has no effect"));
  }
  EXPECT_EQ(parse_words({"--report_to", "all"}).config.report_to, (Words{"jsonl", "tensorboard"}));
  EXPECT_TRUE(contains(joined(parse_words({"--logging_dir", "logs"}).notices),
                       "logging_dir has no effect: report_to does not name tensorboard"));
  EXPECT_TRUE(contains(parse_error({"--report_to", "tensorbord"}), "did you mean 'tensorboard'?"));
  EXPECT_TRUE(parse_words({"--report_to", "none"}).config.report_to.empty());
}

TEST(CommandLine, ACommandAddsRowsOfItsOwn) {
  int64_t world_size = 1;
  bool print_program = false;
  ParseSettings settings;
  settings.needs_data = false;
  settings.extra.push_back(
      extra_option("world_size", world_size, "pretend ranks").also({"gpus"}).at_least(1));
  settings.extra.push_back(
      extra_option("print_program", print_program, "print one rank's program"));
  const Words words = {"--model_name_or_path", "m", "--gpus=1024", "--print-program", "--bf16"};
  const ParseResult result = parse(words, settings);
  EXPECT_EQ(world_size, 1024);
  EXPECT_TRUE(print_program);
  EXPECT_TRUE(result.config.bf16);
  EXPECT_TRUE(contains(help_text("plan", settings.extra), "--world_size"));
  EXPECT_THROW(parse(words), ConfigError);
}

TEST(Rules, WarmupHasTwoSpellings) {
  EXPECT_EQ(parse_words({"--warmup_ratio", "0.03"}).config.warmup_steps, 0.03);
  EXPECT_EQ(parse_words({"--warmup_ratio", "0.03", "--warmup_steps", "0"}).config.warmup_steps,
            0.03);
  EXPECT_EQ(parse_words({"--warmup_ratio", "0", "--warmup_steps", "9"}).config.warmup_steps, 9);
  EXPECT_EQ(parse_error({"--warmup_ratio", "0.03", "--warmup_steps", "9"}),
            "--warmup_steps 9 contradicts --warmup_ratio 0.03: give one");
  EXPECT_EQ(parse_error({"--device", "cuda", "--use_cpu"}),
            "--device cuda contradicts --use_cpu true: give one");
}

TEST(Rules, RecomputationByEitherName) {
  const auto words = [](const Words& flags) {
    return effective(parse_words(flags).config).at("recompute").get<std::string>();
  };
  EXPECT_EQ(words({}), "none");
  EXPECT_EQ(words({"--gradient_checkpointing"}), "block");
  EXPECT_EQ(words({"--gradient_checkpointing", "true", "--recompute", "ffn:3,norms"}),
            "ffn:3,norms");
  EXPECT_EQ(words({"--recompute", "none", "--gradient_checkpointing"}), "none");
  for (const char* bad : {"", "ffn,norms", "ffn:0", "ffn:", "ffn:2,", "ffn:-1", "layer"}) {
    EXPECT_TRUE(contains(parse_error({std::string("--recompute=") + bad}), "expects LEVEL")) << bad;
  }
}

TEST(Rules, SettingsThatNeedEachOther) {
  EXPECT_EQ(parse_error({"--eval_strategy", "steps"}),
            "eval_strategy = steps: needs --eval_path FILE.jsonl");
  EXPECT_EQ(parse_error({"--max_steps", "0"}),
            "max_steps = 0: expects at least 1, or -1 to train num_train_epochs");
  EXPECT_EQ(parse_error({"--output_dir="}), "output_dir = \"\": give a folder");
  EXPECT_EQ(parse_error({"--deepspeed"}), "deepspeed has no file: give --deepspeed FILE.json");
  try {
    parse(Words{});
    FAIL() << "a run without model and data";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "2 things stand in the way:\n"
                 "  model_name_or_path is missing: give --model_name_or_path FOLDER\n"
                 "  data_path is missing: give --data_path FILE.jsonl");
  }
}

TEST(Rules, PackingByItsNames) {
  const RunConfig plain = parse_words({}).config;
  EXPECT_FALSE(plain.packing);
  EXPECT_FALSE(plain.packs_evaluation());
  for (const char* name : {"--packing", "--sample_packing", "--neat_packing"}) {
    const RunConfig config = parse_words({name}).config;
    EXPECT_TRUE(config.packing) << name;
    EXPECT_EQ(config.packing_strategy, PackingStrategy::best_fit) << name;
    EXPECT_TRUE(config.packs_evaluation()) << name;
  }
  const Words evaluates = {"--eval_strategy=epoch", "--eval_path=e.jsonl"};
  const auto with_evaluation = [&](Words words) {
    words.insert(words.end(), evaluates.begin(), evaluates.end());
    return parse_words(words);
  };
  EXPECT_FALSE(with_evaluation({"--packing", "--eval_packing=false"}).config.packs_evaluation());
  EXPECT_TRUE(with_evaluation({"--eval_sample_packing"}).config.packs_evaluation());
  EXPECT_TRUE(with_evaluation({"--packing", "--eval_packing=auto"}).config.packs_evaluation());

  EXPECT_EQ(parse_error({"--neat_packing", "--packing_strategy", "wrapped"}),
            "packing_strategy = wrapped: with neat_packing samples do not see each other; give "
            "bfd, or packing instead");
  const test::TempFolder folder;
  const auto error_of_file = [&](const std::string& name, const std::string& text) {
    write_new_file(folder / name, "model_name_or_path: model\ndata_path: data.jsonl\n" + text);
    return test::message_of<ConfigError>([&] { (void)parse(Words{(folder / name).string()}); });
  };
  const std::string wraps = "packing_strategy: wrapped\n";
  EXPECT_TRUE(contains(error_of_file("run.yaml", "neat_packing: true\n" + wraps), "neat_packing"));
  EXPECT_EQ(error_of_file("neat_packing.yaml", "packing: true\n" + wraps), "");
  for (const char* split : {"bfd_split", "bfd-requeue"}) {
    EXPECT_TRUE(contains(parse_error({"--packing", "--packing_strategy", split}),
                         "not supported yet; bfd treats samples longer than max_seq_length"))
        << split;
  }
  EXPECT_EQ(joined(parse_words({"--packing_strategy=wrapped"}).notices),
            "packing_strategy has no effect: packing = false\n");
  EXPECT_EQ(joined(parse_words({"--packing", "--eval_packing"}).notices),
            "eval_packing has no effect: nothing is evaluated\n");
  const Words wrapped = {"--packing", "--packing_strategy=wrapped", "--on_long=skip"};
  EXPECT_TRUE(contains(joined(with_evaluation(wrapped).notices), "on_long has no effect"));
  Words half = wrapped;
  half.push_back("--eval_packing=false");  // samples of evaluation may be long
  EXPECT_EQ(joined(with_evaluation(half).notices), "");
}

TEST(Rules, TheBestModelMustBeSaved) {
  const auto error = [](Words words) {
    words.insert(words.end(), {"--load_best_model_at_end", "--eval_path", "e"});
    return parse_error(words);
  };
  const std::string best = "load_best_model_at_end = true: ";
  EXPECT_EQ(error({}), best + "needs --eval_strategy and --eval_path");
  EXPECT_EQ(error({"--eval_strategy", "epoch"}),
            best +
                "eval_strategy epoch and save_strategy steps must be the same, or "
                "save_strategy best");
  EXPECT_EQ(error({"--eval_strategy=steps", "--eval_steps=100", "--save_steps=250"}),
            best + "save_steps 250 must be a multiple of eval_steps 100");
  EXPECT_EQ(error({"--eval_strategy=steps", "--eval_steps=0.1", "--save_steps=200"}),
            best + "save_steps 200 must be a multiple of eval_steps 0.1");
  EXPECT_EQ(error({"--eval_strategy=steps", "--logging_steps=100", "--save_steps=50"}),
            best + "save_steps 50 must be a multiple of eval_steps 100");
  EXPECT_EQ(error({"--eval_strategy=steps", "--eval_steps=0.1", "--save_steps=0.3"}), "");
  EXPECT_EQ(error({"--eval_strategy=epoch", "--save_strategy=epoch"}), "");
  EXPECT_EQ(error({"--eval_strategy=epoch", "--save_strategy=best"}), "");
  EXPECT_EQ(parse_error({"--save_strategy", "best"}),
            "save_strategy = best: needs --eval_strategy and --eval_path");
  EXPECT_EQ(parse_error({"--do_eval"}), "do_eval = true: needs --eval_path FILE.jsonl");
}

TEST(Rules, NarrowStateGoesWithBf16) {
  EXPECT_EQ(parse_error({"--master_dtype", "bf16"}),
            "master_dtype = bfloat16: needs --bf16 true, or make it float32");
  EXPECT_EQ(parse_error({"--moment_dtype", "bfloat16", "--bf16", "false"}),
            "moment_dtype = bfloat16: needs --bf16 true, or make it float32");
  const RunConfig config =
      parse_words({"--bf16", "--master_dtype", "bf16", "--moment_dtype", "torch.bfloat16"}).config;
  EXPECT_EQ(config.master_dtype, Precision::bfloat16);
  EXPECT_EQ(config.moment_dtype, Precision::bfloat16);
  EXPECT_EQ(parse_words({"--moment_dtype", "fp32"}).config.moment_dtype, Precision::float32);
  EXPECT_EQ(joined(parse_words({"--bf16", "--optim", "sgd", "--moment_dtype", "bf16"}).notices),
            "moment_dtype has no effect: optim = sgd\n");
}

TEST(Rules, SettingsThatOthersLeaveWithoutEffectAreReported) {
  const auto notices = [](const Words& words) { return joined(parse_words(words).notices); };
  EXPECT_EQ(notices({"--eval_path", "e"}), "eval_path has no effect: eval_strategy = no\n");
  EXPECT_EQ(notices({"--max_steps", "9", "--num_train_epochs", "2"}),
            "num_train_epochs has no effect: max_steps = 9\n");
  EXPECT_EQ(notices({"--save_strategy", "epoch", "--save_steps", "9"}),
            "save_steps has no effect: save_strategy = epoch\n");
  EXPECT_EQ(notices({"--logging_strategy", "epoch", "--logging_steps", "9"}),
            "logging_steps has no effect: logging_strategy = epoch\n");
  EXPECT_EQ(notices({"--eval_delay", "9"}), "eval_delay has no effect: eval_strategy = no\n");
  EXPECT_EQ(notices({"--optim", "sgd", "--adam_beta1", "0.8"}),
            "adam_beta1 has no effect: optim = sgd\n");
  EXPECT_EQ(notices({"--stage3_max_live_parameters", "9"}),
            "stage3_max_live_parameters has no effect: zero_stage = 0\n");
  EXPECT_TRUE(contains(notices({"--lr_scheduler_type", "constant", "--warmup_steps", "9"}),
                       "warmup_steps has no effect"));
}

TEST(Rules, ResumeIsAFolderOrTheLastCheckpoint) {
  const auto resume = [](const Words& words) {
    return parse_words(words).config.resume_from_checkpoint;
  };
  EXPECT_EQ(resume({"--resume_from_checkpoint", "True"}), "true");
  EXPECT_EQ(resume({"--resume_from_checkpoint"}), "true");
  EXPECT_EQ(resume({"--resume_from_checkpoint", "False"}), "");
  EXPECT_EQ(resume({"--resume_from_checkpoint", "out/checkpoint-5"}), "out/checkpoint-5");
}

TEST(Rules, ResolveFillsWhatTheModelSays) {
  const ModelFacts facts = {.hidden_size = 64, .max_position_embeddings = 32768};
  ParseResult result = parse_words({"--zero_stage", "3", "--logging_steps", "9",
                                    "--stage3_param_persistence_threshold", "auto"});
  EXPECT_EQ(effective(result.config).at("stage3_param_persistence_threshold"), "auto");
  resolve(result, facts, 4);
  EXPECT_EQ(result.config.zero.param_persistence_threshold, 640);
  EXPECT_EQ(result.config.max_seq_length, 4096);
  EXPECT_EQ(result.config.eval_steps, 9);
  EXPECT_EQ(result.config.reduce_at, ReduceAt::micro);
  EXPECT_EQ(result.config.train_batch_size, 8 * 1 * 4);
  EXPECT_TRUE(contains(joined(result.notices), "max_seq_length is 4096: the model allows 32768"));

  ParseResult other = parse_words({"--max_seq_length", "40000", "--zero_stage", "1"});
  resolve(other, facts, 1);
  EXPECT_EQ(other.config.max_seq_length, 40000);
  EXPECT_EQ(other.config.reduce_at, ReduceAt::boundary);
  EXPECT_TRUE(contains(joined(other.notices), "beyond the 32768 positions"));
}

TEST(Rules, PipelineSettingsGoTogether) {
  const Words stages = {"--pipeline_parallel_size", "2"};
  const auto error = [&](Words words) {
    words.insert(words.end(), stages.begin(), stages.end());
    return parse_error(words);
  };
  EXPECT_TRUE(contains(parse_error({"--virtual_pipeline_size", "2"}),
                       "virtual_pipeline_size = 2: needs pipeline_parallel_size of at least 2"));
  EXPECT_TRUE(contains(error({"--virtual_pipeline_size", "2"}),
                       "goes with --pipeline_schedule interleaved, not 1f1b"));
  EXPECT_TRUE(contains(error({"--pipeline_schedule", "interleaved"}),
                       "needs virtual_pipeline_size of at least 2"));
  EXPECT_TRUE(contains(error({"--pipeline_layers", "4,5,5"}),
                       "pipeline_layers has 3 parts: pipeline_parallel_size 2 x "
                       "virtual_pipeline_size 1 = 2 are expected"));
  EXPECT_TRUE(contains(error({"--pipeline_layers", "4,five"}),
                       "pipeline_layers = 4,five: expects numbers of blocks, as 4,5,5,4"));
  EXPECT_EQ(error({"--pipeline_layers", "4,5"}), "");
  EXPECT_TRUE(contains(parse_error({"--sequence_parallel", "false"}),
                       "sequence_parallel = false: always on where tensors are split"));
  EXPECT_EQ(joined(parse_words({"--pipeline_schedule", "zero_bubble"}).notices),
            "pipeline_schedule has no effect: there is one pipeline stage\n");
  EXPECT_EQ(joined(parse_words({"--rank_order", "tp-pp-dp"}).notices),
            "rank_order has no effect: all ranks are data ranks\n");
  for (const char* word : {"tp-cp-ep-pp-dp", "tp-cp-pp-dp", "tp-pp-dp"}) {
    EXPECT_EQ(parse_words({"--rank_order", word}).config.rank_order, mesh::RankOrder::tp_pp_dp);
  }
  EXPECT_TRUE(contains(parse_error({"--rank_order", "dp-tp-pp"}), "expects one of tp-cp-dp-pp"));
}

TEST(Resolve, TheBatchCountsDataRanks) {
  const ModelFacts facts = {.hidden_size = 64, .max_position_embeddings = 64};
  const Words split = {"--tensor_parallel_size", "2",       "--pipeline_parallel_size", "2",
                       "--rank_order",           "tp-pp-dp"};
  ParseResult result = parse_words(split);
  resolve(result, facts, 16);
  EXPECT_EQ(result.config.train_batch_size, 8 * 1 * 4);
  EXPECT_EQ(layout_of(result.config, 16), (mesh::Layout{2, 2, 4, mesh::RankOrder::tp_pp_dp, 0}));
  ParseResult other = parse_words(split);
  try {
    resolve(other, facts, 6);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_TRUE(
        contains(error.what(),
                 "tensor_parallel_size 2 x pipeline_parallel_size 2 = 4 does not divide the "
                 "6 ranks: run on 8 ranks"));
  }
}

TEST(Resolve, AShardGroupOfOneHostHasItsDataRanks) {
  const ModelFacts facts = {.hidden_size = 64, .max_position_embeddings = 64};
  const auto shards = [&](const Words& more) {
    Words words = {"--shard_group_size", "host", "--zero_stage", "3"};
    words.insert(words.end(), more.begin(), more.end());
    ParseResult result = parse_words(words);
    resolve(result, facts, 16, 8);
    return result.config.shard_group_size;
  };
  EXPECT_EQ(shards({"--tensor_parallel_size", "2"}), 4);
  EXPECT_EQ(shards({"--tensor_parallel_size", "2", "--pipeline_parallel_size", "4"}), 2);
  EXPECT_EQ(shards({"--tensor_parallel_size", "2", "--pipeline_parallel_size", "2", "--rank_order",
                    "tp-pp-dp"}),
            2);
  EXPECT_EQ(shards({"--tensor_parallel_size", "16"}), 1);
}

TEST(Resolve, AShardGroupMayBeTheRanksOfOneHost) {
  ParseResult result = parse_words({"--zero_stage", "3", "--shard_group_size", "host"});
  resolve(result, {.hidden_size = 64, .max_position_embeddings = 64}, 16, 8);
  EXPECT_EQ(result.config.shard_group_size, 8);
  ParseResult alone = parse_words({"--zero_stage", "3", "--shard_group_size", "host"});
  resolve(alone, {.hidden_size = 64, .max_position_embeddings = 64}, 16);
  EXPECT_EQ(alone.config.shard_group_size, 16);
}

TEST(Help, ListsEveryHonouredSettingWithin100Columns) {
  const std::string help = help_text();
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  for (const Option& row : train_options()) {
    const std::string word = fmt::format("\n  --{} ", row.name);
    EXPECT_EQ(contains(help, word), row.support == Support::honoured) << row.name;
  }
}

TEST(Reference, TheDocumentationIsWhatTheTableSays) {
  const std::string path = std::string(TRIREME_SOURCE_DIR) + "/docs/configuration.md";
  if (std::getenv("TRIREME_WRITE_REFERENCE") != nullptr) {
    std::ofstream(path) << markdown_reference();
  }
  EXPECT_EQ(read_file(path), markdown_reference())
      << "docs/configuration.md is stale: run this test with TRIREME_WRITE_REFERENCE=1";
}

}  // namespace
}  // namespace trireme::config
