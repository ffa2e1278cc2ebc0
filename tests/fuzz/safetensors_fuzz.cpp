// What a safetensors header says lies inside the file, or the file is refused.
#include "base/error.h"
#include "fuzz/input_folder.h"
#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  static const fuzz::InputFolder folder;
  const auto path = folder.put("model.safetensors", fuzz::as_text(data, size));
  try {
    const model::SafetensorsFile file(path);
    for (const model::TensorInfo& tensor : file.tensors()) {
      const bool inside = tensor.offset >= 8 && tensor.bytes >= 0 &&
                          tensor.offset + tensor.bytes <= static_cast<int64_t>(size);
      check(inside, "tensor '{}' lies at {} with {} bytes", tensor.name, tensor.offset,
            tensor.bytes);
      check(file.find(tensor.name) == &tensor, "'{}' is not found", tensor.name);
    }
  } catch (const DataError&) {
  }
  return 0;
}
