// Records one event per instruction and writes them as Chrome-trace JSON (chrome://tracing, ui.perfetto.dev): one
// process a rank, one thread a lane. Collectives that a unit issues itself are events of lane tp, and what the compute
// lane waits for them is an event "Wait" inside the instruction's. Times are microseconds since the first event;
// otherData.origin_us is that moment on the machine's monotonic clock, which its ranks have in common.
//   Tracer tracer(rank, device);  tracer.Begin(...); ...  tracer.Write("step.json");
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/schedule/instruction.h"

namespace trireme {

class Tracer {
 public:
  // `cuda`: times are taken by events on the lane's stream; without a stream by the clock of the lane's thread.
  Tracer(int rank, bool cuda, const Plan& plan);
  ~Tracer();

  // Bracket one instruction; called by lane threads, any number at once. The token goes from Begin to End.
  size_t Begin(const Instruction& instruction, int64_t step, CommStream stream);
  // The same of a part of it, on a lane that may be another: "AllReduce" on lane tp, "Wait" on lane compute.
  size_t BeginPart(const char* part, Lane lane, const Instruction& of, int64_t step, CommStream stream);
  void End(size_t token, CommStream stream);

  // After all lanes have drained. Throws Error{kEnvironment} if the file cannot be written.
  void Write(const std::filesystem::path& path);

 private:
  void SetOrigin(CommStream stream);
  struct Event;
  struct Clock;
  int rank_;
  const Plan& plan_;
  std::unique_ptr<Clock> clock_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Event>> events_;
};

}  // namespace trireme
