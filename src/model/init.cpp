#include "model/init.h"

#include <algorithm>

#include "base/error.h"
#include "base/parallel.h"
#include "base/random.h"

namespace trireme::model {

void init_box(const ModelConfig& config, const Parameter& parameter, uint64_t seed,
              const mesh::Box& box, float* out) {
  if (parameter.init != Init::normal) {
    std::fill_n(out, box.size(), parameter.init == Init::ones ? 1.0f : 0.0f);
    return;
  }
  const mesh::Box whole = mesh::whole(parameter.shape);
  const RandomStream stream(seed, parameter.name);
  const auto deviation = static_cast<float>(config.initializer_range);
  constexpr int64_t kGrain = int64_t{64} << 10;
  for (const mesh::Run& run : mesh::copy_runs(whole, box)) {
    split_over_threads(run.count, kGrain, [&](int64_t begin, int64_t end) {
      stream.fill_normal(run.from + begin, end - begin, 0.0f, deviation, out + run.to + begin);
    });
  }
  if (config.pad_token_id < 0 || !parameter.name.ends_with("embed_tokens.weight")) return;
  check(parameter.shape.size() == 2, "the embedding '{}' is no matrix", parameter.name);
  const mesh::Box padding{{config.pad_token_id, 0}, {1, parameter.shape[1]}};
  for (const mesh::Run& run : mesh::copy_runs(padding, box)) {
    std::fill_n(out + run.to, run.count, 0.0f);
  }
}

}  // namespace trireme::model
