// train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps: as written, before anything is
// derived.
#include "parsers/sections/sections.h"

namespace trireme {
namespace {

// Larger numbers are mistakes, and the product of three must stay within int64.
const Range kBatchRange = Between(1, 1'000'000'000);

void ReadOne(SectionReader& root, const char* key, const std::optional<int64_t>& flag, const char* flag_name,
             std::optional<int64_t>& value, bool& wrong) {
  const bool written = root.Has(key) && !root.IsAuto(key);
  int64_t read = 0;
  if (root.Fill(key, read, flag, flag_name, kBatchRange, SectionReader::AutoRule::kDefault, /*null_is_absent=*/true)) {
    value = read;
  } else if (written || flag) {
    wrong = true;
  }
}

}  // namespace

WrittenBatch ParseBatch(SectionReader& root, const TrainFlags& flags) {
  WrittenBatch b;
  ReadOne(root, "train_batch_size", flags.global_batch_size, "--global-batch-size", b.train_batch_size, b.wrong);
  ReadOne(root, "train_micro_batch_size_per_gpu", flags.micro_batch_size, "--micro-batch-size",
          b.train_micro_batch_size_per_gpu, b.wrong);
  ReadOne(root, "gradient_accumulation_steps", flags.gradient_accumulation_steps, "--gradient-accumulation-steps",
          b.gradient_accumulation_steps, b.wrong);
  return b;
}

}  // namespace trireme
