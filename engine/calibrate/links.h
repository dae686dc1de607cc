// What carries data between ranks: latency and rate of each operation, and what it costs the computing beside it.
#pragma once
#include "engine/calibrate/compute.h"

namespace trireme::calibrate {

// Of the job's ranks, two or more: on GPUs those of a node, on the CPU processes that share it. Fills node_link,
// overlap and the device's communication_slowdown.
void MeasureLinks(const Stopwatch& watch, const Sizes& sizes, Cluster& cluster, Figures& figures);

// Latency and rate of t = latency + bytes / rate, by least squares of the relative errors; both at least 0.
struct Point {
  double bytes = 0, seconds = 0;
};
LinkRate FitLink(const std::vector<Point>& points);

}  // namespace trireme::calibrate
