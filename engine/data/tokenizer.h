// Text <-> token ids.
//   auto tokenizer = MakeTokenizer("byte");  std::vector<int32_t> ids;  tokenizer->Encode("In the beginning", ids);
// The byte tokeniser: ids 0..255 are the bytes of the text, 256 ends a document, vocabulary 257; it needs no files. The
// byte-pair tokeniser, "bpe", is read from a Hugging Face tokenizer.json (engine/data/bpe). Any text round-trips
// through both, but for what a normaliser changes. PREFIX.tokenizer.json beside a dataset says which tokeniser made it,
// so that `generate` can decode and `train` can compare vocabularies: {"format": 1, "tokenizer": "byte", "vocab_size":
// 257, "eod_id": 256}; for bpe also "eod_token" and last "definition", the whole tokenizer.json. All members are const
// and safe to call from many threads.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

struct SpecialFrame {  // ids around one text, such as LLaMA's begin of text
  std::vector<int32_t> before, after;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string_view name() const = 0;  // "byte", "bpe"
  virtual int64_t vocab_size() const = 0;     // ids are 0 .. vocab_size - 1, the end of document included
  virtual int32_t eod_id() const = 0;
  // What the tokeniser's own post-processor puts around a text. Encode never does, as Megatron-LM's data has none of
  // it: a caller who wants it puts it there.
  virtual const SpecialFrame& special_frame() const = 0;
  virtual std::string definition() const = 0;  // the text of its tokenizer.json; "": it needs none

  virtual void Encode(std::string_view text, std::vector<int32_t>& ids) const = 0;  // appends; adds no end of document
  // The bytes of the ids, one after another: those of a single id may be a part of a character (CompleteUtf8). The byte
  // tokeniser's end of document becomes an empty line, as in the input format; other special tokens become their text.
  // Throws Error{kData, DAT006} on an id outside the vocabulary.
  virtual std::string Decode(std::span<const int32_t> ids) const = 0;
};

// Bytes of `text` from the front that end with a whole character: the rest may become one with what is still to come.
// Invalid bytes count as characters.
size_t CompleteUtf8(std::string_view text);

// "byte", a tokenizer.json or PREFIX.tokenizer.json, or a folder with tokenizer.json or with vocab.json and merges.txt.
// The end of document is the token `eod_token`; "": "eos_token" of a tokenizer_config.json beside the file, or else the
// first of <|endoftext|> <|end_of_text|> </s> that it has. Throws Error{kUsage, DAT014} on an unknown name,
// Error{kData} DAT022, DAT023, DAT025.
std::unique_ptr<Tokenizer> MakeTokenizer(std::string_view name, const std::string& eod_token = "");
// From GPT-2's pair of files.
std::unique_ptr<Tokenizer> MakeGpt2Tokenizer(const std::filesystem::path& vocab_json,
                                             const std::filesystem::path& merges_txt,
                                             const std::string& eod_token = "");

std::filesystem::path TokenizerPath(const std::filesystem::path& prefix);
void SaveTokenizer(const Tokenizer& tokenizer, const std::filesystem::path& prefix);
// nullptr if PREFIX.tokenizer.json does not exist (a dataset from elsewhere). Throws Error{kData, DAT014} if it is
// damaged.
std::unique_ptr<Tokenizer> LoadTokenizer(const std::filesystem::path& prefix);

// The same file without building the tokeniser.
struct TokenizerInfo {
  std::string name;
  int64_t vocab_size = 0;
  int32_t eod_id = 0;
};
std::optional<TokenizerInfo> LoadTokenizerInfo(const std::filesystem::path& prefix);

}  // namespace trireme::data
