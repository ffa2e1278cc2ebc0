#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "base/convert.h"
#include "base/error.h"
#include "base/file.h"
#include "support/temp_folder.h"

namespace trireme {
namespace {

using test::message_of;
using test::TempFolder;

TEST(FileTest, WritesAndReadsRanges) {
  const TempFolder folder;
  const auto path = folder / "f";
  File file = File::create(path);
  file.write_at("hello world", 11, 0);
  file.write_at("HELLO", 5, 0);
  file.sync();
  file.close();
  const File read = File::open(path);
  EXPECT_EQ(read.size(), 11);
  std::string part(5, ' ');
  read.read_at(part.data(), 5, 3);
  EXPECT_EQ(part, "LO wo");
  EXPECT_EQ(read_text_file(path, 11), "HELLO world");
}

TEST(FileTest, ErrorsNameCallAndPath) {
  const TempFolder folder;
  const std::string path = (folder / "f").string();
  EXPECT_EQ(message_of<DeviceError>([&] { File::open(path); }),
            "open('" + path + "'): No such file or directory");
  write_new_file(path, "abc");
  EXPECT_EQ(message_of<DeviceError>([&] { write_new_file(path, "abc"); }),
            "open('" + path + "'): File exists");
  EXPECT_EQ(message_of<DataError>([&] {
              std::string out(9, ' ');
              File::open(path).read_at(out.data(), 9, 1);
            }),
            path + ": the file ends at byte 3 but 9 bytes from byte 1 were needed (truncated?)");
  EXPECT_EQ(message_of<DataError>([&] { read_text_file(path, 2); }),
            path + ": 3 B, more than the 2 B allowed for such a file");
  EXPECT_NE(message_of<DataError>([&] { File::open(folder.path()); }), "");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_NE(message_of<DataError>([&] { File::open(folder / "pipe"); }), "");
}

TEST(FileTest, FullDeviceIsAnError) {
  // /dev/full accepts an open and refuses every byte.
  const TempFolder folder;
  EXPECT_NE(message_of<DeviceError>([&] { replace_file("/dev/full/x", "abc"); }), "");
}

TEST(FileTest, ReplaceLeavesNoTemporary) {
  const TempFolder folder;
  const auto path = folder / "latest";
  replace_file(path, "one");
  replace_file(path, "two");
  EXPECT_EQ(read_text_file(path, 100), "two");
  EXPECT_FALSE(std::filesystem::exists(folder / "latest.tmp"));
}

TEST(FileTest, RemoveTreeDoesNotFollowLinks) {
  const TempFolder folder;
  make_folders(folder / "a" / "b");
  make_folders(folder / "kept");
  write_new_file(folder / "kept" / "f", "x");
  std::filesystem::create_directory_symlink(folder / "kept", folder / "a" / "link");
  remove_tree(folder / "a");
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
  EXPECT_TRUE(std::filesystem::exists(folder / "kept" / "f"));
  remove_tree(folder / "absent");
  EXPECT_GT(free_bytes(folder.path()), 0);
}

TEST(Convert, EveryF16AndBf16) {
  std::vector<uint16_t> bits(65536);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  std::vector<float> halves(65536);
  std::vector<float> brains(65536);
  convert_to_f32(DType::f16, bits.data(), 65536, halves.data());
  convert_to_f32(DType::bf16, bits.data(), 65536, brains.data());
  std::vector<uint16_t> back(65536);
  convert_from_f32(DType::f16, halves.data(), 65536, back.data());
  std::vector<uint16_t> brains_back(65536);
  convert_from_f32(DType::bf16, brains.data(), 65536, brains_back.data());
  for (size_t i = 0; i < bits.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(halves[i]), std::bit_cast<uint32_t>(f32_from_f16(bits[i])));
    ASSERT_EQ(std::bit_cast<uint32_t>(brains[i]), static_cast<uint32_t>(i) << 16);
    if (std::isnan(halves[i])) {
      ASSERT_TRUE(std::isnan(f32_from_f16(back[i])));
    } else {
      ASSERT_EQ(back[i], bits[i]);
    }
    if (!std::isnan(brains[i])) {
      ASSERT_EQ(brains_back[i], bits[i]);
    }
  }
}

TEST(Convert, UnalignedBytes) {
  std::vector<std::byte> raw(9);
  const float value = 1.5f;
  convert_from_f32(DType::f32, &value, 1, raw.data() + 1);
  convert_from_f32(DType::bf16, &value, 1, raw.data() + 5);
  float read[2];
  convert_to_f32(DType::f32, raw.data() + 1, 1, &read[0]);
  convert_to_f32(DType::bf16, raw.data() + 5, 1, &read[1]);
  EXPECT_EQ(read[0], 1.5f);
  EXPECT_EQ(read[1], 1.5f);
}

}  // namespace
}  // namespace trireme
