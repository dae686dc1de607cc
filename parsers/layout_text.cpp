#include "parsers/layout_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "parsers/json_tree.h"

namespace trireme {
namespace {

using Kind = JsonValue::Kind;

JsonValue Number(int64_t number) {
  JsonValue value;
  value.kind = Kind::kInteger;
  value.integer = number;
  value.text = std::to_string(number);
  return value;
}

JsonValue Number(double number) {
  JsonValue value;
  value.kind = Kind::kNumber;
  value.number = number;
  value.text = fmt::format("{}", number);
  return value;
}

JsonValue Text(std::string_view text) {
  JsonValue value;
  value.kind = Kind::kText;
  value.text = text;
  return value;
}

JsonValue Boolean(bool boolean) {
  JsonValue value;
  value.kind = Kind::kBool;
  value.boolean = boolean;
  return value;
}

JsonMember* Find(JsonValue& object, std::string_view key) {
  const auto found = std::ranges::find(object.members, key, &JsonMember::key);
  return found == object.members.end() ? nullptr : &*found;
}

void Set(JsonValue& object, std::string_view key, JsonValue value) {
  JsonMember* member = Find(object, key);
  if (member == nullptr) member = &object.members.emplace_back(JsonMember{std::string(key), 0, 0, {}});
  member->line = kSetByWith;
  member->value = std::move(value);
}

void Drop(JsonValue& object, std::initializer_list<std::string_view> keys) {
  std::erase_if(object.members,
                [&](const JsonMember& member) { return std::ranges::find(keys, member.key) != keys.end(); });
}

// The object under a key, made where there is none. A value of another kind gives way: only what means "off" or the old
// form of a section can stand there.
JsonValue& Object(JsonValue& object, std::string_view key) {
  JsonMember* member = Find(object, key);
  if (member == nullptr) member = &object.members.emplace_back(JsonMember{std::string(key), kSetByWith, 0, {}});
  if (member->value.kind != Kind::kObject) {
    member->value = {};
    member->value.kind = Kind::kObject;
    member->value.line = kSetByWith;
  }
  return member->value;
}

// "a.b.c" -> the object a.b, and c; null where a or a.b is no object.
std::pair<JsonValue*, std::string_view> Place(JsonValue& root, std::string_view path, bool make) {
  JsonValue* object = &root;
  for (size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.')) {
    const std::string_view key = path.substr(0, dot);
    path.remove_prefix(dot + 1);
    if (make) {
      object = &Object(*object, key);
      continue;
    }
    JsonMember* member = Find(*object, key);
    if (member == nullptr || member->value.kind != Kind::kObject) return {nullptr, path};
    object = &member->value;
  }
  return {object, path};
}

void MarkAsSet(JsonValue& value) {
  value.line = kSetByWith;
  for (JsonValue& element : value.elements) MarkAsSet(element);
  for (JsonMember& member : value.members) {
    member.line = kSetByWith;
    MarkAsSet(member.value);
  }
}

void DropPath(JsonValue& root, std::string_view path) {
  const auto [object, key] = Place(root, path, /*make=*/false);
  if (object != nullptr) Drop(*object, {key});
}

void DropIfEmpty(JsonValue& root, std::string_view path) {
  const auto [object, key] = Place(root, path, /*make=*/false);
  const JsonMember* member = object == nullptr ? nullptr : Find(*object, key);
  if (member != nullptr && member->value.kind == Kind::kObject && member->value.members.empty()) Drop(*object, {key});
}

// What stands in a key's way: its other spellings (sections/ read them), and what says something else about the same.
struct Displaced {
  std::string_view key, by;
  bool is_spelling = true;
};
constexpr Displaced kDisplaced[] = {
    {"data_parallel_size", "tensor_parallel.tp_size", false},
    {"data_parallel_size", "pipeline_parallel.pp_size", false},
    {"model_parallel_size", "tensor_parallel.tp_size"},
    {"model-parallel-size", "tensor_parallel.tp_size"},
    {"tensor_parallel.autotp_size", "tensor_parallel.tp_size"},
    {"tensor_parallel.tensor_parallel.tp_size", "tensor_parallel.tp_size"},
    {"tensor_parallel.tp.tp_size", "tensor_parallel.tp_size"},
    {"pipe_parallel_size", "pipeline_parallel.pp_size"},
    {"pipe-parallel-size", "pipeline_parallel.pp_size"},
    {"pipeline.stages", "pipeline_parallel.pp_size"},
    {"pipeline_parallel.stages", "pipeline_parallel.pp_size"},
    {"pipeline.activation_checkpoint_interval", "trireme.recompute", false},
    {"activation_checkpointing.number_checkpoints", "trireme.recompute", false},
    {"zero_optimization.cpu_offload", "zero_optimization.offload_optimizer"},
    {"zero_optimization.cpu_offload_params", "zero_optimization.offload_param"},
    {"zero_optimization.cpu_offload_param", "zero_optimization.offload_param"},
    {"zero_optimization.prefetch_bucket_size", "zero_optimization.stage3_prefetch_bucket_size"},
};

void Displace(JsonValue& root, std::string_view key) {
  for (const Displaced& displaced : kDisplaced) {
    if (key == displaced.by || (key.starts_with(displaced.by) && key[displaced.by.size()] == '.')) {
      DropPath(root, displaced.key);
    }
  }
  for (const char* inner : {"tensor_parallel.tensor_parallel", "tensor_parallel.tp"}) DropIfEmpty(root, inner);
}

void SetPath(JsonValue& root, std::string_view path, JsonValue value) {
  Displace(root, path);
  const auto [object, key] = Place(root, path, /*make=*/true);
  Set(*object, key, std::move(value));
}

void SetBatch(JsonValue& root, const Config& to) {
  Set(root, "train_micro_batch_size_per_gpu", Number(to.batch.train_micro_batch_size_per_gpu));
  Set(root, "gradient_accumulation_steps", Number(to.batch.gradient_accumulation_steps));
}

void SetSizes(JsonValue& root, const Config& to) {
  const struct {
    std::string_view section, key;
    int64_t size;
  } sizes[] = {{"tensor_parallel", "tensor_parallel.tp_size", to.tensor_parallel.tp_size},
               {"pipeline_parallel", "pipeline_parallel.pp_size", to.pipeline_parallel.pp_size}};
  for (const auto& [section, key, size] : sizes) {
    Displace(root, key);
    if (size > 1 || Find(root, section) != nullptr) SetPath(root, key, Number(size));
  }
}

std::string_view NameOf(OffloadDevice device) {
  return device == OffloadDevice::kNvme ? "nvme" : device == OffloadDevice::kCpu ? "cpu" : "none";
}

void SetOffload(JsonValue& root, const Config& from, const Config& to) {
  const OffloadOptimizerConfig &before = from.zero_optimization.offload_optimizer,
                               &after = to.zero_optimization.offload_optimizer;
  const std::string optimizer = "zero_optimization.offload_optimizer", weights = "zero_optimization.offload_param";
  if (to.zero_optimization.zero_stage == 0 || after.device == OffloadDevice::kNone) {
    Displace(root, optimizer);
    DropPath(root, optimizer);
  } else {  // the text may say nvme and mean cpu: it names no folder
    SetPath(root, optimizer + ".device", Text(NameOf(after.device)));
    if (before.ratio != after.ratio) DropPath(root, optimizer + ".ratio");
    if (before.ratio != after.ratio && after.ratio < 1) SetPath(root, optimizer + ".ratio", Number(after.ratio));
  }
  const OffloadDevice device = to.zero_optimization.offload_param.device;
  if (to.zero_optimization.zero_stage != 3 || device == OffloadDevice::kNone) {
    Displace(root, weights);
    DropPath(root, weights);
  } else if (from.zero_optimization.offload_param.device != device) {
    SetPath(root, weights + ".device", Text(NameOf(device)));
  }
}

void SetZero(JsonValue& root, const Config& from, const Config& to) {
  const int stage = to.zero_optimization.zero_stage;
  const JsonMember* section = Find(root, "zero_optimization");
  if (section == nullptr && stage == 0) return;
  if (section != nullptr && section->value.kind == Kind::kBool) Drop(root, {"allgather_size"});  // of the old form
  JsonValue& zero = Object(root, "zero_optimization");
  Set(zero, "stage", Number(static_cast<int64_t>(stage)));
  const int64_t gathered = to.zero_optimization.allgather_bucket_size;
  if ((stage == 1 || stage == 2) && gathered % 2 != 0) Set(zero, "allgather_bucket_size", Number(gathered + 1));
  const int64_t prefetch = to.zero_optimization.stage3_prefetch_bucket_size;
  if (stage == 3 && prefetch != from.zero_optimization.stage3_prefetch_bucket_size) {
    SetPath(root, "zero_optimization.stage3_prefetch_bucket_size", Number(prefetch));
  }
  SetOffload(root, from, to);
}

// What is no default, and what the text has: `from` may be another layout than the text's.
void SetPipeline(JsonValue& own, const PipelineParallelConfig& to) {
  static constexpr std::string_view kNames[] = {"gpipe", "1f1b", "zero-bubble"};
  static const PipelineParallelConfig defaults;
  const auto set = [&](std::string_view key, bool is_default, JsonValue value) {
    JsonMember* section = Find(own, "pipeline");
    const bool has = section != nullptr && Find(section->value, key) != nullptr;
    if (has || !is_default) Set(Object(own, "pipeline"), key, std::move(value));
  };
  set("virtual_stages", to.virtual_stages == defaults.virtual_stages, Number(to.virtual_stages));
  set("schedule", to.schedule == defaults.schedule, Text(kNames[static_cast<size_t>(to.schedule)]));
  set("partition", to.partition == defaults.partition, Text(to.partition));
}

void SetOwn(JsonValue& root, const Config& to) {
  Displace(root, "trireme.recompute");
  JsonValue own = Find(root, "trireme") != nullptr ? Object(root, "trireme") : JsonValue{};
  own.kind = Kind::kObject;
  if (to.recompute.runs.empty()) {
    Drop(own, {"recompute"});
  } else {
    Set(own, "recompute", Text(RecomputeText(to.recompute.runs)));
  }
  const bool split = to.tensor_parallel.sequence_parallel;
  if (split || Find(own, "sequence_parallel") != nullptr) Set(own, "sequence_parallel", Boolean(split));
  SetPipeline(own, to.pipeline_parallel);
  Drop(own, {"fill"});  // it would choose again
  if (own.members.empty()) {
    Drop(root, {"trireme"});
  } else {
    Set(root, "trireme", std::move(own));
  }
}

void Write(const JsonValue& value, int depth, std::string& out);

template <typename Items, typename WriteItem>
void WriteList(const Items& items, char open, char close, int depth, std::string& out, WriteItem write) {
  out += open;
  for (size_t i = 0; i < items.size(); ++i) {
    out += fmt::format("{}\n{:{}}", i == 0 ? "" : ",", "", 2 * (depth + 1));
    write(items[i]);
  }
  if (!items.empty()) out += fmt::format("\n{:{}}", "", 2 * depth);
  out += close;
}

std::string Escaped(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void Write(const JsonValue& value, int depth, std::string& out) {
  const bool short_list =
      value.kind == Kind::kArray && std::ranges::none_of(value.elements, [](const JsonValue& element) {
        return element.kind == Kind::kArray || element.kind == Kind::kObject;
      });
  switch (value.kind) {
    case Kind::kNull:
      out += "null";
      return;
    case Kind::kBool:
      out += value.boolean ? "true" : "false";
      return;
    case Kind::kInteger:
    case Kind::kNumber:
      out += value.text;
      return;
    case Kind::kText:
      out += Escaped(value.text);
      return;
    case Kind::kArray:
      if (short_list) {
        out += '[';
        for (size_t i = 0; i < value.elements.size(); ++i) {
          if (i > 0) out += ", ";
          Write(value.elements[i], depth, out);
        }
        out += ']';
        return;
      }
      return WriteList(value.elements, '[', ']', depth, out,
                       [&](const JsonValue& element) { Write(element, depth + 1, out); });
    case Kind::kObject:
      return WriteList(value.members, '{', '}', depth, out, [&](const JsonMember& member) {
        out += Escaped(member.key) + ": ";
        Write(member.value, depth + 1, out);
      });
  }
}

}  // namespace

std::string RecomputeText(const std::vector<RecomputeRun>& runs) {
  static constexpr std::string_view kPolicies[] = {"keep", "cheap", "full"};
  std::string text;
  for (const RecomputeRun& run : runs) {
    text += fmt::format("{}{}", text.empty() ? "" : ",", kPolicies[static_cast<size_t>(run.policy)]);
    if (run.layers > 0) text += fmt::format(":{}", run.layers);
  }
  return text;
}

void SetKeys(JsonValue& root, std::span<const std::string> assignments) {
  std::set<std::string> seen;
  for (const std::string& assignment : assignments) {
    const size_t equals = assignment.find('=');
    if (!seen.insert(assignment.substr(0, equals)).second) {
      throw Error(ErrorCode::kUsage, "USE004", fmt::format("{} is set twice", Quoted(assignment.substr(0, equals))),
                  "--with", "keep one of the two");
    }
    Diagnostics of_value;
    std::optional<JsonValue> read;
    if (equals != std::string::npos && equals > 0 && equals + 1 < assignment.size()) {
      read = ReadJson("value: " + assignment.substr(equals + 1) + "\n", "--with", of_value);
    }
    if (!read || of_value.HasErrors() || read->members.size() != 1) {
      const bool list = equals != std::string::npos && assignment.find(',', equals) != std::string::npos &&
                        assignment.find_first_of("[{", equals) != equals + 1;
      throw Error(
          ErrorCode::kUsage, "USE002", fmt::format("{} is no key with its value", Quoted(assignment)), "--with",
          list ? fmt::format("write a list in brackets: --with '{}=[{}]'", Printable(assignment.substr(0, equals), 80),
                             Printable(assignment.substr(equals + 1), 80))
               : "write for example --with zero_optimization.stage=2");
    }
    JsonValue& value = read->members.front().value;
    MarkAsSet(value);
    SetPath(root, std::string_view(assignment).substr(0, equals), std::move(value));
  }
}

std::vector<OtherSpelling> OtherSpellingsSet(JsonValue& root) {
  const auto find = [&](std::string_view path) {
    const auto [object, key] = Place(root, path, /*make=*/false);
    return object == nullptr ? nullptr : Find(*object, key);
  };
  std::vector<OtherSpelling> spellings;
  for (const Displaced& displaced : kDisplaced) {
    const JsonMember* member = displaced.is_spelling ? find(displaced.key) : nullptr;
    const bool set = member != nullptr && member->line == kSetByWith && find(displaced.by) == nullptr;
    if (set) spellings.push_back({displaced.by, displaced.key});
  }
  return spellings;
}

std::string WithKeys(std::string_view text, const std::string& name, std::span<const std::string> assignments) {
  Diagnostics diagnostics;
  std::optional<JsonValue> root = ReadJson(text, name, diagnostics);
  if (!root || root->kind != Kind::kObject) return std::string(text);  // what is wrong with it is the parser's to say
  SetKeys(*root, assignments);
  std::string out;
  Write(*root, 0, out);
  return out + "\n";
}

std::string WithLayoutKeys(std::string_view text, const std::string& name, const Config& from, const Config& to) {
  Diagnostics diagnostics;
  std::optional<JsonValue> root = ReadJson(text, name, diagnostics);
  TRIREME_CHECK(root && root->kind == Kind::kObject, "the text was parsed before");
  SetBatch(*root, to);
  SetSizes(*root, to);
  SetZero(*root, from, to);
  SetOwn(*root, to);
  std::string out;
  Write(*root, 0, out);
  return out + "\n";
}

}  // namespace trireme
