// Background threads that leave signals to the main thread.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <string>
#include <thread>
#include <utility>

namespace trireme::store {

/// Starts a thread with a name (15 characters are kept) in which every signal is blocked, so that a
/// handler, sigwait or signalfd of the main thread gets each of them.
template <typename Body>
std::thread start_thread(const std::string& name, Body body) {
  sigset_t all, former;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &former);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &former, nullptr);
  pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str());
  return thread;
}

}  // namespace trireme::store
