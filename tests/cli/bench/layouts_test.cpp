#include <gtest/gtest.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/cli/bench_layouts.h"

namespace trireme::cli {
namespace {

bool Has(const BenchCase& layout, const std::string& key) {
  return std::ranges::find(layout.keys, key) != layout.keys.end();
}

TEST(BenchLayouts, PartsAreKeys) {
  const std::vector<BenchCase> cases = CasesOf("dp2:tp2:sp:zero1, pp4:zero-bubble:mb3:cheap", 4);
  ASSERT_EQ(cases.size(), 2U);
  EXPECT_EQ(cases[0].name, "dp2:tp2:sp:zero1");
  for (const char* key : {"tensor_parallel.tp_size=2", "pipeline_parallel.pp_size=1", "trireme.sequence_parallel=true",
                          "zero_optimization.stage=1"}) {
    EXPECT_TRUE(Has(cases[0], key)) << key;
  }
  EXPECT_EQ(cases[1].micro_batch, 3);
  EXPECT_EQ(cases[1].pp, 4);
  EXPECT_TRUE(Has(cases[1], "trireme.pipeline.schedule=zero-bubble"));
  EXPECT_TRUE(Has(cases[1], "trireme.recompute=cheap"));
  EXPECT_TRUE(Has(CasesOf("dp2 gradient_clipping=0.5", 2).at(0), "gradient_clipping=0.5"));
}

TEST(BenchLayouts, WhatIsNoLayoutIsNamed) {
  for (const char* wrong : {"dp3", "tp3", "tp2:pp4", "dp2:quick", "tp", "tp0", " , "}) {
    try {
      CasesOf(wrong, 4);
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.id(), "BEN001") << wrong;
    }
  }
}

TEST(BenchLayouts, EachNumberOfRanksHasLayouts) {
  for (const int64_t ranks : {1, 2, 3, 4, 6, 8, 16}) EXPECT_GE(CasesOf("", ranks).size(), 3U) << ranks;
}

}  // namespace
}  // namespace trireme::cli
