// Chosen layouts, in which nearly every two values of two axes meet, train like one rank: in double precision for
// twelve steps, and some of them in single precision for fifty. docs/layouts.md has all layouts, and more in single
// precision (layout_table.cpp).
#include <gtest/gtest.h>

#include <map>

#include "tests/ranks/trainer/layouts.h"
#include "tests/ranks/trainer/trains_alike.h"

namespace trireme::test {
namespace {

const std::vector<Layout>& Chosen() {
  static const std::vector<Layout> layouts = CoveringLayouts(40);
  return layouts;
}

const std::vector<Layout>& Stable() {
  static const std::vector<Layout> layouts = StableLayouts(6);
  return layouts;
}

std::string StableName(const ::testing::TestParamInfo<size_t>& info) { return Name(Stable()[info.param]); }
std::string CaseName(const ::testing::TestParamInfo<size_t>& info) { return Name(Chosen()[info.param]); }

const Reference& OneRank(TinyModel model, bool sgd, bool fp64) {
  static std::map<std::tuple<TinyModel, bool, bool>, Reference> references;
  const auto key = std::tuple(model, sgd, fp64);
  if (!references.contains(key)) {
    TinyRun run = OneRankRun(model, sgd);
    run.fp64 = fp64;
    if (!fp64) run.steps = 50;
    references[key] = ReferenceOf(run);
  }
  return references[key];
}

TEST(Layouts, AreEnough) { EXPECT_GE(LegalLayouts().size(), 500u); }

class ChosenLayouts : public ::testing::TestWithParam<size_t> {};

TEST_P(ChosenLayouts, EqualOneRankInFp64) {
  const Layout layout = Chosen()[GetParam()];
  const bool sgd = GetParam() % 2 == 1;
  const Reference& one_rank = OneRank(layout.model, sgd, true);
  ExpectTrainsAlike(Train(RunOf(layout, one_rank.run)), one_rank.curve);
}

INSTANTIATE_TEST_SUITE_P(Fp64, ChosenLayouts, ::testing::Range<size_t>(0, Chosen().size()), CaseName);

class SinglePrecision : public ::testing::TestWithParam<size_t> {};

TEST_P(SinglePrecision, FollowsOneRankForFiftySteps) {
  const Layout layout = Stable()[GetParam()];
  const Reference& one_rank = OneRank(layout.model, false, false);
  const Curve got = Train(RunOf(layout, one_rank.run));
  ASSERT_EQ(got.losses.size(), 50u);
  ExpectTrainsAlike(got, one_rank.curve, kSinglePrecision);
}

INSTANTIATE_TEST_SUITE_P(Fp32, SinglePrecision, ::testing::Range<size_t>(0, Stable().size()), StableName);

}  // namespace
}  // namespace trireme::test
