// Learning rates of batches of another size, against the real DeepSpeed 0.19.8 (fixtures/oracle/rate_factors.py).
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

#include "engine/optim/lr_schedule.h"

namespace trireme {
namespace {

TEST(RateFactors, EqualDeepSpeeds) {
  const std::map<std::string, RateScaling> methods = {
      {"linear", RateScaling::kLinear}, {"sqrt", RateScaling::kSqrt}, {"none", RateScaling::kNone}};
  std::ifstream file(TRIREME_FIXTURES "/dynamic_batching/rates.txt");
  std::string method;
  int64_t base = 0, batch = 0;
  double rate = 0, scaled = 0;
  int rows = 0;
  for (; file >> method >> base >> batch >> rate >> scaled; ++rows) {
    EXPECT_NEAR(rate * RateFactor(methods.at(method), batch, base) / scaled, 1, 4e-16)
        << method << ": " << batch << " in place of " << base;
  }
  EXPECT_EQ(rows, 120);
}

}  // namespace
}  // namespace trireme
