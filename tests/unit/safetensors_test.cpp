#include "model/safetensors.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <fstream>
#include <random>

#include "base/convert.h"
#include "base/error.h"
#include "base/json.h"
#include "model/hf_weights.h"
#include "support/temp_folder.h"

namespace trireme::model {
namespace {

using test::message_of;
using test::TempFolder;

std::string length_prefix(uint64_t length) {
  std::string prefix(8, '\0');
  std::memcpy(prefix.data(), &length, 8);
  return prefix;
}

void put(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::remove(path);  // overwriting would make some file systems wait for the disk
  std::ofstream(path, std::ios::binary) << bytes;
}

/// A file with this header and `data_bytes` zero bytes.
void put_header(const std::filesystem::path& path, const std::string& header, size_t data_bytes) {
  put(path, length_prefix(header.size()) + header + std::string(data_bytes, '\0'));
}

/// value(tensor, i): small integers, exact in every dtype.
float value_of(size_t tensor, int64_t i) {
  return static_cast<float>((static_cast<int64_t>(tensor) * 37 + i * 7) % 251) - 125.0f;
}

void put_tensors(const std::filesystem::path& path, const std::vector<TensorSpec>& specs) {
  std::string bytes = safetensors_header(specs, {});
  for (size_t t = 0; t < specs.size(); ++t) {
    const int64_t count = specs[t].bytes() / size_of(specs[t].dtype);
    std::vector<float> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = value_of(t, i);
    std::string data(static_cast<size_t>(specs[t].bytes()), '\0');
    convert_from_f32(specs[t].dtype, values.data(), count, data.data());
    bytes += data;
  }
  put(path, bytes);
}

std::string refusal(const std::filesystem::path& path) {
  return message_of<DataError>([&] { SafetensorsFile file(path); });
}

TEST(Safetensors, WritesWhatItReads) {
  const TempFolder folder;
  const std::vector<TensorSpec> specs = {{"a", DType::f32, {2, 3}},
                                         {"b \"quoted\"", DType::bf16, {5}},
                                         {"empty", DType::f16, {0, 4}},
                                         {"scalar", DType::f16, {}}};
  put_tensors(folder / "f", specs);
  const SafetensorsFile file(folder / "f");
  ASSERT_EQ(file.tensors().size(), 4u);
  for (const TensorSpec& spec : specs) {
    const TensorInfo* info = file.find(spec.name);
    ASSERT_NE(info, nullptr);
    EXPECT_EQ(info->dtype, spec.dtype);
    EXPECT_EQ(info->shape, spec.shape);
    EXPECT_EQ(info->bytes, spec.bytes());
  }
  EXPECT_EQ(file.find("a")->offset % 8, 0) << "data starts on a multiple of 8";
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_EQ(safetensors_header(specs, {{"step", "3"}}).find(R"({"__metadata__":{"format":"pt",)"),
            8u);
}

std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

const char* const kGood = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";

TEST(Safetensors, BrokenHeadersAreRefusedByName) {
  const TempFolder folder;
  const auto path = folder / "f";
  const auto refused = [&](const std::string& header, size_t data_bytes) {
    put_header(path, header, data_bytes);
    const std::string message = refusal(path);
    EXPECT_TRUE(message.starts_with(path.string())) << header << "\n" << message;
    return message;
  };
  const std::string good = kGood;
  put_header(path, "{\"t\":" + good + "}", 8);
  EXPECT_EQ(refusal(path), "");
  put_header(path, " \n{\"t\":" + good + "}  ", 8);
  EXPECT_EQ(refusal(path), "");
  EXPECT_NE(refused("{\"t\":" + good + ",\"t\":" + good + "}", 8).find("appears twice"),
            std::string::npos);
  EXPECT_NE(
      refused("{\"t\":" + good + "}", 7).find("tensor 't' ends at data byte 8, the file at 7"),
      std::string::npos);
  EXPECT_NE(refused("{\"t\":" + good + "}", 9).find("1 bytes after the last tensor"),
            std::string::npos);
  EXPECT_NE(refused("{\"t\":" + tensor("F32", "[3]", "[0,8]") + "}", 8)
                .find("tensor 't': its shape needs 12 bytes, its data_offsets span 8"),
            std::string::npos);
  EXPECT_NE(refused("{\"a\":" + good + ",\"b\":" + tensor("F32", "[2]", "[4,12]") + "}", 12)
                .find("tensor 'b' starts at data byte 4, before the end"),
            std::string::npos);
  EXPECT_NE(refused("{\"a\":" + good + ",\"b\":" + tensor("F32", "[2]", "[12,20]") + "}", 20)
                .find("tensor 'b' starts at data byte 12, after the end"),
            std::string::npos);
}

TEST(Safetensors, MalformedHeadersAreRefused) {
  const TempFolder folder;
  const auto path = folder / "f";
  const std::string good = kGood;
  for (const std::string& header :
       {std::string("[]"),
        std::string("5"),
        std::string("\"x\""),
        std::string(""),
        std::string("{"),
        std::string("{\"t\":5}"),
        std::string("{\"t\":\"F32\"}"),
        std::string("{\"t\":[1]}"),
        std::string("{\"t\":{}}"),
        "{\"t\":" + tensor("F33", "[2]", "[0,8]") + "}",
        "{\"t\":" + tensor("F32", "[2.0]", "[0,8]") + "}",
        "{\"t\":" + tensor("F32", "[-2]", "[0,8]") + "}",
        "{\"t\":" + tensor("F32", "[[2]]", "[0,8]") + "}",
        "{\"t\":" + tensor("F32", "[2]", "[8,0]") + "}",
        "{\"t\":" + tensor("F32", "[2]", "[0,8,8]") + "}",
        "{\"t\":" + tensor("F32", "[2]", "[0]") + "}",
        "{\"t\":" + tensor("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") + "}",
        "{\"t\":" + tensor("F32", "[4294967296,4294967296]", "[0,8]") + "}",
        "{\"t\":" + tensor("F32", "[18446744073709551615]", "[0,8]") + "}",
        "{\"t\":" + tensor("F32", "[2]", "[9223372036854775800,9223372036854775807]") + "}",
        std::string("{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}"),
        std::string("{\"t\":{\"dtype\":\"F32\",\"shape\":{\"a\":1},\"data_offsets\":[0,8]}}"),
        std::string("{\"t\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}"),
        std::string("{\"__metadata__\":5}"),
        std::string("{\"__metadata__\":{\"k\":1}}"),
        std::string("{\"__metadata__\":{\"k\":{}}}"),
        "{\"\":" + good + "}",
        "{\"a\\nb\":" + good + "}",
        "{\"" + std::string(513, 'n') + "\":" + good + "}",
        std::string("{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"),
        std::string(1000, '[')}) {
    put_header(path, header, 8);
    EXPECT_TRUE(refusal(path).starts_with(path.string())) << header;
  }
}

TEST(Safetensors, HeaderBombsEndQuickly) {
  const TempFolder folder;
  const auto path = folder / "f";
  put(path, length_prefix(uint64_t{1} << 63) + "{}");
  EXPECT_NE(refusal(path).find("a header of 9223372036854775808 bytes is announced"),
            std::string::npos);
  put(path, length_prefix(3) + "{}");
  EXPECT_NE(refusal(path), "");
  put(path, "1234567");
  EXPECT_NE(refusal(path), "");
  {  // announced and present, but sparse: more than the cap is not even read
    put(path, length_prefix(100'000'001));
    std::filesystem::resize_file(path, 200'000'000);
    EXPECT_NE(refusal(path).find("at most 100000000 are possible"), std::string::npos);
  }
  EXPECT_NE(message_of<DeviceError>([&] { SafetensorsFile file(folder / "absent"); }), "");
}

/// Any single changed byte of the header is refused or describes a file of the same bytes.
TEST(Safetensors, FlippedAndCutHeadersNeverCrash) {
  const TempFolder folder;
  put_tensors(folder / "f", {{"a", DType::f32, {2, 3}}, {"b", DType::bf16, {5}}});
  std::ifstream stream(folder / "f", std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(stream)), {});
  std::mt19937 random(5);
  int refused = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    std::string bad = good;
    if (trial % 4 == 0) {
      bad.resize(random() % bad.size());
    } else {
      bad[random() % (bad.size() - 34)] ^= static_cast<char>(1 << random() % 8);
    }
    put(folder / "bad", bad);
    refused += refusal(folder / "bad").empty() ? 0 : 1;
  }
  EXPECT_GT(refused, 1200);
}

class HfWeightsTest : public testing::Test {
 protected:
  void put_sharded() {
    put_tensors(folder_ / "model-00001-of-00002.safetensors", {{"a", DType::f32, {6, 8}}});
    put_tensors(folder_ / "model-00002-of-00002.safetensors",
                {{"b", DType::bf16, {4}}, {"c", DType::f16, {2, 2}}});
    put_index(R"({"metadata": {"total_size": 208}, "weight_map": {
      "a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors",
      "c": "model-00002-of-00002.safetensors"}})");
  }
  void put_index(const std::string& text) { put(folder_ / "model.safetensors.index.json", text); }
  std::string refusal() {
    return message_of<DataError>([&] { HfWeights weights(folder_.path()); });
  }
  TempFolder folder_;
};

TEST_F(HfWeightsTest, ReadsShards) {
  put_sharded();
  HfWeights weights(folder_.path());
  EXPECT_EQ(weights.tensors().size(), 3u);
  std::vector<float> c(4);
  weights.read_box("c", mesh::whole({2, 2}), c.data());
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(c[static_cast<size_t>(i)], value_of(1, i));
}

TEST_F(HfWeightsTest, HostileAndWrongIndexesAreRefused) {
  put_sharded();
  for (const char* name :
       {"../model.safetensors", "/etc/passwd", "x/model.safetensors", ".safetensors", "model.bin",
        "..", "", "a\\\\b.safetensors", "a\\nb.safetensors"}) {
    put_index(std::string(R"({"weight_map": {"a": ")") + name + "\"}}");
    EXPECT_NE(refusal().find("which is not the name of a .safetensors file"), std::string::npos)
        << name << "\n"
        << refusal();
  }
  for (const char* text : {"{}", "[]", R"({"weight_map": []})", R"({"weight_map": {}})",
                           R"({"weight_map": {"a": 5}})", "{"}) {
    put_index(text);
    EXPECT_NE(refusal(), "") << text;
  }
  put_index(R"({"weight_map": {"a": "model-00001-of-00002.safetensors",
                               "x": "model-00001-of-00002.safetensors"}})");
  EXPECT_NE(refusal().find("lists tensor 'x' in model-00001-of-00002.safetensors, where it is not"),
            std::string::npos);
  put_index(R"({"weight_map": {"b": "model-00002-of-00002.safetensors"}})");
  EXPECT_NE(refusal().find("tensor 'c' is not listed"), std::string::npos);
  put_tensors(folder_ / "model-00000.safetensors", {{"b", DType::f32, {4}}});
  put_index(R"({"weight_map": {"b": "model-00000.safetensors",
                               "c": "model-00002-of-00002.safetensors"}})");
  EXPECT_NE(refusal().find("tensor 'b' is also in"), std::string::npos) << refusal();
  put_index(R"({"weight_map": {"a": "absent.safetensors"}})");
  EXPECT_NE(refusal().find("names absent.safetensors, which is not in this folder"),
            std::string::npos);
}

TEST_F(HfWeightsTest, FolderWithoutWeightsSaysWhatItLooksFor) {
  EXPECT_NE(refusal().find("no model.safetensors and no model.safetensors.index.json"),
            std::string::npos);
  put(folder_ / "pytorch_model.bin", "x");
  EXPECT_NE(refusal().find("is not read"), std::string::npos);
}

TEST_F(HfWeightsTest, ComparesWithTheModel) {
  put_tensors(folder_ / "model.safetensors",
              {{"a", DType::f32, {2, 3}},
               {"b", DType::f32, {4}},
               {"lm_head.weight", DType::f32, {2}},
               {"model.layers.0.self_attn.rotary_emb.inv_freq", DType::f32, {2}}});
  const HfWeights weights(folder_.path());
  const std::vector<ExpectedTensor> good = {{"a", {2, 3}}, {"b", {4}}};
  const std::vector<std::string_view> tied = {"lm_head.weight"};
  weights.check_against(good, tied);
  const std::string extra = message_of<DataError>([&] { weights.check_against(good); });
  EXPECT_NE(extra.find("tensor 'lm_head.weight' (2) in"), std::string::npos) << extra;
  EXPECT_NE(extra.find("has no place in this model"), std::string::npos);
  const std::vector<ExpectedTensor> bad = {{"a", {3, 2}}, {"z", {4}}};
  const std::string message = message_of<DataError>([&] { weights.check_against(bad, tied); });
  EXPECT_NE(message.find("tensor 'a' in " + (folder_ / "model.safetensors").string() +
                         " has shape (2, 3) where config.json asks for (3, 2)"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("tensor 'z' (4) is missing"), std::string::npos);
  EXPECT_NE(message.find("tensor 'b' (4)"), std::string::npos);
}

TEST_F(HfWeightsTest, UnreadableDTypeIsNamed) {
  put_header(folder_ / "model.safetensors",
             R"({"a":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}})", 2);
  const HfWeights weights(folder_.path());
  const std::vector<ExpectedTensor> expected = {{"a", {2}}};
  EXPECT_NE(message_of<DataError>([&] { weights.check_against(expected); }).find("is F8_E4M3"),
            std::string::npos);
}

TEST_F(HfWeightsTest, AnyBoxIsReadExactlyAndCheaply) {
  std::mt19937 random(9);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random()) % n; };
  for (int trial = 0; trial < 24; ++trial) {
    const DType dtype = std::array{DType::f32, DType::bf16, DType::f16}[trial % 3];
    std::vector<int64_t> shape;
    for (int64_t d = below(4); d > 0; --d) shape.push_back(1 + below(40));
    put_tensors(folder_ / "model.safetensors", {{"first", DType::f32, {3}}, {"t", dtype, shape}});
    for (int boxes = 0; boxes < 20; ++boxes) {
      mesh::Box box;
      for (const int64_t dim : shape) {
        box.start.push_back(below(dim));
        box.extent.push_back(below(dim - box.start.back() + 1));
      }
      HfWeights weights(folder_.path());
      std::vector<float> out(static_cast<size_t>(box.size()) + 1, 999.0f);
      weights.read_box("t", box, out.data());
      for (const mesh::Run& run : mesh::copy_runs(mesh::whole(shape), box)) {
        for (int64_t i = 0; i < run.count; ++i) {
          ASSERT_EQ(out[static_cast<size_t>(run.to + i)], value_of(1, run.from + i));
        }
      }
      ASSERT_EQ(out.back(), 999.0f);
      ASSERT_LE(weights.bytes_read() * 20, box.size() * size_of(dtype) * 21);
    }
  }
}

TEST_F(HfWeightsTest, LargeTensorsGoThroughSmallStaging) {
  put_tensors(folder_ / "model.safetensors", {{"t", DType::bf16, {1500, 1000}}});
  HfWeights weights(folder_.path());
  const mesh::Box box{{3, 5}, {1490, 990}};  // gaps of 10 beside runs of 990: worth reading over
  std::vector<float> out(static_cast<size_t>(box.size()));
  weights.read_box("t", box, out.data());
  for (int64_t r = 0; r < 1490; r += 97) {
    for (int64_t c = 0; c < 990; ++c) {
      ASSERT_EQ(out[static_cast<size_t>(r * 990 + c)], value_of(0, (r + 3) * 1000 + c + 5));
    }
  }
  EXPECT_LE(weights.bytes_read(), box.size() * 2 * 105 / 100);
  std::vector<float> all(1500 * 1000);
  weights.read_box("t", mesh::whole({1500, 1000}), all.data());
  for (int64_t i = 0; i < 1500 * 1000; i += 1013)
    ASSERT_EQ(all[static_cast<size_t>(i)], value_of(0, i));
}

}  // namespace
}  // namespace trireme::model
