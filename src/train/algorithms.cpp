#include "train/algorithms.h"

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"

namespace trireme::train {

namespace {

/// Of other operations no backend has a choice, and the optimizer's differ from rank to rank.
bool is_product(ops::OpKind kind) {
  return kind == ops::OpKind::linear || kind == ops::OpKind::linear_input_grad ||
         kind == ops::OpKind::linear_weight_grad;
}

/// Equal on ranks that run the same products on the largest micro-batch.
std::string products_of(Session& session) {
  Hasher hasher;
  const auto add = [&](int64_t value) { hasher.update(&value, sizeof value); };
  const ops::Extent capacity = session.plan().capacity;
  session.for_each_call({&capacity, 1}, [&](const ops::OpCall& call) {
    if (!is_product(call.kind)) return;
    add(static_cast<int64_t>(call.kind));
    add(static_cast<int64_t>(call.dtype));
    add(static_cast<int64_t>(call.law));
    for (int i = 0; i < call.num_args; ++i) {
      const TensorView& view = call.args[static_cast<size_t>(i)];
      add(view.present() ? 1 : 0);
      for (const int64_t value : {view.rows, view.cols, view.stride}) add(value);
      add(static_cast<int64_t>(view.dtype));
    }
  });
  return to_hex(hasher.digest());
}

bool is_first_of_its_kind(Session& session, checkpoint::Coordinator& ranks) {
  const auto all = ranks.exchange(products_of(session));
  const auto mine = all.begin() + ranks.rank();
  return std::find(all.begin(), mine, *mine) == mine;
}

}  // namespace

std::string choose_algorithms(Session& session, device::Backend& backend,
                              checkpoint::Coordinator& ranks, const AlgorithmRequest& request) {
  std::string mine;
  if (request.measure && is_first_of_its_kind(session, ranks)) {
    if (!request.saved.empty()) (void)backend.use_algorithms({&request.saved, 1});
    session.for_each_call(request.extents, [&](const ops::OpCall& call) { backend.tune(call); });
    backend.keep_algorithms();
    mine = backend.algorithms();
  }
  std::vector<std::string> texts = ranks.exchange(mine);
  texts.push_back(request.saved);
  return backend.use_algorithms(texts);
}

}  // namespace trireme::train
