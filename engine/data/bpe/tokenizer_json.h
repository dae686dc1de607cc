// Reads what Hugging Face's tokenizer.json says of a byte-level byte-pair tokeniser, and writes the parts of the known
// families. Keys and meanings: the `tokenizers` package 0.23, its serialisation of "version" 1.0.
//   BpeDefinition definition = ReadTokenizerJson(nlohmann::json::parse(text), "tokenizer.json");
// Read: model BPE (merges as "a b" or ["a", "b"], ignore_merges, unk_token, fuse_unk); normalizer NFC NFD NFKC NFKD
// Sequence; pre_tokenizer ByteLevel Split Digits Punctuation Whitespace WhitespaceSplit Sequence, ByteLevel last;
// decoder ByteLevel; post_processor ByteLevel TemplateProcessing Sequence; added_tokens with all their fields.
// "truncation" and "padding" do not change the ids of a text and are not read. Everything else is refused by name.
// Throws Error{kData}: DAT022 (damaged), DAT023 (not supported).
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/data/bpe/added_tokens.h"
#include "engine/data/bpe/model.h"
#include "engine/data/bpe/pre_tokenizer.h"
#include "engine/data/bpe/unicode.h"

namespace trireme::data {

struct BpeDefinition {
  std::vector<NormalForm> normalizers;
  std::vector<CutStep> steps;
  BpeModel::Options model;
  std::vector<BpeModel::Merge> merges;
  std::vector<std::pair<std::string, int32_t>> tokens;  // of the vocabulary: bytes, id
  std::vector<AddedToken> added;
  std::vector<int32_t> before, after;  // what the post-processor puts around one text
  int32_t largest_id = -1;
};

BpeDefinition ReadTokenizerJson(const nlohmann::json& json, const std::string& where);
// The normalizer and pre_tokenizer of it alone.
void ReadCutting(const nlohmann::json& json, const std::string& where, BpeDefinition& out);

// gpt2, llama3, qwen2.
const std::vector<std::string>& FamilyNames();
// A tokenizer.json of the family, its model empty. `family` is one of the names.
nlohmann::ordered_json FamilyJson(std::string_view family);
// `family` with these tokens (text and id) and merges.
std::string TokenizerText(const nlohmann::ordered_json& family,
                          const std::vector<std::pair<std::string, int64_t>>& vocabulary,
                          const std::vector<std::pair<std::string, std::string>>& merges);
nlohmann::ordered_json SpecialTokenJson(const std::string& content, int64_t id);  // an entry of added_tokens

// GPT-2's tokenizer.json out of the older pair of files. Throws Error{kData, DAT022}.
std::string JsonOfVocabAndMerges(std::string_view vocab_json, std::string_view merges_txt, const std::string& where);

}  // namespace trireme::data
