// `trireme plan`: what a run would take, without starting ranks or allocating anything.
#include <fmt/ranges.h>

#include <cstdio>
#include <memory>

#include "accel/cuda_loader.h"
#include "app/job.h"
#include "app/verbs.h"
#include "base/error.h"
#include "base/file.h"
#include "base/math.h"
#include "base/text.h"
#include "config/parse.h"
#include "config/print.h"
#include "cpu/backend.h"
#include "cpu/communicator_calls.h"
#include "cpu/op_table.h"
#include "cuda/comm_sizing.h"
#include "cuda/op_sizing.h"
#include "cuda/plan_rules.h"
#include "host/cpu_topology.h"
#include "metrics/text.h"
#include "plan/plan.h"
#include "plan/print.h"
#include "plan/timeline_print.h"
#include "plan/verify_stages.h"
#include "train/memory_text.h"
#include "train/run.h"
#include "train/run_facts.h"

namespace trireme::app {

namespace {

constexpr double kMostRanks = 1 << 20;

struct PlanFlags {
  int64_t world_size = 1;
  int64_t host_ranks = 0;
  int64_t rank = 0;
  bool print_program = false;
  bool expand = false;
  bool print_schedule = false;
  std::string schedule_svg;
};

std::vector<config::Option> rows(PlanFlags& flags) {
  using config::extra_option;
  config::Option svg = extra_option("schedule_svg", flags.schedule_svg,
                                    "SVG file that gets a picture of the pipeline's timeline");
  svg.rule.kind = config::Kind::path;
  return {
      extra_option("world_size", flags.world_size, "ranks of the run that is planned")
          .also({"gpus"})
          .between(1, kMostRanks),
      extra_option("nproc_per_node", flags.host_ranks, "ranks of one host; 0: all").at_least(0),
      extra_option("rank", flags.rank, "whose program is shown").at_least(0),
      extra_option("print_program", flags.print_program,
                   "print the training program of the rank and its memory map"),
      extra_option("expand", flags.expand, "with --print_program: the operations of each phase"),
      extra_option("print_schedule", flags.print_schedule,
                   "draw the pipeline's timeline, and the bubbles of its stages"),
      svg};
}

/// Sizes of the largest micro-batch: from the data where it is given, else the most there can be.
struct Load {
  ops::Extent capacity;
  std::vector<int> accumulations;
  int64_t steps = 1;
  bool evaluates = false;
  std::string packing = {};  // in words; empty: nothing is packed, or not known
};

Load load_of(const config::RunConfig& config, const model::ModelGraph& model,
             const mesh::Layout& layout, int64_t data_rank, int64_t token_multiple) {
  if (!config.data_path.empty()) {
    train::RunData data(config, train::read_rows(config, model.config), layout.dp, data_rank,
                        token_multiple);
    const std::string packing =
        config.packing ? train::packing_words(config, data.training(), data.packs()) : "";
    return {data.capacity(), data.accumulations(), data.total_steps(), data.evaluates(), packing};
  }
  const int64_t rows = std::max(config.per_device_train_batch_size,
                                config.evaluates() ? config.per_device_eval_batch_size : 0);
  const int64_t tokens = round_up(rows * config.max_seq_length, token_multiple);
  // A pack may be of samples of one token.
  const bool packs = config.packing || (config.evaluates() && config.packs_evaluation());
  const bool whole = config.packing_strategy == config::PackingStrategy::best_fit;
  return {{tokens, packs && whole ? tokens : rows, config.max_seq_length},
          {static_cast<int>(config.gradient_accumulation_steps)},
          std::max<int64_t>(config.max_steps, 1),
          config.evaluates()};
}

/// The sizes of the device that is planned for; none need be here.
struct Sizes {
  std::unique_ptr<ops::OpSizing> ops;
  std::unique_ptr<comm::CommSizing> comms;
  int64_t loss_chunk_bytes = 0;
  int64_t memory_besides = 0;  // contexts and libraries
};

bool plans_for_gpus(const config::RunConfig& config) {
  return config.device == config::DeviceChoice::cuda ||
         (config.device == config::DeviceChoice::automatic &&
          accel::look_for_cuda().num_devices > 0);
}

Sizes sizes_on_gpus(bool deterministic, int64_t world_size) {
  constexpr int kHopper = 90;
  Sizes sizes;
  sizes.ops = std::make_unique<cuda::OpSizing>(kHopper, deterministic);
  sizes.comms = std::make_unique<cuda::CommSizing>();
  sizes.loss_chunk_bytes = cuda::kLossChunkBytes;
  sizes.memory_besides = cuda::memory_besides(world_size);
  return sizes;
}

/// As a run on this machine: workspaces depend on the threads of a rank.
Sizes sizes_on_cpus(int64_t neighbours) {
  const int64_t cores = host::read_cpu_topology().usable_cores();
  Sizes sizes;
  sizes.ops =
      std::make_unique<cpu::OpSizing>(static_cast<int>(std::max<int64_t>(1, cores / neighbours)));
  sizes.comms = std::make_unique<cpu::CommSizing>();
  return sizes;
}

void print_summary(const plan::Plan& plan, const PlanFlags& flags, const Load& load,
                   int64_t memory_besides) {
  const plan::Program& program = plan.train.rbegin()->second;
  const std::string title =
      fmt::format("Planned memory of each of {} ranks", flags.world_size / plan.mesh.layout.pp);
  std::string text = train::memory_text(
      plan.mesh.layout.pp == 1 ? title : fmt::format("{} of stage {}", title, plan.mesh.at.pp),
      plan, memory_besides);
  text += fmt::format("Parameters: {}\n", metrics::thousands(plan.model.num_parameters()));
  if (!load.packing.empty()) text += fmt::format("Packing: {}\n", load.packing);
  text += fmt::format("Largest micro-batch: {} tokens in {} sequences, the longest {}\n",
                      load.capacity.tokens, load.capacity.sequences, load.capacity.longest);
  text +=
      fmt::format("Program {}: {} entries, {} stored instructions, hash {:016x}\n", program.name,
                  program.schedule.size(), program.num_stored_instructions(), plan.hash);
  std::fputs(text.c_str(), stdout);
}

void show_schedule(const plan::Plan& plan, const PlanFlags& flags) {
  const plan::TimelineView view =
      plan::timeline_of(plan.pipeline, plan.model, plan.train.rbegin()->first);
  if (flags.print_schedule) std::fputs(("\n" + plan::timeline_text(view)).c_str(), stdout);
  if (flags.schedule_svg.empty()) return;
  try {
    replace_file(flags.schedule_svg, plan::timeline_svg(view));
  } catch (const DeviceError& error) {
    throw ConfigError("schedule_svg", printable(flags.schedule_svg),
                      fmt::format("{}; give another file", error.what()));
  }
}

int64_t device_bytes(const plan::Plan& plan) {
  return plan.arenas[static_cast<size_t>(device::Space::device)];
}

/// Plans every stage of the pipeline, runs them against each other, and prints what each takes.
void show_stages(const plan::Plan& plan, plan::PlanRequest request) {
  const int num_stages = plan.pipeline.stages;
  if (num_stages == 1) return;
  std::vector<plan::Plan> stages;
  for (int stage = 0; stage < num_stages; ++stage) {
    mesh::Coordinates at = plan.mesh.at;
    at.pp = stage;
    request.rank = mesh::rank_of(plan.mesh.layout, at);
    stages.push_back(plan::make_plan(request));
  }
  const auto fault = plan::find_stage_fault(stages);
  check(!fault, "{}", fault.value_or(""));
  std::string text = "Stages (their programs meet without deadlock)\n";
  for (const plan::Plan& stage : stages) {
    std::vector<std::string> parts;
    for (int c = 0; c < stage.pipeline.chunks(); ++c) {
      const plan::UnitRange& units = stage.pipeline.units(c);
      const auto name = [&](int unit) { return plan.model.units[static_cast<size_t>(unit)].name; };
      parts.push_back(fmt::format("{} - {}", name(units.begin), name(units.end - 1)));
    }
    text += fmt::format("  {:>3}  {:>10}  {}\n", stage.pipeline.stage,
                        human_bytes(device_bytes(stage)), fmt::join(parts, ", "));
  }
  std::fputs(text.c_str(), stdout);
}

}  // namespace

int plan_verb(Arguments args) {
  PlanFlags flags;
  config::ParseSettings settings;
  settings.needs_data = false;
  settings.extra = rows(flags);
  config::ParseResult parsed = config::parse(args, settings);
  if (parsed.help) {
    std::fputs(config::help_text("plan", settings.extra).c_str(), stdout);
    return 0;
  }
  if (flags.rank >= flags.world_size) {
    throw ConfigError("rank", std::to_string(flags.rank),
                      fmt::format("ranks go from 0 to world_size - 1 = {}", flags.world_size - 1));
  }
  if (flags.expand && !flags.print_program) {
    throw ConfigError("expand", "true", "goes with --print_program");
  }
  const model::ModelGraph model = train::resolve_model(parsed, flags.world_size, flags.host_ranks);
  const mesh::Layout layout = config::layout_of(parsed.config, flags.world_size);
  const int64_t data_rank = mesh::coordinates_of(layout, flags.rank).dp;
  const bool on_gpus = plans_for_gpus(parsed.config);
  const Load load = load_of(parsed.config, model, layout, data_rank,
                            (on_gpus ? cuda::kTokenMultiple : cpu::kTokenMultiple) * layout.tp);
  const Sizes sizes =
      on_gpus ? sizes_on_gpus(repeats_bits(parsed.config, model, load.capacity.longest),
                              flags.world_size)
              : sizes_on_cpus(flags.host_ranks > 0 ? flags.host_ranks : flags.world_size);
  plan::PlanRequest request;
  request.config = &parsed.config;
  request.model = &model;
  request.world_size = flags.world_size;
  request.rank = flags.rank;
  request.capacity = load.capacity;
  request.rope_positions = std::max<int64_t>(1, load.capacity.longest);
  request.schedule_entries = load.steps + 1;
  request.accumulations = load.accumulations;
  request.evaluates = load.evaluates;
  if (sizes.loss_chunk_bytes > 0) request.loss_chunk_bytes = sizes.loss_chunk_bytes;
  request.op_sizing = sizes.ops.get();
  request.comm_sizing = sizes.comms.get();
  const plan::Plan plan = plan::make_plan(request);
  if (!parsed.import_table.empty()) std::fputs((parsed.import_table + "\n").c_str(), stdout);
  for (const std::string& notice : parsed.notices) std::fputs((notice + "\n").c_str(), stdout);
  print_summary(plan, flags, load, sizes.memory_besides);
  show_stages(plan, request);
  show_schedule(plan, flags);
  if (flags.print_program) {
    for (const auto& [accumulation, program] : plan.train) {
      const plan::PrintOptions options{.expand = flags.expand, .addresses = true};
      std::fputs(("\n" + plan::print_program(program, plan.model, options)).c_str(), stdout);
    }
  }
  return 0;
}

}  // namespace trireme::app
