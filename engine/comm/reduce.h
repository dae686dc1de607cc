// Sums and maxima of CPU buffers in a fixed order: what the Gloo and the in-process back ends share, so that they agree
// bitwise.
#pragma once
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/comm/communicator.h"

namespace trireme {

bool IsReducible(c10::ScalarType type);  // fp64, fp32, bf16, fp16, int64, int32

// out[k][i] = inputs[0][i] (op) inputs[1][i] (op) ..., from the left, for every k; in fp32 and rounded once for 16-bit
// floats. An output may be one of the inputs. No inputs: nothing happens. Pointers are to `count` elements of `type`.
void ReduceInOrder(c10::ScalarType type, ReduceOp op, std::span<const std::byte* const> inputs,
                   std::span<std::byte* const> outputs, int64_t count);

// Adds `amount` to one element; where rounding would hide that, the element changes its sign instead. Any dtype of
// whole bytes.
void ChangeElement(c10::ScalarType type, std::byte* data, int64_t index, double amount);

}  // namespace trireme
