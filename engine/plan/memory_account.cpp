#include "engine/plan/memory_account.h"

#include <algorithm>
#include <numeric>

namespace trireme {
namespace {

struct Names {
  std::string_view text, json;
};
constexpr std::array<Names, kNumMemoryClasses> kNames = {{{"weights", "weights"},
                                                          {"gradients", "gradients"},
                                                          {"master weights", "master_weights"},
                                                          {"moments", "moments"},
                                                          {"activations", "activations"},
                                                          {"gathered", "gathered_parameters"},
                                                          {"buckets", "buckets"},
                                                          {"boundaries", "boundaries"},
                                                          {"gaps", "gaps"},
                                                          {"logits", "logits_chunk"},
                                                          {"workspace", "workspace"},
                                                          {"attention", "attention_pool"},
                                                          {"tables", "tables"},
                                                          {"copies", "copies"},
                                                          {"communicator", "communicator"},
                                                          {"context", "context"}}};

int64_t& At(MemoryByClass& bytes, MemoryClass memory_class) { return bytes[static_cast<size_t>(memory_class)]; }

}  // namespace

std::string_view Name(MemoryClass memory_class) { return kNames[static_cast<size_t>(memory_class)].text; }
std::string_view JsonName(MemoryClass memory_class) { return kNames[static_cast<size_t>(memory_class)].json; }

std::string_view Name(MemoryMoment moment) {
  static constexpr std::string_view kMoments[] = {"initialisation", "step", "save"};
  return kMoments[static_cast<size_t>(moment)];
}

// The arena is there from the start; LibTorch's pool fills with the first step, and keeps what it has.
MemoryByClass ByClass(const MemoryAccount& account, MemoryMoment moment) {
  MemoryByClass bytes{};
  At(bytes, MemoryClass::kWeights) = account.weights;
  At(bytes, MemoryClass::kGradients) = account.gradients;
  At(bytes, MemoryClass::kMasterWeights) = account.master_weights;
  At(bytes, MemoryClass::kMoments) = account.moments;
  At(bytes, MemoryClass::kActivations) = account.of_arena.activations;
  At(bytes, MemoryClass::kGathered) = account.of_arena.gathered;
  At(bytes, MemoryClass::kBuckets) = account.of_arena.buckets;
  At(bytes, MemoryClass::kBoundaries) = account.of_arena.boundaries;
  At(bytes, MemoryClass::kGaps) = account.arena - account.of_arena.live();
  At(bytes, MemoryClass::kLogits) = account.logits;
  At(bytes, MemoryClass::kWorkspace) = account.workspace - account.logits;
  At(bytes, MemoryClass::kAttention) = moment == MemoryMoment::kInitialise ? 0 : account.pool;
  At(bytes, MemoryClass::kTables) = account.tables;
  At(bytes, MemoryClass::kCopies) = moment == MemoryMoment::kSave ? account.saving : 0;
  At(bytes, MemoryClass::kCommunicator) = account.communicator;
  At(bytes, MemoryClass::kContext) = account.context;
  return bytes;
}

MemoryByClass HostByClass(const MemoryAccount& account, MemoryMoment moment) {
  const MemoryAccount::Host& host = account.host;
  MemoryByClass bytes{};
  At(bytes, MemoryClass::kWeights) = host.weights;
  At(bytes, MemoryClass::kGradients) = host.gradients;
  At(bytes, MemoryClass::kMasterWeights) = host.master_weights;
  At(bytes, MemoryClass::kMoments) = host.moments;
  At(bytes, MemoryClass::kBoundaries) = host.boundaries;
  At(bytes, MemoryClass::kGathered) = host.arena - host.boundaries;
  At(bytes, MemoryClass::kCopies) = moment == MemoryMoment::kInitialise ? host.initialising
                                    : moment == MemoryMoment::kSave     ? host.saving
                                                                        : 0;
  return bytes;
}

int64_t SumOf(const MemoryByClass& bytes) { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

MemoryClass LargestOf(const MemoryByClass& bytes) {
  return static_cast<MemoryClass>(std::max_element(bytes.begin(), bytes.end()) - bytes.begin());
}

}  // namespace trireme
