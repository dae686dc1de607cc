#include "parsers/model_families/family.h"

#include <array>

#include "engine/base/error.h"

namespace trireme {
namespace {

const auto kFamilies =
    std::to_array<const ModelFamily*>({&kGpt2Family, &kLlamaFamily, &kMistralFamily, &kQwen2Family, &kGptNeoXFamily});

}  // namespace

const ModelFamily* FindFamily(std::string_view model_type) {
  for (const ModelFamily* family : kFamilies) {
    if (family->model_type == model_type) return family;
  }
  return nullptr;
}

const ModelFamily& FamilyOf(Family family) {
  for (const ModelFamily* known : kFamilies) {
    if (known->family == family) return *known;
  }
  TRIREME_CHECK(false, "a model family without a file");
}

std::vector<std::string> ModelTypes() {
  std::vector<std::string> types;
  for (const ModelFamily* family : kFamilies) types.emplace_back(family->model_type);
  return types;
}

}  // namespace trireme
