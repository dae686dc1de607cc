#include "tests/cli/train/train_command.h"

#include <fstream>

#include "engine/data/build.h"

namespace trireme::testing {

const std::string kTinyConfig = R"({
  "train_batch_size": 8,
  "train_micro_batch_size_per_gpu": 2,
  "steps_per_print": 2,
  "gradient_clipping": 1.0,
  "zero_optimization": {"stage": 2},
  "optimizer": {"type": "AdamW", "params": {"lr": 0.003, "weight_decay": 0.1}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.003, "warmup_num_steps": 3, "warmup_type": "linear"}}
})";

TinyJob::TinyJob() {
  WriteConfig("config.json", kTinyConfig);
  {
    std::ofstream text(Path("text.txt"));
    for (int document = 0; document < 40; ++document) {
      for (int line = 0; line < 12; ++line)
        text << "And the " << document * line << " oars of the ship beat the water " << line << " times.\n";
      text << "\n";
    }
  }
  data::BuildDataset({.inputs = {Path("text.txt")}, .output = Path("text"), .workers = 1}, [](int64_t, int64_t) {});
}

void TinyJob::WriteConfig(const std::string& name, const std::string& text) const { std::ofstream(Path(name)) << text; }

std::vector<std::string> TinyJob::Train(int ranks, const std::vector<std::string>& more,
                                        const std::string& config) const {
  std::vector<std::string> words = {"launch", "--cpu",       "--num_gpus",         std::to_string(ranks),
                                    "train",  "--deepspeed", "--deepspeed_config", Path(config)};
  const std::vector<std::string> model = {"--num-layers",
                                          "2",
                                          "--hidden-size",
                                          "32",
                                          "--num-attention-heads",
                                          "2",
                                          "--max-position-embeddings",
                                          "32",
                                          "--seq-length",
                                          "32",
                                          "--data-path",
                                          Path("text"),
                                          "--split",
                                          "90,10,0"};
  words.insert(words.end(), model.begin(), model.end());
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace trireme::testing
