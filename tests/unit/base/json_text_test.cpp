#include "engine/base/json_text.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(JsonText, EscapesWhatWouldEndATextOrAScript) {
  EXPECT_EQ(JsonText("a \"b\" \\ c"), R"("a \"b\" \\ c")");
  EXPECT_EQ(JsonText("</script>&"), R"("\u003c/script\u003e\u0026")");
  EXPECT_EQ(JsonText(std::string("\n\t\0", 3)), R"("\n\u0009\u0000")");
  EXPECT_EQ(JsonText("\xC3\xA9 \xE2\x80\xA8"), "\"\xC3\xA9 \\u2028\"");
  EXPECT_EQ(JsonText("\xFF\xC0\xAF\xED\xA0\x80"),
            "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
}

TEST(JsonText, NumbersReadBack) {
  EXPECT_EQ(JsonNumber(0.1), "0.1");
  EXPECT_EQ(JsonNumber(3), "3");
  EXPECT_EQ(JsonNumber(1.0 / 0.0), "null");
}

}  // namespace
}  // namespace trireme
