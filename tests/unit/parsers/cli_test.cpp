#include "parsers/cli.h"

#include <gtest/gtest.h>

#include <cmath>

#include "config_testing.h"
#include "engine/base/error.h"

namespace trireme {
namespace {

using testing::Contains;

const std::vector<std::string> kLeast = {"--data-path", "tokens", "--deepspeed_config", "ds.json"};

TrainOptions Train(std::vector<std::string> more) {
  more.insert(more.begin(), kLeast.begin(), kLeast.end());
  return ParseTrainFlags(more);
}

// "USE001: unknown flag --lrr | did you mean --lr?"
std::string Failure(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(2, ExitCode(error.code()));
    return error.id() + ": " + error.message() + " | " + error.fix();
  }
  return "no error";
}
std::string TrainFailure(std::vector<std::string> more) {
  return Failure([&] { Train(std::move(more)); });
}

TEST(Cli, HyphensUnderscoresAndEqualsSigns) {
  const TrainOptions o = Train({"--deepspeed",
                                "--seq_length=64",
                                "--micro-batch-size",
                                "4",
                                "--gradient_accumulation_steps",
                                "2",
                                "--lr=3e-4",
                                "--bf16",
                                "--train-iters",
                                "1e3",
                                "--model-name",
                                "gpt-13b",
                                "--local-rank=1",
                                "--num-layers",
                                "2",
                                "--no_shuffle",
                                "--clip-grad",
                                "-1",
                                "--log-json",
                                "l.json"});
  EXPECT_EQ("ds.json", o.deepspeed_config);
  EXPECT_EQ(64, o.seq_length);
  EXPECT_EQ(4, o.fill.micro_batch_size);
  EXPECT_EQ(2, o.fill.gradient_accumulation_steps);
  EXPECT_EQ(3e-4, o.fill.lr);
  EXPECT_TRUE(o.fill.bf16);
  EXPECT_FALSE(o.fill.fp16);
  EXPECT_EQ(1000, o.train_iters);
  EXPECT_EQ(1000, o.fill.train_iters);
  EXPECT_EQ("gpt-13b", o.model.model_name);
  EXPECT_EQ(1, o.local_rank);
  EXPECT_EQ(2, o.model.num_layers);
  EXPECT_TRUE(o.no_shuffle);
  EXPECT_EQ(-1.0, o.fill.clip_grad);
  EXPECT_EQ("l.json", o.log_json);
}

TEST(Cli, Defaults) {
  const TrainOptions o = Train({});
  EXPECT_EQ("969,30,1", o.split);
  EXPECT_FALSE(o.fill.lr);
  EXPECT_FALSE(o.fill.seed);
  EXPECT_EQ(0, o.train_iters);
  EXPECT_EQ(-1, o.local_rank);
  EXPECT_FALSE(o.activations.recomputes());
}

TEST(Cli, RecomputationAndWholeEvaluations) {
  EXPECT_TRUE(Train({"--recompute_granularity", "full"}).activations.recomputes());
  EXPECT_EQ(
      "USE002: \"selective\" is no granularity: only whole blocks can be recomputed | pass full, or remove the "
      "flag to keep activations",
      TrainFailure({"--recompute-granularity", "selective"}));
  EXPECT_EQ(0.1, Train({"--hidden-dropout", "0.1"}).activations.hidden_dropout);
  EXPECT_EQ("USE002: 1 is no probability of dropping: 0 <= P < 1 | pass for example 0.1",
            TrainFailure({"--hidden-dropout", "1"}));
  EXPECT_EQ(
      "USE002: attention dropout 0.1 is not supported: the fused attention kernels have none | pass 0 or remove the "
      "flag; "
      "--hidden-dropout works",
      TrainFailure({"--attention-dropout", "0.1"}));
  EXPECT_EQ(0, Train({"--eval-iters", "0"}).eval_iters);
  EXPECT_TRUE(Contains(TrainFailure({"--eval-iters", "-1"}), "USE002"));
}

TEST(Cli, InjectedOverflowsAreAListOfSteps) {
  EXPECT_EQ((std::vector<int64_t>{3, 4, 9}), Train({"--inject-overflow", "3,4,9"}).inject_overflow);
  EXPECT_TRUE(Train({}).inject_overflow.empty());
  const InjectFlag inject{.step = 7, .rank = 1, .unit = 2, .micro_batch = 3, .backward = true, .value = INFINITY};
  EXPECT_EQ(inject, Train({"--inject-value", "7:1:2:3:backward:inf"}).inject_value);
  EXPECT_TRUE(std::isnan(Train({"--inject-value", "7:1:2:3:forward:nan"}).inject_value->value));
  EXPECT_FALSE(Train({}).inject_value);
  for (const char* wrong : {"7:1:2:3:forward", "7:1:2:-3:forward:nan", "7:1:2:3:sideways:nan", "7:1:2:3:forward:x"}) {
    EXPECT_TRUE(Contains(TrainFailure({std::string("--inject-value=") + wrong}), "names no value")) << wrong;
  }
  for (const char* wrong : {"3,,4", "-1", "3;4", "x"}) {
    EXPECT_TRUE(Contains(TrainFailure({std::string("--inject-overflow=") + wrong}), "is no list of steps")) << wrong;
  }
}

TEST(Cli, DataPathIsAPrefixOrABlend) {
  using Words = std::vector<std::string>;
  const auto parse = [](const Words& words) {
    Words args = {"--deepspeed_config", "ds.json", "--data-path"};
    args.insert(args.end(), words.begin(), words.end());
    args.insert(args.end(), {"--seq-length", "8"});
    return ParseTrainFlags(args);
  };
  EXPECT_EQ(parse({"tokens"}).data_path, "tokens");
  EXPECT_EQ(parse({"tokens"}).data_blend, Words{});
  EXPECT_EQ(parse({"0.3", "a", "0.7", "b"}).data_path, "a");
  EXPECT_EQ(parse({"0.3", "a", "0.7", "b"}).data_blend, (Words{"0.3", "a", "0.7", "b"}));
  EXPECT_EQ(parse({"a", "b"}).data_path, "a");
  EXPECT_EQ(parse({"a", "b"}).data_blend, (Words{"a", "b"}));
  EXPECT_EQ(parse({"a", "b"}).seq_length, 8);
}

TEST(Cli, LocalRankOfTheEnvironmentDecides) {
  for (const int64_t flag : {-1, 0}) EXPECT_NO_THROW(CheckLocalRank(flag, std::nullopt));
  EXPECT_NO_THROW(CheckLocalRank(3, 3));
  EXPECT_NO_THROW(CheckLocalRank(3, 1));
  EXPECT_EQ(
      "USE005: --local_rank is 3, and LOCAL_RANK, which decides, is not set | start the ranks with trireme launch, "
      "or set LOCAL_RANK=3 for this one",
      Failure([] { CheckLocalRank(3, std::nullopt); }));
}

TEST(Cli, MistakesSayWhatToDo) {
  EXPECT_EQ("USE001: unknown flag --micro_batch_sise | did you mean --micro-batch-size?",
            TrainFailure({"--micro_batch_sise", "4"}));
  EXPECT_EQ("USE001: unknown flag --frobnicate | trireme train --help lists all flags", TrainFailure({"--frobnicate"}));
  EXPECT_EQ("USE002: \"four\" is not a whole number | pass a whole number", TrainFailure({"--seq-length", "four"}));
  EXPECT_EQ("USE002: \"nan\" is not a number | pass a number", TrainFailure({"--lr", "nan"}));
  EXPECT_EQ("USE003: a number must follow, and nothing does | write --lr X", TrainFailure({"--lr", "--bf16"}));
  EXPECT_EQ("USE003: the flag is given twice | keep one", TrainFailure({"--lr", "1", "--lr", "2"}));
  EXPECT_TRUE(Contains(TrainFailure({"stray"}), "USE003: unexpected word \"stray\""));
  EXPECT_TRUE(Contains(TrainFailure({"--bf16", "--fp16"}), "USE004"));
  EXPECT_TRUE(Contains(TrainFailure({"--split", "1,2"}), "USE002"));
  EXPECT_TRUE(Contains(TrainFailure({"--split", "0,0,0"}), "USE002"));
  EXPECT_TRUE(Contains(TrainFailure({"--seq-length", "0"}), "USE002"));
  EXPECT_TRUE(Contains(TrainFailure({"--device", "tpu"}), "USE002"));
  EXPECT_TRUE(Contains(TrainFailure({"--save-interval", "5"}), "USE004"));
  EXPECT_TRUE(Contains(TrainFailure({"--deepscale_config", "x"}), "USE004"));
  EXPECT_TRUE(Contains(Failure([] { ParseTrainFlags({"--data-path", "x"}); }), "--deepspeed_config"));
  EXPECT_TRUE(Contains(Failure([] { ParseTrainFlags({"--deepspeed_config", "x"}); }), "--data-path"));
}

TEST(Cli, HelpListsFlagsWithDefaults) {
  EXPECT_TRUE(ParseTrainFlags({"--help"}).help);
  EXPECT_TRUE(ParseTrainFlags({"-h"}).help);
  const std::string help = TrainHelp();
  EXPECT_TRUE(Contains(help, "--split A,B,C"));
  EXPECT_TRUE(Contains(help, "[969,30,1]"));
  EXPECT_TRUE(Contains(help, "--eval-iters N"));
  for (const char* flag : {"--data-path",
                           "--seq-length",
                           "--train-iters",
                           "--save",
                           "--load",
                           "--save-interval",
                           "--log-interval",
                           "--eval-interval",
                           "--seed",
                           "--micro-batch-size",
                           "--gradient-accumulation-steps",
                           "--lr",
                           "--weight-decay",
                           "--adam-beta1",
                           "--adam-beta2",
                           "--adam-eps",
                           "--clip-grad",
                           "--bf16",
                           "--fp16",
                           "--tensor-model-parallel-size",
                           "--pipeline-model-parallel-size",
                           "--deepspeed",
                           "--deepspeed_config",
                           "--model_name",
                           "--init-from",
                           "--no-shuffle",
                           "--recompute-granularity",
                           "--hidden-dropout",
                           "--decay-all",
                           "--log-json",
                           "--trace",
                           "--untie"}) {
    EXPECT_TRUE(Contains(help, std::string("  ") + flag + " ")) << flag;
  }
}

TEST(Cli, Plan) {
  const PlanOptions o = ParsePlanFlags({"ds.json", "--model_name", "gpt-1.3b", "--num_nodes", "2", "--num-gpus=8"});
  EXPECT_EQ("ds.json", o.deepspeed_config);
  EXPECT_EQ(2, o.num_nodes);
  EXPECT_EQ(8, o.num_gpus);
  EXPECT_TRUE(o.fill.for_plan);
  EXPECT_TRUE(Contains(Failure([] { ParsePlanFlags({"a.json", "b.json"}); }), "unexpected word \"b.json\""));
  EXPECT_TRUE(Contains(Failure([] { ParsePlanFlags({"a.json", "--deepspeed_config", "b.json"}); }), "USE004"));
  EXPECT_TRUE(Contains(Failure([] { ParsePlanFlags({}); }), "USE003"));
  EXPECT_TRUE(Contains(Failure([] { ParsePlanFlags({"a.json", "--num_gpus", "0"}); }), "USE002"));
}

}  // namespace
}  // namespace trireme
