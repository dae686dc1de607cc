// Updates states that lie on a disk chunk by chunk: chunks ahead are read and chunks behind are written while the
// caller works on one.
//   ChunkStream stream(*store, {.chunk_elements = 4 << 20, .bytes_per_element = 12, .buffer_count = 4,
//                               .pipeline_read = true, .pipeline_write = true});
//   stream.Run({.states = {{master, 4}, {exp_avg, 4}, {exp_avg_sq, 4}}, .elements = n}, update, &job_of_the_next_unit);
//   stream.Finish();
// Chunks come in order; every element once. Results do not depend on chunks, buffers or pipelining.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/storage/aligned_memory.h"
#include "engine/storage/store.h"

namespace trireme {

// One state: its elements stand at the begin of `section`.
struct StreamedState {
  int section = 0;
  int64_t element_bytes = 4;
  bool read = true;   // false: the chunk's memory is as the last chunk left it
  bool write = true;  // false: changes are lost
  bool operator==(const StreamedState&) const = default;
};

struct StreamJob {
  std::vector<StreamedState> states;
  int64_t elements = 0;
  bool operator==(const StreamJob&) const = default;
};

struct StreamOptions {
  int64_t chunk_elements = 4 << 20;  // a multiple of kStorageAlignment; the last chunk of a job may be shorter
  int64_t bytes_per_element = 12;    // of all states of a job together, at most
  int64_t buffer_count = 4;          // chunks in memory; with 1 nothing overlaps, with 3 or more reads and writes do
  bool pipeline_read = false;        // read chunks ahead
  bool pipeline_write = false;       // go on while chunks are written
  int64_t BufferBytes() const { return buffer_count * chunk_elements * bytes_per_element; }
};

struct StreamChunk {
  int64_t first = 0, count = 0;        // elements of the job
  std::span<std::byte* const> states;  // memory of each state, count elements, aligned to kStorageAlignment
};

class ChunkStream {
 public:
  using Update = std::function<void(const StreamChunk&)>;

  // The store must outlive the stream. Allocates BufferBytes().
  ChunkStream(StateStore& store, const StreamOptions& options);

  // Calls `update` on the caller's thread for each chunk, read before and written after. Under pipeline_write it
  // returns while chunks are still written; a later Run waits for those that it reads again. Under pipeline_read it
  // begins to read chunks of `next` (null: none; one with a section of this job: none either); that is of use if the
  // next Run is of that job.
  // After an exception the job's states are partly updated; the stream can be used again.
  void Run(const StreamJob& job, const Update& update, const StreamJob* next = nullptr);

  // Waits until all is written: before others read the sections. Throws what went wrong since. Drops what was read
  // ahead: call it too before others write them.
  void Finish();

 private:
  struct Buffer {
    std::byte* memory = nullptr;
    std::vector<DiskTransfer> reads, writes;
    std::vector<int> written_sections;
  };
  struct Loading {  // a chunk whose read has begun
    StreamJob job;
    int64_t first = 0;
    Buffer* buffer = nullptr;
  };
  int64_t Count(const StreamJob& job, int64_t first) const;
  std::span<std::byte> StateMemory(const StreamJob& job, size_t state, int64_t first, const Buffer& buffer) const;
  void Load(const StreamJob& job, int64_t first);
  void ReadAhead(const StreamJob& job, const StreamJob* next);
  void RunChunk(const Loading& chunk, const Update& update);
  void WaitForWrites(Buffer& buffer);
  void WaitForWritesOf(const StreamJob& job);
  void Discard();  // what was read ahead
  void Reset();    // waits for everything and forgets what went wrong

  StateStore* store_;
  StreamOptions options_;
  AlignedMemory memory_;
  std::vector<Buffer> buffers_;  // used in turn
  size_t next_buffer_ = 0;
  std::deque<Loading> ahead_;  // in the order of the chunks
};

}  // namespace trireme
