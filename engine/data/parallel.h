// A loop cut into equal parts, one thread each.
//   ParallelFor(count, threads, [&](int64_t begin, int64_t end) { ... });
#pragma once
#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/base/host_cores.h"

namespace trireme::data {

// 0 asks for as many threads as this process has cores, at most 16: beyond that memory is the limit.
inline int ResolveThreads(int threads) {
  if (threads > 0) return threads;
  return std::clamp(ReadHostCores().usable(), 1, 16);
}

// The parts differ by one in size at most. The first exception of any part is thrown again here, after all have ended.
inline void ParallelFor(int64_t count, int threads, const std::function<void(int64_t, int64_t)>& body) {
  const int64_t parts = std::clamp<int64_t>(threads, 1, std::max<int64_t>(count, 1));
  std::exception_ptr failure;
  std::mutex mutex;
  auto guarded = [&](int64_t part) {
    try {
      body(count / parts * part + std::min(part, count % parts),
           count / parts * (part + 1) + std::min(part + 1, count % parts));
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::thread> pool;
  for (int64_t part = 1; part < parts; ++part) pool.emplace_back(guarded, part);
  guarded(0);
  for (std::thread& thread : pool) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace trireme::data
