// Cutting text into blocks at document boundaries, and blocks into documents.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/file.h"
#include "engine/data/build.h"

namespace trireme::data {

struct TextBlock {
  std::string_view text;
  std::string file;
  int64_t offset = 0;  // of the block in the file
};

// Blocks of about block_bytes (more, where a document is longer) that together are the whole text.
std::vector<TextBlock> CutIntoBlocks(std::string_view text, const std::string& file, TextFormat format,
                                     int64_t block_bytes);

// Calls document(text) for each document of a block, empty ones included where the input spells them ({"text": ""}).
// JSONL: the text is the field `json_key`. Throws Error{kData, DAT011} with file and line; for the number the file is
// read before the block, as far as its offset says.
void ForEachDocument(const TextBlock& block, TextFormat format, const std::string& json_key,
                     const std::function<void(std::string_view)>& document);

// Input files, mapped and cut. Throws Error{kData, DAT017}.
struct InputText {
  std::vector<MappedFile> files;
  std::vector<TextBlock> blocks;  // views of the maps
  int64_t bytes = 0;
};
InputText OpenInputs(const std::vector<std::filesystem::path>& inputs, TextFormat format, int64_t block_bytes);

}  // namespace trireme::data
