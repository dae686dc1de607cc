// Element conversion between fp64, fp32, bf16 and fp16: each result is rounded once, to nearest even; NaN stays NaN and
// what is too large becomes infinite.
#pragma once
#include <cstddef>
#include <span>

#include "engine/base/dtype.h"

namespace trireme::checkpoint {

// Both spans hold the same number of elements and may be unaligned; they must not overlap. Equal types copy bytes, any
// type. Throws Error{kCheckpoint, CKP021} for a pair with an integer type.
void ConvertElements(DType source_dtype, DType target_dtype, std::span<const std::byte> source,
                     std::span<std::byte> target);

}  // namespace trireme::checkpoint
