#include "engine/cli/loaded_model.h"

#include <fmt/core.h>

#include <filesystem>
#include <optional>
#include <utility>

#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/data/indexed_dataset.h"
#include "engine/data/position.h"
#include "engine/plan/families/rope.h"

namespace trireme::cli {
namespace {

// Models round their vocabulary up for their hardware; more than this is another tokeniser's.
constexpr double kMostUnusedIds = 0.1;

[[noreturn]] void WrongValue(const std::string& what, const char* flag, const std::string& fix) {
  throw Error(ErrorCode::kUsage, "USE002", what, flag, fix);
}

std::unique_ptr<data::Tokenizer> OfTrainingData(const ModelFolder& folder) {
  const checkpoint::CheckpointInfo& info = folder.reader->info();
  if (info.data_position.empty()) return nullptr;
  const std::string where = info.directory.string() + ": data position";
  return data::LoadTokenizer(data::PrefixOf(data::PositionFromJson(info.data_position, where).data_path));
}

std::unique_ptr<data::Tokenizer> Find(const ModelRequest& request, const ModelFolder& folder,
                                      const std::string& data_prefix) {
  if (!request.tokenizer.empty()) return data::MakeTokenizer(request.tokenizer);
  if (!data_prefix.empty()) {
    if (auto tokenizer = data::LoadTokenizer(data::PrefixOf(data_prefix))) return tokenizer;
  }
  if (folder.hugging_face) {
    const std::filesystem::path path = request.load;
    const bool has_one = std::filesystem::exists(path / "tokenizer.json") ||
                         (std::filesystem::exists(path / "vocab.json") && std::filesystem::exists(path / "merges.txt"));
    return has_one ? data::MakeTokenizer(path.string()) : nullptr;
  }
  if (auto tokenizer = OfTrainingData(folder)) return tokenizer;
  auto bytes = data::MakeTokenizer("byte");
  return bytes->vocab_size() == folder.model.vocab_size ? std::move(bytes) : nullptr;
}

void CheckVocabulary(const ModelFolder& folder, const data::Tokenizer& tokenizer) {
  const int64_t model = folder.model.vocab_size, ids = tokenizer.vocab_size();
  if (ids <= model && static_cast<double>(model - ids) <= kMostUnusedIds * static_cast<double>(model)) return;
  throw Error(
      ErrorCode::kData, "GEN003",
      fmt::format("the model has a vocabulary of {}, its \"{}\" tokeniser one of {}", model, tokenizer.name(), ids),
      folder.reader->info().directory.string(), "name the tokeniser that made the training data with --tokenizer");
}

}  // namespace

void AddModelFlags(FlagSet& flags, ModelRequest& request) {
  flags.Add("load", "DIR", "checkpoint folder, one tag in it, or a Hugging Face folder", request.load);
  flags.Add("tokenizer", "NAME",
            "byte, a tokenizer.json or a folder with one; default: the one that lies beside data or model",
            request.tokenizer);
  flags.Add("dtype", "TYPE", "of weights and products: fp32, bf16, fp16", request.dtype);
  flags.Add("device", "NAME", "cpu or cuda; default: a GPU where there is one", request.device);
}

void CheckModelFlags(const ModelRequest& request, const char* command) {
  if (request.load.empty()) {
    throw Error(ErrorCode::kUsage, "USE003", fmt::format("the model that `trireme {}` needs is missing", command),
                "--load", "name the folder that `trireme train --save` wrote, or a Hugging Face folder");
  }
  if (!request.device.empty() && request.device != "cpu" && request.device != "cuda") {
    WrongValue(fmt::format("\"{}\" is no device", request.device), "--device", "pass cpu or cuda");
  }
  WeightsType(request);
}

void RequireAtLeast(double value, double least, const char* flag) {
  if (value < least)
    WrongValue(fmt::format("{} is less than {}", value, least), flag, fmt::format("pass at least {}", least));
}

void RequireContext(int64_t tokens, const ModelSpec& model, const char* flag) {
  if (tokens <= MaxPositions(model)) return;
  WrongValue(fmt::format("{} tokens, the model has {} positions", tokens, MaxPositions(model)), flag,
             fmt::format("pass at most {}", MaxPositions(model)));
}

DType WeightsType(const ModelRequest& request) {
  const std::optional<DType> dtype = ParseDType(request.dtype);
  if (!dtype || (*dtype != DType::kFloat32 && *dtype != DType::kBFloat16 && *dtype != DType::kFloat16)) {
    WrongValue(fmt::format("\"{}\" is no type of weights", request.dtype), "--dtype", "pass fp32, bf16 or fp16");
  }
  return *dtype;
}

ModelFolder OpenModel(const ModelRequest& request) {
  ModelFolder folder = OpenModelFolder(request.load);
  for (const std::string& warning : folder.warnings) log::Warn("{}", warning);
  return folder;
}

std::string Describe(const ModelFolder& folder, const ModelRequest& request) {
  const checkpoint::CheckpointInfo& info = folder.reader->info();
  return fmt::format("{}{}, {} parameters in {}", info.directory.string(),
                     folder.hugging_face ? "" : fmt::format(" at step {}", info.step),
                     FormatCount(NumParameters(folder.model)), Name(WeightsType(request)));
}

std::unique_ptr<data::Tokenizer> FindTokenizer(const ModelRequest& request, const ModelFolder& folder,
                                               const std::string& data_prefix) {
  std::unique_ptr<data::Tokenizer> tokenizer = Find(request, folder, data_prefix);
  if (tokenizer != nullptr) CheckVocabulary(folder, *tokenizer);
  return tokenizer;
}

std::unique_ptr<data::Tokenizer> RequireTokenizer(const ModelRequest& request, const ModelFolder& folder) {
  if (auto tokenizer = FindTokenizer(request, folder)) return tokenizer;
  throw Error(ErrorCode::kData, "GEN002",
              fmt::format("no tokeniser is known for this model with a vocabulary of {}", folder.model.vocab_size),
              folder.reader->info().directory.string(),
              "name its tokenizer.json, or the PREFIX.tokenizer.json of its training data, with --tokenizer");
}

std::vector<int32_t> EncodeFor(const ModelFolder& folder, const data::Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  if (folder.hugging_face) ids = tokenizer.special_frame().before;
  tokenizer.Encode(text, ids);
  return ids;
}

}  // namespace trireme::cli
