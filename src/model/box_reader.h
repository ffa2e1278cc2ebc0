// Reads a box of a stored tensor into floats, touching only the bytes it needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/dtype.h"
#include "base/file.h"
#include "mesh/box.h"

namespace trireme::model {

/// A dense row-major box of a tensor inside a file.
struct StoredBox {
  const File* file = nullptr;
  int64_t offset = 0;  // of its first byte in the file
  DType dtype = DType::f32;
  mesh::Box box;  // in the coordinates of the whole tensor
};

/// Told of every read: these bytes lie at `offset` of the file.
using SeeBytes = std::function<void(const std::byte* data, int64_t bytes, int64_t offset)>;

/// Copies the part shared by `stored` and `box` into `out`, which holds `box` dense and row-major.
/// Returns the bytes read: those of the shared part, plus gaps worth at most 5 % of them that are
/// cheaper to read than to skip. `see` may be empty.
int64_t read_shared_box(const StoredBox& stored, const mesh::Box& box, float* out,
                        const SeeBytes& see = {});

}  // namespace trireme::model
