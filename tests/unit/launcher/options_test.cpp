// Flags of `trireme launch`: DeepSpeed's rules, and ours where they differ.
#include "launcher/options.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/base/error.h"

namespace trireme::launcher {
namespace {

using Words = std::vector<std::string>;

std::string ErrorOf(const Words& words) {
  try {
    ParseLaunchOptions(words);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    return error.id() + " " + error.where() + ": " + error.message() + " | " + error.fix();
  }
  return "";
}

TEST(LaunchOptions, DefaultsAreDeepSpeeds) {
  const LaunchOptions o = ParseLaunchOptions({"prog"});
  EXPECT_EQ(o.program, "prog");
  EXPECT_TRUE(o.arguments.empty());
  EXPECT_EQ(o.num_gpus, -1);
  EXPECT_EQ(o.num_nodes, -1);
  EXPECT_FALSE(o.master_port.has_value());
  EXPECT_EQ(o.hostfile + o.include + o.exclude + o.master_addr + o.log_dir, "");
  EXPECT_EQ(o.term_grace_s, 10);
}

TEST(LaunchOptions, FormsOfAFlag) {
  for (const Words& words : {Words{"--num_gpus", "2", "prog"},
                             {"--num-gpus=2", "prog"},
                             {"--num_g", "2", "prog"},
                             {"--num_accelerators=+2", "prog"},
                             {"--num_gpus=7", "--num_gpus=2", "prog"}}) {
    EXPECT_EQ(ParseLaunchOptions(words).num_gpus, 2) << words[0];
  }
  EXPECT_EQ(ParseLaunchOptions({"--num_gpus", "-5", "prog"}).num_gpus, -5);  // a negative number is a value
  EXPECT_EQ(ParseLaunchOptions({"-H", "f", "prog"}).hostfile, "f");
  EXPECT_EQ(ParseLaunchOptions({"-Hf", "prog"}).hostfile, "f");
  EXPECT_EQ(ParseLaunchOptions({"-q", "--log_level", "debug", "prog"}).log_level, "quiet");  // wins over it
  EXPECT_EQ(ParseLaunchOptions({"--master_port=0", "prog"}).master_port, 0);
}

TEST(LaunchOptions, EverythingBehindTheProgramIsItsOwn) {
  const LaunchOptions o = ParseLaunchOptions({"--cpu", "train", "--num_gpus", "2", "--hostfile=h", "-x"});
  EXPECT_EQ(o.num_gpus, -1);
  EXPECT_EQ(o.arguments, (Words{"--num_gpus", "2", "--hostfile=h", "-x"}));
  EXPECT_EQ(MisplacedFlags(o), (Words{"--num_gpus", "--hostfile"}));
  EXPECT_EQ(ParseLaunchOptions({"train.x", "--", "--foo"}).arguments, (Words{"--foo"}));
  EXPECT_EQ(ParseLaunchOptions({"--", "train.x", "--", "--foo"}).arguments, (Words{"--", "--foo"}));
}

TEST(LaunchOptions, ErrorsNameTheFlag) {
  EXPECT_EQ(ErrorOf({"--hostfil_e", "f", "prog"}),
            "LCH001 --hostfil_e: no such flag of launch | did you mean --hostfile? Flags of the program stand behind "
            "its name");
  EXPECT_TRUE(ErrorOf({"-x", "prog"}).starts_with("LCH001 -x"));
  EXPECT_EQ(ErrorOf({"--no_ss", "prog"}),
            "LCH002 --no_ss: could be --no_ssh or --no_ssh_check | write more of its letters");
  EXPECT_EQ(ErrorOf({"--no_ssh", "prog"}), "");  // an exact name wins
  EXPECT_TRUE(ErrorOf({"--num_gpus", "2.5", "prog"}).starts_with("LCH003 --num_gpus: '2.5' is no integer"));
  EXPECT_TRUE(ErrorOf({"--master_port", "70000", "prog"})
                  .starts_with("LCH003 --master_port: 70000 is not between 0 and 65535"));
  EXPECT_TRUE(ErrorOf({"--launcher", "Foo", "prog"}).starts_with("LCH003 --launcher: 'foo' is none of pdsh, "));
  EXPECT_TRUE(ErrorOf({"--num_gpus"}).starts_with("LCH004 --num_gpus: needs a value"));
  EXPECT_TRUE(ErrorOf({"--include", "--cpu", "prog"}).starts_with("LCH004 --include: needs a value"));
  EXPECT_TRUE(ErrorOf({"--cpu=1", "prog"}).starts_with("LCH004 --cpu: takes no value"));
  EXPECT_TRUE(ErrorOf({"--cpu"}).starts_with("LCH008"));
}

TEST(LaunchOptions, FlagsOfSeveralNodesAndOfPythonAreRefusedByName) {
  EXPECT_TRUE(ErrorOf({"--num_nodes", "2", "prog"})
                  .starts_with("LCH006 --num_nodes: 2 nodes asked, this version starts the ranks of one machine"));
  EXPECT_EQ(ErrorOf({"--num_nodes", "1", "prog"}), "");
  for (const char* flag : {"--force_multi", "--launcher_args", "--module", "--venv_script", "--autotuning",
                           "--elastic_training", "--min_elastic_nodes", "--save_pid"}) {
    EXPECT_TRUE(ErrorOf({flag, "prog"}).starts_with(std::string("LCH005 ") + flag)) << flag;
  }
  EXPECT_TRUE(ErrorOf({"--node_rank", "1", "prog"}).starts_with("LCH005 --node_rank"));
  EXPECT_EQ(ErrorOf({"--no_ssh", "--node_rank", "0", "--launcher", "PDSH", "--no_python", "prog"}), "");
}

TEST(LaunchOptions, Contradictions) {
  EXPECT_TRUE(ErrorOf({"-i", "localhost:0", "-e", "localhost:1", "prog"}).starts_with("LCH007"));
  EXPECT_TRUE(ErrorOf({"--num_gpus", "1", "-i", "localhost:0", "prog"}).starts_with("LCH007"));
  EXPECT_EQ(ErrorOf({"--num_nodes", "1", "-i", "localhost:0", "prog"}), "");
}

TEST(LaunchOptions, LogDirectoryOfDeepSpeed) {
  EXPECT_FALSE(ParseLaunchOptions({"--enable_each_rank_log", "None", "prog"}).each_rank_log);  // its word for "off"
  const LaunchOptions o = ParseLaunchOptions({"--enable_each_rank_log", "logs", "prog"});
  EXPECT_TRUE(o.each_rank_log);
  EXPECT_EQ(o.log_dir, "logs");
}

}  // namespace
}  // namespace trireme::launcher
