// Matrix products on GPUs: cuBLASLt, one plan (descriptors and algorithm) a shape, kept by the thread.
#include <ATen/Context.h>
#include <cublasLt.h>
#include <fmt/core.h>

#include <algorithm>
#include <compare>
#include <map>
#include <memory>

#include "engine/base/error.h"
#include "engine/kernels/backend.h"
#include "engine/kernels/cuda/context.h"

namespace trireme::kernels {
namespace {

void Check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(ErrorCode::kDevice, "KRN002",
              fmt::format("cuBLASLt: {} failed: {}", what, cublasLtGetStatusString(status)), "",
              "look at `ldd build/bin/trireme-engine`: the installed cuBLAS must be the one of the CUDA toolkit that "
              "the program was built with");
}

// D (+)= op(A) op(B), all column-major as cuBLAS has it: D is m x n. A row-major [rows, columns] tensor is a
// column-major columns x rows one.
struct Key {
  int device = 0;
  bool transpose_a = false, transpose_b = false;
  int64_t m = 0, n = 0, k = 0;
  at::ScalarType in = at::kFloat, out = at::kFloat;
  bool bias = false, adds = false, tf32 = false;
  uint32_t alignment = 16;  // bytes, of all operands
  auto operator<=>(const Key&) const = default;
};

cudaDataType_t CudaType(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return CUDA_R_64F;
    case at::kFloat:
      return CUDA_R_32F;
    case at::kBFloat16:
      return CUDA_R_16BF;
    case at::kHalf:
      return CUDA_R_16F;
    default:
      TRIREME_CHECK(false, std::string("no product for ") + c10::toString(type));
  }
}

class Handle {
 public:
  Handle() { Check(cublasLtCreate(&handle_), "cublasLtCreate"); }
  ~Handle() { cublasLtDestroy(handle_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  cublasLtHandle_t get() const { return handle_; }

 private:
  cublasLtHandle_t handle_ = nullptr;
};

class ProductPlan {
 public:
  ProductPlan(cublasLtHandle_t handle, const Key& key, size_t workspace_bytes) {
    const cudaDataType_t scale = key.in == at::kDouble ? CUDA_R_64F : CUDA_R_32F;
    const cublasComputeType_t compute =
        key.in == at::kDouble ? CUBLAS_COMPUTE_64F
                              : (key.in == at::kFloat && key.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F);
    Check(cublasLtMatmulDescCreate(&operation_, compute, scale), "cublasLtMatmulDescCreate");
    const cublasOperation_t a = key.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                            b = key.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    Set(CUBLASLT_MATMUL_DESC_TRANSA, a);
    Set(CUBLASLT_MATMUL_DESC_TRANSB, b);
    if (key.bias) Set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    const cudaDataType_t in = CudaType(key.in), out = CudaType(key.out);
    a_ = Layout(in, key.transpose_a ? key.k : key.m, key.transpose_a ? key.m : key.k);
    b_ = Layout(in, key.transpose_b ? key.n : key.k, key.transpose_b ? key.k : key.n);
    d_ = Layout(out, key.m, key.n);
    Choose(handle, key, workspace_bytes);
  }
  ~ProductPlan() {
    for (cublasLtMatrixLayout_t layout : {a_, b_, d_}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(operation_);
  }
  ProductPlan(const ProductPlan&) = delete;
  ProductPlan& operator=(const ProductPlan&) = delete;

  void Run(cublasLtHandle_t handle, const void* a, const void* b, const void* c, void* d, const void* bias, bool adds,
           bool in_double, const cuda::Scratch& scratch, cudaStream_t stream) {
    if (bias != nullptr) Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    const double one64 = 1, beta64 = adds ? 1 : 0;
    const float one32 = 1, beta32 = adds ? 1 : 0;
    const void* alpha = in_double ? static_cast<const void*>(&one64) : &one32;
    const void* beta = in_double ? static_cast<const void*>(&beta64) : &beta32;
    Check(cublasLtMatmul(handle, operation_, alpha, a, a_, b, b_, beta, c, d_, d, d_, &algorithm_.algo, scratch.data,
                         static_cast<size_t>(scratch.bytes), stream),
          "cublasLtMatmul");
  }

 private:
  template <typename V>
  void Set(cublasLtMatmulDescAttributes_t attribute, const V& value) {
    Check(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof(value)),
          "cublasLtMatmulDescSetAttribute");
  }
  static cublasLtMatrixLayout_t Layout(cudaDataType_t type, int64_t rows, int64_t columns) {
    cublasLtMatrixLayout_t layout = nullptr;
    Check(cublasLtMatrixLayoutCreate(&layout, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows),
          "cublasLtMatrixLayoutCreate");
    return layout;
  }
  void Choose(cublasLtHandle_t handle, const Key& key, size_t workspace_bytes) {
    cublasLtMatmulPreference_t preference = nullptr;
    Check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      Check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
            "cublasLtMatmulPreferenceSetAttribute");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    // Parts of a split sum are added in fp32, never in a 16-bit output.
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
    for (auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                           CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      set(attribute, key.alignment);
    }
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, operation_, a_, b_, d_, d_, preference, 1, &algorithm_, &found);
    cublasLtMatmulPreferenceDestroy(preference);
    Check(status, "cublasLtMatmulAlgoGetHeuristic");
    if (found == 0) Check(CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic");
  }

  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
  cublasLtMatmulHeuristicResult_t algorithm_{};
};

uint32_t AlignmentOf(std::initializer_list<const void*> pointers) {
  uintptr_t bits = 256;
  for (const void* pointer : pointers) bits |= reinterpret_cast<uintptr_t>(pointer);
  return static_cast<uint32_t>(bits & (~bits + 1));
}

// c: what is added (d itself, or a residual), null for none.
void Product(Key key, const at::Tensor& a, const at::Tensor& b, const void* c, const at::Tensor& d,
             const at::Tensor& bias) {
  if (d.numel() == 0) return;
  thread_local Handle handle;
  thread_local std::map<Key, std::unique_ptr<ProductPlan>> plans;
  const cuda::Scratch scratch = cuda::ProductScratch();
  void* target = d.mutable_data_ptr();
  const void* bias_data = bias.defined() ? bias.const_data_ptr() : nullptr;
  key.device = d.get_device();
  key.in = a.scalar_type();
  key.out = d.scalar_type();
  key.bias = bias_data != nullptr;
  key.adds = c != nullptr;
  key.tf32 = at::globalContext().allowTF32CuBLAS();
  key.alignment = AlignmentOf({a.const_data_ptr(), b.const_data_ptr(), c, target, bias_data});
  std::unique_ptr<ProductPlan>& plan = plans[key];
  if (plan == nullptr) plan = std::make_unique<ProductPlan>(handle.get(), key, static_cast<size_t>(scratch.bytes));
  plan->Run(handle.get(), a.const_data_ptr(), b.const_data_ptr(), c == nullptr ? target : c, target, bias_data,
            c != nullptr, key.in == at::kDouble, scratch, cuda::CurrentStream());
}

}  // namespace

template <>
void Backend<CudaDevice>::LinearForward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                        const at::Tensor& residual, const at::Tensor& y) {
  const Key key{.transpose_a = true, .m = weight.size(0), .n = x.size(0), .k = x.size(1)};
  const void* added = residual.defined() ? residual.const_data_ptr() : nullptr;
  if (x.scalar_type() != at::kDouble) return Product(key, weight, x, added, y, bias);
  Product(key, weight, x, nullptr, y, {});  // cuBLASLt has no epilogue in fp64
  if (!bias.defined() && added == nullptr) return;
  cuda::AddBiasResidual(cuda::Element::kFloat64, y.mutable_data_ptr(), bias.defined() ? bias.const_data_ptr() : nullptr,
                        added, y.size(0), y.size(1), cuda::CurrentStream());
}

template <>
void Backend<CudaDevice>::LinearBackwardInput(const at::Tensor& dy, const at::Tensor& weight, const at::Tensor& dx) {
  Product({.m = weight.size(1), .n = dy.size(0), .k = dy.size(1)}, weight, dy, nullptr, dx, {});
}

template <>
void Backend<CudaDevice>::LinearBackwardWeight(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& dweight,
                                               bool add, const at::Tensor&) {
  Product({.transpose_b = true, .m = x.size(1), .n = dy.size(1), .k = dy.size(0)}, x, dy,
          add ? dweight.const_data_ptr() : nullptr, dweight, {});
}

}  // namespace trireme::kernels
