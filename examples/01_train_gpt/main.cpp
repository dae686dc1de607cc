// Trains a small GPT through the library, first a whole step at a time, then a micro-batch at a time.
//   01_train_gpt ds_config.json corpus/text [steps]        (corpus/text.bin and .idx: `trireme data build`)
// Several ranks: trireme launch --num_gpus 2 ./01_train_gpt ds_config.json corpus/text
#include <cstdio>
#include <exception>
#include <string>

#include "engine/base/error.h"
#include "engine/trainer/initialize.h"

namespace {

trireme::ModelSpec SmallGpt() {
  trireme::ModelSpec model;
  model.name = "small";
  model.num_layers = 4;
  model.hidden_size = 128;
  model.num_attention_heads = model.num_key_value_heads = 4;
  model.intermediate_size = 4 * model.hidden_size;
  model.vocab_size = 257;  // the byte tokeniser's
  model.max_position_embeddings = 128;
  return model;
}

int Train(const std::string& config, const std::string& data, int64_t steps) {
  auto [engine, optimizer, loader, scheduler] = trireme::initialize(
      {.config = config, .model = SmallGpt(), .seq_length = 128, .training_data = data, .train_iters = steps});
  const bool speaks = engine->trainer().world().rank == 0;

  // A whole optimizer step, all its micro-batches: the fast way.
  for (int64_t step = 0; step < steps / 2; ++step) {
    const double loss = engine->train_batch(*loader);
    if (speaks && step % 10 == 0) std::printf("step %ld loss %.4f lr %.2e\n", step, loss, engine->get_lr()[0]);
  }

  // The same, a micro-batch at a time.
  while (engine->global_steps() < steps) {
    const double loss = engine->forward(loader->next());
    engine->backward(loss);
    engine->step();
    if (speaks && engine->global_steps() == steps) {
      std::printf("last micro-batch loss %.4f, gradient norm %.3f\n", loss, *engine->get_global_grad_norm());
    }
  }
  const std::string tag = engine->save_checkpoint("checkpoint_01");
  if (speaks) std::printf("saved checkpoint_01/%s after %ld steps\n", tag.c_str(), engine->global_steps());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: 01_train_gpt ds_config.json DATA_PREFIX [steps]\n");
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
