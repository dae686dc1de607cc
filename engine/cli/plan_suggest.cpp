#include "engine/cli/plan_suggest.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/shell_text.h"
#include "engine/base/strings.h"
#include "engine/cli/plan_config.h"
#include "engine/cli/plan_text.h"
#include "parsers/layout_text.h"

namespace trireme::cli {
namespace {

constexpr size_t kChangesShown = 2, kLayoutsShown = 5;

struct Asked {
  const PlanOptions& options;
  const Planned& planned;
  Arguments arguments;
};

Job JobOf(const Planned& planned, const Config& config) { return {config, planned.model, planned.inputs}; }

// Flags that say what a suggested config says: they would contradict it.
constexpr std::string_view kLayoutFlags[] = {"micro-batch-size",
                                             "gradient-accumulation-steps",
                                             "tensor-model-parallel-size",
                                             "pipeline-model-parallel-size",
                                             "recompute-granularity",
                                             "recompute-method",
                                             "recompute-num-layers",
                                             "suggest",
                                             "with"};

std::string NameOf(std::string word) {
  if (!word.starts_with("--")) return "";
  word = word.substr(2, word.find('=') - 2);
  std::ranges::replace(word, '_', '-');
  return word;
}

// The command again: with another config, and then without the flags of a layout; never with what --with set.
std::string CommandFor(const Asked& asked, const std::string& config, bool without_layout) {
  std::string text = "trireme plan " + ShellWord(config);
  Arguments words = asked.arguments;
  for (size_t i = 0; i < words.size();) {
    const std::string name = NameOf(words[i]);
    size_t end = i + 1;
    if (words[i].find('=') == std::string::npos) {
      while (end < words.size() && !words[end].starts_with("--")) ++end;
    }
    const bool layout = std::ranges::find(kLayoutFlags, name) != std::end(kLayoutFlags) || name == "sequence-parallel";
    const bool drops = name == "suggest" || name == "with" || (without_layout && layout);
    for (size_t word = i; word < end; ++word) {
      const bool names_config =
          words[word] == asked.options.deepspeed_config || name == "deepspeed-config" || name == "deepscale-config";
      if (!drops && !names_config) text += " " + ShellWord(words[word]);
    }
    i = end;
  }
  return text;
}

// The command that plans a change: one --with, of what it had and what the change sets over it.
std::string CommandFor(const Asked& asked, const Change& change) {
  Change merged;
  for (const std::string& assignment : asked.options.with) {
    const size_t equals = assignment.find('=');
    const std::string key = assignment.substr(0, equals);
    const bool replaced =
        std::ranges::find(change.keys, key, [](const auto& pair) { return pair.first; }) != change.keys.end();
    if (!replaced) merged.keys.emplace_back(key, assignment.substr(equals + 1));
  }
  merged.keys.insert(merged.keys.end(), change.keys.begin(), change.keys.end());
  return CommandFor(asked, asked.options.deepspeed_config, /*without_layout=*/false) + " " + WithFlags(merged);
}

std::vector<Change> ChangesThatFit(const Asked& asked) {
  const Planned& planned = asked.planned;
  const FillOptions fill = FillFor(planned, /*share=*/1);  // as the verdict has it
  return CheapestChanges(JobOf(planned, planned.config), fill, planned.ranks_per_node,
                         planned.cluster ? &*planned.cluster : nullptr, kChangesShown);
}

// Looks for layouts, and writes the first.
void SuggestInto(const Asked& asked, Proposals& proposals) {
  const Planned& planned = asked.planned;
  const PlanOptions& options = asked.options;
  if (planned.room.device_bytes <= 0) {
    throw Error(ErrorCode::kUsage, "USE003",
                fmt::format("the memory of a device of {} is not known", planned.cluster->name), "--suggest",
                "give it with --gpu-memory-gib");
  }
  const auto text_of = [&, text = ConfigText(options)](const Config& config) {
    return WithLayoutKeys(text, options.deepspeed_config, planned.written, config);
  };
  const auto loads = [&, flags = WithoutLayout(options.fill)](const Config& config) {
    return !ParseConfigText(text_of(config), options.suggest, flags, planned.inputs.world_size,
                            planned.model.hidden_size)
                .diagnostics.HasErrors();
  };
  AdviceRequest request{JobOf(planned, planned.written), *planned.cluster, planned.ranks_per_node, FillFor(planned),
                        kLayoutsShown};
  request.allowed = loads;
  proposals.suggested = Suggest(request);
  if (!proposals.found()) return;
  const Suggestion& winner = proposals.suggested->best.front();
  proposals.reasons = Reasons(request, *proposals.suggested, winner);
  WriteFileDurably(options.suggest, text_of(winner.config), ErrorCode::kConfig);
  proposals.check_suggested = CommandFor(asked, options.suggest, /*without_layout=*/true);
}

void PrintChanges(const Proposals& proposals) {
  if (proposals.changes->empty()) {
    Line("", "no change of the layout makes it fit: use more ranks, or let --suggest look for another grid of them");
  }
  for (size_t i = 0; i < proposals.changes->size(); ++i) {
    const Change& change = (*proposals.changes)[i];
    std::string text = fmt::format("would fit: {}: {}", change.what, FormatBytes(change.needed_bytes));
    if (change.step_ratio) text += fmt::format(", {:.2f} x the step time", *change.step_ratio);
    Line("", text);
    Line("", "  check: " + proposals.check_changes[i]);
  }
}

void PrintSuggested(const PlanOptions& options, const Planned& planned, const Proposals& proposals) {
  const std::vector<Suggestion>& best = proposals.suggested->best;
  if (best.empty()) {
    std::error_code none;
    return Line("suggest",
                fmt::format("none of {} fits: use more ranks, or a smaller model{}",
                            Counted(proposals.suggested->legal, "layout"),
                            std::filesystem::exists(options.suggest, none)
                                ? "; " + options.suggest + " is an older file, left as it was: it is no answer"
                                : ""));
  }
  for (size_t i = 0; i < best.size(); ++i) {
    const Suggestion& s = best[i];
    Line(i == 0 ? "suggest" : "",
         fmt::format("{}. {}: {:.4g} s a step, {} tokens/s, {}", i + 1, Describe(s.layout, s.plan), s.step_seconds(),
                     FormatCount(static_cast<int64_t>(s.prediction.tokens_per_second)), FormatBytes(s.needed_bytes)));
  }
  static constexpr std::string_view kTitles[] = {"memory", "topology", "communication", "throughput"};
  for (size_t i = 0; i < proposals.reasons.size(); ++i) {
    Line("", fmt::format("   {:<14} {}", kTitles[i], proposals.reasons[i]));
  }
  if (const int64_t left = proposals.suggested->not_looked_at; left > 0) {
    Line("", fmt::format("   {} of {} layouts, most of them long pipelines, were not looked at: the search is bounded",
                         left, proposals.suggested->legal));
  }
  if (planned.prediction && planned.refused.empty()) {
    Line("", fmt::format("   this config's layout: {:.2f} x the first one's step time",
                         planned.prediction->step_seconds / best.front().step_seconds()));
  }
  Line("", fmt::format("written to {}; check: {}", options.suggest, proposals.check_suggested));
}

}  // namespace

Proposals Propose(const PlanOptions& options, const Planned& planned, bool fits, Arguments arguments) {
  const Asked asked{options, planned, arguments};
  Proposals proposals;
  if (!fits) {
    proposals.changes = ChangesThatFit(asked);
    for (const Change& change : *proposals.changes) proposals.check_changes.push_back(CommandFor(asked, change));
  }
  if (!options.suggest.empty()) SuggestInto(asked, proposals);
  return proposals;
}

void PrintProposals(const PlanOptions& options, const Planned& planned, const Proposals& proposals) {
  if (proposals.changes) PrintChanges(proposals);
  if (proposals.suggested) PrintSuggested(options, planned, proposals);
}

}  // namespace trireme::cli
