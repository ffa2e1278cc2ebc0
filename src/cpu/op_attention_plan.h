// What one call of attention, forward or backward, has decided before its blocks run.
#pragma once

#include <cstdint>

#include "cpu/op_bodies.h"
#include "ops/op.h"

namespace trireme::cpu {

struct AttentionPlan {
  /// Reads cu_seqlens; throws BugError when a sequence is longer than attributes.longest.
  AttentionPlan(const ops::OpCall& call, const OpContext& context);
  static int64_t workspace_bytes(const ops::OpCall& call, const SizingInput& input);

  const ops::OpCall* call;
  const int32_t* cu_seqlens;
  int num_threads;
  bool bf16_products;
  int64_t num_sequences;
  int64_t num_keys;  // room for keys in a thread's memory: the longest sequence in whole blocks
  int64_t floats;    // of a thread's memory
  int64_t* prefix;   // (num_sequences + 1), see AttentionItems
  float* blocks;     // the threads' memory
  /// Backward: items are whole (sequence, KV head) pairs.
  bool whole;
};

}  // namespace trireme::cpu
