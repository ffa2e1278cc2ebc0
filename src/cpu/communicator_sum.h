// Sums of the collectives: every element in group-rank order (comm/comm.h, reduction law).
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace trireme::cpu {

/// Whether sum_in_order has a body for `dtype`: f32, f64 and bf16 (summed in f32, rounded once).
bool can_sum(DType dtype);

/// out[i] = (add ? out[i] : 0) + ((parts[0][i] + parts[1][i]) + ...) for `count` elements.
/// `out` may be one of the parts; it overlaps none of them otherwise.
void sum_in_order(DType dtype, void* out, bool add, std::span<const void* const> parts,
                  int64_t count);

/// The same in f32, of parts rounded to bf16 (comm::CommCall::wire): parts[own] is f32 and rounded
/// here, the others are `others`: bf16, or f32 and rounded here too.
void sum_rounded(float* out, bool add, std::span<const void* const> parts, size_t own, DType others,
                 int64_t count);

/// To nearest even.
void round_to_bf16(uint16_t* to, const float* from, int64_t count);

}  // namespace trireme::cpu
