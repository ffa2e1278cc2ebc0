#include "cuda/attention_rules.h"

#include <algorithm>

#include "base/math.h"
#include "cuda/op_sizing.h"

namespace trireme::cuda {

namespace {

constexpr int64_t kBudget = int64_t{512} << 20;
/// A gradient passes over its workspace a few times: so many bytes more take the time of a call.
constexpr int64_t kWorthACall = int64_t{64} << 20;
constexpr int64_t kTile = 128;
/// Statistics are (tokens, heads) for cuDNN.
constexpr int64_t kFloat = sizeof(float);

int64_t aligned(int64_t bytes) { return round_up(bytes, kWorkspaceAlignment); }

int64_t power_at_least(int64_t count) {
  int64_t power = 1;
  while (power < count) power *= 2;
  return power;
}

/// Bytes of the gradient for one sequence of `length`.
int64_t gradient_bytes(const AttentionCase& c, const AttentionPolicy& policy, int64_t length) {
  const bool grouped = c.heads != c.kv_heads;
  const int64_t elements = checked_mul(c.heads * c.head_dim, length);
  const int64_t row_sums = c.heads * length * kFloat;
  // dK and dV of every query head, before they are added over a group.
  const int64_t heads_apart = grouped ? elements * 4 : 0;
  if (policy.deterministic && policy.compute_capability < 100) {
    // The gradient of every score, in bf16.
    const int64_t scores = checked_mul(round_up(length, 64), round_up(length, kTile));
    return row_sums + heads_apart + checked_mul(c.heads, scores * 2);
  }
  const int64_t d_queries = elements * 4;
  if (policy.compute_capability < 90) return row_sums + d_queries + elements * (grouped ? 8 : 4);
  return row_sums + d_queries + heads_apart;
}

/// Sequences of one call.
int64_t most_of_a_call(const AttentionCase& c, const AttentionPolicy& policy, int64_t length) {
  if (!c.backward) return kMostSequences;
  return std::clamp<int64_t>(kBudget / gradient_bytes(c, policy, length), 1, kMostSequences);
}

int64_t per_sequence_extra(bool backward) { return backward ? 1024 : 256; }

}  // namespace

AttentionCase::AttentionCase(const ops::OpCall& call) {
  const auto& a = call.attributes;
  backward = call.kind == ops::OpKind::attention_input_grad;
  heads = a.heads;
  kv_heads = a.kv_heads;
  head_dim = a.head_dim;
  tokens = call.args[2].rows;
  sequences = std::max<int64_t>(0, call.args[backward ? 5 : 3].cols - 1);
  longest = a.longest > 0 ? std::min<int64_t>(a.longest, tokens) : tokens;
  window = a.window < longest ? a.window : 0;
  even = a.even && sequences * longest <= tokens;
  lengths = a.lengths;
  gpu_matrix_units = call.dtype == DType::bf16 && (head_dim == 64 || head_dim == 128);
}

bool cudnn_computes(const AttentionCase& c, const AttentionPolicy& policy) {
  if (!c.gpu_matrix_units) return false;
  // A gradient of one token is refused, and so are ragged ones before Hopper.
  if (c.even && c.longest > 1) return true;
  return policy.compute_capability >= 90 && policy.compute_capability < 120;
}

int64_t length_class(int64_t longest) {
  int64_t length = kTile;
  while (length < longest) {
    if (length / 2 * 3 >= longest) return length / 2 * 3;
    length *= 2;
  }
  return length;
}

AttentionCalls::AttentionCalls(const AttentionCase& c, const AttentionPolicy& policy)
    : ragged_(!c.even || c.longest == 1) {
  if (!ragged_) {
    add_dense(c, policy);
  } else if (c.backward && c.lengths.known()) {
    add_by_length(c, policy);
  } else {
    add_ragged(c, policy, length_class(c.longest), c.sequences);
  }
}

void AttentionCalls::add_dense(const AttentionCase& c, const AttentionPolicy& policy) {
  const int64_t most = most_of_a_call(c, policy, c.longest);
  AttentionGroup group{0, c.longest, ceil_div(c.sequences, ceil_div(c.sequences, most)), 0};
  group.count = ceil_div(c.sequences, group.sequences);
  groups_[static_cast<size_t>(num_groups_++)] = group;
}

void AttentionCalls::add_ragged(const AttentionCase& c, const AttentionPolicy& policy,
                                int64_t length, int64_t sequences) {
  const int64_t most = most_of_a_call(c, policy, length);
  AttentionGroup group{0, length, std::min(most, power_at_least(sequences)), 0};
  if (num_groups_ > 0) group.above = groups().back().length;
  group.count = ceil_div(sequences, group.sequences);
  groups_[static_cast<size_t>(num_groups_++)] = group;
}

void AttentionCalls::add_by_length(const AttentionCase& c, const AttentionPolicy& policy) {
  using ops::LengthCounts;
  int64_t waiting = 0;  // sequences of no group so far, of at most `length` tokens
  int64_t length = 0;
  for (int k = 0; k < LengthCounts::kClasses; ++k) {
    const int32_t count = c.lengths.of_class[static_cast<size_t>(k)];
    if (count == 0) continue;
    const bool last = k + 1 == LengthCounts::kClasses || LengthCounts::longest_of(k) >= c.longest;
    const int64_t longer = length_class(last ? c.longest : LengthCounts::longest_of(k));
    // Short classes are planned alike; groups part where their lengths do.
    if (waiting > 0 && longer > length) {
      const int64_t more =
          waiting * (gradient_bytes(c, policy, longer) - gradient_bytes(c, policy, length));
      const bool in_one_call = waiting + count <= most_of_a_call(c, policy, longer);
      if (more > kWorthACall || !in_one_call) {
        add_ragged(c, policy, length, waiting);
        waiting = 0;
      }
    }
    waiting += count;
    length = longer;
  }
  if (waiting > 0) add_ragged(c, policy, length, waiting);
}

int64_t AttentionGroup::sequences_of(int64_t i, int64_t all) const {
  return std::min(sequences, all - i * sequences);
}

int64_t cudnn_bytes(const AttentionCase& c, const AttentionPolicy& policy, int64_t sequences,
                    int64_t length, bool ragged) {
  const int64_t fixed = 32 * 1024;
  const int64_t extra = ragged ? sequences * per_sequence_extra(c.backward) : 0;
  const int64_t work = c.backward ? checked_mul(sequences, gradient_bytes(c, policy, length)) : 0;
  return fixed + extra + work;
}

int64_t RaggedArrays::lengths_bytes() const { return round_up(sequences * 4, 16); }
int64_t RaggedArrays::offsets_bytes() const { return round_up((sequences + 1) * 8, 16); }

int64_t attention_workspace(const AttentionCase& c, const AttentionPolicy& policy) {
  if (c.tokens == 0 || c.sequences == 0) return 0;
  const int64_t statistics = aligned(c.tokens * c.heads * kFloat);
  // Our own gradient keeps a row sum for each token and head.
  const int64_t own = c.backward ? statistics : 0;
  if (!c.gpu_matrix_units) return own;

  // Fewer or shorter sequences may be cut into other calls: bounds that hold for all of them. Calls
  // have room for at most twice the sequences, and 96 bytes of arrays or less for each.
  const int64_t most = power_at_least(c.sequences);
  const int64_t arrays = aligned(most * 192);
  const int64_t length = length_class(c.longest);
  int64_t work = cudnn_bytes(c, policy, 1, length, true);
  if (c.backward) {
    const int64_t one = gradient_bytes(c, policy, length);
    work += std::max<int64_t>(0, std::min(kBudget, checked_mul(most, one)) - one);
  }
  work += most * per_sequence_extra(c.backward);
  return kWorkspaceAlignment + statistics + arrays + aligned(work);
}

}  // namespace trireme::cuda
