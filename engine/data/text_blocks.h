// Cutting text into blocks at document boundaries, and blocks into documents. Pure functions on text.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

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
// `before` is the text of the file before the block: only read to find the line number for a message (DAT011).
void ForEachDocument(const TextBlock& block, TextFormat format, std::string_view before,
                     const std::function<void(std::string_view)>& document);

}  // namespace trireme::data
