#include "train/run_facts.h"

#include "metrics/text.h"

namespace trireme::train {

namespace {

using config::Precision;

/// 6 a weight outside the embedding.
double flops_per_token(const model::ModelGraph& model) {
  int64_t weights = 0;
  for (const model::Parameter& parameter : model.parameters) {
    if (!parameter.name.ends_with("embed_tokens.weight")) weights += parameter.size();
  }
  return 6.0 * static_cast<double>(weights);
}

std::string precision_words(const config::RunConfig& config) {
  if (!config.bf16) return "fp32";
  const bool narrow_moments =
      config.moment_dtype == Precision::bfloat16 && config.optim == config::Optimizer::adamw;
  if (config.master_dtype == Precision::float32 && !narrow_moments) {
    return "bf16, fp32 masters and gradients";
  }
  return fmt::format("bf16, {} masters{}, fp32 gradients",
                     config.master_dtype == Precision::float32 ? "fp32" : "bf16",
                     narrow_moments ? " and bf16 moments" : "");
}

}  // namespace

std::string packing_words(const config::RunConfig& config, const data::Dataset& samples,
                          const data::Packs& packs) {
  using metrics::thousands;
  const std::string length = thousands(config.max_seq_length);
  if (config.packing_strategy == config::PackingStrategy::wrapped) {
    return fmt::format("{} rows in {} blocks of {} tokens", thousands(samples.counts().rows),
                       thousands(samples.size()), length);
  }
  const double room =
      static_cast<double>(packs.size()) * static_cast<double>(config.max_seq_length);
  return fmt::format("{} samples in {} packs of at most {} tokens, {:.1f} % full",
                     thousands(samples.size()), thousands(packs.size()), length,
                     100 * static_cast<double>(samples.counts().tokens) / room);
}

metrics::RunFacts run_facts(const config::RunConfig& config, const RunData& data,
                            const plan::Plan& plan, const mesh::Layout& layout) {
  metrics::RunFacts facts;
  facts.num_examples = data.training().size();
  facts.num_train_epochs = data.plan().num_epochs();
  facts.per_device_batch_size = config.per_device_train_batch_size;
  facts.total_batch_size =
      config.per_device_train_batch_size * config.gradient_accumulation_steps * layout.dp;
  facts.gradient_accumulation_steps = config.gradient_accumulation_steps;
  facts.total_steps = data.total_steps();
  for (const model::Parameter& parameter : plan.model.parameters) {
    if (parameter.trainable) facts.num_trainable_parameters += parameter.size();
  }
  facts.steps_per_epoch = data.plan().steps_per_epoch();
  facts.flops_per_token = flops_per_token(plan.model);
  facts.more.emplace_back("Data ranks", std::to_string(layout.dp));
  if (layout.tp > 1) facts.more.emplace_back("Tensor ranks", std::to_string(layout.tp));
  if (layout.pp > 1) facts.more.emplace_back("Pipeline stages", std::to_string(layout.pp));
  facts.more.emplace_back("ZeRO stage", std::to_string(config.zero.stage));
  facts.more.emplace_back("Precision", precision_words(config));
  if (config.packing) {
    facts.more.emplace_back("Packing", packing_words(config, data.training(), data.packs()));
  }
  if (data.evaluates() && config.packs_evaluation()) {
    facts.more.emplace_back("Packing of evaluation",
                            packing_words(config, data.evaluation_set(), data.evaluation_packs()));
  }
  if (config.reduce_dtype == Precision::bfloat16 && layout.dp > 1) {
    facts.more.emplace_back("Gradients between data ranks", "bf16, summed in fp32");
  }
  facts.more.emplace_back("Longest sequence", std::to_string(plan.capacity.longest));
  const auto add_long = [&](const std::string& whose, const data::DatasetCounts& counts) {
    if (counts.truncated + counts.skipped == 0) return;
    facts.more.emplace_back(whose + " over max_seq_length",
                            fmt::format("{} truncated, {} skipped (max_seq_length {})",
                                        counts.truncated, counts.skipped, config.max_seq_length));
  };
  add_long("Samples", data.training().counts());
  if (data.evaluates()) add_long("Samples of evaluation", data.evaluation_set().counts());
  return facts;
}

}  // namespace trireme::train
