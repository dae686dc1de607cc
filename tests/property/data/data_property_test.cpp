// Random sizes; a failure prints its seed.
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/data/bpe/bpe_tokenizer.h"
#include "engine/data/build.h"
#include "engine/data/gpt_dataset.h"
#include "engine/data/loader.h"
#include "engine/data/tokenizer.h"
#include "tests/unit/data/dataset_files.h"

namespace trireme::data {
namespace {

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int64_t Between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine_); }
  std::vector<int64_t> Lengths() {
    std::vector<int64_t> lengths(static_cast<size_t>(Between(1, 30)));
    const int64_t longest = Between(1, 40);
    for (int64_t& length : lengths) length = Between(0, 3) == 0 ? 0 : Between(1, longest);
    lengths[static_cast<size_t>(Between(0, static_cast<int64_t>(lengths.size()) - 1))] = longest;
    return lengths;
  }

 private:
  std::mt19937 engine_;
};

// Megatron-LM's loop, word by word, as the slow reference of the parallel one.
std::vector<std::pair<int64_t, int64_t>> Boundaries(const GptDataset& samples) {
  const auto documents = samples.document_index();
  std::vector<std::pair<int64_t, int64_t>> out = {{0, 0}};
  int64_t k = 0, offset = 0;
  for (int64_t i = 0; i < samples.num_samples(); ++i) {
    for (int64_t rest = samples.seq_length() + 1; rest != 0;) {
      const int64_t length = samples.data().Length(documents[static_cast<size_t>(k)]) - offset;
      rest -= length;
      if (rest <= 0) {
        offset += rest + length - 1;
        rest = 0;
      } else {
        ++k;
        offset = 0;
      }
    }
    out.emplace_back(k, offset);
  }
  return out;
}

// Every sample once; the samples' inputs, put in stream order, are the stream; each token as often as there are epochs,
// but for the tail.
TEST(GptDatasetProperty, EveryTokenOnceAnEpoch) {
  const TestFolder folder;
  for (uint32_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const auto data = CountingDataset(folder / "a", random.Lengths());
    const GptDatasetOptions options{.seq_length = random.Between(1, 20),
                                    .num_samples = random.Between(1, 60),
                                    .seed = seed,
                                    .threads = static_cast<int>(random.Between(1, 3))};
    const GptDataset samples(data, {0, data->num_sequences()}, options);
    ASSERT_GE(samples.num_samples(), options.num_samples);

    std::vector<uint32_t> order(samples.shuffle_index().begin(), samples.shuffle_index().end());
    std::vector<size_t> place(order.size());
    for (size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
    std::sort(order.begin(), order.end());
    for (size_t i = 0; i < order.size(); ++i) ASSERT_EQ(order[i], i);

    const auto want = Boundaries(samples);
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(samples.boundary_documents()[i], want[i].first);
      ASSERT_EQ(samples.boundary_offsets()[i], want[i].second);
    }

    std::vector<int64_t> count(static_cast<size_t>(data->num_tokens()), 0);
    std::vector<int32_t> tokens(static_cast<size_t>(options.seq_length) + 1);
    int32_t last = -1;
    for (size_t i = 0; i < place.size(); ++i) {
      samples.Read(static_cast<int64_t>(place[i]), tokens);
      if (i > 0) {
        ASSERT_EQ(tokens[0], last) << "neighbours overlap by one token";
      }
      last = tokens.back();
      for (size_t t = 0; t + 1 < tokens.size(); ++t) ++count[static_cast<size_t>(tokens[t])];
      for (size_t t = 0; t < tokens.size(); ++t)
        ASSERT_EQ(samples.TokenOf(static_cast<int64_t>(place[i]), static_cast<int64_t>(t)), tokens[t]);
    }
    int64_t used = 0;
    for (const int64_t times : count) {
      ASSERT_LE(times, samples.plan().num_epochs);
      used += times;
    }
    ASSERT_EQ(used, samples.num_samples() * options.seq_length);
    ASSERT_LE(samples.plan().num_epochs * data->num_tokens() - used, options.seq_length) << "only a tail is unused";
  }
}

// DAT-03: at any position the resumed run's samples are the tail of the whole run's.
TEST(LoaderProperty, DAT_03_ResumeAnywhereIsTheTail) {
  const TestFolder folder;
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    CountingDataset(folder / "a", random.Lengths());
    DataRequest request{
        .data_path = folder / "a", .split = "1", .seq_length = random.Between(1, 9), .vocab_size = 100000};
    request.train_samples = random.Between(2, 90);
    request.seed = seed;
    const size_t row = static_cast<size_t>(request.seq_length) + 1;
    std::vector<int32_t> whole(static_cast<size_t>(request.train_samples) * row);
    OpenTrainingData(request).train->Fill(0, request.train_samples, whole);
    const int64_t consumed = random.Between(0, request.train_samples - 1);
    std::vector<int32_t> tail(static_cast<size_t>(request.train_samples - consumed) * row);
    OpenTrainingData(request).train->Fill(consumed, request.train_samples - consumed, tail);
    ASSERT_TRUE(std::equal(tail.begin(), tail.end(), whole.end() - static_cast<int64_t>(tail.size())));
  }
}

TEST(BuildProperty, TextAndJsonRoundTrip) {
  const TestFolder folder;
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const bool text = random.Between(0, 1) == 0;
    std::vector<std::string> documents;
    std::string input;
    for (int64_t i = random.Between(1, 40); i > 0; --i) {
      std::string document;
      for (int64_t j = random.Between(1, 60); j > 0; --j)
        document += static_cast<char>(random.Between(32, text ? 255 : 126));
      if (text && document.size() > 8 && document[3] != '\r') document[4] = '\n';
      if (text && document.size() > 8) document[5] = 'x';
      documents.push_back(document);
      input += text ? document + std::string(static_cast<size_t>(random.Between(2, 4)), '\n')
                    : nlohmann::json{{"text", document}}.dump() + "\n";
    }
    WriteAll(folder / "in", input);
    for (const int workers : {1, 3}) {
      BuildOptions options{
          .inputs = {folder / "in"}, .output = folder / "out", .format = text ? TextFormat::kText : TextFormat::kJsonl};
      options.workers = workers;
      options.block_bytes = random.Between(1, 300);
      BuildDataset(options, [](int64_t, int64_t) {});
      const IndexedDataset data(folder / "out");
      const auto tokenizer = LoadTokenizer(folder / "out");
      ASSERT_EQ(data.num_documents(), static_cast<int64_t>(documents.size()));
      for (int64_t i = 0; i < data.num_documents(); ++i) {
        std::vector<int32_t> ids(static_cast<size_t>(data.Length(i)) - 1);
        data.Read(data.FirstToken(i), ids);
        ASSERT_EQ(tokenizer->Decode(ids), documents[static_cast<size_t>(i)]);
      }
    }
  }
}

// Damaged tokenizer.json files: a clear error or a tokeniser that works, nothing else.
TEST(TokenizerProperty, DamagedFilesAreErrorsOrWork) {
  const std::string good =
      ReadAll(std::filesystem::path(TRIREME_SOURCE_DIR) / "tests/compat/data/fixtures/tokenizers/llama3.json");
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  int errors = 0, works = 0;
  for (uint32_t seed = 1; seed <= 400 && std::chrono::steady_clock::now() < end; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    std::string text = good;
    const auto place = [&] {  // most of the file is vocabulary: half of the damage goes to the rules at its front
      return static_cast<size_t>(random.Between(0, random.Between(0, 1) ? 2000 : std::ssize(text) - 1));
    };
    for (int64_t i = random.Between(1, 4); i > 0; --i) {
      switch (random.Between(0, 4)) {
        case 0:
          text.resize(std::max<size_t>(2001, place()));
          break;
        case 1:
          text[place()] = static_cast<char>(random.Between(0, 255));
          break;
        case 2:
          text[place()] = "{}[]\",:0-\\"[random.Between(0, 9)];
          break;
        case 3:
          text.erase(place(), static_cast<size_t>(random.Between(1, 30)));
          break;
        default:
          text.insert(place(), text.substr(place(), static_cast<size_t>(random.Between(1, 60))));
      }
      if (text.size() < 2002) text.resize(2002, ' ');
    }
    try {
      const auto tokenizer = MakeBpeTokenizer(text, {.where = "damaged.json"});
      std::vector<int32_t> ids;
      tokenizer->Encode("In the beginning <|endoftext|> 1234\n\n don't", ids);
      tokenizer->Decode(ids);
      for (const int32_t id : ids) ASSERT_TRUE(id >= 0 && id < tokenizer->vocab_size());
      ++works;
    } catch (const Error& error) {
      ASSERT_TRUE(error.id() >= "DAT022" && error.id() <= "DAT025") << error.what();
      ASSERT_FALSE(error.fix().empty());
      ++errors;
    }
  }
  EXPECT_GT(errors, 10);
  EXPECT_GT(works, 0);
}

TEST(TokenizerProperty, AnyBytesRoundTrip) {
  const auto path = std::filesystem::path(TRIREME_SOURCE_DIR) / "tests/compat/data/fixtures/tokenizers/gpt2.json";
  const auto tokenizer = MakeTokenizer(path.string());
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    std::string text;
    const int64_t top = random.Between(0, 2) == 0 ? 255 : 127;
    for (int64_t i = random.Between(0, 400); i > 0; --i) text += static_cast<char>(random.Between(0, top));
    std::vector<int32_t> ids;
    tokenizer->Encode(text, ids);
    ASSERT_EQ(tokenizer->Decode(ids), text);
  }
}

}  // namespace
}  // namespace trireme::data
