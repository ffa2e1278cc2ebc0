// The store of ranks that are threads of one process.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>

#include "comm/comm.h"

namespace trireme::store {

class MemoryStore final : public comm::Store {
 public:
  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override;
  std::optional<std::string> try_get(std::string_view key) override;
  int64_t add(std::string_view key, int64_t amount) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string, std::less<>> values_;
};

/// The value of a decimal counter; absent counts as 0. CommError when it holds something else or
/// would overflow.
int64_t add_decimal(std::string_view key, const std::string* value, int64_t amount);

}  // namespace trireme::store
