// A disk that is too small, full, or limited: refused at the start with numbers. Once a store exists, a disk that
// others fill does it no harm.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <fstream>

#include "engine/base/error.h"
#include "tests/support/own_mount.h"
#include "tests/unit/storage/storage_cases.h"

namespace trireme {
namespace {

using testing::Backend;
using testing::Folder;

std::unique_ptr<StateStore> Make(const std::filesystem::path& folder, Backend backend, int64_t bytes) {
  return StateStore::Create({.folder = folder, .rank = 2, .aio = {.block_size = 65536}, .backend = backend},
                            std::span(&bytes, 1));
}

// "" if a store of so many bytes is refused with numbers and a cure.
std::string Refused(const std::filesystem::path& folder, Backend backend, int64_t bytes, const std::string& reason) {
  try {
    Make(folder, backend, bytes);
  } catch (const Error& error) {
    const std::string text = error.what();
    if (error.id() != "STO002") return "another error: " + text;
    for (const std::string& part : {std::string("rank 2"), std::string(" need "), std::string(" are free"), reason,
                                    std::string("fix: "), folder.string()}) {
      if (text.find(part) == text.npos) return "\"" + part + "\" is missing: " + text;
    }
    return "";
  }
  return "the store was made";
}

std::string OnASmallDisk(const std::filesystem::path& folder, Backend backend) {
  constexpr int64_t kMegabyte = 1 << 20;
  std::string problem = Refused(folder, backend, 5 * kMegabyte, "o space left");
  if (!problem.empty()) return problem;
  {
    const auto first = Make(folder, backend, 3 * kMegabyte);  // its room is taken at once
    problem = Refused(folder, backend, 2 * kMegabyte, "o space left");
    if (!problem.empty()) return problem;
    std::ofstream filler(folder / "filler", std::ios::binary);
    const std::string page(4096, 'x');
    while (filler.write(page.data(), static_cast<std::streamsize>(page.size())).flush()) {
    }
    AlignedMemory written(3 * kMegabyte), read(3 * kMegabyte);
    testing::Fill(written.span(), 1);
    first->Write(0, 0, written.span()).Wait();
    first->Read(0, 0, read.span()).Wait();
    if (!std::ranges::equal(written.span(), read.span())) return "what was read differs";
    problem = Refused(folder, backend, 4096, "o space left");
    if (!problem.empty()) return problem;
  }
  std::filesystem::remove(folder / "filler");
  Make(folder, backend, 4 * kMegabyte - 65536);  // all is free again
  return "";
}

class StorageDiskFull : public ::testing::TestWithParam<Backend> {};

TEST_P(StorageDiskFull, SmallFileSystem) {
  const Folder folder;
  bool skipped = false;
  const std::string problem = testing::InChild(
      [&]() -> std::string {
        if (!testing::OwnMountNamespace()) return "skip";
        if (::mount("none", folder.path().c_str(), "tmpfs", 0, "size=4m") != 0) return "skip";
        return OnASmallDisk(folder.path(), GetParam());
      },
      skipped);
  if (skipped) GTEST_SKIP() << "this machine allows no mount in a namespace of our own";
  EXPECT_EQ("", problem);
}

TEST_P(StorageDiskFull, LimitOnFileSizes) {
  const Folder folder;
  bool skipped = false;
  EXPECT_EQ("", testing::InChild(
                    [&] {
                      const struct rlimit limit { 64 << 10, 64 << 10 };
                      ::setrlimit(RLIMIT_FSIZE, &limit);  // SIGXFSZ would end the process if the file grew past it
                      return Refused(folder.path(), GetParam(), 1 << 20, "64.00 KiB at most (ulimit -f)");
                    },
                    skipped));
}

TEST_P(StorageDiskFull, AProcessThatDiesLeavesNothing) {
  const Folder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    const auto store = Make(folder.path(), GetParam(), 1 << 20);
    AlignedMemory memory(1 << 20);
    const DiskTransfer write = store->Write(0, 0, memory.span());
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(0, folder.Entries());
}

INSTANTIATE_TEST_SUITE_P(, StorageDiskFull, ::testing::ValuesIn(testing::Backends()),
                         [](const auto& test) { return testing::Name(test.param); });

}  // namespace
}  // namespace trireme
