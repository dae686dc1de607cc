// trireme data: tokenise text, look at and check token files, the bigram yardstick. See Help() for the flags.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/base/strings.h"
#include "engine/cli/commands.h"
#include "engine/data/bigram.h"
#include "engine/data/build.h"
#include "engine/data/indexed_dataset.h"
#include "engine/data/split.h"
#include "engine/data/summary.h"
#include "engine/data/tokenizer.h"

namespace trireme::cli {
namespace {

constexpr int kMany = -1;  // one value or more, up to the next flag

constexpr std::string_view kHelp = R"(usage: trireme data ACTION [flags]

  trireme data build --input FILE... --output PREFIX [--format text|jsonl] [--tokenizer byte] [--workers N]
      Tokenises text into PREFIX.bin and PREFIX.idx (Megatron-LM's format), and writes PREFIX.tokenizer.json beside them.
      text: an empty line ends a document. jsonl: one JSON object a line, its field "text" is a document.
      Tokenisers: byte (ids 0-255 are the bytes, 256 ends each document; vocabulary 257). --workers: default all cores.
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

// --name value..., --name=value, and words without a flag; hyphens and underscores mean the same.
class Flags {
 public:
  // known: flag -> number of values (1 or kMany).
  Flags(const std::vector<std::string>& arguments, const std::map<std::string, int>& known, std::string command)
      : command_(std::move(command)) {
    for (size_t i = 1; i < arguments.size(); ++i) {
      if (!arguments[i].starts_with("--")) {
        words_.push_back(arguments[i]);
        continue;
      }
      const size_t equals = arguments[i].find('=');
      std::string name = arguments[i].substr(0, equals);
      for (char& c : name) c = c == '_' ? '-' : c;
      const auto found = known.find(name);
      if (found == known.end()) FailUnknown(name, known);
      std::vector<std::string>& values = values_[name];
      if (!values.empty() && found->second != kMany) Fail(name + " is given twice", "give it once");
      if (equals != std::string::npos) {
        values.push_back(arguments[i].substr(equals + 1));
        continue;
      }
      const size_t before = values.size();
      while (i + 1 < arguments.size() && !arguments[i + 1].starts_with("--")) {
        values.push_back(arguments[++i]);
        if (found->second != kMany) break;
      }
      if (values.size() == before) Fail(name + " has no value", "write " + name + " VALUE");
    }
  }

  const std::vector<std::string>* Values(const std::string& name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? nullptr : &found->second;
  }
  std::string Text(const std::string& name, const std::string& absent) const {
    return Values(name) ? Values(name)->front() : absent;
  }

  const std::vector<std::string>& Required(const std::string& name) const {
    if (Values(name) == nullptr) Fail(name + " is missing", "`trireme data --help` lists the flags");
    return *Values(name);
  }

  std::optional<int64_t> Integer(const std::string& name, int64_t low, int64_t high) const {
    if (Values(name) == nullptr) return std::nullopt;
    const std::string& text = Values(name)->front();
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
      Fail(fmt::format("{} {} is not an integer from {} to {}", name, text, low, high), "correct the value");
    }
    return value;
  }

  // The one word that is no flag.
  const std::string& Prefix() const {
    if (words_.size() == 1) return words_.front();
    Fail(words_.empty() ? "the PREFIX of the dataset is missing"
                        : fmt::format("one PREFIX is wanted, {} words are given", words_.size()),
         "name the .bin/.idx pair without its endings, for example corpus/text");
  }
  void ExpectNoWords() const {
    if (!words_.empty())
      Fail(fmt::format("\"{}\" belongs to no flag", words_.front()), "`trireme data --help` lists the flags");
  }

  [[noreturn]] void Fail(const std::string& what, const std::string& fix) const {
    throw Error(ErrorCode::kUsage, "DAT015", what, command_, fix);
  }

 private:
  [[noreturn]] void FailUnknown(const std::string& name, const std::map<std::string, int>& known) const {
    std::vector<std::string> names;
    for (const auto& [flag, count] : known) names.push_back(flag);
    const auto near = Suggest(name, names);
    Fail("unknown flag " + name, near ? "did you mean " + *near + "?" : "known: " + Join(names, " "));
  }

  std::string command_;
  std::map<std::string, std::vector<std::string>> values_;
  std::vector<std::string> words_;
};

// One line on stderr, rewritten in place on a terminal; elsewhere one line every 5 seconds.
class Progress {
 public:
  void Update(int64_t done, int64_t total) {
    const double seconds = Seconds();
    if (done < total && seconds - shown_ < (terminal_ ? 0.2 : 5.0)) return;
    shown_ = seconds;
    const double rate = static_cast<double>(done) / std::max(seconds, 1e-6);
    const double left = static_cast<double>(total - done) / std::max(rate, 1.0);
    fmt::print(stderr, "{}tokenising: {:.1f} of {:.1f} MB, {:.1f} MB/s, ETA {}{}", terminal_ ? "\r" : "",
               static_cast<double>(done) / 1e6, static_cast<double>(total) / 1e6, rate / 1e6, FormatDuration(left),
               terminal_ ? "\033[K" : "\n");
    if (terminal_ && done == total) fmt::print(stderr, "\n");
    std::fflush(stderr);
  }
  double Seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  const bool terminal_ = ::isatty(STDERR_FILENO) != 0;
  double shown_ = 0;
};

int Build(const std::vector<std::string>& arguments) {
  const Flags flags(arguments,
                    {{"--input", kMany}, {"--output", 1}, {"--format", 1}, {"--tokenizer", 1}, {"--workers", 1}},
                    "trireme data build");
  flags.ExpectNoWords();
  data::BuildOptions options;
  for (const std::string& input : flags.Required("--input")) options.inputs.emplace_back(input);
  options.output = flags.Required("--output").front();
  const std::string format = flags.Text("--format", "text");
  if (format != "text" && format != "jsonl") flags.Fail("unknown format \"" + format + "\"", "known: text, jsonl");
  options.format = format == "text" ? data::TextFormat::kText : data::TextFormat::kJsonl;
  options.tokenizer = flags.Text("--tokenizer", "byte");
  options.workers = static_cast<int>(flags.Integer("--workers", 1, 1024).value_or(0));
  Progress progress;
  const auto report = data::BuildDataset(options, [&](int64_t done, int64_t total) { progress.Update(done, total); });
  fmt::print("{}: {} documents, {} tokens from {} of text in {}\n", data::PrefixOf(options.output).string(),
             FormatCount(report.documents), FormatCount(report.tokens), FormatBytes(report.input_bytes),
             FormatDuration(progress.Seconds()));
  return 0;
}

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
  const auto tokenizer = data::LoadTokenizer(dataset.prefix());
  fmt::print("dataset           {}\n", dataset.prefix().string());
  fmt::print("documents         {} ({} empty)\n", FormatCount(summary.documents), FormatCount(summary.empty_documents));
  fmt::print("sequences         {}\n", FormatCount(summary.sequences));
  fmt::print("tokens            {} of {}, {}\n", FormatCount(summary.tokens), Name(dataset.type()),
             FormatBytes(summary.tokens * SizeOf(dataset.type())));
  fmt::print("longest document  {} tokens\n", FormatCount(summary.longest_document));
  if (summary.tokens > 0) fmt::print("ids               {} to {}\n", summary.smallest_id, summary.largest_id);
  fmt::print("tokeniser         {}\n", tokenizer
                                           ? fmt::format("{}, vocabulary {}, end of document {}", tokenizer->name(),
                                                         tokenizer->vocab_size(), tokenizer->eod_id())
                                           : "not known (there is no .tokenizer.json)");
  return 0;
}

int Verify(const std::vector<std::string>& arguments) {
  const Flags flags(arguments, {{"--codes", 1}, {"--vocab-size", 1}}, "trireme data verify");
  const auto dataset = Open(flags);  // checks sizes, offsets and boundaries
  auto vocab_size = flags.Integer("--vocab-size", 1, INT32_MAX);
  if (const auto tokenizer = data::LoadTokenizer(dataset.prefix()); tokenizer && !vocab_size)
    vocab_size = tokenizer->vocab_size();
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
  if (const auto tokenizer = data::LoadTokenizer(dataset.prefix()); tokenizer && !vocab_size)
    vocab_size = tokenizer->vocab_size();
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
      {"build", Build}, {"info", Info}, {"verify", Verify}, {"bigram", Bigram}};
  for (const std::string& word : arguments) {
    if (word != "--help" && word != "-h") continue;
    fmt::print("{}", kHelp);
    return 0;
  }
  if (arguments.empty())
    throw Error(ErrorCode::kUsage, "DAT015", "an action is missing", "trireme data",
                "one of: build, info, verify, bigram");
  const auto action = actions.find(arguments[0]);
  if (action == actions.end()) {
    const std::vector<std::string> names = {"build", "info", "verify", "bigram"};
    const auto near = Suggest(arguments[0], names);
    throw Error(ErrorCode::kUsage, "DAT015", fmt::format("there is no action \"{}\"", arguments[0]), "trireme data",
                near ? fmt::format("did you mean {}?", *near) : "one of: build, info, verify, bigram");
  }
  return action->second(arguments);
}

}  // namespace trireme::cli
