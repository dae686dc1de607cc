// The library's front: whole steps and steps by hand are the same training, and a loaded checkpoint goes on where it
// stood.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "engine/data/build.h"
#include "engine/trainer/initialize.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;

class Library : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("trireme_library_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::ofstream(folder_ / "ds.json")
        << R"({"train_batch_size": 6, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.5,
      "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
      "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 4, "warmup_type": "linear"}}})";
    std::ofstream text(folder_ / "a.txt");
    for (int i = 0; i < 60; ++i) text << "line " << i * i << " of the text\n\n";
    text.close();
    data::BuildDataset({.inputs = {folder_ / "a.txt"}, .output = folder_ / "a", .workers = 1}, [](int64_t, int64_t) {});
  }
  void TearDown() override { fs::remove_all(folder_); }

  EngineParts Make(int64_t steps) const {
    InitializeOptions options;
    options.config = folder_ / "ds.json";
    options.model.name = "tiny";
    options.model.num_layers = 2;
    options.model.hidden_size = 16;
    options.model.num_attention_heads = options.model.num_key_value_heads = 2;
    options.model.intermediate_size = 64;
    options.model.vocab_size = 257;
    options.model.max_position_embeddings = 16;
    options.seq_length = 16;
    options.training_data = folder_ / "a";
    options.train_iters = steps;
    options.device = "cpu";
    return initialize(options);
  }

  fs::path folder_;
};

TEST_F(Library, StepsByHandEqualWholeSteps) {
  EngineParts whole = Make(6), pieces = Make(6);
  for (int step = 0; step < 6; ++step) {
    const double want = whole.engine->train_batch(*whole.data_loader);
    double sum = 0;
    for (int m = 0; m < 3; ++m) {
      EXPECT_EQ(pieces.engine->is_gradient_accumulation_boundary(), m == 2);
      const double loss = pieces.engine->forward(pieces.data_loader->next());
      sum += loss;
      pieces.engine->backward(loss);
      pieces.engine->step();
    }
    EXPECT_NEAR(sum / 3, want, 1e-5 * want);
    EXPECT_EQ(*pieces.engine->get_global_grad_norm(), *whole.engine->get_global_grad_norm());
    EXPECT_EQ(pieces.engine->get_lr(), whole.engine->get_lr());
    EXPECT_EQ(pieces.engine->global_steps(), step + 1);
  }
  EXPECT_EQ(whole.engine->global_samples(), 36);
}

// 60 short lines give less than one epoch's worth of samples for the longer run: the order of the saved one must be
// kept.
TEST_F(Library, LoadedCheckpointGoesOnWithTheNextSampleAndRate) {
  EngineParts straight = Make(12);
  std::vector<double> want;
  for (int step = 0; step < 12; ++step) want.push_back(straight.engine->train_batch(*straight.data_loader));
  EngineParts first = Make(12);
  for (int step = 0; step < 5; ++step) first.engine->train_batch(*first.data_loader);
  first.engine->save_checkpoint(folder_ / "ckpt");
  EngineParts second = Make(12);
  second.engine->load_checkpoint(folder_ / "ckpt");
  EXPECT_EQ(second.engine->global_steps(), 5);
  EXPECT_EQ(second.data_loader->next_sample(), 30);
  for (size_t step = 5; step < 12; ++step)
    EXPECT_EQ(second.engine->train_batch(*second.data_loader), want[step]) << step;
  EXPECT_EQ(second.engine->get_lr(), straight.engine->get_lr());
}

TEST_F(Library, WrongOrderIsNamed) {
  EngineParts parts = Make(2);
  try {
    parts.engine->step();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.id(), "TRN020");
    EXPECT_NE(error.message().find("step() was called where forward() must follow"), std::string::npos)
        << error.message();
  }
}

}  // namespace
}  // namespace trireme::test
