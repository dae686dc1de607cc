// One JSON section, one function, one file. A new section: a struct in config.h, a file here, a line in
// ParseConfigText.
#pragma once
#include <optional>
#include <span>

#include "parsers/cli.h"
#include "parsers/config.h"
#include "parsers/elasticity.h"
#include "parsers/section_reader.h"

namespace trireme {

// Of the batch triangle what file and flags say; parsers/batch_triangle.h derives the rest.
struct WrittenBatch {
  std::optional<int64_t> train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps;
  bool wrong = false;  // one of them was refused, so that deriving makes no sense
};

// Of "auto" where a run needs a value and a plan does not: rates, the length of a schedule.
inline SectionReader::AutoRule NeededByARun(const TrainFlags& flags) {
  return flags.for_plan ? SectionReader::AutoRule::kNeedsFlagLater : SectionReader::AutoRule::kNeedsFlag;
}

// `root` is the reader of the whole file for sections whose keys stand at the top level.
WrittenBatch ParseBatch(SectionReader& root, const TrainFlags& flags);
OptimizerConfig ParseOptimizer(SectionReader in, const TrainFlags& flags);
SchedulerConfig ParseScheduler(SectionReader in, const TrainFlags& flags, const OptimizerConfig& optimizer);
Fp16Config ParseFp16(SectionReader in, const TrainFlags& flags);
Bf16Config ParseBf16(SectionReader& root, const TrainFlags& flags);
DataTypesConfig ParseDataTypes(SectionReader in);
AioConfig ParseAio(SectionReader in);
ElasticityConfig ParseElasticity(SectionReader in);
// offload_optimizer and offload_param of zero_optimization, whose stage is known (offload.cpp).
void ReadOffload(SectionReader& zero, ZeroConfig& config);
ZeroConfig ParseZero(SectionReader& root, int64_t hidden_size);
// A size that came from a key of the file has this before the key's path as its source.
inline constexpr std::string_view kKeySource = "key ";
// Returns sequence_parallel_size, which is refused above 1.
int64_t ParseParallel(SectionReader& root, const TrainFlags& flags, Config& config);
TriremeConfig ParseTrireme(SectionReader in, const TrainFlags& flags, Config& config);
void ParseRecompute(SectionReader& in, RecomputeConfig& config);                      // a key of "trireme"
void ParseActivations(SectionReader& root, const TrainFlags& flags, Config& config);  // after "pipeline" and "trireme"
DataEfficiencyConfig ParseDataEfficiency(SectionReader in);
void ParseTopLevel(SectionReader& root, const TrainFlags& flags, Config& config);

void CheckFeatures(SectionReader& root);
void TellNeoxKeys(SectionReader& root);  // last, before RejectUnread: takes what nobody read

std::span<const KnownKey> KnownTopLevelKeys();

// ParseConfigText (config.cpp), which also appends each key that it asks for, present or not. A section's keys come
// after the section; conditional ones only where `text` makes the parser look at them.
ParseResult ParseRecording(std::string_view text, const std::string& name, const TrainFlags& flags, int64_t world_size,
                           int64_t hidden_size, std::vector<KeyRecord>* records,
                           std::span<const std::string> with = {});

}  // namespace trireme
