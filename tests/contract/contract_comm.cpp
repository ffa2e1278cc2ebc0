// The contract of comm/comm.h, for every CPU communicator, and their equality bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>

#include "base/error.h"
#include "contract/comm_world.h"
#include "cpu/communicator_calls.h"

namespace trireme::test {
namespace {

using comm::CommCall;
using comm::CommKind;
using comm::CommPiece;
using comm::Communicator;

using Bytes = std::vector<std::byte>;

/// One piece's memory on one rank.
struct Operand {
  Bytes send;
  Bytes recv;
  bool in_place = false;
};

struct Case {
  CommKind kind = CommKind::all_gather;
  DType dtype = DType::f32;
  ops::Law law = ops::Law::set;
  int root = 0;
  bool in_place = false;
  std::vector<int64_t> counts;
  int64_t gap = 0;  // reduce_scatter: elements between two shares
  std::optional<DType> wire = {};
  int64_t stride(int64_t count) const { return count + gap; }
};

enum class Content { finite, bits };

void fill(Bytes& bytes, DType dtype, Content content, std::mt19937_64& random) {
  for (size_t i = 0; i + 8 <= bytes.size() + 7; i += 8) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, std::min<size_t>(8, bytes.size() - i));
  }
  if (content == Content::bits) return;
  const auto value = [&] { return std::uniform_real_distribution<double>(-1, 1)(random); };
  const size_t size = static_cast<size_t>(size_of(dtype));
  for (size_t i = 0; i < bytes.size(); i += size) {
    if (dtype == DType::f32) {
      const auto x = static_cast<float>(value());
      std::memcpy(bytes.data() + i, &x, size);
    } else if (dtype == DType::f64) {
      const double x = value();
      std::memcpy(bytes.data() + i, &x, size);
    } else if (dtype == DType::bf16) {
      const uint16_t x = bf16_from_f32(static_cast<float>(value()));
      std::memcpy(bytes.data() + i, &x, size);
    }
  }
}

/// Bytes of send and recv that one rank of `n` needs for a piece.
std::pair<int64_t, int64_t> sizes_of(const Case& c, int n, int64_t count) {
  const int64_t bytes = count * size_of(c.dtype);
  switch (c.kind) {
    case CommKind::all_gather:
      return {bytes, n * bytes};
    case CommKind::reduce_scatter:
      return {n * c.stride(count) * size_of(c.dtype), bytes};
    default:
      return {bytes, bytes};
  }
}

std::vector<Operand> make_operands(const Case& c, int n, int rank, Content content) {
  std::mt19937_64 random(static_cast<uint64_t>(1000 + rank));
  std::vector<Operand> operands;
  for (const int64_t count : c.counts) {
    const auto [send, recv] = sizes_of(c, n, count);
    Operand operand{Bytes(static_cast<size_t>(send)), Bytes(static_cast<size_t>(recv)), c.in_place};
    fill(operand.send, c.dtype, content, random);
    fill(operand.recv, c.dtype, content, random);
    operands.push_back(std::move(operand));
  }
  return operands;
}

/// Where the result of a piece lies after the call.
Bytes result_of(const Case& c, const Operand& operand, int rank, int64_t count) {
  if (!operand.in_place) return operand.recv;
  if (c.kind == CommKind::reduce_scatter) {
    const auto begin = operand.send.begin() + rank * c.stride(count) * size_of(c.dtype);
    return Bytes(begin, begin + count * size_of(c.dtype));
  }
  return c.kind == CommKind::all_reduce ? operand.send : operand.recv;
}

/// A case and the operands of all its ranks.
struct Prepared {
  Prepared(Case what, int n, Content content) : c(std::move(what)) {
    for (int r = 0; r < n; ++r) ranks.push_back(make_operands(c, n, r, content));
  }
  Case c;
  std::vector<std::vector<Operand>> ranks;
};

/// Every rank's view of a list of cases; one is prepared when its first rank comes to it, and
/// forgotten when its last has left.
class Cases {
 public:
  Cases(std::vector<Case> cases, int n, Content content)
      : cases_(std::move(cases)), prepared_(cases_.size()), n_(n), content_(content) {}

  void for_each(const std::function<void(const Prepared&)>& body) {
    for (size_t i = 0; i < cases_.size(); ++i) {
      std::shared_ptr<Prepared> mine;
      {
        const std::lock_guard lock(mutex_);
        Entry& entry = prepared_[i];
        if (!entry.prepared) entry.prepared = std::make_shared<Prepared>(cases_[i], n_, content_);
        mine = entry.prepared;
        if (++entry.visits == n_) entry.prepared.reset();
      }
      body(*mine);
    }
  }

 private:
  struct Entry {
    std::shared_ptr<Prepared> prepared;
    int visits = 0;
  };
  const std::vector<Case> cases_;
  std::mutex mutex_;
  std::vector<Entry> prepared_;
  const int n_;
  const Content content_;
};

/// Runs the case over world group 0; the result of each piece.
std::vector<Bytes> run_prepared(Communicator& communicator, const Prepared& prepared) {
  const Case& c = prepared.c;
  const int n = communicator.world_size();
  const int rank = communicator.rank();
  const std::vector<Operand>& before = prepared.ranks[static_cast<size_t>(rank)];
  std::vector<Operand> operands = before;
  std::vector<CommPiece> pieces;
  for (size_t j = 0; j < c.counts.size(); ++j) {
    Operand& o = operands[j];
    const int64_t bytes = c.counts[j] * size_of(c.dtype);
    CommPiece piece{o.send.data(), o.recv.data(), c.counts[j]};
    if (c.gap > 0) piece.stride = c.stride(c.counts[j]);
    const int64_t share = rank * c.stride(c.counts[j]) * size_of(c.dtype);
    if (c.in_place && c.kind == CommKind::all_gather) {
      std::copy(o.send.begin(), o.send.end(), o.recv.begin() + rank * bytes);
      piece.send = o.recv.data() + rank * bytes;
    } else if (c.in_place && c.kind == CommKind::reduce_scatter) {
      piece.recv = o.send.data() + share;
    } else if (c.in_place && c.kind == CommKind::all_reduce) {
      piece.recv = o.send.data();
    }
    pieces.push_back(piece);
  }
  CommCall call{.kind = c.kind,
                .dtype = c.dtype,
                .wire = c.wire,
                .law = c.law,
                .root = c.root,
                .pieces = pieces};
  Bytes workspace(static_cast<size_t>(cpu::CommSizing().workspace_bytes(call, n)));
  call.workspace = workspace.data();
  call.workspace_bytes = static_cast<int64_t>(workspace.size());
  communicator.run(call);
  std::vector<Bytes> results;
  for (size_t j = 0; j < c.counts.size(); ++j) {
    results.push_back(result_of(c, operands[j], rank, c.counts[j]));
    if (c.kind != CommKind::reduce_scatter || !c.in_place) continue;
    // Only this rank's share of the operand may have changed.
    const auto bytes = static_cast<std::ptrdiff_t>(c.counts[j] * size_of(c.dtype));
    const int64_t share = rank * c.stride(c.counts[j]) * size_of(c.dtype);
    std::copy_n(before[j].send.begin() + share, bytes, operands[j].send.begin() + share);
    EXPECT_TRUE(operands[j].send == before[j].send) << "changed outside the share";
  }
  return results;
}

std::vector<Bytes> run_case(Communicator& communicator, const Case& c) {
  return run_prepared(communicator, Prepared(c, communicator.world_size(), Content::finite));
}

double read(const Bytes& bytes, int64_t index, DType dtype) {
  const auto* at = bytes.data() + index * size_of(dtype);
  if (dtype == DType::f64) {
    double x;
    std::memcpy(&x, at, sizeof x);
    return x;
  }
  if (dtype == DType::f32) {
    float x;
    std::memcpy(&x, at, sizeof x);
    return x;
  }
  uint16_t x;
  std::memcpy(&x, at, sizeof x);
  return f32_from_bf16(x);
}

/// Elements in group-rank order, in f32 (f64 for f64), rounded once; or of parts that are rounded.
Bytes naive_sum(const Case& c, const std::vector<Bytes>& parts, int64_t first, int64_t count,
                const Bytes* add_to) {
  Bytes out(static_cast<size_t>(count * size_of(c.dtype)));
  for (int64_t i = 0; i < count; ++i) {
    std::byte* at = out.data() + i * size_of(c.dtype);
    if (c.dtype == DType::f64) {
      double sum = read(parts[0], first + i, c.dtype);
      for (size_t k = 1; k < parts.size(); ++k) sum += read(parts[k], first + i, c.dtype);
      if (add_to != nullptr) sum = read(*add_to, i, c.dtype) + sum;
      std::memcpy(at, &sum, sizeof sum);
      continue;
    }
    const auto part = [&](size_t k) {
      const auto value = static_cast<float>(read(parts[k], first + i, c.dtype));
      return c.wire ? f32_from_bf16(bf16_from_f32(value)) : value;
    };
    float sum = part(0);
    for (size_t k = 1; k < parts.size(); ++k) sum += part(k);
    if (add_to != nullptr) sum = static_cast<float>(read(*add_to, i, c.dtype)) + sum;
    if (c.dtype == DType::f32) {
      std::memcpy(at, &sum, sizeof sum);
    } else {
      const uint16_t bits = bf16_from_f32(sum);
      std::memcpy(at, &bits, sizeof bits);
    }
  }
  return out;
}

Bytes naive_result(const Prepared& prepared, int rank, size_t j) {
  const Case& c = prepared.c;
  std::vector<Bytes> sends;
  for (const auto& operands : prepared.ranks) sends.push_back(operands[j].send);
  const Operand& mine = prepared.ranks[static_cast<size_t>(rank)][j];
  const int64_t count = c.counts[j];
  switch (c.kind) {
    case CommKind::all_gather: {
      Bytes all;
      for (const Bytes& send : sends) all.insert(all.end(), send.begin(), send.end());
      return all;
    }
    case CommKind::reduce_scatter: {
      const Bytes target = result_of(c, mine, rank, count);
      return naive_sum(c, sends, rank * c.stride(count), count,
                       c.law == ops::Law::add ? &target : nullptr);
    }
    case CommKind::all_reduce:
      return naive_sum(c, sends, 0, count, nullptr);
    default:
      return prepared.ranks[static_cast<size_t>(c.root)][j].recv;
  }
}

std::vector<Case> all_cases(int n) {
  const std::vector<std::vector<int64_t>> counts = {
      {1}, {0}, {3, 0, 257, 1}, {}, {70'001, 5, 90'003}};
  std::vector<Case> cases;
  for (const auto& list : counts) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
      for (const bool in_place : {false, true}) {
        for (const ops::Law law : {ops::Law::set, ops::Law::add}) {
          cases.push_back({CommKind::reduce_scatter, dtype, law, 0, in_place, list});
        }
        cases.push_back({CommKind::all_reduce, dtype, ops::Law::set, 0, in_place, list});
        cases.push_back({CommKind::all_gather, dtype, ops::Law::set, 0, in_place, list});
      }
      cases.push_back({CommKind::broadcast, dtype, ops::Law::set, n - 1, false, list});
    }
    cases.push_back({CommKind::reduce_scatter, DType::f32, ops::Law::add, 0, true, list, 13});
    for (const bool in_place : {false, true}) {
      for (const ops::Law law : {ops::Law::set, ops::Law::add}) {
        for (const int64_t gap : {0, 13}) {
          cases.push_back(
              {CommKind::reduce_scatter, DType::f32, law, 0, in_place, list, gap, DType::bf16});
        }
      }
      cases.push_back(
          {CommKind::all_reduce, DType::f32, ops::Law::set, 0, in_place, list, 0, DType::bf16});
    }
    cases.push_back({CommKind::all_gather, DType::i32, ops::Law::set, 0, false, list});
    cases.push_back({CommKind::broadcast, DType::i32, ops::Law::set, 0, false, list});
  }
  return cases;
}

std::string to_string(const Case& c) {
  return fmt::format("{} {} {}{} counts {}", name_of(c.kind), name_of(c.dtype),
                     c.law == ops::Law::add ? "add" : "set", c.in_place ? " in place" : "",
                     fmt::join(c.counts, ",")) +
         (c.gap > 0 ? " apart" : "") + (c.wire ? fmt::format(" as {}", name_of(*c.wire)) : "");
}

void expect_none(const Failures& failures) {
  for (size_t r = 0; r < failures.size(); ++r) EXPECT_EQ(failures[r], "") << "rank " << r;
}

class EveryWorld : public testing::TestWithParam<std::tuple<Backend, int>> {
 protected:
  Backend backend() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
};

class EveryGroup : public EveryWorld {};  // of two ranks and more

TEST_P(EveryWorld, EqualsTheNaiveSumsInRankOrder) {
  Cases cases(all_cases(size()), size(), Content::finite);
  expect_none(run_world(backend(), size(), [&](Communicator& communicator) {
    const int rank = communicator.rank();
    cases.for_each([&](const Prepared& prepared) {
      const auto results = run_prepared(communicator, prepared);
      for (size_t j = 0; j < results.size(); ++j) {
        EXPECT_TRUE(results[j] == naive_result(prepared, rank, j))
            << to_string(prepared.c) << " rank " << rank << " piece " << j;
      }
    });
  }));
}

TEST_P(EveryWorld, CountsTheLeastTraffic) {
  const int n = size();
  using Sent = std::pair<int64_t, int64_t>;  // messages, bytes
  const int64_t count = 12 * 5;              // divisible by every world size here
  expect_none(run_world(backend(), n, [&](Communicator& communicator) {
    const auto sent = [&](CommKind kind, std::optional<DType> wire = {}) {
      const comm::Traffic before = communicator.traffic(0);
      run_case(communicator, {.kind = kind, .counts = {count, 0}, .wire = wire});
      const comm::Traffic after = communicator.traffic(0);
      EXPECT_EQ(after.calls - before.calls, 1);
      return Sent(after.messages - before.messages, after.bytes - before.bytes);
    };
    EXPECT_EQ(sent(CommKind::all_gather), Sent(n - 1, (n - 1) * count * 4));
    EXPECT_EQ(sent(CommKind::reduce_scatter), Sent(n - 1, (n - 1) * count * 4));
    EXPECT_EQ(sent(CommKind::all_reduce), Sent(2 * (n - 1), 2 * (n - 1) * (count / n) * 4));
    EXPECT_EQ(sent(CommKind::reduce_scatter, DType::bf16), Sent(n - 1, (n - 1) * count * 2));
    EXPECT_EQ(sent(CommKind::all_reduce, DType::bf16),
              Sent(2 * (n - 1), (n - 1) * (count / n) * (2 + 4)));
    const int64_t root = communicator.rank() == 0 ? n - 1 : 0;
    EXPECT_EQ(sent(CommKind::broadcast), Sent(root, root * count * 4));
  }));
}

TEST_P(EveryGroup, RunsGroupsOnTheirOwnThreads) {
  const int n = size();
  expect_none(run_world(backend(), n, [&](Communicator& communicator) {
    // Ring of neighbours (the pipeline's shape) beside the world; the reversed order is a group
    // too.
    std::vector<int> reversed(static_cast<size_t>(n));
    std::iota(reversed.rbegin(), reversed.rend(), 0);
    const int backwards = communicator.add_group(reversed);
    const int few = communicator.add_group({n - 1, 0});
    EXPECT_EQ(communicator.group_rank(backwards), n - 1 - communicator.rank());
    EXPECT_EQ(communicator.group_rank(few),
              communicator.rank() == n - 1 ? 0 : (communicator.rank() == 0 ? 1 : -1));
    const auto many_sums = [&](int group, float value, float expected) {
      for (int i = 0; i < 50; ++i) {
        std::vector<float> data(1000, value);
        Bytes workspace(4 * 1000 * static_cast<size_t>(n));
        const CommPiece piece{data.data(), data.data(), 1000};
        communicator.run({.kind = CommKind::all_reduce,
                          .group = group,
                          .pieces = std::span(&piece, 1),
                          .workspace = workspace.data(),
                          .workspace_bytes = static_cast<int64_t>(workspace.size())});
        ASSERT_EQ(data, std::vector<float>(1000, expected));
      }
    };
    std::thread other([&] {
      many_sums(backwards, 2, static_cast<float>(2 * n));
      if (communicator.group_rank(few) >= 0) many_sums(few, 5, 10);
    });
    many_sums(0, 1, static_cast<float>(n));
    other.join();
  }));
}

TEST_P(EveryGroup, SendsToPeers) {
  const int n = size();
  expect_none(run_world(backend(), n, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    const auto letter = [&](CommKind kind, int peer, std::vector<int32_t>& data) {
      const std::array<CommPiece, 2> pieces{CommPiece{data.data(), data.data(), 10},
                                            CommPiece{data.data() + 10, data.data() + 10, 90}};
      communicator.run({.kind = kind, .dtype = DType::i32, .root = peer, .pieces = pieces});
    };
    for (int round = 0; round < 3; ++round) {  // along the line and back
      std::vector<int32_t> data(100, rank == 0 ? 7 + round : 0);
      if (rank > 0) letter(CommKind::recv, rank - 1, data);
      if (rank + 1 < n) letter(CommKind::send, rank + 1, data);
      if (rank + 1 < n) letter(CommKind::recv, rank + 1, data);
      for (int32_t& x : data) ++x;
      if (rank > 0) letter(CommKind::send, rank - 1, data);
      ASSERT_EQ(data, std::vector<int32_t>(100, 7 + round + n - rank));
    }
    EXPECT_EQ(communicator.traffic(0).bytes,
              3 * 400 * ((rank > 0 ? 1 : 0) + (rank + 1 < n ? 1 : 0)));
  }));
}

TEST_P(EveryGroup, RefusesCallsThatDoNotMatch) {
  const Case normal{.kind = CommKind::all_gather, .counts = {100, 20}};
  std::vector<Case> odd(5, normal);
  odd[0].kind = CommKind::all_reduce;
  odd[1].dtype = DType::bf16;
  odd[2].counts = {101, 20};
  odd[3].counts = {120};
  odd[4].counts = {20, 100};
  for (const Case& other : odd) {
    const Failures failures = run_world(backend(), size(), [&](Communicator& communicator) {
      run_case(communicator, normal);
      run_case(communicator, communicator.rank() == 1 ? other : normal);
    });
    for (int rank = 0; rank < size(); ++rank) {
      const std::string& words = failures[static_cast<size_t>(rank)];
      EXPECT_NE(words.find("mismatch with rank"), std::string::npos) << to_string(other) << words;
      EXPECT_NE(words.find("on group 0, call 1"), std::string::npos) << words;
      if (rank != 1) {
        EXPECT_NE(words.find("rank 1"), std::string::npos) << words;
      }
    }
  }
}

TEST_P(EveryGroup, RefusesAnotherWireType) {
  const Case wide{.kind = CommKind::reduce_scatter, .counts = {100}};
  Case narrow = wide;
  narrow.wire = DType::bf16;
  const Failures failures = run_world(backend(), size(), [&](Communicator& communicator) {
    run_case(communicator, communicator.rank() == 1 ? narrow : wide);
  });
  for (const std::string& words : failures) {  // one's own, or that of the rank that saw it first
    EXPECT_NE(words.find("mismatch with rank"), std::string::npos) << words;
    EXPECT_TRUE(words.find("it sends bf16, this rank f32") != std::string::npos ||
                words.find("it sends f32, this rank bf16") != std::string::npos)
        << words;
  }
}

TEST_P(EveryGroup, OnlySumsOfF32HaveAWireType) {
  for (const Case& c :
       {Case{.kind = CommKind::all_gather, .counts = {8}, .wire = DType::bf16},
        Case{.kind = CommKind::all_reduce, .dtype = DType::f64, .counts = {8}, .wire = DType::bf16},
        Case{.kind = CommKind::all_reduce, .counts = {8}, .wire = DType::f16}}) {
    for (const std::string& words : run_world(
             backend(), size(), [&](Communicator& communicator) { run_case(communicator, c); })) {
      EXPECT_NE(words.find("travels as"), std::string::npos) << words;
    }
  }
}

TEST_P(EveryGroup, RefusesAnotherOrderOfCalls) {
  const Case gather{.kind = CommKind::all_gather, .counts = {8}};
  const Case reduce{.kind = CommKind::all_reduce, .counts = {8}};
  const Failures failures = run_world(backend(), size(), [&](Communicator& communicator) {
    const bool swapped = communicator.rank() == 0;
    run_case(communicator, swapped ? reduce : gather);
    run_case(communicator, swapped ? gather : reduce);
  });
  for (const std::string& words : failures) {
    EXPECT_NE(words.find("mismatch with rank"), std::string::npos) << words;
  }
}

TEST_P(EveryGroup, NamesARankThatLeft) {
  const Case c{.kind = CommKind::all_reduce, .counts = {100'000}};
  const int gone = size() - 1;
  const Failures failures = run_world(backend(), size(), [&](Communicator& communicator) {
    run_case(communicator, c);
    if (communicator.rank() == gone) return;
    EXPECT_THROW(run_case(communicator, c), CommError);
    run_case(communicator, c);  // every later call throws too
  });
  for (int rank = 0; rank < gone; ++rank) {
    const std::string& words = failures[static_cast<size_t>(rank)];
    EXPECT_NE(words.find(fmt::format("lost rank {}", gone)), std::string::npos) << words;
    EXPECT_NE(words.find("all_reduce on group 0"), std::string::npos) << words;
  }
}

TEST_P(EveryGroup, TellsTheReasonOfARankThatAborted) {
  const Case c{.kind = CommKind::all_gather, .counts = {10}};
  const Failures failures = run_world(backend(), size(), [&](Communicator& communicator) {
    run_case(communicator, c);
    if (communicator.rank() == 0) communicator.abort("the oven is on fire");
    run_case(communicator, c);
  });
  for (const std::string& words : failures) {
    EXPECT_NE(words.find("the oven is on fire"), std::string::npos) << words;
  }
}

TEST_P(EveryGroup, AbortWakesABlockedCall) {
  const Case c{.kind = CommKind::all_gather, .counts = {10}};
  const Failures failures = run_world(backend(), size(), [&](Communicator& communicator) {
    if (communicator.rank() == 0) {
      // Blocked: the others never call.
      std::thread other([&] { communicator.abort("stop now"); });
      EXPECT_THROW(run_case(communicator, c), CommError);
      other.join();
      run_case(communicator, c);
    }
  });
  EXPECT_NE(failures[0], "");
}

TEST_P(EveryGroup, TimesOutAndNamesWhoIsMissing) {
  const Case c{.kind = CommKind::all_gather, .counts = {10}};
  std::atomic<int> still_waiting = size() - 1;
  const Failures failures = run_world(
      backend(), size(),
      [&](Communicator& communicator) {
        if (communicator.rank() == size() - 1) {  // alive, but never calls
          while (still_waiting > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
          return;
        }
        try {
          run_case(communicator, c);
        } catch (...) {
          --still_waiting;
          throw;
        }
      },
      std::chrono::milliseconds(200));
  bool named = false;
  for (int rank = 0; rank + 1 < size(); ++rank) {
    const std::string& words = failures[static_cast<size_t>(rank)];
    EXPECT_NE(words, "");
    named = named || words.find(fmt::format("rank {}", size() - 1)) != std::string::npos;
  }
  EXPECT_TRUE(named);
}

std::string world_name(const testing::TestParamInfo<std::tuple<Backend, int>>& info) {
  return fmt::format("{}{}", std::get<0>(info.param) == Backend::threads ? "Threads" : "Sockets",
                     std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Comm, EveryWorld,
                         testing::Combine(testing::Values(Backend::threads, Backend::sockets),
                                          testing::Values(1, 2, 3, 4, 5)),
                         world_name);
INSTANTIATE_TEST_SUITE_P(Comm, EveryGroup,
                         testing::Combine(testing::Values(Backend::threads, Backend::sockets),
                                          testing::Values(2, 3, 4, 5)),
                         world_name);

TEST(CommBackends, AreEqualOnRandomBits) {
  for (int n = 1; n <= 5; ++n) {
    std::array<std::vector<std::vector<std::vector<Bytes>>>, 2> results;  // [backend][rank][case]
    for (const Backend backend : {Backend::threads, Backend::sockets}) {
      auto& mine = results[backend == Backend::threads ? 0 : 1];
      mine.resize(static_cast<size_t>(n));
      Cases cases(all_cases(n), n, Content::bits);
      expect_none(run_world(backend, n, [&](Communicator& communicator) {
        auto& list = mine[static_cast<size_t>(communicator.rank())];
        cases.for_each([&](const Prepared& prepared) {
          list.push_back(run_prepared(communicator, prepared));
        });
      }));
    }
    const std::vector<Case> cases = all_cases(n);
    for (size_t r = 0; r < static_cast<size_t>(n); ++r) {
      for (size_t i = 0; i < cases.size(); ++i) {
        EXPECT_TRUE(results[0][r][i] == results[1][r][i])
            << to_string(cases[i]) << " on " << n << " ranks";
      }
    }
  }
}

}  // namespace
}  // namespace trireme::test
