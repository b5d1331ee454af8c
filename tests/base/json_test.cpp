#include "base/json.hpp"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

std::string nested(int depth) {
  return std::string(static_cast<std::size_t>(depth), '[') + std::string(static_cast<std::size_t>(depth), ']');
}

std::string object_with(int members) {
  std::string text = "{";
  for (int i = 0; i < members; ++i) text += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":" + std::to_string(i);
  return text + "}";
}

/// A random value with at most `budget` levels.
Json random_json(std::mt19937& random, int budget) {
  switch (random() % (budget > 0 ? 7 : 5)) {
    case 0:
      return nullptr;
    case 1:
      return random() % 2 == 0;
    case 2:
      return static_cast<std::int64_t>((std::uint64_t{random()} << 32) | random());
    case 3:
      return std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 200) - 100);
    case 4:
      return std::string(random() % 8, static_cast<char>('\x01' + random() % 126));
    case 5: {
      Json array = Json::array();
      for (unsigned i = random() % 4; i > 0; --i) array.push_back(random_json(random, budget - 1));
      return array;
    }
    default: {
      Json object = Json::object();
      for (unsigned i = random() % 4; i > 0; --i) object[std::to_string(random())] = random_json(random, budget - 1);
      return object;
    }
  }
}

TEST(Json, WhatIsWrittenIsRead) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Json value = random_json(random, 6);
    EXPECT_EQ(parse_json(value.dump(), "text").value(), value);
    EXPECT_EQ(Json(parse_ordered_json(value.dump(2), "text").value()), value);
  }
}

TEST(Json, OrderedKeepsTheOrder) {
  const OrderedJson value = parse_ordered_json(R"({"z":1,"a":{"y":2,"b":3}})", "text").value();
  EXPECT_EQ(value.dump(), R"({"z":1,"a":{"y":2,"b":3}})");
}

TEST(Json, SyntaxErrorsSayWhere) {
  const auto wrong = parse_json("{\n  \"a\": ?\n}", "config.json");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().kind, ErrorKind::Invalid);
  EXPECT_TRUE(wrong.error().message.starts_with("config.json: not valid JSON: parse error at line 2, column 8"))
      << wrong.error().message;
  for (const char* text : {"", " ", "{", "[1,]", "1 2", "'a'", "nul", "1e999", "\"\xff\"", "\"\\ud800\"", "{\"a\":1,}",
                           "// c\n1", "NaN"}) {
    SCOPED_TRACE(text);
    EXPECT_EQ(parse_json(text, "x").error().kind, ErrorKind::Invalid);
    EXPECT_EQ(parse_ordered_json(text, "x").error().kind, ErrorKind::Invalid);
  }
  using namespace std::string_view_literals;
  for (const std::string_view text : {"1\0"sv, "\0"sv, "[1]\0]"sv, "{}\0{}"sv}) {
    EXPECT_EQ(parse_json(text, "x").error().kind, ErrorKind::Invalid);
    EXPECT_EQ(parse_ordered_json(text, "x").error().kind, ErrorKind::Invalid);
  }
}

TEST(Json, MessagesAreShortAndPrintable) {
  const std::string text = "\"" + std::string(1 << 20, '\x80');
  const std::string message = parse_json(text, "x").error().message;
  EXPECT_LT(message.size(), 300U);
  for (const char c : message) EXPECT_TRUE(c >= ' ' && c <= '~');
}

TEST(Json, DepthLimitIsExactForArraysAndObjects) {
  JsonLimits limits;
  limits.max_depth = 5;
  EXPECT_TRUE(parse_json(nested(5), "x", limits));
  EXPECT_TRUE(parse_json("[[[[[1]]]]]", "x", limits));
  EXPECT_EQ(parse_json(nested(6), "x", limits).error().kind, ErrorKind::Limit);
  EXPECT_TRUE(parse_json(R"({"a":{"a":{"a":{"a":{"a":1}}}}})", "x", limits));
  EXPECT_FALSE(parse_json(R"({"a":{"a":{"a":{"a":{"a":{}}}}}})", "x", limits));
  limits.max_depth = 0;
  EXPECT_TRUE(parse_json("7", "x", limits));
  EXPECT_FALSE(parse_json("[]", "x", limits));
}

TEST(Json, HostileNestingNeitherRecursesNorHangs) {
  const int depth = 2'000'000;
  EXPECT_EQ(parse_json(nested(depth), "x").error().kind, ErrorKind::Limit);
  std::string objects;
  for (int i = 0; i < depth; ++i) objects += "{\"\":";
  EXPECT_EQ(parse_json(objects, "x").error().kind, ErrorKind::Limit);
}

TEST(Json, ManySmallObjectsTakeLinearTime) {
  // Quadratic work would take minutes here, so a regression shows as the test's time limit.
  std::string text = "[{}";
  for (int i = 0; i < 400'000; ++i) text += ",{}";
  EXPECT_EQ(parse_json(text + "]", "x").value().size(), 400'001U);
  EXPECT_EQ(parse_ordered_json(text + "]", "x").value().size(), 400'001U);
}

TEST(Json, SizeAndMemberLimits) {
  JsonLimits limits;
  limits.max_bytes = 4;
  EXPECT_TRUE(parse_json("1234", "x", limits));
  EXPECT_EQ(parse_json("12345", "x", limits).error().kind, ErrorKind::Limit);
  EXPECT_TRUE(parse_ordered_json(object_with(1024), "x"));
  EXPECT_EQ(parse_ordered_json(object_with(1025), "x").error().kind, ErrorKind::Limit);
  EXPECT_EQ(parse_json(object_with(5000), "x").value().size(), 5000U);
}

TEST(Json, DuplicateKeysAreFoundOnlyWithinOneObject) {
  JsonLimits limits;
  limits.unique_keys = true;
  EXPECT_TRUE(parse_json(R"({"a":{"a":1},"b":[{"a":1},{"a":2}]})", "x", limits));
  for (const char* text : {R"({"a":1,"a":1})", R"({"b":[{"k":1,"c":{},"k":2}]})", R"({"a":{"x":{}},"\u0061":1})"}) {
    SCOPED_TRACE(text);
    const auto wrong = parse_json(text, "x", limits);
    ASSERT_FALSE(wrong);
    EXPECT_EQ(wrong.error().kind, ErrorKind::Invalid);
    EXPECT_NE(wrong.error().message.find("appears twice"), std::string::npos);
    EXPECT_TRUE(parse_json(text, "x")) << "allowed unless asked for";
  }
}

TEST(Json, TypedFields) {
  const Json object = Json::parse(
      R"({"int":-5,"max":9223372036854775807,"big":9223372036854775808,"half":0.5,"text":"t","yes":true,"null":null})");
  EXPECT_EQ(json_integer(object, "int", "o").value(), -5);
  EXPECT_EQ(json_integer(object, "max", "o").value(), INT64_MAX);
  EXPECT_EQ(json_integer(object, "big", "o").error().kind, ErrorKind::Invalid);
  EXPECT_EQ(json_integer(object, "half", "o").error().kind, ErrorKind::Invalid);
  EXPECT_EQ(json_integer(object, "yes", "o").error().kind, ErrorKind::Invalid);
  EXPECT_EQ(json_number(object, "half", "o").value(), 0.5);
  EXPECT_EQ(json_number(object, "int", "o").value(), -5.0);
  EXPECT_EQ(json_number(object, "text", "o").error().kind, ErrorKind::Invalid);
  EXPECT_EQ(json_string(object, "text", "o").value(), "t");
  EXPECT_EQ(json_string(object, "null", "o").error().kind, ErrorKind::Invalid);
  EXPECT_EQ(json_bool(object, "yes", "o").value(), true);
  EXPECT_EQ(json_bool(object, "int", "o").error().kind, ErrorKind::Invalid);
  EXPECT_EQ(json_bool(object, "missing", "o").error().message, "o: field 'missing' is missing");
  EXPECT_EQ(json_bool(object, "missing", "o").error().kind, ErrorKind::NotFound);
  EXPECT_EQ(json_bool(Json::array(), "missing", "o").error().kind, ErrorKind::Invalid);
}

TEST(Json, ValuesOfEveryKindCount) {
  JsonLimits limits;
  limits.max_values = 6;
  EXPECT_TRUE(parse_json(R"([1, "a", {"b": null}, 1.5])", "six", limits));
  for (const char* text :
       {R"([1, "a", {"b": null}, 1.5, true])", "[[[[[[[]]]]]]]", "[0,0,0,0,0,0]", R"(["","","","","",""])"}) {
    const auto many = parse_json(text, "seven", limits);
    ASSERT_FALSE(many) << text;
    EXPECT_EQ(many.error().kind, ErrorKind::Limit);
    EXPECT_EQ(many.error().message, "seven: JSON with more than 6 values");
  }
}

}  // namespace
}  // namespace lockstep
