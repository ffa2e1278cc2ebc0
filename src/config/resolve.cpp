#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/math.h"
#include "config/parse.h"
#include "config/problems.h"

namespace trireme::config {
namespace {

constexpr int64_t kLongestDefault = 4096;

/// train_batch_size = micro x accumulation x data ranks; what was not said follows from the rest.
class BatchTriple {
 public:
  BatchTriple(ParseResult& result, int64_t data_ranks)
      : result_(result), config_(result.config), ranks_(data_ranks) {}

  void settle() {
    const int64_t total = config_.train_batch_size;
    if (total == 0) {
      config_.train_batch_size = micro() * accumulation() * ranks_;
      return;
    }
    const bool knows_micro = given("per_device_train_batch_size");
    const bool knows_accumulation = given("gradient_accumulation_steps");
    if (knows_micro && knows_accumulation) {
      if (total != micro() * accumulation() * ranks_) contradict();
    } else if (knows_micro) {
      derive("gradient_accumulation_steps", config_.gradient_accumulation_steps,
             "per_device_train_batch_size", micro());
    } else {
      if (!knows_accumulation) config_.gradient_accumulation_steps = 1;
      derive("per_device_train_batch_size", config_.per_device_train_batch_size,
             "gradient_accumulation_steps", accumulation());
    }
  }

 private:
  bool given(const char* name) const { return result_.origins.contains(name); }
  int64_t micro() const { return config_.per_device_train_batch_size; }
  int64_t accumulation() const { return config_.gradient_accumulation_steps; }

  /// `unknown` = total / (known x ranks), which must be whole.
  void derive(std::string_view name, int64_t& unknown, std::string_view known_name, int64_t known) {
    const int64_t total = config_.train_batch_size;
    const int64_t part = known * ranks_;
    if (total % part != 0) {
      const int64_t below = total / part * part;
      std::string advice = fmt::format("set train_batch_size to {}", below + part);
      if (below > 0) advice += fmt::format(" or {}", below);
      if (total % known == 0) advice += fmt::format(", or run on {} data ranks", total / known);
      result_.contradictions.push_back(fmt::format("{} is no multiple of {} {} x {} data ranks: {}",
                                                   total_words(), known_name, known, ranks_,
                                                   advice));
      return;
    }
    unknown = total / part;
    result_.notices.push_back(fmt::format("{} is {}: train_batch_size {} / ({} {} x {} data ranks)",
                                          name, unknown, total, known_name, known, ranks_));
  }

  void contradict() {
    const int64_t total = config_.train_batch_size;
    std::string advice =
        fmt::format("set train_batch_size to {}", micro() * accumulation() * ranks_);
    if (total % (micro() * ranks_) == 0) {
      advice += fmt::format(", or gradient_accumulation_steps to {}", total / (micro() * ranks_));
    }
    if (total % (accumulation() * ranks_) == 0) {
      advice +=
          fmt::format(", or per_device_train_batch_size to {}", total / (accumulation() * ranks_));
    }
    if (total % (micro() * accumulation()) == 0) {
      advice += fmt::format(", or run on {} data ranks", total / (micro() * accumulation()));
    }
    result_.contradictions.push_back(fmt::format(
        "{} is not per_device_train_batch_size {} x gradient_accumulation_steps {} x {} data ranks "
        "= {}: {}",
        total_words(), micro(), accumulation(), ranks_, micro() * accumulation() * ranks_, advice));
  }

  std::string total_words() const {
    return said(result_.origins.at("train_batch_size"), std::to_string(config_.train_batch_size));
  }

  ParseResult& result_;
  RunConfig& config_;
  int64_t ranks_;
};

/// 0, and a contradiction, where the world is no multiple of a copy of the model.
int64_t count_data_ranks(ParseResult& result, int64_t world_size) {
  const int64_t tensor = result.config.tensor_parallel_size;
  const int64_t stages = result.config.pipeline_parallel_size;
  const int64_t copy = checked_mul(tensor, stages);
  if (world_size % copy == 0) return world_size / copy;
  result.contradictions.push_back(fmt::format(
      "tensor_parallel_size {} x pipeline_parallel_size {} = {} does not divide the {} {}: run on "
      "{} ranks, or split the model into fewer parts",
      tensor, stages, copy, world_size, world_size == 1 ? "rank" : "ranks",
      round_up(world_size, copy)));
  return 0;
}

/// Data ranks of one host, at least one.
int64_t data_ranks_of_host(const RunConfig& config, int64_t data_ranks, int64_t host_ranks) {
  if (host_ranks == 0) return data_ranks;
  const bool stages_first = config.rank_order == mesh::RankOrder::tp_pp_dp;
  const int64_t stride =
      config.tensor_parallel_size * (stages_first ? config.pipeline_parallel_size : 1);
  return std::clamp<int64_t>(host_ranks / stride, 1, data_ranks);
}

/// Copies of the state x ranks that share one = data ranks.
void settle_copies(ParseResult& result, int64_t data_ranks) {
  RunConfig& config = result.config;
  const int64_t copies = config.dp_replicate_size;
  if (copies == 0) return;
  const auto contradict = [&](const std::string& why) {
    const std::string& origin = result.origins.at("dp_replicate_size");
    result.contradictions.push_back(
        fmt::format("{}: {}", said(origin, std::to_string(copies)), why));
  };
  if (config.shard_group_size > 0) {
    const int64_t ranks = copies * config.shard_group_size;
    if (ranks != data_ranks) {
      contradict(fmt::format("with shard_group_size {} that makes {} data ranks, and there are {}",
                             config.shard_group_size, ranks, data_ranks));
    }
  } else if (config.zero.stage == 0 && copies != data_ranks) {
    contradict(fmt::format("at zero_stage 0 each of the {} data ranks holds a copy", data_ranks));
  } else if (data_ranks % copies != 0) {
    contradict(fmt::format("the {} data ranks must be a multiple of it", data_ranks));
  } else if (config.zero.stage > 0 && copies > 1) {
    config.shard_group_size = data_ranks / copies;
  }
}

void settle_length(ParseResult& result, const ModelFacts& facts) {
  int64_t& length = result.config.max_seq_length;
  if (length == 0) {
    length = std::min(facts.max_position_embeddings, kLongestDefault);
    result.notices.push_back(
        fmt::format("max_seq_length is {}: the model allows {}, and a default is at most {}",
                    length, facts.max_position_embeddings, kLongestDefault));
  } else if (length > facts.max_position_embeddings) {
    result.notices.push_back(
        fmt::format("max_seq_length {} is beyond the {} positions that the model is made for",
                    length, facts.max_position_embeddings));
  }
}

}  // namespace

void resolve(ParseResult& result, const ModelFacts& facts, int64_t world_size, int64_t host_ranks) {
  check(world_size >= 1 && facts.hidden_size >= 1 && facts.max_position_embeddings >= 1,
        "resolve: {} ranks, hidden size {}, {} positions", world_size, facts.hidden_size,
        facts.max_position_embeddings);
  RunConfig& config = result.config;
  const int64_t data_ranks = count_data_ranks(result, world_size);
  if (data_ranks > 0) {
    if (config.shard_group_size == kShardGroupHost) {
      config.shard_group_size = data_ranks_of_host(config, data_ranks, host_ranks);
    }
    settle_copies(result, data_ranks);
    BatchTriple(result, data_ranks).settle();
  }
  throw_if_any(result.contradictions);

  settle_length(result, facts);
  if (!config.eval_packing) config.eval_packing = config.packing;
  if (config.eval_steps == 0) config.eval_steps = config.logging_steps;
  if (config.reduce_at == ReduceAt::automatic) {
    config.reduce_at = config.zero.stage <= 1 ? ReduceAt::boundary : ReduceAt::micro;
  }
  if (config.zero.param_persistence_threshold == ZeroConfig::kPersistenceAuto) {
    config.zero.param_persistence_threshold = 10 * facts.hidden_size;
  }
}

mesh::Layout layout_of(const RunConfig& config, int64_t world_size) {
  mesh::Layout layout;
  layout.tp = config.tensor_parallel_size;
  layout.pp = config.pipeline_parallel_size;
  layout.dp = div_exact(world_size, layout.tp * layout.pp);
  layout.order = config.rank_order;
  check(config.shard_group_size >= 0, "the layout of a configuration that is not resolved");
  layout.shards = config.shard_group_size;
  return layout;
}

}  // namespace trireme::config
