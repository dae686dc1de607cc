// Trains a model whose layers Trireme does not know: a table of bytes, blocks of gated causal convolutions
// (arXiv:1612.08083), and a head, all of them torch::nn modules. ZeRO, mixed precision, gradient accumulation and
// checkpoints act on them as on a built-in model.
//   02_own_module ds_config.json corpus/text [steps]        (corpus/text.bin and .idx: `trireme data build`)
// Several ranks: trireme launch --num_gpus 2 ./02_own_module ds_config.json corpus/text
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/randn.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/trainer/initialize.h"

namespace {

namespace nn = torch::nn;

constexpr int64_t kHidden = 96, kLayers = 3, kWidth = 4, kVocabulary = 257;  // the byte tokeniser's

// x + out(value * sigmoid(gate)), where value and gate are a product of what each channel made of its last kWidth
// tokens.
struct GatedConvolution : nn::Module {
  GatedConvolution()
      : norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kHidden})))),
        gated(register_module("gated", nn::Linear(kHidden, 2 * kHidden))),
        out(register_module("out", nn::Linear(kHidden, kHidden))),
        taps(register_parameter("taps", at::randn({kWidth, kHidden}) / kWidth)) {}

  at::Tensor forward(const at::Tensor& x) {  // [micro, sequence, hidden]
    const int64_t sequence = x.size(1);
    const at::Tensor past = at::constant_pad_nd(norm(x), {0, 0, kWidth - 1, 0});  // zeros before the first token
    at::Tensor mixed = past.narrow(1, 0, sequence) * taps[0];
    for (int64_t tap = 1; tap < kWidth; ++tap) mixed = mixed + past.narrow(1, tap, sequence) * taps[tap];
    const std::vector<at::Tensor> halves = gated(mixed).chunk(2, /*dim=*/2);
    return x + out(halves[0] * halves[1].sigmoid());
  }

  nn::LayerNorm norm;
  nn::Linear gated, out;
  at::Tensor taps;
};

trireme::OwnModules MakeModules() {
  trireme::OwnModules modules;
  modules.embedding = trireme::Own(nn::Embedding(kVocabulary, kHidden), "bytes");
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    modules.blocks.push_back(trireme::Own(std::make_shared<GatedConvolution>(), "block." + std::to_string(layer)));
  }
  modules.head = trireme::Own(
      nn::Sequential(nn::LayerNorm(nn::LayerNormOptions({kHidden})), nn::Linear(kHidden, kVocabulary)), "head");
  return modules;
}

int Train(const std::string& config, const std::string& data, int64_t steps) {
  trireme::InitializeOptions options;
  options.config = config;
  options.model.name = "gated convolutions";
  options.model.hidden_size = kHidden;
  options.model.vocab_size = kVocabulary;
  options.modules = MakeModules();  // rank 0's values count
  options.seq_length = 64;
  options.training_data = data;
  options.train_iters = steps;
  auto [engine, optimizer, loader, scheduler] = trireme::initialize(options);
  const bool speaks = engine->trainer().world().rank == 0;
  if (speaks) std::printf("%ld parameters\n", engine->trainer().plan().num_parameters);

  double loss = 0;
  for (int64_t step = 0; step < steps; ++step) {
    loss = engine->train_batch(*loader);
    if (speaks && step % 10 == 0) std::printf("step %ld loss %.4f\n", step, loss);
  }
  const std::string tag = engine->save_checkpoint("checkpoint_02");
  if (speaks) std::printf("last loss %.4f, saved checkpoint_02/%s\n", loss, tag.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: 02_own_module ds_config.json DATA_PREFIX [steps]\n");
    return 2;
  }
  try {
    return Train(argv[1], argv[2], argc > 3 ? std::stol(argv[3]) : 40);
  } catch (const trireme::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return trireme::ExitCode(error.code());
  } catch (const std::exception& error) {  // std::stol
    std::fprintf(stderr, "steps must be a number: %s\n", error.what());
    return 2;
  }
}
