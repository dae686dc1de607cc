#include "engine/model/own_modules.h"

#include <ATen/ops/zeros.h>
#include <fmt/core.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "engine/base/error.h"
#include "engine/kernels/scalar_type.h"
#include "engine/model/own_parameters.h"

namespace trireme {
namespace {

[[noreturn]] void Fail(const char* id, const std::string& what, const std::string& where, const std::string& fix) {
  throw Error(ErrorCode::kConfig, id, what, where, fix);
}

std::string NameOf(const OwnModule& own, int64_t unit) {
  return own.name.empty() ? fmt::format("modules.{}", unit) : own.name;
}

void CheckParameter(const std::string& name, const at::Tensor& parameter) {
  if (!parameter.requires_grad()) {
    Fail("OWN002", "has requires_grad false", name,
         "register it as a buffer: all parameters of own modules are trained");
  }
  if (!parameter.is_floating_point() || parameter.is_sparse()) {
    Fail("OWN002", fmt::format("is of type {}", c10::toString(parameter.scalar_type())), name,
         "parameters are dense and floating; register others as buffers");
  }
  if (IsBound(parameter) || parameter.numel() == 0) {
    Fail("OWN003", fmt::format("belongs to another engine or has no elements ({} of them)", parameter.numel()), name,
         "make a new module for each engine");
  }
}

ParameterSpec SpecOf(const std::string& name, const at::Tensor& parameter, bool decay_all) {
  ParameterSpec spec;
  spec.name = name;
  spec.shape = parameter.sizes().vec();
  spec.init = Init::kGiven;
  spec.decay = decay_all || parameter.dim() >= 2;
  return spec;
}

UnitSpec SpecOf(const OwnModule& own, UnitKind kind, int64_t unit, const ModelSpec& model, bool decay_all,
                std::set<const void*>& seen) {
  UnitSpec spec;
  spec.kind = kind;
  spec.name = NameOf(own, unit);
  spec.layer = kind == UnitKind::kBlock ? unit - 1 : -1;
  spec.autograd = true;
  int64_t matrix_elements = 0;
  for (const auto& [name, parameter] : ParametersOf(own)) {
    const std::string full = spec.name + "." + name;
    CheckParameter(full, parameter);
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) {
      Fail("OWN001", "is a parameter of two modules", full,
           "give each module its own parameters; only a module's own parts may share one");
    }
    spec.parameters.push_back(SpecOf(full, parameter, decay_all));
    if (parameter.dim() >= 2) matrix_elements += parameter.numel();
  }
  if (kind == UnitKind::kHead) {
    spec.forward_workspace = {8, kWorkspaceSlack};  // losses
  } else {
    spec.saved = {{"out", true, model.hidden_size, SavedSpec::Place::kPool}};
  }
  if (kind != UnitKind::kEmbedding) spec.forward_flops_per_token = 2.0 * static_cast<double>(matrix_elements);
  return spec;
}

}  // namespace

void DescribeOwnModules(const OwnModules& modules, int64_t sequence_length, ModelSpec& model) {
  if (modules.empty()) return;
  model.own_modules = true;
  const auto fill = [](auto& size, int64_t value) {
    if (size <= 0) size = value;
  };
  if (!modules.blocks.empty()) model.num_layers = static_cast<int64_t>(modules.blocks.size());
  if (modules.embedding.forward || modules.head.forward) model.tie_word_embeddings = false;
  if (model.name.empty()) model.name = "own modules";
  fill(model.max_position_embeddings, sequence_length);
  const bool family_blocks = std::ranges::any_of(modules.blocks, [](const OwnModule& own) { return !own.forward; });
  if (modules.blocks.empty() || family_blocks) return;
  fill(model.num_attention_heads, 1);
  fill(model.num_key_value_heads, model.num_attention_heads);
  fill(model.intermediate_size, 4 * model.hidden_size);
}

std::vector<UnitSpec> OwnUnitSpecs(const OwnModules& modules, const ModelSpec& model, bool decay_all) {
  std::vector<UnitSpec> specs;
  std::set<const void*> seen;
  const auto add = [&](const OwnModule& own, UnitKind kind, int64_t unit) {
    if (own.forward) specs.push_back(SpecOf(own, kind, unit, model, decay_all, seen));
  };
  add(modules.embedding, UnitKind::kEmbedding, 0);
  for (size_t layer = 0; layer < modules.blocks.size(); ++layer) {
    add(modules.blocks[layer], UnitKind::kBlock, static_cast<int64_t>(layer) + 1);
  }
  add(modules.head, UnitKind::kHead, model.num_layers + 1);
  return specs;
}

const OwnModule* FindOwnModule(const OwnModules& modules, const UnitSpec& unit) {
  if (!unit.autograd) return nullptr;
  switch (unit.kind) {
    case UnitKind::kEmbedding:
      return &modules.embedding;
    case UnitKind::kHead:
      return &modules.head;
    case UnitKind::kBlock:
      break;
  }
  return &modules.blocks.at(static_cast<size_t>(unit.layer));
}

std::vector<std::pair<std::string, at::Tensor>> ParametersOf(const OwnModule& own) {
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  if (!own.module) return parameters;
  std::set<const void*> seen;
  for (const auto& item : own.module->named_parameters()) {
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
      parameters.emplace_back(item.key(), item.value());
    }
  }
  return parameters;
}

std::vector<at::Tensor> BuffersOf(const OwnModule& own) {
  std::vector<at::Tensor> buffers;
  if (!own.module) return buffers;
  for (const auto& item : own.module->named_buffers()) {
    if (item.value().defined()) buffers.push_back(item.value());
  }
  return buffers;
}

at::Tensor InitialValues(const OwnModule& own, const UnitLayout& layout, at::ScalarType type) {
  const auto parameters = ParametersOf(own);
  TRIREME_CHECK(parameters.size() == layout.segments.size(), layout.spec.name + ": another module than the plan's");
  at::Tensor flat = at::zeros({layout.padded_elements}, at::TensorOptions().dtype(type));
  for (size_t p = 0; p < parameters.size(); ++p) {
    const at::Tensor& parameter = parameters[p].second;
    TRIREME_CHECK(!IsBound(parameter), parameters[p].first + " holds no values of its own any more");
    const Segment& segment = layout.segments[p];
    flat.narrow(0, segment.begin, segment.count).copy_(parameter.detach().reshape({-1}));
  }
  return flat;
}

void RefuseOwnModules(const ModelSpec& model, const std::string& action, const std::string& where) {
  if (!model.own_modules) return;
  throw Error(ErrorCode::kUsage, "OWN004",
              action + " knows the families' layers alone; " + model.name + " has own modules", where,
              "call the modules in your own program; checkpoints hold their parameters by name");
}

}  // namespace trireme
