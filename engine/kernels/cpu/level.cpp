#include "engine/kernels/cpu/vectors.h"

namespace trireme::kernels {

bool HasAvx2() {
#ifdef TRIREME_KERNELS_AVX2
  static const bool has = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  return has;
#else
  return false;
#endif
}

}  // namespace trireme::kernels
