// What the tests of a layout ask: the same training as on one rank, in double precision.
#pragma once
#include <gtest/gtest.h>

#include "tests/ranks/trainer/tiny_run.h"

namespace trireme::test {

struct Tolerance {
  double losses = 1e-12, norms = 1e-12, weights = 1e-12;
};
// Fifty steps of AdamW at a rate of 1e-3.
inline constexpr Tolerance kSinglePrecision{2e-6, 1e-5, 1e-5};

inline void ExpectTrainsAlike(const Curve& got, const Curve& want, const Tolerance& tolerance = {}) {
  ASSERT_EQ(want.failed, "");
  ASSERT_EQ(got.failed, "");
  EXPECT_LE(RelativeDifference(got.losses, want.losses), tolerance.losses);
  EXPECT_LE(RelativeDifference(got.norms, want.norms), tolerance.norms);
  EXPECT_LE(WeightDifference(got.weights, want.weights), tolerance.weights);
  EXPECT_TRUE(got.ranks_agree);
  EXPECT_TRUE(got.replicas_equal);
}

struct Reference {
  TinyRun run;
  Curve curve;
};

// AdamW is clipped at half of what the norm is at the start, so that clipping acts; SGD is not clipped.
inline Reference ReferenceOf(TinyRun run) {
  if (!run.sgd) {
    TinyRun first = run;
    first.steps = 1;
    run.clip = 0.5 * Train(first).norms.at(0);
  }
  return {run, Train(run)};
}

}  // namespace trireme::test
