#include "data/packing.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "base/error.h"

namespace trireme::data {
namespace {

// Open packs by the room they have left; those with equal room wait in line.
class Rooms {
 public:
  void put(int32_t pack, int32_t room) {
    if (pack == std::ssize(next_)) next_.emplace_back();
    next_[static_cast<size_t>(pack)] = kNone;
    const auto [place, is_new] = lines_.try_emplace(room, Line{pack, pack});
    if (is_new) return;
    next_[static_cast<size_t>(place->second.last)] = pack;
    place->second.last = pack;
  }

  struct Found {
    int32_t pack;
    int32_t room;
  };
  /// Takes out the pack with the least room of at least `length`; kNone where there is none.
  Found take(int32_t length) {
    const auto place = lines_.lower_bound(length);
    if (place == lines_.end()) return {kNone, 0};
    const Found found{place->second.first, place->first};
    place->second.first = next_[static_cast<size_t>(found.pack)];
    if (place->second.first == kNone) lines_.erase(place);
    return found;
  }

  static constexpr int32_t kNone = -1;

 private:
  struct Line {
    int32_t first, last;
  };
  std::map<int32_t, Line> lines_;  // by room
  std::vector<int32_t> next_;      // by pack: who is behind it in its line
};

}  // namespace

Packs::Packs(int64_t num_samples)
    : samples_(static_cast<size_t>(num_samples)), begin_(static_cast<size_t>(num_samples) + 1) {
  std::iota(samples_.begin(), samples_.end(), 0);
  std::iota(begin_.begin(), begin_.end(), 0);
}

Packs Packs::best_fit(std::span<const int32_t> lengths, int64_t max_tokens) {
  if (lengths.empty()) return Packs(0);
  const auto length_of = [&](int32_t sample) { return lengths[static_cast<size_t>(sample)]; };
  std::vector<int32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), length_of);
  check(length_of(order.back()) > 0 && length_of(order.front()) <= max_tokens,
        "samples of {} to {} tokens in packs of {}", length_of(order.back()),
        length_of(order.front()), max_tokens);

  Rooms rooms;
  std::vector<int32_t> sizes;                  // of each pack
  std::vector<int32_t> pack_of(order.size());  // by place in `order`
  for (size_t i = 0; i < order.size(); ++i) {
    const int32_t length = length_of(order[i]);
    auto [pack, room] = rooms.take(length);
    if (pack == Rooms::kNone) {
      pack = static_cast<int32_t>(sizes.size());
      room = static_cast<int32_t>(std::min<int64_t>(max_tokens, INT32_MAX));
      sizes.push_back(0);
    }
    ++sizes[static_cast<size_t>(pack)];
    pack_of[i] = pack;
    rooms.put(pack, room - length);
  }

  Packs packs;
  packs.samples_.resize(order.size());
  packs.begin_.resize(sizes.size() + 1);
  std::partial_sum(sizes.begin(), sizes.end(), packs.begin_.begin() + 1);
  std::vector<int32_t> next = packs.begin_;  // free place of each pack
  for (size_t i = 0; i < order.size(); ++i) {
    const int32_t place = next[static_cast<size_t>(pack_of[i])]++;
    packs.samples_[static_cast<size_t>(place)] = order[i];
  }
  return packs;
}

}  // namespace trireme::data
