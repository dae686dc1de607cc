#include "engine/trainer/selfcheck.h"

#include <ATen/Parallel.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <mutex>
#include <thread>

#include "engine/base/error.h"
#include "engine/comm/backends.h"
#include "engine/comm/host_staged.h"
#include "engine/comm/in_process.h"
#include "engine/data/sampler.h"

#ifdef TRIREME_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace trireme {
namespace {

// Sample `number` of the run: the same tokens in every layout.
void FillSample(uint64_t number, int64_t vocab, int32_t* tokens, int64_t count) {
  uint64_t x = number * 2654435761u + 12345;
  for (int64_t i = 0; i < count; ++i) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    tokens[i] = static_cast<int32_t>((x >> 33) % static_cast<uint64_t>(vocab));
  }
}

double LargestDifference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = a.size() == b.size() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::abs(a[i] - b[i]) / std::max(std::abs(b[i]), 1e-30);
    largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
  }
  return largest;
}

// A listening socket on a free port of this machine, for the store of ranks that are threads.
int ListenLocally(int& port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool good = fd >= 0 && ::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 && ::listen(fd, 64) == 0 &&
                    ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (!good) {
    throw Error(ErrorCode::kEnvironment, "TRN040",
                fmt::format("no port of this machine can be opened: {}", std::strerror(errno)), "selfcheck",
                "look at the limits of open files and at the network name space");
  }
  port = ntohs(address.sin_port);
  return fd;
}

}  // namespace

std::string Describe(const SelfcheckLayout& layout) {
  std::string text = fmt::format("tp {} pp {} dp {} ZeRO-{}", layout.tp, layout.pp, layout.dp, layout.zero_stage);
  if (layout.sequence_parallel) text += " sequence-parallel";
  if (layout.virtual_stages > 1) text += fmt::format(" interleaved x {}", layout.virtual_stages);
  if (layout.schedule == PipelineSchedule::kZeroBubble) text += " zero-bubble";
  if (layout.schedule == PipelineSchedule::kGPipe) text += " gpipe";
  if (layout.recompute == Recompute::kFull) text += " recompute";
  return text;
}

ModelSpec ShrunkenModel(const ModelSpec& model, int ranks) {
  ModelSpec small = model;
  const bool grouped = model.KeyValueHeads() < model.num_attention_heads;
  const int64_t heads = ranks % 2 == 0 ? 2 * ranks : 4 * ranks;
  small.name = "a small " + model.name;
  small.num_layers = std::max(4, 2 * ranks - 2);
  small.num_attention_heads = heads;
  small.num_key_value_heads = grouped ? heads / 2 : heads;
  small.head_size = 0;
  small.hidden_size = 8 * heads;
  small.intermediate_size = 2 * small.hidden_size;
  small.vocab_size = 199;
  small.max_position_embeddings = 8 * ranks;
  const RopeSpec plain{.theta = model.rope.theta, .rotary_fraction = model.rope.rotary_fraction < 1 ? 0.5 : 1};
  small.rope = plain;
  return small;
}

struct Selfcheck::Curve {
  std::string failed;
  std::vector<double> losses, norms;
};

// What the threads of all layouts share: a store for NCCL's communicators.
struct Selfcheck::Ranks {
  std::vector<std::shared_ptr<Store>> stores;  // GPUs, by rank

  explicit Ranks(const SelfcheckOptions& options) {
    if (!options.cuda || options.shared_gpus > 0 || options.ranks == 1) return;
    RendezvousInfo info;
    info.world = info.local_world = options.ranks;
    info.listen_fd = ListenLocally(info.master_port);
    stores.resize(static_cast<size_t>(options.ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < options.ranks; ++rank) {
      threads.emplace_back([this, info, rank]() mutable {
        info.rank = info.local_rank = rank;
        if (rank > 0) info.listen_fd.reset();
        stores[static_cast<size_t>(rank)] = Store::Connect(info);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

Selfcheck::Selfcheck(SelfcheckOptions options)
    : options_(std::move(options)),
      model_(ShrunkenModel(options_.model, options_.ranks)),
      ranks_(std::make_unique<Ranks>(options_)) {}

Selfcheck::~Selfcheck() = default;

std::vector<SelfcheckLayout> Selfcheck::Layouts() const {
  std::vector<SelfcheckLayout> layouts;
  for (int tp = 1; tp <= options_.ranks; ++tp) {
    for (int pp = 1; tp * pp <= options_.ranks; ++pp) {
      if (options_.ranks % (tp * pp) != 0 || model_.KeyValueHeads() % tp != 0) continue;
      const int dp = options_.ranks / (tp * pp);
      for (const bool sequence : {false, true}) {
        if (sequence && tp == 1) continue;
        SelfcheckLayout layout{.tp = tp, .pp = pp, .dp = dp, .sequence_parallel = sequence};
        for (layout.zero_stage = 0; layout.zero_stage <= (dp > 1 ? 3 : 0); ++layout.zero_stage)
          layouts.push_back(layout);
        layout.zero_stage = dp > 1 ? 1 : 0;
        layout.recompute = Recompute::kFull;
        layouts.push_back(layout);
        if (pp == 1 || sequence) continue;
        layout.recompute = Recompute::kNone;
        layout.schedule = PipelineSchedule::kZeroBubble;
        layouts.push_back(layout);
        layout.schedule = PipelineSchedule::kOneForwardOneBackward;
        layout.virtual_stages = 2;
        layouts.push_back(layout);
      }
    }
  }
  return layouts;
}

TrainerSetup Selfcheck::SetupOf(const SelfcheckLayout& layout) const {
  TrainerSetup setup;
  setup.model = model_;
  PadVocabulary(setup.model, layout.tp);
  Config& config = setup.config;
  config.optimizer = options_.config.optimizer;
  config.scheduler = options_.config.scheduler;
  config.gradient_clipping = options_.config.gradient_clipping;
  config.fp64 = options_.dtype == DType::kFloat64;
  config.bf16.enabled = options_.dtype == DType::kBFloat16;
  config.data_types.grad_accum_dtype = config.fp64 ? DType::kFloat64 : DType::kFloat32;
  // Numbers of micro-batches that every pp divides, samples that every dp divides.
  const int64_t accumulation = 2 * options_.ranks;
  config.batch = {accumulation * options_.ranks, options_.ranks / layout.dp, accumulation};
  config.zero_optimization.zero_stage = layout.zero_stage;
  config.zero_optimization.reduce_bucket_size = config.zero_optimization.allgather_bucket_size = 20'000;
  config.tensor_parallel = {layout.tp, layout.sequence_parallel};
  config.pipeline_parallel.pp_size = layout.pp;
  config.pipeline_parallel.virtual_stages = layout.virtual_stages;
  config.pipeline_parallel.schedule = layout.schedule;
  config.world_size = layout.ranks();
  config.dp_size = layout.dp;
  setup.sequence_length = model_.max_position_embeddings;
  setup.train_iters = options_.steps;
  setup.recompute = layout.recompute;
  return setup;
}

// `comms`: of ranks on the CPU, or that share GPUs; null: NCCL.
RankWorld Selfcheck::PlaceOf(int rank, int world, const std::shared_ptr<InProcessWorld>& comms) const {
  RankWorld place;
  place.rank = place.local_rank = rank;
  place.world_size = world;
  place.shares_gpus = options_.shared_gpus > 0;
  if (options_.cuda) {
    const int gpu = place.shares_gpus ? rank % options_.shared_gpus : rank;
    place.device = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu));
#ifdef TRIREME_HAS_CUDA
    cudaSetDevice(gpu);
#endif
  }
  if (comms) {
    place.make_group = [comms, rank, staged = options_.cuda](const std::string& name, const std::vector<int>& ranks) {
      std::unique_ptr<Communicator> host = comms->MakeCommunicator(ranks, rank, name);
      return staged ? MakeHostStagedCommunicator(std::move(host), MakeCudaStagingDevice(GpuSharers::kThreads))
                    : std::move(host);
    };
  } else {
    const std::shared_ptr<Store> store = world == 1 ? nullptr : ranks_->stores[static_cast<size_t>(rank)];
    place.make_group = [store, rank](const std::string& name, const std::vector<int>& ranks) {
      return MakeNcclCommunicator(store, ranks, rank, name);
    };
  }
  std::vector<int> all;
  for (int r = 0; r < world; ++r) all.push_back(r);
  place.world = place.make_group("world", all);
  return place;
}

Selfcheck::Curve Selfcheck::Train(const SelfcheckLayout& layout) {
  const int world = layout.ranks();
  const bool inside = !options_.cuda || options_.shared_gpus > 0;
  const std::shared_ptr<InProcessWorld> comms = inside ? MakeInProcessWorld(world, std::chrono::seconds(60)) : nullptr;
  std::vector<Curve> curves(static_cast<size_t>(world));
  const auto rank_main = [&](int rank) {
    Curve& mine = curves[static_cast<size_t>(rank)];
    try {
      at::set_num_threads(1);
      Trainer trainer(SetupOf(layout), PlaceOf(rank, world, comms));
      trainer.InitialiseWeights(1234);
      const BatchPlan batch = trainer.plan().batch;
      const int dp_size = trainer.plan().topology.dp_size, dp_rank = trainer.state().dp_rank();
      for (int64_t step = 0; step < options_.steps; ++step) {
        const int64_t consumed = trainer.consumed_samples(), row = batch.sequence_length + 1;
        trainer.StartStep([=, this](int64_t micro_batch, const at::Tensor& tokens) {
          const int64_t first = data::FirstSample(consumed, micro_batch, dp_rank, dp_size, batch.micro_batch_size);
          for (int64_t s = 0; s < batch.micro_batch_size; ++s) {
            FillSample(static_cast<uint64_t>(first + s), model_.vocab_size,
                       tokens.mutable_data_ptr<int32_t>() + s * row, row);
          }
        });
        const StepResult result = trainer.FinishStep();
        mine.losses.push_back(result.loss);
        mine.norms.push_back(result.grad_norm);
      }
      trainer.executor().Drain();
    } catch (const std::exception& error) {
      mine.failed = fmt::format("rank {}: {}", rank, error.what());
      if (comms) comms->Abort(rank, mine.failed);
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) threads.emplace_back(rank_main, rank);
  for (std::thread& thread : threads) thread.join();
  // The first failure is the cause; the others were woken by it.
  for (const Curve& curve : curves) {
    if (!curve.failed.empty() && curve.failed.find("COM013") == std::string::npos) return curve;
  }
  for (const Curve& curve : curves) {
    if (!curve.failed.empty()) return curve;
    if (curve.losses != curves[0].losses)
      return {.failed = "the ranks report different losses", .losses = {}, .norms = {}};
  }
  return curves[0];
}

SelfcheckResult Selfcheck::Run(const SelfcheckLayout& layout) {
  if (!reference_) reference_ = std::make_unique<Curve>(Train({}));
  SelfcheckResult result;
  result.layout = layout;
  const auto begin = std::chrono::steady_clock::now();
  const Curve curve = Train(layout);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  result.failed = reference_->failed.empty() ? curve.failed : "one rank: " + reference_->failed;
  result.loss_error = LargestDifference(curve.losses, reference_->losses);
  result.norm_error = LargestDifference(curve.norms, reference_->norms);
  return result;
}

}  // namespace trireme
