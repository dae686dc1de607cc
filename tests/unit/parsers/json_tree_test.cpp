#include "parsers/json_tree.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

struct Read {
  explicit Read(const std::string& text) { root = ReadJson(text, "f", diagnostics); }
  std::string FirstError() const {
    return diagnostics.problems().empty() ? "" : Render(diagnostics.problems().front());
  }
  const JsonValue& At(const char* key) const { return root->Find(key)->value; }
  Diagnostics diagnostics;
  std::optional<JsonValue> root;
};

using Kind = JsonValue::Kind;

TEST(JsonTree, KnowsLineAndColumnOfKeysAndValues) {
  const Read r("{\n  \"a\": 1,\n  \"é\": {\"b\": [true, null]}\n}");
  ASSERT_TRUE(r.root);
  EXPECT_EQ(2, r.root->Find("a")->line);
  EXPECT_EQ(3, r.root->Find("a")->column);
  EXPECT_EQ(8, r.At("a").column);
  const JsonValue& list = r.At("é").Find("b")->value;
  EXPECT_EQ(3, list.line);
  EXPECT_EQ(14, list.column);  // é is one column
  EXPECT_EQ(Kind::kNull, list.elements[1].kind);
}

TEST(JsonTree, AcceptsWhatDeepSpeedsReaderAccepts) {
  const Read r(
      "\xEF\xBB\xBF# remark\ntrain: 8.0 // remark\n'single': 'it''s'\n/* a\nb */ \"c\": [1, 2,], \"d\": {\"e\": 1,}\n"
      "f: '''\n   two\n   lines\n   '''\n");
  // 'it''s' is two texts in a row, which no grammar allows:
  EXPECT_FALSE(r.root);
  const Read good(
      "\xEF\xBB\xBF# remark\ntrain: 8.0 // remark\n'single': 'text'\n/* a\nb */ \"c\": [1, 2,], \"d\": {\"e\": 1,}\n"
      "f: '''\n   two\n   lines\n   '''\nbare: some text, with a comma # and more\n");
  ASSERT_TRUE(good.root) << good.FirstError();
  EXPECT_EQ(Kind::kInteger, good.At("train").kind);
  EXPECT_EQ(8, good.At("train").integer);
  EXPECT_EQ(2u, good.At("c").elements.size());
  EXPECT_EQ("two\nlines", good.At("f").text);
  EXPECT_EQ("some text, with a comma # and more", good.At("bare").text);
}

TEST(JsonTree, NumbersAsHjsonReadsThem) {
  const Read r(
      "{\"a\": 5e8, \"b\": 1e10, \"c\": -0.0, \"d\": 9999999999.0, \"e\": 0.5, \"f\": 123456789012345678901234, \"g\": "
      "1e-400}");
  ASSERT_TRUE(r.root) << r.FirstError();
  EXPECT_EQ(500000000, r.At("a").integer);
  EXPECT_EQ(Kind::kInteger, r.At("a").kind);
  EXPECT_EQ(Kind::kNumber, r.At("b").kind);
  EXPECT_EQ(Kind::kInteger, r.At("c").kind);
  EXPECT_EQ(9999999999, r.At("d").integer);
  EXPECT_EQ(0.5, r.At("e").number);
  EXPECT_EQ(Kind::kNumber, r.At("f").kind);
  EXPECT_EQ(0, r.At("g").number);
}

TEST(JsonTree, WhatIsNoNumberIsText) {
  for (const char* token : {"True", "NaN", "Infinity", "+1", ".5", "1.", "01", "0x10", "1_000", "1/2", "None"}) {
    const Read r(std::string("x: ") + token + "\n");
    ASSERT_TRUE(r.root) << token;
    EXPECT_EQ(Kind::kText, r.At("x").kind) << token;
    EXPECT_EQ(token, r.At("x").text);
  }
}

TEST(JsonTree, LiteralsOfOtherLanguagesAreNamedAndReadingGoesOn) {
  const Read r("{\n\"enabled\": True,\n\"b\": {\"c\": -Infinity}, \"d\": None, \"e\": 1e400, \"f\": NaN}");
  ASSERT_TRUE(r.root);
  EXPECT_TRUE(r.At("enabled").boolean);
  EXPECT_EQ(5, r.diagnostics.num_errors());
  EXPECT_EQ("error CFG002: f:2:12: enabled: True is no value in JSON\n  fix: write true", r.FirstError());
  const std::string all = r.diagnostics.Render();
  for (const char* part :
       {"3:12: b.c: -Infinity is no value", "3:29: d: None is", "3:40: e: the number \"1e400\" is too",
        "3:52: f: NaN is no value in JSON\n  fix: write a finite number"}) {
    EXPECT_NE(all.find(part), std::string::npos) << part << " in\n" << all;
  }
}

TEST(JsonTree, ALoneValueAndAnotherEncodingAreNamed) {
  const Read five("\n5\n"), null("null"), utf16(std::string("\xFF\xFE{\0}\0", 6));
  ASSERT_TRUE(five.root && null.root);
  EXPECT_EQ(5, five.root->integer);
  EXPECT_EQ(Kind::kNull, null.root->kind);
  EXPECT_FALSE(utf16.root);
  EXPECT_NE(utf16.FirstError().find("save it as UTF-8"), std::string::npos);
}

TEST(JsonTree, DuplicateKeysAreErrorsAtEveryDepth) {
  const Read r("{\"a\": 1,\n\"b\": [{\"c\": 1, \"\\u0063\": 2}],\n\"a\": 3}");
  ASSERT_TRUE(r.root);
  ASSERT_EQ(2, r.diagnostics.num_errors());
  EXPECT_EQ(
      "error CFG003: f:2:16: b.c: the key stands twice in one object, first at line 2\n  fix: keep one of the two",
      Render(r.diagnostics.problems()[0]));
  EXPECT_EQ(3, r.diagnostics.problems()[1].position.line);
}

TEST(JsonTree, SyntaxErrorsSayWhere) {
  const std::pair<const char*, const char*> cases[] = {
      {"{\"a\": }", "error CFG002: f:1:7: '}' where a value is expected"},
      {"{\"a\" 1}", "error CFG002: f:1:6: no ':' after the key \"a\""},
      {"{\"a\": 1\n", "error CFG002: f:2:1: the file ends before the '}' that closes the object opened at 1:1"},
      {"{\"a\": \"x\n\"}", "error CFG002: f:1:7: the text that starts here has no closing quote"},
      {"[1,,2]", "error CFG002: f:1:4: ',' where a value is expected"},
      {"{,\"a\":1}", "error CFG002: f:1:2: \",\" where a key is expected"},
      {"{\"a\": 1} x", "error CFG002: f:1:10: text after the end of the outermost object"},
      {"{\"a\": \"\\q\"}", "error CFG002: f:1:10: unknown escape \\q"},
      {"{\"a\": \"\\u12\"}", "error CFG002: f:1:10: \\u needs four hexadecimal digits"},
      {"/* x", "error CFG002: f:1:1: the comment /* never ends"},
      {"{\"a\":1 \"train_batch_size\":8}",
       "error CFG002: f:1:6: the value \"1 \"train_batch_size\":8}\" has no quotes"},
  };
  for (const auto& [text, message] : cases) {
    const Read r(text);
    EXPECT_FALSE(r.root) << text;
    EXPECT_EQ(0u, r.FirstError().find(message)) << r.FirstError();
    EXPECT_NE(std::string::npos, r.FirstError().find("\n  fix: "));
  }
}

TEST(JsonTree, DeepNestingIsAnErrorAndNoCrash) {
  const Read r(std::string(100000, '['));
  EXPECT_FALSE(r.root);
  EXPECT_NE(std::string::npos, r.FirstError().find("more than 100 levels"));
}

TEST(JsonTree, SurrogatePairsAreJoined) {
  const Read r("{\"a\": \"\\ud83d\\ude00\\n\"}");
  ASSERT_TRUE(r.root);
  EXPECT_EQ("\xF0\x9F\x98\x80\n", r.At("a").text);
}

TEST(JsonTree, AnEmptyFileIsAnEmptyObject) {
  const Read r("  # nothing\n");
  ASSERT_TRUE(r.root);
  EXPECT_EQ(Kind::kObject, r.root->kind);
  EXPECT_TRUE(r.root->members.empty());
}

}  // namespace
}  // namespace trireme
