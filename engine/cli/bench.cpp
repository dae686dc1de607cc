// trireme bench: layouts of one job side by side on this machine. Each is trained by real processes, through the
// launcher; what they log and trace is what is compared. Exit code 1 if one of them could not be measured.
#include <fmt/core.h>
#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/cli/bench_layouts.h"
#include "engine/cli/bench_run.h"
#include "engine/cli/commands.h"
#include "engine/cli/plan_request.h"
#include "engine/data/indexed_writer.h"
#include "engine/report/bench.h"
#include "launcher/devices.h"
#include "parsers/config_source.h"
#include "parsers/json_tree.h"
#include "parsers/layout_text.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;

// Where the runs leave their files: --work-dir, or a folder that goes away.
class WorkFolder {
 public:
  explicit WorkFolder(const std::string& named) : path_(named), goes_(named.empty()) {
    std::error_code failure;
    if (goes_) {
      std::string pattern = (fs::temp_directory_path() / "trireme-bench-XXXXXX").string();
      if (mkdtemp(pattern.data()) != nullptr) path_ = pattern;
    } else {
      fs::create_directories(path_, failure);
    }
    if (path_.empty() || failure || !fs::is_directory(path_)) {
      throw Error(ErrorCode::kEnvironment, "BEN003", "is no folder that can be made", path_.string(),
                  "name one with --work-dir, or set TMPDIR");
    }
  }
  ~WorkFolder() {
    std::error_code ignored;
    if (goes_) fs::remove_all(path_, ignored);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  bool goes_;
};

// As the driver names the first; "the CPU" where ranks see none.
std::string DeviceName(bool cpu) {
  std::error_code ignored;
  for (const auto& gpu : fs::directory_iterator("/proc/driver/nvidia/gpus", ignored)) {
    std::ifstream in(gpu.path() / "information");
    for (std::string line; !cpu && std::getline(in, line);) {
      const size_t name = line.find_first_not_of(" \t", 6);
      if (line.starts_with("Model:") && name != std::string::npos) return line.substr(name);
    }
  }
  return cpu ? "the CPU" : "GPUs";
}

std::string CommonConfig(const BenchOptions& options, bool cpu) {
  if (options.config.empty()) {
    return fmt::format(R"({{"optimizer": {{"type": "AdamW", "params": {{"lr": 1e-4}}}}, "bf16": {{"enabled": {}}}}})",
                       !cpu);
  }
  Diagnostics diagnostics;
  const std::optional<ConfigSource> source = ReadConfigSource(options.config, diagnostics);
  diagnostics.ThrowIfErrors();
  return source->text;
}

int64_t GlobalBatch(const BenchOptions& options, const std::string& config, int64_t ranks) {
  if (options.global_batch_size) return *options.global_batch_size;
  Diagnostics diagnostics;
  const std::optional<JsonValue> root = ReadJson(config, options.config, diagnostics);
  const JsonMember* written = root ? root->Find("train_batch_size") : nullptr;
  const bool number = written != nullptr && written->value.kind == JsonValue::Kind::kInteger;
  return number ? written->value.integer : 8 * ranks;
}

// Random tokens, enough for every step.
std::string MakeTokens(const fs::path& folder, const Plan& plan, int64_t steps) {
  const std::string prefix = (folder / "tokens").string();
  const int64_t vocabulary = plan.model.vocab_size;
  data::IndexedWriter writer(prefix, data::TokenTypeForVocab(vocabulary));
  std::vector<int32_t> ids(static_cast<size_t>(plan.batch.sequence_length + 1));
  uint64_t state = 0;
  for (int64_t sample = 0; sample <= steps * plan.batch.train_batch_size; ++sample) {
    for (int32_t& id : ids) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      id = static_cast<int32_t>((state >> 33U) % static_cast<uint64_t>(vocabulary));
    }
    writer.AddSequence(ids);
    writer.EndDocument();
  }
  writer.Finish();
  return prefix;
}

class Bench {
 public:
  explicit Bench(const BenchOptions& options) : folder_(options.work_dir) {
    job_.options = options;
    const int64_t gpus = launcher::CountGpus("/");
    job_.cpu = options.cpu || gpus == 0;
    job_.ranks = options.num_gpus.value_or(job_.cpu ? 2 : gpus);
    common_ = CommonConfig(options, job_.cpu);
    report_.global_batch_size = GlobalBatch(options, common_, job_.ranks);
    report_.device = DeviceName(job_.cpu);
    report_.cluster = options.cluster.empty() ? "" : FindCluster(options.cluster).name;
    report_.ranks = job_.ranks;
    report_.sequence_length = options.seq_length;
    report_.steps = options.steps;
    report_.warmup = options.warmup;
  }

  int Run() {
    const std::vector<BenchCase> cases = CasesOf(job_.options.layouts, job_.ranks);
    for (size_t i = 0; i < cases.size(); ++i) {
      log::Info("layout {} of {}: {}", i + 1, cases.size(), cases[i].name);
      report_.layouts.push_back(Measure(cases[i], folder_.path() / std::to_string(i + 1)));
      const report::BenchLayout& last = report_.layouts.back();
      if (!last.failure.empty()) log::Warn("{} was not measured: {}", last.name, last.failure);
    }
    fmt::print("{}: {} ranks on {}, {} sequences of {} tokens a step, {} steps after {}\n\n{}", report_.model,
               report_.ranks, report_.device, report_.global_batch_size, report_.sequence_length, report_.steps,
               report_.warmup, report::BenchTable(report_));
    const BenchOptions& o = job_.options;
    if (!o.json.empty()) WriteFileDurably(o.json, report::BenchJsonLines(report_), ErrorCode::kEnvironment);
    if (!o.html.empty()) WriteFileDurably(o.html, report::BenchPage(report_), ErrorCode::kEnvironment);
    for (const report::BenchLayout& layout : report_.layouts) {
      if (!layout.failure.empty()) return ExitCode(ErrorCode::kCheckFailed);
    }
    return 0;
  }

 private:
  // A layout that cannot be planned or trained is a row with the reason, and no end of the comparison.
  report::BenchLayout Measure(const BenchCase& layout, const fs::path& base) {
    try {
      const Planned planned = PlanOf(layout, base.string() + ".json");
      report_.model = planned.plan.model.name;
      if (job_.data_path.empty()) {
        job_.data_path = job_.options.data_path.empty()
                             ? MakeTokens(folder_.path(), planned.plan, job_.options.all_steps())
                             : job_.options.data_path;
      }
      return MeasureLayout(job_, layout.name, base, planned);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInternal) throw;
      report::BenchLayout failed;
      failed.name = layout.name;
      failed.failure =
          fmt::format("{}: {}{}", error.id(), error.where().empty() ? "" : error.where() + ": ", error.message());
      return failed;
    }
  }

  Planned PlanOf(const BenchCase& layout, const std::string& file) const {
    const BenchOptions& o = job_.options;
    const int64_t micro = layout.micro_batch > 0 ? layout.micro_batch : o.micro_batch_size;
    const int64_t dp = job_.ranks / layout.tp / layout.pp, passes = report_.global_batch_size / (dp * micro);
    if (passes * dp * micro != report_.global_batch_size) {
      throw Error(ErrorCode::kConfig, "BEN004",
                  fmt::format("{} sequences are no multiple of {} (micro-batch) x {} (dp)", report_.global_batch_size,
                              micro, dp),
                  layout.name, "choose another --global-batch-size, or a micro-batch that divides it");
    }
    std::vector<std::string> keys = layout.keys;
    keys.push_back(fmt::format("train_batch_size={}", report_.global_batch_size));
    keys.push_back(fmt::format("train_micro_batch_size_per_gpu={}", micro));
    keys.push_back(fmt::format("gradient_accumulation_steps={}", passes));
    WriteFileDurably(file, WithKeys(common_, o.config, keys), ErrorCode::kEnvironment);
    PlanOptions plan;
    plan.deepspeed_config = file;
    plan.fill.train_iters = o.all_steps();  // as the run that follows has it
    plan.model = o.model;
    plan.init_from = o.init_from;
    plan.cluster = o.cluster;
    plan.quiet = !report_.layouts.empty();  // they differ in little: said once
    plan.num_nodes = 1;
    plan.num_gpus = job_.ranks;
    plan.seq_length = o.seq_length;
    return PlanRequested(plan);
  }

  WorkFolder folder_;
  BenchJob job_;
  std::string common_;  // config's text
  report::BenchReport report_;
};

}  // namespace

int RunBench(Arguments arguments) {
  const BenchOptions options = ParseBenchFlags(arguments);
  if (options.help) {
    fmt::print("{}", BenchHelp());
    return 0;
  }
  return Bench(options).Run();
}

}  // namespace trireme::cli
