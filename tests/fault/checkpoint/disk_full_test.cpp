// A disk that is full, a quota, a size limit: one clear message, nothing left behind, the previous checkpoint
// untouched.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <functional>

#include "checkpoint/find.h"
#include "checkpoint/verify.h"
#include "engine/base/error.h"
#include "tests/support/own_mount.h"
#include "tests/unit/checkpoint/saved.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::SaveRequest;
using testing::TemporaryRoot;
using trireme::testing::InChild;
using trireme::testing::OwnMountNamespace;

// A save that must fail for lack of room; `big` is larger than what is left.
std::string SaveWithoutRoom(const SaveRequest& before, const SaveRequest& big) {
  try {
    testing::Save(big);
    return "the save succeeded";
  } catch (const Error& error) {
    const std::string text = error.what();
    if (error.id() != "CKP013" && error.id() != "FIL002") return "another error: " + text;
    if (text.find('\n') == text.npos || text.find("fix: ") == text.npos) return "no cure: " + text;
    if (text.find("o space left") == text.npos && text.find("File too large") == text.npos)
      return "the reason is missing: " + text;
  }
  const FindResult result = FindLatestComplete(before.root);
  if (!result.found || result.found->step != before.step || !result.warnings.empty())
    return "the previous checkpoint is not the one found";
  if (!VerifyCheckpoint(result.found->directory).ok()) return "the previous checkpoint is damaged";
  int64_t entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(before.root)) ++entries;
  if (entries != 2) return "something was left behind";
  return "";
}

SaveRequest Big(const SaveRequest& before, int64_t elements) {
  SaveRequest big = before;
  big.tag = "global_step2";
  big.step = 2;
  big.world = 2;
  big.tensors = {{"w", {elements}, false}};
  big.states = {{"master", DType::kFloat32}};
  return big;
}

TEST(DiskFull, CKP_15_SmallFileSystem) {
  const TemporaryRoot root;
  bool skipped = false;
  const std::string problem = InChild(
      [&]() -> std::string {
        if (!OwnMountNamespace()) return "skip";
        if (::mount("none", root.path().c_str(), "tmpfs", 0, "size=1m") != 0) return "skip";
        const SaveRequest before{.root = root.path() / "save", .tag = "global_step1", .step = 1};
        testing::Save(before);
        std::string text = SaveWithoutRoom(before, Big(before, 1 << 20));  // rank 0 does not fit
        if (!text.empty()) return text;
        text = SaveWithoutRoom(before, Big(before, 300 << 10));  // rank 0 fits, rank 1 does not
        if (!text.empty()) return text;
        // No page is left at all: not even the index and the manifest fit.
        std::ofstream filler(root.path() / "filler", std::ios::binary);
        const std::string page(4096, 'x');
        while (filler.write(page.data(), static_cast<std::streamsize>(page.size())).flush()) {
        }
        text = SaveWithoutRoom(before, Big(before, 100));
        if (!text.empty()) return text;
        // Room for the ranks' files, none for what follows them.
        for (int pages = 4; pages < 16; pages += 2) {
          fs::resize_file(root.path() / "filler",
                          static_cast<uintmax_t>(1 << 20) - static_cast<uintmax_t>(80 + 4 * pages) * 1024);
          std::ofstream more(root.path() / "filler2", std::ios::binary);
          while (more.write(page.data(), static_cast<std::streamsize>(page.size())).flush()) {
          }
          more.close();
          fs::resize_file(root.path() / "filler2",
                          fs::file_size(root.path() / "filler2") - static_cast<uintmax_t>(pages) * 4096);
          try {
            const fs::path saved = testing::Save(Big(before, 100));
            if (!VerifyCheckpoint(saved).ok()) return "a save without room is damaged";
            return "";  // from here on there is room
          } catch (const Error& error) {
            if (FindLatestComplete(before.root).found->step != 1)
              return std::string("not found after: ") + error.what();
          }
        }
        return "";
      },
      skipped);
  if (skipped) GTEST_SKIP() << "this machine allows no mount in a namespace of our own";
  EXPECT_EQ("", problem);
}

TEST(DiskFull, CKP_15_LimitOnFileSizes) {
  const TemporaryRoot root;
  const SaveRequest before{.root = root.path(), .tag = "global_step1", .step = 1};
  testing::Save(before);
  bool skipped = false;
  EXPECT_EQ("", InChild(
                    [&] {
                      const struct rlimit limit { 64 << 10, 64 << 10 };
                      ::setrlimit(RLIMIT_FSIZE, &limit);  // SIGXFSZ would end the process if a write met the limit
                      return SaveWithoutRoom(before, Big(before, 1 << 20));
                    },
                    skipped));
}

}  // namespace
}  // namespace trireme::checkpoint
