#include "engine/schedule/verify.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "engine/schedule/buffers.h"
#include "engine/schedule/verify_ranks.h"

namespace trireme {
namespace {

using Clock = std::array<int64_t, kNumLanes>;  // of each lane, the latest event known to have ended; -1: none

Clock NoEvents() {
  Clock clock;
  clock.fill(-1);
  return clock;
}

// One instruction of one run of a Program; events are numbered through all runs.
struct Event {
  const CompiledInstruction* compiled = nullptr;
  Clock start;  // what has certainly ended when it starts
  size_t lane() const { return static_cast<size_t>(compiled->instruction.lane); }
};

// Uses of one buffer so far.
struct Uses {
  int64_t last_exclusive = -1;  // write, add or free
  Clock readers = NoEvents();   // since then
  Clock last = NoEvents();      // of each lane, through all runs
  Clock last_write = NoEvents();
  enum class Life : uint8_t { kNone, kLive, kFreed } life = Life::kNone;
  bool written_in_run = false;
  int64_t offset = -1, bytes = 0;
  size_t occupant = 0;
};

// What an earlier Program left there means nothing.
bool BelongsToStep(BufferKind kind) {
  return kind == BufferKind::kGradientSum || kind == BufferKind::kHostGradient || kind == BufferKind::kHostState;
}

class RankVerifier {
 public:
  RankVerifier(const Plan& plan, std::vector<std::string>& problems) : plan_(plan), problems_(problems) {}

  void Run(const CompiledProgram& program) {
    const int64_t first = static_cast<int64_t>(events_.size());
    program_ = &program;
    for (auto& [key, uses] : buffers_) uses.written_in_run = false;
    for (const CompiledInstruction& compiled : program.instructions) {
      if (problems_.size() >= kMaxProblems) return;
      Start(compiled, first);
      Check(compiled);
    }
    for (const auto& [key, uses] : buffers_) {
      if (!IsPersistent(key.kind) && uses.life == Uses::Life::kLive) {
        Report(fmt::format("{} outlives the program: nothing frees it", Describe(key)));
      }
    }
    std::erase_if(buffers_, [](const auto& entry) { return !IsPersistent(entry.first.kind); });
  }

 private:
  // A range of the arena and the last buffer that took it.
  struct Occupant {
    BufferKey key;
    int64_t freed_by = -1;  // event; -1: live
  };
  struct Span {
    int64_t end;
    size_t occupant;
  };

  void Report(const std::string& text) {
    if (problems_.size() < kMaxProblems) problems_.push_back(fmt::format("rank {}: {}", program_->rank, text));
  }
  std::string NameOf(int64_t event) const {
    const Instruction& i = events_[static_cast<size_t>(event)].compiled->instruction;
    return fmt::format("{} (#{}, lane {})", Describe(i, plan_), i.id, Name(i.lane));
  }
  std::string Current() const { return NameOf(now_); }

  bool EndedBeforeNow(int64_t event) const {
    if (event < 0) return true;
    const Event& now = events_.back();
    return now.start[events_[static_cast<size_t>(event)].lane()] >= event;
  }

  // ---- What happens before what.

  void Start(const CompiledInstruction& compiled, int64_t first) {
    const Instruction& instruction = compiled.instruction;
    now_ = static_cast<int64_t>(events_.size());
    events_.push_back({&compiled, lanes_[static_cast<size_t>(instruction.lane)]});
    Clock& start = events_.back().start;
    if (first + instruction.id != now_)
      Report(fmt::format("instruction #{} stands at {}", instruction.id, now_ - first));
    for (const int32_t wait : compiled.waits) {
      if (wait < 0 || first + wait >= now_) {
        Report(fmt::format("{} waits for #{}, which does not come before it", Current(), wait));
      } else {
        Join(start, first + wait);
      }
    }
    for (const auto& carried : compiled.carried) {
      const Uses& uses = buffers_[carried.key];
      for (const int64_t event : carried.writes ? uses.last : uses.last_write) {
        if (event >= 0 && event < first) Join(start, event);
      }
    }
    Clock end = start;
    end[static_cast<size_t>(instruction.lane)] = now_;
    lanes_[static_cast<size_t>(instruction.lane)] = end;
  }

  void Join(Clock& clock, int64_t event) const {
    const Event& other = events_[static_cast<size_t>(event)];
    for (size_t lane = 0; lane < clock.size(); ++lane) clock[lane] = std::max(clock[lane], other.start[lane]);
    clock[other.lane()] = std::max(clock[other.lane()], event);
  }

  // Transfers of one post run at once, though they stand one after the other on their lane.
  bool InPostOfNow(int64_t event) const {
    const auto post = [&](int64_t e) { return events_[static_cast<size_t>(e)].compiled->instruction.post; };
    if (event < 0 || post(event) < 0 || post(event) != post(now_)) return false;
    for (int64_t between = event + 1; between < now_; ++between) {
      if (post(between) != post(now_)) return false;
    }
    return true;
  }

  // ---- Uses of buffers.

  void Check(const CompiledInstruction& compiled) {
    const Instruction& instruction = compiled.instruction;
    CheckParallel(instruction.reads, compiled.reads, "reads");
    CheckParallel(instruction.writes, compiled.writes, "writes");
    CheckParallel(instruction.adds, compiled.adds, "adds");
    for (const BufferUse& use : compiled.reads) Read(use);
    for (const BufferUse& use : compiled.writes) Write(use, /*adds=*/false);
    for (const BufferUse& use : compiled.adds) Write(use, /*adds=*/true);
    for (const BufferKey& key : instruction.frees) Free(key);
    for (const BufferUse& use : compiled.reads) RecordRead(use.key);
    for (const BufferUse& use : compiled.writes) RecordExclusive(use.key);
    for (const BufferUse& use : compiled.adds) RecordExclusive(use.key);
    for (const BufferKey& key : instruction.frees) RecordExclusive(key);
  }

  void CheckParallel(const std::vector<BufferKey>& keys, const std::vector<BufferUse>& uses, const char* what) {
    const bool same = std::equal(keys.begin(), keys.end(), uses.begin(), uses.end(),
                                 [](const BufferKey& key, const BufferUse& use) { return key == use.key; });
    if (!same) Report(fmt::format("{}: compiled {} differ from the program's", Current(), what));
  }

  void Read(const BufferUse& use) {
    Uses& uses = buffers_[use.key];
    if (!IsPersistent(use.key.kind)) {
      if (uses.life == Uses::Life::kNone)
        Report(fmt::format("{} reads {} before anything wrote it", Current(), Describe(use.key)));
      if (uses.life == Uses::Life::kFreed)
        Report(fmt::format("{} reads {} after it was freed", Current(), Describe(use.key)));
      CheckPlace(use, uses);
    } else if (BelongsToStep(use.key.kind) && !uses.written_in_run) {
      Report(fmt::format("{} reads {} before anything was put there in this program", Current(), Describe(use.key)));
    }
    if (!EndedBeforeNow(uses.last_exclusive)) {
      Report(
          fmt::format("{} reads {} without waiting for {}", Current(), Describe(use.key), NameOf(uses.last_exclusive)));
    }
  }

  void Write(const BufferUse& use, bool adds) {
    Uses& uses = buffers_[use.key];
    const bool persistent = IsPersistent(use.key.kind);
    const bool first = persistent ? !uses.written_in_run : uses.life == Uses::Life::kNone;
    if (!persistent && uses.life == Uses::Life::kFreed) {
      Report(fmt::format("{} writes {} after it was freed", Current(), Describe(use.key)));
    }
    if (!persistent && uses.life == Uses::Life::kNone) {
      BeginLife(use, uses);
    } else if (!persistent) {
      CheckPlace(use, uses);
    }
    if (use.first_add != (adds && first)) {
      Report(fmt::format("{} {} to {}", Current(), use.first_add ? "writes instead of adding" : "adds to nothing",
                         Describe(use.key)));
    }
    uses.written_in_run = true;
    CheckExclusive(use.key, uses, adds ? "adds to" : "writes");
  }

  void Free(const BufferKey& key) {
    Uses& uses = buffers_[key];
    if (IsPersistent(key.kind)) {
      Report(fmt::format("{} frees {}, which is persistent", Current(), Describe(key)));
      return;
    }
    if (uses.life == Uses::Life::kNone)
      Report(fmt::format("{} frees {}, which nothing wrote", Current(), Describe(key)));
    if (uses.life == Uses::Life::kFreed) Report(fmt::format("{} frees {} again", Current(), Describe(key)));
    if (uses.life == Uses::Life::kLive) occupants_[uses.occupant].freed_by = now_;
    uses.life = Uses::Life::kFreed;
    CheckExclusive(key, uses, "frees");
  }

  void CheckExclusive(const BufferKey& key, const Uses& uses, const char* what) {
    if (uses.last_exclusive != now_ && !EndedBeforeNow(uses.last_exclusive)) {
      Report(
          fmt::format("{} {} {} without waiting for {}", Current(), what, Describe(key), NameOf(uses.last_exclusive)));
    }
    for (const int64_t reader : uses.readers) {
      if (reader == now_ || EndedBeforeNow(reader)) continue;
      Report(fmt::format("{} {} {} without waiting for its reader {}", Current(), what, Describe(key), NameOf(reader)));
    }
  }

  void RecordRead(const BufferKey& key) {
    Uses& uses = buffers_[key];
    uses.readers[events_.back().lane()] = uses.last[events_.back().lane()] = now_;
  }

  void RecordExclusive(const BufferKey& key) {
    Uses& uses = buffers_[key];
    uses.last_exclusive = now_;
    uses.readers = NoEvents();
    uses.last[events_.back().lane()] = uses.last_write[events_.back().lane()] = now_;
  }

  // ---- The arena.

  void CheckPlace(const BufferUse& use, const Uses& uses) {
    if (uses.life == Uses::Life::kNone || (use.offset == uses.offset && use.bytes == uses.bytes)) return;
    Report(fmt::format("{} sees {} at {} ({} bytes), it lies at {} ({} bytes)", Current(), Describe(use.key),
                       use.offset, use.bytes, uses.offset, uses.bytes));
  }

  void BeginLife(const BufferUse& use, Uses& uses) {
    uses.life = Uses::Life::kLive;
    uses.offset = use.offset;
    uses.bytes = use.bytes;
    const int64_t needed = BufferBytes(plan_, use.key);
    if (use.bytes != needed) {
      Report(fmt::format("{} gives {} {} bytes, the plan needs {}", Current(), Describe(use.key), use.bytes, needed));
    }
    const int64_t arena_bytes = InHostArena(use.key.kind) ? program_->host_arena_bytes : program_->arena_bytes;
    if (use.offset < 0 || use.offset + use.bytes > arena_bytes) {
      Report(fmt::format("{} puts {} at {} + {} bytes, the arena has {}", Current(), Describe(use.key), use.offset,
                         use.bytes, arena_bytes));
    }
    uses.occupant = occupants_.size();
    occupants_.push_back({use.key});
    if (use.bytes > 0) Occupy(use, uses.occupant);
  }

  // Whoever took a part of this range before must have ended; so what lies below it in time is settled already.
  void Occupy(const BufferUse& use, size_t occupant) {
    const int64_t begin = use.offset, end = use.offset + use.bytes;
    std::map<int64_t, Span>& spans = spans_[InHostArena(use.key.kind) ? 1 : 0];
    auto span = spans.upper_bound(begin);
    if (span != spans.begin()) --span;
    while (span != spans.end() && span->first < end) {
      const auto [span_begin, old] = *span;
      if (old.end <= begin) {
        ++span;
        continue;
      }
      CheckEnded(use.key, occupants_[old.occupant]);
      span = spans.erase(span);
      if (span_begin < begin) spans[span_begin] = {begin, old.occupant};
      if (old.end > end) spans[end] = old;
    }
    spans[begin] = {end, occupant};
  }

  void CheckEnded(const BufferKey& key, const Occupant& before) {
    if (before.freed_by < 0) {
      Report(fmt::format("{} puts {} over {}, which is live", Current(), Describe(key), Describe(before.key)));
    } else if (before.freed_by != now_ && (!EndedBeforeNow(before.freed_by) || InPostOfNow(before.freed_by))) {
      Report(fmt::format("{} puts {} over {} without waiting for {}, which frees that", Current(), Describe(key),
                         Describe(before.key), NameOf(before.freed_by)));
    }
  }

  const Plan& plan_;
  std::vector<std::string>& problems_;
  const CompiledProgram* program_ = nullptr;
  int64_t now_ = -1;
  std::vector<Event> events_;
  std::array<Clock, kNumLanes> lanes_ = [] {
    std::array<Clock, kNumLanes> lanes;
    lanes.fill(NoEvents());
    return lanes;
  }();
  std::map<BufferKey, Uses> buffers_;
  std::vector<Occupant> occupants_;
  std::map<int64_t, Span> spans_[2];  // of the device's arena and the host's: begin -> end and occupant; none overlap
};

}  // namespace

VerifyReport VerifySequence(const Plan& plan, const std::vector<const CompiledProgram*>& programs) {
  VerifyReport report;
  RankVerifier verifier(plan, report.problems);
  for (const CompiledProgram* program : programs) {
    verifier.Run(*program);
    report.peak_arena_bytes = std::max(report.peak_arena_bytes, program->arena_bytes);
  }
  return report;
}

VerifyReport Verify(const Plan& plan, const std::vector<CompiledProgram>& ranks) {
  VerifyReport report;
  for (const CompiledProgram& program : ranks) {
    const bool like_the_first = &program != &ranks.front() && program.arena_bytes == ranks.front().arena_bytes &&
                                program.host_arena_bytes == ranks.front().host_arena_bytes &&
                                program.instructions == ranks.front().instructions;
    if (like_the_first) continue;
    VerifyReport own = VerifySequence(plan, {&program, &program});
    report.peak_arena_bytes = std::max(report.peak_arena_bytes, own.peak_arena_bytes);
    report.problems.insert(report.problems.end(), own.problems.begin(), own.problems.end());
  }
  CheckCollectives(plan, ranks, report.problems);
  CheckDeadlock(plan, ranks, report.problems);
  return report;
}

}  // namespace trireme
