#include "engine/execute/trace.h"

#include <fmt/core.h>

#include <array>
#include <chrono>
#include <string>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json_text.h"

#ifdef TRIREME_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace trireme {

struct Tracer::Event {
  Instruction instruction;
  const char* part = nullptr;  // of it; null: the whole
  Lane lane = Lane::kCompute;
  int64_t step = 0;
  double begin_us = 0, end_us = 0;
#ifdef TRIREME_HAS_CUDA
  cudaEvent_t begin = nullptr, end = nullptr;
#endif
};

struct Tracer::Clock {
  bool cuda = false;
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  double Now() const {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  }
#ifdef TRIREME_HAS_CUDA
  cudaEvent_t origin = nullptr;
  double origin_us = 0;  // when it was recorded
#endif
};

#ifdef TRIREME_HAS_CUDA
namespace {

cudaEvent_t RecordEvent(CommStream stream) {
  cudaEvent_t event = nullptr;
  if (cudaEventCreate(&event) != cudaSuccess ||
      cudaEventRecord(event, static_cast<cudaStream_t>(stream)) != cudaSuccess) {
    throw Error(ErrorCode::kDevice, "EXE001", "an event for the trace could not be recorded", "",
                "run without --trace");
  }
  return event;
}

}  // namespace
#endif

Tracer::Tracer(int rank, bool cuda, const Plan& plan) : rank_(rank), plan_(plan), clock_(std::make_unique<Clock>()) {
  clock_->cuda = cuda;
}

Tracer::~Tracer() = default;

// No call of CUDA is made under the lock that a lane on the host takes: it might wait for that lane.
void Tracer::SetOrigin([[maybe_unused]] CommStream stream) {
#ifdef TRIREME_HAS_CUDA
  if (clock_->origin != nullptr) return;
  clock_->origin_us = clock_->Now();
  clock_->origin = RecordEvent(stream);
#endif
}

size_t Tracer::Begin(const Instruction& instruction, int64_t step, CommStream stream) {
  return BeginPart(nullptr, instruction.lane, instruction, step, stream);
}

size_t Tracer::BeginPart(const char* part, Lane lane, const Instruction& of, int64_t step, CommStream stream) {
  auto event = std::make_unique<Event>();
  event->instruction = of;
  event->part = part;
  event->lane = lane;
  event->step = step;
  event->begin_us = clock_->Now();
#ifdef TRIREME_HAS_CUDA
  if (clock_->cuda && stream != nullptr) {
    SetOrigin(stream);
    event->begin = RecordEvent(stream);
  }
#else
  (void)stream;
#endif
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
  return events_.size() - 1;
}

void Tracer::End(size_t token, CommStream stream) {
#ifdef TRIREME_HAS_CUDA
  cudaEvent_t end = clock_->cuda && stream != nullptr ? RecordEvent(stream) : nullptr;
#else
  (void)stream;
#endif
  const std::lock_guard lock(mutex_);
  Event& event = *events_[token];
  event.end_us = clock_->Now();
#ifdef TRIREME_HAS_CUDA
  event.end = end;
#endif
}

void Tracer::Write(const std::filesystem::path& path) {
  const std::lock_guard lock(mutex_);
  const double start_us = std::chrono::duration<double, std::micro>(clock_->start.time_since_epoch()).count();
  double origin_us = start_us;
#ifdef TRIREME_HAS_CUDA
  origin_us += clock_->origin_us;
#endif
  std::string text =
      fmt::format("{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"rank\":{},\"origin_us\":{:.3f}}},\"traceEvents\":[\n",
                  rank_, origin_us);
  text +=
      fmt::format("{{\"ph\":\"M\",\"pid\":{0},\"name\":\"process_name\",\"args\":{{\"name\":\"rank {0}\"}}}}", rank_);
  for (int lane = 0; lane < kNumLanes; ++lane) {
    text +=
        fmt::format(",\n{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":\"{}\"}}}}",
                    rank_, lane, Name(static_cast<Lane>(lane)));
  }
  for (const std::unique_ptr<Event>& held : events_) {
    Event& event = *held;
#ifdef TRIREME_HAS_CUDA
    if (clock_->cuda && event.end != nullptr) {
      float begin_ms = 0, length_ms = 0;
      cudaEventElapsedTime(&begin_ms, clock_->origin, event.begin);
      cudaEventElapsedTime(&length_ms, event.begin, event.end);
      event.begin_us = 1e3 * begin_ms;
      event.end_us = event.begin_us + 1e3 * length_ms;
      cudaEventDestroy(event.begin);
      cudaEventDestroy(event.end);
      event.begin = event.end = nullptr;
    } else if (clock_->cuda && clock_->origin != nullptr) {  // of a lane on the host
      event.begin_us -= clock_->origin_us;
      event.end_us -= clock_->origin_us;
    }
#endif
    const Instruction& i = event.instruction;
    const std::string whole = Describe(i, plan_);
    text += fmt::format(
        ",\n{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"name\":{},\"cat\":\"{}\",\"ts\":{:.3f},\"dur\":{:.3f},"
        "\"args\":{{\"step\":{},\"id\":{},\"micro_batch\":{},\"units\":[{},{}]}}}}",
        rank_, static_cast<int>(event.lane),
        JsonText(event.part == nullptr ? whole : fmt::format("{} in {}", event.part, whole)),
        event.part == nullptr ? Name(i.op) : event.part, event.begin_us, event.end_us - event.begin_us, event.step,
        i.id, i.micro_batch, i.units.first, i.units.last);
  }
  text += "\n]}\n";
  WriteFileDurably(path, text, ErrorCode::kEnvironment);
}

}  // namespace trireme
