#include "base/sha256.hpp"

#include <random>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

// The examples of FIPS 180-4's test vectors.
TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesGiveTheSameAsTheWhole) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string text(random() % 1000, '\0');
    for (char& c : text) c = static_cast<char>(random());
    Sha256 hash;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = std::min<std::size_t>(random() % 130, text.size() - at);
      hash.update(std::string_view(text).substr(at, size));
      at += size;
    }
    Sha256 moved = std::move(hash);
    EXPECT_EQ(moved.hex(), sha256_hex(text));
  }
}

}  // namespace
}  // namespace lockstep
