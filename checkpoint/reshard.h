// Boxes across shards: which elements of a stored slab a wanted region needs, and how to move them.
//
// Any range of a row-major box in d dims is at most 2d - 1 rectangles (a partial first row, full rows, a partial last
// row, and so on inwards). Stored slab and wanted region are both decomposed; each pair of rectangles that meet is one
// strided copy. Formats (native, safetensors, ...) differ only in the ByteSource that they bring.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/tensor.h"

namespace trireme::checkpoint {

using Dims = std::array<int64_t, kMaxDims>;

// Element begin + i of the tensor lies at offset + sum of i_d * stride_d elements.
struct Rect {
  int ndim = 0;
  Dims begin{}, extent{}, stride{};
  int64_t offset = 0;
};

// The rectangles of `region`, whose elements lie one after another from element `offset` on. The region must be a valid
// one of `shape` (CheckedVolume).
std::vector<Rect> Decompose(std::span<const int64_t> shape, const Region& region, int64_t offset);

// Moves extent[0] x ... elements from source_offset to target_offset (elements). Dims are ordered by falling source
// stride.
struct StridedCopy {
  int ndim = 0;
  Dims extent{}, source_stride{}, target_stride{};
  int64_t source_offset = 0, target_offset = 0;

  int64_t Elements() const;
};

// nullopt: the rectangles do not meet.
std::optional<StridedCopy> Intersect(const Rect& source, const Rect& target);

// `source` and `target` point to element 0 of either side; element_bytes is 1, 2, 4 or 8.
void RunCopy(const StridedCopy& copy, const std::byte* source, std::byte* target, int64_t element_bytes);

// Bytes of one stored dataset or file.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual void ReadBytes(int64_t begin, std::span<std::byte> out) const = 0;  // throws on error or a short file
};

// Copies into `out` (elements of `wanted`, in its order) what the slab `stored` holds of it; the slab begins at element
// `offset` of `source`. Returns the number of elements copied: over disjoint slabs that cover the tensor these add up
// to wanted.flat_count.
int64_t ReadIntersection(std::span<const int64_t> shape, const Region& stored, int64_t offset, const ByteSource& source,
                         const Region& wanted, std::span<std::byte> out, int64_t element_bytes);

// What is wrong with a set of slabs that should be disjoint and cover the tensor; "" if nothing is. The text names
// elements and slabs by their place in `slabs`, through `name`.
std::string CoverageProblem(std::span<const int64_t> shape, std::span<const Region> slabs,
                            const std::function<std::string(size_t)>& name);

}  // namespace trireme::checkpoint
