// Sentences about a layout that works and costs more than it needs to: a lower ZeRO stage that would do, nodes that
// make a step no shorter.
//   for (const std::string& text : AdviceOn(request)) ...
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/advise/fill.h"
#include "engine/advise/layout.h"
#include "engine/schedule/predict.h"
#include "parsers/cluster.h"

namespace trireme {

struct AdviceOnRequest {
  const Job& job;
  const Plan& plan;  // of the job's config, with memory and traffic
  // Both or neither: without them stages are compared by what they send.
  const Cluster* cluster = nullptr;
  const Prediction* prediction = nullptr;
  FillOptions limit = {};  // limit_bytes 0: not known, and no stage is proposed
};

std::vector<std::string> AdviceOn(const AdviceOnRequest& request);

}  // namespace trireme
