// Which units make up which stage of a pipeline. Methods and tie-breaking as DeepSpeed's PipelineModule has them, so
// that a plan cuts where DeepSpeed cut.
#include <fmt/core.h>
#include <regex.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <numeric>

#include "engine/base/error.h"
#include "engine/base/strings.h"
#include "engine/plan/parts.h"

namespace trireme::plan_parts {
namespace {

constexpr std::string_view kType = "type:", kLayers = "layers:";
constexpr const char* kWhere = "trireme.pipeline.partition";

[[noreturn]] void Fail(const char* id, const std::string& what, const std::string& where, const std::string& fix) {
  throw Error(ErrorCode::kConfig, id, what, where, fix);
}

// POSIX's, extended and without regard to case, since LibTorch exports std::regex of another version of the library,
// and a program that uses its own beside it dies.
class Pattern {
 public:
  explicit Pattern(const std::string& text)
      : error_(::regcomp(&compiled_, text.c_str(), REG_EXTENDED | REG_ICASE | REG_NOSUB)) {
    if (error_ == 0) return;
    char reason[200] = "";
    ::regerror(error_, &compiled_, reason, sizeof reason);
    Fail("PLN021", fmt::format("\"{}\" is no regular expression: {}", text, reason), kWhere,
         "write for example type:block");
  }
  ~Pattern() {
    if (error_ == 0) ::regfree(&compiled_);
  }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  bool Finds(const std::string& text) const { return ::regexec(&compiled_, text.c_str(), 0, nullptr, 0) == 0; }

 private:
  regex_t compiled_{};
  int error_;
};

std::string KindOf(const UnitSpec& spec) {
  return spec.kind == UnitKind::kEmbedding ? "embedding" : spec.kind == UnitKind::kHead ? "head" : "block";
}

std::vector<double> Weights(const std::vector<UnitLayout>& units, const std::string& method) {
  std::vector<double> weights;
  if (method.starts_with(kType)) {
    const Pattern pattern(method.substr(kType.size()));
    for (const UnitLayout& unit : units) {
      weights.push_back(pattern.Finds(KindOf(unit.spec)) || pattern.Finds(unit.spec.name) ? 1 : 0);
    }
    return weights;
  }
  if (method != "parameters" && method != "time") {
    Fail("PLN021", fmt::format("\"{}\" is no way to cut a model into stages", method), kWhere,
         "write uniform, parameters, time, type:REGEX, or layers:0,5,11 with each stage's first layer");
  }
  for (const UnitLayout& unit : units) {
    double elements = 0;
    for (const Segment& segment : unit.segments) elements += static_cast<double>(segment.count);
    // A tied weight counts in both of its places.
    if (unit.spec.reads_tied_embedding) elements += static_cast<double>(units.front().segments.front().count);
    weights.push_back(method == "time" ? unit.spec.forward_flops_per_token : elements);
  }
  return weights;
}

std::vector<UnitRange> FromFirsts(std::vector<int> firsts, int num_units) {
  std::vector<UnitRange> stages;
  firsts.push_back(num_units);
  for (size_t s = 0; s + 1 < firsts.size(); ++s) stages.push_back({firsts[s], firsts[s + 1] - 1});
  return stages;
}

// "0,5,11": unit 0 is the embedding, layer i is unit i + 1.
std::vector<int> ByHand(std::string_view list, int num_layers, int num_stages) {
  std::vector<int> firsts;
  for (const std::string& item : Split(list, ',')) {
    const std::string_view text = Trim(item);
    int layer = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), layer);
    const bool number = error == std::errc() && end == text.data() + text.size();
    const bool rises = firsts.empty() ? layer == 0 : layer + 1 > std::max(firsts.back(), 1) && layer < num_layers;
    if (!number || !rises) {
      Fail("PLN022", fmt::format("stage {} begins with layer \"{}\" of {}", firsts.size(), item, num_layers), kWhere,
           "begin with 0 and let the numbers rise; the first stage has the embedding too, the last one the head");
    }
    firsts.push_back(firsts.empty() ? 0 : layer + 1);
  }
  if (static_cast<int>(firsts.size()) != num_stages) {
    Fail("PLN022", fmt::format("{} stages are listed, the pipeline has {}", firsts.size(), num_stages), kWhere,
         "list the first decoder layer of each stage");
  }
  return firsts;
}

}  // namespace

std::vector<int> UniformParts(int items, int parts) {
  std::vector<int> firsts;
  for (int part = 0; part < parts; ++part) firsts.push_back(part * (items / parts) + std::min(part, items % parts));
  return firsts;
}

// Dynamic programming over prefixes: the difference between the largest and the smallest part is least; of equal cuts
// the latest wins. The largest and the smallest part of a prefix are those of its best cut.
std::vector<int> BalancedParts(const std::vector<double>& weights, int parts) {
  struct Best {
    double cost = std::numeric_limits<double>::infinity(), largest = 0, smallest = 0;
    int cut = 0;
  };
  const int items = static_cast<int>(weights.size());
  std::vector<double> sums(weights.size() + 1, 0);
  std::partial_sum(weights.begin(), weights.end(), sums.begin() + 1);
  std::vector<std::vector<Best>> best(static_cast<size_t>(parts) + 1, std::vector<Best>(weights.size() + 1));
  for (int i = 1; i <= items; ++i)
    best[1][static_cast<size_t>(i)] = {0, sums[static_cast<size_t>(i)], sums[static_cast<size_t>(i)], 0};
  for (int j = 2; j <= parts; ++j) {
    for (int i = j; i <= items; ++i) {
      Best& here = best[static_cast<size_t>(j)][static_cast<size_t>(i)];
      for (int cut = j - 1; cut < i; ++cut) {
        const Best& before = best[static_cast<size_t>(j) - 1][static_cast<size_t>(cut)];
        const double part = sums[static_cast<size_t>(i)] - sums[static_cast<size_t>(cut)];
        const double largest = std::max(before.largest, part), smallest = std::min(before.smallest, part);
        if (largest - smallest <= here.cost) here = {largest - smallest, largest, smallest, cut};
      }
    }
  }
  std::vector<int> firsts(static_cast<size_t>(parts));
  for (int j = parts, end = items; j >= 1; --j) {
    end = best[static_cast<size_t>(j)][static_cast<size_t>(end)].cut;
    firsts[static_cast<size_t>(j) - 1] = end;
  }
  return firsts;
}

std::vector<UnitRange> MakeStages(const std::vector<UnitLayout>& units, const PipelineParallelConfig& pipeline) {
  const int num_units = static_cast<int>(units.size());
  const int64_t wanted = pipeline.pp_size * pipeline.virtual_stages;
  if (wanted == 1) return {{0, num_units - 1}};
  const int num_stages = static_cast<int>(wanted);
  if (wanted > num_units) {
    Fail("PLN024",
         fmt::format("{} stages ({} pipeline ranks x {} virtual stages) for embedding, {} decoder layers and head",
                     wanted, pipeline.pp_size, pipeline.virtual_stages, num_units - 2),
         "pipeline_parallel.pp_size", fmt::format("ask for at most {} stages", num_units));
  }
  const std::string& method = pipeline.partition;
  if (method.starts_with(kLayers)) {
    return FromFirsts(ByHand(method.substr(kLayers.size()), num_units - 2, num_stages), num_units);
  }
  if (method == "uniform") return FromFirsts(UniformParts(num_units, num_stages), num_units);
  return FromFirsts(BalancedParts(Weights(units, method), num_stages), num_units);
}

}  // namespace trireme::plan_parts
