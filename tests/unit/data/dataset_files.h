// Help for the tests of engine/data: a folder of its own for each test, and small datasets in it.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/data/indexed_dataset.h"
#include "engine/data/indexed_writer.h"

namespace trireme::data {

class TestFolder {
 public:
  TestFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "trireme_data_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline std::string ReadAll(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
// A new file each time: overwriting one in place makes some file systems wait for the disk.
inline void WriteAll(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::remove(file);
  std::ofstream(file, std::ios::binary) << text;
}

inline void WriteDocuments(const std::filesystem::path& prefix, TokenType type,
                           const std::vector<std::vector<int32_t>>& documents) {
  IndexedWriter writer(prefix, type);
  for (const auto& document : documents) {
    writer.AddSequence(document);
    writer.EndDocument();
  }
  writer.Finish();
}

// Documents of these lengths whose tokens count on: token i of the file has the id i.
inline std::shared_ptr<const IndexedDataset> CountingDataset(const std::filesystem::path& prefix,
                                                             const std::vector<int64_t>& lengths) {
  std::vector<std::vector<int32_t>> documents;
  int32_t next = 0;
  for (const int64_t length : lengths) {
    documents.emplace_back();
    for (int64_t i = 0; i < length; ++i) documents.back().push_back(next++);
  }
  WriteDocuments(prefix, TokenType::kInt32, documents);
  return std::make_shared<const IndexedDataset>(prefix);
}

// The error that f throws; a failure of the test and an empty one if it throws none.
inline Error ErrorOf(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error was thrown";
  return Error(ErrorCode::kInternal, "", "", "", "");
}

inline void ExpectContains(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
}

}  // namespace trireme::data
