#include "cuda/comm_bounded.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

namespace trireme::cuda {

bool run_bounded(std::function<void()> work, std::chrono::milliseconds limit) {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };
  const auto state = std::make_shared<State>();
  std::thread([state, body = std::move(work)] {
    body();
    const std::lock_guard lock(state->mutex);
    state->done = true;
    state->changed.notify_all();
  }).detach();
  std::unique_lock lock(state->mutex);
  return state->changed.wait_for(lock, limit, [&] { return state->done; });
}

}  // namespace trireme::cuda
