// Damaged files end in one clear error or in a dataset that can be read whole, never in a crash: run under sanitizers
// too.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <random>

#include "engine/data/gpt_dataset.h"
#include "engine/data/summary.h"
#include "engine/data/tokenizer.h"
#include "tests/unit/data/dataset_files.h"

namespace trireme::data {
namespace {

class DataFault : public ::testing::Test {
 protected:
  DataFault() {
    WriteDocuments(folder_ / "whole", TokenType::kUInt16, {{1, 2, 3}, {}, {4, 5, 6, 7}, {8}});
    bin_ = ReadAll(folder_ / "whole.bin");
    idx_ = ReadAll(folder_ / "whole.idx");
  }

  // True if the pair is refused; reads everything if it is not.
  bool Refused(const std::string& bin, const std::string& idx) {
    WriteAll(folder_ / "a.bin", bin);
    WriteAll(folder_ / "a.idx", idx);
    for (const CodeTable codes : {CodeTable::kDeepSpeed, CodeTable::kMegatron}) {
      try {
        const auto data = std::make_shared<const IndexedDataset>(folder_ / "a", codes);
        std::vector<int32_t> tokens(static_cast<size_t>(data->num_tokens()));
        data->Read(0, tokens);
        Summarize(*data);
        for (int64_t i = 0; i < data->num_tokens(); ++i) data->Locate(i);
        const GptDataset samples(data, {0, data->num_sequences()}, {.seq_length = 2, .num_samples = 9});
        std::vector<int32_t> sample(3);
        for (int64_t i = 0; i < samples.num_samples(); ++i) samples.Read(i, sample);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kData) << error.what();
        EXPECT_FALSE(error.fix().empty());
        if (codes == CodeTable::kMegatron) return true;
      }
    }
    return false;
  }

  TestFolder folder_;
  std::string bin_, idx_;
};

TEST_F(DataFault, DAT_07_CutAtEveryByte) {
  EXPECT_FALSE(Refused(bin_, idx_));
  for (size_t size = 0; size < bin_.size(); ++size)
    EXPECT_TRUE(Refused(bin_.substr(0, size), idx_)) << "bin of " << size << " bytes";
  for (size_t size = 0; size < idx_.size(); ++size)
    EXPECT_TRUE(Refused(bin_, idx_.substr(0, size))) << "idx of " << size << " bytes";
}

TEST_F(DataFault, EveryByteOfTheIndexChanged) {
  int accepted = 0;
  for (size_t i = 0; i < idx_.size(); ++i) {
    for (const int change : {0x01, 0x02, 0x40, 0x80, 0xff}) {
      std::string damaged = idx_;
      damaged[i] = static_cast<char>(damaged[i] ^ change);
      if (!Refused(bin_, damaged)) ++accepted;
    }
  }
  // Another type of the same size, or a boundary moved inside the file, cannot be noticed.
  EXPECT_LT(accepted, 20);
}

TEST_F(DataFault, RandomDamage) {
  for (uint32_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::string idx = idx_;
    for (uint32_t i = random() % 8 + 1; i > 0; --i) idx[9 + random() % (idx.size() - 9)] = static_cast<char>(random());
    Refused(bin_, idx);
  }
}

// A file system that takes no more bytes: the writer says so, and an older dataset of that name stays whole.
TEST_F(DataFault, DiskFullWhileWriting) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      IndexedWriter writer(folder_ / "whole", TokenType::kUInt16);
      for (int i = 0; i < 10; ++i) {
        writer.AddSequence(std::vector<int32_t>(1 << 20, 7));
        writer.EndDocument();
      }
      writer.Finish();
      ::_exit(1);
    } catch (const Error& error) {
      ::_exit(error.id() == "DAT019" ? 0 : 2);
    }
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(ReadAll(folder_ / "whole.bin"), bin_);
  EXPECT_EQ(ReadAll(folder_ / "whole.idx"), idx_);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "whole.bin.tmp"));
}

// Killed between any two steps of Finish there is the old dataset, none, or the new one: what a reader can open is
// whole.
TEST_F(DataFault, NoIndexMeansNoDataset) {
  WriteAll(folder_ / "a.bin", bin_);
  std::filesystem::remove(folder_ / "a.idx");
  EXPECT_EQ(ErrorOf([&] { IndexedDataset data(folder_ / "a"); }).id(), "DAT017");
}

}  // namespace
}  // namespace trireme::data
