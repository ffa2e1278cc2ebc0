#include "model/box_reader.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/convert.h"

namespace trireme::model {

namespace {

constexpr int64_t kStaging = int64_t{1} << 20;  // bytes

/// Runs [first, last) of the copy come from one contiguous range of the file.
struct Span {
  size_t first;
  size_t last;
  int64_t begin;  // elements of the stored box
  int64_t end;
};

/// Joins neighbouring runs whose gap is at most 1/20 of what is read before it.
std::vector<Span> join(const std::vector<mesh::Run>& runs, int64_t most) {
  std::vector<Span> spans;
  for (size_t i = 0; i < runs.size(); ++i) {
    const mesh::Run& run = runs[i];
    if (!spans.empty()) {
      Span& span = spans.back();
      const int64_t gap = run.from - span.end;
      const int64_t before = runs[i - 1].count;
      if (gap * 20 <= before && run.from + run.count - span.begin <= most) {
        span.last = i + 1;
        span.end = run.from + run.count;
        continue;
      }
    }
    spans.push_back({i, i + 1, run.from, run.from + run.count});
  }
  return spans;
}

}  // namespace

int64_t read_shared_box(const StoredBox& stored, const mesh::Box& box, float* out,
                        const SeeBytes& see) {
  const int64_t element = size_of(stored.dtype);
  const int64_t most = kStaging / element;
  const std::vector<mesh::Run> runs = mesh::copy_runs(stored.box, box);
  std::unique_ptr<std::byte[]> staging;
  int64_t bytes_read = 0;
  const auto read = [&](void* to, int64_t bytes, int64_t offset) {
    stored.file->read_at(to, bytes, offset);
    if (see) see(static_cast<const std::byte*>(to), bytes, offset);
  };
  for (const Span& span : join(runs, most)) {
    const int64_t count = span.end - span.begin;
    const int64_t offset = stored.offset + span.begin * element;
    bytes_read += count * element;
    const mesh::Run& only = runs[span.first];
    const bool single = span.last == span.first + 1;
    if (single && stored.dtype == DType::f32) {
      read(out + only.to, count * element, offset);
      continue;
    }
    if (staging == nullptr) {
      staging = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(kStaging));
    }
    for (int64_t done = 0; done < count; done += most) {  // a joined span fits in one turn
      const int64_t part = std::min(most, count - done);
      read(staging.get(), part * element, offset + done * element);
      if (single) {
        convert_to_f32(stored.dtype, staging.get(), part, out + only.to + done);
        continue;
      }
      for (size_t i = span.first; i < span.last; ++i) {
        const std::byte* from = staging.get() + (runs[i].from - span.begin) * element;
        convert_to_f32(stored.dtype, from, runs[i].count, out + runs[i].to);
      }
    }
  }
  return bytes_read;
}

}  // namespace trireme::model
