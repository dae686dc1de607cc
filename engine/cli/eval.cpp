// `trireme eval`: loss, perplexity and bits per byte of a model over token files or a text, on one rank or on many.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/strings.h"
#include "engine/cli/commands.h"
#include "engine/cli/leave.h"
#include "engine/cli/loaded_model.h"
#include "engine/data/gpt_dataset.h"
#include "engine/data/loader.h"
#include "engine/data/position.h"
#include "engine/data/split.h"
#include "engine/plan/families/rope.h"
#include "engine/trainer/evaluator.h"
#include "engine/trainer/rank_world.h"
#include "parsers/flag_set.h"

namespace trireme::cli {
namespace {

constexpr int64_t kLongestByDefault = 1024;  // tokens a sample, where no run says it
constexpr std::array<const char*, 3> kParts = {"train", "validation", "test"};

struct Request {
  ModelRequest model;
  std::string data_path, text, split, part;
  int64_t seq_length = 0, micro_batch_size = 4, eval_iters = 0;
  bool json = false, help = false;
  std::string help_text;
};

[[noreturn]] void WrongFlags(const std::string& what, const std::string& where, const std::string& fix) {
  throw Error(ErrorCode::kUsage, "USE002", what, where, fix);
}

void CheckSource(Request& request) {
  if (request.data_path.empty() == request.text.empty()) {
    throw Error(ErrorCode::kUsage, "USE003",
                request.text.empty() ? "what to evaluate on is missing" : "both --data-path and --text are given",
                "trireme eval", "give --data-path PREFIX or --text FILE");
  }
  if (!request.text.empty() && !(request.split.empty() && request.part.empty())) {
    WrongFlags("a text has no parts", request.split.empty() ? "--part" : "--split",
               "leave it out, or give --data-path");
  }
  if (request.split.empty() && request.part.empty()) return;
  if (request.split.empty()) request.split = data::DataRequest().split;
  if (request.part.empty()) request.part = "validation";
  data::ParseSplit(request.split);
  if (std::ranges::find(kParts, request.part) == kParts.end()) {
    WrongFlags("\"" + request.part + "\" is no part", "--part", "pass train, validation or test");
  }
}

Request Parse(Arguments arguments) {
  Request request;
  FlagSet flags("eval");
  flags.AddHeading(
      "A model's mean loss (nats per token), perplexity and bits per byte. Token files: samples of S + 1 tokens that\n"
      "overlap by one, in file order, whole ones only, as the validation of `trireme train`. A text: every token but\n"
      "the first. Under `trireme launch` the ranks share the work:");
  AddModelFlags(flags, request.model);
  flags.Add("data-path", "PREFIX", "token files .bin and .idx", request.data_path);
  flags.Add("text", "FILE", "or a text, tokenised as one document", request.text);
  flags.Add("split", "A,B,C", "weights of the parts; without --split and --part the whole file", request.split);
  flags.Add("part", "NAME", "train, validation (the default with --split) or test", request.part);
  flags.Add("seq-length", "S", "tokens predicted in a sample; 0: the training run's, or else at most 1024",
            request.seq_length);
  flags.Add("micro-batch-size", "N", "samples at a time on each rank", request.micro_batch_size);
  flags.Add("eval-iters", "N", "micro-batches of each rank; 0: all samples", request.eval_iters);
  flags.Add("json", "one JSON object instead of lines to read", request.json);
  flags.Add("help", "this text", request.help);
  request.help_text = flags.Help();  // before Parse: it shows the defaults
  flags.Parse(arguments);
  if (request.help) return request;
  CheckModelFlags(request.model, "eval");
  CheckSource(request);
  RequireAtLeast(static_cast<double>(request.seq_length), 0, "--seq-length");
  RequireAtLeast(static_cast<double>(request.micro_batch_size), 1, "--micro-batch-size");
  RequireAtLeast(static_cast<double>(request.eval_iters), 0, "--eval-iters");
  return request;
}

int64_t SequenceLength(const Request& request, const ModelFolder& folder) {
  RequireContext(request.seq_length, folder.model, "--seq-length");
  if (request.seq_length > 0) return request.seq_length;
  const checkpoint::CheckpointInfo& info = folder.reader->info();
  const int64_t most = std::min(kLongestByDefault, MaxPositions(folder.model));
  if (info.data_position.empty()) return most;
  const std::string where = info.directory.string() + ": data position";
  const int64_t trained = data::PositionFromJson(info.data_position, where).seq_length;
  return trained > 0 && trained <= MaxPositions(folder.model) ? trained : most;
}

struct Source {
  std::shared_ptr<const data::BatchSource> samples;
  std::string name;
};

Source OfTokenFiles(const Request& request, const ModelFolder& folder, int64_t seq_length) {
  const auto tokens = std::make_shared<const data::IndexedDataset>(request.data_path);
  data::SplitRange range{0, tokens->num_sequences()};
  if (!request.part.empty()) {
    const auto part = static_cast<size_t>(std::ranges::find(kParts, request.part) - kParts.begin());
    range = data::SplitOf(data::ParseSplit(request.split), tokens->num_sequences())[part];
  }
  const int64_t count = tokens->FirstToken(range.end) - tokens->FirstToken(range.begin);
  if (count < seq_length + 1) {
    throw Error(ErrorCode::kData, "GEN006",
                fmt::format("{} tokens in {}, a sample needs {}", count,
                            request.part.empty() ? "the file" : "the part " + request.part, seq_length + 1),
                data::BinPath(tokens->prefix()).string(), "use more text, or a smaller --seq-length");
  }
  data::GptDatasetOptions options;
  options.seq_length = seq_length;
  options.order = data::SampleOrder::kFile;
  const auto dataset = std::make_shared<const data::GptDataset>(tokens, range, options);
  return {
      data::MakeBatchSource(dataset, folder.model.vocab_size),
      tokens->prefix().string() + (request.part.empty() ? "" : fmt::format(", {} of {}", request.part, request.split))};
}

Source OfText(const Request& request, const ModelFolder& folder, const data::Tokenizer& tokenizer, int64_t seq_length) {
  const std::vector<int32_t> ids = EncodeFor(folder, tokenizer, ReadFile(request.text, ErrorCode::kData));
  if (ids.size() < 2) {
    throw Error(ErrorCode::kData, "GEN006", fmt::format("{} tokens: nothing to predict", ids.size()), request.text,
                "use more text");
  }
  return {SamplesOf(ids, seq_length), request.text};
}

// A line of progress every 10 seconds, on rank 0's log.
class Watch {
 public:
  using Clock = std::chrono::steady_clock;
  double Seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }
  void Show(int64_t done, int64_t all) {
    const double seconds = Seconds();
    if (seconds - shown_ < 10 || done == all) return;
    shown_ = seconds;
    log::Info("{} of {} micro-batches, ETA {}", done, all,
              FormatDuration(seconds / static_cast<double>(done) * static_cast<double>(all - done)));
  }

 private:
  const Clock::time_point begin_ = Clock::now();
  double shown_ = 0;
};

LossSums OfAllRanks(const LossSums& mine, RankWorld& world) {
  const auto sum = [&](double value) { return SumOver(*world.world, world.device, value); };
  LossSums all;
  all.nats = sum(mine.nats);
  all.tokens = std::llround(sum(static_cast<double>(mine.tokens)));
  all.bytes = std::llround(sum(static_cast<double>(mine.bytes)));
  return all;
}

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      quoted += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string Number(double value) { return std::isfinite(value) ? fmt::format("{:.17g}", value) : "null"; }

void Print(const Request& request, const LossSums& sums, const Source& source, int64_t samples, double seconds) {
  const std::string per_byte = sums.bytes > 0 ? Number(sums.bits_per_byte()) : "null";
  if (request.json) {
    fmt::print(
        "{{\"loss\": {}, \"perplexity\": {}, \"bits_per_byte\": {}, \"tokens\": {}, \"bytes\": {}, \"samples\": {}, "
        "\"seq_length\": {}, \"dtype\": {}, \"model\": {}, \"data\": {}, \"seconds\": {:.3f}}}\n",
        Number(sums.loss()), Number(sums.perplexity()), per_byte, sums.tokens, sums.bytes, samples,
        source.samples->seq_length(), Quoted(std::string(Name(WeightsType(request.model)))), Quoted(request.model.load),
        Quoted(source.name), seconds);
    return;
  }
  fmt::print("data           {}\n", source.name);
  fmt::print("loss           {:.6f} nats per token\n", sums.loss());
  fmt::print("perplexity     {:.4f}\n", sums.perplexity());
  fmt::print("bits per byte  {}\n", sums.bytes > 0 ? fmt::format("{:.6f}", sums.bits_per_byte())
                                                   : "not known without a tokeniser (--tokenizer)");
  fmt::print("over           {} tokens, {} bytes, {} samples of {}, in {}\n", FormatCount(sums.tokens),
             FormatCount(sums.bytes), FormatCount(samples), source.samples->seq_length(), FormatDuration(seconds));
}

}  // namespace

int RunEval(Arguments arguments) {
  const Request request = Parse(arguments);
  if (request.help) {
    fmt::print("{}", request.help_text);
    return 0;
  }
  const ModelFolder folder = OpenModel(request.model);
  const int64_t seq_length = SequenceLength(request, folder);
  const auto tokenizer = request.text.empty() ? FindTokenizer(request.model, folder, request.data_path)
                                              : RequireTokenizer(request.model, folder);
  const Source source = request.text.empty() ? OfTokenFiles(request, folder, seq_length)
                                             : OfText(request, folder, *tokenizer, seq_length);
  RankWorld world = RankWorld::FromEnvironment(request.model.device);
  return RunOrLeave([&] {
    InferenceModel model(folder, {.device = world.device,
                                  .dtype = WeightsType(request.model),
                                  .sequence_length = seq_length,
                                  .micro_batch_size = request.micro_batch_size});
    log::Info("{}, {} rank(s)", Describe(folder, request.model), world.world_size);
    Watch watch;
    SampleShare share{.count = source.samples->num_samples(), .rank = world.rank, .world = world.world_size};
    if (request.eval_iters > 0) {
      share.count = std::min(share.count, request.eval_iters * request.micro_batch_size * world.world_size);
    }
    std::optional<TokenBytes> bytes;
    if (tokenizer != nullptr) share.bytes = &bytes.emplace(*tokenizer);
    share.progress = [&](int64_t done, int64_t all) { watch.Show(done, all); };
    const LossSums sums = OfAllRanks(SumLosses(model, *source.samples, share), world);
    if (world.rank == 0) Print(request, sums, source, share.count, watch.Seconds());
    if (world.store) world.store->Barrier("end of evaluation", std::chrono::minutes(10));
    return 0;
  });
}

}  // namespace trireme::cli
