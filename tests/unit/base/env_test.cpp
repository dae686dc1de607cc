// Typed reads of the environment.
#include "engine/base/env.h"

#include <cstdlib>
#include <optional>

#include <gtest/gtest.h>
#include "engine/base/error.h"

namespace trireme {
namespace {

constexpr const char* kName = "TRIREME_TEST_VARIABLE";

std::optional<int64_t> First(const char* value) {
  setenv(kName, value, 1);
  const auto first = env::FirstInteger(kName);
  unsetenv(kName);
  return first;
}

TEST(Env, FirstIntegerOfAList) {
  EXPECT_EQ(First("8"), 8);
  EXPECT_EQ(First("4,2"), 4);
  EXPECT_EQ(First(" 4 , 2"), 4);
  EXPECT_EQ(First("0"), 0);
  EXPECT_EQ(First("-1"), -1);
}

TEST(Env, ADefaultYieldsToWhatIsSet) {
  unsetenv(kName);
  env::SetDefault(kName, "32");
  EXPECT_EQ(env::Integer(kName), 32);
  env::SetDefault(kName, "8");
  EXPECT_EQ(env::Integer(kName), 32);
  unsetenv(kName);
}

TEST(Env, FirstIntegerOfSomethingElseIsNone) {
  unsetenv(kName);
  EXPECT_EQ(env::FirstInteger(kName), std::nullopt);
  for (const char* value : {"", " ", "four", ",2", "4x", "4 2", "99999999999999999999"})
    EXPECT_EQ(First(value), std::nullopt) << value;
}

TEST(Env, IntegerNamesTheVariableAndItsValue) {
  setenv(kName, "4,2", 1);
  try {
    env::Integer(kName);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.id(), "ENV001");
    EXPECT_NE(std::string(error.what()).find("'4,2'"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find(kName), std::string::npos);
  }
  unsetenv(kName);
}

}  // namespace
}  // namespace trireme
