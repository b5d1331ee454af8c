#include "base/result.hpp"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

Result<int> half(int value) {
  if (value % 2 != 0) return fail(ErrorKind::Invalid, "{} is odd", value);
  return value / 2;
}

Result<int> quarter(int value) {
  const int once = LOCKSTEP_TRY(half(value));
  return LOCKSTEP_TRY(half(once));
}

TEST(Result, TryPassesValuesAndErrors) {
  EXPECT_EQ(quarter(8).value(), 2);
  EXPECT_EQ(quarter(6).error().message, "3 is odd");
  EXPECT_EQ(quarter(6).error().kind, ErrorKind::Invalid);
}

TEST(Result, ContextIsPrefixed) {
  const Status status = with_context(Error{ErrorKind::Io, "gone"}, "file.bin");
  EXPECT_EQ(status.error().message, "file.bin: gone");
}

}  // namespace
}  // namespace lockstep
