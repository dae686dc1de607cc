#include "launcher/port.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"

namespace trireme::launcher {
namespace {

TEST(Port, LCH_12_TwoJobsHoldTwoPorts) {
  const RendezvousPort first = ChoosePort(std::nullopt), second = ChoosePort(std::nullopt);
  EXPECT_GE(first.port(), 29500);
  EXPECT_GT(second.port(), first.port());
  EXPECT_TRUE(PortIsFree(second.port()));  // held against other jobs, not bound
}

TEST(Port, AskedPortOfAnotherJobIsRefusedAndFreeAfterIt) {
  int port = 0;
  {
    const RendezvousPort held = ChoosePort(0);
    port = held.port();
    try {
      ChoosePort(port);
      FAIL() << "took a port that is held";
    } catch (const Error& error) {
      EXPECT_EQ(error.id(), "LCH030");
      EXPECT_EQ(error.code(), ErrorCode::kEnvironment);
    }
  }
  EXPECT_EQ(ChoosePort(port).port(), port);
}

}  // namespace
}  // namespace trireme::launcher
