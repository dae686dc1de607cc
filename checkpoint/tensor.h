// What a checkpoint speaks of: logical tensors, boxes of them, and the order in which the elements of a region lie in
// memory.
//
// A tensor is addressed by its name and a state: "model" (compute type), "master", "exp_avg", "exp_avg_sq", "momentum",
// ... Its shape is the logical one (whole, not cut, not padded); names and shapes are Hugging Face's. A region is a
// range of the concatenation of some boxes of that shape, each walked in row-major or in transposed order:
//   Region all{.flat_count = Numel(shape)};                                        // the whole tensor
//   Region shard{.flat_begin = 10, .flat_count = 7};                               // elements 10..16 of the flattened
//   tensor Region held{.flat_begin = 10, .flat_count = 7, .order = Order::kTransposed};   // the same positions of its
//   transpose
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/dtype.h"

namespace trireme::checkpoint {

inline constexpr int kMaxDims = 8;

struct Box {
  std::vector<int64_t> begin, extent;  // elements, one entry per dim
  bool operator==(const Box&) const = default;
};

// kTransposed: row-major order of the box with its last two dims exchanged (needs at least two dims).
enum class Order : uint8_t { kRowMajor = 0, kTransposed = 1 };

struct Region {
  std::vector<Box> boxes = {};  // in logical coordinates; empty: the whole tensor
  int64_t flat_begin = 0;       // range inside the concatenation of the boxes
  int64_t flat_count = 0;
  Order order = Order::kRowMajor;
  bool operator==(const Region&) const = default;
};

struct StateInfo {
  std::string name;
  DType dtype = DType::kFloat32;
};

struct TensorInfo {
  std::string name;
  DType dtype = DType::kFloat32;  // of the state "model" where it is stored, else of the first state
  std::vector<int64_t> shape;     // whole tensor, however it was cut on disk
  std::vector<StateInfo> states;  // what is stored of it, sorted by name

  const StateInfo* FindState(std::string_view state) const;  // nullptr: not stored
};

// Product of the extents; nullopt: a negative extent, more than kMaxDims dims, or more than 2^62 elements.
std::optional<int64_t> CheckedNumel(std::span<const int64_t> shape);
int64_t Numel(std::span<const int64_t> shape);  // for shapes known to be good

// "[3, 4]"
std::string ShapeText(std::span<const int64_t> shape);

// Elements that the boxes of `region` hold (whole tensor when it names none). nullopt: boxes outside `shape`, a
// range outside the boxes, or a transposed order of fewer than two dims.
std::optional<int64_t> CheckedVolume(std::span<const int64_t> shape, const Region& region);

}  // namespace trireme::checkpoint
