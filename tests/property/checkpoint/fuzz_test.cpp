// Readers on damaged files: each mutation ends in an Error of this room or in correct data, never in a crash. Runs for
// 0.6 s a target; TRIREME_FUZZ_SECONDS makes it longer, TRIREME_SEED repeats a run.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>

#include "checkpoint/hdf5/index.h"
#include "checkpoint/hdf5/manifest.h"
#include "checkpoint/hdf5/native_reader.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/verify.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "tests/unit/checkpoint/saved.h"

namespace trireme::checkpoint {
namespace {

class Fuzz : public ::testing::Test {
 protected:
  Fuzz() {
    const char* text = std::getenv("TRIREME_SEED");
    seed_ = text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device{}();
    engine_.seed(seed_);
  }
  int64_t Below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(engine_); }

  std::string Mutate(std::string text) {
    for (int64_t i = Below(4); i >= 0; --i) {
      if (text.empty()) return text;
      const auto place = static_cast<size_t>(Below(static_cast<int64_t>(text.size())));
      static const char* const kWords[] = {
          "[",       "}", "\"",   "-1", "1e99", "null", "18446744073709551615", "9223372036854775807",
          "{\"a\":", ",", "\xFF", "0"};
      switch (Below(5)) {
        case 0:
          text[place] = static_cast<char>(text[place] ^ (1 << Below(8)));
          break;
        case 1:
          text.erase(place, static_cast<size_t>(1 + Below(8)));
          break;
        case 2:
          text.insert(place, kWords[Below(std::size(kWords))]);
          break;
        case 3:
          text.replace(place, static_cast<size_t>(1 + Below(4)), kWords[Below(std::size(kWords))]);
          break;
        default:
          text.resize(place);
          break;
      }
    }
    return text;
  }

  // Returns how many runs ended in an error.
  int64_t Run(const std::function<void()>& once) {
    const char* text = std::getenv("TRIREME_FUZZ_SECONDS");
    const double seconds = text != nullptr ? std::atof(text) : 0.6;
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    int64_t errors = 0, runs = 0;
    while (std::chrono::steady_clock::now() < end && !HasFailure()) {
      SCOPED_TRACE("TRIREME_SEED=" + std::to_string(seed_) + ", run " + std::to_string(runs));
      ++runs;
      try {
        once();
      } catch (const Error& error) {
        ++errors;
        EXPECT_EQ(ErrorCode::kCheckpoint, error.code()) << error.what();
      }
    }
    RecordProperty("runs", static_cast<int>(runs));
    EXPECT_GT(runs, 10);
    return errors;
  }

  uint64_t seed_ = 0;
  std::mt19937_64 engine_;
};

TEST_F(Fuzz, SafetensorsHeader) {
  const testing::TemporaryRoot root;
  std::vector<float> values(20);
  const std::vector<safetensors::TensorToWrite> tensors{
      safetensors::Held("a.weight", DType::kFloat32, {4, 5}, std::as_bytes(std::span(values))),
      safetensors::Held("b", DType::kBFloat16, {3}, std::as_bytes(std::span(values)).first(6)),
      safetensors::Held("c", DType::kInt64, {0}, {})};
  const auto path = root.path() / "model.safetensors";
  safetensors::WriteFile(path, tensors);
  const std::string good = trireme::ReadFile(path, ErrorCode::kCheckpoint);
  EXPECT_GT(Run([&] {
              std::string text = Mutate(good.substr(8)), bad = good.substr(0, 8) + text;
              if (Below(4) != 0) {  // a length that fits, so that the mutation reaches the parser
                const uint64_t length = text.size() > 86 ? text.size() - 86 : text.size();
                std::memcpy(bad.data(), &length, 8);
              } else if (Below(2) == 0) {
                bad = Mutate(good);
              }
              const safetensors::Header header =
                  safetensors::ParseHeader(std::as_bytes(std::span(bad)), static_cast<int64_t>(bad.size()), "fuzz");
              for (const auto& tensor : header.tensors) {
                ASSERT_LE(tensor.data_begin + tensor.bytes, static_cast<int64_t>(bad.size()));
                ASSERT_GE(tensor.data_begin, 8);
              }
            }),
            0);
}

TEST_F(Fuzz, Manifest) {
  const testing::TemporaryRoot root;
  const auto folder = testing::Save({.root = root.path()});
  const std::string good = trireme::ReadFile(folder / "manifest.json", ErrorCode::kCheckpoint);
  EXPECT_GT(Run([&] {
              const std::string bad = Mutate(good);
              hdf5::ParseManifest(bad, "fuzz");
              EXPECT_EQ(good, bad) << "a changed manifest was accepted";
            }),
            0);
}

TEST_F(Fuzz, Summary) {
  const testing::TemporaryRoot root;
  const Uuid uuid = NewUuid();
  BeginCheckpoint(root.path(), "t", uuid);
  const testing::RankSave save(testing::DefaultTensors(), testing::DefaultStates(), 0, 1, 1);
  RankWriter writer(TemporaryFolder(root.path(), "t", uuid), 0, uuid, 1);
  save.AddTo(writer);
  const std::string good = writer.Finish().ToJson();
  EXPECT_GT(Run([&] { RankFileSummary::FromJson(Mutate(good)); }), 0);
}

// The library parses an index only after its hash was compared, so every damaged byte is found before.
TEST_F(Fuzz, IndexFile) {
  const testing::TemporaryRoot root;
  const auto folder = testing::Save({.root = root.path()});
  const hdf5::Manifest manifest = hdf5::LoadManifest(folder);
  const std::string good = trireme::ReadFile(folder / "index.h5", ErrorCode::kCheckpoint);
  EXPECT_GT(Run([&] {
              const std::string bad = Mutate(good);
              WriteFileDurably(folder / "index.h5", bad, ErrorCode::kCheckpoint);
              hdf5::LoadIndex(folder, manifest);
              EXPECT_EQ(good, bad) << "a changed index was accepted";
            }),
            0);
}

// Tables with wild numbers under right hashes: our own checks must hold.
TEST_F(Fuzz, IndexTables) {
  const testing::TemporaryRoot root;
  const auto folder = testing::Save({.root = root.path()});
  const hdf5::Index good = hdf5::LoadIndex(folder, hdf5::LoadManifest(folder));
  const auto wild = [this](int64_t value) -> int64_t {
    switch (Below(6)) {
      case 0:
        return value + 1;
      case 1:
        return value - 1;
      case 2:
        return -1;
      case 3:
        return int64_t{1} << Below(63);
      case 4:
        return std::numeric_limits<int64_t>::max();
      default:
        return Below(100);
    }
  };
  EXPECT_GT(
      Run([&] {
        hdf5::Index bad = good;
        hdf5::IndexParameter& parameter =
            bad.parameters[static_cast<size_t>(Below(static_cast<int64_t>(bad.parameters.size())))];
        hdf5::IndexSlab& slab =
            parameter.slabs[static_cast<size_t>(Below(static_cast<int64_t>(parameter.slabs.size())))];
        hdf5::IndexFile& file = bad.files[static_cast<size_t>(Below(2))];
        DatasetRecord& dataset = file.datasets[static_cast<size_t>(Below(static_cast<int64_t>(file.datasets.size())))];
        switch (Below(13)) {
          case 0:
            slab.elem_offset = wild(slab.elem_offset);
            break;
          case 1:
            slab.region.flat_begin = wild(slab.region.flat_begin);
            break;
          case 2:
            slab.region.flat_count = wild(slab.region.flat_count);
            break;
          case 3:
            slab.file = static_cast<int>(wild(slab.file));
            break;
          case 4:
            slab.dataset = static_cast<int>(wild(slab.dataset));
            break;
          case 5:
            slab.region.order = static_cast<Order>(wild(1));
            break;
          case 6:
            file.bytes = wild(file.bytes);
            break;
          case 7:
            file.identity_offset = wild(file.identity_offset);
            break;
          case 8:
            dataset.elements = wild(dataset.elements);
            break;
          case 9:
            dataset.offset = wild(dataset.offset);
            break;
          case 10:
            dataset.hash_offset = wild(dataset.hash_offset);
            break;
          case 11:
            if (!parameter.shape.empty()) parameter.shape[0] = wild(parameter.shape[0]);
            break;
          default:
            slab.region.boxes = {
                {std::vector<int64_t>(parameter.shape.size(), std::min(wild(0), int64_t{1} << 60)), parameter.shape}};
            break;
        }
        const hdf5::Index read = hdf5::ParseIndex(hdf5::BuildIndex(bad), "fuzz");
        hdf5::CheckIndexCoverage(read, "fuzz");
      }),
      0);
}

}  // namespace
}  // namespace trireme::checkpoint
