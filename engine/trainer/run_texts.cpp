#include "engine/trainer/run_texts.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "parsers/model_text.h"

namespace trireme {
namespace {

nlohmann::json Parse(std::string_view text, const std::string& where) {
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    throw Error(ErrorCode::kCheckpoint, "TRN011", "is no JSON object", where,
                "the checkpoint is damaged: run `trireme inspect --verify` on it");
  }
  return json;
}

template <typename T>
T Member(const nlohmann::json& json, const char* name, const std::string& where) {
  const auto it = json.find(name);
  const bool good = it != json.end() && (std::is_same_v<T, bool>          ? it->is_boolean()
                                         : std::is_floating_point_v<T>    ? it->is_number()
                                         : std::is_same_v<T, std::string> ? it->is_string()
                                                                          : it->is_number_integer());
  if (!good) {
    throw Error(ErrorCode::kCheckpoint, "TRN011", std::string("member \"") + name + "\" is missing or of a wrong type",
                where, "the checkpoint is damaged or of a newer version: run `trireme inspect --verify` on it");
  }
  return it->get<T>();
}

}  // namespace

std::string CountersToJson(const RunCounters& c) {
  nlohmann::json json = {{"steps", c.steps},
                         {"applied_steps", c.applied_steps},
                         {"skipped_steps", c.skipped_steps},
                         {"consumed_samples", c.consumed_samples},
                         {"loss_scale", c.loss_scale}};
  if (c.scaler) {
    json["loss_scaler"] = {{"growth_tracker", c.scaler->growth_tracker}, {"hysteresis", c.scaler->hysteresis}};
  }
  return json.dump();
}

RunCounters CountersFromJson(std::string_view text, const std::string& where) {
  const nlohmann::json json = Parse(text, where);
  RunCounters c;
  c.steps = Member<int64_t>(json, "steps", where);
  c.applied_steps = Member<int64_t>(json, "applied_steps", where);
  c.skipped_steps = Member<int64_t>(json, "skipped_steps", where);
  c.consumed_samples = Member<int64_t>(json, "consumed_samples", where);
  c.loss_scale = Member<double>(json, "loss_scale", where);
  if (const auto scaler = json.find("loss_scaler"); scaler != json.end()) {
    c.scaler = {.growth_tracker = Member<double>(*scaler, "growth_tracker", where),
                .hysteresis = Member<double>(*scaler, "hysteresis", where)};
  }
  return c;
}

void RequireRunState(const std::string& format, const std::string& where) {
  if (format == "trireme") return;
  throw Error(ErrorCode::kCheckpoint, "TRN013", "holds weights alone (" + format + "), not the state of a run", where,
              "name a folder that `trireme train --save` wrote; training starts from such weights with --init-from");
}

void RequireSameModel(const ModelSpec& saved, const ModelSpec& now, const std::string& where) {
  std::string differences;
  const auto compare = [&](const char* name, const auto& was, const auto& is) {
    if (was != is) differences += fmt::format("{}{} was {} and is {}", differences.empty() ? "" : ", ", name, was, is);
  };
  compare("model_type", ModelType(saved.family), ModelType(now.family));
  compare("num_layers", saved.num_layers, now.num_layers);
  compare("hidden_size", saved.hidden_size, now.hidden_size);
  compare("num_attention_heads", saved.num_attention_heads, now.num_attention_heads);
  compare("num_key_value_heads", saved.num_key_value_heads, now.num_key_value_heads);
  compare("head_dim", saved.HeadSize(), now.HeadSize());
  compare("intermediate_size", saved.intermediate_size, now.intermediate_size);
  compare("vocab_size", saved.vocab_size, now.vocab_size);
  compare("max_position_embeddings", saved.max_position_embeddings, now.max_position_embeddings);
  compare("layer_norm_epsilon", saved.layer_norm_epsilon, now.layer_norm_epsilon);
  compare("tie_word_embeddings", saved.tie_word_embeddings, now.tie_word_embeddings);
  compare("own_modules", saved.own_modules, now.own_modules);
  compare("activation", NameOf(saved.activation), NameOf(now.activation));
  compare("qkv_bias", saved.qkv_bias, now.qkv_bias);
  compare("attention_out_bias", saved.attention_out_bias, now.attention_out_bias);
  compare("mlp_bias", saved.mlp_bias, now.mlp_bias);
  compare("parallel_residual", saved.parallel_residual, now.parallel_residual);
  compare("rope", RopeText(saved), RopeText(now));
  if (differences.empty()) return;
  throw Error(ErrorCode::kCheckpoint, "TRN012", "the checkpoint's model is another one: " + differences, where,
              "give the flags of the run that saved it, or train a new model without --load");
}

std::string OptimizerToJson(const OptimizerConfig& o) {
  nlohmann::json json{{"type", Name(o.type)},
                      {"lr", o.lr},
                      {"betas", o.betas},
                      {"eps", o.eps},
                      {"weight_decay", o.weight_decay},
                      {"bias_correction", o.bias_correction},
                      {"decoupled_weight_decay", o.decoupled_weight_decay},
                      {"momentum", o.momentum},
                      {"dampening", o.dampening},
                      {"nesterov", o.nesterov}};
  if (o.type == OptimizerType::kAdagrad) json["lr_decay"] = o.lr_decay;
  if (o.type == OptimizerType::kLamb) {
    json["max_coeff"] = o.max_coeff;
    json["min_coeff"] = o.min_coeff;
    json["eps_inside_sqrt"] = o.eps_inside_sqrt;
  }
  return json.dump();
}

}  // namespace trireme
