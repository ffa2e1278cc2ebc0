#include "train/memory_text.h"

#include <vector>

#include "metrics/text.h"

namespace trireme::train {

std::string memory_text(const std::string& title, const plan::Plan& plan, int64_t besides) {
  std::vector<metrics::MemoryRow> rows;
  for (const plan::MemoryRow& row : plan::memory_table(plan)) {
    rows.push_back({row.owner, row.bytes, std::string(device::name_of(row.space))});
  }
  if (besides > 0) {
    rows.push_back({"context and libraries", besides,
                    std::string(device::name_of(device::Space::device))});
  }
  return metrics::memory_table(title, rows);
}

}  // namespace trireme::train
