#include "engine/model/flat_view.h"

#include <c10/core/TensorImpl.h>
#include <fmt/core.h>

#include "engine/base/error.h"

namespace trireme {

at::Tensor ViewOf(const at::Tensor& buffer, int64_t byte_offset, at::ScalarType type, at::IntArrayRef shape) {
  const auto size = static_cast<int64_t>(c10::elementSize(type));
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  TRIREME_CHECK(buffer.defined(), "a view of an undefined buffer");
  const int64_t held = buffer.numel() * static_cast<int64_t>(buffer.element_size());
  const int64_t begin = buffer.storage_offset() * static_cast<int64_t>(buffer.element_size()) + byte_offset;
  TRIREME_CHECK(byte_offset >= 0 && byte_offset + count * size <= held && begin % size == 0,
                fmt::format("{} bytes at {} of a buffer of {}", count * size, byte_offset, held));
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(buffer.storage()), buffer.key_set(),
                                                             c10::scalarTypeToTypeMeta(type));
  c10::TensorImpl* impl = view.unsafeGetTensorImpl();
  impl->set_storage_offset(begin / size);
  impl->set_sizes_contiguous(shape);
  return view;
}

at::Tensor Workspace::Take(at::ScalarType type, at::IntArrayRef shape) {
  constexpr int64_t kAlignment = 256;
  at::Tensor view = ViewOf(bytes_, used_, type, shape);
  const int64_t bytes = view.numel() * static_cast<int64_t>(view.element_size());
  used_ = (used_ + bytes + kAlignment - 1) / kAlignment * kAlignment;
  return view;
}

at::Tensor Workspace::Rest() const {
  if (!bytes_.defined() || used_ >= bytes_.numel()) return {};
  return ViewOf(bytes_, used_, at::kByte, {bytes_.numel() - used_});
}

}  // namespace trireme
