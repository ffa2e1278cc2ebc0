// What Slurm writes into variables.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::launch {

/// The first host of a list such as "n[01-04,7],login": n01. nullopt when it is malformed.
std::optional<std::string> first_host(std::string_view list);

/// Tasks of the `node`th node in "2(x3),1": each count with how many nodes have it. nullopt when it
/// is malformed or has fewer nodes.
std::optional<int> tasks_of_node(std::string_view list, int node);

/// A port for a step, the same on all its hosts: 61000 to 65535, which no connection gets by
/// itself.
int port_of_step(int64_t job, int64_t step);

}  // namespace trireme::launch
