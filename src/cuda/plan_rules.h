// What a plan for GPUs rests on beside workspaces, and which gradient of attention a run takes: pure
// rules, that need no GPU.
#pragma once

#include <cstdint>

namespace trireme::cuda {

/// Micro-batches are padded to multiples of so many tokens.
inline constexpr int64_t kTokenMultiple = 64;
/// Logits computed at one time. Each chunk reads and writes the fp32 gradient of the head: few
/// chunks, long products.
inline constexpr int64_t kLossChunkBytes = int64_t{1} << 30;

/// Memory that is no arena's: the driver's context, kernels, libraries, and from two ranks on NCCL
/// with its channels. Measured on an H200 (docs/performance.md).
int64_t memory_besides(int64_t world_size);

/// A step as the choice below sees it.
struct StepShape {
  double parameters = 0;  // each is part of three products a token
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t longest = 0;  // tokens of a sequence
};

/// Share of a step by which gradients of attention that repeat bit for bit are slower than the
/// fastest ones, from the rates of both on an H200: 3.9 % were measured at 1.5B parameters.
double repeat_cost(const StepShape& shape);
/// `--deterministic auto`: that share is under 5 %, and the workspace of one sequence, which grows
/// with the square of its length, is at most 2 GiB.
bool repeats_cheaply(const StepShape& shape);

}  // namespace trireme::cuda
