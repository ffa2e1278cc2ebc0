// Whole arrays between f32 and the types that weights are stored in. Exact, or rounded to nearest
// even (dtype.h).
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace trireme {

/// to[i] = from[i] for i < count; `from` is f32, bf16 or f16 and need not be aligned.
void convert_to_f32(DType dtype, const void* from, int64_t count, float* to);
/// to[i] = from[i] for i < count; `to` is f32, bf16 or f16 and need not be aligned.
void convert_from_f32(DType dtype, const float* from, int64_t count, void* to);

}  // namespace trireme
