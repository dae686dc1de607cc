#include "engine/data/token_type.h"

#include <limits>

#include "engine/base/error.h"

namespace trireme::data {
namespace {

struct TypeRow {
  std::string_view name;
  int64_t size;
  int64_t max_id;
  uint8_t megatron_code;  // 0: none
};

template <typename T>
constexpr TypeRow Row(std::string_view name, uint8_t code) {
  constexpr auto kMax = std::numeric_limits<T>::max();
  constexpr auto kLimit = std::numeric_limits<int64_t>::max();
  return {name, sizeof(T), sizeof(T) == 8 ? kLimit : static_cast<int64_t>(kMax), code};
}

constexpr TypeRow kTypes[] = {
    Row<uint8_t>("uint8", 1), Row<int8_t>("int8", 2),     Row<int16_t>("int16", 3),   Row<int32_t>("int32", 4),
    Row<int64_t>("int64", 5), Row<uint16_t>("uint16", 8), Row<uint32_t>("uint32", 0), Row<uint64_t>("uint64", 0),
};

const TypeRow& RowOf(TokenType type) { return kTypes[static_cast<size_t>(type)]; }

}  // namespace

int64_t SizeOf(TokenType type) { return RowOf(type).size; }
std::string_view Name(TokenType type) { return RowOf(type).name; }
int64_t MaxId(TokenType type) { return RowOf(type).max_id; }

uint8_t MegatronCode(TokenType type) {
  TRIREME_CHECK(RowOf(type).megatron_code != 0, "Megatron has no code for tokens of type " + std::string(Name(type)));
  return RowOf(type).megatron_code;
}

std::optional<TokenType> FromCode(uint8_t code, CodeTable table) {
  switch (code) {
    case 1:
      return TokenType::kUInt8;
    case 2:
      return TokenType::kInt8;
    case 3:
      return TokenType::kInt16;
    case 4:
      return TokenType::kInt32;
    case 5:
      return TokenType::kInt64;
    default:
      break;
  }
  if (table == CodeTable::kMegatron) return code == 8 ? std::optional(TokenType::kUInt16) : std::nullopt;
  switch (code) {
    case 6:
      return TokenType::kUInt16;
    case 7:
      return TokenType::kUInt32;
    case 8:
      return TokenType::kUInt64;
    default:
      return std::nullopt;
  }
}

TokenType TokenTypeForVocab(int64_t vocab_size) { return vocab_size < 65500 ? TokenType::kUInt16 : TokenType::kInt32; }

}  // namespace trireme::data
