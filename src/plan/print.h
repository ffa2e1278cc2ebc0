// Programs for people: one line a phase or transfer; expanded: the instructions inside.
#pragma once

#include <string>

#include "plan/program.h"

namespace trireme::plan {

struct PrintOptions {
  bool expand = false;     // instructions of every phase, once per kind
  bool addresses = false;  // the map of buffers: offset, bytes, owner
};

/// Same text on every rank: slices that differ between ranks are not shown.
std::string print_program(const Program& program, const model::ModelGraph& model,
                          const PrintOptions& options);

}  // namespace trireme::plan
