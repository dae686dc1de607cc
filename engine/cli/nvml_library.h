// NVIDIA's management library, opened by name while the program runs: no build and no start needs it. Private to the
// two that ask it.
//   Nvml nvml("libnvidia-ml.so.1");  if (nvml.Start()) nvml.Get<unsigned>("nvmlDeviceGetCount_v2");
#pragma once
#include <dlfcn.h>

#include <array>
#include <optional>
#include <string>

namespace trireme::cli {

// The library, and its functions by name. A function that an older driver lacks is as one that fails.
class Nvml {
 public:
  static constexpr unsigned kTextBytes = 96;
  explicit Nvml(const std::string& library) : handle_(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) error_ = dlerror();
  }
  ~Nvml() {
    if (started_) Call("nvmlShutdown");
    if (handle_ != nullptr) dlclose(handle_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  bool Start() {
    if (handle_ == nullptr) return false;
    const std::optional<int> code = Run("nvmlInit_v2");
    started_ = code == 0;
    if (started_) return true;
    void* describe = dlsym(handle_, "nvmlErrorString");
    error_ =
        code && describe != nullptr ? reinterpret_cast<const char* (*)(int)>(describe)(*code) : "it has no nvmlInit_v2";
    return false;
  }
  const std::string& error() const { return error_; }

  template <typename... A>
  bool Call(const char* name, A... arguments) const {
    return Run(name, arguments...) == 0;
  }
  // The last argument is where the result goes.
  template <typename T, typename... A>
  std::optional<T> Get(const char* name, A... arguments) const {
    T value{};
    if (Call(name, arguments..., &value)) return value;
    return std::nullopt;
  }
  template <typename... A>
  std::string Text(const char* name, A... arguments) const {
    std::array<char, kTextBytes> text{};
    return Call(name, arguments..., text.data(), kTextBytes) ? text.data() : "?";
  }

 private:
  template <typename... A>
  std::optional<int> Run(const char* name, A... arguments) const {
    void* function = dlsym(handle_, name);
    if (function == nullptr) return std::nullopt;
    return reinterpret_cast<int (*)(A...)>(function)(arguments...);
  }

  void* handle_;
  bool started_ = false;
  std::string error_;
};

}  // namespace trireme::cli
