// A management library of two GPUs: the second has lost lanes of its slot, links, and memory, and is far from the
// first.
#include <cstdint>
#include <cstring>

namespace {
constexpr int kSuccess = 0, kNotSupported = 3;
int numbers[2] = {0, 1};
int NumberOf(void* device) { return *static_cast<int*>(device); }
}  // namespace

extern "C" {
struct Memory {
  unsigned long long total, free, used;
};
int nvmlInit_v2();
int nvmlInit_v2() { return kSuccess; }
int nvmlShutdown();
int nvmlShutdown() { return kSuccess; }
int nvmlSystemGetDriverVersion(char* text, unsigned bytes);
int nvmlSystemGetDriverVersion(char* text, unsigned bytes) {
  std::strncpy(text, "580.1", bytes);
  return kSuccess;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version);
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13010;
  return kSuccess;
}
int nvmlDeviceGetCount_v2(unsigned* count);
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &numbers[index];
  return kSuccess;
}
struct Utilisation {
  unsigned gpu, memory;
};
int nvmlDeviceGetUtilizationRates(void* device, Utilisation* rates);
int nvmlDeviceGetUtilizationRates(void* device, Utilisation* rates) {
  *rates = {NumberOf(device) == 0 ? 80U : 40U, 10U};
  return kSuccess;
}
int nvmlDeviceGetName(void* device, char* text, unsigned bytes);
int nvmlDeviceGetName(void*, char* text, unsigned bytes) {
  std::strncpy(text, "Fake 100", bytes);
  return kSuccess;
}
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory);
int nvmlDeviceGetMemoryInfo(void*, Memory* memory) {
  *memory = {100ULL << 30, 99ULL << 30, 1ULL << 30};
  return kSuccess;
}
int nvmlDeviceGetNvLinkState(void* device, unsigned link, unsigned* active);
int nvmlDeviceGetNvLinkState(void* device, unsigned link, unsigned* active) {
  *active = NumberOf(device) == 0 || link < 2 ? 1 : 0;
  return link < 4 ? kSuccess : kNotSupported;
}
int nvmlDeviceGetCurrPcieLinkGeneration(void* device, unsigned* value);
int nvmlDeviceGetCurrPcieLinkGeneration(void*, unsigned* value) {
  *value = 1;
  return kSuccess;
}
int nvmlDeviceGetMaxPcieLinkGeneration(void* device, unsigned* value);
int nvmlDeviceGetMaxPcieLinkGeneration(void*, unsigned* value) {
  *value = 5;
  return kSuccess;
}
int nvmlDeviceGetCurrPcieLinkWidth(void* device, unsigned* value);
int nvmlDeviceGetCurrPcieLinkWidth(void* device, unsigned* value) {
  *value = NumberOf(device) == 0 ? 16 : 8;
  return kSuccess;
}
int nvmlDeviceGetMaxPcieLinkWidth(void* device, unsigned* value);
int nvmlDeviceGetMaxPcieLinkWidth(void*, unsigned* value) {
  *value = 16;
  return kSuccess;
}
int nvmlDeviceGetTotalEccErrors(void* device, int type, int counter, unsigned long long* count);
int nvmlDeviceGetTotalEccErrors(void* device, int, int, unsigned long long* count) {
  *count = NumberOf(device) == 0 ? 0 : 7;
  return kSuccess;
}
int nvmlDeviceGetP2PStatus(void* a, void* b, int kind, int* status);
int nvmlDeviceGetP2PStatus(void*, void*, int, int* status) {
  *status = 1;
  return kSuccess;
}
int nvmlDeviceGetTopologyCommonAncestor(void* a, void* b, int* level);
int nvmlDeviceGetTopologyCommonAncestor(void*, void*, int* level) {
  *level = 50;
  return kSuccess;
}
}
