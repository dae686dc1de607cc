// `trireme generate`: continues a prompt with a model of a native checkpoint.
#include <fmt/core.h>

#include <cstdio>
#include <cxxopts.hpp>
#include <memory>
#include <random>
#include <span>

#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/cli/commands.h"
#include "engine/data/tokenizer.h"
#include "engine/trainer/generator.h"

namespace trireme::cli {
namespace {

struct Request {
  std::string load, prompt, tokenizer;
  int64_t max_new_tokens = 0, context = 0;
  Sampling sampling;
  bool help = false;
  std::string help_text;
};

Request Parse(Arguments arguments) {
  cxxopts::Options options("trireme generate",
                           "Continues a prompt with a model of a native checkpoint, on one CPU process.\n");
  options.add_options()                                                                                        //
      ("load", "checkpoint folder, or one tag in it", cxxopts::value<std::string>(), "DIR")                    //
      ("prompt", "text to continue", cxxopts::value<std::string>()->default_value("\n"), "TEXT")               //
      ("max-new-tokens", "tokens to add", cxxopts::value<int64_t>()->default_value("200"), "N")                //
      ("temperature", "0: always the most likely token", cxxopts::value<double>()->default_value("0.8"), "T")  //
      ("top-k", "draw from the K most likely tokens; 0: from all", cxxopts::value<int64_t>()->default_value("0"),
       "K")                                                                             //
      ("seed", "of the draws", cxxopts::value<uint64_t>()->default_value("1234"), "N")  //
      ("context", "tokens looked back at; 0: as many as the model has positions",
       cxxopts::value<int64_t>()->default_value("0"), "N")                                 //
      ("tokenizer", "byte", cxxopts::value<std::string>()->default_value("byte"), "NAME")  //
      ("h,help", "this text");
  std::vector<const char*> words = {"generate"};
  std::vector<std::string> folded;  // hyphens and underscores are the same
  for (std::string word : arguments) {
    if (word.starts_with("--")) {
      const size_t end = std::min(word.find('='), word.size());
      for (size_t i = 2; i < end; ++i) word[i] = word[i] == '_' ? '-' : word[i];
    }
    folded.push_back(std::move(word));
  }
  for (const std::string& word : folded) words.push_back(word.c_str());
  Request request;
  try {
    const cxxopts::ParseResult parsed = options.parse(static_cast<int>(words.size()), words.data());
    request.help = parsed.count("help") > 0;
    request.help_text = options.help();
    if (request.help) return request;
    if (parsed.count("load") == 0)
      throw Error(ErrorCode::kUsage, "GEN001", "is missing", "--load",
                  "name the folder that `trireme train --save` wrote");
    if (!parsed.unmatched().empty())
      throw Error(ErrorCode::kUsage, "GEN002", "is no flag", parsed.unmatched()[0],
                  "`trireme generate --help` lists the flags");
    request.load = parsed["load"].as<std::string>();
    request.prompt = parsed["prompt"].as<std::string>();
    request.tokenizer = parsed["tokenizer"].as<std::string>();
    request.max_new_tokens = parsed["max-new-tokens"].as<int64_t>();
    request.context = parsed["context"].as<int64_t>();
    request.sampling = {parsed["temperature"].as<double>(), parsed["top-k"].as<int64_t>(),
                        parsed["seed"].as<uint64_t>()};
  } catch (const cxxopts::exceptions::exception& problem) {
    throw Error(ErrorCode::kUsage, "GEN002", problem.what(), "command line",
                "`trireme generate --help` lists the flags");
  }
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
