// trireme data build and train-tokenizer. The help text stands in data.cpp.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/base/file.h"
#include "engine/cli/data_flags.h"
#include "engine/data/bpe/train.h"
#include "engine/data/build.h"
#include "engine/data/indexed_dataset.h"
#include "engine/data/tokenizer.h"

namespace trireme::cli {
namespace {

// --format, or what the names of the inputs say.
data::TextFormat FormatOf(const Flags& flags, const std::vector<std::filesystem::path>& inputs) {
  const std::string format = flags.Text("--format", "");
  if (format == "text") return data::TextFormat::kText;
  if (format == "jsonl") return data::TextFormat::kJsonl;
  if (!format.empty()) flags.Fail("unknown format \"" + format + "\"", "known: text, jsonl");
  const auto jsonl = std::ranges::count_if(inputs, [](const auto& file) { return file.extension() == ".jsonl"; });
  if (jsonl != 0 && jsonl != std::ssize(inputs))
    flags.Fail(fmt::format("{} of {} inputs are named .jsonl", jsonl, inputs.size()),
               "give --format, or build the two kinds one after the other");
  return jsonl != 0 ? data::TextFormat::kJsonl : data::TextFormat::kText;
}

std::shared_ptr<const data::Tokenizer> TokenizerOf(const Flags& flags) {
  const std::string eod = flags.Text("--eod-token", "");
  if (!flags.Given("--vocab-file") && !flags.Given("--merge-file"))
    return data::MakeTokenizer(flags.Text("--tokenizer", "byte"), eod);
  if (flags.Given("--tokenizer")) flags.Fail("--tokenizer and --vocab-file are both given", "give one of them");
  return data::MakeGpt2Tokenizer(flags.Required("--vocab-file").front(), flags.Required("--merge-file").front(), eod);
}

std::vector<std::filesystem::path> InputsOf(const Flags& flags) {
  const std::vector<std::string>& names = flags.Required("--input");
  return {names.begin(), names.end()};
}

}  // namespace

int RunDataBuild(const std::vector<std::string>& arguments) {
  const Flags flags(arguments,
                    {{"--input", kMany},
                     {"--output", kOne},
                     {"--format", kOne},
                     {"--json-keys", kMany},
                     {"--tokenizer", kOne},
                     {"--vocab-file", kOne},
                     {"--merge-file", kOne},
                     {"--eod-token", kOne},
                     {"--append-eod", kSwitch},
                     {"--no-append-eod", kSwitch},
                     {"--add-special-tokens", kSwitch},
                     {"--workers", kOne}},
                    "trireme data build");
  flags.ExpectNoWords();
  data::BuildOptions options;
  options.inputs = InputsOf(flags);
  const std::string output = flags.Required("--output").front();
  options.format = FormatOf(flags, options.inputs);
  const std::vector<std::string> keys =
      flags.Given("--json-keys") ? *flags.Values("--json-keys") : std::vector<std::string>{"text"};
  if (flags.Given("--json-keys") && options.format != data::TextFormat::kJsonl)
    flags.Fail("--json-keys is for JSONL, and the input is text", "give --format jsonl, or leave --json-keys out");
  if (flags.Given("--append-eod") && flags.Given("--no-append-eod"))
    flags.Fail("--append-eod and --no-append-eod are both given", "give one of them");
  options.append_eod = !flags.Given("--no-append-eod");
  options.add_special_tokens = flags.Given("--add-special-tokens");
  options.workers = static_cast<int>(flags.Integer("--workers", 1, 1024).value_or(0));
  options.tokenizer = TokenizerOf(flags);
  for (const std::string& key : keys) {
    options.json_key = key;
    options.output = keys.size() == 1 ? output : fmt::format("{}_{}", output, key);
    DataProgress progress("tokenising", "MB", 1e6);
    const auto report = data::BuildDataset(options, [&](int64_t done, int64_t total) { progress.Update(done, total); });
    fmt::print("{}: {} documents, {} tokens from {} of text in {}\n", data::PrefixOf(options.output).string(),
               FormatCount(report.documents), FormatCount(report.tokens), FormatBytes(report.input_bytes),
               FormatDuration(progress.Seconds()));
  }
  return 0;
}

int RunTrainTokenizer(const std::vector<std::string>& arguments) {
  const Flags flags(arguments,
                    {{"--input", kMany},
                     {"--output", kOne},
                     {"--format", kOne},
                     {"--json-keys", kOne},
                     {"--vocab-size", kOne},
                     {"--pattern", kOne},
                     {"--special-tokens", kMany},
                     {"--min-frequency", kOne},
                     {"--workers", kOne}},
                    "trireme data train-tokenizer");
  flags.ExpectNoWords();
  data::TrainTokenizerOptions options;
  options.inputs = InputsOf(flags);
  const std::string output = flags.Required("--output").front();
  options.format = FormatOf(flags, options.inputs);
  options.json_key = flags.Text("--json-keys", "text");
  flags.Required("--vocab-size");
  options.vocab_size = flags.Integer("--vocab-size", 1, INT32_MAX).value_or(0);
  options.family = flags.Text("--pattern", "gpt2");
  if (const auto* tokens = flags.Values("--special-tokens")) options.special_tokens = *tokens;
  options.min_frequency = flags.Integer("--min-frequency", 0, INT64_MAX).value_or(0);
  options.workers = static_cast<int>(flags.Integer("--workers", 1, 1024).value_or(0));
  DataProgress counting("counting", "MB", 1e6), merging("merging", "thousand tokens", 1e3);
  const std::string text = data::TrainTokenizer(options, [&](data::TrainPhase phase, int64_t done, int64_t total) {
    (phase == data::TrainPhase::kCounting ? counting : merging).Update(done, total);
  });
  WriteFileDurably(output, text + "\n", ErrorCode::kData);
  // Read back: what was written is what `trireme data build` will use.
  const auto tokenizer = data::MakeTokenizer(output, options.special_tokens.empty() ? "!" : options.special_tokens[0]);
  fmt::print("{}: {} tokens in {}\n", output, FormatCount(tokenizer->vocab_size()), FormatDuration(counting.Seconds()));
  if (tokenizer->vocab_size() < options.vocab_size)
    fmt::print("the text has no more pairs to join{}: {} tokens were wanted\n",
               options.min_frequency > 1 ? fmt::format(" that occur {} times", options.min_frequency) : "",
               FormatCount(options.vocab_size));
  return 0;
}

}  // namespace trireme::cli
