// Models that Hugging Face transformers made (make_fixtures.py): the same logits, the same most likely tokens, and the
// same folder again when it is written.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/huggingface.h"
#include "engine/base/file.h"
#include "engine/comm/in_process.h"
#include "engine/model/unit.h"
#include "engine/plan/plan.h"
#include "engine/trainer/checkpointing.h"
#include "engine/trainer/export.h"
#include "engine/zero/rank_state.h"
#include "parsers/json_tree.h"
#include "parsers/model_config.h"
#include "parsers/model_text.h"
#include "tests/compat/huggingface/fixtures.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using checkpoint::CheckpointReader;

constexpr double kTolerance = 1e-5;

// A folder below another has the other's weights.
fs::path WeightsOf(const fs::path& folder) {
  const bool own = safetensors::IsSafetensors(folder);
  return own ? folder : folder.parent_path();
}

ModelSpec SpecOf(const fs::path& folder) {
  Diagnostics diagnostics;
  const ModelSpec spec = ReadHuggingFaceConfig(folder, diagnostics);
  EXPECT_FALSE(diagnostics.HasErrors()) << diagnostics.Render();
  EXPECT_EQ(0, diagnostics.num_warnings()) << diagnostics.Render();
  return spec;
}

template <class T>
std::vector<T> Values(const CheckpointReader& reader, const std::string& name) {
  std::vector<T> values(static_cast<size_t>(checkpoint::Numel(reader.Require(name).shape)));
  reader.ReadFlat(name, "model", 0, static_cast<int64_t>(values.size()), std::as_writable_bytes(std::span(values)));
  return values;
}

// One rank's layers, for sequences of one length.
class Layers {
 public:
  Layers(const ModelSpec& model, const CheckpointReader& reader, int64_t length) {
    Config config;
    config.batch = {1, 1, 1};
    PlanInputs inputs;
    inputs.sequence_length = length;
    plan_ = MakePlan(config, model, inputs);
    state_ = std::make_unique<RankState>(plan_, 0, at::kCPU, RankState::Use::kWeightsOnly);
    LoadInitialWeights(*state_, reader);
    units_ = MakeUnits(plan_);
  }

  // Logits of every position: [length, vocabulary].
  std::vector<float> Logits(const std::vector<int64_t>& ids) {
    const at::NoGradGuard no_grad;
    const int64_t length = plan_.batch.sequence_length, vocab = plan_.model.vocab_size;
    at::Tensor tokens = at::zeros({1, length + 1}, at::kInt);
    for (int64_t i = 0; i < length; ++i)
      tokens.mutable_data_ptr<int32_t>()[i] = static_cast<int32_t>(ids[static_cast<size_t>(i)]);
    at::Tensor x = at::zeros({length, plan_.model.hidden_size}, at::kFloat), y = at::zeros_like(x);
    UnitArgs args;
    args.micro_batch_size = 1;
    args.sequence_length = length;
    args.tokens = tokens;
    args.workspace = at::zeros({WorkspaceBytes(plan_)}, at::kByte);
    args.tied_weights = state_->weights(0);
    args.step_state = state_->step_state();
    for (int u = 0; u + 1 < plan_.num_units(); ++u) {
      Saved saved;
      const SavedLayout layout = LayOutSaved(plan_.units[static_cast<size_t>(u)].spec, plan_.dtypes, length);
      saved.arena = at::zeros({std::max<int64_t>(1, layout.arena_bytes)}, at::kByte);
      args.saved = &saved;
      args.weights = state_->weights(u);
      args.input = x;
      args.output = y;
      units_[static_cast<size_t>(u)]->Forward(args);
      std::swap(x, y);
    }
    args.weights = state_->weights(plan_.num_units() - 1);
    args.input = x;
    at::Tensor logits = at::zeros({length, plan_.model.padded_vocab_size}, at::kFloat);
    units_.back()->Logits(args, 0, logits);
    logits = logits.narrow(1, 0, vocab).contiguous();
    const float* values = logits.const_data_ptr<float>();
    return {values, values + logits.numel()};
  }

  const RankState& state() const { return *state_; }

 private:
  Plan plan_;
  std::unique_ptr<RankState> state_;
  std::vector<std::unique_ptr<Unit>> units_;
};

class HuggingFaceModel : public ::testing::TestWithParam<const char*> {
 protected:
  const fs::path folder_ = fs::path(TRIREME_TEST_DATA) / "fixtures" / GetParam();
  const ModelSpec spec_ = SpecOf(folder_);
  const std::unique_ptr<CheckpointReader> expected_ = CheckpointReader::Open(folder_ / "expected.safetensors");
  std::unique_ptr<CheckpointReader> Weights() const { return checkpoint::OpenHuggingFace(WeightsOf(folder_), spec_); }
};

TEST_P(HuggingFaceModel, Logits) {
  const std::vector<int64_t> ids = Values<int64_t>(*expected_, "input_ids");
  const std::vector<float> want = Values<float>(*expected_, "logits");
  const size_t length = static_cast<size_t>(expected_->Require("input_ids").shape[1]);
  Layers layers(spec_, *Weights(), static_cast<int64_t>(length));
  double worst = 0;
  for (size_t row = 0; row < ids.size() / length; ++row) {
    const auto first = ids.begin() + static_cast<std::ptrdiff_t>(row * length);
    const std::vector<float> got = layers.Logits({first, first + static_cast<std::ptrdiff_t>(length)});
    for (size_t i = 0; i < got.size(); ++i) {
      worst = std::max(worst, std::abs(static_cast<double>(got[i]) - static_cast<double>(want[row * got.size() + i])));
    }
  }
  RecordProperty("largest_difference", std::to_string(worst));
  std::printf("%s: largest difference of a logit %.3g\n", GetParam(), worst);
  EXPECT_LE(worst, kTolerance);
}

TEST_P(HuggingFaceModel, MostLikelyTokens) {
  const std::vector<int64_t> want = Values<int64_t>(*expected_, "greedy");
  const auto prompt = static_cast<size_t>(expected_->Require("input_ids").shape[1]);
  const auto reader = Weights();
  std::vector<int64_t> ids(want.begin(), want.begin() + static_cast<std::ptrdiff_t>(prompt));
  while (ids.size() < want.size()) {
    const std::vector<float> logits = Layers(spec_, *reader, static_cast<int64_t>(ids.size())).Logits(ids);
    const auto last = logits.end() - spec_.vocab_size;
    ids.push_back(std::max_element(last, logits.end()) - last);
  }
  EXPECT_EQ(want, ids);
}

// Keys of the file that transformers wrote, which must be in the one that is written here with the same value.
void ExpectSameConfig(const fs::path& want_file, const fs::path& got_file) {
  Diagnostics diagnostics;
  const std::optional<JsonValue> want = ReadJson(ReadFile(want_file, ErrorCode::kCheckpoint), "want", diagnostics),
                                 got = ReadJson(ReadFile(got_file, ErrorCode::kCheckpoint), "got", diagnostics);
  ASSERT_TRUE(want && got && !diagnostics.HasErrors()) << diagnostics.Render();
  const std::vector<std::string> skipped = {"transformers_version",
                                            "pretraining_tp",
                                            "classifier_dropout",
                                            "is_decoder",
                                            "add_cross_attention",
                                            "layer_types",
                                            "max_window_layers",
                                            "sliding_window",
                                            "reorder_and_upcast_attn",
                                            "scale_attn_weights",
                                            "scale_attn_by_inverse_layer_idx",
                                            "model_type",
                                            "architectures",
                                            "head_dim"};
  const auto compare = [](const JsonMember& member, const JsonValue& object) {
    const JsonMember* found = object.Find(member.key);
    if (found == nullptr) {
      ADD_FAILURE() << member.key << " is not written";
      return;
    }
    EXPECT_EQ(Describe(member.value), Describe(found->value)) << member.key;
  };
  for (const JsonMember& member : want->members) {
    const bool silent = member.key.starts_with("summary_") || member.key.starts_with("_") ||
                        std::ranges::find(skipped, member.key) != skipped.end();
    if (silent || (member.key == "n_inner" && member.value.kind == JsonValue::Kind::kNull)) continue;
    if (member.key == "rope_parameters") {
      for (const JsonMember& inner : member.value.members) compare(inner, got->Find("rope_parameters")->value);
    } else {
      compare(member, *got);
    }
  }
}

TEST_P(HuggingFaceModel, WrittenAgainEqual) {
  const auto reader = Weights();
  const Layers layers(spec_, *reader, 8);
  const std::string name = FixtureName(GetParam());
  const fs::path out = fs::path(::testing::TempDir()) / ("huggingface_" + name);
  fs::remove_all(out);
  RankWorld world;
  world.world = MakeInProcessWorld(1)->MakeCommunicator({0}, 0, "world");
  ExportHuggingFace(layers.state(), world, *world.world,
                    {.folder = out, .dtype = DType::kFloat32, .max_shard_bytes = 50'000});
  ExpectSameConfig(folder_ / "config.json", out / "config.json");
  const ModelSpec again_spec = SpecOf(out);
  const auto again = checkpoint::OpenHuggingFace(out, again_spec);
  ASSERT_EQ(reader->tensors().size(), again->tensors().size());
  for (const checkpoint::TensorInfo& tensor : reader->tensors()) {
    EXPECT_EQ(Values<float>(*reader, tensor.name), Values<float>(*again, tensor.name)) << tensor.name;
  }
  EXPECT_TRUE(spec_.rope == again_spec.rope);
  // Under the names that transformers gave, but for the two names of a head.
  const auto theirs = CheckpointReader::Open(WeightsOf(folder_)), ours = CheckpointReader::Open(out);
  for (const checkpoint::TensorInfo& tensor : theirs->tensors()) {
    if (tensor.name == "lm_head.weight") continue;
    EXPECT_NE(nullptr, ours->Find(tensor.name)) << tensor.name;
  }
  fs::remove_all(out);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, HuggingFaceModel, ::testing::ValuesIn(kFixtures),
                         [](const auto& fixture) { return FixtureName(fixture.param); });

}  // namespace
}  // namespace trireme
