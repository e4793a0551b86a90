// Schemas: what their grammars accept, what is refused by name, and random walks against a validator.
#include "grammar/json_schema.h"

#include "grammar/json_text.h"
#include "helpers.h"
#include "schema_check.h"

namespace ridge::grammar {
namespace {

struct SchemaCase {
  const char* schema;
  std::vector<std::string> good, bad;
};

void check(const std::vector<SchemaCase>& cases) {
  for (const SchemaCase& one : cases) {
    const Json schema = Json::parse(one.schema);
    const auto grammar = grammar_of_schema(schema);
    ASSERT_TRUE(grammar) << one.schema << ": " << grammar.error().message;
    for (const std::string& text : one.good) {
      EXPECT_TRUE(accepts(*grammar, text)) << one.schema << ": " << text;
      EXPECT_TRUE(matches(schema, schema, Json::parse(text))) << "the validator: " << one.schema << ": " << text;
    }
    for (const std::string& text : one.bad) EXPECT_FALSE(accepts(*grammar, text)) << one.schema << ": " << text;
  }
}

TEST(JsonSchema, Objects) {
  check(
      {{R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"boolean"},"c":{"type":"null"}},"required":["b"],"additionalProperties":false})",
        {R"({"b":true})", R"({"a":null,"b":false})", R"({ "a": null, "b": false, "c": null })", "{\n  \"b\": true\n}",
         R"({"b":true,"c":null})"},
        {"{}", R"({"a":null})", R"({"b":true,"a":null})", R"({"b":true,})", R"({"b":true,"d":1})", R"({"b":1})",
         R"({"b":true,"b":true})", R"({"b":  true})", R"({,"b":true})"}},
       {R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"}},"additionalProperties":false})",
        {"{}", "{ }", R"({"a":null})", R"({"b":null})", R"({"a":null,"b":null})"},
        {R"({"b":null,"a":null})", "{  }", "{\n\n}", "{,}"}},
       {R"({"type":"object","properties":{"ab":{"type":"null"}},"additionalProperties":{"type":"boolean"}})",
        {"{}", R"({"ab":null})", R"({"ab":null,"x":true})", R"({"a":true})", R"({"abc":true})",
         R"({"":true,"ac":false})"},
        {R"({"ab":true})", R"({"x":1})", R"({"x":true,"ab":true})", R"({"x":true,"ab":null})"}},
       {R"({"properties":{"q\"":{"type":"null"}},"required":["q\"","é"]})",
        {R"({"q\"":null,"é":[1]})", R"({"q\"":null,"é":0,"f":{}})"},
        {"{}", R"({"é":1})"}},
       {R"({"type":"object","properties":{"a":false,"b":{"type":"null"}},"additionalProperties":false})",
        {"{}", R"({"b":null})"},
        {R"({"a":null})"}},
       {R"({"type":"object"})", {"{}", R"({"a":[1,{"b":"c"}]})"}, {"[]", "1"}},
       {R"(true)",
        {"{}", "[]", "-1.5e+10", "\"\\u00e9\"", "null"},
        {"01", "1.", "nul", "\"\\ud800\"", "\"\x01\"", ""}}});
}

TEST(JsonSchema, Arrays) {
  check(
      {{R"({"type":"array","items":{"type":"null"}})",
        {"[]", "[null]", "[null, null]", "[\n null,\n null\n]"},
        {"[null,]", "[1]", "[,null]"}},
       {R"({"type":"array","items":{"type":"null"},"minItems":2,"maxItems":3})",
        {"[null,null]", "[null,null,null]"},
        {"[]", "[null]", "[null,null,null,null]"}},
       {R"({"type":"array","maxItems":0})", {"[]"}, {"[1]"}},
       {R"({"type":"array","prefixItems":[{"type":"null"},{"type":"boolean"}],"items":false})",
        {"[]", "[null]", "[null,true]"},
        {"[true]", "[null,true,1]"}},
       {R"({"type":"array","prefixItems":[{"type":"null"},{"type":"boolean"}],"items":{"type":"null"},"minItems":1,"maxItems":4})",
        {"[null]", "[null,true]", "[null,true,null,null]"},
        {"[]", "[null,null]", "[null,true,true]", "[null,true,null,null,null]"}},
       {R"({"type":"array","prefixItems":[{"type":"null"},{"type":"null"}],"minItems":2})",
        {"[null,null]", "[null,null,1]"},
        {"[null]", "[]"}},
       {R"({"type":"array","prefixItems":[{"type":"null"},{"type":"null"}],"maxItems":1})",
        {"[]", "[null]"},
        {"[null,null]"}}});
}

TEST(JsonSchema, Strings) {
  check({{R"({"type":"string","minLength":1,"maxLength":3})",
          {"\"a\"", "\"äé中\"", R"("\n\u00e9\ud83d\ude00")", "\"😀😀😀\""},
          {"\"\"", "\"abcd\"", "\"a", "a"}},
         {R"({"type":"string","pattern":"^[a-f]+(-\\d{2})?$"})",
          {"\"a\"", "\"abc-12\""},
          {"\"\"", "\"a-1\"", "\"xa\"", "\"a-12x\""}},
         {R"({"type":"string","pattern":"b"})", {"\"b\"", "\"abc\"", R"("\"b\n")"}, {"\"\"", "\"ac\""}},
         {R"({"type":"string","pattern":"^a|c$"})", {"\"ab\"", "\"bc\""}, {"\"b\"", "\"cb\""}},
         {R"({"type":"string","pattern":"^[^a-z]\\.(?:x|\\\\)*?\"$"})",
          {R"("A.\"")", R"("\t.x\\\"")"},
          {R"("a.\"")", R"("A-\"")"}},
         {R"({"type":"string","pattern":"^\\w\\s\\D\\S\\u0041\\x42$"})", {"\"_ xyAB\""}, {"\"_ 1yAB\"", "\"_ x AB\""}},
         {R"({"type":"string","format":"date"})",
          {"\"2024-02-29\"", "\"1999-12-31\"", "\"2000-02-29\""},
          {"\"2023-02-29\"", "\"1900-02-29\"", "\"2023-04-31\"", "\"2023-13-01\""}},
         {R"({"type":"string","format":"time"})",
          {"\"23:59:59Z\"", "\"00:00:00.125+01:30\""},
          {"\"24:00:00Z\"", "\"12:00:00\""}},
         {R"({"type":"string","format":"date-time"})",
          {"\"2024-02-29T12:00:00Z\""},
          {"\"2024-02-29 12:00:00Z\"", "\"2023-02-29T12:00:00Z\""}},
         {R"({"type":"string","format":"uuid"})",
          {"\"123e4567-e89b-12d3-a456-426614174000\""},
          {"\"123e4567-e89b-12d3-a456-42661417400\""}},
         {R"({"type":"string","format":"ipv4"})", {"\"0.10.200.255\""}, {"\"256.1.1.1\"", "\"1.1.1\"", "\"01.1.1.1\""}},
         {R"({"type":"string","format":"email"})",
          {"\"a.b+c@example.co.uk\""},
          {"\"a@b\"", "\"@b.de\"", "\"a@-b.de\""}}});
}

TEST(JsonSchema, ChoicesAndJoins) {
  check(
      {{R"({"enum":["a","ab","b\"",1,null,{"k":[1,2]}]})",
        {"\"a\"", "\"ab\"", R"("b\"")", "1", "null", R"({"k":[1,2]})"},
        {"\"abc\"", "2", "\"\""}},
       {R"({"const":{"a":1}})", {R"({"a":1})"}, {"{}"}},
       {R"({"type":"string","enum":["a",1]})", {"\"a\""}, {"1"}},
       {R"({"type":["integer","null"]})", {"1", "null"}, {"1.5", "true"}},
       {R"({"type":"boolean","nullable":true})", {"true", "null"}, {"1"}},
       {R"({"anyOf":[{"type":"integer"},{"type":"string","maxLength":1}]})", {"12", "\"a\""}, {"\"ab\"", "null"}},
       {R"({"oneOf":[{"type":"null"},{"const":5}]})", {"null", "5"}, {"6"}},
       {R"({"type":"object","properties":{"t":{"type":"null"}},"anyOf":[{"required":["t"]},{"properties":{"u":{"const":1}},"required":["u"]}]})",
        {R"({"t":null})", R"({"u":1})", R"({"t":null,"u":1})"},
        {"{}", R"({"u":2})"}},
       {R"({"allOf":[{"type":"integer","minimum":3},{"type":"number","minimum":1,"maximum":9}]})",
        {"3", "9"},
        {"2", "10", "3.5"}},
       {R"({"allOf":[{"$ref":"#/$defs/a"},{"properties":{"y":{"type":"null"}},"required":["y"]}],"$defs":{"a":{"type":"object","properties":{"x":{"const":1}},"required":["x"]}}})",
        {R"({"x":1,"y":null})"},
        {R"({"x":1})", R"({"y":null})"}},
       {R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},"next":{"$ref":"#/$defs/node"}},"required":["v"],"additionalProperties":false}}})",
        {R"({"v":1})", R"({"v":1,"next":{"v":2,"next":{"v":3}}})"},
        {"{}", R"({"v":1,"next":{}})"}},
       {R"({"type":"object","properties":{"a~/b":{"type":"null"},"c":{"$ref":"#/properties/a~0~1b"},"d":{"$ref":"#/properties/a~0%2F%62"}},"additionalProperties":false})",
        {R"({"c":null})", "{}"},
        {R"({"c":1})"}},
       {R"({"type":"array","items":{"$ref":"#"},"maxItems":2})", {"[]", "[[],[[]]]"}, {"[1]", "[[],[],[]]"}}});
}

TEST(JsonSchema, IntegersAreExact) {
  Rng rng(3);
  for (int round = 0; round < 100; ++round) {
    const auto bound = [&] {
      return int64_t(pick(rng, 2) ? rng.next() % 30 : rng.next() % 5000) - (pick(rng, 2) ? 15 : 2500);
    };
    Json schema{{"type", "integer"}};
    if (pick(rng, 4)) schema[pick(rng, 2) ? "minimum" : "exclusiveMinimum"] = bound();
    if (pick(rng, 4)) schema[pick(rng, 2) ? "maximum" : "exclusiveMaximum"] = bound() + 0.5 * double(pick(rng, 2));
    const auto grammar = grammar_of_schema(schema);
    int64_t n_good = 0;
    for (int64_t value = -6000; value <= 6000; value += value > -60 && value < 60 ? 1 : 7) {
      const bool good = matches(schema, schema, value);
      n_good += good;
      if (grammar) {
        ASSERT_EQ(accepts(*grammar, std::to_string(value)), good) << schema << ": " << value;
      }
    }
    if (!grammar) {
      ASSERT_EQ(n_good, 0) << schema;
    }
    if (grammar) {
      EXPECT_FALSE(accepts(*grammar, "007"));
    }
  }
  check({{R"({"type":"integer","minimum":-1000000000000000000,"maximum":1000000000000000000})",
          {"-1000000000000000000", "1000000000000000000", "0"},
          {"1000000000000000001", "-0"}},
         {R"({"type":"integer","minimum":99999999999999999})", {"99999999999999999"}, {"99999999999999998"}}});
}

TEST(JsonSchema, NumbersAreExact) {
  Rng rng(4);
  for (int round = 0; round < 300; ++round) {
    const auto bound = [&] { return int64_t(rng.next() % 25) - 12; };
    Json schema{{"type", "number"}};
    if (pick(rng, 5)) schema[pick(rng, 2) ? "minimum" : "exclusiveMinimum"] = bound();
    if (pick(rng, 5) || schema.size() == 1) schema[pick(rng, 2) ? "maximum" : "exclusiveMaximum"] = bound();
    const auto grammar = grammar_of_schema(schema);
    int64_t n_good = 0;
    for (int tenth = -200; tenth <= 200; ++tenth) {
      const std::string whole = fmt::format("{}{}", tenth < 0 ? "-" : "", std::abs(tenth) / 10);
      const std::string text = tenth % 10 == 0 && round % 2 ? whole : fmt::format("{}.{}", whole, std::abs(tenth) % 10);
      const bool good = matches(schema, schema, tenth / 10.0);
      n_good += good;
      if (grammar) {
        ASSERT_EQ(accepts(*grammar, text), good) << schema << ": " << text;
      }
    }
    if (!grammar) {
      ASSERT_EQ(n_good, 0) << schema;
    }
  }
  check({{R"({"type":"number","minimum":0,"maximum":1})",
          {"0", "0.5", "1", "1.000", "0.9999999999999999"},
          {"1.0001", "-0.1", "1e5", "2"}},
         {R"({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1})",
          {"0.000001", "0.999999"},
          {"0", "1", "0.0", "0.0000001"}}});
}

TEST(JsonSchema, RefusesByNameWithPointer) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type":"object","properties":{"a/b":{"type":"number","multipleOf":0.1}}})",
       "schema: #/properties/a~1b: multipleOf"},
      {R"({"type":"array","uniqueItems":true})", "schema: #: uniqueItems: this keyword is not supported"},
      {R"({"type":"array","items":{"contains":{}}})", "#/items: contains"},
      {R"({"not":{}})", "#: not"},
      {R"({"if":{},"then":{}})", "#: if"},
      {R"({"anyOf":[true,{"patternProperties":{}}]})", "#/anyOf/1: patternProperties"},
      {R"({"type":"object","minProperties":1})", "minProperties"},
      {R"({"tpye":"object"})", "tpye"},
      {R"({"type":"text"})", "type: is none of"},
      {R"({"type":"string","pattern":"(?=a)b"})", "pattern: character 3 of the pattern: look-around"},
      {R"({"type":"string","pattern":"(a)\\1"})", "pattern: character 5 of the pattern: this escape"},
      {R"({"type":"string","pattern":"a$b"})", "pattern: character 3"},
      {R"({"type":"string","pattern":"a**"})", "a repetition of a repetition"},
      {R"({"type":"string","pattern":"a","minLength":2})", "pattern: is not supported beside minLength"},
      {R"({"type":"string","format":"uri"})", "format: uri is not supported"},
      {R"({"type":"number","minimum":0.5})", "minimum: a number's bound with a fraction"},
      {R"({"type":"integer","minimum":5,"maximum":4})", "minimum: is over the maximum"},
      {R"({"type":"integer","minimum":1e30})", "minimum: is not supported over 10^18"},
      {R"({"enum":[]})", "enum"},
      {R"({"enum":["a"],"maxLength":1})", "maxLength: is not supported beside enum"},
      {R"({"$ref":"https://example.com/x"})", "$ref: only references into this schema"},
      {R"({"$ref":"#/$defs/none"})", "$ref: #/$defs/none leads nowhere"},
      {R"({"$ref":"#"})", "left recursion"},
      {R"({"$defs":{"a":{"$ref":"#/$defs/a"}},"allOf":[{"$ref":"#/$defs/a"},{}]})",
       "$ref: joined references lead over more"},
      {R"({"allOf":[{"properties":{"a":{}},"additionalProperties":false},{"properties":{"b":{}}}]})",
       "additionalProperties: cannot be joined"},
      {R"({"allOf":[{"type":"string"},{"type":"null"}]})", "no value in common"},
      {R"({"type":"object","required":["a"],"additionalProperties":false})", "required: a is no property"},
      {R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})", "no text matches"},
      {R"({"type":"array","items":[{}]})", "items: a list is not supported"},
      {R"({"type":"array","minItems":-1})", "minItems: is no whole number"},
      {R"({"properties":[]})", "properties: is no object"},
      {R"(5)", "is no object and no boolean"},
      {R"(false)", "no text matches"}};
  for (const auto& [schema, reason] : cases) {
    const auto grammar = grammar_of_schema(Json::parse(schema));
    ASSERT_FALSE(grammar) << schema;
    EXPECT_EQ(grammar.error().kind, ErrorKind::usage);
    EXPECT_NE(grammar.error().message.find(reason), std::string::npos) << schema << ": " << grammar.error().message;
  }
  std::string deep;
  for (int i = 0; i < 200; ++i) deep += R"({"items":)";
  EXPECT_NE(grammar_of_schema(Json::parse(deep + "{}" + std::string(200, '}'))).error().message.find("nests deeper"),
            std::string::npos);
}

TEST(JsonSchema, AnnotationsChangeNothing) {
  check(
      {{R"({"title":"t","description":"d","$schema":"s","$id":"i","default":1,"examples":[1],"x-any":{},"type":"null","deprecated":true})",
        {"null"},
        {"1"}}});
}

TEST(JsonSchema, BlanksAreBounded) {
  const auto grammar = any_json_object();
  ASSERT_TRUE(grammar);
  EXPECT_TRUE(accepts(*grammar, "{\n" + std::string(kMaxIndent, ' ') + "\"a\": [\n\t1\n], \"b\": {}\n}"));
  EXPECT_FALSE(accepts(*grammar, "{\n" + std::string(kMaxIndent + 1, ' ') + "}"));
  EXPECT_FALSE(accepts(*grammar, "{\"a\":  1}"));
  EXPECT_FALSE(accepts(*grammar, " {}"));
  EXPECT_FALSE(accepts(*grammar, "{} "));
  EXPECT_FALSE(accepts(*grammar, "[]"));
}

TEST(JsonSchema, AnyObjectNestsDeeplyAndEnds) {
  const ToyVocabulary toy;
  Constraint constraint(CompiledGrammar::make(any_json_object().or_throw(), toy.vocabulary).or_throw());
  std::string text;
  const auto read = [&](std::string_view more) {
    for (const char c : more)
      if (!constraint.accept(uint8_t(c))) return false;
    text += more;
    return true;
  };
  ASSERT_TRUE(read("{\"a\":"));
  int depth = 1;
  while (read("[")) ++depth;
  EXPECT_GE(depth, 60);
  EXPECT_LE(depth, int(kMaxStack));
  while (!constraint.finished()) {
    const std::vector<int32_t> allowed = tokens_of(constraint.mask_to_end());
    ASSERT_FALSE(allowed.empty());
    ASSERT_TRUE(constraint.accept(allowed[0]));
    text += toy.tokens[size_t(allowed[0])];
  }
  EXPECT_FALSE(Json::parse(text, nullptr, false).is_discarded()) << text;
  RecordProperty("depth", depth);
}

/// Schemas of everything that is supported, by chance.
class RandomSchema {
 public:
  explicit RandomSchema(Rng& rng) : rng_(rng) {}

  Json root() {
    Json schema = pick_of(4) == 0 ? one(3) : object(2, false);
    if (!schema.is_object()) return schema;
    schema["$defs"] = {
        {"leaf", one(0)},
        {"tree",
         {{"type", "object"},
          {"properties",
           {{"v", one(0)}, {"kids", {{"type", "array"}, {"items", {{"$ref", "#/$defs/tree"}}}, {"maxItems", 2}}}}},
          {"required", {"v"}},
          {"additionalProperties", false}}}};
    return schema;
  }

 private:
  size_t pick_of(size_t n) { return pick(rng_, n); }
  bool coin() { return pick_of(2) == 0; }
  int64_t number() { return int64_t(pick_of(40)) - 20; }

  Json one(int depth) {
    switch (depth == 0 ? pick_of(8) : pick_of(14)) {
      case 0: return {{"type", "null"}};
      case 1: return {{"type", coin() ? Json("boolean") : Json({"boolean", "null"})}};
      case 2: return bounded("integer");
      case 3: return bounded("number");
      case 4: return string();
      case 5: return {{"enum", Json::array({"a", "b\n\"", 3, nullptr, Json::array({1, "x"})})}};
      case 6: return {{"const", coin() ? Json("fixed é") : Json(1.5)}};
      case 7:
        return {{"type", "string"},
                {"pattern", Json::array({"^[a-z]{1,3}$", "x+y?", "^(ab|c)*\\d$", "[^\\x00-\\x7f\\s]|z"})[pick_of(4)]}};
      case 8: return {{coin() ? "anyOf" : "oneOf", Json::array({one(depth - 1), one(depth - 1)})}};
      case 9: return {{"allOf", Json::array({object(depth - 1, true), object(depth - 1, true)})}};
      case 10: return {{"$ref", coin() ? "#/$defs/leaf" : "#/$defs/tree"}};
      case 11: return array(depth - 1);
      default: return object(depth - 1, false);
    }
  }

  Json bounded(const char* type) {
    Json schema{{"type", type}};
    const int64_t low = number();
    if (coin()) schema[coin() ? "minimum" : "exclusiveMinimum"] = low;
    if (coin()) schema[coin() ? "maximum" : "exclusiveMaximum"] = low + 2 + int64_t(pick_of(100));
    if (coin()) schema["nullable"] = coin();
    return schema;
  }

  Json string() {
    Json schema{{"type", "string"}};
    const auto min = pick_of(5);
    if (coin()) schema["minLength"] = min;
    if (coin()) schema["maxLength"] = min + pick_of(30);
    return schema;
  }

  Json array(int depth) {
    Json schema{{"type", "array"}, {"items", one(depth)}};
    const auto min = pick_of(3);
    if (coin()) schema["minItems"] = min;
    if (coin()) schema["maxItems"] = min + pick_of(4);
    if (coin()) schema["prefixItems"] = Json::array({one(depth), one(0)});
    return schema;
  }

  Json object(int depth, bool joined) {
    Json schema{{"type", "object"}, {"properties", Json::object()}, {"required", Json::array()}};
    const std::string prefix = joined ? fmt::format("p{}", ++n_joined_) : "";
    for (const char* name : {"name", "n", "äö", "say \"hi\""}) {
      if (pick_of(3) == 0) continue;
      schema["properties"][prefix + name] = one(depth);
      if (coin()) schema["required"].push_back(prefix + name);
    }
    if (!joined && coin()) schema["additionalProperties"] = coin() ? Json(false) : one(0);
    return schema;
  }

  Rng& rng_;
  int n_joined_ = 0;
};

TEST(JsonSchema, WhateverIsSampledMatchesTheSchema) {
  const ToyVocabulary toy;
  Rng rng(500);
  size_t bytes = 0, closed = 0, compared = 0;
  int used = 0;
  for (int round = 0; used < 500; ++round) {
    ASSERT_LT(round, 550);
    const Json schema = RandomSchema(rng).root();
    auto grammar = grammar_of_schema(schema);
    if (!grammar) continue;
    ++used;
    const auto compiled = CompiledGrammar::make(std::move(*grammar), toy.vocabulary).or_throw();
    for (const int cap : {5, 150}) {
      Constraint constraint(compiled);
      std::string text;
      for (int n = 0;; ++n) {
        const auto mask = n < cap ? constraint.mask() : constraint.mask_to_end();
        if (n < cap && n % 4 == used % 4) {
          ASSERT_EQ(std::vector<uint64_t>(mask.begin(), mask.end()),
                    mask_by_trying(compiled->grammar(), *toy.vocabulary, text))
              << schema << "\n"
              << text;
          ++compared;
        }
        const std::vector<int32_t> allowed = tokens_of(mask);
        ASSERT_FALSE(allowed.empty()) << schema << "\n" << text;
        const int32_t token = allowed[pick(rng, allowed.size())];
        ASSERT_TRUE(constraint.accept(token));
        if (token == toy.end) break;
        text += toy.tokens[size_t(token)];
        closed += n == cap;
      }
      bytes += text.size();
      const Json document = Json::parse(text, nullptr, false);
      ASSERT_FALSE(document.is_discarded()) << schema << "\n" << text;
      ASSERT_TRUE(matches(schema, schema, document)) << schema << "\n" << text;
    }
  }
  EXPECT_GT(bytes, 30000u);
  EXPECT_GT(closed, 300u);
  EXPECT_GT(compared, 3000u);
}

}  // namespace
}  // namespace ridge::grammar
