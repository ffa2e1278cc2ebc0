// What a plan for GPUs assumes, where no GPU is needed to know it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <latch>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cuda/algorithm_cache.h"
#include "cuda/attention_rules.h"
#include "cuda/comm_sizing.h"
#include "cuda/host_calls.h"
#include "cuda/op_sizing.h"
#include "cuda/plan_rules.h"
#include "support/temp_folder.h"

namespace trireme::cuda {
namespace {

/// Who throws an error waits for the call that has begun, and not for the one behind it.
TEST(HostCalls, ThoseThatHaveBegunAreWaitedFor) {
  using std::chrono::milliseconds;
  HostCalls calls;
  EXPECT_TRUE(calls.wait(milliseconds(0)));
  std::latch begun(1), may_end(1);
  bool over = false, another = true;
  std::thread driver([&] {
    ASSERT_TRUE(calls.begin());
    begun.count_down();
    may_end.wait();
    over = true;
    calls.end();
    another = calls.begin();
  });
  begun.wait();
  calls.close();
  EXPECT_FALSE(calls.wait(milliseconds(1))) << "bounded";
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(20));
    may_end.count_down();
  });
  EXPECT_TRUE(calls.wait(std::chrono::minutes(1)));
  EXPECT_TRUE(over);
  later.join();
  driver.join();
  EXPECT_FALSE(another);
  EXPECT_TRUE(calls.wait(milliseconds(0)));
}

constexpr StepShape kLarge{7.6e9, 28, 28, 128, 4096};
constexpr StepShape kMiddle{1.54e9, 28, 12, 128, 4096};
constexpr StepShape kSmall{0.49e9, 24, 14, 64, 4096};

TEST(PlanRules, RepeatingGradientsAreTakenWhereTheyCostLittle) {
  EXPECT_NEAR(repeat_cost(kLarge), 0.02, 0.005);
  EXPECT_NEAR(repeat_cost(kMiddle), 0.039, 0.01);
  EXPECT_GT(repeat_cost(kSmall), 0.05);
  EXPECT_TRUE(repeats_cheaply(kLarge));
  EXPECT_TRUE(repeats_cheaply(kMiddle));
  EXPECT_FALSE(repeats_cheaply(kSmall));
  StepShape longer = kLarge;
  longer.longest = 32768;  // 56 GiB of workspace
  EXPECT_FALSE(repeats_cheaply(longer));
}

/// The gradient of every score of one sequence at a time.
TEST(PlanRules, RepeatingGradientsHaveTheirWorkspace) {
  ops::OpCall call;
  call.kind = ops::OpKind::attention_input_grad;
  call.dtype = DType::bf16;
  call.attributes.heads = 28;
  call.attributes.kv_heads = 4;
  call.attributes.head_dim = 128;
  call.attributes.longest = 4096;
  call.attributes.even = true;
  call.args[2] = {nullptr, DType::bf16, 8192, 4608, 4608};
  call.args[5] = {nullptr, DType::i32, 1, 3, 3};
  const int64_t scores = int64_t{28} * 4096 * 4096 * 2;
  const int64_t fast = OpSizing(90, false).workspace_bytes(call);
  const int64_t repeating = OpSizing(90, true).workspace_bytes(call);
  EXPECT_GT(repeating, scores);
  EXPECT_LT(repeating, scores + (int64_t{256} << 20));
  EXPECT_LT(fast, int64_t{1} << 30);
}

/// The gradient of a 1.5B model's attention over sequences of these lengths.
ops::OpCall ragged_gradient(std::span<const int64_t> lengths) {
  ops::OpCall call;
  call.kind = ops::OpKind::attention_input_grad;
  call.dtype = DType::bf16;
  call.attributes.heads = 12;
  call.attributes.kv_heads = 2;
  call.attributes.head_dim = 128;
  int64_t tokens = 0;
  for (const int64_t length : lengths) {
    tokens += length;
    call.attributes.lengths.add(length);
    call.attributes.longest = std::max(call.attributes.longest, static_cast<int32_t>(length));
  }
  call.args[2] = {nullptr, DType::bf16, tokens, 2048, 2048};
  call.args[5] = {nullptr, DType::i32, 1, std::ssize(lengths) + 1, std::ssize(lengths) + 1};
  return call;
}

std::vector<int64_t> random_lengths(std::mt19937& random) {
  const size_t most = random() % 4 == 0 ? 1000 : 60;  // more than fit in one call, or fewer
  std::vector<int64_t> lengths(1 + random() % most);
  for (int64_t& length : lengths) {
    length = 1 + static_cast<int64_t>(random() % (uint64_t{1} << (1 + random() % 12)));
  }
  return lengths;
}

int64_t arrays_of(const AttentionCalls& calls) {
  int64_t bytes = 0;
  for (const AttentionGroup& group : calls.groups()) {
    bytes += group.count * RaggedArrays{group.sequences, kBackwardOffsets}.call_bytes();
  }
  return bytes;
}

TEST(AttentionCalls, HaveRoomForEverySequenceWithinWhatWasPlanned) {
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    const std::vector<int64_t> lengths = random_lengths(random);
    const AttentionPolicy policy{90, i % 2 == 0};
    ops::OpCall call = ragged_gradient(lengths);
    const AttentionCase c(call);
    const AttentionCalls calls(c, policy);
    int64_t above = 0;
    int64_t work = 0;
    for (const AttentionGroup& group : calls.groups()) {
      EXPECT_EQ(group.above, above);
      EXPECT_GT(group.length, above);
      const auto members = std::ranges::count_if(
          lengths, [&](int64_t n) { return n > group.above && n <= group.length; });
      EXPECT_GT(members, 0);
      EXPECT_GE(group.count * group.sequences, members);
      above = group.length;
      work = std::max(work, cudnn_bytes(c, policy, group.sequences, group.length, true));
    }
    EXPECT_GE(above, call.attributes.longest);
    // As it was planned: for a micro-batch of these sizes, whatever its sequences are.
    call.attributes.lengths = {};
    const int64_t statistics = c.tokens * c.heads * int64_t{sizeof(float)};
    EXPECT_LE(statistics + arrays_of(calls) + work,
              attention_workspace(AttentionCase(call), policy));
  }
}

TEST(AttentionCalls, ManyShortSequencesDoNotPayForALongOne) {
  std::vector<int64_t> lengths(31, 200);
  lengths.push_back(4096);
  for (const bool deterministic : {false, true}) {
    const AttentionCalls calls(AttentionCase(ragged_gradient(lengths)), {90, deterministic});
    ASSERT_EQ(calls.groups().size(), 2u);
    EXPECT_EQ(calls.groups()[0].length, 256);
    EXPECT_EQ(calls.groups()[0].count, 1);
    EXPECT_EQ(calls.groups()[1].length, 4096);
    EXPECT_EQ(calls.groups()[1].count, 1);
  }
  // A few are not worth a call.
  const std::vector<int64_t> few = {200, 900, 1000, 1024};
  EXPECT_EQ(AttentionCalls(AttentionCase(ragged_gradient(few)), {90, false}).groups().size(), 1u);
}

/// As many sequences as packs of short samples have: more calls, within the same workspace.
TEST(PlanRules, AttentionTakesAnyNumberOfSequences) {
  for (const bool backward : {false, true}) {
    for (const bool even : {false, true}) {
      for (const int64_t sequences : {1, 3, 100, 5000, 70000, 200000}) {
        AttentionCase c{ops::OpCall{}};
        c.backward = backward;
        c.gpu_matrix_units = true;
        c.even = even;
        c.heads = 8;
        c.kv_heads = 2;
        c.head_dim = 64;
        c.sequences = sequences;
        c.longest = 4;
        c.tokens = sequences * c.longest;
        const AttentionPolicy policy;
        const AttentionCalls calls(c, policy);
        const AttentionGroup group = calls.groups().front();
        EXPECT_LE(group.sequences, kMostSequences);
        EXPECT_GE(group.sequences * group.count, sequences);
        const RaggedArrays arrays{group.sequences, backward ? kBackwardOffsets : kForwardOffsets};
        const int64_t needed =
            c.tokens * c.heads * 4 + (calls.ragged() ? group.count * arrays.call_bytes() : 0) +
            cudnn_bytes(c, policy, group.sequences, group.length, calls.ragged());
        EXPECT_LE(needed, attention_workspace(c, policy)) << sequences;
      }
    }
  }
}

/// Of a sum of so many elements that travel as bf16.
int64_t staged_bytes(comm::CommKind kind, const std::vector<int64_t>& counts, int64_t ranks) {
  std::vector<comm::CommPiece> pieces;
  for (const int64_t count : counts) pieces.push_back({nullptr, nullptr, count});
  comm::CommCall call;
  call.kind = kind;
  call.wire = DType::bf16;
  call.pieces = pieces;
  return CommSizing().workspace_bytes(call, ranks);
}

/// A place of 2 bytes an element for what goes to each peer, and one for what comes.
TEST(Staging, IsWhatTravels) {
  using comm::CommKind;
  EXPECT_EQ(CommSizing().workspace_bytes({}, 4), 0);
  EXPECT_EQ(staged_bytes(CommKind::reduce_scatter, {1024}, 1), 0);
  EXPECT_EQ(staged_bytes(CommKind::reduce_scatter, {1024}, 4), 2 * 3 * 1024 * 2);
  EXPECT_EQ(staged_bytes(CommKind::reduce_scatter, {}, 4), 0);
  // Shares of pieces begin at multiples of 8 elements.
  EXPECT_EQ(staged_bytes(CommKind::reduce_scatter, {1, 0, 9}, 2), 2 * (8 + 16) * 2);
  // Shares of an all_reduce are as equal as that allows.
  EXPECT_EQ(staged_bytes(CommKind::all_reduce, {100}, 3), 2 * 2 * 40 * 2);
}

TEST(Staging, IsBounded) {
  for (const int64_t ranks : {2, 3, 8, 1000}) {
    const int64_t bytes = staged_bytes(comm::CommKind::reduce_scatter, {int64_t{1} << 33}, ranks);
    EXPECT_LE(bytes, kStagedBytes);
    EXPECT_GT(bytes, kStagedBytes - 2 * ranks * kStagedAlignment * 2);
  }
}

constexpr char kLibrary[] = "cuBLASLt 130100, NVIDIA H200, 132 multiprocessors";

AlgorithmTable table_of(const std::string& key, uint64_t choice,
                        const std::string& library = kLibrary) {
  AlgorithmTable table(library);
  table.set(key, {choice});
  return table;
}

TEST(AlgorithmTable, TakesTheFirstOfSeveralTexts) {
  const std::vector<std::string> texts = {"", table_of("a", 1).text(), table_of("a", 2).text(),
                                          table_of("b", 3).text(),
                                          table_of("c", 4, "another library").text()};
  AlgorithmTable table(kLibrary);
  EXPECT_FALSE(table.read(texts));  // one was of another library
  EXPECT_EQ((*table.find("a"))[0], 1u);
  EXPECT_EQ((*table.find("b"))[0], 3u);
  EXPECT_FALSE(table.find("c"));
  EXPECT_TRUE(table.read(std::span(texts).first(4)));
  EXPECT_EQ(table.text_of_used(), AlgorithmTable(kLibrary).text());
  table.use("b");
  EXPECT_EQ(table.text_of_used(), table_of("b", 3).text());
  const std::string garbage = "no table";
  EXPECT_THROW((void)table.read({&garbage, 1}), DataError);
}

TEST(AlgorithmCache, AnotherRunFindsWhatOneLeft) {
  const test::TempFolder folder;
  AlgorithmCache first(folder / "new/cache", kLibrary);
  EXPECT_FALSE(first.find("a"));
  EXPECT_TRUE(first.add(table_of("a", 1)));
  EXPECT_EQ(first.file().filename(), "matmul-cuBLASLt-130100-NVIDIA-H200-132-multiprocessors.txt");
  AlgorithmCache second(folder / "new/cache", kLibrary);
  EXPECT_EQ((*second.find("a"))[0], 1u);
  EXPECT_FALSE(second.find("b"));
  // What others left stays, and its own choices replace theirs.
  EXPECT_TRUE(first.add(table_of("b", 2)));
  EXPECT_TRUE(second.add(table_of("a", 3)));
  AlgorithmCache third(folder / "new/cache", kLibrary);
  EXPECT_EQ((*third.find("a"))[0], 3u);
  EXPECT_EQ((*third.find("b"))[0], 2u);
  AlgorithmCache other(folder / "new/cache", "cuBLASLt 130200, NVIDIA H200, 132 multiprocessors");
  EXPECT_FALSE(other.find("a"));
  EXPECT_TRUE(third.take_notices().empty());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "new/cache"), {}), 1);
}

TEST(AlgorithmCache, WhatIsWrongWithItIsANotice) {
  const test::TempFolder folder;
  AlgorithmCache cache(folder.path(), kLibrary);
  for (const std::string& text : {std::string("no table\n"), table_of("a", 1).text() + "b: 12\n",
                                  table_of("a", 1, "another library").text()}) {
    write_new_file(cache.file(), text);
    AlgorithmCache read(folder.path(), kLibrary);
    EXPECT_FALSE(read.find("a"));
    EXPECT_FALSE(read.find("b"));
    EXPECT_TRUE(read.add(table_of("b", 2)));
    EXPECT_EQ(read.take_notices().size(), 1u);
    EXPECT_EQ((*AlgorithmCache(folder.path(), kLibrary).find("b"))[0], 2u);
    std::filesystem::remove(cache.file());
  }
  // A file where the folder should be.
  write_new_file(folder / "file", "");
  AlgorithmCache nowhere(folder / "file", kLibrary);
  EXPECT_FALSE(nowhere.find("a"));
  EXPECT_FALSE(nowhere.add(table_of("a", 1)));
  EXPECT_EQ(nowhere.take_notices().size(), 1u);
}

TEST(AlgorithmCache, WithoutAFolderNothingIsKept) {
  AlgorithmCache none("", kLibrary);
  EXPECT_FALSE(none.find("a"));
  EXPECT_FALSE(none.add(table_of("a", 1)));
  EXPECT_TRUE(none.take_notices().empty());
}

}  // namespace
}  // namespace trireme::cuda
