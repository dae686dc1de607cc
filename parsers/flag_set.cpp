#include "parsers/flag_set.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/base/error.h"
#include "engine/base/strings.h"

namespace trireme {
namespace {

std::string Hyphens(std::string_view name) {
  std::string text(name);
  std::ranges::replace(text, '_', '-');
  return text;
}

template <class T>
bool FromText(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool SetNumber(std::string_view text, double& target) {
  double value = 0;
  if (!FromText(text, value) || !std::isfinite(value)) return false;
  target = value;
  return true;
}

// Also 5e8 and 1.0, as config files write them.
bool SetNumber(std::string_view text, int64_t& target) {
  if (FromText(text, target)) return true;
  double value = 0;
  if (!SetNumber(text, value) || value != std::trunc(value) || std::abs(value) > 9e18) return false;
  target = static_cast<int64_t>(value);
  return true;
}

bool SetSwitch(std::string_view text, bool& target) {
  if (text != "" && text != "true" && text != "false") return false;
  target = text != "false";
  return true;
}

}  // namespace

void FlagSet::AddOne(Flag flag) { flags_.push_back(std::move(flag)); }

void FlagSet::Add(const std::string& name, const std::string& help, bool& target) {
  AddOne({name, "", help, "", true, [&target](std::string_view t) { return SetSwitch(t, target); }, "true or false"});
}

void FlagSet::Add(const std::string& name, const std::string& value, const std::string& help, std::string& target) {
  const auto set = [&target](std::string_view text) {
    target = text;
    return true;
  };
  AddOne({name, value, help, target, false, set, "text"});
}

void FlagSet::Add(const std::string& name, const std::string& value, const std::string& help, int64_t& target) {
  AddOne({name, value, help, std::to_string(target), false,
          [&target](std::string_view t) { return SetNumber(t, target); }, "a whole number"});
}

void FlagSet::Add(const std::string& name, const std::string& value, const std::string& help, double& target) {
  AddOne({name, value, help, fmt::format("{}", target), false,
          [&target](std::string_view t) { return SetNumber(t, target); }, "a number"});
}

void FlagSet::Add(const std::string& name, const std::string& value, const std::string& help,
                  std::optional<int64_t>& target) {
  const auto set = [&target](std::string_view text) {
    int64_t number = 0;
    if (!SetNumber(text, number)) return false;
    target = number;
    return true;
  };
  AddOne({name, value, help, "", false, set, "a whole number"});
}

void FlagSet::Add(const std::string& name, const std::string& value, const std::string& help,
                  std::optional<double>& target) {
  const auto set = [&target](std::string_view text) {
    double number = 0;
    if (!SetNumber(text, number)) return false;
    target = number;
    return true;
  };
  AddOne({name, value, help, "", false, set, "a number"});
}

void FlagSet::Add(const std::string& name, const std::string& value, const std::string& help,
                  std::vector<std::string>& target) {
  const auto set = [&target](std::string_view text) {
    target.emplace_back(text);
    return true;
  };
  AddOne({name, value, help, "", false, set, "text"});
  flags_.back().many = true;
}

void FlagSet::AddHeading(const std::string& text) { AddOne({"", "", text, "", false, {}, ""}); }

void FlagSet::AddPositional(const std::string& value, const std::string& help, std::string& target) {
  const auto set = [&target](std::string_view text) {
    target = text;
    return true;
  };
  positional_ = Flag{"", value, help, "", false, set, "text"};
}

FlagSet::Flag* FlagSet::Find(std::string_view name) {
  const auto it =
      std::ranges::find_if(flags_, [&](const Flag& f) { return !f.name.empty() && Hyphens(f.name) == name; });
  return it == flags_.end() ? nullptr : &*it;
}

bool FlagSet::Given(std::string_view name) const {
  return std::ranges::any_of(flags_, [&](const Flag& f) { return Hyphens(f.name) == Hyphens(name) && f.given; });
}

void FlagSet::FailUnknown(const std::string& written, const std::string& name) const {
  std::vector<std::string> names;
  for (const Flag& flag : flags_) {
    if (!flag.name.empty()) names.push_back(Hyphens(flag.name));
  }
  const std::optional<std::string> near = Suggest(name, names);
  throw Error(
      ErrorCode::kUsage, "USE001", fmt::format("unknown flag {}", written), "",
      near ? fmt::format("did you mean --{}?", *near) : fmt::format("trireme {} --help lists all flags", subcommand_));
}

void FlagSet::Set(Flag& flag, const std::string& written, std::string_view text) {
  if (!flag.set(text)) {
    throw Error(ErrorCode::kUsage, "USE002", fmt::format("\"{}\" is not {}", text, flag.wanted), written,
                fmt::format("pass {}", flag.wanted));
  }
  flag.given = true;
}

void FlagSet::Parse(const std::vector<std::string>& args) {
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "-h") {
      Set(*Find("help"), arg, "");
      continue;
    }
    if (!arg.starts_with("--")) {
      if (!positional_ || positional_->given) {
        throw Error(ErrorCode::kUsage, "USE003", fmt::format("unexpected word \"{}\"", arg), "",
                    "flags start with --; quote values that hold blanks");
      }
      Set(*positional_, positional_->value, arg);
      continue;
    }
    const size_t equals = arg.find('=');
    const std::string written = arg.substr(0, equals);
    const std::string name = Hyphens(std::string_view(written).substr(2));
    Flag* flag = Find(name);
    if (flag == nullptr) FailUnknown(written, name);
    if (flag->given && !flag->is_switch) {
      throw Error(ErrorCode::kUsage, "USE003", "the flag is given twice", written, "keep one");
    }
    if (equals != std::string::npos) {
      Set(*flag, written, std::string_view(arg).substr(equals + 1));
    } else if (flag->is_switch) {
      Set(*flag, written, "");
    } else if (i + 1 < args.size() && !args[i + 1].starts_with("--")) {
      Set(*flag, written, args[++i]);
      while (flag->many && i + 1 < args.size() && !args[i + 1].starts_with("--")) Set(*flag, written, args[++i]);
    } else {
      throw Error(ErrorCode::kUsage, "USE003", fmt::format("{} must follow, and nothing does", flag->wanted), written,
                  fmt::format("write {} {}", written, flag->value));
    }
  }
}

std::string FlagSet::Help() const {
  std::string text =
      fmt::format("usage: trireme {}{} [flags]\n", subcommand_, positional_ ? " " + positional_->value : "");
  if (positional_) text += fmt::format("  {:<38} {}\n", positional_->value, positional_->help);
  for (const Flag& flag : flags_) {
    if (flag.name.empty()) {
      text += "\n" + flag.help + "\n";
      continue;
    }
    const std::string left = "--" + flag.name + (flag.value.empty() ? "" : " " + flag.value);
    const std::string standard = flag.default_text.empty() ? "" : fmt::format(" [{}]", flag.default_text);
    text += fmt::format("  {:<38} {}{}\n", left, flag.help, standard);
  }
  return text;
}

}  // namespace trireme
