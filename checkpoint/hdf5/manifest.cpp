#include "checkpoint/hdf5/manifest.h"

#include <fmt/core.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>

#include "checkpoint/hdf5/layout.h"
#include "checkpoint/json/strict_json.h"
#include "engine/base/error.h"

namespace trireme::hdf5 {
namespace {

using nlohmann::json;

std::string Checksum(json body) {
  body.erase("checksum");
  const std::string text = body.dump();
  return checkpoint::Hex(checkpoint::Xxh3(std::as_bytes(std::span(text))));
}

[[noreturn]] void Damaged(const std::string& where, const std::string& what) {
  throw Error(ErrorCode::kCheckpoint, "CKP003", "the manifest is damaged: " + what, where,
              "resume from another checkpoint");
}

bool IsPlainPath(const std::string& text) {
  const std::filesystem::path path(text);
  if (text.empty() || path.is_absolute() || text.size() > 63) return false;
  for (const auto& part : path) {
    if (part == ".." || part == "." || part.empty()) return false;
  }
  return true;
}

json TopologyJson(const checkpoint::Topology& t) {
  return {{"cp", t.cp},
          {"dp", t.dp},
          {"ep", t.ep},
          {"pp", t.pp},
          {"tp", t.tp},
          {"world", t.world},
          {"zero_stage", t.zero_stage}};
}

Manifest Fill(const json& in, const std::string& where) {
  Manifest out;
  out.version_major = in.at("version").at(0).get<int64_t>();
  out.version_minor = in.at("version").at(1).get<int64_t>();
  if (!checkpoint::ParseHex(in.at("uuid").get<std::string>(), out.uuid)) Damaged(where, "the uuid is not hexadecimal");
  out.tag = in.at("tag").get<std::string>();
  out.created = in.at("created").get<std::string>();
  out.software = in.at("software").get<std::string>();
  out.source = in.at("source").get<std::string>();
  out.step = in.at("step").get<int64_t>();
  out.world = in.at("world").get<int>();
  const json& t = in.at("topology");
  out.topology = {.world = t.at("world").get<int>(),
                  .dp = t.at("dp").get<int>(),
                  .tp = t.at("tp").get<int>(),
                  .pp = t.at("pp").get<int>(),
                  .ep = t.at("ep").get<int>(),
                  .cp = t.at("cp").get<int>(),
                  .zero_stage = t.at("zero_stage").get<int>(),
                  .ranks = {}};
  out.index = in.at("index").get<std::string>();
  std::set<std::string> paths;
  for (const json& entry : in.at("files")) {
    ManifestFile file{.path = entry.at("path").get<std::string>(),
                      .bytes = entry.at("bytes").get<int64_t>(),
                      .hash = {},
                      .rank = entry.contains("rank") ? entry.at("rank").get<int>() : -1};
    if (!IsPlainPath(file.path)) Damaged(where, "\"" + file.path + "\" is no path inside the folder");
    if (!paths.insert(file.path).second) Damaged(where, file.path + " is listed twice");
    if (file.bytes < 0) Damaged(where, fmt::format("{} has {} bytes", file.path, file.bytes));
    if (!checkpoint::ParseHex(entry.at("xxh3_128").get<std::string>(), file.hash))
      Damaged(where, "the hash of " + file.path);
    out.files.push_back(std::move(file));
  }
  if (!paths.contains(out.index)) Damaged(where, "the index \"" + out.index + "\" is not among the files");
  return out;
}

}  // namespace

std::string Manifest::ToText() const {
  json out{{"format", "trireme"},
           {"version", {version_major, version_minor}},
           {"uuid", checkpoint::Hex(uuid)},
           {"tag", tag},
           {"created", created},
           {"software", software},
           {"source", source},
           {"step", step},
           {"world", world},
           {"topology", TopologyJson(topology)},
           {"index", index},
           {"files", json::array()}};
  for (const ManifestFile& file : files) {
    json entry{{"path", file.path}, {"bytes", file.bytes}, {"xxh3_128", checkpoint::Hex(file.hash)}};
    if (file.rank >= 0) entry["rank"] = file.rank;
    out["files"].push_back(std::move(entry));
  }
  out["checksum"] = Checksum(out);
  return out.dump(1) + "\n";
}

Manifest ParseManifest(std::string_view text, const std::string& where) {
  json in;
  std::string problem;
  if (!checkpoint::ParseStrictJson(text, in, problem)) Damaged(where, problem);
  try {
    if (!in.is_object() || in.at("format") != "trireme") Damaged(where, "\"format\" is not \"trireme\"");
    const int64_t version = in.at("version").at(0).get<int64_t>();
    if (version > kVersionMajor) {
      throw Error(ErrorCode::kCheckpoint, "CKP007",
                  fmt::format("the format is version {}, this program reads up to {}", version, kVersionMajor), where,
                  "use a newer version of the program");
    }
    const std::string found = in.at("checksum").get<std::string>(), expected = Checksum(in);
    if (found != expected) Damaged(where, fmt::format("its checksum is {}, its text gives {}", found, expected));
    if (in.dump(1) + "\n" != text) Damaged(where, "its text is not in the form in which it was written");
    return Fill(in, where);
  } catch (const json::exception& error) {
    Damaged(where, error.what());
  }
}

}  // namespace trireme::hdf5
