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

}  // namespace trireme::cpu
