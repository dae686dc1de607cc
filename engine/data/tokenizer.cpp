#include "engine/data/tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>

#include "engine/base/file.h"
#include "engine/data/indexed_dataset.h"

namespace trireme::data {
namespace {

class ByteTokenizer : public Tokenizer {
 public:
  std::string_view name() const override { return "byte"; }
  int64_t vocab_size() const override { return kEod + 1; }
  int32_t eod_id() const override { return kEod; }

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
};

}  // namespace

std::unique_ptr<Tokenizer> MakeTokenizer(std::string_view name) {
  if (name == "byte") return std::make_unique<ByteTokenizer>();
  throw Error(ErrorCode::kUsage, "DAT014", fmt::format("unknown tokeniser \"{}\"", name), "--tokenizer", "known: byte");
}

std::filesystem::path TokenizerPath(const std::filesystem::path& prefix) {
  std::filesystem::path file = PrefixOf(prefix);
  file += ".tokenizer.json";
  return file;
}

void SaveTokenizer(const Tokenizer& tokenizer, const std::filesystem::path& prefix) {
  const nlohmann::ordered_json text = {{"format", 1},
                                       {"tokenizer", tokenizer.name()},
                                       {"vocab_size", tokenizer.vocab_size()},
                                       {"eod_id", tokenizer.eod_id()}};
  WriteFileDurably(TokenizerPath(prefix), text.dump(2) + "\n", ErrorCode::kData);
}

std::unique_ptr<Tokenizer> LoadTokenizer(const std::filesystem::path& prefix) {
  const auto file = TokenizerPath(prefix);
  if (!std::filesystem::exists(file)) return nullptr;
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::kData, "DAT014", what, file.string(), "build the dataset again with `trireme data build`");
  };
  const auto json = nlohmann::json::parse(ReadFile(file, ErrorCode::kData), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("tokenizer") || !json["tokenizer"].is_string()) {
    fail("this is not a tokeniser description: it lacks the text field \"tokenizer\"");
  }
  std::unique_ptr<Tokenizer> tokenizer;
  try {
    tokenizer = MakeTokenizer(json["tokenizer"].get<std::string>());
  } catch (const Error& unknown) {
    fail(unknown.message() + "; " + unknown.fix());
  }
  if (json.value("vocab_size", nlohmann::json()) != tokenizer->vocab_size()) {
    fail(fmt::format("\"vocab_size\" is not {}, as the {} tokeniser has", tokenizer->vocab_size(), tokenizer->name()));
  }
  return tokenizer;
}

}  // namespace trireme::data
