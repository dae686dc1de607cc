#include "checkpoint/find.h"

#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "checkpoint/hdf5/layout.h"
#include "checkpoint/hdf5/native_reader.h"
#include "checkpoint/verify.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/strings.h"

namespace trireme::checkpoint {
namespace {

struct Candidate {
  FoundCheckpoint checkpoint;
  std::string created, problem;  // problem: why it cannot be used
};

struct Survey {
  std::vector<Candidate> candidates;  // newest first; the manifest could be read or says why not
  std::vector<std::string> incomplete;
  std::optional<std::string> latest;  // text of the file
};

Survey Look(const std::filesystem::path& root) {
  Survey survey;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root, error)) {
    if (!entry.is_directory()) continue;
    const std::string name = entry.path().filename().string();
    const bool complete = std::filesystem::exists(entry.path() / hdf5::kManifestName);
    if (name.find(".tmp.") != name.npos || (!complete && std::filesystem::exists(entry.path() / "data"))) {
      survey.incomplete.push_back(name);
      continue;
    }
    if (!complete) continue;  // not one of ours
    Candidate& candidate = survey.candidates.emplace_back();
    candidate.checkpoint = {.directory = entry.path(), .tag = name, .step = 0};
    try {
      const hdf5::Manifest manifest = hdf5::LoadManifest(entry.path());
      candidate.checkpoint.step = manifest.step;
      candidate.checkpoint.tag = manifest.tag;  // also of a folder that a crash left as <tag>.old.<hex>
      candidate.created = manifest.created;
    } catch (const Error& failure) {
      candidate.problem = failure.what();
    }
  }
  std::sort(survey.incomplete.begin(), survey.incomplete.end());
  std::sort(survey.candidates.begin(), survey.candidates.end(), [](const Candidate& a, const Candidate& b) {
    if (a.checkpoint.step != b.checkpoint.step) return a.checkpoint.step > b.checkpoint.step;
    return a.created > b.created;
  });
  if (std::filesystem::exists(root / hdf5::kLatestName)) {
    survey.latest = std::string(Trim(ReadFile(root / hdf5::kLatestName, ErrorCode::kCheckpoint)));
  }
  return survey;
}

bool Usable(Candidate& candidate) {
  if (!candidate.problem.empty()) return false;
  const VerifyReport report = VerifyCheckpoint(candidate.checkpoint.directory, VerifyLevel::kQuick);
  if (!report.ok()) candidate.problem = report.problems.front();
  return report.ok();
}

std::string Listing(const Survey& survey) {
  std::string text;
  for (const Candidate& candidate : survey.candidates) {
    text +=
        fmt::format("\n  {} (step {})", candidate.checkpoint.directory.filename().string(), candidate.checkpoint.step);
    if (!candidate.problem.empty()) text += ": " + candidate.problem;
  }
  for (const std::string& name : survey.incomplete) text += "\n  " + name + ": not complete";
  return text.empty() ? " none" : text;
}

}  // namespace

FindResult FindLatestComplete(const std::filesystem::path& root) {
  FindResult result;
  Survey survey = Look(root);
  for (const std::string& name : survey.incomplete) {
    result.warnings.push_back(fmt::format("{}: ignored, as the save was not completed", (root / name).string()));
  }
  std::string why;
  if (survey.latest) {
    why = fmt::format("{} names \"{}\", which is not there or not complete", (root / hdf5::kLatestName).string(),
                      *survey.latest);
    for (Candidate& candidate : survey.candidates) {
      if (candidate.checkpoint.directory.filename() != *survey.latest) continue;
      if (!Usable(candidate)) {
        why = fmt::format("\"{}\", named by {}, cannot be used: {}", *survey.latest,
                          (root / hdf5::kLatestName).string(), candidate.problem);
        continue;
      }
      const FoundCheckpoint& newest = survey.candidates.front().checkpoint;
      if (newest.step > candidate.checkpoint.step) {
        result.warnings.push_back(
            fmt::format("a newer complete checkpoint exists: {} (step {}); `latest` names step {}",
                        newest.directory.string(), newest.step, candidate.checkpoint.step));
      }
      result.found = candidate.checkpoint;
      return result;
    }
  } else if (!survey.candidates.empty()) {
    why = fmt::format("{} has no file `latest`", root.string());
  }
  for (Candidate& candidate : survey.candidates) {
    if (!Usable(candidate)) continue;
    result.warnings.push_back(fmt::format("{}; resuming from {} (step {})", why,
                                          candidate.checkpoint.directory.string(), candidate.checkpoint.step));
    result.found = candidate.checkpoint;
    return result;
  }
  if (survey.latest || !survey.candidates.empty()) {
    throw Error(ErrorCode::kCheckpoint, "CKP002", "no checkpoint here can be used; found:" + Listing(survey),
                root.string(), "restore one of them, or choose another folder to start anew");
  }
  return result;
}

FindResult RequireCheckpoint(const std::filesystem::path& root, const std::string& tag) {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::kCheckpoint, "CKP002", what + "; checkpoints found:" + Listing(Look(root)), root.string(),
                "check the folder and the tag to load from");
  };
  if (!std::filesystem::is_directory(root)) fail("there is no such folder");
  if (tag.empty()) {
    FindResult result = FindLatestComplete(root);
    if (!result.found) fail("there is no complete checkpoint");
    return result;
  }
  for (Candidate& candidate : Look(root).candidates) {
    if (candidate.checkpoint.directory.filename() != tag) continue;
    if (!Usable(candidate)) fail(fmt::format("the checkpoint \"{}\" cannot be used: {}", tag, candidate.problem));
    return {.found = candidate.checkpoint, .warnings = {}};
  }
  fail(fmt::format("there is no complete checkpoint \"{}\"", tag));
  return {};
}

}  // namespace trireme::checkpoint
