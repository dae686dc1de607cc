// trireme data: tokenise text, look at and check token files, the bigram yardstick. See Help() for the flags.
#include <fmt/core.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/base/strings.h"
#include "engine/cli/commands.h"
#include "engine/cli/data_flags.h"
#include "engine/data/bigram.h"
#include "engine/data/indexed_dataset.h"
#include "engine/data/split.h"
#include "engine/data/summary.h"
#include "engine/data/tokenizer.h"

namespace trireme::cli {
namespace {

constexpr std::string_view kHelp = R"(usage: trireme data ACTION [flags]

  trireme data build --input FILE... --output PREFIX [--format text|jsonl] [--json-keys text] [--tokenizer byte|PATH]
                     [--eod-token TEXT] [--no-append-eod] [--add-special-tokens] [--workers N]
      Tokenises text into PREFIX.bin and PREFIX.idx (Megatron-LM's format), and writes PREFIX.tokenizer.json beside them.
      `trireme data tokenize` is the same.
      text: an empty line ends a document. jsonl: one JSON object a line, its field "text" is a document; files named .jsonl
      are taken as such. Several --json-keys make one dataset each, PREFIX_KEY.
      Tokenisers: byte (ids 0-255 are the bytes, 256 ends each document; vocabulary 257), or a byte-level byte-pair one: PATH
      is a Hugging Face tokenizer.json, its folder, or a folder with vocab.json and merges.txt (also --vocab-file V
      --merge-file M). The end of document is --eod-token, or else the eos_token of a tokenizer_config.json beside it, or
      <|endoftext|>, <|end_of_text|> or </s>; it ends each document unless --no-append-eod is given.
      --add-special-tokens puts around each document what the tokeniser's post-processor would (LLaMA's begin of text);
      Megatron-LM's data has none. --workers: default all cores.
  trireme data train-tokenizer --input FILE... --vocab-size N --output tokenizer.json [--pattern gpt2|llama3|qwen2]
                     [--special-tokens TEXT...] [--min-frequency N] [--format text|jsonl] [--json-keys text] [--workers N]
      Learns a byte-level byte-pair vocabulary of N tokens, the special ones (default <|endoftext|>, ids from 0) and the 256
      bytes included, and writes a tokenizer.json that the `tokenizers` package reads too. --pattern: whose rules cut text
      into words.
  trireme data info PREFIX [--codes megatron|deepspeed]
      Documents, tokens, token type, longest document, range of ids, tokeniser.
  trireme data verify PREFIX [--vocab-size N] [--codes megatron|deepspeed]
      Checks sizes, offsets and document boundaries, and every id against the vocabulary (default: the tokeniser's).
  trireme data bigram PREFIX [--split 969,30,1 | --holdout-percent P] [--seq-length S] [--vocab-size N]
      Trains an add-one bigram model on the training part and prints its loss on the validation part, in nats per token.
      --split is that of `trireme train`; --holdout-percent 5 stands for --split 95,5,0: parts are runs of documents in file
      order, rounded to whole documents. With the run's --seq-length S the loss is taken at exactly the positions that a full
      validation pass of `trireme train` predicts: samples of S + 1 tokens that overlap by one, from the first token of the
      part, whole ones only. Without it, at every token of the part but the first.
)";

data::IndexedDataset Open(const Flags& flags) {
  const std::string codes = flags.Text("--codes", "megatron");
  if (codes != "megatron" && codes != "deepspeed")
    flags.Fail("unknown --codes \"" + codes + "\"", "known: megatron, deepspeed");
  return data::IndexedDataset(flags.Prefix(),
                              codes == "megatron" ? data::CodeTable::kMegatron : data::CodeTable::kDeepSpeed);
}

int Info(const std::vector<std::string>& arguments) {
  const Flags flags(arguments, {{"--codes", 1}}, "trireme data info");
  const auto dataset = Open(flags);
  const auto summary = data::Summarize(dataset);
  const auto tokenizer = data::LoadTokenizerInfo(dataset.prefix());
  fmt::print("dataset           {}\n", dataset.prefix().string());
  fmt::print("documents         {} ({} empty)\n", FormatCount(summary.documents), FormatCount(summary.empty_documents));
  fmt::print("sequences         {}\n", FormatCount(summary.sequences));
  fmt::print("tokens            {} of {}, {}\n", FormatCount(summary.tokens), Name(dataset.type()),
             FormatBytes(summary.tokens * SizeOf(dataset.type())));
  fmt::print("longest document  {} tokens\n", FormatCount(summary.longest_document));
  if (summary.tokens > 0) fmt::print("ids               {} to {}\n", summary.smallest_id, summary.largest_id);
  fmt::print("tokeniser         {}\n", tokenizer ? fmt::format("{}, vocabulary {}, end of document {}", tokenizer->name,
                                                               tokenizer->vocab_size, tokenizer->eod_id)
                                                 : "not known (there is no .tokenizer.json)");
  return 0;
}

int Verify(const std::vector<std::string>& arguments) {
  const Flags flags(arguments, {{"--codes", 1}, {"--vocab-size", 1}}, "trireme data verify");
  const auto dataset = Open(flags);  // checks sizes, offsets and boundaries
  auto vocab_size = flags.Integer("--vocab-size", 1, INT32_MAX);
  if (const auto tokenizer = data::LoadTokenizerInfo(dataset.prefix()); tokenizer && !vocab_size)
    vocab_size = tokenizer->vocab_size;
  data::CheckIds(dataset, vocab_size.value_or(INT32_MAX));
  fmt::print("{}: sizes, offsets and boundaries of {} documents agree; {} tokens lie in {}\n",
             dataset.prefix().string(), FormatCount(dataset.num_documents()), FormatCount(dataset.num_tokens()),
             vocab_size ? fmt::format("the vocabulary of {}", *vocab_size)
                        : "[0, 2147483647) (no tokeniser known: give --vocab-size to check more)");
  return 0;
}

int Bigram(const std::vector<std::string>& arguments) {
  const Flags flags(
      arguments, {{"--codes", 1}, {"--vocab-size", 1}, {"--split", 1}, {"--holdout-percent", 1}, {"--seq-length", 1}},
      "trireme data bigram");
  if (flags.Values("--split") && flags.Values("--holdout-percent"))
    flags.Fail("both --split and --holdout-percent are given", "give one of them");
  const auto percent = flags.Integer("--holdout-percent", 1, 99);
  const std::string split =
      percent ? fmt::format("{},{},0", 100 - *percent, *percent) : flags.Text("--split", "969,30,1");
  const auto weights = data::ParseSplit(split);
  const auto dataset = Open(flags);
  auto vocab_size = flags.Integer("--vocab-size", 1, INT32_MAX);
  if (const auto tokenizer = data::LoadTokenizerInfo(dataset.prefix()); tokenizer && !vocab_size)
    vocab_size = tokenizer->vocab_size;
  if (!vocab_size) flags.Fail("the vocabulary is not known: there is no .tokenizer.json", "give --vocab-size");
  const auto ranges = data::SplitOf(weights, dataset.num_sequences());
  const auto seq_length = flags.Integer("--seq-length", 1, INT32_MAX).value_or(0);
  const auto result = data::HeldOutBigram(dataset, ranges[0], ranges[1], *vocab_size, seq_length);
  fmt::print(
      "bigram loss {:.6f} nats per token on {} held-out tokens (split {}, trained on {} tokens, vocabulary {})\n",
      result.loss, FormatCount(result.predicted_tokens), split, FormatCount(result.train_tokens), *vocab_size);
  return 0;
}

}  // namespace

int RunData(Arguments arguments) {
  const std::map<std::string, int (*)(const std::vector<std::string>&)> actions = {
      {"build", RunDataBuild}, {"tokenize", RunDataBuild}, {"train-tokenizer", RunTrainTokenizer},
      {"info", Info},          {"verify", Verify},         {"bigram", Bigram}};
  std::vector<std::string> names;
  for (const auto& [name, run] : actions) names.push_back(name);
  const std::string all = "one of: " + Join(names, ", ");
  for (const std::string& word : arguments) {
    if (word != "--help" && word != "-h") continue;
    fmt::print("{}", kHelp);
    return 0;
  }
  if (arguments.empty()) throw Error(ErrorCode::kUsage, "DAT015", "an action is missing", "trireme data", all);
  const auto action = actions.find(arguments[0]);
  if (action == actions.end()) {
    const auto near = Suggest(arguments[0], names);
    throw Error(ErrorCode::kUsage, "DAT015", fmt::format("there is no action \"{}\"", arguments[0]), "trireme data",
                near ? fmt::format("did you mean {}?", *near) : all);
  }
  return action->second(arguments);
}

}  // namespace trireme::cli
