#include "engine/cli/bench_run.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/strings.h"
#include "engine/cli/engine_exec.h"
#include "engine/cli/gpu_utilisation.h"
#include "engine/plan/throughput.h"
#include "engine/report/simulated.h"
#include "engine/schedule/pipeline_order.h"
#include "parsers/json_tree.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;

std::string With(const fs::path& base, const char* extension) { return base.string() + extension; }

std::vector<std::string> ModelWords(const BenchOptions& o) {
  std::vector<std::string> words;
  const auto number = [&](const char* flag, const std::optional<int64_t>& value) {
    if (value) words.insert(words.end(), {flag, std::to_string(*value)});
  };
  if (!o.model.model_name.empty()) words.insert(words.end(), {"--model_name", o.model.model_name});
  if (!o.init_from.empty()) words.insert(words.end(), {"--init-from", o.init_from});
  number("--num-layers", o.model.num_layers);
  number("--hidden-size", o.model.hidden_size);
  number("--num-attention-heads", o.model.num_attention_heads);
  number("--vocab-size", o.model.vocab_size);
  number("--max-position-embeddings", o.model.max_position_embeddings);
  if (o.model.untie) words.emplace_back("--untie");
  return words;
}

std::vector<std::string> LaunchWords(const BenchJob& job, const fs::path& base) {
  const BenchOptions& o = job.options;
  std::vector<std::string> words = {"launch", "--log_level", "warning", "--num_gpus", std::to_string(job.ranks)};
  if (job.cpu) words.emplace_back("--cpu");
  if (o.oversubscribe) words.emplace_back("--oversubscribe");
  words.insert(words.end(), {"train", "--deepspeed_config", With(base, ".json"), "--seq-length",
                             std::to_string(o.seq_length), "--data-path", job.data_path, "--split", "1,0,0",
                             "--train-iters", std::to_string(o.all_steps()), "--eval-interval", "0", "--log-level",
                             "warning", "--log-json", With(base, ".jsonl"), "--trace", With(base, ".trace")});
  if (o.peak_tflops) words.insert(words.end(), {"--peak-tflops", fmt::format("{}", *o.peak_tflops)});
  const std::vector<std::string> model = ModelWords(o);
  words.insert(words.end(), model.begin(), model.end());
  return words;
}

// Starts this program with other words; its output goes to a file. It ends with this process.
pid_t Start(std::vector<std::string> words, const std::string& output) {
  std::string program = (ProgramFolder() / "trireme").string();
  std::vector<char*> argv = {program.data()};
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t parent = getpid(), child = fork();
  if (child < 0) {
    throw Error(ErrorCode::kEnvironment, "BEN002", std::string("no process could be started: ") + std::strerror(errno),
                program, "end other processes, or raise the limit (ulimit -u)");
  }
  if (child > 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (getppid() != parent || file < 0 || dup2(file, STDOUT_FILENO) < 0 || dup2(file, STDERR_FILENO) < 0) _exit(127);
  execv(program.c_str(), argv.data());
  _exit(127);
}

int64_t LinesOf(const std::string& file) {
  std::ifstream in(file);
  return std::count(std::istreambuf_iterator<char>(in), {}, '\n');
}

// The exit code; samples the GPUs while the measured steps run.
int WaitFor(pid_t child, const BenchJob& job, const std::string& log, GpuUtilisation& gpus) {
  for (;;) {
    int status = 0;
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (ended < 0 && errno != EINTR) return ExitCode(ErrorCode::kInternal);
    if (gpus.available()) {
      const int64_t done = LinesOf(log);
      if (done >= job.options.warmup && done < job.options.all_steps()) gpus.Sample();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

// The first error that the run printed, else its last line.
std::string ReasonOf(const std::string& output, int code) {
  std::string last;
  for (const std::string& line : Split(ReadFile(output, ErrorCode::kData), '\n')) {
    const size_t error = line.find("error ");
    if (error != std::string::npos) return line.substr(error);
    if (!Trim(line).empty()) last = line;
  }
  return fmt::format("exit code {}: {}", code, last);
}

double NumberOf(const JsonValue& object, std::string_view key) {
  const JsonMember* member = object.Find(key);
  return member == nullptr ? 0 : member->value.number;
}

// Bytes by class out of one half of `account`; the rest of it are sums and what lies elsewhere.
// `no_context`: without what the process takes beside them.
void SetMemory(const JsonValue& account, std::string_view half, bool no_context, report::BenchFigures& figures) {
  const JsonMember* found = account.Find(half);
  if (found == nullptr) return;
  static constexpr std::string_view kNoClass[] = {"total",         "initialisation", "save",  "host",
                                                  "reserved_peak", "resident_peak",  "others"};
  figures.memory_by_class.clear();
  figures.memory_bytes = static_cast<int64_t>(NumberOf(found->value, "total"));
  for (const JsonMember& member : found->value.members) {
    if (std::ranges::find(kNoClass, member.key) != std::end(kNoClass)) continue;
    const int64_t bytes = static_cast<int64_t>(member.value.number);
    if (no_context && member.key == JsonName(MemoryClass::kContext)) {
      figures.memory_bytes -= bytes;
    } else {
      figures.memory_by_class.emplace_back(member.key, bytes);
    }
  }
}

// What the run wrote with --log-json (docs/log_json.md), but for the steps that warm up.
void ReadLog(const BenchJob& job, const std::string& file, report::BenchLayout& layout) {
  double tokens = 0, sum = 0, squares = 0;
  std::optional<double> peak;
  for (const std::string& line : Split(ReadFile(file, ErrorCode::kData), '\n')) {
    Diagnostics diagnostics;
    const std::optional<JsonValue> step = line.empty() ? std::nullopt : ReadJson(line, file, diagnostics);
    if (!step) continue;
    if (const JsonMember* account = step->Find("account")) {
      SetMemory(account->value, "measured", job.cpu, layout.measured);
      if (layout.predicted) SetMemory(account->value, "planned", job.cpu, *layout.predicted);
    } else {
      layout.measured.memory_bytes = static_cast<int64_t>(NumberOf(*step, "memory"));
    }
    if (NumberOf(*step, "step") < static_cast<double>(job.options.warmup)) continue;
    const JsonMember* of_device = step->Find("peak_tflops");
    if (of_device != nullptr && of_device->value.kind != JsonValue::Kind::kNull) peak = of_device->value.number;
    layout.step_seconds.push_back(NumberOf(*step, "seconds"));
    tokens += NumberOf(*step, "tokens");
  }
  const double count = static_cast<double>(layout.step_seconds.size());
  for (const double seconds : layout.step_seconds) sum += seconds;
  layout.measured.step_seconds = sum / count;
  for (const double seconds : layout.step_seconds) squares += std::pow(seconds - layout.measured.step_seconds, 2);
  layout.step_deviation = std::sqrt(squares / (count - 1));
  layout.measured.tokens_per_second = tokens / sum;
  layout.mfu = peak;  // completed by the caller, who knows the plan
}

report::BenchFigures PredictedFigures(const Planned& planned, const report::Timeline& timeline) {
  const Prediction& p = *planned.prediction;
  report::BenchFigures figures;
  figures.step_seconds = p.step_seconds;
  figures.tokens_per_second = p.tokens_per_second;
  figures.tflops_per_rank =
      ThroughputOf(planned.plan, static_cast<double>(planned.plan.batch.tokens_per_step()), p.step_seconds, {})
          .tflops_per_rank;
  figures.memory_bytes = planned.plan.memory_of_pp_rank.front().total();
  figures.shares = report::SharesOf(timeline);
  return figures;
}

void ReadRun(const BenchJob& job, const fs::path& base, const Planned& planned, report::BenchLayout& layout) {
  ReadLog(job, With(base, ".jsonl"), layout);
  const Throughput rate = ThroughputOf(planned.plan, layout.measured.tokens_per_second, 1, layout.mfu);
  layout.measured.tflops_per_rank = rate.tflops_per_rank;
  layout.mfu = rate.mfu;
  std::vector<fs::path> traces = {With(base, ".trace")};
  for (int64_t rank = 1; rank < job.ranks; ++rank)
    traces.push_back(With(base, ".trace") + fmt::format(".rank{}", rank));
  layout.timeline = report::ReadTraces(traces);
  layout.measured.shares = report::SharesOf(layout.timeline);
}

}  // namespace

std::string DescribeLayout(const Plan& plan) {
  const Topology& t = plan.topology;
  std::string text = fmt::format("pp {} x dp {} x tp {}", t.pp_size, t.dp_size, t.tp_size);
  if (plan.sequence_parallel) text += ", sequence parallel";
  if (t.pp_size > 1) text += fmt::format(", {}", Name(plan.pipeline_schedule));
  if (plan.virtual_stages > 1) text += fmt::format(", {} stages a rank", plan.virtual_stages);
  return text + fmt::format(", ZeRO {}, micro-batch {} x {}", plan.zero_stage, plan.batch.micro_batch_size,
                            plan.batch.num_micro_batches);
}

report::BenchLayout MeasureLayout(const BenchJob& job, const std::string& name, const fs::path& base,
                                  const Planned& planned) {
  report::BenchLayout layout;
  layout.name = name;
  layout.description = DescribeLayout(planned.plan);
  if (planned.prediction) {
    layout.predicted_timeline = report::SimulateStep(planned.plan, *planned.cluster).timeline;
    layout.predicted = PredictedFigures(planned, *layout.predicted_timeline);
  }
  GpuUtilisation gpus(job.cpu ? 0 : job.ranks);
  const int code = WaitFor(Start(LaunchWords(job, base), With(base, ".log")), job, With(base, ".jsonl"), gpus);
  if (code != 0) {
    layout.failure = ReasonOf(With(base, ".log"), code);
    return layout;
  }
  layout.gpu_utilisation = gpus.Mean();
  ReadRun(job, base, planned, layout);
  return layout;
}

}  // namespace trireme::cli
