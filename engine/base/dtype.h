// Element types of tensors, below and above the LibTorch line.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace trireme {

enum class DType : uint8_t { kFloat64, kFloat32, kBFloat16, kFloat16, kInt64, kInt32, kInt16, kInt8, kUInt8, kUInt16 };

int64_t SizeOf(DType dtype);                             // bytes of one element
std::string_view Name(DType dtype);                      // "fp32", "bf16", "int64", as DeepSpeed configs spell them
std::optional<DType> ParseDType(std::string_view text);  // also "float32", "bfloat16", "half"

uint16_t FloatToBFloat16(float value);  // round to nearest even; NaN stays NaN
float BFloat16ToFloat(uint16_t bits);

}  // namespace trireme
