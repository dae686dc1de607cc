#include "engine/comm/flight_recorder.h"

#include <fmt/core.h>

#include <algorithm>

#include "engine/base/dtype.h"

namespace trireme {
namespace {

std::optional<DType> ToDType(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Double:
      return DType::kFloat64;
    case c10::ScalarType::Float:
      return DType::kFloat32;
    case c10::ScalarType::BFloat16:
      return DType::kBFloat16;
    case c10::ScalarType::Half:
      return DType::kFloat16;
    case c10::ScalarType::Long:
      return DType::kInt64;
    case c10::ScalarType::Int:
      return DType::kInt32;
    case c10::ScalarType::Short:
      return DType::kInt16;
    case c10::ScalarType::Char:
      return DType::kInt8;
    case c10::ScalarType::Byte:
      return DType::kUInt8;
    default:
      return std::nullopt;
  }
}

double SecondsBefore(std::chrono::steady_clock::time_point now, std::chrono::steady_clock::time_point then) {
  return std::chrono::duration<double>(now - then).count();
}

}  // namespace

std::string TypeName(c10::ScalarType type) {
  const std::optional<DType> dtype = ToDType(type);
  return dtype ? std::string(Name(*dtype)) : std::string(c10::toString(type));
}

std::string Describe(const FlightEntry& entry) {
  std::string text = fmt::format("{} #{}", Name(entry.op), entry.number);
  if (entry.dtype) text += fmt::format(" {}[{}]", TypeName(*entry.dtype), entry.count);
  if (entry.op == OpKind::kBroadcast) text += fmt::format(" from rank {} of the group", entry.peer);
  if (entry.op == OpKind::kSend) text += fmt::format(" to rank {} of the group", entry.peer);
  if (entry.op == OpKind::kRecv) text += fmt::format(" from rank {} of the group", entry.peer);
  return text;
}

int64_t FlightRecorder::Begin(FlightEntry entry) {
  entry.begin = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  entry.id = next_++;
  ring_[entry.id % kCapacity] = entry;
  return entry.id;
}

void FlightRecorder::End(int64_t id) {
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  FlightEntry& entry = ring_[id % kCapacity];
  if (entry.id != id) return;  // overwritten since
  entry.end = now;
  entry.ended = true;
}

std::string FlightRecorder::Text() const {
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  std::string text;
  for (int64_t id = next_ - 1; id >= std::max<int64_t>(0, next_ - kCapacity); --id) {
    const FlightEntry& entry = ring_[id % kCapacity];
    text += fmt::format("    {}: begun {:.3f} s ago, ", Describe(entry), SecondsBefore(now, entry.begin));
    text += entry.ended ? fmt::format("ended {:.3f} s ago\n", SecondsBefore(now, entry.end)) : "not ended\n";
  }
  return text;
}

}  // namespace trireme
