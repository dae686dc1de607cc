// The prose about each key: one row a key, in a table beside those of its section (docs_*.cpp). What the parser can say
// itself (type, range, default, flags, what "auto" does) is not repeated here.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace trireme {

// What the program does with a key that says something else than its default.
enum class KeyClass : uint8_t {
  kAct,     // does what it says
  kHonour,  // reaches what it asks for by other means
  kNote,    // accepts it and says once that it has no effect
  kRefuse,  // an error: silence would change the result
};
std::string_view Name(KeyClass key_class);     // "act", "honour", "note", "refuse"
std::string_view Meaning(KeyClass key_class);  // a clause

struct KeyDoc {
  std::string_view key;          // "zero_optimization.stage"
  std::string_view meaning;      // one or two sentences
  std::string_view memory = "";  // effects; "" where there is none
  std::string_view speed = "";
  std::string_view result = "";         // on what is trained
  std::string_view values = "";         // where type and range do not say it: choices of a text, unit of a number
  std::string_view by_default = "";     // where absence means no single value
  std::string_view deepspeed = "";      // where DeepSpeed 0.19 has another default or another behaviour, and why
  std::string_view drift = "";          // how DeepSpeed's default changed, for the table that a run prints at its start
  KeyClass key_class = KeyClass::kAct;  // of keys that the parser reads; for others it says the class itself
};

// Another name of a key, or of a section with all its members.
struct KeyAlias {
  std::string_view name, key;
  std::string_view what;  // "short name", "old name", "DeepSpeed's name"
};

// All rows, section by section, and all aliases.
std::vector<const KeyDoc*> KeyDocs();
std::span<const KeyAlias> KeyAliases();
const KeyAlias* FindAlias(std::string_view name);  // exact

// The tables (docs_*.cpp).
std::span<const KeyDoc> BatchDocs();
std::span<const KeyDoc> PrecisionDocs();
std::span<const KeyDoc> OptimizerDocs();
std::span<const KeyDoc> SchedulerDocs();
std::span<const KeyDoc> ZeroDocs();
std::span<const KeyDoc> ParallelDocs();
std::span<const KeyDoc> ActivationDocs();
std::span<const KeyDoc> DataDocs();
std::span<const KeyDoc> CheckpointDocs();
std::span<const KeyDoc> ReportDocs();
std::span<const KeyDoc> OtherDocs();
std::span<const KeyDoc> TriremeDocs();

}  // namespace trireme
