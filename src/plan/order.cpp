#include "plan/order.h"

#include <algorithm>

namespace trireme::plan {

Clock join(const Clock& a, const Clock& b) {
  Clock joined;
  for (size_t s = 0; s < joined.size(); ++s) joined[s] = std::max(a[s], b[s]);
  return joined;
}

Clock Order::after(int32_t entry) const {
  Clock clock = starts_[static_cast<size_t>(entry)];
  const auto stream = static_cast<size_t>(streams_[static_cast<size_t>(entry)]);
  clock[stream] = std::max(clock[stream], places_[static_cast<size_t>(entry)]);
  return clock;
}

Clock Order::before(StreamKind stream) const {
  const int32_t last = last_[static_cast<size_t>(stream)];
  return last < 0 ? Clock{} : after(last);
}

void Order::append(StreamKind stream, const std::vector<int32_t>& waits) {
  Clock clock = before(stream);
  for (int32_t wait : waits) clock = join(clock, after(wait));
  int32_t& last = last_[static_cast<size_t>(stream)];
  places_.push_back(last < 0 ? 1 : places_[static_cast<size_t>(last)] + 1);
  last = size();
  starts_.push_back(clock);
  streams_.push_back(stream);
}

bool Order::done(int32_t entry, const Clock& clock) const {
  return clock[static_cast<size_t>(streams_[static_cast<size_t>(entry)])] >=
         places_[static_cast<size_t>(entry)];
}

bool Order::ordered(int32_t a, int32_t b) const { return done(a, clock(b)); }

Order order_of(const std::vector<Entry>& schedule) {
  Order order;
  for (const Entry& entry : schedule) order.append(entry.stream, entry.waits);
  return order;
}

}  // namespace trireme::plan
