// The words of the enumerations, as people type and read them.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include "config/run_config.h"

namespace trireme::config {

template <typename E>
struct EnumWord {
  E value;
  std::string_view word;
};

constexpr auto enum_words(Scheduler) {
  return std::array{EnumWord{Scheduler::linear, "linear"},
                    EnumWord{Scheduler::cosine, "cosine"},
                    EnumWord{Scheduler::cosine_with_restarts, "cosine_with_restarts"},
                    EnumWord{Scheduler::polynomial, "polynomial"},
                    EnumWord{Scheduler::constant, "constant"},
                    EnumWord{Scheduler::constant_with_warmup, "constant_with_warmup"},
                    EnumWord{Scheduler::inverse_sqrt, "inverse_sqrt"},
                    EnumWord{Scheduler::cosine_with_min_lr, "cosine_with_min_lr"},
                    EnumWord{Scheduler::cosine_warmup_with_min_lr, "cosine_warmup_with_min_lr"},
                    EnumWord{Scheduler::warmup_stable_decay, "warmup_stable_decay"},
                    EnumWord{Scheduler::warmup_lr, "warmuplr"},
                    EnumWord{Scheduler::warmup_decay_lr, "warmupdecaylr"},
                    EnumWord{Scheduler::warmup_cosine_lr, "warmupcosinelr"}};
}
constexpr auto enum_words(Curve) {
  return std::array{EnumWord{Curve::linear, "linear"}, EnumWord{Curve::cosine, "cosine"},
                    EnumWord{Curve::one_minus_sqrt, "1-sqrt"}, EnumWord{Curve::log, "log"}};
}
constexpr auto enum_words(Optimizer) {
  return std::array{EnumWord{Optimizer::adamw, "adamw"}, EnumWord{Optimizer::sgd, "sgd"}};
}
constexpr auto enum_words(Strategy) {
  return std::array{EnumWord{Strategy::no, "no"}, EnumWord{Strategy::steps, "steps"},
                    EnumWord{Strategy::epoch, "epoch"}};
}
constexpr auto enum_words(SaveStrategy) {
  return std::array{EnumWord{SaveStrategy::no, "no"}, EnumWord{SaveStrategy::steps, "steps"},
                    EnumWord{SaveStrategy::epoch, "epoch"}, EnumWord{SaveStrategy::best, "best"}};
}
constexpr auto enum_words(Sampling) {
  return std::array{EnumWord{Sampling::random, "random"},
                    EnumWord{Sampling::sequential, "sequential"}};
}
constexpr auto enum_words(Recompute) {
  return std::array{EnumWord{Recompute::none, "none"},
                    EnumWord{Recompute::norms, "norms"},
                    EnumWord{Recompute::activation, "activation"},
                    EnumWord{Recompute::ffn, "ffn"},
                    EnumWord{Recompute::qkv, "qkv"},
                    EnumWord{Recompute::attention, "attention"},
                    EnumWord{Recompute::block, "block"}};
}
constexpr auto enum_words(ReduceAt) {
  return std::array{EnumWord{ReduceAt::automatic, "auto"}, EnumWord{ReduceAt::micro, "micro"},
                    EnumWord{ReduceAt::boundary, "boundary"}};
}
constexpr auto enum_words(OnLong) {
  return std::array{EnumWord{OnLong::truncate, "truncate"}, EnumWord{OnLong::skip, "skip"},
                    EnumWord{OnLong::error, "error"}};
}
constexpr auto enum_words(PackingStrategy) {
  return std::array{EnumWord{PackingStrategy::best_fit, "bfd"},
                    EnumWord{PackingStrategy::wrapped, "wrapped"}};
}
constexpr auto enum_words(Deterministic) {
  return std::array{EnumWord{Deterministic::automatic, "auto"},
                    EnumWord{Deterministic::yes, "true"}, EnumWord{Deterministic::no, "false"}};
}
constexpr auto enum_words(Precision) {
  return std::array{EnumWord{Precision::float32, "float32"},
                    EnumWord{Precision::bfloat16, "bfloat16"}};
}
constexpr auto enum_words(DeviceChoice) {
  return std::array{EnumWord{DeviceChoice::automatic, "auto"}, EnumWord{DeviceChoice::cpu, "cpu"},
                    EnumWord{DeviceChoice::cuda, "cuda"}};
}
constexpr auto enum_words(PipelineSchedule) {
  return std::array{EnumWord{PipelineSchedule::one_f_one_b, "1f1b"},
                    EnumWord{PipelineSchedule::interleaved, "interleaved"},
                    EnumWord{PipelineSchedule::zero_bubble, "zero_bubble"}};
}
/// The fastest axis first.
constexpr auto enum_words(mesh::RankOrder) {
  return std::array{EnumWord{mesh::RankOrder::tp_dp_pp, "tp-cp-dp-pp"},
                    EnumWord{mesh::RankOrder::tp_pp_dp, "tp-pp-dp"}};
}

/// "linear" of Scheduler::linear.
template <typename E>
constexpr std::string_view word_of(E value) {
  for (const auto& [each, word] : enum_words(value)) {
    if (each == value) return word;
  }
  return "?";
}

}  // namespace trireme::config
