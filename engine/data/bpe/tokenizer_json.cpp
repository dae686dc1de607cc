#include "engine/data/bpe/tokenizer_json.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "engine/base/error.h"
#include "engine/base/strings.h"

namespace trireme::data {
namespace {

using nlohmann::json;

constexpr int64_t kLargestId = (1 << 24) - 1;  // a table of all ids is kept
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// A value and its path in the file, for messages.
struct Node {
  const json* value = nullptr;
  std::string path;
  const std::string& where;

  [[noreturn]] void Damaged(const std::string& what) const {
    throw Error(ErrorCode::kData, "DAT022", fmt::format("{}: {}", path.empty() ? "the whole" : path, what), where,
                "take the tokenizer.json of the model again, or write it with `trireme data train-tokenizer`");
  }
  [[noreturn]] void Refuse(const std::string& what, const std::string& supported) const {
    throw Error(ErrorCode::kData, "DAT023", fmt::format("{}: {} is not supported", path, what), where,
                "supported: " + supported);
  }

  bool Has(const char* key) const {
    const auto found = value->find(key);
    return found != value->end() && !found->is_null();
  }
  Node At(const char* key) const {
    ExpectObject();
    if (!Has(key)) Damaged(fmt::format("\"{}\" is missing", key));
    return {&(*value)[key], path.empty() ? key : fmt::format("{}.{}", path, key), where};
  }
  Node At(size_t index) const { return {&(*value)[index], fmt::format("{}[{}]", path, index), where}; }
  std::vector<Node> Items() const {
    if (!value->is_array()) Damaged(fmt::format("a list is wanted, this is {}", value->type_name()));
    std::vector<Node> items;
    for (size_t i = 0; i < value->size(); ++i) items.push_back(At(i));
    return items;
  }
  void ExpectObject() const {
    if (!value->is_object()) Damaged(fmt::format("an object is wanted, this is {}", value->type_name()));
  }
  const std::string& Text() const {
    if (!value->is_string()) Damaged(fmt::format("a text is wanted, this is {}", value->type_name()));
    return value->get_ref<const std::string&>();
  }
  bool Flag() const {
    if (!value->is_boolean()) Damaged(fmt::format("true or false is wanted, this is {}", value->type_name()));
    return value->get<bool>();
  }
  bool Flag(const char* key, bool absent) const {
    ExpectObject();
    return Has(key) ? At(key).Flag() : absent;
  }
  int32_t Id() const {
    const int64_t id = value->is_number_integer() ? value->get<int64_t>() : -1;
    if (id < 0 || id > kLargestId) Damaged(fmt::format("{} is no id from 0 to {}", value->dump(), kLargestId));
    return static_cast<int32_t>(id);
  }
  const std::string& Type() const { return At("type").Text(); }
};

// ---- normalizer -----------------------------------------------------------------------------------------------------

void ReadNormalizer(const Node& node, std::vector<NormalForm>& out) {
  const std::string& type = node.Type();
  const std::vector<std::pair<std::string_view, NormalForm>> forms = {
      {"NFC", NormalForm::kNfc}, {"NFD", NormalForm::kNfd}, {"NFKC", NormalForm::kNfkc}, {"NFKD", NormalForm::kNfkd}};
  for (const auto& [name, form] : forms) {
    if (type == name) return out.push_back(form);
  }
  if (type != "Sequence")
    node.Refuse(fmt::format("the normalizer {}", type), "NFC, NFD, NFKC, NFKD, and Sequence of them");
  for (const Node& item : node.At("normalizers").Items()) ReadNormalizer(item, out);
}

// ---- pre_tokenizer --------------------------------------------------------------------------------------------------

constexpr const char* kPreTokenizers =
    "ByteLevel, and before it Split, Digits, Punctuation, Whitespace, WhitespaceSplit, in a Sequence";

Behaviour ReadBehaviour(const Node& node) {
  const std::vector<std::pair<std::string_view, Behaviour>> known = {
      {"Removed", Behaviour::kRemoved},
      {"Isolated", Behaviour::kIsolated},
      {"MergedWithPrevious", Behaviour::kMergedWithPrevious},
      {"MergedWithNext", Behaviour::kMergedWithNext},
      {"Contiguous", Behaviour::kContiguous}};
  for (const auto& [name, behaviour] : known) {
    if (node.Text() == name) return behaviour;
  }
  node.Damaged(fmt::format("\"{}\" is no behaviour", node.Text()));
}

SplitStep ReadSplit(const Node& node) {
  const Node pattern = node.At("pattern");
  pattern.ExpectObject();
  const bool regex = pattern.Has("Regex");
  const std::string& text = pattern.At(regex ? "Regex" : "String").Text();
  return {regex ? Pattern::Regex(text, node.where) : Pattern::Literal(text, node.where),
          ReadBehaviour(node.At("behavior")), node.Flag("invert", false)};
}

void ReadPreTokenizer(const Node& node, std::vector<CutStep>& out, bool& byte_level) {
  const std::string& type = node.Type();
  if (byte_level) node.Refuse(fmt::format("{} after ByteLevel", type), kPreTokenizers);
  const auto split = [&](std::string_view pattern, Behaviour behaviour, bool invert = false) {
    out.emplace_back(SplitStep{Pattern::Regex(pattern, node.where), behaviour, invert});
  };
  if (type == "Sequence") {
    for (const Node& item : node.At("pretokenizers").Items()) ReadPreTokenizer(item, out, byte_level);
  } else if (type == "ByteLevel") {
    if (node.At("add_prefix_space").Flag()) out.emplace_back(PrefixSpaceStep{});
    if (node.Flag("use_regex", true)) split(kGpt2Pattern, Behaviour::kIsolated);
    byte_level = true;
  } else if (type == "Split") {
    out.emplace_back(ReadSplit(node));
  } else if (type == "Digits") {
    split("\\p{N}", node.Flag("individual_digits", false) ? Behaviour::kIsolated : Behaviour::kContiguous);
  } else if (type == "Punctuation") {
    split("[!-/:-@\\[-`{-~\\p{P}]", node.Has("behavior") ? ReadBehaviour(node.At("behavior")) : Behaviour::kIsolated);
  } else if (type == "Whitespace") {
    // Here `tokenizers` uses another engine, whose word characters include the joiners.
    split("[\\w\\x{200c}\\x{200d}]+|[^\\w\\x{200c}\\x{200d}\\s]+", Behaviour::kRemoved, /*invert=*/true);
  } else if (type == "WhitespaceSplit") {
    split("\\s", Behaviour::kRemoved);
  } else {
    node.Refuse(fmt::format("the pre_tokenizer {}", type), kPreTokenizers);
  }
}

// ---- model ----------------------------------------------------------------------------------------------------------

class ModelReader {
 public:
  ModelReader(const Node& node, BpeDefinition& out) : node_(node), out_(out) {}

  void Read() {
    if (const std::string type = node_.Has("type") ? node_.Type() : "BPE"; type != "BPE")
      node_.Refuse(fmt::format("the model {}", type), "BPE");
    RefuseOptions();
    ReadVocabulary();
    ReadBytes();
    ReadMerges();
    out_.model.ignore_merges = node_.Flag("ignore_merges", false);
    for (const auto& [symbols, id] : ids_) {
      if (auto bytes = BytesOfSymbols(symbols)) {
        out_.tokens.emplace_back(std::move(*bytes), id);
      } else {
        out_.tokens.emplace_back(symbols, id);  // never a piece; only decoded
      }
    }
  }

  const std::unordered_map<std::string, int32_t>& ids() const { return ids_; }

 private:
  void RefuseOptions() const {
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (node_.Has(key) && !node_.At(key).Text().empty())
        node_.At(key).Refuse(fmt::format("\"{}\"", node_.At(key).Text()), "no affixes, as in byte-level models");
    }
    if (node_.Has("dropout") && *node_.At("dropout").value != 0)
      node_.At("dropout").Refuse("dropout of merges", "0 or null");
  }

  void ReadVocabulary() {
    const Node vocab = node_.At("vocab");
    vocab.ExpectObject();
    std::unordered_set<int32_t> seen;
    for (const auto& [token, value] : vocab.value->items()) {
      const Node item{&value, fmt::format("{}.\"{}\"", vocab.path, token), vocab.where};
      const int32_t id = item.Id();
      if (!seen.insert(id).second) item.Damaged(fmt::format("the id {} is given to two tokens", id));
      ids_.emplace(token, id);
      out_.largest_id = std::max(out_.largest_id, id);
    }
  }

  void ReadBytes() {
    if (node_.Has("unk_token")) {
      const auto found = ids_.find(node_.At("unk_token").Text());
      // GPT-2's own file names an unknown token, which no text needs: it is looked up only where a byte has no token.
      if (found != ids_.end()) out_.model.unk_id = found->second;
    }
    out_.model.fuse_unk = node_.Flag("fuse_unk", false);
    int missing = -1;
    for (int b = 0; b < 256; ++b) {
      const auto found = ids_.find(SymbolsOfBytes(std::string(1, static_cast<char>(b))));
      out_.model.byte_ids[static_cast<size_t>(b)] = found == ids_.end() ? -1 : found->second;
      if (found == ids_.end()) missing = b;
    }
    if (missing < 0) return;
    if (node_.Flag("byte_fallback", false))
      node_.At("byte_fallback").Refuse("true", "false, with a token for each byte");
    if (out_.model.unk_id < 0)
      node_.Refuse(fmt::format("a vocabulary without a token for the byte 0x{:02X} and without unk_token", missing),
                   "byte-level vocabularies, which hold all 256 bytes");
  }

  void ReadMerges() {
    const std::vector<Node> items = node_.At("merges").Items();
    out_.merges.reserve(items.size());
    for (const Node& item : items) {
      if (item.value->is_string()) {
        const std::string& text = item.Text();
        if (text.starts_with("#version")) continue;
        const size_t space = text.find(' ');
        if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
          item.Damaged(fmt::format("\"{}\" is not two tokens and a space", text));
        AddMerge(item, text.substr(0, space), text.substr(space + 1));
      } else {
        if (!item.value->is_array() || item.value->size() != 2) item.Damaged("a pair of tokens is wanted");
        AddMerge(item, item.At(size_t{0}).Text(), item.At(size_t{1}).Text());
      }
    }
  }

  void AddMerge(const Node& item, const std::string& left, const std::string& right) {
    const auto id = [&](const std::string& token) {
      const auto found = ids_.find(token);
      if (found == ids_.end()) item.Damaged(fmt::format("\"{}\" is not in the vocabulary", token));
      return found->second;
    };
    out_.merges.push_back({id(left), id(right), id(left + right)});
  }

  const Node& node_;
  BpeDefinition& out_;
  std::unordered_map<std::string, int32_t> ids_;
};

// ---- added_tokens, post_processor, decoder --------------------------------------------------------------------------

void ReadAddedTokens(const Node& root, const std::unordered_map<std::string, int32_t>& vocab, BpeDefinition& out) {
  if (!root.Has("added_tokens")) return;
  std::unordered_map<int32_t, std::string> names;
  for (const auto& [token, id] : vocab) names.emplace(id, token);
  std::unordered_set<std::string> seen;
  for (const Node& node : root.At("added_tokens").Items()) {
    AddedToken token;
    token.content = node.At("content").Text();
    token.id = node.At("id").Id();
    token.special = node.Flag("special", false);
    token.single_word = node.Flag("single_word", false);
    token.lstrip = node.Flag("lstrip", false);
    token.rstrip = node.Flag("rstrip", false);
    token.normalized = node.Flag("normalized", !token.special);
    if (token.content.empty() || !seen.insert(token.content).second) continue;  // `tokenizers` passes over them too
    if (const auto found = vocab.find(token.content); found != vocab.end() && found->second != token.id)
      node.Damaged(
          fmt::format("\"{}\" has the id {} here and {} in the vocabulary", token.content, token.id, found->second));
    if (const auto [found, fresh] = names.emplace(token.id, token.content); !fresh && found->second != token.content)
      node.Damaged(fmt::format("the id {} is that of \"{}\" and \"{}\"", token.id, found->second, token.content));
    out.largest_id = std::max(out.largest_id, token.id);
    out.added.push_back(std::move(token));
  }
}

void ReadTemplate(const Node& node, BpeDefinition& out) {
  bool text_seen = false;
  for (const Node& piece : node.At("single").Items()) {
    piece.ExpectObject();
    if (piece.Has("Sequence")) {
      text_seen = true;
      continue;
    }
    const std::string& name = piece.At("SpecialToken").At("id").Text();
    for (const Node& id : node.At("special_tokens").At(name.c_str()).At("ids").Items())
      (text_seen ? out.after : out.before).push_back(id.Id());
  }
}

void ReadPostProcessor(const Node& node, BpeDefinition& out) {
  const std::string& type = node.Type();
  if (type == "ByteLevel") return;  // it moves offsets, which nobody here asks for
  if (type == "TemplateProcessing") return ReadTemplate(node, out);
  if (type != "Sequence")
    node.Refuse(fmt::format("the post_processor {}", type), "ByteLevel, TemplateProcessing, and Sequence of them");
  for (const Node& item : node.At("processors").Items()) ReadPostProcessor(item, out);
}

void CheckDecoder(const Node& node) {
  const std::string& type = node.Type();
  if (type == "ByteLevel") return;
  if (type != "Sequence") node.Refuse(fmt::format("the decoder {}", type), "ByteLevel");
  for (const Node& item : node.At("decoders").Items()) CheckDecoder(item);
}

}  // namespace

void ReadCutting(const json& json, const std::string& where, BpeDefinition& out) {
  const Node root{&json, "", where};
  root.ExpectObject();
  if (root.Has("normalizer")) ReadNormalizer(root.At("normalizer"), out.normalizers);
  bool byte_level = false;
  if (root.Has("pre_tokenizer")) ReadPreTokenizer(root.At("pre_tokenizer"), out.steps, byte_level);
  if (!byte_level)
    Node{&json, "pre_tokenizer", where}.Refuse("a tokeniser that does not work on bytes (no ByteLevel)",
                                               kPreTokenizers);
}

BpeDefinition ReadTokenizerJson(const json& json, const std::string& where) {
  const Node root{&json, "", where};
  root.ExpectObject();
  if (root.Has("version") && root.At("version").Text() != "1.0")
    root.At("version").Refuse(fmt::format("\"{}\"", root.At("version").Text()), "\"1.0\"");
  BpeDefinition out;
  const Node model = root.At("model");
  model.ExpectObject();
  if (model.Has("type") && model.Type() != "BPE") model.Refuse(fmt::format("the model {}", model.Type()), "BPE");
  ReadCutting(json, where, out);
  ModelReader reader(model, out);
  reader.Read();
  ReadAddedTokens(root, reader.ids(), out);
  if (root.Has("post_processor")) ReadPostProcessor(root.At("post_processor"), out);
  if (root.Has("decoder")) CheckDecoder(root.At("decoder"));
  for (const auto* ids : {&out.before, &out.after}) {
    for (const int32_t id : *ids) {
      if (id > out.largest_id) root.At("post_processor").Damaged(fmt::format("the id {} is no token's", id));
    }
  }
  return out;
}

const std::vector<std::string>& FamilyNames() {
  static const std::vector<std::string> names = {"gpt2", "llama3", "qwen2"};
  return names;
}

nlohmann::ordered_json FamilyJson(std::string_view family) {
  using nlohmann::ordered_json;
  const auto byte_level = [](bool trim_offsets, bool use_regex, bool add_prefix_space = false) {
    return ordered_json{{"type", "ByteLevel"},
                        {"add_prefix_space", add_prefix_space},
                        {"trim_offsets", trim_offsets},
                        {"use_regex", use_regex}};
  };
  const auto split = [&](const char* pattern) {
    const ordered_json by_pattern = {
        {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
    return ordered_json{{"type", "Sequence"},
                        {"pretokenizers", ordered_json::array({by_pattern, byte_level(false, false)})}};
  };
  ordered_json out = {{"version", "1.0"},
                      {"truncation", nullptr},
                      {"padding", nullptr},
                      {"added_tokens", ordered_json::array()},
                      {"normalizer", nullptr}};
  if (family == "gpt2") {
    out["pre_tokenizer"] = byte_level(true, true);
  } else if (family == "llama3") {
    out["pre_tokenizer"] = split(
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)");
  } else {
    TRIREME_CHECK(family == "qwen2", std::string(family));
    out["normalizer"] = {{"type", "NFC"}};
    out["pre_tokenizer"] = split(
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)");
  }
  out["post_processor"] = byte_level(false, true);
  out["decoder"] = byte_level(true, true, true);
  out["model"] = {{"type", "BPE"},
                  {"dropout", nullptr},
                  {"unk_token", nullptr},
                  {"continuing_subword_prefix", nullptr},
                  {"end_of_word_suffix", nullptr},
                  {"fuse_unk", false},
                  {"byte_fallback", false},
                  {"ignore_merges", family == "llama3"},
                  {"vocab", ordered_json::object()},
                  {"merges", ordered_json::array()}};
  return out;
}

std::string TokenizerText(const nlohmann::ordered_json& family,
                          const std::vector<std::pair<std::string, int64_t>>& vocabulary,
                          const std::vector<std::pair<std::string, std::string>>& merges) {
  // By hand: an ordered object of nlohmann/json looks for each new key among all old ones.
  constexpr std::string_view kEmptyModel = R"("vocab":{},"merges":[]}})";
  std::string text = family.dump();
  TRIREME_CHECK(text.ends_with(kEmptyModel), "the model is the last key and empty");
  text.resize(text.size() - kEmptyModel.size());
  const auto quoted = [](const std::string& token) { return json(token).dump(); };
  text += "\"vocab\":{";
  for (size_t i = 0; i < vocabulary.size(); ++i)
    text += fmt::format("{}{}:{}", i ? "," : "", quoted(vocabulary[i].first), vocabulary[i].second);
  text += "},\"merges\":[";
  for (size_t i = 0; i < merges.size(); ++i)
    text += fmt::format("{}[{},{}]", i ? "," : "", quoted(merges[i].first), quoted(merges[i].second));
  return text + "]}}";
}

nlohmann::ordered_json SpecialTokenJson(const std::string& content, int64_t id) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

std::string JsonOfVocabAndMerges(std::string_view vocab_json, std::string_view merges_txt, const std::string& where) {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::kData, "DAT022", what, where, "take vocab.json and merges.txt of the model again");
  };
  const json tokens = json::parse(vocab_json, nullptr, /*allow_exceptions=*/false);
  if (!tokens.is_object()) fail("the vocabulary is no JSON object of tokens and ids");
  nlohmann::ordered_json family = FamilyJson("gpt2");
  std::vector<std::pair<std::string, int64_t>> vocabulary;
  for (const auto& [token, id] : tokens.items()) {
    if (!id.is_number_integer()) fail(fmt::format("the id of \"{}\" is {}", token, id.dump()));
    vocabulary.emplace_back(token, id.get<int64_t>());
    if (token == "<|endoftext|>") family["added_tokens"].push_back(SpecialTokenJson(token, vocabulary.back().second));
  }
  std::ranges::sort(vocabulary, {}, &std::pair<std::string, int64_t>::second);
  std::vector<std::pair<std::string, std::string>> merges;
  for (const std::string& line : Split(merges_txt, '\n')) {
    const std::vector<std::string> pair = Split(Trim(line), ' ');
    if (Trim(line).empty() || line.starts_with("#version")) continue;
    if (pair.size() != 2) fail(fmt::format("\"{}\" among the merges is not two tokens and a space", line));
    merges.emplace_back(pair[0], pair[1]);
  }
  return TokenizerText(family, vocabulary, merges);
}

}  // namespace trireme::data
