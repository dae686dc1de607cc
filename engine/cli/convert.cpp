// trireme convert: a checkpoint, or a Hugging Face folder, into a Hugging Face folder.
#include <fmt/core.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/find.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/reader.h"
#include "engine/base/error.h"
#include "engine/cli/commands.h"
#include "engine/data/tokenizer.h"
#include "parsers/cli.h"
#include "parsers/flag_set.h"
#include "parsers/model_text.h"

namespace trireme::cli {
namespace {

using checkpoint::CheckpointReader;

struct Options {
  std::string load, tag, save_hf, dtype, tokenizer;
  bool help = false;
};

void AddFlags(FlagSet& set, Options& o) {
  set.Add("load", "DIR", "a checkpoint, the folder that holds checkpoints, or a Hugging Face folder", o.load);
  set.Add("tag", "TAG", "which of several checkpoints; the one that a resumed run would take if not given", o.tag);
  set.Add("save-hf", "DIR", "the Hugging Face folder to write: config.json, safetensors, tokenizer", o.save_hf);
  set.Add("save-hf-dtype", "TYPE", "fp32, bf16, fp16 or fp64; the type of the run's weights if not given", o.dtype);
  set.Add("tokenizer", "FROM", "a folder with tokenizer files, or the prefix of a data set", o.tokenizer);
  set.Add("help", "this text", o.help);
}

std::string Needed(const std::string& value, const char* flag) {
  if (!value.empty()) return value;
  throw Error(ErrorCode::kUsage, "USE003", "the flag is missing", flag, std::string("pass ") + flag + " DIR");
}

std::vector<checkpoint::Companion> TokenizerOf(const std::string& from) {
  if (from.empty()) return {};
  std::vector<checkpoint::Companion> files = checkpoint::TokenizerFiles(from);
  if (!files.empty()) return files;
  const auto tokenizer = data::LoadTokenizer(from);
  if (tokenizer && !tokenizer->definition().empty()) return {{"tokenizer.json", tokenizer->definition()}};
  throw Error(ErrorCode::kUsage, "USE002",
              tokenizer ? "the data set's tokenizer has no tokenizer.json" : "holds no tokenizer files",
              "--tokenizer " + from, "name a folder with tokenizer.json, or leave the flag out");
}

std::unique_ptr<CheckpointReader> Open(const Options& options) {
  if (!options.tag.empty()) {
    return CheckpointReader::Open(checkpoint::RequireCheckpoint(options.load, options.tag).found->directory);
  }
  return CheckpointReader::Open(Needed(options.load, "--load"));
}

}  // namespace

int RunConvert(Arguments arguments) {
  Options options;
  FlagSet set("convert");
  AddFlags(set, options);
  set.Parse(arguments);
  if (options.help) {
    fmt::print("{}", set.Help());
    return 0;
  }
  checkpoint::RequireNewFolder(Needed(options.save_hf, "--save-hf"));
  std::unique_ptr<CheckpointReader> reader = Open(options);
  for (const std::string& warning : reader->info().warnings) fmt::print(stderr, "warning: {}\n", warning);
  const std::string text = reader->info().model_config, where = reader->info().directory.string();
  const ModelSpec model = ModelFromJson(text, where + ": model description");
  std::vector<checkpoint::Companion> companions = TokenizerOf(options.tokenizer);
  if (reader->info().format == "safetensors") {
    if (options.tokenizer.empty()) companions = checkpoint::TokenizerFiles(options.load);
    reader = checkpoint::WithModelNames(std::move(reader), model);
  }
  const DType dtype =
      ParseWeightsDType(options.dtype, "--save-hf-dtype").value_or(WeightsDType(text).value_or(DType::kFloat32));
  checkpoint::HuggingFaceWriter writer(options.save_hf, model, dtype);
  checkpoint::CopyTensors(*reader, model, dtype, writer);
  writer.Commit(HuggingFaceConfig(model, dtype), companions);
  fmt::print("{}: {} in {}, {} tokenizer files\n", options.save_hf, ModelType(model.family), Name(dtype),
             companions.size());
  return 0;
}

}  // namespace trireme::cli
