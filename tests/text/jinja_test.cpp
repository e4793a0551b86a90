// Templates of our own. What the first tests expect is what jinja2 3.1.6 makes of the same templates and variables, set
// up as transformers sets it up.
#include <gtest/gtest.h>

#include <thread>

#include "text/chat_template.h"

namespace ridge::text {
namespace {

ChatInput input() {
  ChatInput made;
  made.extra =
      Json::parse(R"({"xs": [3, 1, 2], "d": {"b": 1, "a": "x"}, "s": "Héllo Wörld", "n": 7, "f": 2.5, "nothing": null,
      "people": [{"name": "Bo", "age": 3}, {"name": "al", "age": 1}, {"name": "Cy"}]})");
  made.now.tm_year = 125, made.now.tm_mon = 6, made.now.tm_mday = 4, made.now.tm_hour = 9, made.now.tm_min = 5;
  return made;
}

/// The text, or the failure's message.
std::string rendered(std::string_view source, const ChatInput& given = input(), const jinja::Limits& limits = {}) {
  const Result<ChatTemplate> chat = ChatTemplate::parse(source);
  if (!chat) return chat.error().message;
  const Result<std::string> text = chat->render(given, limits);
  return text ? *text : text.error().message;
}

struct Row {
  std::string_view source, expected;
};
void check(std::initializer_list<Row> rows) {
  for (const Row& row : rows) EXPECT_EQ(rendered(row.source), row.expected) << row.source;
}
/// The template fails, and its message ends so (what comes before is the same for all).
void check_errors(std::initializer_list<Row> rows) {
  for (const Row& row : rows)
    EXPECT_EQ(rendered(row.source), fmt::format("chat template: {}", row.expected)) << row.source;
}

TEST(Jinja, Loops) {
  check({
      {"{% for x in xs %}{{ x }}{{ ',' if not loop.last }}{% endfor %}", "3,1,2"},
      {"{% for x in xs %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ "
       "loop.length }}{{ loop.depth }} {% endfor %}",
       "1032True31 2121False31 3210False31 "},
      {"{% for x in xs %}[{{ loop.previtem }}|{{ loop.nextitem }}]{% endfor %}", "[|1][3|2][1|]"},
      {"{% for x in xs %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }} {% endfor %}", "aTrue bTrue aTrue "},
      {"{% for x in xs if x > 1 %}{{ loop.index }}:{{ x }} {% else %}none{% endfor %}", "1:3 2:2 "},
      {"{% for x in xs if x > 9 %}{{ x }}{% else %}none{% endfor %}", "none"},
      {"{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "b=1;a=x;"},
      {"{% for (a, b), c in [((1, 2), 3), ('xy', 'z')] %}{{ a }}{{ b }}{{ c }} {% endfor %}", "123 xyz "},
      {"{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% "
       "endfor %}",
       "0134"},
      {"{% for k in d %}{{ k }}{% endfor %}{% for c in 'hé' %}<{{ c }}>{% endfor %}{% for q in undefined_thing %}!{% "
       "endfor %}",
       "ba<h><é>"},
      {"{% for x in xs %}{% for y in 'ab' %}{{ loop.index }}{{ y }}{% endfor %}{{ loop.index }} {% endfor %}",
       "1a2b1 1a2b2 1a2b3 "},
      {"{% set seen = 0 %}{% for x in xs %}{% set seen = x %}{% endfor %}{{ seen }}", "0"},
      {"{% for x in xs|reverse %}{{ x }}{{ loop.length }}{% endfor %}", "231333"},
      {"{% for i in range(10, 0, -3) %}{{ i }} {% endfor %}{{ range(3)|list }}{{ range(1, 3)|length }}",
       "10 7 4 1 [0, 1, 2]2"},
      {"{% for x in xs %}{{ x }}{% endfor %}{{ x is defined }}{{ loop is defined }}", "312FalseFalse"},
  });
}

TEST(Jinja, MacrosAndScopes) {
  check({
      {"{% macro m(a, b='B') %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 2) }} {{ m(b=3, a=4) }} {{ m() }}",
       "1-B 1-2 4-3 -B"},
      {"{% macro fact(k) %}{{ 1 if k < 2 else k * (fact(k - 1)|int) }}{% endmacro %}{{ fact(10) }}", "3628800"},
      {"{% macro box(title) %}[{{ title }}: {{ caller() }}]{% endmacro %}{% call box('T') %}in {{ n }}{% endcall %}",
       "[T: in 7]"},
      {"{% macro each(xs) %}{% for x in xs %}{{ caller(x, loop.index) }}{% endfor %}{% endmacro %}{% call(v, i) "
       "each(xs) %}{{ i }}:{{ v }} {% endcall %}",
       "1:3 2:1 3:2 "},
      {"{% set ns = namespace(total=0, seen=false) %}{% for x in xs %}{% set ns.total = ns.total + x %}{% set ns.seen "
       "= true %}{% endfor %}{{ ns.total }} {{ ns.seen }}",
       "6 True"},
      {"{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{{ ns.c is defined }}", "12False"},
      {"{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t = (1,) %}{{ t }}{% set u = 1, 2 %}{{ u }}", "12(1,)(1, 2)"},
      {"{% set t %}x{{ n }}y{% endset %}{{ t }}{{ t|length }}{% set w | upper | trim %} abc {% endset %}[{{ w }}]",
       "x7y3[ABC]"},
      {"{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}", "17False"},
      {"{% filter upper | replace('B', '-') %}abc{{ n }}{% endfilter %}", "A-C7"},
      {"{% generation %}said {{ n }}{% endgeneration %}", "said 7"},
      {"{% if n > 5 %}{% set inside = 1 %}{% endif %}{{ inside }}{% macro p() %}{% set inside = 2 %}{{ inside }}{% "
       "endmacro %}{{ p() }}{{ inside }}",
       "121"},
      {"{% macro outer(x) %}{% macro inner() %}{{ x }}!{% endmacro %}{{ inner() }}{% endmacro %}{{ outer('a') }}{{ "
       "outer('b') }}",
       "a!b!"},
      {"{% if false %}a{% elif nothing %}b{% elif xs %}c{% else %}d{% endif %}", "c"},
      {R"({% raw %}{{ not }} {% this %}{% endraw %}{# nor {{ this }} #}{{ "{{" }})", "{{ not }} {% this %}{{"},
  });
}

TEST(Jinja, Expressions) {
  check({
      {"{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ -2 ** 2 "
       "}} {{ 7.5 // 2 }} {{ 7.5 % -2 }}",
       "3 3 -4 2 3.5 1024 0.5 4 3.0 -0.5"},
      {"{{ 1e16 }} {{ 1e-5 }} {{ 0.1 + 0.2 }} {{ 100000.0 }} {{ 1e22 }} {{ 123456789012345680.0 }} {{ 1.5e300 * 1e10 "
       "}} {{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1_000 }}",
       "1e+16 1e-05 0.30000000000000004 100000.0 1e+22 1.2345678901234568e+17 inf 31 5 15 1000"},
      {"{{ true }} {{ none }} {{ True and 0 or 'x' }} {{ not xs }} {{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 == true "
       "}} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }}",
       "True None x False True False True True True"},
      {"{{ 'a' ~ 1 ~ none ~ undefined_thing ~ 2.0 }} {{ 'ab' * 3 }} {{ [1] * 2 + [3] }} {{ (1,) + (2,) }} {{ 'a' 'b' "
       "}}",
       "a1None2.0 ababab [1, 1, 3] (1, 2) ab"},
      {"{{ 'l' in s }} {{ 2 in xs }} {{ 'b' in d }} {{ 9 not in xs }} {{ not 9 in xs }} {{ 'x' if false }}|{{ 'x' if "
       "false else 'y' }}",
       "True True True True True |y"},
      {"{{ xs[0] }} {{ xs[-1] }} {{ d['b'] }} {{ d.a }} {{ xs.0 }} {{ people[0].name }} {{ people[0]['name'][1] }} {{ "
       "s[1] }} {{ xs[9] }}|{{ d.zz }}|{{ s[99] }}",
       "3 2 1 x 3 Bo o é ||"},
      {"{{ xs[1:] }} {{ xs[:-1] }} {{ xs[::-1] }} {{ s[1:4] }} {{ s[::-1] }} {{ s[-3:] }} {{ s[::2] }} {{ xs[5:] }} {{ "
       "xs[-99:2] }} {{ s[4:1:-1] }} {{ (1, 2, 3)[1:] }} {{ xs[2:0] }}",
       "[1, 2] [3, 1] [2, 1, 3] éll dlröW olléH rld HloWrd [] [3, 1] oll (2, 3) []"},
      {R"({{ {'a': 1, 'b': [true, none, 'q', "it's", 1.0, (1,), ()]} }} {{ 'a\n\t\\b\x41\u00e9' }} {{ ['a\nb\'"', '\x00\x7f\u200b'] }} {{ {} }}{{ [] }})",
       "{'a': 1, 'b': [True, None, 'q', \"it's\", 1.0, (1,), ()]} a\n\t\\bAé ['a\\nb\\'\"', '\\x00\\x7f\\u200b'] {}[]"},
      {"{{ {1: 'a', 'k': 2, none: 3}[1] }} {{ {1: 'a', true: 'b'} }} {{ dict(a=1, b=2) }} {{ dict({'a': 1}, a=2) }}",
       "a {1: 'b'} {'a': 1, 'b': 2} {'a': 2}"},
      {"{{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ nothing is none }} {{ zz "
       "is undefined }} {{ n is number }} {{ f is float }} {{ n is integer }} {{ true is integer }} {{ true is number "
       "}}",
       "True True True False True True True True True False True"},
      {"{{ s is string }} {{ xs is string }} {{ xs is iterable }} {{ d is mapping }} {{ xs is sequence }} {{ d is "
       "sequence }} {{ s is sequence }} {{ n is sequence }} {{ range is callable }} {{ 'ab' is lower }} {{ 'AB' is "
       "upper }} {{ true is true }} {{ 1 is true }} {{ false is false }} {{ n is boolean }}",
       "True False True True True True True False True True True True False True False"},
      {"{{ n is eq 7 }} {{ n is gt 3 }} {{ n is le(6) }} {{ n is not ne 7 }} {{ 2 is in xs }} {{ 'upper' is filter }} "
       "{{ 'nix' is filter }} {{ 'odd' is test }} {{ xs is sameas xs }} {{ nothing is sameas none }} {{ n is defined "
       "and n is not none }}",
       "True True False True True True False True True True True"},
      {"{{ strftime_now('%d %b %Y %H:%M %A %j') }} {{ strftime_now('%Y-%m-%d') }}",
       "04 Jul 2025 09:05 Friday 185 2025-07-04"},
      {"{{ (n if n > 3 else 1) + 1 }} {{ -n }} {{ +n }} {{ - -n }} {{ not not n }} {{ -n|abs }} {{ 'a' == 'a' and 'b' "
       "!= 'c' }}",
       "8 -7 7 7 True 7 True"},
  });
}

TEST(Jinja, Filters) {
  check({
      {"{{ -3|abs }} {{ 'hello wORLD'|capitalize }} {{ 'hello wORLD (a-b)'|title }} {{ 'aB'|upper }}{{ 'aB'|lower }} "
       "{{ '  a '|trim }}| {{ 'xxaxx'|trim('x') }}",
       "3 Hello world Hello World (A-B) ABab a| a"},
      {"{{ zz|default('d') }} {{ ''|d('d') }}| {{ ''|default('d', true) }} {{ nothing|default('d') }} {{ "
       "nothing|default('d', boolean=true) }}",
       "d | d None d"},
      {"{{ xs|length }} {{ s|count }} {{ d|length }} {{ xs|first }} {{ xs|last }} {{ ''|first }}| {{ xs|sum }} {{ "
       "people|sum(attribute='age', start=1) if false }}{{ xs|min }} {{ xs|max }}",
       "3 11 2 3 2 | 6 1 3"},
      {"{{ xs|join(', ') }} {{ people|join('-', attribute='name') }} {{ [1, 'a', none]|join }} {{ 'abc'|join('.') }}",
       "3, 1, 2 Bo-al-Cy 1aNone a.b.c"},
      {"{{ xs|sort }} {{ xs|sort(reverse=true) }} {{ ['b', 'A', 'c']|sort }} {{ ['b', 'A', "
       "'c']|sort(case_sensitive=true) }} {{ people|map(attribute='name')|sort|join(',') }}",
       "[1, 2, 3] [3, 2, 1] ['A', 'b', 'c'] ['A', 'b', 'c'] al,Bo,Cy"},
      {"{{ d|dictsort }} {{ d|dictsort(reverse=true) }} {{ {'x': 2, 'y': 1}|dictsort(by='value') }} {{ d|items|list }}",
       "[('a', 'x'), ('b', 1)] [('b', 1), ('a', 'x')] [('y', 1), ('x', 2)] [('b', 1), ('a', 'x')]"},
      {"{{ xs|map('string')|list }} {{ ['a']|map('upper')|first }} {{ people|map(attribute='age', default=0)|list }} "
       "{{ people|map(attribute='name')|map('lower')|join }}",
       "['3', '1', '2'] A [3, 1, 0] boalcy"},
      {"{{ xs|select('odd')|list }} {{ xs|reject('odd')|list }} {{ xs|select('gt', 1)|list }} {{ [0, 1, '', "
       "'a']|select|list }} {{ people|selectattr('age')|map(attribute='name')|list }} {{ people|selectattr('age', "
       "'eq', 3)|list }} {{ people|rejectattr('age', 'defined')|list }} {{ people|selectattr('name', 'in', "
       "['Bo'])|list|length }}",
       "[3, 1] [2] [3, 2] [1, 'a'] ['Bo', 'al'] [{'name': 'Bo', 'age': 3}] [{'name': 'Cy'}] 1"},
      {"{{ [1, 2, 1, 'a', 'A']|unique|list }} {{ ['a', 'A']|unique(case_sensitive=true)|list }} {{ xs|reverse|list }} "
       "{{ 'abc'|reverse }} {{ 'abc'|list }} {{ d|list }}",
       "[1, 2, 'a'] ['a', 'A'] [2, 1, 3] cba ['a', 'b', 'c'] ['b', 'a']"},
      {"{{ 'aXbXc'|replace('X', '-') }} {{ 'aXbXc'|replace('X', '-', 1) }} {{ 'ab'|replace('', '.') }} {{ 3|string + "
       "'4' }}",
       "a-b-c a-bXc .a.b. 34"},
      {R"({{ 'a\nb\n\nc'|indent }}| {{ 'a\nb'|indent(2, true) }}| {{ 'a\n\nb'|indent('> ', blank=true) }})",
       "a\n    b\n\n    c|   a\n  b| a\n> \n> b"},
      {"{{ '42'|int }} {{ '4.9'|int }} {{ 'x'|int }} {{ 'x'|int(-1) }} {{ '0x1A'|int(0, 16) }} {{ '101'|int(base=2) }} "
       "{{ 3.99|int }} {{ '1.5'|float }} {{ 'x'|float(2.0) }} {{ 3|float }} {{ true|int }}",
       "42 4 0 -1 26 5 3 1.5 2.0 3.0 1"},
      {"{{ 2.5|round }} {{ 3.14159|round(2) }} {{ 2.1|round(0, 'ceil') }} {{ 2.99|round(1, 'floor') }} {{ 7|round }}",
       "2.0 3.14 3.0 2.9 7"},
      {R"({{ '<a href="x">\'&'|escape }} {{ '<b>'|e|safe }} {{ '<b>'|safe|e }} {{ '<b>'|safe|forceescape }})",
       "&lt;a href=&#34;x&#34;&gt;&#39;&amp; &lt;b&gt; <b> &lt;b&gt;"},
      {"{{ people[0]|attr('name') }}|{{ d|attr('items') is callable }}", "|True"},
  });
}

TEST(Jinja, Methods) {
  check({
      {R"({{ '  a b '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ ' a '.lstrip() }}|{{ ' a '.rstrip() }}|{{ 'abcba'.rstrip('ab') }}|{{ '\u3000a\u00a0'.strip() }})",
       "a b|a|a | a|abc|a"},
      {"{{ 'a,b,,c'.split(',') }} {{ ' a  b c '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a b c d'.split(None, 2) }} "
       "{{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b c '.rsplit(None, 1) }} {{ ''.split() }} {{ ''.split(',') }}",
       "['a', 'b', '', 'c'] ['a', 'b', 'c'] ['a', 'b,c'] ['a', 'b', 'c d'] ['a,b', 'c'] [' a b', 'c'] [] ['']"},
      {R"({{ 'a\nb\r\nc\n'.splitlines() }} {{ 'k=v=w'.partition('=') }} {{ 'k=v=w'.rpartition('=') }} {{ 'k'.partition('=') }} {{ 'k'.rpartition('=') }})",
       "['a', 'b', 'c'] ('k', '=', 'v=w') ('k=v', '=', 'w') ('k', '', '') ('', '', 'k')"},
      {"{{ s.startswith('Hé') }} {{ s.endswith(('x', 'ld')) }} {{ 'abc'.removeprefix('a') }} {{ "
       "'abc'.removesuffix('c') }} {{ 'abc'.removeprefix('z') }}",
       "True True bc ab abc"},
      {"{{ 'banana'.replace('a', 'o') }} {{ 'banana'.replace('a', 'o', 2) }} {{ 'banana'.find('n') }} {{ "
       "'banana'.rfind('n') }} {{ 'banana'.find('q') }} {{ s.find('W') }} {{ s.index('ö') }} {{ 'banana'.count('an') "
       "}} {{ 'aaa'.count('') }}",
       "bonono bonona 2 4 -1 6 7 2 4"},
      {R"({{ '-'.join(['a', 'b']) }} {{ ', '.join(d) }} {{ 'they re'.title() }} {{ "they're x1y".title() }} {{ 'hELLO'.capitalize() }} {{ 'Ab'.upper() }}{{ 'Ab'.lower() }})",
       "a-b b, a They Re They'Re X1Y Hello ABab"},
      {R"({{ '12'.isdigit() }} {{ '1a'.isdigit() }} {{ 'ab'.isalpha() }} {{ 'a1'.isalnum() }} {{ ' \n'.isspace() }} {{ ''.isspace() }} {{ 'AB'.isupper() }} {{ 'a1'.islower() }} {{ '1'.islower() }} {{ '7'.isnumeric() }})",
       "True False True True True False True True False True"},
      {"{{ d.items()|list }} {{ d.keys()|list }} {{ d.values()|list }} {{ d.get('b') }} {{ d.get('q') }} {{ d.get('q', "
       "5) }} {{ d.copy() }} {{ xs.index(1) }} {{ xs.count(3) }} {{ xs.copy() }}",
       "[('b', 1), ('a', 'x')] ['b', 'a'] [1, 'x'] 1 None 5 {'b': 1, 'a': 'x'} 1 1 [3, 1, 2]"},
  });
}

TEST(Jinja, Json) {
  check({
      {"{{ d|tojson }} {{ xs|tojson }} {{ s|tojson }} {{ nothing|tojson }} {{ [true, false, 1, 2.0, 1e20, -0.5]|tojson "
       "}} {{ (1, 2)|tojson }} {{ {}|tojson }}{{ []|tojson }}",
       R"({"b": 1, "a": "x"} [3, 1, 2] "Héllo Wörld" null [true, false, 1, 2.0, 1e+20, -0.5] [1, 2] {}[])"},
      {R"({{ '<&>\'"\\/\n\r\t\b\f\x01\x7f\u2028\U0001F600'|tojson }})",
       "\"<&>'\\\"\\\\/\\n\\r\\t\\b\\f\\u0001\177\u2028😀\""},
      {R"({{ 'é\U0001F600\x7f'|tojson(ensure_ascii=true) }})", R"("\u00e9\ud83d\ude00\u007f")"},
      {"{{ {'b': [1, {'c': []}], 'a': {}}|tojson(indent=2) }}",
       "{\n  \"b\": [\n    1,\n    {\n      \"c\": []\n    }\n  ],\n  \"a\": {}\n}"},
      {"{{ {'b': [1, 2], 'a': 'x'}|tojson(indent=4, sort_keys=true) }}",
       "{\n    \"a\": \"x\",\n    \"b\": [\n        1,\n        2\n    ]\n}"},
      {"{{ {'b': [1, 2]}|tojson(separators=(',', ':')) }} {{ {1: 2, none: 3, true: 4, 2.5: 5}|tojson }}",
       R"({"b":[1,2]} {"1": 4, "null": 3, "2.5": 5})"},
      {R"({{ [1]|tojson(indent='\t') }})", "[\n\t1\n]"},
  });
}

TEST(Jinja, WhiteSpace) {
  check({
      {"  {% if true %}  \n  a\n  {% endif %}\nb\n", "  \n  a\nb"},
      {"a  {%- if true -%}  b  {%- endif -%}  c", "abc"},
      {"a\n  {%+ if true %}\nb{% endif +%}\nc", "a\n  b\nc"},
      {"{{ 1 -}}\n  {{- 2 }}\n{{ 3 }}\n\n", "12\n3\n"},
      {"x {#- c -#} y\n  {# d #}\nz", "xy\nz"},
      {"{% raw -%}  {{ a }}\n {%- endraw %}\n b", "{{ a }} b"},
      {"a\r\nb\rc\n", "a\nb\nc"},
      {"  {{ 1 }}\n  {% set x = 2 %}\n{{ x }}", "  1\n2"},
      {"{% for x in xs %}\n  - {{ x }}\n{% endfor %}\nend", "  - 3\n  - 1\n  - 2\nend"},
      {"\n\n{%- if true %}a{% endif %}\n\n", "a"},
      {"a {%- set x = 1 +%} \nb", "a \nb"},
      {"{% if true %}{% if true %}\n  {% endif %}{% endif %}\n", ""},
  });
}

TEST(Jinja, ErrorsSayWhere) {
  check_errors({
      {"a\n  {{ b.c }}", "line 2, column 7: 'b' is undefined"},
      {"{{ 1 +\n\n   'a' }}", "line 1, column 6: cannot add int and str"},
      {"{% if x %}", "line 1, column 11: the template ends before 'endif'"},
      {"a\n{% endif %}", "line 2, column 4: tag 'endif' is not supported here"},
      {"{% for x in xs %}\n{% endif %}", "line 2, column 4: tag 'endif' is not supported here"},
      {"é{{ xs | nix }}", "line 1, column 11: filter 'nix' is not known"},
      {"{{ xs is nix }}", "line 1, column 10: test 'nix' is not known"},
      {"{{ (1 }}", "line 1, column 7: unexpected '}'"},
      {"{{ 'abc }}", "line 1, column 4: a string has no end"},
      {"{{ 1", "line 1, column 3: a tag has no end '}}'"},
      {"{{ }}", "line 1, column 4: expected an expression, found '}}'"},
      {"{{ 1 2 }}", "line 1, column 6: unexpected '2' at the end of a tag"},
      {"{{ a.% }}", "line 1, column 6: expected a name, found '%'"},
      {"{# never", "line 1, column 1: a comment has no end"},
      {"{% raw %} {{", "line 1, column 1: 'raw' has no 'endraw'"},
      {"{% set true = 1 %}", "line 1, column 8: 'true' cannot be set"},
      {"{% break %}", "line 1, column 4: 'break' outside of a loop"},
      {"{% for x in xs %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
       "line 1, column 36: 'break' outside of a loop"},
      {"{{ n() }}", "line 1, column 5: a value of type int cannot be called"},
      {"{{ nix(1) }}", "line 1, column 7: 'nix' is undefined"},
      {"{{ 1 / 0 }}{{ 2 }}", "line 1, column 6: division by zero"},
      {"{{ 5 % 0 }}", "line 1, column 6: division by zero"},
      {"{% for x in n %}{% endfor %}", "line 1, column 4: a value of type int is not iterable"},
      {"{% set a, b = [1] %}", "line 1, column 4: 1 values for 2 variables"},
      {"{% set d.a = 1 %}", "line 1, column 8: attributes are set on namespaces only, not on dict"},
      {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "line 1, column 35: macro 'm' takes 1 arguments, not 2"},
      {"{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", "line 1, column 35: macro 'm' has no parameter 'b'"},
      {"{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}", "line 1, column 35: parameter 'a' is given twice"},
      {"{% macro m(a) %}\n{{ a + 1 }}{% endmacro %}\n{{ m('x') }}", "line 2, column 6: cannot add str and int"},
      {"{{ xs|join(1, 2, 3, 4) }}", "line 1, column 7: 'join' takes 2 arguments, not 4"},
      {"{{ xs|join(q=1) }}", "line 1, column 7: 'join' does not take all of its named arguments ('q', ...)"},
      {"{{ s.split(1) }}", "line 1, column 11: 'split' takes a str, not int"},
      {"{{ s.index('q') }}", "line 1, column 11: 'index': the text does not occur"},
      {"{{ range(1, 2, 0) }}", "line 1, column 9: the step of range() is zero"},
      {"{{ xs|tojson(indent=[]) }}", "line 1, column 7: 'indent' of tojson must be an integer or a str, not list"},
      {"{{ range|tojson }}", "line 1, column 10: an object of type function is not JSON serializable"},
      {"{{ {[]: 1} }}", "line 1, column 4: a list cannot be a key"},
      {"{{ 1 < 'a' }}", "line 1, column 4: int and str have no order"},
      {"{{ 1 in 'a' }}", "line 1, column 4: 'in <str>' needs a str on its left, not int"},
      {"{{ 9223372036854775807 + 1 }}", "line 1, column 24: an integer leaves 64 bits"},
      {"{{ 99999999999999999999 }}", "line 1, column 4: the number 99999999999999999999 leaves 64 bits"},
      {"{{ 2 ** 99999999 }}", "line 1, column 6: an integer leaves 64 bits"},
      {"{{ xs[::0] }}", "line 1, column 6: the step of a slice is zero"},
      {"{{ d[1:] }}", "line 1, column 5: a value of type dict has no slices"},
      {"{{ nix|length }}{{ nix.a }}", "line 1, column 23: 'nix' is undefined"},
      {"{{ '%s' % 1 }}", "line 1, column 9: operator % does not take str and int"},
  });
}

TEST(Jinja, WhatAnUndefinedValueCanDo) {
  check({
      {"[{{ nix }}{{ nix ~ '' }}{{ nix|length }}{{ nix == other }}{{ nix is defined }}{{ 'a' if nix else 'b' }}{{ "
       "nix|list }}]",
       "[0TrueFalseb[]]"},
      {"{% for x in nix %}a{% else %}b{% endfor %}{{ d.q is undefined }}{{ d['q'] or 'c' }}", "bTruec"},
  });
}

TEST(Jinja, TheTemplateRefuses) {
  const Result<ChatTemplate> chat = ChatTemplate::parse("{{ 1 }}{{ raise_exception('Only ' ~ n ~ ' roles!') }}");
  ASSERT_TRUE(chat);
  const Result<std::string> text = chat->render(input());
  ASSERT_FALSE(text);
  EXPECT_TRUE(refused_by_template(text.error()));
  EXPECT_EQ(text.error().message, "Only 7 roles!");
  EXPECT_FALSE(refused_by_template(ChatTemplate::parse("{{").error()));
  EXPECT_FALSE(refused_by_template(ChatTemplate::parse("{{ 1 / 0 }}")->render(input()).error()));
}

TEST(Jinja, NothingLeadsOutOfTheTemplate) {
  check({{"{{ xs.__class__ }}{{ ''.__class__ }}{{ d['__init__'] }}{{ range.__globals__ }}{{ self }}{{ environ }}", ""},
         {"{% set ns = namespace() %}{% set ns.me = ns %}{% set ns.l = [ns] %}{{ ns }}{{ ns.l }}{{ ns.l == ns.l }}{{ "
          "ns.me.me.me == ns }}",
          "<Namespace>[<Namespace>]TrueTrue"}});
  check_errors({
      {"{{ ''.__class__.__mro__ }}", "line 1, column 16: 'str object' has no attribute '__class__'"},
      {"{{ xs.append(1) }}", "line 1, column 13: 'list object' has no attribute 'append'"},
      {"{{ d.update({}) }}", "line 1, column 12: 'dict object' has no attribute 'update'"},
      {"{{ d.pop('a') }}", "line 1, column 9: 'dict object' has no attribute 'pop'"},
      {"{% include 'a' %}", "line 1, column 4: tag 'include' is not supported here"},
      {"{% import 'a' as b %}", "line 1, column 4: tag 'import' is not supported here"},
      {"{% from 'a' import b %}", "line 1, column 4: tag 'from' is not supported here"},
      {"{% extends 'a' %}", "line 1, column 4: tag 'extends' is not supported here"},
      {"{% block a %}{% endblock %}", "line 1, column 4: tag 'block' is not supported here"},
      {"{% do xs %}", "line 1, column 4: tag 'do' is not supported here"},
      {"{% for x in xs recursive %}{% endfor %}", "line 1, column 16: recursive loops are not supported"},
      {"{{ range(*xs) }}", "line 1, column 10: arguments unpacked with '*' are not supported"},
      {"{{ dict(**d) }}", "line 1, column 9: arguments unpacked with '**' are not supported"},
      {"{{ open('a') }}", "line 1, column 8: 'open' is undefined"},
  });
}

/// The template stops at the bound that `why` names.
void expect_stop(std::string_view source, std::string_view why, const jinja::Limits& limits = {}) {
  const std::string message = rendered(source, input(), limits);
  EXPECT_NE(message.find(why), std::string::npos) << source.substr(0, 200) << ": " << message.substr(0, 200);
}

TEST(Jinja, BoundsStopATemplate) {
  expect_stop("{% set r = range(99999) %}{% for a in r %}{% if -1 in r %}{% endif %}{% endfor %}",
              "takes more than 20000000 steps");
  expect_stop("{% for a in range(99999) %}{{ 'x' * 10000 }}{% endfor %}", "writes more than 67108864 bytes");
  expect_stop("{{ 'x' * 9999999999 }}", "makes more than 536870912 bytes");
  expect_stop("{{ [1] * 9223372036854775807 }}", "makes more than 536870912 bytes");
  expect_stop("{% set ns = namespace(t='xxxxxxxx') %}{% for i in range(60) %}{% set ns.t = ns.t + ns.t %}{% endfor %}",
              "makes more than 536870912 bytes");
  expect_stop("{% set ns = namespace(t=[1]) %}{% for i in range(60) %}{% set ns.t = ns.t + ns.t %}{% endfor %}",
              "makes more than 536870912 bytes");
  expect_stop(
      "{% set ns = namespace(t='x') %}{% for i in range(60) %}{% set ns.t = ns.t|replace('x', 'xx') %}{% endfor %}",
      "more than");
  expect_stop("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nests deeper than 500 levels");
  expect_stop("{% macro m() %}{% call m() %}{% endcall %}{% endmacro %}{{ m() }}", "nests deeper than 500 levels");
  expect_stop("{{ range(100001) }}", "range() has more than 100000 elements");
  expect_stop("{{ range(-9223372036854775807, 9223372036854775807, 9223372036854775807)|list }}",
              "[-9223372036854775807, 0]");
  expect_stop("{% set ns = namespace(t=[]) %}{% for i in range(300) %}{% set ns.t = [ns.t] %}{% endfor %}",
              "values nest deeper than 200 levels");
  const jinja::Limits few{.steps = 1000, .bytes = 100'000, .output = 50, .depth = 20};
  EXPECT_EQ(rendered("{{ 'x' * 50 }}", input(), few), std::string(50, 'x'));
  expect_stop("{{ 'x' * 51 }}", "writes more than 50 bytes", few);
  expect_stop("{% for i in range(999) %}{% endfor %}", "takes more than 1000 steps", few);
  expect_stop("{{ ('x' * 100001)|length }}", "makes more than 100000 bytes", few);
  expect_stop("{{ ((((((((((((((((((((((1)+1)+1)+1)+1)+1)+1)+1)+1)+1)+1)+1)+1)+1)+1)+1)+1)+1)+1)+1)+1)+1) }}",
              "nests deeper than 20 levels", few);
}

TEST(Jinja, BoundsOfTheSource) {
  const auto times = [](int n, std::string_view what) {
    std::string text;
    while (n-- > 0) text += what;
    return text;
  };
  for (const auto& [open, close] : std::vector<std::pair<const char*, const char*>>{{"(", ")"},
                                                                                    {"[", "]"},
                                                                                    {"{'a': ", "}"},
                                                                                    {"-", ""},
                                                                                    {"not ", ""},
                                                                                    {"xs[", "]"},
                                                                                    {"f(", ")"},
                                                                                    {"1 if 1 else ", ""},
                                                                                    {"1 is in [", "]"}})
    expect_stop("{{ " + times(5000, open) + "1" + times(5000, close) + " }}", "nested deeper than 150 levels");
  for (const char* open : {"{% if 1 %}", "{% for x in xs %}", "{% macro m() %}", "{% filter upper %}", "{% with %}",
                           "{% call m() %}", "{% set a %}"})
    expect_stop(times(5000, open), "nested deeper than 150 levels");
  expect_stop("{{ 1" + times(5000, " + 1") + " }}", "nests deeper than 400 levels");
  expect_stop("{{ xs" + times(5000, "|list") + " }}", "nests deeper than 400 levels");
  expect_stop("{{ xs" + times(5000, "[0]") + " }}", "nests deeper than 400 levels");
  expect_stop("{{ 1" + times(5000, " ~ 1") + " }}", "nests deeper than 400 levels");
  expect_stop("{{ 1" + times(5000, " if 1") + " }}", "nests deeper than 400 levels");
  EXPECT_EQ(rendered("{{ 1" + times(5000, " == 1") + " }}"), "True");
  EXPECT_EQ(rendered(times(5000, "{% if 1 %}a{% endif %}")), times(5000, "a"));
  expect_stop(std::string((size_t(1) << 20) + 1, 'x'), "has more than 1048576 bytes");
}

TEST(ChatTemplate, VariablesOfThePrompt) {
  const std::string_view source =
      "{% for m in messages %}{{ m.role }}:{{ m.content }}:{{ m.thinking }}:{{ m|tojson }};{% endfor %}|{{ tools }}|{{ "
      "documents is none }}|"
      "{{ add_generation_prompt }}|{{ bos_token }}|{{ eos_token is defined }}|{{ enable_thinking }}";
  ChatInput given;
  given.messages = Json::parse(
      R"([{"role": "user", "content": "a", "name": null}, {"role": "assistant", "reasoning_content": "r", "content": null}])");
  given.bos_token = "<s>";
  EXPECT_EQ(rendered(source, given),
            "user:a::{\"role\": \"user\", \"content\": \"a\"};assistant::r:{\"role\": \"assistant\", "
            "\"reasoning_content\": \"r\", \"thinking\": \"r\"};"
            "|None|True|True|<s>|False|");
  given.messages = Json::parse(R"([{"role": "assistant", "reasoning_content": "r", "thinking": "t"}])");
  given.tools = Json::parse(R"([{"type": "function", "function": null}])");
  given.add_generation_prompt = false;
  given.extra = Json::parse(R"({"bos_token": "<B>", "enable_thinking": false, "documents": []})");
  EXPECT_EQ(rendered(source, given),
            "assistant::t:{\"role\": \"assistant\", \"reasoning_content\": \"r\", \"thinking\": \"t\"};"
            "|[{'type': 'function', 'function': None}]|False|False|<B>|False|False");
  given.extra = Json::parse(R"({"a": 18446744073709551615, "b": -9223372036854775808, "c": 1.0})");
  EXPECT_EQ(rendered("{{ a }} {{ b }} {{ c }}", given), "1.8446744073709552e+19 -9223372036854775808 1.0");
}

TEST(ChatTemplate, MessagesThatAreNone) {
  ChatInput given;
  given.messages = Json::object();
  EXPECT_EQ(rendered("a", given), "chat template: the messages are not an array");
  given.messages = Json::parse("[{}, 1]");
  EXPECT_EQ(rendered("a", given), "chat template: message 1 is not an object");
  given.messages = Json::array();
  given.extra = 1;
  EXPECT_EQ(rendered("a", given), "chat template: the extra variables are not an object");
  given.extra = Json::object();
  Json deep = 1;
  for (int i = 0; i < 300; ++i) deep = Json::array({std::move(deep)});
  given.extra["deep"] = std::move(deep);
  EXPECT_EQ(rendered("a", given), "chat template: the messages nest deeper than 200 levels");
}

TEST(ChatTemplate, RendersTheSameOnAllThreads) {
  const Result<ChatTemplate> chat = ChatTemplate::parse(
      "{% macro m(a) %}{{ a|upper }}{% endmacro %}{% for x in xs|map('string') %}{{ m(x ~ 'a') }}{{ loop.length }}{% "
      "endfor %}");
  ASSERT_TRUE(chat);
  std::vector<std::string> texts(4);
  std::vector<std::thread> threads;
  for (std::string& text : texts)
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) text = chat->render(input()).or_throw();
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) EXPECT_EQ(text, "3A31A32A3");
}

TEST(ChatTemplate, PlainPrompt) {
  EXPECT_EQ(plain_prompt(Json::parse(R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": [
      {"type": "text", "text": "a"}, {"type": "image_url"}, 1, {"type": "text", "text": "b\nc"}]}, {"role": "assistant", "content": null},
      {"content": "no role"}, {"role": 3, "content": 4}, {"role": "", "content": "x"}, "none"])"),
                         true),
            "System: Be brief.\nUser: ab\nc\nAssistant: \nUser: no role\nUser: \n: x\nAssistant:");
  EXPECT_EQ(plain_prompt(Json::array(), false), "");
}

}  // namespace
}  // namespace ridge::text
