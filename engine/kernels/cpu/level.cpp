#include "engine/kernels/cpu/vectors.h"
#include "engine/kernels/kernels.h"

namespace trireme::kernels {

bool HasAvx2() {
#ifdef TRIREME_KERNELS_AVX2
  static const bool has = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  return has;
#else
  return false;
#endif
}

bool HasAvx512() {
#ifdef TRIREME_KERNELS_AVX2
  static const bool has = HasAvx2() && __builtin_cpu_supports("avx512f") != 0 &&
                          __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
                          __builtin_cpu_supports("avx512vl") != 0;
  return has;
#else
  return false;
#endif
}

std::string_view CpuLevel() { return HasAvx512() ? "AVX-512" : (HasAvx2() ? "AVX2" : "plain code"); }

}  // namespace trireme::kernels
