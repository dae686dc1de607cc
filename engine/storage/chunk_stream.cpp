#include "engine/storage/chunk_stream.h"

#include <fmt/core.h>

#include <algorithm>

#include "engine/base/error.h"

namespace trireme {
namespace {

bool ShareSections(const StreamJob& a, const StreamJob& b) {
  return std::any_of(a.states.begin(), a.states.end(), [&](const StreamedState& of_a) {
    return std::any_of(b.states.begin(), b.states.end(),
                       [&](const StreamedState& of_b) { return of_a.section == of_b.section; });
  });
}

}  // namespace

ChunkStream::ChunkStream(StateStore& store, const StreamOptions& options)
    : store_(&store), options_(options), memory_(options.BufferBytes()) {
  TRIREME_CHECK(options.buffer_count >= 1, fmt::format("{} buffers", options.buffer_count));
  TRIREME_CHECK(options.chunk_elements > 0 && options.chunk_elements % kStorageAlignment == 0,
                fmt::format("chunks of {} elements", options.chunk_elements));
  const int64_t buffer_bytes = options.chunk_elements * options.bytes_per_element;
  buffers_.resize(static_cast<size_t>(options.buffer_count));
  for (size_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i].memory = memory_.data() + static_cast<int64_t>(i) * buffer_bytes;
  }
}

void ChunkStream::Run(const StreamJob& job, const Update& update, const StreamJob* next) {
  if (next != nullptr && ShareSections(job, *next)) next = nullptr;  // it reads what this job has yet to write
  try {
    for (int64_t first = 0; first < job.elements; first += options_.chunk_elements) {
      if (!ahead_.empty() && (ahead_.front().job != job || ahead_.front().first != first)) Discard();
      if (ahead_.empty()) Load(job, first);
      if (options_.pipeline_read) ReadAhead(job, next);
      const Loading chunk = std::move(ahead_.front());
      ahead_.pop_front();
      RunChunk(chunk, update);
    }
  } catch (...) {
    Reset();
    throw;
  }
}

void ChunkStream::Finish() {
  try {
    Discard();
    for (Buffer& buffer : buffers_) WaitForWrites(buffer);
  } catch (...) {
    Reset();
    throw;
  }
}

int64_t ChunkStream::Count(const StreamJob& job, int64_t first) const {
  return std::min(options_.chunk_elements, job.elements - first);
}

std::span<std::byte> ChunkStream::StateMemory(const StreamJob& job, size_t state, int64_t first,
                                              const Buffer& buffer) const {
  std::byte* memory = buffer.memory;
  for (size_t i = 0; i < state; ++i) memory += options_.chunk_elements * job.states[i].element_bytes;
  return {memory, static_cast<size_t>(Count(job, first) * job.states[state].element_bytes)};
}

// Begins to read a chunk into the next buffer, after what is still written from it, or to what the chunk reads.
void ChunkStream::Load(const StreamJob& job, int64_t first) {
  if (first == 0) {
    int64_t bytes = 0;
    for (const StreamedState& state : job.states) bytes += state.element_bytes;
    TRIREME_CHECK(bytes <= options_.bytes_per_element,
                  fmt::format("{} bytes per element, at most {}", bytes, options_.bytes_per_element));
    WaitForWritesOf(job);
  }
  Buffer& buffer = buffers_[next_buffer_];
  WaitForWrites(buffer);
  for (size_t i = 0; i < job.states.size(); ++i) {
    const StreamedState& state = job.states[i];
    if (!state.read) continue;
    buffer.reads.push_back(
        store_->Read(state.section, first * state.element_bytes, StateMemory(job, i, first, buffer)));
  }
  ahead_.push_back({job, first, &buffer});
  next_buffer_ = (next_buffer_ + 1) % buffers_.size();
}

// Loads the chunks that follow the front of ahead_, as many as there are buffers. To wait for a buffer's writes would
// hold up the chunk that is ready: only the very next chunk is worth that, and only where the disk has had the time of
// a whole chunk for them.
void ChunkStream::ReadAhead(const StreamJob& job, const StreamJob* next) {
  while (ahead_.size() < buffers_.size()) {
    const Loading& last = ahead_.back();
    const StreamJob* of = last.job == job ? &job : next;
    int64_t begin = last.first + options_.chunk_elements;
    if (of == &job && begin >= job.elements) {
      of = next;
      begin = 0;
    }
    if (of == nullptr || begin >= of->elements) return;
    const bool ended = std::all_of(buffers_[next_buffer_].writes.begin(), buffers_[next_buffer_].writes.end(),
                                   [](const DiskTransfer& write) { return write.Ended(); });
    if (!ended && (ahead_.size() > 1 || buffers_.size() < 3)) return;
    Load(*of, begin);
  }
}

void ChunkStream::RunChunk(const Loading& chunk, const Update& update) {
  Buffer& buffer = *chunk.buffer;
  for (DiskTransfer& read : buffer.reads) read.Wait();
  buffer.reads.clear();
  std::vector<std::byte*> states;
  for (size_t i = 0; i < chunk.job.states.size(); ++i) {
    states.push_back(StateMemory(chunk.job, i, chunk.first, buffer).data());
  }
  update({.first = chunk.first, .count = Count(chunk.job, chunk.first), .states = states});
  for (size_t i = 0; i < chunk.job.states.size(); ++i) {
    const StreamedState& state = chunk.job.states[i];
    if (!state.write) continue;
    buffer.writes.push_back(store_->Write(state.section, chunk.first * state.element_bytes,
                                          StateMemory(chunk.job, i, chunk.first, buffer)));
    buffer.written_sections.push_back(state.section);
  }
  if (!options_.pipeline_write) WaitForWrites(buffer);
}

void ChunkStream::WaitForWrites(Buffer& buffer) {
  for (DiskTransfer& write : buffer.writes) write.Wait();
  buffer.writes.clear();
  buffer.written_sections.clear();
}

void ChunkStream::WaitForWritesOf(const StreamJob& job) {
  for (Buffer& buffer : buffers_) {
    const bool overlaps = std::any_of(job.states.begin(), job.states.end(), [&](const StreamedState& state) {
      return std::count(buffer.written_sections.begin(), buffer.written_sections.end(), state.section) > 0;
    });
    if (overlaps) WaitForWrites(buffer);
  }
}

void ChunkStream::Discard() {
  for (const Loading& chunk : ahead_) {
    for (DiskTransfer& read : chunk.buffer->reads) read.Wait();
    chunk.buffer->reads.clear();
  }
  ahead_.clear();
}

void ChunkStream::Reset() {
  ahead_.clear();
  for (Buffer& buffer : buffers_) {
    buffer.reads.clear();  // waits
    buffer.writes.clear();
    buffer.written_sections.clear();
  }
}

}  // namespace trireme
