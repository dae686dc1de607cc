// Element types of Megatron token files, and their codes in the .idx header.
//   TokenType t = TokenTypeForVocab(50257);   // kUInt16
// Codes 1..5 mean the same everywhere; above that the writers differ: Megatron-LM says 6 = float64, 7 = float32, 8 =
// uint16, DeepSpeed's own data tools say 6 = uint16, 7 = uint32, 8 = uint64.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace trireme::data {

enum class TokenType : uint8_t { kUInt8, kInt8, kInt16, kInt32, kInt64, kUInt16, kUInt32, kUInt64 };
enum class CodeTable { kMegatron, kDeepSpeed };

int64_t SizeOf(TokenType type);         // bytes of one token
std::string_view Name(TokenType type);  // "uint16"
int64_t MaxId(TokenType type);          // largest id that a writer may store; kUInt64 and kInt64: 2^63 - 1
uint8_t MegatronCode(TokenType type);   // for kUInt32 and kUInt64, which Megatron lacks: throws Error{kInternal}
std::optional<TokenType> FromCode(uint8_t code, CodeTable table);  // nullopt: unknown, or a float type

// The writer's choice, Megatron-LM's rule: uint16 below 65500 ids, else int32.
TokenType TokenTypeForVocab(int64_t vocab_size);

}  // namespace trireme::data
