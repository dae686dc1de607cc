// `plan` as tests call it: in their own process, on a config of their own.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "engine/cli/commands.h"
#include "parsers/json_tree.h"
#include "tests/support/temp_folder.h"

namespace trireme::testing {

class PlanCommand : public ::testing::Test {
 protected:
  void SetUp() override { folder_ = NewTempFolder("plan"); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& text) const {
    const std::string path = folder_ / "ds_config.json";
    std::ofstream(path) << text;
    return path;
  }

  // Standard output of the command.
  std::string Run(std::vector<std::string> words) {
    ::testing::internal::CaptureStdout();
    try {
      code_ = cli::RunPlan(words);
    } catch (...) {
      ::testing::internal::GetCapturedStdout();
      throw;
    }
    return ::testing::internal::GetCapturedStdout();
  }

  // Its object with --json; what goes to standard error is left in errors_.
  JsonValue RunJson(std::vector<std::string> words) {
    words.push_back("--json");
    ::testing::internal::CaptureStderr();
    std::string text;
    try {
      text = Run(words);
    } catch (...) {
      ::testing::internal::GetCapturedStderr();
      throw;
    }
    errors_ = ::testing::internal::GetCapturedStderr();
    Diagnostics diagnostics;
    const std::optional<JsonValue> json = ReadJson(text, "plan.json", diagnostics);
    EXPECT_TRUE(json && !diagnostics.HasErrors()) << text;
    return json.value_or(JsonValue{});
  }

  static constexpr const char* kStage3 =
      R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 64, "bf16": {"enabled": true},
          "zero_optimization": {"stage": 3}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}})";

  std::filesystem::path folder_;
  std::string errors_;
  int code_ = -1;
};

// The value under some keys, one in another.
inline const JsonValue& At(const JsonValue& json, std::initializer_list<const char*> path) {
  static const JsonValue kNone;
  const JsonValue* value = &json;
  for (const char* key : path) {
    const JsonMember* member = value->Find(key);
    EXPECT_NE(nullptr, member) << key;
    if (member == nullptr) return kNone;
    value = &member->value;
  }
  return *value;
}

inline void ExpectContains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in\n" << text;
}

}  // namespace trireme::testing
