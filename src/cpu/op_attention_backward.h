// What one call of attention backward has decided, for the bodies of every Highway target.
#pragma once

#include <cstdint>

#include "ops/op.h"

namespace trireme::cpu {

struct BackwardPlan {
  const ops::OpCall* call = nullptr;
  int num_threads = 1;
  bool bf16_products = false;
  bool whole = true;  // items are whole (sequence, KV head) pairs
  int64_t num_sequences = 0;
  int64_t num_keys = 0;       // room for keys in a thread's memory
  int64_t floats = 0;         // of a thread's memory
  int64_t* prefix = nullptr;  // (num_sequences + 1)
  float* blocks = nullptr;    // the threads' memory
};

}  // namespace trireme::cpu
