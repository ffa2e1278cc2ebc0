#include "support/run_world.h"

#include "support/backends.h"
#include "support/thread_coordinator.h"
#include "support/wrapped_backend.h"
#include "train/run.h"

namespace trireme::testing {

std::vector<std::string> run_in_process(const std::vector<std::string>& args, int ranks,
                                        const WrapDevice& wrap,
                                        const std::vector<std::string>& notices) {
  TestWorld world(ranks);
  return test::run_ranks(ranks, [&](checkpoint::Coordinator& coordinator) {
    config::ParseResult parsed = config::parse(args);
    const model::ModelGraph model = train::resolve_model(parsed, ranks);
    const auto backend = world.open(coordinator.rank());
    const mesh::Layout layout = config::layout_of(parsed.config, ranks);
    train::RunData data(parsed.config, train::read_rows(parsed.config, model.config), layout.dp,
                        mesh::coordinates_of(layout, coordinator.rank()).dp,
                        backend->token_multiple() * layout.tp);
    WrappedBackend wrapped(*backend, wrap ? wrap(coordinator.rank(), backend->device()) : nullptr,
                           notices);
    run_training(parsed, model, data, wrapped, coordinator);
  });
}

}  // namespace trireme::testing
