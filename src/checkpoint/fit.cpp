#include "checkpoint/fit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <string_view>
#include <vector>

namespace trireme::checkpoint {

std::string misfit(const Manifest& saved, std::span<const model::ExpectedTensor> model) {
  std::map<std::string_view, const std::vector<int64_t>*> shapes;
  for (const model::ExpectedTensor& tensor : model) shapes.emplace(tensor.name, &tensor.shape);
  for (const TensorEntry& tensor : saved.tensors) {
    const auto found = shapes.find(tensor.name);
    if (found == shapes.end()) return fmt::format("its '{}' is not in this model", tensor.name);
    if (*found->second != tensor.shape) {
      return fmt::format("its '{}' has shape ({}), in this model ({})", tensor.name,
                         fmt::join(tensor.shape, ", "), fmt::join(*found->second, ", "));
    }
  }
  if (saved.tensors.size() == shapes.size()) return "";
  return fmt::format("it has {} of the {} parameters of this model", saved.tensors.size(),
                     shapes.size());
}

}  // namespace trireme::checkpoint
