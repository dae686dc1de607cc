// How busy the GPUs of this machine are, by NVIDIA's management library where the driver has brought it.
//   GpuUtilisation gpus;  ...  gpus.Sample();  ...  gpus.Mean()
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::cli {

class Nvml;

class GpuUtilisation {
 public:
  // The first `most` devices that CUDA_VISIBLE_DEVICES, if it is set to numbers, leaves.
  // `library`: another one in tests.
  explicit GpuUtilisation(int64_t most, const std::string& library = "libnvidia-ml.so.1");
  ~GpuUtilisation();
  bool available() const { return !devices_.empty(); }

  void Sample();                       // one more of each device
  std::optional<double> Mean() const;  // of all samples, 0 to 1; nullopt: none

 private:
  std::unique_ptr<Nvml> library_;
  std::vector<void*> devices_;
  double sum_ = 0;
  int64_t samples_ = 0;
};

}  // namespace trireme::cli
