#include "engine/data/bpe/bpe_tokenizer.h"

#include <fmt/core.h>

#include <mutex>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/data/bpe/tokenizer_json.h"

namespace trireme::data {
namespace {

std::vector<AddedToken> Select(const std::vector<AddedToken>& tokens, bool normalized) {
  std::vector<AddedToken> out;
  for (const AddedToken& token : tokens) {
    if (token.normalized == normalized) out.push_back(token);
  }
  return out;
}

std::string Normalized(std::string text, const std::vector<NormalForm>& forms) {
  for (const NormalForm form : forms) {
    std::string scratch;
    text = std::string(Normalize(text, form, scratch));
  }
  return text;
}

AddedTokenMatcher MatcherOf(const std::vector<AddedToken>& added, bool normalized,
                            const std::vector<NormalForm>& forms) {
  std::vector<AddedToken> tokens = Select(added, normalized);
  std::vector<std::string> texts;
  for (const AddedToken& token : tokens) texts.push_back(normalized ? Normalized(token.content, forms) : token.content);
  return {std::move(tokens), texts};
}

class BpeTokenizer : public Tokenizer {
 public:
  BpeTokenizer(std::string json, BpeDefinition definition, const BpeOptions& options)
      : json_(std::move(json)),
        where_(options.where),
        normalizers_(definition.normalizers),
        raw_(MatcherOf(definition.added, false, normalizers_)),
        normalized_(MatcherOf(definition.added, true, normalizers_)),
        cutter_(std::move(definition.steps)),
        model_(definition.merges, definition.tokens, definition.model),
        frame_{std::move(definition.before), std::move(definition.after)} {
    bytes_.resize(static_cast<size_t>(definition.largest_id) + 1);
    known_.resize(bytes_.size());
    const auto set = [&](int32_t id, const std::string& bytes) {
      bytes_[static_cast<size_t>(id)] = bytes;
      known_[static_cast<size_t>(id)] = true;
    };
    for (const auto& [bytes, id] : definition.tokens) set(id, bytes);
    for (const AddedToken& token : definition.added) set(token.id, token.content);
    eod_id_ = FindEod(definition, options);
  }

  std::string_view name() const override { return "bpe"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(bytes_.size()); }
  int32_t eod_id() const override { return eod_id_; }
  const SpecialFrame& special_frame() const override { return frame_; }
  std::string definition() const override { return json_; }

  void Encode(std::string_view text, std::vector<int32_t>& ids) const override {
    std::unique_ptr<Memory> memory = Borrow();
    while (!text.empty()) {
      const size_t valid = ValidUtf8Prefix(text);
      EncodeValid(text.substr(0, valid), *memory, ids);
      text.remove_prefix(valid);
      const size_t invalid = InvalidUtf8Prefix(text);
      for (size_t i = 0; i < invalid; ++i) model_.Encode(text.substr(i, 1), memory->model, ids);
      text.remove_prefix(invalid);
    }
    GiveBack(std::move(memory));
  }

  std::string Decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id < 0 || id >= vocab_size() || !known_[static_cast<size_t>(id)]) {
        throw Error(ErrorCode::kData, "DAT006",
                    fmt::format("token id {} is {} the vocabulary of {}", id,
                                id >= 0 && id < vocab_size() ? "a gap in" : "outside", vocab_size()),
                    where_, "decode with the tokeniser that made the ids");
      }
      text += bytes_[static_cast<size_t>(id)];
    }
    return text;
  }

 private:
  // What one thread needs to encode.
  struct Memory {
    explicit Memory(const PreTokenizer& pieces) : cutter(pieces) {}
    PreTokenizer::Memory cutter;
    BpeModel::Memory model;
    std::array<std::string, 2> scratch;
  };

  std::unique_ptr<Memory> Borrow() const {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Memory>(cutter_);
    std::unique_ptr<Memory> memory = std::move(free_.back());
    free_.pop_back();
    return memory;
  }
  void GiveBack(std::unique_ptr<Memory> memory) const {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(memory));
  }

  void EncodeValid(std::string_view text, Memory& memory, std::vector<int32_t>& ids) const {
    if (raw_.empty()) return EncodeBetween(text, memory, ids);
    raw_.Split(text, [&](std::string_view part, const AddedToken* token) {
      if (token) {
        ids.push_back(token->id);
      } else {
        EncodeBetween(part, memory, ids);
      }
    });
  }

  void EncodeBetween(std::string_view text, Memory& memory, std::vector<int32_t>& ids) const {
    for (size_t i = 0; i < normalizers_.size(); ++i) text = Normalize(text, normalizers_[i], memory.scratch[i % 2]);
    const auto cut = [&](std::string_view part) {
      cutter_.Cut(part, memory.cutter, [&](std::string_view piece) { model_.Encode(piece, memory.model, ids); });
    };
    if (normalized_.empty()) return cut(text);
    normalized_.Split(text, [&](std::string_view part, const AddedToken* token) {
      if (token) {
        ids.push_back(token->id);
      } else {
        cut(part);
      }
    });
  }

  int32_t FindEod(const BpeDefinition& definition, const BpeOptions& options) const {
    const auto find = [&](const std::string& name) {
      for (const AddedToken& token : definition.added) {
        if (token.content == name) return token.id;
      }
      for (const auto& [bytes, id] : definition.tokens) {
        if (bytes == name) return id;
      }
      return -1;
    };
    if (!options.eod_token.empty()) {
      if (const int32_t id = find(options.eod_token); id >= 0) return id;
      throw Error(ErrorCode::kData, "DAT025", fmt::format("the tokeniser has no token \"{}\"", options.eod_token),
                  options.where, "name one of its tokens with --eod-token");
    }
    for (const std::string& name : options.eod_candidates) {
      if (const int32_t id = find(name); id >= 0) return id;
    }
    throw Error(ErrorCode::kData, "DAT025", "no token is known to end a document", options.where,
                "name it with --eod-token, for example --eod-token \"<|endoftext|>\"");
  }

  std::string json_, where_;
  std::vector<NormalForm> normalizers_;
  AddedTokenMatcher raw_, normalized_;
  PreTokenizer cutter_;
  BpeModel model_;
  SpecialFrame frame_;
  std::vector<std::string> bytes_;  // of each id
  std::vector<bool> known_;
  int32_t eod_id_ = -1;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Memory>> free_;
};

}  // namespace

std::unique_ptr<Tokenizer> MakeBpeTokenizer(std::string tokenizer_json, const BpeOptions& options) {
  const auto json = nlohmann::json::parse(tokenizer_json, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    throw Error(ErrorCode::kData, "DAT022", fmt::format("{} bytes that are no JSON", tokenizer_json.size()),
                options.where, "take the tokenizer.json of the model again");
  }
  BpeDefinition definition = ReadTokenizerJson(json, options.where);
  return std::make_unique<BpeTokenizer>(std::move(tokenizer_json), std::move(definition), options);
}

}  // namespace trireme::data
