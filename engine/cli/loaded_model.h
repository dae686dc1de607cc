// What `generate` and `eval` share: which model, in which type, and the tokeniser that belongs to it.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/tokenizer.h"
#include "engine/trainer/inference_model.h"
#include "parsers/flag_set.h"

namespace trireme::cli {

struct ModelRequest {
  std::string load, device, dtype = "fp32", tokenizer;
};
void AddModelFlags(FlagSet& flags, ModelRequest& request);
// Throws Error{kUsage}: USE003 without --load, USE002.
void CheckModelFlags(const ModelRequest& request, const char* command);
void RequireAtLeast(double value, double least, const char* flag);  // else USE002
// Is `tokens` no more than the model's positions? Throws USE002.
void RequireContext(int64_t tokens, const ModelSpec& model, const char* flag);
DType WeightsType(const ModelRequest& request);

// OpenModelFolder, with its warnings logged.
ModelFolder OpenModel(const ModelRequest& request);
// One line about the model, for the log.
std::string Describe(const ModelFolder& folder, const ModelRequest& request);

// The tokeniser of --tokenizer; else of the data at `data_prefix`; else in the Hugging Face folder; else of the data
// that the checkpoint was trained on; else bytes, if the vocabulary is theirs. nullptr if none is known. Throws GEN003
// if its vocabulary is not the model's.
std::unique_ptr<data::Tokenizer> FindTokenizer(const ModelRequest& request, const ModelFolder& folder,
                                               const std::string& data_prefix = "");
// FindTokenizer, but GEN002 where none is known.
std::unique_ptr<data::Tokenizer> RequireTokenizer(const ModelRequest& request, const ModelFolder& folder);

// Ids of `text`. Where the model comes from a Hugging Face folder, what its tokeniser puts before a text stands there
// too (LLaMA's begin of text); data of `trireme data` has none.
std::vector<int32_t> EncodeFor(const ModelFolder& folder, const data::Tokenizer& tokenizer, const std::string& text);

}  // namespace trireme::cli
