#include "engine/data/text_blocks.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"

namespace trireme::data {
namespace {

// Removes the first line of `rest`, without its line break, and returns it.
std::string_view TakeLine(std::string_view& rest) {
  const size_t end = rest.find('\n');
  const std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  return line;
}

bool IsEmptyLine(std::string_view line) { return line.empty() || line == "\r"; }

// The first place at or after `from` where a block may end: after a line break (JSONL), after an empty line (text).
size_t Boundary(std::string_view text, size_t from, TextFormat format) {
  size_t line_end = text.find('\n', from);
  while (line_end != std::string_view::npos && format == TextFormat::kText) {
    std::string_view rest = text.substr(line_end + 1);
    const size_t size = rest.size();
    if (rest.empty()) break;
    const std::string_view line = TakeLine(rest);
    if (IsEmptyLine(line)) return line_end + 1 + (size - rest.size());
    line_end = text.find('\n', line_end + 1);
  }
  return line_end == std::string_view::npos ? text.size() : line_end + 1;
}

void ForEachTextDocument(std::string_view text, const std::function<void(std::string_view)>& document) {
  const char* begin = nullptr;  // of the open document
  const char* end = nullptr;
  const auto close = [&] {
    if (begin != nullptr) document({begin, static_cast<size_t>(end - begin)});
    begin = nullptr;
  };
  while (!text.empty()) {
    const std::string_view line = TakeLine(text);
    if (IsEmptyLine(line)) {
      close();
      continue;
    }
    if (begin == nullptr) begin = line.data();
    end = line.data() + line.size();
  }
  close();
}

[[noreturn]] void FailLine(const TextBlock& block, std::string_view before, std::string_view done,
                           const std::string& what) {
  const auto line = 1 + std::count(before.begin(), before.end(), '\n') + std::count(done.begin(), done.end(), '\n');
  throw Error(ErrorCode::kData, "DAT011", what, fmt::format("{}:{}", block.file, line),
              "each line must be one JSON object with a text field, such as {\"text\": \"...\"}; for plain text use "
              "--format text");
}

void ForEachJsonDocument(const TextBlock& block, std::string_view before,
                         const std::function<void(std::string_view)>& document) {
  std::string_view rest = block.text;
  while (!rest.empty()) {
    const std::string_view done = block.text.substr(0, block.text.size() - rest.size());
    const std::string_view line = TakeLine(rest);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    nlohmann::json json;
    try {
      json = nlohmann::json::parse(line);
    } catch (const nlohmann::json::parse_error& problem) {
      FailLine(block, before, done, fmt::format("invalid JSON at column {}: {}", problem.byte, problem.what()));
    }
    if (!json.is_object())
      FailLine(block, before, done, fmt::format("a JSON object is wanted, this is {}", json.type_name()));
    const auto field = json.find("text");
    if (field == json.end()) FailLine(block, before, done, "the object has no field \"text\"");
    if (!field->is_string())
      FailLine(block, before, done, fmt::format("the field \"text\" is {}, not a string", field->type_name()));
    document(field->get_ref<const std::string&>());
  }
}

}  // namespace

std::vector<TextBlock> CutIntoBlocks(std::string_view text, const std::string& file, TextFormat format,
                                     int64_t block_bytes) {
  std::vector<TextBlock> blocks;
  for (size_t begin = 0; begin < text.size();) {
    const size_t wanted = static_cast<size_t>(std::max<int64_t>(block_bytes, 1));
    const size_t end = wanted >= text.size() - begin ? text.size() : Boundary(text, begin + wanted - 1, format);
    blocks.push_back({text.substr(begin, end - begin), file, static_cast<int64_t>(begin)});
    begin = end;
  }
  return blocks;
}

void ForEachDocument(const TextBlock& block, TextFormat format, std::string_view before,
                     const std::function<void(std::string_view)>& document) {
  if (format == TextFormat::kText) return ForEachTextDocument(block.text, document);
  ForEachJsonDocument(block, before, document);
}

}  // namespace trireme::data
