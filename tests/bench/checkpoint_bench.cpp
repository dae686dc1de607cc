// Write and read speed of the native format: checkpoint_bench FOLDER [MiB]. One rank, one fp32 state; beside it the
// same bytes through plain write + fsync and read, in the same process. Cold reads need the page cache dropped between
// runs; here reads are warm.
#include <fmt/core.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <vector>

#include "checkpoint/file_io.h"
#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "engine/base/error.h"

namespace {

using namespace trireme;              // NOLINT: a small program
using namespace trireme::checkpoint;  // NOLINT

void Report(const char* what, int64_t bytes, const std::function<void()>& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print("{:<44}{:8.3f} s{:8.2f} GB/s\n", what, seconds, static_cast<double>(bytes) / seconds / 1e9);
}

void Run(const std::filesystem::path& folder, int64_t bytes) {
  const int64_t rows = 4096, columns = bytes / 4 / rows, count = rows * columns;
  std::vector<uint32_t> data(count), back(count);
  for (int64_t i = 0; i < count; ++i) data[i] = static_cast<uint32_t>(i * 2654435761u);
  const auto in = std::as_bytes(std::span(data));
  const auto out = std::as_writable_bytes(std::span(back));
  constexpr size_t kPiece = 16 << 20;
  Report("plain write of 16 MiB pieces + fsync", bytes, [&] {
    File file(folder / "plain", File::Mode::kCreate);
    for (size_t begin = 0; begin < in.size(); begin += kPiece) {
      file.WriteAt(static_cast<int64_t>(begin), in.subspan(begin, std::min(kPiece, in.size() - begin)));
    }
    file.SyncAndClose();
  });
  Report("plain read", bytes, [&] {
    const File file(folder / "plain", File::Mode::kRead);
    for (size_t begin = 0; begin < out.size(); begin += kPiece) {
      file.ReadAt(static_cast<int64_t>(begin), out.subspan(begin, std::min(kPiece, out.size() - begin)));
    }
  });
  std::filesystem::remove(folder / "plain");
  const Uuid uuid = NewUuid();
  Report("save: write, hash, fsync, commit", bytes, [&] {
    BeginCheckpoint(folder, "bench", uuid);
    RankWriter writer(TemporaryFolder(folder, "bench", uuid), 0, uuid, 1);
    writer.Add({.tensor = "w",
                .state = "master",
                .dtype = DType::kFloat32,
                .shape = {columns, rows},
                .region = {.boxes = {}, .flat_begin = 0, .flat_count = count, .order = Order::kTransposed}},
               in);
    const RankFileSummary summary = writer.Finish();
    CommitCheckpoint(folder, "bench", uuid, std::span(&summary, 1), {});
  });
  for (const bool verified : {false, true}) {
    static std::unique_ptr<CheckpointReader> reader = CheckpointReader::Open(folder);
    Report(verified ? "load as held, blocks verified before" : "load as held, with verification", bytes,
           [&] { reader->ReadFlat("w", "master", 0, count, out, Order::kTransposed); });
    TRIREME_CHECK(std::memcmp(in.data(), out.data(), in.size()) == 0, "what was read differs");
  }
  Report("load turned to the logical order", bytes,
         [&] { CheckpointReader::Open(folder)->ReadFlat("w", "master", 0, count, out); });
  for (int64_t i = 0; i < count; i += 9973) {  // logical element i is held at column-major place
    TRIREME_CHECK(back[i] == data[i % rows * columns + i / rows], "what was turned differs");
  }
  Report("load in the other cut: 8 parts of the logical", bytes, [&] {
    const auto fresh = CheckpointReader::Open(folder);
    for (int64_t part = 0; part < 8; ++part) {
      fresh->ReadFlat("w", "master", part * count / 8, count / 8,
                      out.subspan(static_cast<size_t>(part * count / 8 * 4), static_cast<size_t>(count / 8 * 4)));
    }
  });
  std::filesystem::remove_all(folder / "bench");
  std::filesystem::remove(folder / "latest");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: checkpoint_bench FOLDER [MiB]\n");
    return 2;
  }
  try {
    Run(argv[1], (argc > 2 ? std::atoll(argv[2]) : 512) << 20);
    return 0;
  } catch (const trireme::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return trireme::ExitCode(error.code());
  }
}
