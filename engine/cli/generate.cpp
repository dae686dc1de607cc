// `trireme generate`: continues texts with a model of a native checkpoint or a Hugging Face folder.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/strings.h"
#include "engine/cli/commands.h"
#include "engine/cli/leave.h"
#include "engine/cli/loaded_model.h"
#include "engine/comm/store.h"
#include "engine/data/tokenizer.h"
#include "engine/trainer/generator.h"
#include "engine/trainer/rank_world.h"
#include "engine/trainer/sampling.h"
#include "parsers/flag_set.h"

namespace trireme::cli {
namespace {

struct Request {
  ModelRequest model;
  std::string prompt, prompt_ids, prompt_file;
  int64_t max_new_tokens = 200, context = 0, seed = 1234;
  Sampling sampling{.temperature = 0.8};
  bool ids = false, ignore_eos = false, no_kv_cache = false, help = false;
  std::string help_text;
};

void CheckPrompts(const FlagSet& flags) {
  int given = 0;
  for (const char* name : {"prompt", "prompt-ids", "prompt-file"}) given += flags.Given(name) ? 1 : 0;
  if (given > 1) {
    throw Error(ErrorCode::kUsage, "USE002", "two of --prompt, --prompt-ids and --prompt-file are given",
                "trireme generate", "give one of them");
  }
}

Request Parse(Arguments arguments) {
  Request request;
  FlagSet flags("generate");
  flags.AddHeading(
      "Continues a text with a model, on one process. Where a text outgrows the context, its oldest quarter is\n"
      "forgotten each time that the context is full:");
  AddModelFlags(flags, request.model);
  flags.Add("prompt", "TEXT", "text to continue, an empty line if not given", request.prompt);
  flags.Add("prompt-ids", "LIST", "the text as token ids: 464,3290", request.prompt_ids);
  flags.Add("prompt-file", "FILE", "a text a line, continued one after another with the same seed",
            request.prompt_file);
  flags.Add("max-new-tokens", "N", "tokens to add", request.max_new_tokens);
  flags.Add("temperature", "T", "0: always the most likely token", request.sampling.temperature);
  flags.Add("top-k", "K", "draw from the K most likely tokens; 0: from all", request.sampling.top_k);
  flags.Add("top-p", "P", "draw from the fewest most likely tokens that together have probability P",
            request.sampling.top_p);
  flags.Add("seed", "N", "of the draws", request.seed);
  flags.Add("context", "N", "tokens looked back at; 0: as many as the model has positions", request.context);
  flags.Add("ids", "print the ids of the added tokens instead of their text", request.ids);
  flags.Add("ignore-eos", "go on after the end of the text", request.ignore_eos);
  flags.Add("no-kv-cache", "run the whole context anew for each token (slow; the same greedy tokens)",
            request.no_kv_cache);
  flags.Add("help", "this text", request.help);
  request.help_text = flags.Help();  // before Parse: it shows the defaults
  flags.Parse(arguments);
  if (request.help) return request;
  CheckModelFlags(request.model, "generate");
  CheckPrompts(flags);
  if (!flags.Given("prompt")) request.prompt = "\n";
  RequireAtLeast(static_cast<double>(request.max_new_tokens), 0, "--max-new-tokens");
  RequireAtLeast(request.sampling.temperature, 0, "--temperature");
  RequireAtLeast(static_cast<double>(request.sampling.top_k), 0, "--top-k");
  RequireAtLeast(static_cast<double>(request.context), 0, "--context");
  if (request.sampling.top_p <= 0 || request.sampling.top_p > 1) {
    throw Error(ErrorCode::kUsage, "USE002", fmt::format("{} is no probability", request.sampling.top_p), "--top-p",
                "pass more than 0 and at most 1");
  }
  request.sampling.seed = static_cast<uint64_t>(request.seed);
  return request;
}

std::vector<int32_t> ParseIds(const std::string& text, int64_t vocab_size) {
  std::vector<int32_t> ids;
  for (const std::string& word : Split(text, ',')) {
    const std::string_view digits = Trim(word);
    int32_t id = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), id);
    if (error != std::errc() || end != digits.data() + digits.size() || id < 0 || id >= vocab_size) {
      throw Error(ErrorCode::kUsage, "USE002",
                  fmt::format("\"{}\" is no id of the vocabulary of {}", digits, vocab_size), "--prompt-ids",
                  fmt::format("pass whole numbers from 0 to {}, with commas between", vocab_size - 1));
    }
    ids.push_back(id);
  }
  return ids;
}

struct Prompt {
  std::string text;
  std::vector<int32_t> ids;
};

std::vector<Prompt> PromptsOf(const Request& request, const ModelFolder& folder, const data::Tokenizer* tokenizer) {
  if (!request.prompt_ids.empty()) {
    std::vector<int32_t> ids = ParseIds(request.prompt_ids, folder.model.vocab_size);
    std::string text = tokenizer != nullptr && !request.ids ? tokenizer->Decode(ids) : "";
    return {{std::move(text), std::move(ids)}};
  }
  std::vector<std::string> texts = {request.prompt};
  if (!request.prompt_file.empty()) {
    texts = Split(ReadFile(request.prompt_file, ErrorCode::kData), '\n');
    if (texts.back().empty()) texts.pop_back();
  }
  std::vector<Prompt> prompts;
  for (const std::string& text : texts) {
    Prompt prompt{text, EncodeFor(folder, *tokenizer, text)};
    if (prompt.ids.empty()) prompt.ids.push_back(tokenizer->eod_id());
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

// Prints tokens as they come: ids with spaces between, or text that never ends in the middle of a character.
class Printer {
 public:
  explicit Printer(const data::Tokenizer* tokenizer) : tokenizer_(tokenizer) {}

  void Add(int32_t id) {
    if (tokenizer_ == nullptr) {
      fmt::print("{}{}", first_ ? "" : " ", id);
    } else {
      pending_ += tokenizer_->Decode({&id, 1});
      const size_t whole = data::CompleteUtf8(pending_);
      fmt::print("{}", std::string_view(pending_).substr(0, whole));
      pending_.erase(0, whole);
    }
    first_ = false;
    FlushOutput();
  }

  void End() {
    fmt::print("{}\n", pending_.empty() ? "" : "\uFFFD");  // a character whose end never came
    FlushOutput();
  }

 private:
  const data::Tokenizer* tokenizer_;  // null: ids
  std::string pending_;
  bool first_ = true;
};

class Continuation {
 public:
  Continuation(const Request& request, const ModelFolder& folder, const data::Tokenizer* tokenizer, at::Device device)
      : request_(request),
        tokenizer_(tokenizer),
        vocabulary_(static_cast<size_t>(tokenizer != nullptr ? tokenizer->vocab_size() : folder.model.vocab_size)),
        generator_(
            folder,
            {.model = {.device = device, .dtype = WeightsType(request.model), .sequence_length = request.context},
             .kv_cache = !request.no_kv_cache}) {
    if (request.ignore_eos) return;
    ends_.insert(folder.model.eos_token_ids.begin(), folder.model.eos_token_ids.end());
    if (tokenizer != nullptr) ends_.insert(tokenizer->eod_id());
  }

  int64_t context() const { return generator_.context(); }

  // Returns how many tokens were added.
  int64_t Continue(const Prompt& prompt) {
    std::vector<int32_t> ids = prompt.ids;
    const auto longest = static_cast<int64_t>(ids.size()) + request_.max_new_tokens;
    if (longest - 1 > context()) {
      log::Warn("{} tokens and {} more are more than the context of {}: the oldest will be forgotten, {} at a time",
                ids.size(), request_.max_new_tokens, context(), std::max<int64_t>(1, context() / 4));
    }
    if (!request_.ids) fmt::print("{}", prompt.text);
    Printer printer(request_.ids ? nullptr : tokenizer_);
    std::mt19937_64 random(request_.sampling.seed);
    while (static_cast<int64_t>(ids.size()) < longest) {
      const std::vector<float> logits = generator_.Logits(ids);
      ids.push_back(Sample(std::span(logits).first(vocabulary_), request_.sampling, random));
      if (ends_.contains(ids.back())) break;
      printer.Add(ids.back());
    }
    printer.End();
    return static_cast<int64_t>(ids.size() - prompt.ids.size());
  }

 private:
  const Request& request_;
  const data::Tokenizer* tokenizer_;
  const size_t vocabulary_;  // ids that may be drawn: those past the tokeniser's mean nothing
  Generator generator_;
  std::set<int64_t> ends_;
};

}  // namespace

int RunGenerate(Arguments arguments) {
  const Request request = Parse(arguments);
  if (request.help) {
    fmt::print("{}", request.help_text);
    return 0;
  }
  if (const int ranks = RendezvousInfo::FromEnvironment().world; ranks > 1) {
    throw Error(ErrorCode::kUsage, "GEN005", fmt::format("{} ranks were started for it", ranks), "trireme generate",
                "start it without the launcher: it runs on one process");
  }
  const ModelFolder folder = OpenModel(request.model);
  RequireContext(request.context, folder.model, "--context");
  const bool needs_text = !request.ids || request.prompt_ids.empty();
  const auto tokenizer = needs_text ? RequireTokenizer(request.model, folder) : FindTokenizer(request.model, folder);
  const std::vector<Prompt> prompts = PromptsOf(request, folder, tokenizer.get());
  const RankWorld world = RankWorld::FromEnvironment(request.model.device);
  Continuation continuation(request, folder, tokenizer.get(), world.device);
  log::Info("{}, context {}", Describe(folder, request.model), continuation.context());
  const auto begin = std::chrono::steady_clock::now();
  int64_t added = 0;
  for (const Prompt& prompt : prompts) added += continuation.Continue(prompt);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  log::Info("{} tokens in {:.2f} s, {:.1f} a second", added, seconds,
            static_cast<double>(added) / std::max(seconds, 1e-9));
  return 0;
}

}  // namespace trireme::cli
