// A model's weights alone on one device: what generation and evaluation share.
//   const ModelFolder folder = OpenModelFolder("checkpoint");
//   InferenceModel model(folder, {.device = at::kCPU});  at::Tensor x = model.Run(tokens);
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "engine/model/unit.h"
#include "engine/zero/rank_state.h"

namespace trireme {

// Where a model lies: a native checkpoint of any layout, or a Hugging Face folder.
struct ModelFolder {
  std::unique_ptr<checkpoint::CheckpointReader> reader;
  ModelSpec model;
  bool hugging_face = false;
  std::vector<std::string> warnings;
};

// A folder with config.json beside safetensors is a Hugging Face folder. Throws GEN001 for weights without a model
// description, what CheckpointReader::Open throws, and all problems of config.json at once.
ModelFolder OpenModelFolder(const std::filesystem::path& path);

struct InferenceOptions {
  at::Device device = at::kCPU;
  DType dtype = DType::kFloat32;  // fp32, bf16, fp16: the weights are rounded to it, once
  int64_t sequence_length = 0;    // 0: all positions of the model. More than it has: PLN007
  int64_t micro_batch_size = 1;
};

class InferenceModel {
 public:
  InferenceModel(const ModelFolder& folder, const InferenceOptions& options);
  InferenceModel(const InferenceModel&) = delete;
  InferenceModel& operator=(const InferenceModel&) = delete;
  ~InferenceModel();

  const ModelSpec& model() const { return plan_.model; }
  const Plan& plan() const { return plan_; }
  at::Device device() const { return state_->device(); }
  at::ScalarType compute_type() const { return ScalarTypeOf(plan_.dtypes.compute); }

  // All units but the head. tokens: int32 [micro, seq + 1] on the device, whose last column is not looked at. Returns
  // x [micro * seq, h], valid until the next call. With `caches`, one a layer: the tokens stand at positions past ..,
  // and their keys and values join the caches.
  at::Tensor Run(const at::Tensor& tokens, std::span<KeyValueCache> caches = {}, int64_t past = 0);
  // Logits of one row of what Run returned: [vocabulary], on the host, fp32.
  at::Tensor Logits(const at::Tensor& x, int64_t row);
  // Adds the losses of the tokens that follow each row to kEvalLossSum and kEvalTokens of step_state().
  void AddLosses(const at::Tensor& x, const at::Tensor& tokens);
  const at::Tensor& step_state() const { return state_->step_state(); }

 private:
  UnitArgs ArgsOf(int64_t micro, int64_t sequence) const;
  void Reserve(int64_t tokens);

  Plan plan_;
  std::unique_ptr<RankState> state_;
  std::vector<std::unique_ptr<Unit>> units_;
  int64_t reserved_tokens_ = 0;
  at::Tensor boundary_, next_boundary_, workspace_, logits_;
};

}  // namespace trireme
