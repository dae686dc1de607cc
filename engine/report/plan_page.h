// `trireme plan --html`: one step of a plan as a picture: every rank's lanes, memory over time, the account.
//   WriteFileDurably(path, PlanPage(plan, cluster, prediction, memory_bytes), ErrorCode::kEnvironment);
#pragma once
#include <string>

#include "engine/plan/plan.h"
#include "engine/schedule/predict.h"
#include "parsers/cluster.h"

namespace trireme::report {

// `plan` has its account. `device_bytes`: of one device, to compare with; 0: not known.
std::string PlanPage(const Plan& plan, const Cluster& cluster, const Prediction& prediction, double device_bytes);

}  // namespace trireme::report
