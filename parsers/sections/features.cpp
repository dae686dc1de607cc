// What single values of DeepSpeed's features ask for: attention that is not dense, passes of the compiler, a writer
// that writes nothing.
#include <fmt/core.h>

#include <algorithm>

#include "engine/base/strings.h"
#include "parsers/sections/known_sections.h"
#include "parsers/sections/sections.h"

namespace trireme {
namespace {

using Kind = JsonValue::Kind;

// DeepSpeed only parses the section, the model's code has to ask for it; a file that has it means it.
void CheckSparseAttention(SectionReader& root) {
  SectionReader in = root.Section("sparse_attention", SectionKind::kLoose);
  if (!in.Exists()) return;
  std::string mode = "fixed";
  in.Read("mode", mode);
  static const std::vector<std::string> kModes = {"dense", "fixed", "variable", "bigbird", "bslongformer"};
  if (std::ranges::find(kModes, mode) == kModes.end()) {
    in.diagnostics().Error("CFG012", in.At("mode"), in.Path("mode"), fmt::format("{} is no mode", Quoted(mode)),
                           fmt::format("write one of {}", Join(kModes, ", ")));
  } else if (mode != "dense") {
    in.diagnostics().Error("CFG009", in.Here(), "sparse_attention",
                           fmt::format("attention in blocks of mode \"{}\" is not supported", mode),
                           "remove the section, or write \"mode\": \"dense\": attention sees every token before it");
  }
}

void CheckPasses(SectionReader& root) {
  const JsonValue* compile = root.Find("compile");
  const JsonMember* passes = compile == nullptr ? nullptr : compile->Find("passes");
  if (passes == nullptr || passes->value.kind == Kind::kNull || passes->value.IsAuto()) return;
  const Position at = PositionIn(root.Here().file, *passes);
  for (const JsonValue& pass : passes->value.elements) {
    if (pass.text == "autosp") {
      root.diagnostics().Error(
          "CFG009", at, "compile.passes",
          "the pass autosp splits sequences over sequence_parallel_size ranks, which is not "
          "supported here",
          "remove it; --tensor-model-parallel-size N --sequence-parallel splits them over N ranks");
    } else if (pass.text != "z1" && pass.text != "z3" && pass.text != "autotp") {
      root.diagnostics().Error("CFG012", at, "compile.passes", fmt::format("{} is no pass", Describe(pass)),
                               "DeepSpeed's passes are z1, z3, autosp and autotp");
    }
  }
  if (passes->value.kind != Kind::kArray) {
    root.diagnostics().Error("CFG005", at, "compile.passes", fmt::format("{} is no list", Describe(passes->value)),
                             "write [\"z3\"] for example, or remove the key");
  }
}

void RefuseMockWriter(SectionReader& root) {
  const JsonValue* checkpoint = root.Find("checkpoint");
  const JsonMember* writer = checkpoint == nullptr ? nullptr : checkpoint->Find("writer");
  const JsonMember* type = writer == nullptr ? nullptr : writer->value.Find("type");
  if (type == nullptr || ToLower(type->value.text) != "mock") return;
  root.diagnostics().Error("CFG009", PositionIn(root.Here().file, *type), "checkpoint.writer.type",
                           "DeepSpeed's mock writer writes no checkpoints, and this program has none such",
                           "leave out --save to write none, or write \"fast\"");
}

// Any value but false switches it on, nothing too; the table of known keys speaks of the others.
void TellDatastates(SectionReader& root) {
  const JsonValue* value = root.Find("datastates_ckpt");
  const bool nothing =
      value != nullptr && (value->kind == Kind::kNull || (value->kind == Kind::kObject && value->members.empty()));
  if (!nothing) return;
  root.diagnostics().Notice(
      "CFG010", root.At("datastates_ckpt"), "datastates_ckpt",
      fmt::format("{} is on in DeepSpeed, and no effect here: {}", Describe(*value), known::kFormats));
}

}  // namespace

void CheckFeatures(SectionReader& root) {
  CheckSparseAttention(root);
  CheckPasses(root);
  RefuseMockWriter(root);
  TellDatastates(root);
}

}  // namespace trireme
