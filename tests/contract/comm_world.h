// Runs one function per rank over either communicator, ranks as threads.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/comm.h"
#include "cpu/communicator.h"
#include "cpu/inproc.h"
#include "store/memory_store.h"

namespace trireme::test {

enum class Backend { threads, sockets };

/// What each rank threw; empty where it returned.
using Failures = std::vector<std::string>;

inline Failures run_world(Backend backend, int size,
                          const std::function<void(comm::Communicator&)>& body,
                          std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  store::MemoryStore store;
  cpu::InProcessWorld world(size, timeout);
  Failures failures(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        std::unique_ptr<comm::Communicator> communicator;
        if (backend == Backend::threads) {
          communicator = world.join(rank);
        } else {
          communicator =
              cpu::connect_processes(store, {.rank = rank, .world_size = size, .timeout = timeout});
        }
        body(*communicator);
      } catch (const std::exception& error) {
        failures[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

}  // namespace trireme::test
