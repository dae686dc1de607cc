#include "engine/data/tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/file.h"
#include "engine/data/bpe/bpe_tokenizer.h"
#include "engine/data/bpe/tokenizer_json.h"
#include "engine/data/bpe/unicode.h"
#include "engine/data/indexed_dataset.h"

namespace trireme::data {
namespace {

using nlohmann::json;

constexpr std::string_view kDefinition = "\"definition\":";  // the last key of a description

class ByteTokenizer : public Tokenizer {
 public:
  std::string_view name() const override { return "byte"; }
  int64_t vocab_size() const override { return kEod + 1; }
  int32_t eod_id() const override { return kEod; }
  const SpecialFrame& special_frame() const override { return frame_; }
  std::string definition() const override { return ""; }

  void Encode(std::string_view text, std::vector<int32_t>& ids) const override {
    const size_t begin = ids.size();
    ids.resize(begin + text.size());  // grows by doubling; an exact reserve for each document would copy quadratically
    std::ranges::transform(text, ids.begin() + static_cast<std::ptrdiff_t>(begin),
                           [](char c) { return static_cast<unsigned char>(c); });
  }

  std::string Decode(std::span<const int32_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (const int32_t id : ids) {
      if (id < 0 || id > kEod) {
        throw Error(ErrorCode::kData, "DAT006",
                    fmt::format("token id {} is outside the vocabulary of {}", id, vocab_size()), "byte tokeniser",
                    "decode with the tokeniser that made the ids");
      }
      if (id == kEod) {
        text += "\n\n";
      } else {
        text += static_cast<char>(id);
      }
    }
    return text;
  }

 private:
  static constexpr int32_t kEod = 256;
  SpecialFrame frame_;
};

// "eos_token" of the tokenizer_config.json in `folder`, "" if it has none.
std::string EosTokenOf(const std::filesystem::path& folder) {
  const auto file = folder / "tokenizer_config.json";
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return "";
  const json config = json::parse(ReadFile(file, ErrorCode::kData), nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return "";
  json token = config.value("eos_token", json());
  if (token.is_object()) token = token.value("content", json());
  return token.is_string() ? token.get<std::string>() : "";
}

BpeOptions OptionsFor(const std::filesystem::path& file, const std::string& eod_token) {
  BpeOptions options{.where = file.string(), .eod_token = eod_token};
  if (const std::string eos = EosTokenOf(file.parent_path()); !eos.empty())
    options.eod_candidates.insert(options.eod_candidates.begin(), eos);
  return options;
}

bool IsDescription(std::string_view text) { return text.substr(0, 32).find("\"format\"") != std::string_view::npos; }

[[noreturn]] void Damaged(const std::filesystem::path& file, const std::string& what) {
  throw Error(ErrorCode::kData, "DAT014", what, file.string(), "build the dataset again with `trireme data build`");
}

struct Description {
  TokenizerInfo info;
  std::string eod_token, definition;
};

Description ReadDescription(const std::filesystem::path& file, std::string_view text) {
  const size_t at = text.find(kDefinition), end = text.rfind('}');
  const bool has_definition = at != std::string_view::npos && end != std::string_view::npos && end > at;
  const std::string head = has_definition ? std::string(text.substr(0, at)) + "\"definition\": 0}" : std::string(text);
  const json fields = json::parse(head, nullptr, /*allow_exceptions=*/false);
  const auto field = [&](const char* name) { return fields.is_object() ? fields.value(name, json()) : json(); };
  if (!field("tokenizer").is_string())
    Damaged(file, "this is not a tokeniser description: it lacks the text field \"tokenizer\"");
  Description out;
  out.info.name = field("tokenizer");
  if (out.info.name != "byte" && out.info.name != "bpe")
    Damaged(file, fmt::format("unknown tokeniser \"{}\"; known: byte, bpe", out.info.name));
  if (!field("vocab_size").is_number_integer()) Damaged(file, "\"vocab_size\" is no number");
  out.info.vocab_size = field("vocab_size");
  out.info.eod_id = field("eod_id").is_number_integer() ? field("eod_id").get<int32_t>() : -1;
  if (out.info.name == "byte") return out;
  if (!has_definition || !field("eod_token").is_string())
    Damaged(file, "a bpe tokeniser lacks \"eod_token\" or, as the last key, \"definition\"");
  out.eod_token = field("eod_token");
  out.definition = text.substr(at + kDefinition.size(), end - at - kDefinition.size());
  return out;
}

std::unique_ptr<Tokenizer> FromDescription(const std::filesystem::path& file, std::string_view text) {
  Description description = ReadDescription(file, text);
  std::unique_ptr<Tokenizer> tokenizer;
  if (description.info.name == "byte") {
    tokenizer = std::make_unique<ByteTokenizer>();
  } else {
    try {
      tokenizer = MakeBpeTokenizer(std::move(description.definition),
                                   {.where = file.string(), .eod_token = description.eod_token});
    } catch (const Error& problem) {
      Damaged(file, problem.message() + "; " + problem.fix());
    }
  }
  if (description.info.vocab_size != tokenizer->vocab_size()) {
    Damaged(file, fmt::format("\"vocab_size\" is {}, not {}, as the {} tokeniser has", description.info.vocab_size,
                              tokenizer->vocab_size(), tokenizer->name()));
  }
  return tokenizer;
}

}  // namespace

size_t CompleteUtf8(std::string_view text) {
  // Only the last three bytes can begin a character that is not whole.
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return length > back ? text.size() - back : text.size();
  }
  return text.size();
}

std::unique_ptr<Tokenizer> MakeGpt2Tokenizer(const std::filesystem::path& vocab_json,
                                             const std::filesystem::path& merges_txt, const std::string& eod_token) {
  std::string text = JsonOfVocabAndMerges(ReadFile(vocab_json, ErrorCode::kData),
                                          ReadFile(merges_txt, ErrorCode::kData), vocab_json.string());
  return MakeBpeTokenizer(std::move(text), OptionsFor(vocab_json, eod_token));
}

std::unique_ptr<Tokenizer> MakeTokenizer(std::string_view name, const std::string& eod_token) {
  if (name == "byte") {
    if (!eod_token.empty())
      throw Error(ErrorCode::kUsage, "DAT025", "the byte tokeniser ends a document with the id 256", "--eod-token",
                  "leave --eod-token out");
    return std::make_unique<ByteTokenizer>();
  }
  std::filesystem::path file(name);
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored)) {
    const auto has = [&](const char* part) { return std::filesystem::is_regular_file(file / part, ignored); };
    if (!has("tokenizer.json") && has("vocab.json") && has("merges.txt"))
      return MakeGpt2Tokenizer(file / "vocab.json", file / "merges.txt", eod_token);
    file /= "tokenizer.json";
  }
  if (!std::filesystem::is_regular_file(file, ignored)) {
    throw Error(ErrorCode::kUsage, "DAT014",
                fmt::format("unknown tokeniser \"{}\": no such name, file or folder", name), "--tokenizer",
                "known: byte, a tokenizer.json, or a folder with one or with vocab.json and merges.txt");
  }
  std::string text = ReadFile(file, ErrorCode::kData);
  if (IsDescription(text)) return FromDescription(file, text);
  return MakeBpeTokenizer(std::move(text), OptionsFor(file, eod_token));
}

std::filesystem::path TokenizerPath(const std::filesystem::path& prefix) {
  std::filesystem::path file = PrefixOf(prefix);
  file += ".tokenizer.json";
  return file;
}

void SaveTokenizer(const Tokenizer& tokenizer, const std::filesystem::path& prefix) {
  nlohmann::ordered_json head = {{"format", 1},
                                 {"tokenizer", tokenizer.name()},
                                 {"vocab_size", tokenizer.vocab_size()},
                                 {"eod_id", tokenizer.eod_id()}};
  std::string text = head.dump(2);
  if (const std::string definition = tokenizer.definition(); !definition.empty()) {
    const int32_t eod = tokenizer.eod_id();
    head["eod_token"] = tokenizer.Decode(std::span(&eod, 1));
    text = head.dump(2);
    text.resize(text.rfind('\n'));
    text += fmt::format(",\n  {} {}\n}}", kDefinition, definition);
  }
  WriteFileDurably(TokenizerPath(prefix), text + "\n", ErrorCode::kData);
}

std::unique_ptr<Tokenizer> LoadTokenizer(const std::filesystem::path& prefix) {
  const auto file = TokenizerPath(prefix);
  if (!std::filesystem::exists(file)) return nullptr;
  return FromDescription(file, ReadFile(file, ErrorCode::kData));
}

std::optional<TokenizerInfo> LoadTokenizerInfo(const std::filesystem::path& prefix) {
  const auto file = TokenizerPath(prefix);
  if (!std::filesystem::exists(file)) return std::nullopt;
  return ReadDescription(file, ReadFile(file, ErrorCode::kData)).info;
}

}  // namespace trireme::data
