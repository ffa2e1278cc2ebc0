// FSDP in the words of Hugging Face and accelerate, as settings of ZeRO.
#pragma once

#include <string>
#include <vector>

#include "config/schema.h"

namespace trireme::config {

/// Keys of `fsdp_config`, without their optional fsdp_ prefix.
Schema fsdp_schema();

/// How messages call a key, for documents that spell it differently.
using KeySpelling = std::string (*)(const std::string& key);

struct FsdpRequest {
  /// `fsdp`: full_shard, shard_grad_op, no_shard, hybrid_shard, hybrid_shard_zero2, auto_wrap. None
  /// when the keys alone say it, as in accelerate's files.
  std::vector<std::string> words;
  std::string words_source;  // "--fsdp"
  Json keys = Json::object();
  std::string keys_source;
  KeySpelling spelling = nullptr;
};

/// Never throws ConfigError.
Reading read_fsdp(const FsdpRequest& request, const OptionTable& table);

/// The keys of `parallelism_config`, without their optional parallelism_config_ prefix.
Schema parallelism_schema();
Reading read_parallelism(const Json& keys, const std::string& source, KeySpelling spelling,
                         const OptionTable& table);

}  // namespace trireme::config
