#include "engine/base/dtype.h"

#include <bit>
#include <cmath>

namespace trireme {
namespace {

struct Entry {
  DType dtype;
  int64_t size;
  std::string_view name, alias;
};
constexpr Entry kEntries[] = {
    {DType::kFloat64, 8, "fp64", "float64"},   {DType::kFloat32, 4, "fp32", "float32"},
    {DType::kBFloat16, 2, "bf16", "bfloat16"}, {DType::kFloat16, 2, "fp16", "float16"},
    {DType::kInt64, 8, "int64", "long"},       {DType::kInt32, 4, "int32", "int"},
    {DType::kInt16, 2, "int16", "short"},      {DType::kInt8, 1, "int8", "char"},
    {DType::kUInt8, 1, "uint8", "byte"},       {DType::kUInt16, 2, "uint16", "ushort"},
};

}  // namespace

int64_t SizeOf(DType dtype) { return kEntries[static_cast<int>(dtype)].size; }

std::string_view Name(DType dtype) { return kEntries[static_cast<int>(dtype)].name; }

std::optional<DType> ParseDType(std::string_view text) {
  if (text == "half") return DType::kFloat16;
  if (text == "float") return DType::kFloat32;
  for (const Entry& entry : kEntries) {
    if (text == entry.name || text == entry.alias) return entry.dtype;
  }
  return std::nullopt;
}

uint16_t FloatToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

float BFloat16ToFloat(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

}  // namespace trireme
