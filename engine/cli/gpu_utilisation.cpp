#include "engine/cli/gpu_utilisation.h"

#include <charconv>
#include <numeric>
#include <string>

#include "engine/base/env.h"
#include "engine/base/strings.h"
#include "engine/cli/nvml_library.h"

namespace trireme::cli {
namespace {

struct Rates {  // nvmlUtilization_t: percent of the time in which a kernel ran, and memory was read or written
  unsigned int gpu = 0, memory = 0;
};

// Numbers of CUDA_VISIBLE_DEVICES; empty: all devices, or words that are no numbers.
std::vector<unsigned int> VisibleNumbers() {
  std::vector<unsigned int> numbers;
  for (const std::string& word : Split(env::Text("CUDA_VISIBLE_DEVICES").value_or(""), ',')) {
    unsigned int number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error == std::errc() && end == word.data() + word.size()) numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

GpuUtilisation::GpuUtilisation(int64_t most, const std::string& library) : library_(std::make_unique<Nvml>(library)) {
  if (most == 0 || !library_->Start()) return;
  std::vector<unsigned int> numbers = VisibleNumbers();
  if (numbers.empty()) {
    numbers.resize(library_->Get<unsigned int>("nvmlDeviceGetCount_v2").value_or(0));
    std::iota(numbers.begin(), numbers.end(), 0U);
  }
  for (const unsigned int number : numbers) {
    if (static_cast<int64_t>(devices_.size()) == most) break;
    if (const auto device = library_->Get<void*>("nvmlDeviceGetHandleByIndex_v2", number)) devices_.push_back(*device);
  }
}

GpuUtilisation::~GpuUtilisation() = default;

void GpuUtilisation::Sample() {
  for (void* device : devices_) {
    const std::optional<Rates> rates = library_->Get<Rates>("nvmlDeviceGetUtilizationRates", device);
    if (!rates) continue;
    sum_ += rates->gpu / 100.0;
    ++samples_;
  }
}

std::optional<double> GpuUtilisation::Mean() const {
  if (samples_ == 0) return std::nullopt;
  return sum_ / static_cast<double>(samples_);
}

}  // namespace trireme::cli
