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
              "each line must be one JSON object with a text field, such as {\"text\": \"...\"} (--json-keys names "
              "another); for plain text use "
              "--format text");
}

void ForEachJsonDocument(const TextBlock& block, const std::string& key,
                         const std::function<void(std::string_view)>& document) {
  const std::string_view before(block.text.data() - block.offset, static_cast<size_t>(block.offset));
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
    const auto field = json.find(key);
    if (field == json.end()) FailLine(block, before, done, fmt::format("the object has no field \"{}\"", key));
    if (!field->is_string())
      FailLine(block, before, done, fmt::format("the field \"{}\" is {}, not a string", key, field->type_name()));
    document(field->get_ref<const std::string&>());
  }
}

std::vector<MappedFile> MapInputs(const std::vector<std::filesystem::path>& inputs) {
  std::vector<MappedFile> files;
  for (const auto& input : inputs) {
    std::error_code ignored;
    if (!std::filesystem::exists(input, ignored)) {
      throw Error(ErrorCode::kData, "DAT017", "the input file does not exist", input.string(),
                  "check the path given to --input");
    }
    if (!std::filesystem::is_regular_file(input, ignored)) {
      throw Error(ErrorCode::kData, "DAT017", "the input is not a regular file", input.string(),
                  "give text files to --input, one or more");
    }
    files.emplace_back(input, ErrorCode::kData);
  }
  return files;
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

void ForEachDocument(const TextBlock& block, TextFormat format, const std::string& json_key,
                     const std::function<void(std::string_view)>& document) {
  if (format == TextFormat::kText) return ForEachTextDocument(block.text, document);
  ForEachJsonDocument(block, json_key, document);
}

InputText OpenInputs(const std::vector<std::filesystem::path>& inputs, TextFormat format, int64_t block_bytes) {
  InputText out;
  out.files = MapInputs(inputs);
  for (size_t i = 0; i < out.files.size(); ++i) {
    const auto bytes = out.files[i].bytes();
    out.bytes += static_cast<int64_t>(bytes.size());
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    for (TextBlock& block : CutIntoBlocks(text, inputs[i].string(), format, block_bytes))
      out.blocks.push_back(std::move(block));
  }
  return out;
}

}  // namespace trireme::data
