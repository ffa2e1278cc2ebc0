// What each operation reads and writes, and what it costs: the pure rules.
#pragma once

#include <span>
#include <string_view>

#include "ops/op.h"

namespace trireme::ops {

enum class Access : uint8_t { read, write, update };

struct Operand {
  std::string_view name;
  Access access;  // `write` operands marked `law` become `update` under Law::add
  bool law = false;
  bool optional = false;
};

/// Operands in argument order.
std::span<const Operand> signature(OpKind kind);

/// Index of the argument that argument `output` may share storage with under Law::set (when shape
/// and dtype agree; each element is read no later than it is written), or -1.
int may_alias(OpKind kind, int output);

/// Throws BugError when the arguments' presence, dtypes or shapes contradict the operation's
/// contract. Data pointers are compared with nullptr, never read.
void check_call(const OpCall& call);

/// (query, key) pairs that attention sees in a sequence of `length` tokens: causal, and within
/// `window` keys (0: all).
double visible_pairs(double length, int64_t window);

/// Floating-point operations of a call (a multiply-add is two), from the rows and cols of its
/// arguments. Attention counts the causal half; `pairs` = number of (query, key) pairs computed.
double flops(const OpCall& call, double pairs);

/// Bytes read and written once each, for memory-bound costs.
double bytes_moved(const OpCall& call);

}  // namespace trireme::ops
