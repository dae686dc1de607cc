// The model folders of fixtures/.
#pragma once
#include <algorithm>
#include <string>

namespace trireme {

inline constexpr const char* kFixtures[] = {"gpt2",
                                            "gpt2_untied_gelu",
                                            "llama",
                                            "llama/linear",
                                            "llama/dynamic",
                                            "llama/yarn",
                                            "llama/yarn_all_keys",
                                            "llama/llama3",
                                            "llama/longrope",
                                            "llama/mistral",
                                            "llama_bias_tied",
                                            "qwen2",
                                            "qwen2_untied",
                                            "gpt_neox",
                                            "gpt_neox_serial"};

inline std::string FixtureName(std::string folder) {
  std::ranges::replace(folder, '/', '_');
  return folder;
}

}  // namespace trireme
