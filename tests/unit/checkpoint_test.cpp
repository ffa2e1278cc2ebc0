// Saving and loading where nothing goes wrong, on any numbers of ranks.
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/folders.h"
#include "checkpoint/report.h"
#include "checkpoint_support.h"
#include "model/safetensors.h"
#include "support/temp_folder.h"

namespace trireme::checkpoint {
namespace {

using test::message_of;
using test::TempFolder;

std::vector<std::string> no_errors(int num_ranks) {
  return std::vector<std::string>(static_cast<size_t>(num_ranks));
}

std::vector<std::string> names_of(const std::vector<CheckpointFolder>& folders) {
  std::vector<std::string> names;
  for (const CheckpointFolder& folder : folders) names.push_back(folder.path.filename().string());
  return names;
}

using Names = std::vector<std::string>;

TEST(Checkpoint, SavedOnAnyRanksReadsOnAnyOthers) {
  for (int writers = 1; writers <= 6; ++writers) {
    const TempFolder folder;
    ASSERT_EQ(save_on_threads({.output_dir = folder.path(), .step = 7}, writers,
                              static_cast<uint32_t>(writers)),
              no_errors(writers));
    const auto path = folder / "checkpoint-7";
    EXPECT_EQ(sample_difference(path), "");
    for (int readers = 1; readers <= 5; ++readers) {
      const Cut cut = random_cut(readers, static_cast<uint32_t>(100 * writers + readers));
      for (const auto& mine : cut) {
        CheckpointReader reader(path);
        int64_t wanted = 0;
        for (size_t t = 0; t < mine.size(); ++t) {
          for (size_t p = 0; p < sample_planes().size(); ++p) {
            for (const mesh::Box& box : mine[t]) {
              std::vector<float> values(static_cast<size_t>(box.size()));
              reader.read(sample_tensors()[t].name, sample_planes()[p], sample_tensors()[t].shape,
                          box, values.data());
              ASSERT_EQ(values, sample_box(7, t, p, box));
              wanted += box.size() * 4;
            }
          }
        }
        const int64_t lists = 16 * writers;  // one hash a file: they are smaller than a block
        EXPECT_LE((reader.bytes_read() - lists) * 20, wanted * 21)
            << "at most 5 % more than its boxes";
      }
    }
  }
}

/// A resume reads what it needs, once: verifying adds what nobody needed, shared out.
TEST(Checkpoint, RanksReadTheirBoxesAndNoFileTwice) {
  constexpr int64_t kRows = 1024;
  constexpr int64_t kColumns = 256;
  const std::vector<int64_t> shape = {kRows, kColumns};
  const std::vector<float> values(kRows * kColumns, 0.5f);
  const auto rows_of = [&](int rank, int num_ranks) {
    const int64_t begin = kRows * rank / num_ranks;
    return mesh::Box{{begin, 0}, {kRows * (rank + 1) / num_ranks - begin, kColumns}};
  };
  const auto expect_reads = [&](int writers, int readers, const auto& box_of, int64_t rest) {
    const TempFolder folder;
    ASSERT_EQ(test::run_ranks(writers,
                              [&](Coordinator& ranks) {
                                const mesh::Box box = rows_of(ranks.rank(), writers);
                                CheckpointWriter writer(
                                    {.output_dir = folder.path(), .step = 1, .block_bytes = 4096},
                                    {{"t", "master", shape, box}, {"t", "exp_avg", shape, box}},
                                    ranks);
                                writer.add("t", "master", box, values.data());
                                writer.add("t", "exp_avg", box, values.data());
                                writer.commit({});
                              }),
              no_errors(writers));
    const auto errors = test::run_ranks(readers, [&](Coordinator& ranks) {
      std::vector<float> out(values.size());
      const mesh::Box box = box_of(ranks.rank());
      std::optional<CheckpointReader> reader(folder / "checkpoint-1");
      for (const char* plane : {"master", "exp_avg"})
        reader->read("t", plane, shape, box, out.data());
      EXPECT_EQ(reader->verify(ranks), Names());
      EXPECT_LE(reader->bytes_read(), box.size() * 2 * 4 * 105 / 100 + rest)
          << writers << " " << readers;
    });
    EXPECT_EQ(errors, no_errors(readers));
  };
  for (int writers = 1; writers <= 4; ++writers) {
    for (int readers = 1; readers <= 4; ++readers) {
      expect_reads(
          writers, readers, [&](int rank) { return rows_of(rank, readers); }, 0);
    }
  }
  // Columns of rows that are shorter than a block: no rank has a block to itself, so each reads
  // its part of the file once more.
  expect_reads(
      1, 2,
      [&](int rank) {
        return mesh::Box{{0, rank * kColumns / 2}, {kRows, kColumns / 2}};
      },
      kRows * kColumns * 4);
}

/// Saved before files had lists of hashes.
TEST(Checkpoint, VersionOneIsRead) {
  const TempFolder folder;
  ASSERT_EQ(save_on_threads({.output_dir = folder.path(), .step = 3}, 2), no_errors(2));
  const auto path = folder / "checkpoint-3" / kManifestName;
  std::string body = read_text_file(path, 1 << 20);
  body = body.substr(body.find('\n') + 1);
  Json manifest = parse_json("{" + body, "a manifest");
  manifest["version"] = 1;
  for (Json& file : manifest["files"]) {
    file.erase("list");
    const std::string name = file["name"];
    file["xxh3"] = to_hex(hash128(read_text_file(folder / "checkpoint-3" / name, 1 << 20)));
  }
  body = dump_json(manifest).substr(1);
  replace_file(path, "{\"xxh3\": \"" + to_hex(hash128(body)) + "\",\n" + body);

  SingleRank alone;
  const Cut cut = random_cut(1, 1);
  std::vector<std::vector<float>> loaded;
  const auto load = [&](CheckpointReader& reader) { loaded = read_boxes(reader, cut[0]); };
  EXPECT_TRUE(find_newest(folder.path(), alone, load).has_value());
  EXPECT_EQ(loaded, sample_boxes(3, cut[0]));
  const auto file = folder / "checkpoint-3" / "rank-00001-of-00002.safetensors";
  std::string bytes = read_text_file(file, 1 << 20);
  bytes[bytes.size() / 2] ^= 1;
  replace_file(file, bytes);
  EXPECT_NE(message_of<DataError>([&] {
              find_newest(folder.path(), alone, load);
            }).find("rank-00001-of-00002.safetensors is damaged"),
            std::string::npos);
}

/// Columns, as tensor parallelism cuts them, from slices of rows.
TEST(Checkpoint, ColumnsFromRowSlices) {
  const TempFolder folder;
  ASSERT_EQ(save_on_threads({.output_dir = folder.path(), .step = 1}, 3), no_errors(3));
  CheckpointReader reader(folder / "checkpoint-1");
  const mesh::Box columns{{0, 14}, {24, 28}};
  std::vector<float> values(24 * 28);
  reader.read("model.layers.0.proj.weight", "exp_avg", {24, 56}, columns, values.data());
  EXPECT_EQ(values, sample_box(1, 1, 1, columns));
}

TEST(Checkpoint, FilesAreSafetensorsThatSayWhatTheyHold) {
  const TempFolder folder;
  ASSERT_EQ(save_on_threads({.output_dir = folder.path(), .step = 1}, 2), no_errors(2));
  const model::SafetensorsFile file(folder / "checkpoint-1" / "rank-00001-of-00002.safetensors");
  ASSERT_FALSE(file.tensors().empty());
  EXPECT_TRUE(file.tensors()[0].name.starts_with("master:model.embed_tokens.weight["));
  EXPECT_EQ(read_text_file(folder / "latest", 100), "checkpoint-1\n");
}

TEST(Checkpoint, WrongQuestionsAreRefused) {
  const TempFolder folder;
  ASSERT_EQ(save_on_threads({.output_dir = folder.path(), .step = 1}, 2), no_errors(2));
  CheckpointReader reader(folder / "checkpoint-1");
  float out[64];
  const mesh::Box box = mesh::whole({56});
  EXPECT_NE(message_of<DataError>([&] {
              reader.read("absent", "master", {56}, box, out);
            }).find("holds no plane 'master' of tensor 'absent'"),
            std::string::npos);
  EXPECT_NE(message_of<DataError>([&] {
              reader.read("model.layers.0.proj.bias", "momentum", {56}, box, out);
            }).find("plane 'momentum'"),
            std::string::npos);
  EXPECT_NE(message_of<DataError>([&] {
              reader.read("model.layers.0.proj.bias", "master", {55}, mesh::whole({55}), out);
            }).find("has shape (56), this run needs (55)"),
            std::string::npos);
  EXPECT_THROW(reader.read("model.layers.0.proj.bias", "master", {56}, {{1}, {56}}, out), BugError);
}

TEST(Checkpoint, PiecesMustTileTheTensors) {
  const TempFolder folder;
  const SaveRequest request{.output_dir = folder.path(), .step = 1};
  const auto save = [&](const std::vector<mesh::Box>& boxes) {
    std::vector<Piece> pieces;
    for (const mesh::Box& box : boxes) pieces.push_back({"t", "master", {4, 4}, box});
    SingleRank alone;
    CheckpointWriter writer(request, pieces, alone);
    const std::vector<float> zeros(16);
    for (const mesh::Box& box : boxes) writer.add("t", "master", box, zeros.data());
    writer.commit({});
  };
  EXPECT_NE(message_of<DeviceError>([&] {
              save({{{0, 0}, {2, 4}}});
            }).find("hold 8 elements instead of 16"),
            std::string::npos);
  EXPECT_NE(message_of<DeviceError>([&] {
              save({{{0, 0}, {2, 4}}, {{1, 0}, {2, 2}}, {{2, 2}, {2, 2}}});
            }).find("overlap"),
            std::string::npos);
  EXPECT_TRUE(list_folders(folder.path()).empty());
  save({{{0, 0}, {2, 4}}, {{2, 0}, {2, 2}}, {{2, 2}, {2, 2}}});
  EXPECT_EQ(list_folders(folder.path()).size(), 1u);
}

/// Half the bytes, and the same numbers back; planes of one checkpoint may be of two types.
TEST(Checkpoint, PlanesMayBeBf16) {
  const TempFolder folder;
  const std::vector<Piece> pieces = {
      {"t", "master", {2, 3}, mesh::whole({2, 3})},
      {"t", "exp_avg", {2, 3}, {{0, 0}, {2, 1}}, DType::bf16},
      {"t", "exp_avg", {2, 3}, {{0, 1}, {2, 2}}, DType::bf16},
  };
  const std::vector<float> masters = {1, 2, 3, 4, 5, 1.0000001f};
  const std::vector<uint16_t> left = {bf16_from_f32(10), bf16_from_f32(40)};
  const std::vector<uint16_t> right = {bf16_from_f32(20), bf16_from_f32(30), bf16_from_f32(50),
                                       bf16_from_f32(60)};
  SingleRank alone;
  CheckpointWriter writer({.output_dir = folder.path(), .step = 1}, pieces, alone);
  writer.add("t", "master", mesh::whole({2, 3}), masters.data());
  writer.add("t", "exp_avg", {{0, 0}, {2, 1}}, left.data());
  writer.add("t", "exp_avg", {{0, 1}, {2, 2}}, right.data());
  CheckpointReader reader(writer.commit({}).folder);
  ASSERT_EQ(reader.manifest().planes.size(), 2u);
  EXPECT_EQ(reader.manifest().planes[0].dtype, DType::f32);
  EXPECT_EQ(reader.manifest().planes[1].dtype, DType::bf16);
  std::vector<float> all(6);
  reader.read("t", "master", {2, 3}, mesh::whole({2, 3}), all.data());
  EXPECT_EQ(all, masters);
  reader.read("t", "exp_avg", {2, 3}, mesh::whole({2, 3}), all.data());
  EXPECT_EQ(all, (std::vector<float>{10, 20, 30, 40, 50, 60}));
  const auto& boxes = reader.manifest().files.front().boxes;
  EXPECT_EQ(boxes[1].offset - boxes[0].offset, 24);
  EXPECT_EQ(boxes[2].offset - boxes[1].offset, 4);

  std::vector<Piece> mixed = pieces;
  mixed[2].dtype = DType::f32;
  CheckpointWriter wrong({.output_dir = folder.path(), .step = 2}, mixed, alone);
  wrong.add("t", "master", mesh::whole({2, 3}), masters.data());
  wrong.add("t", "exp_avg", {{0, 0}, {2, 1}}, left.data());
  wrong.add("t", "exp_avg", {{0, 1}, {2, 2}}, masters.data());
  EXPECT_THROW(wrong.commit({}), BugError);
}

TEST(Checkpoint, MisuseIsABug) {
  const TempFolder folder;
  const std::vector<Piece> pieces = {{"t", "master", {4}, mesh::whole({4})}};
  SingleRank alone;
  CheckpointWriter writer({.output_dir = folder.path(), .step = 1}, pieces, alone);
  const std::vector<float> zeros(4);
  EXPECT_THROW(writer.add("t", "exp_avg", mesh::whole({4}), zeros.data()), BugError);
  EXPECT_THROW(writer.commit({}), BugError);
}

TEST(Checkpoint, IncludedFilesAreProtectedToo) {
  const TempFolder folder;
  SingleRank alone;
  const std::vector<Piece> pieces = {{"t", "master", {4}, mesh::whole({4})}};
  const std::vector<float> zeros(4);
  CheckpointWriter writer({.output_dir = folder.path(), .step = 3}, pieces, alone);
  writer.add("t", "master", mesh::whole({4}), zeros.data());
  write_new_file(writer.folder() / "config.json", "{}");
  writer.include(record_of("config.json", "{}"));
  const SaveResult result = writer.commit({});
  EXPECT_EQ(result.folder, folder / "checkpoint-3");
  EXPECT_TRUE(verify_report(result.folder).good);
  std::ofstream(result.folder / "config.json") << "[]";
  EXPECT_NE(verify_report(result.folder).text.find("config.json is damaged"), std::string::npos);
}

TEST(Checkpoint, RotationKeepsTheNewest) {
  const TempFolder folder;
  make_folders(folder / "checkpoint-2");  // of another tool: no manifest
  for (const int64_t step : {1, 3, 10}) {
    ASSERT_EQ(
        save_on_threads({.output_dir = folder.path(), .step = step, .save_total_limit = 2}, 2),
        no_errors(2));
  }
  EXPECT_EQ(names_of(list_folders(folder.path())),
            (Names{"checkpoint-10", "checkpoint-3", "checkpoint-2"}));
}

TEST(Checkpoint, RunResumedFromAnEarlierStepKeepsItsOwnCheckpoints) {
  const TempFolder folder;
  for (const int64_t step : {5, 10, 20}) {
    ASSERT_EQ(save_on_threads({.output_dir = folder.path(), .step = step}, 1), no_errors(1));
  }
  // Resumed from 5: the next save is 6, and 10 and 20 are another future.
  ASSERT_EQ(save_on_threads({.output_dir = folder.path(), .step = 6}, 1), no_errors(1));
  EXPECT_EQ(names_of(list_folders(folder.path())),
            (Names{"checkpoint-6", "checkpoint-5", "checkpoint-20", "checkpoint-10"}));
  SingleRank alone;
  EXPECT_EQ(find_newest(folder.path(), alone)->folder.filename(), "checkpoint-6");
  ASSERT_EQ(save_on_threads({.output_dir = folder.path(), .step = 7, .save_total_limit = 3}, 1),
            no_errors(1));
  EXPECT_EQ(names_of(list_folders(folder.path())),
            (Names{"checkpoint-7", "checkpoint-6", "checkpoint-5"}));
}

/// A second run in one folder: what the first saved is neither taken nor removed.
TEST(Checkpoint, RunsKeepApart) {
  const TempFolder folder;
  SingleRank alone;
  const auto save = [&](const std::string& run, int64_t step, int64_t limit = 0) {
    ASSERT_EQ(
        save_on_threads(
            {.output_dir = folder.path(), .step = step, .run = run, .save_total_limit = limit}, 2),
        no_errors(2));
  };
  begin_run(folder.path(), "first");
  save("first", 3);
  save("first", 6);
  begin_run(folder.path(), "second");
  EXPECT_EQ(find_newest(folder.path(), alone), std::nullopt) << "the second has saved none yet";
  save("second", 4, 1);
  save("second", 5, 1);
  EXPECT_EQ(names_of(list_folders(folder.path())),
            (Names{"checkpoint-5", "checkpoint-3", "checkpoint-6"}));
  EXPECT_EQ(names_of(folders_of_run(folder.path(), "second")), (Names{"checkpoint-5"}));
  EXPECT_EQ(names_of(folders_of_other_runs(folder.path(), "second")),
            (Names{"checkpoint-3", "checkpoint-6"}));
  EXPECT_NE(list_report(folder.path()).text.find("complete, of another run"), std::string::npos);

  // A damaged one of the second is not replaced by one of the first.
  const auto file = folder / "checkpoint-5" / "rank-00001-of-00002.safetensors";
  const std::string bytes = read_text_file(file, 1 << 20);
  replace_file(file, bytes + "x");
  EXPECT_NE(message_of<DataError>([&] {
              find_newest(folder.path(), alone);
            }).find("no checkpoint can be used: checkpoint-5 skipped"),
            std::string::npos);
  replace_file(file, bytes);

  // The same step: the first run's gives way, and can still be named.
  save("second", 6, 1);
  EXPECT_EQ(find_newest(folder.path(), alone)->manifest.run, "second");
  EXPECT_EQ(sample_difference(folder / "checkpoint-6-of-first"), "");
  EXPECT_EQ(open_named(folder / "checkpoint-6-of-first", "x", alone).manifest.run, "first");
  EXPECT_EQ(find_of_run(folder.path(), "first", 6), folder / "checkpoint-6-of-first");
  EXPECT_EQ(find_of_run(folder.path(), "first", 3), folder / "checkpoint-3");
  EXPECT_EQ(find_of_run(folder.path(), "second", 6), folder / "checkpoint-6");
  EXPECT_EQ(find_of_run(folder.path(), "second", 3), "");
  EXPECT_NE(list_report(folder.path()).text.find("checkpoint-6-of-first"), std::string::npos);
  EXPECT_NE(verify_report(folder.path()).text.find("checkpoint-6-of-first: "), std::string::npos);
  save("second", 6, 1);
  EXPECT_EQ(list_folder(folder.path()).size(), 5u)
      << "checkpoint-3, checkpoint-6, checkpoint-6-of-first, latest, run_id";

  // Without the file, as in a folder that somebody copied: the newest one's.
  remove_tree(folder / "run_id");
  EXPECT_EQ(current_run(folder.path()), "second");
}

/// Manifests of large worlds are long, and a save must not pay for those of all earlier ones.
TEST(Checkpoint, RotationReadsEachManifestOnce) {
  const TempFolder folder;
  KnownRuns known;
  const auto save = [&](const std::string& run, int64_t step) {
    SaveRequest request{
        .output_dir = folder.path(), .step = step, .run = run, .save_total_limit = 3};
    if (run == "mine") request.known_runs = &known;
    ASSERT_EQ(save_on_threads(request, 1), no_errors(1));
  };
  save("other", 1);
  save("mine", 2);
  EXPECT_EQ(known.manifests_read(), 2);
  for (const int64_t step : {3, 4, 5}) save("mine", step);
  EXPECT_EQ(known.manifests_read(), 5) << "one new one a save";
  EXPECT_EQ(names_of(list_folders(folder.path())),
            (Names{"checkpoint-5", "checkpoint-4", "checkpoint-3", "checkpoint-1"}));

  // What changes behind its back is seen: one saved again, one that became another run's, one that
  // is gone.
  save("mine", 5);
  EXPECT_EQ(known.manifests_read(), 6);
  Manifest manifest = read_manifest(folder / "checkpoint-3");
  manifest.run = "other";
  replace_file(folder / "checkpoint-3" / kManifestName, format_manifest(manifest));
  remove_tree(folder / "checkpoint-4");
  for (const int64_t step : {6, 7, 8}) save("mine", step);
  EXPECT_EQ(known.manifests_read(), 10);
  EXPECT_EQ(
      names_of(list_folders(folder.path())),
      (Names{"checkpoint-8", "checkpoint-7", "checkpoint-6", "checkpoint-3", "checkpoint-1"}));
}

/// `latest` says nothing about a run that did not write it.
TEST(Checkpoint, ResumingARunByNameLeavesTheOrderToItsOwn) {
  const TempFolder folder;
  SingleRank alone;
  const auto save = [&](const std::string& run, int64_t step) {
    ASSERT_EQ(save_on_threads({.output_dir = folder.path(), .step = step, .run = run}, 1),
              no_errors(1));
  };
  for (const int64_t step : {2, 4, 6, 8}) save("first", step);
  begin_run(folder.path(), "second");
  save("second", 5);
  begin_run(folder.path(), "first");  // from checkpoint-8, and nothing saved since
  EXPECT_EQ(find_newest(folder.path(), alone)->folder.filename(), "checkpoint-8");
  EXPECT_EQ(names_of(folders_of_run(folder.path(), "first")),
            (Names{"checkpoint-8", "checkpoint-6", "checkpoint-4", "checkpoint-2"}));
}

TEST(Checkpoint, SavingAStepAgainReplacesIt) {
  const TempFolder folder;
  const SaveRequest request{.output_dir = folder.path(), .step = 4};
  ASSERT_EQ(save_on_threads(request, 3), no_errors(3));
  ASSERT_EQ(save_on_threads(request, 2), no_errors(2));
  EXPECT_EQ(sample_difference(folder / "checkpoint-4"), "");
  EXPECT_EQ(CheckpointReader(folder / "checkpoint-4").manifest().world_size, 2);
  EXPECT_EQ(list_folder(folder.path()).size(), 2u) << "checkpoint-4 and latest";
}

TEST(Checkpoint, PointerMayBeAbsentOrWrong) {
  const TempFolder folder;
  for (const int64_t step : {1, 2}) {
    ASSERT_EQ(save_on_threads({.output_dir = folder.path(), .step = step}, 1), no_errors(1));
  }
  for (const char* text : {"", "checkpoint-9\n", "../checkpoint-1", "checkpoint-01", "x"}) {
    replace_file(folder / "latest", text);
    EXPECT_EQ(names_of(list_folders(folder.path())), (Names{"checkpoint-2", "checkpoint-1"}));
  }
  replace_file(folder / "latest", "checkpoint-1");
  EXPECT_EQ(names_of(list_folders(folder.path())), (Names{"checkpoint-1", "checkpoint-2"}));
  remove_tree(folder / "latest");
  EXPECT_EQ(names_of(list_folders(folder.path())), (Names{"checkpoint-2", "checkpoint-1"}));
  EXPECT_TRUE(list_folders(folder / "absent").empty());
}

TEST(Checkpoint, NamedFolderThatIsNone) {
  const TempFolder folder;
  SingleRank alone;
  const std::string path = (folder / "checkpoint-1").string();
  const auto open = [&] { open_named(path, "resume_from_checkpoint", alone); };
  EXPECT_EQ(
      message_of<ConfigError>(open),
      "resume_from_checkpoint = " + path + ": there is no such folder; name a checkpoint-N folder");
  make_folders(path);
  EXPECT_NE(message_of<ConfigError>(open).find("holds no manifest.json"), std::string::npos);
  EXPECT_EQ(find_newest(folder.path(), alone), std::nullopt);
  EXPECT_EQ(find_newest(folder / "absent", alone), std::nullopt);
}

TEST(Checkpoint, ReportsListAndVerify) {
  const TempFolder folder;
  EXPECT_FALSE(verify_report(folder.path()).good);
  for (const int64_t step : {1, 2}) {
    ASSERT_EQ(save_on_threads({.output_dir = folder.path(), .step = step}, 2), no_errors(2));
  }
  make_folders(folder / "checkpoint-3");
  const Report list = list_report(folder.path());
  EXPECT_TRUE(list.good);
  EXPECT_NE(list.text.find("checkpoint-2"), std::string::npos) << list.text;
  EXPECT_NE(list.text.find("complete"), std::string::npos);
  EXPECT_NE(list.text.find("not a checkpoint of trireme"), std::string::npos);
  EXPECT_TRUE(verify_report(folder.path()).good) << verify_report(folder.path()).text;
  EXPECT_TRUE(verify_report(folder / "checkpoint-1").good);
  remove_tree(folder / "checkpoint-1" / "rank-00000-of-00002.safetensors");
  EXPECT_FALSE(verify_report(folder.path()).good);
  EXPECT_NE(verify_report(folder.path()).text.find("No such file"), std::string::npos);
  EXPECT_FALSE(list_report(folder.path()).good);
  EXPECT_NE(list_report(folder.path()).text.find("No such file"), std::string::npos);
}

TEST(Checkpoint, AListCallsNoCheckpointCompleteWhoseFilesAreShort) {
  const TempFolder folder;
  ASSERT_EQ(save_on_threads({.output_dir = folder.path(), .step = 1}, 2), no_errors(2));
  std::filesystem::resize_file(folder / "checkpoint-1" / "rank-00001-of-00002.safetensors", 10);
  const Report list = list_report(folder.path());
  EXPECT_FALSE(list.good);
  EXPECT_NE(list.text.find("has 10 bytes instead of"), std::string::npos) << list.text;
  EXPECT_EQ(list.text.find("complete"), std::string::npos) << list.text;
}

TEST(Coordinator, AgreementNamesTheFirstRankAndTellsAll) {
  const std::vector<std::string> errors = test::run_ranks(4, [](Coordinator& ranks) {
    agree(ranks, "nothing", "");
    agree(ranks, "saving", ranks.rank() == 1 || ranks.rank() == 3 ? "no room" : "");
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "saving: rank 1: no room (and 1 more ranks failed)");
  }
}

}  // namespace
}  // namespace trireme::checkpoint
