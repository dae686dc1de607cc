// Modules of the user's, LibTorch's torch::nn::Module, as units of the model: one each for the embedding, for every
// decoder layer, and for the head. What a list leaves out is the model family's own.
//   OwnModules modules;
//   for (int layer = 0; layer < 4; ++layer) modules.blocks.push_back(Own(std::make_shared<MyBlock>(hidden_size)));
//
// Shapes, with B = sequences of a micro-batch, S = sequence length, h = ModelSpec::hidden_size, in the run's compute
// type: embedding: int64 [B, S] -> [B, S, h]; block: [B, S, h] -> [B, S, h]; head: [B, S, h] -> logits [B, S, V] with
// V >= ModelSpec::vocab_size (columns past the vocabulary count for nothing). The loss is not the module's: cross
// entropy with the next token follows the head.
//
// What a module must keep to (docs/own_modules.md has all of it):
// - It belongs to one engine of one rank: each rank makes its own. Every rank starts from rank 0's values. Its
//   parameters become parts of that engine's buffers; after the engine has ended they are empty.
// - All parameters are trained. Buffers are constants: the same on every rank, not saved, of the compute type where
// they
//   are floating; a module that changes one is refused (OWN007).
// - Forward is a function of its input, its parameters, its buffers, and numbers drawn from LibTorch's default
//   generators. These restart for each call from the run's seed, the step, the sample and the unit, so a resumed or
//   recomputed step draws the same numbers; another split into micro-batches draws others.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/plan/plan.h"

// Declared here so that no header of LibTorch's modules (seconds and a gigabyte for each file) comes with this one.
namespace torch::nn {
class Module;
}

namespace trireme {

struct OwnModule {
  std::shared_ptr<torch::nn::Module> module;             // null: a function without parameters
  std::function<at::Tensor(const at::Tensor&)> forward;  // of `module`; empty: the family's unit stands here
  std::string name = {};  // its parameters are <name>.<their name in the module>; "": modules.<number of the unit>
};

struct OwnModules {
  OwnModule embedding = {};
  std::vector<OwnModule> blocks = {};  // one a decoder layer; empty: all of them the family's
  OwnModule head = {};

  bool empty() const { return !embedding.forward && blocks.empty() && !head.forward; }
};

// `module`: std::shared_ptr of a class derived from torch::nn::Module with `Tensor forward(Tensor)`, or a holder of one
// (torch::nn::Linear, torch::nn::Sequential).
template <typename M>
OwnModule Own(const M& module, std::string name = "") {
  const auto held = [&] {
    if constexpr (requires { module.ptr(); }) {
      return module.ptr();
    } else {
      return module;
    }
  }();
  return {held, [held](const at::Tensor& x) -> at::Tensor { return held->forward(x); }, std::move(name)};
}

// What the modules make of the model's description: its layers, untied weights where embedding or head is not the
// family's, and for sizes that are 0 since no unit of the family needs them something that passes.
void DescribeOwnModules(const OwnModules& modules, int64_t sequence_length, ModelSpec& model);

// PlanInputs::own_units. Throws Error{kConfig, OWN001..OWN003} for modules that cannot be trained.
std::vector<UnitSpec> OwnUnitSpecs(const OwnModules& modules, const ModelSpec& model, bool decay_all);

// The module of a unit of the plan; null where that is the family's.
const OwnModule* FindOwnModule(const OwnModules& modules, const UnitSpec& unit);

// What the module holds at the start, as the unit's flat buffer: [padded_elements] on the CPU, in `type`. Before the
// first Forward only.
at::Tensor InitialValues(const OwnModule& module, const UnitLayout& layout, at::ScalarType type);

// The module's buffers, in one order on every rank.
std::vector<at::Tensor> BuffersOf(const OwnModule& module);

// Throws Error{kUsage, OWN004}: `action` ("generating text") needs no module but the family's.
void RefuseOwnModules(const ModelSpec& model, const std::string& action, const std::string& where);

}  // namespace trireme
