// trireme inspect: what a checkpoint holds, and whether it is whole.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/find.h"
#include "checkpoint/reader.h"
#include "checkpoint/verify.h"
#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/cli/commands.h"

namespace trireme::cli {
namespace {

using checkpoint::CheckpointInfo;
using checkpoint::CheckpointReader;
using checkpoint::TensorInfo;

constexpr std::string_view kHelp = R"(usage: trireme inspect FOLDER [--tag TAG] [--tensors] [--config] [--verify]

  FOLDER     a checkpoint's folder, the folder that holds checkpoints (--save of `trireme train`), or a Hugging Face
             folder or .safetensors file
  --tag      which of several checkpoints; without it the one that a resumed run would take
  --tensors  list every tensor with its shape and stored states
  --config   print the saved texts: model, optimizer, trainer, data position, run config
  --verify   read every byte and compare it with its hash; exit code 1 if anything differs
)";

struct Options {
  std::string folder, tag;
  bool tensors = false, config = false, verify = false, help = false;
};

[[noreturn]] void Usage(const std::string& what, const std::string& where) {
  throw Error(ErrorCode::kUsage, "CKP023", what, where, "`trireme inspect --help` lists the flags");
}

Options ReadOptions(const std::vector<std::string>& arguments) {
  Options options;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "--help" || word == "-h") {
      options.help = true;
    } else if (word == "--tensors") {
      options.tensors = true;
    } else if (word == "--config") {
      options.config = true;
    } else if (word == "--verify") {
      options.verify = true;
    } else if (word == "--tag") {
      if (++i == arguments.size()) Usage("a tag must follow", word);
      options.tag = arguments[i];
    } else if (word.starts_with("--tag=")) {
      options.tag = word.substr(6);
    } else if (word.starts_with("-")) {
      Usage("no such flag", word);
    } else if (!options.folder.empty()) {
      Usage("one folder at a time", word);
    } else {
      options.folder = word;
    }
  }
  if (options.folder.empty() && !options.help) Usage("the folder of a checkpoint is missing", "trireme inspect");
  return options;
}

void PrintInfo(const CheckpointReader& reader) {
  const CheckpointInfo& info = reader.info();
  fmt::print("{}\n  format      {}\n", info.directory.string(), info.format);
  if (!info.tag.empty()) fmt::print("  tag         {}, step {}\n", info.tag, info.step);
  if (!info.uuid.empty()) {
    const checkpoint::Topology& t = info.topology;
    fmt::print("  saved by    {}, {} ranks (dp {} tp {} pp {}), ZeRO stage {}\n", info.writer, t.world, t.dp, t.tp,
               t.pp, t.zero_stage);
    fmt::print("  uuid        {}\n", info.uuid);
  }
  std::map<std::string, std::pair<int64_t, int64_t>> states;  // "master fp32" -> elements, bytes
  for (const TensorInfo& tensor : reader.tensors()) {
    const int64_t count = checkpoint::Numel(tensor.shape);
    for (const checkpoint::StateInfo& state : tensor.states) {
      auto& [elements, bytes] = states[fmt::format("{} {}", state.name, Name(state.dtype))];
      elements += count;
      bytes += count * SizeOf(state.dtype);
    }
  }
  fmt::print("  tensors     {}, {} in all\n", reader.tensors().size(), FormatBytes(info.stored_bytes));
  for (const auto& [name, sum] : states)
    fmt::print("  {:<24}{:>16} elements {:>12}\n", name, FormatCount(sum.first), FormatBytes(sum.second));
  for (const auto& [alias, target] : info.aliases) fmt::print("  tied        {} = {}\n", alias, target);
}

void PrintTensors(const CheckpointReader& reader) {
  size_t width = 6;
  for (const TensorInfo& tensor : reader.tensors()) width = std::max(width, tensor.name.size());
  fmt::print("\n{:<{}}  {:<20}  states\n", "tensor", width, "shape");
  for (const TensorInfo& tensor : reader.tensors()) {
    std::string states;
    for (const checkpoint::StateInfo& state : tensor.states)
      states += fmt::format("{}{} {}", states.empty() ? "" : ", ", state.name, Name(state.dtype));
    fmt::print("{:<{}}  {:<20}  {}\n", tensor.name, width, checkpoint::ShapeText(tensor.shape), states);
  }
}

void PrintTexts(const CheckpointInfo& info) {
  const std::pair<const char*, const std::string*> texts[] = {{"model", &info.model_config},
                                                              {"optimizer", &info.optimizer},
                                                              {"trainer", &info.trainer_state},
                                                              {"data position", &info.data_position},
                                                              {"run config", &info.run_config}};
  for (const auto& [name, text] : texts) {
    if (!text->empty()) fmt::print("\n{}:\n{}\n", name, *text);
  }
}

int Verify(const std::filesystem::path& folder) {
  const checkpoint::VerifyReport report = checkpoint::VerifyCheckpoint(folder);
  for (const std::string& note : report.notes) fmt::print("note: {}\n", note);
  for (const std::string& problem : report.problems) fmt::print("{}\n", problem);
  if (!report.ok()) {
    fmt::print("verify: {} problems\n", report.problems.size());
    return ExitCode(ErrorCode::kCheckFailed);
  }
  fmt::print("verify: {} files, {} tensors, {} read: as written\n", report.num_files, report.num_tensors,
             FormatBytes(report.bytes_read));
  return 0;
}

}  // namespace

int RunInspect(Arguments arguments) {
  const Options options = ReadOptions(arguments);
  if (options.help) {
    fmt::print("{}", kHelp);
    return 0;
  }
  std::filesystem::path folder = options.folder;
  if (!options.tag.empty() && !options.verify)
    folder = checkpoint::RequireCheckpoint(folder, options.tag).found->directory;
  if (!options.tag.empty() && options.verify) folder /= options.tag;  // a damaged one is what --verify is for
  if (options.verify) {
    const bool holds_tags =
        !std::filesystem::exists(folder / "manifest.json") && std::filesystem::exists(folder / "latest");
    if (holds_tags) folder = checkpoint::RequireCheckpoint(folder).found->directory;
    const int code = Verify(folder);
    if (code != 0) return code;
  }
  const auto reader = CheckpointReader::Open(folder);
  for (const std::string& warning : reader->info().warnings) fmt::print(stderr, "warning: {}\n", warning);
  PrintInfo(*reader);
  if (options.tensors) PrintTensors(*reader);
  if (options.config) PrintTexts(reader->info());
  return 0;
}

}  // namespace trireme::cli
