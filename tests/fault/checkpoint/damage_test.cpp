// Files that were changed after the save: nothing is loaded in silence, and the message names the file.
#include <gtest/gtest.h>

#include <fstream>

#include "checkpoint/find.h"
#include "checkpoint/hdf5/index.h"
#include "checkpoint/hdf5/manifest.h"
#include "checkpoint/hdf5/native_reader.h"
#include "checkpoint/verify.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "tests/unit/checkpoint/saved.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::IdOf;
using testing::Save;
using testing::SaveRequest;
using testing::TemporaryRoot;

std::string Text(const fs::path& path) { return trireme::ReadFile(path, ErrorCode::kCheckpoint); }
void Put(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
}

class Damage : public ::testing::Test {
 protected:
  Damage() : folder_(Save(request_)) {}
  std::string FirstProblem(VerifyLevel level = VerifyLevel::kFull) {
    const VerifyReport report = VerifyCheckpoint(folder_, level);
    return report.ok() ? "" : report.problems[0];
  }
  const TemporaryRoot root_;
  const SaveRequest request_{.root = root_.path(), .world = 2};
  const fs::path folder_;
};

// Any bit of any file: headers, tables, hashes, bulk data, padding, manifest. In a short run every 7th byte, one bit of
// it.
TEST_F(Damage, BitFlipAnywhereIsDetected) {
  int flips = 0;
  for (const char* name : {"manifest.json", "index.h5", "data/rank_00000.h5", "data/rank_00001.h5"}) {
    const std::string good = Text(folder_ / name);
    const size_t stride = good.size() > 2000 ? good.size() / 150 : 7;
    for (size_t place = 0; place < good.size(); place += stride, ++flips) {
      std::string bad = good;
      bad[place] = static_cast<char>(bad[place] ^ (1 << (place % 8)));
      Put(folder_ / name, bad);
      ASSERT_NE("", FirstProblem()) << name << " byte " << place;
    }
    std::string last = good;
    last.back() = static_cast<char>(last.back() ^ 1);
    Put(folder_ / name, last);
    ASSERT_NE("", FirstProblem()) << name << " last byte";
    Put(folder_ / name, good);
    ASSERT_EQ("", FirstProblem());
  }
  EXPECT_GT(flips, 400);
}

TEST_F(Damage, FlippedBitIsFoundByTheReadThatTouchesIt) {
  const fs::path file = folder_ / "data" / "rank_00000.h5";
  std::string text = Text(file);
  const auto bytes =
      testing::BytesOf({"transformer.wte.weight", {13, 6}}, {"master", DType::kFloat32}, request_.salt, false);
  const size_t place = text.find(std::string(reinterpret_cast<const char*>(bytes.data()), 64));
  ASSERT_NE(std::string::npos, place);
  text[place] = static_cast<char>(text[place] ^ 4);
  Put(file, text);
  const auto reader = CheckpointReader::Open(folder_);  // sizes and index are right
  std::vector<std::byte> out(8), exp_avg(8);
  reader->ReadFlat("transformer.wte.weight", "exp_avg", 0, 2, exp_avg);  // another dataset
  for (int twice = 0; twice < 2; ++twice) {
    try {
      reader->ReadFlat("transformer.wte.weight", "master", 3, 2, out);
      FAIL() << "damaged data were read";
    } catch (const Error& error) {
      EXPECT_EQ("CKP005", error.id());
      EXPECT_EQ(file.string(), error.where());
      EXPECT_NE(std::string::npos, error.message().find("transformer.wte.weight, state master")) << error.message();
    }
  }
}

TEST_F(Damage, TruncatedAtEverySixteenth) {
  for (const char* name : {"manifest.json", "index.h5", "data/rank_00001.h5"}) {
    const std::string good = Text(folder_ / name);
    for (size_t i = 0; i < 16; ++i) {
      Put(folder_ / name, good.substr(0, good.size() * i / 16));
      EXPECT_NE("", FirstProblem(VerifyLevel::kLayout)) << name;
      EXPECT_NE("", IdOf([&] { CheckpointReader::Open(folder_); })) << name;
    }
    Put(folder_ / name, good);
  }
  Put(folder_ / "data/rank_00001.h5", Text(folder_ / "data/rank_00001.h5").substr(1));
  EXPECT_EQ("CKP004", IdOf([&] { CheckpointReader::Open(folder_); }));
}

TEST_F(Damage, MissingRankFile) {
  fs::remove(folder_ / "data" / "rank_00001.h5");
  EXPECT_EQ("CKP004", IdOf([&] { CheckpointReader::Open(folder_); }));
  EXPECT_NE(std::string::npos, FirstProblem().find("rank_00001.h5"));
  fs::remove(folder_ / "data" / "rank_00000.h5");
  EXPECT_EQ(2u, VerifyCheckpoint(folder_).problems.size()) << "all problems are reported";
  EXPECT_EQ("CKP002", IdOf([&] { FindLatestComplete(root_.path()); }));
}

TEST_F(Damage, FileOfAnotherSave) {
  const fs::path other = Save({.root = root_.path(), .tag = "other", .step = 7, .world = 2, .salt = 1});
  fs::copy_file(other / "data" / "rank_00001.h5", folder_ / "data" / "rank_00001.h5",
                fs::copy_options::overwrite_existing);
  EXPECT_NE(std::string::npos, FirstProblem(VerifyLevel::kQuick).find("CKP006"));
  const auto reader = CheckpointReader::Open(folder_);
  EXPECT_EQ("CKP006", IdOf([&] { testing::Difference(*reader, request_); }));
  fs::copy_file(folder_ / "data" / "rank_00000.h5", folder_ / "data" / "rank_00001.h5",
                fs::copy_options::overwrite_existing);
  EXPECT_NE("", FirstProblem(VerifyLevel::kQuick)) << "a rank's file in place of another's";
  fs::copy_file(other / "index.h5", folder_ / "index.h5", fs::copy_options::overwrite_existing);
  EXPECT_EQ("CKP005", IdOf([&] { CheckpointReader::Open(folder_); }));
}

// Manifest and index agree in hash, but the index is of a later format, or of another save.
TEST_F(Damage, IndexOfAGreaterMajorVersionOrAnotherUuid) {
  hdf5::Manifest manifest = hdf5::LoadManifest(folder_);
  const hdf5::Index good = hdf5::LoadIndex(folder_, manifest);
  const auto with = [&](const hdf5::Index& index) {
    const std::vector<std::byte> image = hdf5::BuildIndex(index);
    Put(folder_ / "index.h5", {reinterpret_cast<const char*>(image.data()), image.size()});
    for (hdf5::ManifestFile& file : manifest.files) {
      if (file.path != "index.h5") continue;
      file.bytes = static_cast<int64_t>(image.size());
      file.hash = Xxh3Of128(image);
    }
    Put(folder_ / "manifest.json", manifest.ToText());
    return IdOf([&] { CheckpointReader::Open(folder_); });
  };
  EXPECT_EQ("", with(good));
  hdf5::Index index = good;
  index.version_major = 2;
  EXPECT_EQ("CKP007", with(index));
  index = good;
  index.version_minor = 9;
  EXPECT_EQ("", with(index)) << "a later minor version is read";
  index = good;
  index.uuid[3] ^= 1;
  EXPECT_EQ("CKP006", with(index));
  index = good;
  index.step = 8;
  EXPECT_EQ("CKP008", with(index));
  index = good;
  for (hdf5::IndexParameter& parameter : index.parameters) {
    if (parameter.name == "transformer.h.0.attn.c_attn.weight") parameter.slabs.pop_back();  // cut over both ranks
  }
  EXPECT_EQ("CKP011", with(index));
  manifest.version_major = 2;
  EXPECT_EQ("CKP007", with(good));
}

TEST_F(Damage, CKP_07_LeftoversOfAnotherSaveAreIgnoredAndNamed) {
  fs::copy_file(folder_ / "data" / "rank_00000.h5", folder_ / "data" / "rank_00002.h5");
  const VerifyReport report = VerifyCheckpoint(folder_);
  EXPECT_TRUE(report.ok());
  ASSERT_EQ(1u, report.notes.size());
  EXPECT_NE(std::string::npos, report.notes[0].find("data/rank_00002.h5"));
  EXPECT_EQ("", testing::Difference(*CheckpointReader::Open(folder_), request_));
}

}  // namespace
}  // namespace trireme::checkpoint
