// The list syntax of KV configurations.
#include "engine/kv_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ridge {
namespace {

TEST(KvChoice, OneSideServesBoth) {
  const KvChoice choice = parse_kv_choice("rotor-3:planar").or_throw();
  EXPECT_EQ(choice.k.format, "rotor-3");
  EXPECT_EQ(choice.v.format, "rotor-3");
  EXPECT_EQ(choice.k.rotation, "planar");
  EXPECT_EQ(choice.v.rotation, "planar");
  EXPECT_FALSE(choice.k.window.has_value());
}

TEST(KvChoice, SidesAreIndependent) {
  const KvChoice choice = parse_kv_choice("q8_0/rotor-3:window=32:sinks=4:centre=off").or_throw();
  EXPECT_EQ(choice.k.format, "q8_0");
  EXPECT_FALSE(choice.k.window.has_value());
  EXPECT_EQ(choice.v.window, 32);
  EXPECT_EQ(choice.v.sinks, 4);
  EXPECT_EQ(choice.v.centre, false);
}

TEST(KvChoice, TextRoundTrips) {
  for (const char* text : {"f16", "rotor-3:hadamard", "q8_0/rotor-3:none:window=0:sinks=0:centre=on", "f16/q8_0",
                           "p8:scale=lsq/rotor-4:scale=norm"})
    EXPECT_EQ(kv_text(parse_kv_choice(text).or_throw()), text);
}

TEST(KvChoice, LayersMayHaveFormatsOfTheirOwn) {
  const auto list = parse_kv_list("f16,rotor-3;0-1+27:q8_0/rotor-4:window=32;5:f16").or_throw();
  ASSERT_EQ(list.size(), 2u);
  EXPECT_TRUE(list[0].layers.empty());
  const std::vector<KvLayerOptions>& layers = list[1].layers;
  ASSERT_EQ(layers.size(), 3u);
  EXPECT_EQ(layers[0].first, 0);
  EXPECT_EQ(layers[0].last, 1);
  EXPECT_EQ(layers[1].first, 27);
  EXPECT_EQ(layers[1].last, 27);
  EXPECT_EQ(layers[1].k.format, "q8_0");
  EXPECT_EQ(layers[1].v.window, 32);
  EXPECT_EQ(layers[2].first, 5);
  EXPECT_EQ(layers[2].v.format, "f16");
  const std::string text = "rotor-3;0-1:q8_0/rotor-4:window=32;27:q8_0/rotor-4:window=32;5:f16";
  EXPECT_EQ(kv_text(list[1]), text);
  EXPECT_EQ(kv_text(parse_kv_choice(text).or_throw()), text);
  // As --kv-layers has it, with commas.
  EXPECT_EQ(parse_kv_layers("0-1,26-27:q8_0/q8_0").or_throw().size(), 2u);
}

TEST(KvChoice, WrongLayersAreUsageErrors) {
  for (const char* text : {"", ":", "0", "0-:f16", "-1:f16", "1-0:f16", "0-1-2:f16", "a:f16", "0+:f16", "0x1:f16",
                           "0:", "0:q9_0", "0:f16;", "99999999999:f16", "0:f16/f16/f16", " 0:f16"}) {
    const auto layers = parse_kv_layers(text);
    ASSERT_FALSE(layers) << text;
    EXPECT_EQ(layers.error().kind, ErrorKind::usage) << text;
  }
  EXPECT_THAT(parse_kv_layers("0-3:f16;7,3-5:q8_0").error().message, testing::HasSubstr("layer 3 is given twice"));
}

TEST(KvChoice, OffMeansF16) { EXPECT_EQ(parse_kv_choice("off").or_throw().k.format, "f16"); }

TEST(KvChoice, ListsKeepTheirOrder) {
  const auto list = parse_kv_list("f16,q8_0,rotor-3,q8_0/rotor-3").or_throw();
  ASSERT_EQ(list.size(), 4u);
  EXPECT_EQ(kv_text(list[3]), "q8_0/rotor-3");
}

TEST(KvChoice, WrongTextsAreUsageErrorsThatSayWhatThereIs) {
  for (const char* text :
       {"", "f16,", ",", "q9_0", "f16:window", "f16:window=-1", "f16:window=1e3", "f16:window=99999999999", "f16:spin",
        "f16:centre=yes", "f16:colour=red", "f16/f16/f16", "/", "F16", "p8:scale", "p8:scale=norm", "f16:scale=lsq"}) {
    const auto list = parse_kv_list(text);
    ASSERT_FALSE(list) << text;
    EXPECT_EQ(list.error().kind, ErrorKind::usage) << text;
  }
  EXPECT_THAT(parse_kv_list("q9_0").error().message, testing::HasSubstr("rotor-3"));
}

}  // namespace
}  // namespace ridge
