#include <cstring>
#include <vector>

#include "engine/kernels/backend.h"
#include "engine/kernels/cpu/dispatch.h"

namespace trireme::kernels {
namespace {

// Rows of the micro-batch grouped by token id (a counting sort that keeps their order): group v is rows[begin[v] ..
// begin[v + 1]).
struct TokenGroups {
  std::vector<int32_t> begin, rows;
};

// Kept by the calling thread, so that a steady step allocates nothing.
const TokenGroups& GroupTokens(const int32_t* tokens, int64_t micro, int64_t sequence, int64_t vocab) {
  thread_local TokenGroups groups;
  groups.begin.assign(static_cast<size_t>(vocab + 2), 0);
  groups.rows.resize(static_cast<size_t>(micro * sequence));
  auto for_each = [&](auto&& visit) {
    for (int64_t b = 0; b < micro; ++b) {
      for (int64_t s = 0; s < sequence; ++s) {
        const int64_t id = tokens[b * (sequence + 1) + s];
        if (id >= 0 && id < vocab) visit(static_cast<size_t>(id), static_cast<int32_t>(b * sequence + s));
      }
    }
  };
  for_each([&](size_t id, int32_t) { ++groups.begin[id + 2]; });
  for (size_t v = 2; v < groups.begin.size(); ++v) groups.begin[v] += groups.begin[v - 1];
  for_each([&](size_t id, int32_t row) { groups.rows[static_cast<size_t>(groups.begin[id + 1]++)] = row; });
  return groups;
}

template <typename T, typename G>
struct RowSum {
  int64_t width;
  bool add;
  std::vector<Acc<T>> sum;
  RowSum(int64_t row_width, bool add_rows) : width(row_width), add(add_rows), sum(static_cast<size_t>(row_width)) {}
  // target (+)= sum of count rows, row_of(i) being a pointer.
  template <typename F>
  void Write(int64_t count, F row_of, G* target) {
    if (count == 0) {
      if (!add) std::memset(static_cast<void*>(target), 0, static_cast<size_t>(width) * sizeof(G));
      return;
    }
    std::fill(sum.begin(), sum.end(), Acc<T>(0));
    for (int64_t i = 0; i < count; ++i) {
      AtLevel([&](auto level) { ActivationVectors<decltype(level), T>::AddToSum(row_of(i), sum.data(), width); });
    }
    WriteSums(sum.data(), target, width, add);
  }
};

template <typename T, typename G>
void BackwardOf(const at::Tensor& dx, const at::Tensor& tokens, const at::Tensor& dtoken_table,
                const at::Tensor& dposition_table, bool add) {
  const int64_t micro = tokens.size(0), sequence = tokens.size(1) - 1, vocab = dtoken_table.size(0), width = dx.size(1);
  const T* gradient = Data<T>(dx);
  const TokenGroups& groups = GroupTokens(Data<int32_t>(tokens), micro, sequence, vocab);
  Parallel(vocab, width, [&](int64_t begin, int64_t end) {
    RowSum<T, G> sum(width, add);
    for (int64_t id = begin; id < end; ++id) {
      const int32_t first = groups.begin[static_cast<size_t>(id)], last = groups.begin[static_cast<size_t>(id) + 1];
      sum.Write(
          last - first, [&](int64_t i) { return gradient + groups.rows[static_cast<size_t>(first + i)] * width; },
          Data<G>(dtoken_table) + id * width);
    }
  });
  if (!dposition_table.defined()) return;
  Parallel(dposition_table.size(0), width * micro, [&](int64_t begin, int64_t end) {
    RowSum<T, G> sum(width, add);
    for (int64_t s = begin; s < end; ++s) {
      sum.Write(
          s < sequence ? micro : 0, [&](int64_t b) { return gradient + (b * sequence + s) * width; },
          Data<G>(dposition_table) + s * width);
    }
  });
}

}  // namespace

template <>
void Backend<CpuDevice>::EmbeddingForward(const at::Tensor& tokens, const at::Tensor& token_table,
                                          const at::Tensor& position_table, const at::Tensor& x) {
  const int64_t sequence = tokens.size(1) - 1, width = x.size(1), vocab = token_table.size(0);
  const int32_t* ids = Data<int32_t>(tokens);
  ForType(x.scalar_type(), [&]<typename T>(T) {
    const T* positions = Data<T>(position_table);
    Parallel(x.size(0), width, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t s = row % sequence, id = ids[row / sequence * (sequence + 1) + s];
        const T* token = id >= 0 && id < vocab ? Data<T>(token_table) + id * width : nullptr;
        AtLevel([&](auto level) {
          ActivationVectors<decltype(level), T>::AddRows(token, positions == nullptr ? nullptr : positions + s * width,
                                                         Data<T>(x) + row * width, width);
        });
      }
    });
  });
}

template <>
void Backend<CpuDevice>::EmbeddingBackward(const at::Tensor& dx, const at::Tensor& tokens,
                                           const at::Tensor& dtoken_table, const at::Tensor& dposition_table,
                                           bool add) {
  ForType(dx.scalar_type(), [&]<typename T>(T) {
    if (dtoken_table.scalar_type() == dx.scalar_type()) {
      BackwardOf<T, T>(dx, tokens, dtoken_table, dposition_table, add);
    } else {
      BackwardOf<T, Acc<T>>(dx, tokens, dtoken_table, dposition_table, add);
    }
  });
}

}  // namespace trireme::kernels
