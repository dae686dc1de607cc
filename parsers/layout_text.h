// A config's text with another layout in it: the counterpart of ParseConfigText for the keys that say where the parts
// of a job run.
//   std::string text = WithLayoutKeys(ReadFile(path), path, config, suggested);
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parsers/config.h"
#include "parsers/json_tree.h"

namespace trireme {

// JSON, indented by two. `from` is what `text` parses to, without errors, in its own layout or in one that stands in
// for it. Of `to` the layout is written: micro-batch size and accumulation, sizes of tensor and pipeline parallelism,
// stages of a rank, schedule and cut of the pipeline, the ZeRO stage, what is offloaded, the prefetch size of stage 3,
// recomputation and sequence parallelism. Numbers are written where `text` had "auto" or nothing, so that no flag has
// to fill them; other names of these keys go. Everything else, train_batch_size included, stays as the user wrote it,
// in its order; comments go.
std::string WithLayoutKeys(std::string_view text, const std::string& name, const Config& from, const Config& to);

// Sets keys of a config's root object to other values: "zero_optimization.stage=2", "trireme.recompute=cheap"; values
// as a config file writes them. Other names of a key, and what says something else about the same, go. Throws
// Error{kUsage, USE002} for what is no assignment, USE004 for what is set twice.
void SetKeys(JsonValue& root, std::span<const std::string> assignments);

// A key that SetKeys set under another of its names, and that stands nowhere under its own.
struct OtherSpelling {
  std::string_view key, spelling;  // "tensor_parallel.tp_size", "tensor_parallel.autotp_size"
};
std::vector<OtherSpelling> OtherSpellingsSet(JsonValue& root);

// The same on a text; one that is no object is returned as it is.
std::string WithKeys(std::string_view text, const std::string& name, std::span<const std::string> assignments);

// trireme.recompute: "keep", "cheap", "full:8,cheap:4,keep:20".
std::string RecomputeText(const std::vector<RecomputeRun>& runs);

}  // namespace trireme
