#include "checkpoint/tensor.h"

#include <fmt/core.h>

#include "engine/base/error.h"

namespace trireme::checkpoint {
namespace {

bool Inside(std::span<const int64_t> shape, const Box& box) {
  if (box.begin.size() != shape.size() || box.extent.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (box.begin[d] < 0 || box.extent[d] < 0 || box.begin[d] > shape[d] || box.extent[d] > shape[d] - box.begin[d]) {
      return false;
    }
  }
  return true;
}

}  // namespace

const StateInfo* TensorInfo::FindState(std::string_view state) const {
  for (const StateInfo& info : states) {
    if (info.name == state) return &info;
  }
  return nullptr;
}

std::optional<int64_t> CheckedNumel(std::span<const int64_t> shape) {
  if (shape.size() > kMaxDims) return std::nullopt;
  constexpr int64_t kLimit = int64_t{1} << 62;
  int64_t count = 1;
  bool empty = false;
  for (const int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    if (extent == 0) {
      empty = true;
    } else if (count > kLimit / extent) {
      return std::nullopt;
    } else {
      count *= extent;
    }
  }
  return empty ? 0 : count;
}

int64_t Numel(std::span<const int64_t> shape) {
  const std::optional<int64_t> count = CheckedNumel(shape);
  TRIREME_CHECK(count.has_value(), "shape " + ShapeText(shape));
  return *count;
}

std::string ShapeText(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t d = 0; d < shape.size(); ++d) text += fmt::format("{}{}", d == 0 ? "" : ", ", shape[d]);
  return text + "]";
}

std::optional<int64_t> CheckedVolume(std::span<const int64_t> shape, const Region& region) {
  const std::optional<int64_t> whole = CheckedNumel(shape);
  if (!whole || (region.order == Order::kTransposed && shape.size() < 2)) return std::nullopt;
  int64_t volume = region.boxes.empty() ? *whole : 0;
  for (const Box& box : region.boxes) {
    if (!Inside(shape, box)) return std::nullopt;
    const int64_t part = Numel(box.extent);
    if (part > *whole - volume) return std::nullopt;  // boxes of one region are disjoint
    volume += part;
  }
  if (region.flat_begin < 0 || region.flat_count < 0 || region.flat_begin > volume ||
      region.flat_count > volume - region.flat_begin) {
    return std::nullopt;
  }
  return volume;
}

}  // namespace trireme::checkpoint
