#include <gtest/gtest.h>

#include <cstdlib>

#include "engine/cli/gpu_utilisation.h"

namespace trireme::cli {
namespace {

// The stand-in's first GPU is busy for 80 % of the time, the second for 40 %.
TEST(GpuUtilisation, MeanOfTheDevicesThatTheRanksSee) {
  unsetenv("CUDA_VISIBLE_DEVICES");
  GpuUtilisation both(2, FAKE_NVML), first(1, FAKE_NVML);
  EXPECT_FALSE(both.Mean());
  for (int i = 0; i < 3; ++i) both.Sample();
  first.Sample();
  EXPECT_NEAR(both.Mean().value(), 0.6, 1e-12);
  EXPECT_DOUBLE_EQ(first.Mean().value(), 0.8);
  setenv("CUDA_VISIBLE_DEVICES", "1", 1);
  GpuUtilisation second(2, FAKE_NVML);
  second.Sample();
  EXPECT_DOUBLE_EQ(second.Mean().value(), 0.4);
}

TEST(GpuUtilisation, NothingWithoutTheLibraryOrDevices) {
  GpuUtilisation none(2, "libno-such-library.so"), cpu(0, FAKE_NVML);
  for (GpuUtilisation* of : {&none, &cpu}) {
    EXPECT_FALSE(of->available());
    of->Sample();
    EXPECT_FALSE(of->Mean());
  }
}

}  // namespace
}  // namespace trireme::cli
