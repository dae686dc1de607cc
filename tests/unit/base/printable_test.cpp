#include "engine/base/printable.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace trireme {
namespace {

TEST(Printable, ShowsWhatWouldSteerATerminal) {
  EXPECT_EQ("caf\xC3\xA9 \xE6\xBC\xA2 \"q\"", Printable("caf\xC3\xA9 \xE6\xBC\xA2 \"q\""));
  EXPECT_EQ("\\x1b[2J\\x07\\x7f", Printable("\x1b[2J\x07\x7f"));
  EXPECT_EQ("a\\x00b", Printable(std::string_view("a\0b", 3)));
  EXPECT_EQ("\\xc2\\x9b31m", Printable("\xC2\x9B"
                                       "31m"));                   // C1's way to begin a sequence
  EXPECT_EQ("\\xed\\xa0\\x80", Printable("\xED\xA0\x80"));        // half of a surrogate pair
  EXPECT_EQ("\\xe2\\x80\\xaetxt", Printable("\xE2\x80\xAEtxt"));  // from right to left
  EXPECT_EQ("\\xff\\xc3", Printable("\xFF\xC3"));                 // no UTF-8
}

TEST(Printable, KeepsAndCuts) {
  EXPECT_EQ("a\\x0ab", Printable("a\nb"));
  EXPECT_EQ("a\nb", Printable("a\nb", std::string_view::npos, "\n"));
  EXPECT_EQ("abc", Printable("abc", 3));
  EXPECT_EQ("abc...", Printable("abcd", 3));
  EXPECT_EQ("ab...", Printable("ab\xC3\xA9", 3));  // never half a character
}

}  // namespace
}  // namespace trireme
