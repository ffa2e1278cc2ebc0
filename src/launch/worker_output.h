// One stream of a worker's output, passed on line by line.
#pragma once

#include <string>

#include "store/socket.h"

namespace trireme::launch {

class WorkerOutput {
 public:
  /// Lines read from `from` go to descriptor `to` (-1: nowhere), each after `prefix`, whole: lines
  /// of several workers do not mix. What is read goes to `log` as it is, where there is one.
  WorkerOutput(store::Fd from, int to, std::string prefix, store::Fd log = {});

  /// -1 once it has ended.
  int fd() const { return from_.get(); }
  bool is_shown() const { return to_ >= 0; }
  /// Passes on what is there.
  void read_some();
  /// Passes on all that is there now, and an unfinished line.
  void drain();
  /// The last line that was not empty, at most 1000 bytes of it.
  const std::string& last_line() const { return last_line_; }

 private:
  bool read_once();
  void pass_on(std::string_view line);

  store::Fd from_;
  const int to_;
  const std::string prefix_;
  const store::Fd log_;
  std::string pending_;
  std::string last_line_;
};

}  // namespace trireme::launch
