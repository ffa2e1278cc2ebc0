#include "store/memory_store.h"

#include <charconv>

#include "base/error.h"

namespace trireme::store {

int64_t add_decimal(std::string_view key, const std::string* value, int64_t amount) {
  int64_t number = 0;
  if (value != nullptr) {
    const auto [end, code] = std::from_chars(value->data(), value->data() + value->size(), number);
    if (code != std::errc() || end != value->data() + value->size()) {
      throw CommError(fmt::format("store: key '{}' is no counter", key));
    }
  }
  int64_t sum = 0;
  if (__builtin_add_overflow(number, amount, &sum)) {
    throw CommError(fmt::format("store: counter '{}' overflows", key));
  }
  return sum;
}

void MemoryStore::set(std::string_view key, std::string_view value) {
  const std::lock_guard lock(mutex_);
  values_.insert_or_assign(std::string(key), std::string(value));
  changed_.notify_all();
}

std::string MemoryStore::get(std::string_view key, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  auto found = values_.end();
  const bool there = changed_.wait_for(lock, timeout, [&] {
    found = values_.find(key);
    return found != values_.end();
  });
  if (!there) {
    throw CommError(
        fmt::format("store: key '{}' did not appear within {} ms", key, timeout.count()));
  }
  return found->second;
}

std::optional<std::string> MemoryStore::try_get(std::string_view key) {
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

int64_t MemoryStore::add(std::string_view key, int64_t amount) {
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  const int64_t sum = add_decimal(key, found == values_.end() ? nullptr : &found->second, amount);
  values_.insert_or_assign(std::string(key), std::to_string(sum));
  changed_.notify_all();
  return sum;
}

}  // namespace trireme::store
