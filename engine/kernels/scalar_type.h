// The element types of plans and files, as LibTorch names them.
#pragma once
#include <c10/core/ScalarType.h>

#include "engine/base/dtype.h"
#include "engine/base/error.h"

namespace trireme {

inline at::ScalarType ScalarTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return at::kDouble;
    case DType::kFloat32:
      return at::kFloat;
    case DType::kBFloat16:
      return at::kBFloat16;
    case DType::kFloat16:
      return at::kHalf;
    case DType::kInt64:
      return at::kLong;
    case DType::kInt32:
      return at::kInt;
    case DType::kInt16:
      return at::kShort;
    case DType::kInt8:
      return at::kChar;
    case DType::kUInt8:
      return at::kByte;
    case DType::kUInt16:
      return at::kUInt16;
  }
  TRIREME_CHECK(false, "a dtype without a LibTorch type");
}

}  // namespace trireme
