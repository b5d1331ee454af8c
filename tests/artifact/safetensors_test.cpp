#include "artifact/safetensors.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "scratch.hpp"

namespace lockstep::artifact {
namespace {

std::string encode(std::string_view header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  return file.append(header).append(std::string(data_bytes, 'x'));
}

Result<SafetensorsHeader> parse(std::string_view file) {
  return parse_safetensors(std::as_bytes(std::span(file.data(), file.size())), "t.safetensors");
}

constexpr std::string_view kGood =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})";

TEST(Safetensors, ReadsWhatIsThere) {
  const auto header = parse(encode(kGood, 32));
  ASSERT_TRUE(header) << header.error().message;
  ASSERT_EQ(header->tensors.size(), 2U);
  EXPECT_EQ(header->metadata.at("format"), "pt");
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[0].dtype, DType::F32);
  EXPECT_EQ(header->tensors[0].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(header->tensors[0].offset, 8 + kGood.size());
  EXPECT_EQ(header->tensors[1].offset, 8 + kGood.size() + 24);
  EXPECT_EQ(header->tensors[1].bytes, 8U);
}

TEST(Safetensors, ScalarsAndEmptyTensors) {
  const auto header = parse(encode(R"({"s":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
                                   R"("e":{"dtype":"F32","shape":[0,5],"data_offsets":[8,8]}}   )",
                                   8));
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header->tensors[0].bytes, 0U);
  EXPECT_EQ(header->tensors[1].bytes, 8U);
}

struct Lie {
  const char* name;
  const char* header;
  std::size_t data;
  const char* message;  // must be part of the error
};

class SafetensorsLies : public testing::TestWithParam<Lie> {};

TEST_P(SafetensorsLies, IsRefusedWithFileAndReason) {
  const auto header = parse(encode(GetParam().header, GetParam().data));
  ASSERT_FALSE(header);
  EXPECT_NE(header.error().message.find("t.safetensors"), std::string::npos) << header.error().message;
  EXPECT_NE(header.error().message.find(GetParam().message), std::string::npos) << header.error().message;
}

#define A(fields) "{\"a\":{" fields "}}"
INSTANTIATE_TEST_SUITE_P(
    All, SafetensorsLies,
    testing::Values(
        Lie{"NotAnObject", "[]", 0, "not a JSON object"}, Lie{"LeadingBlank", " {}", 0, "not a JSON object"},
        Lie{"EmptyHeader", "", 0, "not a JSON object"}, Lie{"BrokenJson", R"({"a":)", 0, "not valid JSON"},
        Lie{"TextBehind", R"({} {})", 0, "not valid JSON"}, Lie{"BadUtf8", "{\"\xff\":{}}", 0, "not valid JSON"},
        Lie{"ValueIsNumber", R"({"a":1})", 0, "where none may be"},
        Lie{"ValueIsNull", R"({"a":null})", 0, "a null where none may be"},
        Lie{"ValueIsArray", R"({"a":[1]})", 0, "an array where none may be"},
        Lie{"EmptyName", R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "empty"},
        Lie{"ControlCharacter", R"({"a\nb":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "control"},
        Lie{"TwiceTheName",
            R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
            2, "twice"},
        Lie{"TwiceMetadata", R"({"__metadata__":{},"__metadata__":{}})", 0, "twice"},
        Lie{"TwiceMetadataKey", R"({"__metadata__":{"k":"1","k":"2"}})", 0, "twice"},
        Lie{"MetadataNotText", R"({"__metadata__":{"k":1}})", 0, "where none may be"},
        Lie{"MetadataNested", R"({"__metadata__":{"k":{}}})", 0, "where none may be"},
        Lie{"TwiceAField", A(R"("dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1])"), 1, "twice"},
        Lie{"UnknownField", A(R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1)"), 1, "unknown field"},
        Lie{"UnknownType", A(R"("dtype":"F4","shape":[1],"data_offsets":[0,1])"), 1, "'F4' is not supported"},
        Lie{"TypeIsNumber", A(R"("dtype":8,"shape":[1],"data_offsets":[0,1])"), 1, "where none may be"},
        Lie{"NoType", A(R"("shape":[1],"data_offsets":[0,1])"), 1, "missing"},
        Lie{"NoShape", A(R"("dtype":"U8","data_offsets":[0,1])"), 1, "missing"},
        Lie{"NoOffsets", A(R"("dtype":"U8","shape":[1])"), 1, "missing"},
        Lie{"ShapeNested", A(R"("dtype":"U8","shape":[[1]],"data_offsets":[0,1])"), 1, "an array where none may be"},
        Lie{"ShapeIsNumber", A(R"("dtype":"U8","shape":1,"data_offsets":[0,1])"), 1, "where none may be"},
        Lie{"ShapeNegative", A(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])"), 1, "negative"},
        Lie{"ShapeFraction", A(R"("dtype":"U8","shape":[1.0],"data_offsets":[0,1])"), 1, "not an integer"},
        Lie{"ShapeHuge", A(R"("dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1])"), 1, "too large"},
        Lie{"ShapeOverflows", A(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0,
            "overflows"},
        Lie{"ShapeWraps", A(R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0])"), 0, "overflows"},
        Lie{"TooManyDimensions", A(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1])"), 1,
            "dimensions"},
        Lie{"ShapeTooSmall", A(R"("dtype":"F32","shape":[1],"data_offsets":[0,8])"), 8, "takes 4 bytes"},
        Lie{"ShapeTooLarge", A(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), 8, "takes 12 bytes"},
        Lie{"OffsetsBackwards", A(R"("dtype":"U8","shape":[1],"data_offsets":[1,0])"), 1, "backwards"},
        Lie{"OneOffset", A(R"("dtype":"U8","shape":[1],"data_offsets":[0])"), 1, "two numbers"},
        Lie{"ThreeOffsets", A(R"("dtype":"U8","shape":[1],"data_offsets":[0,1,2])"), 1, "more than two"},
        Lie{"OffsetNegative", A(R"("dtype":"U8","shape":[1],"data_offsets":[-1,0])"), 1, "negative"},
        Lie{"BeyondTheFile", A(R"("dtype":"U8","shape":[9],"data_offsets":[0,9])"), 8, "truncated"},
        Lie{"FarBeyondTheFile",
            A(R"("dtype":"U8","shape":[1],"data_offsets":[18446744073709551614,18446744073709551615])"), 8,
            "truncated"},
        Lie{"HoleAtTheStart", A(R"("dtype":"U8","shape":[1],"data_offsets":[1,2])"), 2, "hole"},
        Lie{"BytesBehind", A(R"("dtype":"U8","shape":[1],"data_offsets":[0,1])"), 2, "belong to none"},
        Lie{"Overlap",
            R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
            3, "overlaps"},
        Lie{"HoleBetween",
            R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
            3, "hole"},
        Lie{"SameRangeTwice",
            R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
            1, "overlaps"}),
    [](const testing::TestParamInfo<Lie>& lie) { return std::string(lie.param.name); });
#undef A

TEST(Safetensors, OnlySpacesMayFollowTheHeader) {
  EXPECT_TRUE(parse(encode(R"({})" + std::string(9, ' '), 0)));
  for (const std::string& tail : {std::string(1, '\0'), std::string("\0garbage\" : [ \xff", 15), std::string("\n"),
                                  std::string("  \t "), std::string("x"), std::string(" \0 ", 3)}) {
    const auto header = parse(encode("{}" + tail, 0));
    ASSERT_FALSE(header) << "tail of " << tail.size();
    EXPECT_TRUE(header.error().message.starts_with("t.safetensors: header")) << header.error().message;
  }
}

TEST(Safetensors, HeaderLengthLies) {
  const std::string good = encode(kGood, 32);
  for (const std::uint64_t length : {std::uint64_t{0}, std::uint64_t{1}, kGood.size() - 1, kGood.size() + 1,
                                     kGood.size() + 33, std::uint64_t{1} << 31, kMaxHeaderBytes, kMaxHeaderBytes + 1,
                                     std::uint64_t{1} << 63, ~std::uint64_t{0}, ~std::uint64_t{7}}) {
    SCOPED_TRACE(length);
    std::string file = good;
    std::memcpy(file.data(), &length, sizeof(length));
    EXPECT_FALSE(parse(file));
  }
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const std::string good = encode(kGood, 32);
  ASSERT_TRUE(parse(good));
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(parse(std::string_view(good).substr(0, size))) << size;
  }
}

TEST(Safetensors, ManyNestedArraysAreRefusedWithoutRecursion) {
  EXPECT_FALSE(parse(encode("{\"a\":" + std::string(1'000'000, '['), 0)));
}

TEST(Safetensors, WriterRoundTrip) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Scratch scratch;
    std::vector<SafetensorsWriter::Entry> entries;
    std::vector<std::string> contents;
    for (unsigned i = 0; i < 1 + random() % 12; ++i) {
      SafetensorsWriter::Entry entry{"tensor." + std::to_string(i), static_cast<DType>(random() % 8), {}};
      for (unsigned d = random() % 4; d > 0; --d) entry.shape.push_back(random() % 6);
      contents.emplace_back(*tensor_bytes(entry.dtype, entry.shape), '\0');
      for (char& byte : contents.back()) byte = static_cast<char>(random());
      entries.push_back(std::move(entry));
    }
    auto writer = SafetensorsWriter::create(scratch / "w.safetensors", entries, {{"format", "mlx"}});
    ASSERT_TRUE(writer) << writer.error().message;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const auto bytes = std::as_bytes(std::span(contents[i]));
      const std::size_t cut = bytes.empty() ? 0 : random() % bytes.size();
      ASSERT_TRUE(writer->append(entries[i].name, bytes.first(cut)));
      ASSERT_TRUE(writer->append(entries[i].name, bytes.subspan(cut)));
    }
    EXPECT_FALSE(std::filesystem::exists(scratch / "w.safetensors"));
    ASSERT_TRUE(writer->finish());
    EXPECT_EQ(std::filesystem::file_size(scratch / "w.safetensors"), writer->file_bytes());
    const auto file = SafetensorsFile::open(scratch / "w.safetensors");
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->metadata().at("format"), "mlx");
    ASSERT_EQ(file->tensors().size(), entries.size());
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const TensorInfo* tensor = file->find(entries[i].name);
      ASSERT_NE(tensor, nullptr);
      EXPECT_EQ(tensor->shape, entries[i].shape);
      EXPECT_EQ(tensor->offset % dtype_size(tensor->dtype), 0U);
      const auto data = file->data(*tensor);
      EXPECT_TRUE(std::equal(data.begin(), data.end(), std::as_bytes(std::span(contents[i])).begin()));
    }
  }
}

TEST(Safetensors, WriterRefusesLies) {
  const Scratch scratch;
  const auto path = scratch / "w.safetensors";
  using Entry = SafetensorsWriter::Entry;
  const std::vector<Entry> twice{{"a", DType::U8, {1}}, {"a", DType::U8, {2}}};
  EXPECT_FALSE(SafetensorsWriter::create(path, twice, {}));
  const std::vector<Entry> negative{{"a", DType::U8, {-1}}}, huge{{"a", DType::U8, {INT64_MAX, 4}}};
  EXPECT_FALSE(SafetensorsWriter::create(path, negative, {}));
  EXPECT_FALSE(SafetensorsWriter::create(path, huge, {}));
  const std::vector<Entry> one{{"a", DType::U8, {2}}};
  const std::string three(3, 'x');
  auto writer = SafetensorsWriter::create(path, one, {});
  ASSERT_TRUE(writer);
  EXPECT_FALSE(writer->append("b", {}));
  EXPECT_FALSE(writer->append("a", std::as_bytes(std::span(three))));
  EXPECT_TRUE(writer->append("a", std::as_bytes(std::span(three)).first(1)));
  EXPECT_FALSE(writer->finish());
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Safetensors, OpensTheGoldenFiles) {
  const auto file = SafetensorsFile::open(LOCKSTEP_TEST_DATA "/toy-hf/model.safetensors");
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_NE(file->find("lm_head.weight"), nullptr);
  EXPECT_EQ(file->find("lm_head.weight")->shape, (std::vector<std::int64_t>{512, 128}));
  EXPECT_EQ(file->find("lm_head"), nullptr);
  EXPECT_EQ(SafetensorsFile::open("/nonexistent/x.safetensors").error().kind, ErrorKind::NotFound);
}

}  // namespace
}  // namespace lockstep::artifact
