// A command line as a table: each flag bound to the variable it sets. Hyphens and underscores in names are the same.
//   FlagSet flags("train");
//   flags.Add("seq-length", "N", "tokens per sample", options.seq_length);   // the variable's value is the default
//   shown flags.Parse(args);  // throws Error{kUsage}: USE001 unknown flag, USE002 wrong value, USE003 missing or
//   repeated
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

class FlagSet {
 public:
  explicit FlagSet(std::string subcommand) : subcommand_(std::move(subcommand)) {}

  // The variables must outlive Parse. `value` names the argument in the help text; a bool needs none.
  void Add(const std::string& name, const std::string& help, bool& target);
  void Add(const std::string& name, const std::string& value, const std::string& help, std::string& target);
  void Add(const std::string& name, const std::string& value, const std::string& help, int64_t& target);
  void Add(const std::string& name, const std::string& value, const std::string& help, double& target);
  void Add(const std::string& name, const std::string& value, const std::string& help, std::optional<int64_t>& target);
  void Add(const std::string& name, const std::string& value, const std::string& help, std::optional<double>& target);
  // One word or more, up to the next flag.
  void Add(const std::string& name, const std::string& value, const std::string& help,
           std::vector<std::string>& target);
  void AddHeading(const std::string& text);  // starts a group in the help text
  // What a word that is no flag sets; without it such a word is an error.
  void AddPositional(const std::string& value, const std::string& help, std::string& target);

  void Parse(const std::vector<std::string>& args);
  bool Given(std::string_view name) const;  // after Parse: did the line name it?

  std::string Help() const;

 private:
  struct Flag {
    std::string name, value, help, default_text;
    bool is_switch = false;
    std::function<bool(std::string_view)> set;  // false: the text is no such value
    std::string wanted;                         // "a whole number"
    bool given = false;
    bool many = false;  // takes every word up to the next flag
  };
  Flag* Find(std::string_view name);
  void AddOne(Flag flag);
  [[noreturn]] void FailUnknown(const std::string& written, const std::string& name) const;
  void Set(Flag& flag, const std::string& written, std::string_view text);

  std::string subcommand_;
  std::vector<Flag> flags_;  // a heading is a flag without name
  std::optional<Flag> positional_;
};

}  // namespace trireme
