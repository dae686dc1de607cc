#include "checkpoint/reshard.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "engine/base/error.h"

namespace trireme::checkpoint {
namespace {

constexpr int64_t kReadBytes = 16 << 20;    // a strided read goes through a buffer of at most this size
constexpr int64_t kAlwaysWhole = 64 << 10;  // below this many bytes one read of everything beats many small ones
constexpr int64_t kLongRun = 1 << 10;       // bytes from which a read of its own pays
constexpr int64_t kTransposeTile = 32;      // rows and columns of one tile: both sides stay in the first-level cache

// A box as it lies in memory: `dims` names, from outermost to innermost, the tensor's dim that each level walks.
struct Walk {
  int ndim = 0;
  std::array<int, kMaxDims> dims{};
  Dims extent{}, stride{};  // by level
};

Walk MakeWalk(const Box& box, Order order) {
  Walk walk;
  walk.ndim = static_cast<int>(box.extent.size());
  for (int level = 0; level < walk.ndim; ++level) walk.dims[level] = level;
  if (order == Order::kTransposed) std::swap(walk.dims[walk.ndim - 1], walk.dims[walk.ndim - 2]);
  int64_t stride = 1;
  for (int level = walk.ndim - 1; level >= 0; --level) {
    walk.extent[level] = box.extent[walk.dims[level]];
    walk.stride[level] = stride;
    stride *= walk.extent[level];
  }
  return walk;
}

// Appends the rectangles of the range [begin, end) of `box`; `offset` is where element 0 of the box would lie.
class RangeCutter {
 public:
  RangeCutter(const Box& box, Order order, int64_t offset, std::vector<Rect>& out)
      : box_(box), walk_(MakeWalk(box, order)), offset_(offset), out_(out) {}

  // The levels before `level` are fixed at `index`; begin and end count elements inside that slice.
  void Cut(int level, Dims index, int64_t begin, int64_t end) {
    if (begin >= end) return;
    if (level == walk_.ndim) return Emit(level, index, 0, 1);
    const int64_t row = walk_.stride[level];
    const int64_t first = begin / row, last = (end - 1) / row;
    const int64_t head = begin - first * row, tail = end - last * row;
    int64_t full_begin = first, full_end = last + 1;
    if (first == last && (head != 0 || tail != row)) {
      index[level] = first;
      return Cut(level + 1, index, head, tail);
    }
    if (head != 0) {
      index[level] = first;
      Cut(level + 1, index, head, row);
      ++full_begin;
    }
    if (tail != row) --full_end;
    if (full_begin < full_end) Emit(level, index, full_begin, full_end);
    if (tail != row) {
      index[level] = last;
      Cut(level + 1, index, 0, tail);
    }
  }

 private:
  void Emit(int level, const Dims& index, int64_t begin, int64_t end) {
    Rect rect;
    rect.ndim = walk_.ndim;
    rect.offset = offset_;
    for (int l = 0; l < walk_.ndim; ++l) {
      const int d = walk_.dims[l];
      const int64_t low = l < level ? index[l] : l == level ? begin : 0;
      rect.begin[d] = box_.begin[d] + low;
      rect.extent[d] = l < level ? 1 : l == level ? end - begin : walk_.extent[l];
      rect.stride[d] = walk_.stride[l];
      rect.offset += low * walk_.stride[l];
    }
    out_.push_back(rect);
  }

  const Box& box_;
  const Walk walk_;
  const int64_t offset_;
  std::vector<Rect>& out_;
};

Box WholeBox(std::span<const int64_t> shape) {
  return {std::vector<int64_t>(shape.size(), 0), std::vector<int64_t>(shape.begin(), shape.end())};
}

// Orders dims by falling source stride, drops those of extent 1 and joins neighbours that are one run on both sides.
void Normalise(StridedCopy& copy) {
  std::array<int, kMaxDims> by_stride{};
  int count = 0;
  for (int d = 0; d < copy.ndim; ++d) {  // insertion sort of a handful
    if (copy.extent[d] == 1) continue;
    int place = count++;
    for (; place > 0 && copy.source_stride[by_stride[place - 1]] < copy.source_stride[d]; --place)
      by_stride[place] = by_stride[place - 1];
    by_stride[place] = d;
  }
  StridedCopy out;
  out.source_offset = copy.source_offset;
  out.target_offset = copy.target_offset;
  for (int i = 0; i < count; ++i) {
    const int d = by_stride[i], last = out.ndim - 1;
    if (last >= 0 && out.source_stride[last] == copy.source_stride[d] * copy.extent[d] &&
        out.target_stride[last] == copy.target_stride[d] * copy.extent[d]) {
      out.extent[last] *= copy.extent[d];
      out.source_stride[last] = copy.source_stride[d];
      out.target_stride[last] = copy.target_stride[d];
    } else {
      out.extent[out.ndim] = copy.extent[d];
      out.source_stride[out.ndim] = copy.source_stride[d];
      out.target_stride[out.ndim] = copy.target_stride[d];
      ++out.ndim;
    }
  }
  copy = out;
}

// One or two dims of elements of `Bytes` bytes each, in tiles: a row of one side is a column of the other. A tile goes
// through a small buffer of its own, so that both sides are touched in runs; extents are often powers of two, whose
// strides fall into few sets of a cache.
template <size_t Bytes>
void CopyPlane(const StridedCopy& copy, int dim, const std::byte* source, std::byte* target) {
  constexpr auto kBytes = static_cast<int64_t>(Bytes);
  const bool plane = copy.ndim - dim == 2;
  const int inner = copy.ndim - 1;
  const int64_t rows = plane ? copy.extent[dim] : 1, columns = copy.extent[inner];
  const int64_t source_row = plane ? copy.source_stride[dim] : 0, target_row = plane ? copy.target_stride[dim] : 0;
  const int64_t source_column = copy.source_stride[inner], target_column = copy.target_stride[inner];
  std::byte tile[kTransposeTile * kTransposeTile * Bytes];  // column by column
  for (int64_t r0 = 0; r0 < rows; r0 += kTransposeTile) {
    const int64_t height = std::min(rows - r0, kTransposeTile);
    for (int64_t c0 = 0; c0 < columns; c0 += kTransposeTile) {
      const int64_t width = std::min(columns - c0, kTransposeTile);
      const std::byte* from = source + (r0 * source_row + c0 * source_column) * kBytes;
      std::byte* to = target + (r0 * target_row + c0 * target_column) * kBytes;
      for (int64_t r = 0; r < height; ++r) {
        for (int64_t c = 0; c < width; ++c) {
          std::memcpy(tile + (c * kTransposeTile + r) * kBytes, from + (r * source_row + c * source_column) * kBytes,
                      Bytes);
        }
      }
      for (int64_t c = 0; c < width; ++c) {
        if (target_row == 1) {
          std::memcpy(to + c * target_column * kBytes, tile + c * kTransposeTile * kBytes,
                      static_cast<size_t>(height * kBytes));
          continue;
        }
        for (int64_t r = 0; r < height; ++r) {
          std::memcpy(to + (r * target_row + c * target_column) * kBytes, tile + (c * kTransposeTile + r) * kBytes,
                      Bytes);
        }
      }
    }
  }
}

void CopyFrom(const StridedCopy& copy, int dim, const std::byte* source, std::byte* target, int64_t element_bytes) {
  if (dim == copy.ndim) {
    std::memcpy(target, source, static_cast<size_t>(element_bytes));
    return;
  }
  const int inner = copy.ndim - 1;
  if (dim == inner && copy.source_stride[inner] == 1 && copy.target_stride[inner] == 1) {
    std::memcpy(target, source, static_cast<size_t>(copy.extent[inner] * element_bytes));
    return;
  }
  const bool runs = copy.source_stride[inner] == 1 && copy.target_stride[inner] == 1;
  if (copy.ndim - dim <= 2 && !runs) {
    switch (element_bytes) {
      case 1:
        return CopyPlane<1>(copy, dim, source, target);
      case 2:
        return CopyPlane<2>(copy, dim, source, target);
      case 4:
        return CopyPlane<4>(copy, dim, source, target);
      case 8:
        return CopyPlane<8>(copy, dim, source, target);
      default:
        TRIREME_CHECK(false, fmt::format("an element of {} bytes", element_bytes));
    }
  }
  for (int64_t i = 0; i < copy.extent[dim]; ++i) {
    CopyFrom(copy, dim + 1, source + i * copy.source_stride[dim] * element_bytes,
             target + i * copy.target_stride[dim] * element_bytes, element_bytes);
  }
}

// Reads what `copy` needs, by the cheapest of three ways: straight into `out` where both sides are one run; the whole
// span of the source into a buffer where most of it is needed; run after run into a buffer where the runs are long. Too
// large for the buffer: halved along the outermost dim.
class Mover {
 public:
  Mover(const ByteSource& source, std::span<std::byte> out, int64_t element_bytes)
      : source_(source), out_(out), element_bytes_(element_bytes) {}

  void Move(const StridedCopy& copy) {
    const int inner = copy.ndim - 1;
    if (copy.ndim == 0 || (copy.ndim == 1 && copy.source_stride[0] == 1 && copy.target_stride[0] == 1)) {
      source_.ReadBytes(copy.source_offset * element_bytes_,
                        out_.subspan(Bytes(copy.target_offset), Bytes(copy.Elements())));
      return;
    }
    int64_t span = 1;
    for (int d = 0; d < copy.ndim; ++d) span += (copy.extent[d] - 1) * copy.source_stride[d];
    const bool dense = span <= 4 * copy.Elements() || span * element_bytes_ <= kAlwaysWhole;
    const bool long_runs = copy.source_stride[inner] == 1 && copy.extent[inner] * element_bytes_ >= kLongRun;
    StridedCopy local = copy;
    local.source_offset = 0;
    if (dense && span * element_bytes_ <= kReadBytes) {
      source_.ReadBytes(copy.source_offset * element_bytes_, Buffer(span));
    } else if (long_runs && copy.Elements() * element_bytes_ <= kReadBytes) {
      std::byte* end = Buffer(copy.Elements()).data();
      ReadRuns(copy, 0, copy.source_offset, end);
      for (int d = inner, stride = 1; d >= 0; stride *= static_cast<int>(copy.extent[d]), --d)
        local.source_stride[d] = stride;
    } else {
      return Halve(copy);
    }
    RunCopy(local, buffer_.get(), out_.data(), element_bytes_);
  }

 private:
  size_t Bytes(int64_t elements) const { return static_cast<size_t>(elements * element_bytes_); }

  std::span<std::byte> Buffer(int64_t elements) {
    if (!buffer_) buffer_ = std::make_unique_for_overwrite<std::byte[]>(kReadBytes);
    return {buffer_.get(), Bytes(elements)};
  }

  void ReadRuns(const StridedCopy& copy, int dim, int64_t offset, std::byte*& end) {
    if (dim == copy.ndim - 1) {
      source_.ReadBytes(offset * element_bytes_, {end, Bytes(copy.extent[dim])});
      end += Bytes(copy.extent[dim]);
      return;
    }
    for (int64_t i = 0; i < copy.extent[dim]; ++i) ReadRuns(copy, dim + 1, offset + i * copy.source_stride[dim], end);
  }

  void Halve(const StridedCopy& copy) {
    StridedCopy low = copy, high = copy;
    low.extent[0] = copy.extent[0] / 2;
    high.extent[0] = copy.extent[0] - low.extent[0];
    high.source_offset += low.extent[0] * copy.source_stride[0];
    high.target_offset += low.extent[0] * copy.target_stride[0];
    Normalise(low);
    Normalise(high);
    Move(low);
    Move(high);
  }

  const ByteSource& source_;
  std::span<std::byte> out_;
  const int64_t element_bytes_;
  std::unique_ptr<std::byte[]> buffer_;
};

std::string FlatProblem(int64_t volume, std::span<const Region> slabs, const std::function<std::string(size_t)>& name) {
  std::vector<size_t> sorted(slabs.size());
  std::iota(sorted.begin(), sorted.end(), size_t{0});
  std::erase_if(sorted, [&](size_t i) { return slabs[i].flat_count == 0; });
  std::sort(sorted.begin(), sorted.end(),
            [&](size_t a, size_t b) { return slabs[a].flat_begin < slabs[b].flat_begin; });
  int64_t end = 0;
  size_t previous = 0;
  for (const size_t i : sorted) {
    if (slabs[i].flat_begin > end) {
      return fmt::format("elements {} to {} are in no slab", end, slabs[i].flat_begin - 1);
    }
    if (slabs[i].flat_begin < end) {
      return fmt::format("elements from {} on are in {} and in {}", slabs[i].flat_begin, name(previous), name(i));
    }
    end += slabs[i].flat_count;
    previous = i;
  }
  if (end < volume) return fmt::format("elements {} to {} are in no slab", end, volume - 1);
  return "";
}

}  // namespace

int64_t StridedCopy::Elements() const {
  int64_t count = 1;
  for (int d = 0; d < ndim; ++d) count *= extent[d];
  return count;
}

std::vector<Rect> Decompose(std::span<const int64_t> shape, const Region& region, int64_t offset) {
  std::vector<Rect> rects;
  const std::vector<Box> whole = region.boxes.empty() ? std::vector<Box>{WholeBox(shape)} : std::vector<Box>{};
  int64_t box_begin = 0;  // first element of the box in the concatenation
  for (const Box& box : region.boxes.empty() ? whole : region.boxes) {
    const int64_t volume = Numel(box.extent);
    const int64_t begin = std::max<int64_t>(0, region.flat_begin - box_begin);
    const int64_t end = std::min(volume, region.flat_begin + region.flat_count - box_begin);
    RangeCutter(box, region.order, offset + box_begin - region.flat_begin, rects).Cut(0, {}, begin, end);
    box_begin += volume;
  }
  return rects;
}

std::optional<StridedCopy> Intersect(const Rect& source, const Rect& target) {
  StridedCopy copy;
  copy.ndim = source.ndim;
  copy.source_offset = source.offset;
  copy.target_offset = target.offset;
  for (int d = 0; d < source.ndim; ++d) {
    const int64_t low = std::max(source.begin[d], target.begin[d]);
    const int64_t high = std::min(source.begin[d] + source.extent[d], target.begin[d] + target.extent[d]);
    if (low >= high) return std::nullopt;
    copy.extent[d] = high - low;
    copy.source_stride[d] = source.stride[d];
    copy.target_stride[d] = target.stride[d];
    copy.source_offset += (low - source.begin[d]) * source.stride[d];
    copy.target_offset += (low - target.begin[d]) * target.stride[d];
  }
  Normalise(copy);
  return copy;
}

void RunCopy(const StridedCopy& copy, const std::byte* source, std::byte* target, int64_t element_bytes) {
  CopyFrom(copy, 0, source + copy.source_offset * element_bytes, target + copy.target_offset * element_bytes,
           element_bytes);
}

int64_t ReadIntersection(std::span<const int64_t> shape, const Region& stored, int64_t offset, const ByteSource& source,
                         const Region& wanted, std::span<std::byte> out, int64_t element_bytes) {
  Mover mover(source, out, element_bytes);
  if (stored.boxes == wanted.boxes && stored.order == wanted.order) {  // the same walk: one run
    StridedCopy run;
    const int64_t begin = std::max(stored.flat_begin, wanted.flat_begin);
    const int64_t end = std::min(stored.flat_begin + stored.flat_count, wanted.flat_begin + wanted.flat_count);
    if (begin >= end) return 0;
    run.ndim = 1;
    run.extent[0] = end - begin;
    run.source_stride[0] = run.target_stride[0] = 1;
    run.source_offset = offset + begin - stored.flat_begin;
    run.target_offset = begin - wanted.flat_begin;
    mover.Move(run);
    return end - begin;
  }
  int64_t count = 0;
  const std::vector<Rect> targets = Decompose(shape, wanted, 0);
  for (const Rect& from : Decompose(shape, stored, offset)) {
    for (const Rect& to : targets) {
      if (const std::optional<StridedCopy> copy = Intersect(from, to)) {
        mover.Move(*copy);
        count += copy->Elements();
      }
    }
  }
  return count;
}

std::string CoverageProblem(std::span<const int64_t> shape, std::span<const Region> slabs,
                            const std::function<std::string(size_t)>& name) {
  const int64_t volume = Numel(shape);
  int64_t total = 0;
  bool one_walk = true;
  for (size_t i = 0; i < slabs.size(); ++i) {
    if (!CheckedVolume(shape, slabs[i]))
      return fmt::format("{} lies outside the tensor of shape {}", name(i), ShapeText(shape));
    total += slabs[i].flat_count;
    one_walk = one_walk && slabs[i].boxes.empty() && slabs[i].order == slabs[0].order;
  }
  if (one_walk) return FlatProblem(volume, slabs, name);

  std::vector<std::pair<Rect, size_t>> rects;
  for (size_t i = 0; i < slabs.size(); ++i) {
    for (const Rect& rect : Decompose(shape, slabs[i], 0)) rects.emplace_back(rect, i);
  }
  const auto first = [](const auto& entry) { return entry.first.ndim == 0 ? 0 : entry.first.begin[0]; };
  std::sort(rects.begin(), rects.end(), [&](const auto& a, const auto& b) { return first(a) < first(b); });
  for (size_t i = 0; i < rects.size(); ++i) {
    const int64_t end = rects[i].first.ndim == 0 ? 1 : rects[i].first.begin[0] + rects[i].first.extent[0];
    for (size_t j = i + 1; j < rects.size() && first(rects[j]) < end; ++j) {
      if (Intersect(rects[i].first, rects[j].first)) {
        return fmt::format("{} and {} overlap", name(rects[i].second), name(rects[j].second));
      }
    }
  }
  if (total != volume) return fmt::format("the slabs hold {} of {} elements", total, volume);
  return "";
}

}  // namespace trireme::checkpoint
