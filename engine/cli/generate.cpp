// `trireme generate`: continues a prompt with a model of a native checkpoint.
#include <fmt/core.h>

#include <cstdio>
#include <memory>
#include <random>
#include <span>
#include <string>

#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/cli/commands.h"
#include "engine/data/tokenizer.h"
#include "engine/trainer/generator.h"
#include "parsers/flag_set.h"

namespace trireme::cli {
namespace {

struct Request {
  std::string load, prompt, tokenizer = "byte";
  int64_t max_new_tokens = 200, context = 0, seed = 1234;
  Sampling sampling{.temperature = 0.8};
  bool help = false;
  std::string help_text;
};

void CheckNotNegative(double value, const char* flag) {
  if (value >= 0) return;
  throw Error(ErrorCode::kUsage, "USE002", fmt::format("{} is less than 0", value), flag, "pass at least 0");
}

Request Parse(Arguments arguments) {
  Request request;
  FlagSet flags("generate");
  flags.AddHeading("Continues a prompt with a model of a native checkpoint, on one CPU process:");
  flags.Add("load", "DIR", "checkpoint folder, or one tag in it", request.load);
  flags.Add("prompt", "TEXT", "text to continue, an empty line if not given", request.prompt);
  flags.Add("max-new-tokens", "N", "tokens to add", request.max_new_tokens);
  flags.Add("temperature", "T", "0: always the most likely token", request.sampling.temperature);
  flags.Add("top-k", "K", "draw from the K most likely tokens; 0: from all", request.sampling.top_k);
  flags.Add("seed", "N", "of the draws", request.seed);
  flags.Add("context", "N", "tokens looked back at; 0: as many as the model has positions", request.context);
  flags.Add("tokenizer", "NAME", "byte", request.tokenizer);
  flags.Add("help", "this text", request.help);
  request.help_text = flags.Help();  // before Parse: it shows the defaults
  flags.Parse(arguments);
  if (request.help) return request;
  if (request.load.empty()) {
    throw Error(ErrorCode::kUsage, "USE003", "the checkpoint is missing", "--load",
                "name the folder that `trireme train --save` wrote");
  }
  if (!flags.Given("prompt")) request.prompt = "\n";
  CheckNotNegative(static_cast<double>(request.max_new_tokens), "--max-new-tokens");
  CheckNotNegative(request.sampling.temperature, "--temperature");
  CheckNotNegative(static_cast<double>(request.sampling.top_k), "--top-k");
  CheckNotNegative(static_cast<double>(request.context), "--context");
  request.sampling.seed = static_cast<uint64_t>(request.seed);
  return request;
}

}  // namespace

int RunGenerate(Arguments arguments) {
  const Request request = Parse(arguments);
  if (request.help) {
    fmt::print("{}", request.help_text);
    return 0;
  }
  const auto tokenizer = data::MakeTokenizer(request.tokenizer);
  const auto reader = checkpoint::CheckpointReader::Open(request.load);
  for (const std::string& warning : reader->info().warnings) log::Warn("{}", warning);
  Generator generator(*reader, at::kCPU, request.context);
  if (generator.model().vocab_size != tokenizer->vocab_size()) {
    throw Error(ErrorCode::kData, "GEN003",
                fmt::format("the model has a vocabulary of {}, the tokeniser \"{}\" one of {}",
                            generator.model().vocab_size, request.tokenizer, tokenizer->vocab_size()),
                request.load, "name the tokeniser that made the training data");
  }
  log::Info("{} at step {}, {} parameters, context {}", reader->info().directory.string(), reader->info().step,
            FormatCount(NumParameters(generator.model())), generator.context());
  std::vector<int32_t> ids;
  tokenizer->Encode(request.prompt, ids);
  if (ids.empty()) ids.push_back(tokenizer->eod_id());
  std::mt19937_64 random(request.sampling.seed);
  fmt::print("{}", request.prompt);
  for (int64_t i = 0; i < request.max_new_tokens; ++i) {
    ids.push_back(Sample(generator.Logits(ids), request.sampling, random));
    fmt::print("{}", tokenizer->Decode(std::span(ids).last(1)));
    std::fflush(stdout);
  }
  fmt::print("\n");
  return 0;
}

}  // namespace trireme::cli
