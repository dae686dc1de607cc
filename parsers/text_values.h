// Text in place of numbers and booleans, as pydantic reads it: DeepSpeed's checked sections convert it.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "engine/base/dtype.h"

namespace trireme {

// Sign, digits with single underscores between them, a zero fraction: " 12 ", "1_000", "12.0". No exponent.
std::optional<int64_t> IntegerFromText(std::string_view text);
std::optional<double> NumberFromText(std::string_view text);  // finite
// true t yes y on 1, false f no n off 0, in any letter case.
std::optional<bool> BooleanFromText(std::string_view text);
// An element type under any of DeepSpeed's names: "bf16", "bfloat16", "torch.bfloat16", "half" ...
std::optional<DType> DTypeFromText(std::string_view text);

}  // namespace trireme
