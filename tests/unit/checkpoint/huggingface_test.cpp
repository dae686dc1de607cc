#include "checkpoint/huggingface.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "checkpoint/convert.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "tests/unit/checkpoint/saved.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using safetensors::TensorToWrite;
using testing::IdOf;
using testing::TemporaryRoot;

ModelSpec Model(Family family) {
  ModelSpec model;
  model.family = family;
  model.num_layers = 2;
  model.hidden_size = 8;
  model.num_attention_heads = model.num_key_value_heads = 2;
  model.intermediate_size = 12;
  model.vocab_size = 5;
  model.max_position_embeddings = 6;
  if (family == Family::kLlama) {
    model.num_key_value_heads = 1;
    model.qkv_bias = model.attention_out_bias = model.mlp_bias = model.tie_word_embeddings = false;
    model.activation = Activation::kSilu;
  }
  if (family == Family::kGptNeoX) model.tie_word_embeddings = false;
  return model;
}

// A model's tensors as a file has them: `rename` changes or drops ("") each.
using Rename = std::function<std::string(const std::string&)>;
struct Folder {
  std::map<std::string, std::vector<float>> values;
  std::vector<TensorToWrite> tensors;
  void Add(const std::string& name, std::vector<int64_t> shape, float first) {
    std::vector<float>& data = values[name];
    data.resize(static_cast<size_t>(Numel(shape)));
    for (size_t i = 0; i < data.size(); ++i) data[i] = first + static_cast<float>(i) / 64;
    tensors.push_back(safetensors::Held(name, DType::kFloat32, std::move(shape), std::as_bytes(std::span(data))));
  }
};
Folder FilesOf(const ModelSpec& model, const Rename& rename) {
  Folder files;
  float first = 0;
  for (const ExpectedTensor& tensor : TensorsOf(model)) {
    const std::string name = rename(tensor.name);
    if (!name.empty()) files.Add(name, tensor.shape, first);
    first += 1;
  }
  return files;
}
std::unique_ptr<CheckpointReader> Read(const TemporaryRoot& root, const Folder& files, const ModelSpec& model) {
  safetensors::WriteFolder(root.path(), files.tensors);
  return OpenHuggingFace(root.path(), model);
}
std::string Same(const std::string& name) { return name; }

TEST(HuggingFace, NamesWithAndWithoutTheModelsFirstWord) {
  for (const Family family : {Family::kGpt2, Family::kLlama, Family::kGptNeoX}) {
    const ModelSpec model = Model(family);
    const Rename shorter = [](const std::string& name) {
      const bool head = name == "lm_head.weight" || name == "embed_out.weight";
      return head ? name : name.substr(name.find('.') + 1);
    };
    for (const Rename& rename : {Rename(Same), shorter}) {
      const TemporaryRoot root;
      const auto reader = Read(root, FilesOf(model, rename), model);
      EXPECT_EQ(TensorsOf(model).size(), reader->tensors().size());
      for (const ExpectedTensor& tensor : TensorsOf(model)) EXPECT_EQ(tensor.shape, reader->Require(tensor.name).shape);
    }
  }
}

TEST(HuggingFace, EitherNameOfTheHead) {
  for (const Family family : {Family::kLlama, Family::kGptNeoX}) {
    const ModelSpec model = Model(family);
    const std::string head = family == Family::kLlama ? "lm_head.weight" : "embed_out.weight",
                      other = family == Family::kLlama ? "embed_out.weight" : "lm_head.weight";
    const TemporaryRoot root;
    const auto reader =
        Read(root, FilesOf(model, [&](const std::string& name) { return name == head ? other : name; }), model);
    EXPECT_NE(nullptr, reader->Find(head));
  }
}

TEST(HuggingFace, BuffersOfOlderFilesAreLeftOut) {
  const ModelSpec gpt2 = Model(Family::kGpt2), neox = Model(Family::kGptNeoX), llama = Model(Family::kLlama);
  Folder files = FilesOf(gpt2, Same);
  files.Add("transformer.h.0.attn.bias", {1, 1, 6, 6}, 0);
  files.Add("h.1.attn.masked_bias", {}, 0);
  EXPECT_EQ(TensorsOf(gpt2).size(), Read(TemporaryRoot(), files, gpt2)->tensors().size());
  files = FilesOf(neox, Same);
  files.Add("gpt_neox.layers.0.attention.bias", {1, 1, 6, 6}, 0);
  files.Add("gpt_neox.layers.0.attention.masked_bias", {}, 0);
  files.Add("gpt_neox.layers.0.attention.rotary_emb.inv_freq", {2}, 0);
  EXPECT_EQ(TensorsOf(neox).size(), Read(TemporaryRoot(), files, neox)->tensors().size());
  files = FilesOf(llama, Same);
  files.Add("model.layers.0.self_attn.rotary_emb.inv_freq", {2}, 0);
  EXPECT_EQ(TensorsOf(llama).size(), Read(TemporaryRoot(), files, llama)->tensors().size());
}

TEST(HuggingFace, EveryDifferenceInOneError) {
  const ModelSpec model = Model(Family::kLlama);
  Folder files = FilesOf(model, [](const std::string& name) {
    return name == "model.norm.weight" || name == "lm_head.weight" ? "" : name;
  });
  files.Add("model.norm.weight", {9}, 0);
  files.Add("model.layers.7.mlp.up_proj.weight", {12, 8}, 0);
  try {
    Read(TemporaryRoot(), files, model);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ("CKP019", error.id());
    for (const char* part : {"3 differences", "missing: lm_head.weight [5, 8]", "wrong shape: model.norm.weight is [9]",
                             "the model needs [8]", "unexpected: model.layers.7.mlp.up_proj.weight [12, 8]"}) {
      EXPECT_NE(std::string::npos, error.message().find(part)) << part << " in " << error.message();
    }
  }
  files = FilesOf(model, Same);
  files.Add("norm.weight", {8}, 0);
  EXPECT_EQ("CKP019", IdOf([&] { Read(TemporaryRoot(), files, model); })) << "two tensors for one name";
}

TEST(HuggingFace, CKP_09_TiedHead) {
  ModelSpec model = Model(Family::kGpt2);
  const Folder without = FilesOf(model, Same);
  const auto with_head = [model](float first) {
    Folder files = FilesOf(model, Same);
    files.Add("lm_head.weight", {5, 8}, first);
    return files;
  };
  const auto tied = Read(TemporaryRoot(), without, model);
  EXPECT_EQ("transformer.wte.weight", tied->Require("lm_head.weight").name);
  EXPECT_EQ(TensorsOf(model).size(), Read(TemporaryRoot(), with_head(0), model)->tensors().size()) << "equal: an alias";
  EXPECT_EQ("CKP020", IdOf([&] { Read(TemporaryRoot(), with_head(1), model); }));
  model.tie_word_embeddings = false;
  const auto own = Read(TemporaryRoot(), with_head(1), model);
  EXPECT_EQ("lm_head.weight", own->Require("lm_head.weight").name);
  EXPECT_EQ("CKP019", IdOf([&] { Read(TemporaryRoot(), without, model); }));
}

TEST(HuggingFace, WritesWhatItReads) {
  const ModelSpec model = Model(Family::kGptNeoX);
  const TemporaryRoot in, out;
  const fs::path folder = out.path() / "made" / "model";
  Folder files = FilesOf(model, Same);
  const auto reader = Read(in, files, model);
  const fs::path tokenizer = in.path() / "tokenizer.json";
  WriteFileDurably(tokenizer, "{}", ErrorCode::kCheckpoint);
  ASSERT_EQ(1u, TokenizerFiles(in.path()).size());
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    fs::remove_all(folder);
    HuggingFaceWriter writer(folder.string() + "/", model, dtype, 1000);
    CopyTensors(*reader, model, dtype, writer);
    EXPECT_FALSE(fs::exists(folder)) << "it appears whole";
    writer.Commit("{\"a\": 1}\n", TokenizerFiles(in.path()));
    EXPECT_EQ("{\"a\": 1}\n", ReadFile(folder / "config.json", ErrorCode::kCheckpoint));
    EXPECT_TRUE(fs::exists(folder / "tokenizer.json"));
    EXPECT_TRUE(fs::exists(folder / "model.safetensors.index.json"));
    const auto again = OpenHuggingFace(folder, model);
    for (const ExpectedTensor& tensor : TensorsOf(model)) {
      const std::vector<float>& want = files.values[tensor.name];
      EXPECT_EQ(dtype, again->Require(tensor.name).dtype);
      std::vector<std::byte> raw(want.size() * static_cast<size_t>(SizeOf(dtype))), expected(raw.size());
      again->ReadFlat(tensor.name, "model", 0, static_cast<int64_t>(want.size()), raw);
      ConvertElements(DType::kFloat32, dtype, std::as_bytes(std::span(want)), expected);
      EXPECT_EQ(expected, raw) << tensor.name;
    }
  }
  size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder.parent_path())) ++entries;
  EXPECT_EQ(1u, entries) << "no temporary folder stays";
}

TEST(HuggingFace, NoModelIsWrittenOverAnother) {
  const ModelSpec model = Model(Family::kGpt2);
  const TemporaryRoot root;
  const fs::path folder = root.path() / "model";
  fs::create_directories(folder);
  EXPECT_EQ("", IdOf([&] { RequireNewFolder(folder); })) << "an empty one is taken";
  { const HuggingFaceWriter abandoned(folder, model, DType::kFloat32); }
  EXPECT_TRUE(fs::is_empty(folder));
  WriteFileDurably(folder / "notes", "mine", ErrorCode::kCheckpoint);
  EXPECT_EQ("CKP024", IdOf([&] { RequireNewFolder(folder); }));
  EXPECT_EQ("CKP024", IdOf([&] { HuggingFaceWriter(folder, model, DType::kFloat32); }));
  EXPECT_EQ("CKP024", IdOf([&] { RequireNewFolder(folder / "notes"); }));
  EXPECT_EQ("mine", ReadFile(folder / "notes", ErrorCode::kCheckpoint));
}

}  // namespace
}  // namespace trireme::checkpoint
