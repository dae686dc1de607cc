#include "engine/trainer/inference_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <utility>

#include "checkpoint/huggingface.h"
#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/model/own_modules.h"
#include "engine/plan/families/rope.h"
#include "engine/trainer/checkpointing.h"
#include "parsers/model_config.h"
#include "parsers/model_text.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

// One rank that holds the weights once, in the compute type.
Plan PlanFor(const ModelSpec& model, const InferenceOptions& options) {
  Config config;
  config.batch = {options.micro_batch_size, options.micro_batch_size, 1};
  config.bf16.enabled = options.dtype == DType::kBFloat16;
  config.fp16.enabled = options.dtype == DType::kFloat16;
  PlanInputs inputs;
  inputs.fp64 = options.dtype == DType::kFloat64;
  inputs.sequence_length = options.sequence_length > 0 ? options.sequence_length : MaxPositions(model);
  Plan plan = MakePlan(config, model, inputs);
  plan.dtypes.master = plan.dtypes.compute;
  plan.separate_master = false;
  return plan;
}

bool HoldsNativeCheckpoints(const fs::path& path) {
  return fs::exists(path / "latest") || fs::exists(path / "manifest.json");
}

}  // namespace

ModelFolder OpenModelFolder(const fs::path& path) {
  ModelFolder folder;
  folder.hugging_face = fs::exists(path / "config.json") && !HoldsNativeCheckpoints(path);
  if (folder.hugging_face) {
    Diagnostics diagnostics;
    folder.model = ReadHuggingFaceConfig(path, diagnostics);
    diagnostics.ThrowIfErrors();
    PadVocabulary(folder.model, /*tp_size=*/1);
    folder.reader = checkpoint::OpenHuggingFace(path, folder.model);
    if (const std::string notes = diagnostics.Render(Severity::kWarning); !notes.empty()) {
      folder.warnings.push_back(notes);
    }
  } else {
    folder.reader = checkpoint::CheckpointReader::Open(path);
    const checkpoint::CheckpointInfo& info = folder.reader->info();
    if (info.model_config.empty()) {
      throw Error(ErrorCode::kCheckpoint, "GEN001", "these are weights without a description of their model",
                  info.directory.string(), "name the folder that holds config.json beside the safetensors files");
    }
    folder.model = ModelFromJson(info.model_config, info.directory.string() + ": model description");
    RefuseOwnModules(folder.model, "inference", info.directory.string());
  }
  for (const std::string& warning : folder.reader->info().warnings) folder.warnings.push_back(warning);
  return folder;
}

InferenceModel::InferenceModel(const ModelFolder& folder, const InferenceOptions& options)
    : plan_(PlanFor(folder.model, options)) {
  const at::NoGradGuard no_grad;
  state_ = std::make_unique<RankState>(plan_, 0, options.device, RankState::Use::kWeightsOnly);
  if (folder.hugging_face) {
    LoadInitialWeights(*state_, *folder.reader);
  } else {
    LoadTensors(*state_, {}, *folder.reader, /*with_moments=*/false);
  }
  units_ = MakeUnits(plan_);
  logits_ = at::empty({1, std::max(plan_.model.vocab_size, plan_.model.padded_vocab_size)},
                      at::TensorOptions().dtype(compute_type()).device(options.device));
}

InferenceModel::~InferenceModel() = default;

// A quarter more than is wanted: a text that grows by a token a call seldom allocates.
void InferenceModel::Reserve(int64_t tokens) {
  if (tokens <= reserved_tokens_) return;
  const int64_t most = plan_.batch.tokens_per_micro_batch();
  TRIREME_CHECK(tokens <= most, "more tokens than the model was made for");
  reserved_tokens_ = std::min(most, AlignUp(tokens + tokens / 4, 64));
  const auto options = at::TensorOptions().device(device());
  for (at::Tensor* old : {&boundary_, &next_boundary_, &workspace_}) old->reset();
  boundary_ = at::empty({reserved_tokens_, plan_.model.hidden_size}, options.dtype(compute_type()));
  next_boundary_ = at::empty_like(boundary_);
  workspace_ = at::empty({UnsavedWorkspaceBytes(plan_, reserved_tokens_)}, options.dtype(at::kByte));
}

// `micro` rows of tokens; what differs from unit to unit is left to the caller.
UnitArgs InferenceModel::ArgsOf(int64_t micro, int64_t sequence) const {
  UnitArgs args;
  args.micro_batch_size = micro;
  args.sequence_length = sequence;
  args.workspace = workspace_;
  args.tied_weights = state_->weights(0);
  args.step_state = state_->step_state();
  return args;
}

at::Tensor InferenceModel::Run(const at::Tensor& tokens, std::span<KeyValueCache> caches, int64_t past) {
  const at::NoGradGuard no_grad;
  TRIREME_CHECK(caches.empty() || caches.size() == static_cast<size_t>(plan_.model.num_layers), "one cache a layer");
  const int64_t count = tokens.size(0) * (tokens.size(1) - 1);
  Reserve(count);
  UnitArgs args = ArgsOf(tokens.size(0), tokens.size(1) - 1);
  args.tokens = tokens;
  at::Tensor x = boundary_.narrow(0, 0, count), y = next_boundary_.narrow(0, 0, count);
  for (int u = 0; u + 1 < plan_.num_units(); ++u) {
    Unit& unit = *units_[static_cast<size_t>(u)];
    args.weights = state_->weights(u);
    args.input = x;
    args.output = y;
    if (caches.empty()) {
      unit.Forward(args);
    } else {
      unit.Decode(args, u == 0 ? nullptr : &caches[static_cast<size_t>(u - 1)], past);
    }
    std::swap(x, y);
  }
  return x;
}

at::Tensor InferenceModel::Logits(const at::Tensor& x, int64_t row) {
  const at::NoGradGuard no_grad;
  UnitArgs args = ArgsOf(1, x.size(0));
  args.weights = state_->weights(plan_.num_units() - 1);
  args.input = x;
  units_.back()->Logits(args, row, logits_);
  return logits_.view({-1}).narrow(0, 0, plan_.model.vocab_size).to(at::kFloat).cpu();
}

void InferenceModel::AddLosses(const at::Tensor& x, const at::Tensor& tokens) {
  const at::NoGradGuard no_grad;
  UnitArgs args = ArgsOf(tokens.size(0), tokens.size(1) - 1);
  args.weights = state_->weights(plan_.num_units() - 1);
  args.input = x;
  args.tokens = tokens;
  units_.back()->Forward(args);
}

}  // namespace trireme
