#include <limits>

#include "engine/kernels/inspect_rules.h"
#include "tests/unit/kernels/kernel_cases.h"

namespace trireme::kernels {
namespace {

class InspectTest : public KernelTest {
 protected:
  static int64_t Find(const at::Tensor& values) {
    const at::Tensor result = at::full({1}, kAllFinite, Options().dtype(at::kLong));
    FindNonFinite(values, result);
    return result.item<int64_t>();
  }
  static int64_t Sum(const at::Tensor& values) {
    const at::Tensor result = at::zeros({1}, Options().dtype(at::kLong));
    Checksum(values, result);
    return result.item<int64_t>();
  }
};

TEST_P(InspectTest, TheFirstValueThatIsNotFiniteIsFoundAndItsKind) {
  const at::Tensor values = Random({70'001});
  EXPECT_EQ(Find(values), kAllFinite);
  EXPECT_EQ(Find(values.narrow(0, 3, 0)), kAllFinite);
  values.narrow(0, 69'999, 1).fill_(NAN);
  EXPECT_EQ(Find(values), 2 * 69'999 + 1);
  values.narrow(0, 40'003, 1).fill_(-INFINITY);
  EXPECT_EQ(Find(values), 2 * 40'003);
  EXPECT_EQ(Find(values.narrow(0, 40'001, 7)), 2 * 2);
  values.narrow(0, 0, 1).fill_(-NAN);
  EXPECT_EQ(Find(values), 1);
  const double largest = Type() == at::kHalf ? 65504 : (Type() == at::kDouble ? 1e308 : 3e38);
  EXPECT_EQ(Find(at::full({17}, largest, Options().dtype(Type()))), kAllFinite);
}

TEST_P(InspectTest, AnEarlierFindingStays) {
  const at::Tensor result = at::full({1}, int64_t{4}, Options().dtype(at::kLong));
  FindNonFinite(at::full({9}, NAN, Options().dtype(Type())).narrow(0, 3, 6), result);
  EXPECT_EQ(result.item<int64_t>(), 1);
  FindNonFinite(Random({9}), result);
  EXPECT_EQ(result.item<int64_t>(), 1);
}

TEST_P(InspectTest, AChecksumTellsChangesAndOrder) {
  const at::Tensor values = Random({70'001}), same = values.clone();
  const int64_t sum = Sum(values);
  EXPECT_EQ(sum, Sum(same));
  EXPECT_EQ(sum, Sum(values));  // in any order of threads
  const at::Tensor bits = same.view(Type() == at::kDouble ? at::kLong : (Type() == at::kFloat ? at::kInt : at::kShort));
  for (const int64_t i : {0, 1, 35'000, 70'000}) {
    bits.narrow(0, i, 1).bitwise_xor_(1);
    EXPECT_NE(sum, Sum(same)) << i;
    bits.narrow(0, i, 1).bitwise_xor_(1);
  }
  EXPECT_EQ(sum, Sum(same));
  EXPECT_NE(Sum(values.narrow(0, 0, 10)), Sum(values.narrow(0, 0, 10).flip(0).contiguous()));
  EXPECT_NE(Sum(at::zeros({10}, Options().dtype(Type()))), Sum(at::zeros({11}, Options().dtype(Type()))));
}

TRIREME_INSTANTIATE_KERNEL_TEST(InspectTest);

}  // namespace
}  // namespace trireme::kernels
