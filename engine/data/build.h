// Text files -> tokens: what `trireme data build` does.
//   BuildReport report = BuildDataset({.inputs = {"a.txt"}, .output = "corpus/a"}, [](int64_t done, int64_t total) {
//   ... });
// Text: an empty line ends a document; line breaks inside a document stay, the one before the empty line goes. JSONL:
// one object a line, its field "text" (json_key) is a document; empty lines are skipped. Every document ends with the
// tokeniser's end of document unless append_eod is false; empty documents are left out. The inputs are memory-mapped
// and cut into blocks at document boundaries; workers encode them, the calling thread writes them in order, so the
// output does not depend on the number of workers. Throws Error{kData}: DAT010 to DAT013, DAT017, DAT019.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/tokenizer.h"

namespace trireme::data {

enum class TextFormat { kText, kJsonl };

struct BuildOptions {
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path output;  // prefix
  TextFormat format = TextFormat::kText;
  std::string json_key = "text";
  std::shared_ptr<const Tokenizer> tokenizer = nullptr;  // null: the byte tokeniser
  bool append_eod = true;                                // the end of document after each document
  bool add_special_tokens = false;                       // the tokeniser's special_frame around each document
  int workers = 0;                                       // 0: as many as the machine has
  int64_t block_bytes = 4 << 20;                         // unit of work
};

struct BuildReport {
  int64_t documents = 0, empty_documents = 0, tokens = 0, input_bytes = 0;
};

// progress(done, total) in bytes of input, from the calling thread, after each block.
BuildReport BuildDataset(const BuildOptions& options, const std::function<void(int64_t, int64_t)>& progress);

}  // namespace trireme::data
