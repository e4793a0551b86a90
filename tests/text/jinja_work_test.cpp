// Templates that want to take all time, all memory or all of the stack: each ends within bounds, whatever it does.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "text/chat_template.h"
#include "text/finder.h"

namespace ridge::text {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kMostSeconds = 30;
#else
constexpr double kMostSeconds = 2;
#endif

double cpu_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

/// Renders, and says how it ended in a few words.
std::string ending(const std::string& source, const jinja::Limits& limits = {}) {
  const Result<ChatTemplate> chat = ChatTemplate::parse(source);
  if (!chat) return chat.error().message;
  ChatInput input;
  input.extra = {{"xs", Json::array()}, {"d", Json::object()}};
  for (int i = 0; i < 1000; ++i) input.extra["xs"].push_back(i % 7);
  const Result<std::string> text = chat->render(input, limits);
  return text ? "text" : text.error().message;
}

void expect_bounded(const std::string& source, const jinja::Limits& limits = {}, double most = kMostSeconds) {
  const double start = cpu_seconds();
  const std::string end = ending(source, limits);
  EXPECT_LT(cpu_seconds() - start, most) << source.substr(0, 200) << "\n" << end;
}

TEST(JinjaWork, SearchesAreLinear) {
  // The first of these never ended where search went back to each place in turn.
  for (const char* source : {
           R"({% if ("a" * 8000000 + "c") in ("a" * 16000000) %}{% endif %}x)",
           R"({{ ("a" * 8000000).find("a" * 4000000 + "c") }})",
           R"({{ ("a" * 8000000).rfind("c" + "a" * 4000000) }})",
           R"({{ ("a" * 8000000).count("a" * 4000000 + "c") }})",
           R"({{ ("a" * 8000000).index("a" * 4000000 + "c") }})",
           R"({{ ("a" * 8000000).replace("a" * 4000000 + "c", "x") | length }})",
           R"({{ ("a" * 8000000) | replace("a" * 4000000 + "c", "x") | length }})",
           R"({{ ("a" * 8000000).split("a" * 4000000 + "c") | length }})",
           R"({{ ("a" * 8000000).rsplit("c" + "a" * 4000000) | length }})",
           R"({{ ("a" * 8000000).partition("a" * 4000000 + "c") | length }})",
           R"({{ ("a" * 8000000).rpartition("c" + "a" * 4000000) | length }})",
           R"({{ ("ab" * 4000000).strip("xyzab" * 1000000) | length }})",
           R"({{ ("ab" * 4000000).strip("é" * 2000000 + "ab") | length }})",
           R"({{ ("1_" * 4000000 + "1") | float }}{{ ("1_" * 4000000 + "1") | int }})",
       })
    expect_bounded(source);
}

TEST(JinjaWork, RepeatedWorkIsCounted) {
  const std::string t =
      R"({% set t = "ab c\n" * 1000000 %}{% set u = "ab c\n" * 1000000 %}{% for i in range(100000) %}{% for j in range(1000) %})";
  const std::string end = "{% endfor %}{% endfor %}";
  for (const char* body : {"{% if 'zz' in t %}{% endif %}",
                           "{% if t == u %}{% endif %}",
                           "{% if t < u %}{% endif %}",
                           "{% if t[5] %}{% endif %}",
                           "{% if t[-5] %}{% endif %}",
                           "{% if t[1:2] %}{% endif %}",
                           "{% if t[::900000] %}{% endif %}",
                           "{% if t | length %}{% endif %}",
                           "{% if t.find('zz') %}{% endif %}",
                           "{% if t.count('zz') %}{% endif %}",
                           "{% if t.startswith(u) %}{% endif %}",
                           "{% if t.endswith((u, u)) %}{% endif %}",
                           "{% if t.isdigit() %}{% endif %}",
                           "{% if t.isalpha() %}{% endif %}",
                           "{% if t.isspace() %}{% endif %}",
                           "{% if t.islower() %}{% endif %}",
                           "{% if t is lower %}{% endif %}",
                           "{% if t | int %}{% endif %}",
                           "{% if t | float %}{% endif %}",
                           "{% if t.strip('x') %}{% endif %}",
                           "{% if t | trim %}{% endif %}",
                           "{% if t.upper() %}{% endif %}",
                           "{% if t | title %}{% endif %}",
                           "{% if t.splitlines() %}{% endif %}",
                           "{% if t.split() %}{% endif %}",
                           "{% if t.rsplit(none, 3) %}{% endif %}",
                           "{% if t | e %}{% endif %}",
                           "{% if t | indent %}{% endif %}",
                           "{% if t | tojson %}{% endif %}",
                           "{% if [t] | string %}{% endif %}",
                           "{% if t | list %}{% endif %}",
                           "{% if t | first %}{% endif %}",
                           "{% if t | reverse %}{% endif %}",
                           "{% if t ~ u %}{% endif %}",
                           "{% if t + u %}{% endif %}",
                           "{% if [t, u] | join(t) %}{% endif %}",
                           "{% if t.join([u, u]) %}{% endif %}",
                           "{% if {t: 1}[u] %}{% endif %}",
                           "{% if {t: 1} == {u: 1} %}{% endif %}",
                           "{% if xs[t] %}{% endif %}",
                           "{% if d[t] %}{% endif %}",
                           "{% if d[t] is defined %}{% endif %}",
                           "{% if xs | reject('defined') | list %}{% endif %}",
                           "{% if xs | selectattr('q') | list %}{% endif %}",
                           "{% if xs | map('string') | list %}{% endif %}",
                           "{% if xs | sort %}{% endif %}",
                           "{% if xs | unique | list %}{% endif %}",
                           "{% if xs | max %}{% endif %}",
                           "{% if xs | sum %}{% endif %}",
                           "{% if xs | join(',') %}{% endif %}",
                           "{% if xs | reverse | list %}{% endif %}",
                           "{% if 9 in xs %}{% endif %}",
                           "{% if xs == xs[:] %}{% endif %}",
                           "{% if xs.index(6) %}{% endif %}",
                           "{% if xs.count(6) %}{% endif %}",
                           "{% if range(1000) %}{% endif %}",
                           "{% if xs | tojson(indent=4) %}{% endif %}",
                           "{% if {t: 1} | tojson(sort_keys=true) %}{% endif %}",
                           "{% if {t: 1} | dictsort %}{% endif %}",
                           "{% if namespace(a=t) %}{% endif %}",
                           "{% if dict(a=t) %}{% endif %}",
                           "{% if undefined_name %}{% endif %}",
                           "{% set x %}{{ t }}{% endset %}",
                           "{% filter upper %}{{ t }}{% endfilter %}",
                           "{% with a = t %}{% endwith %}",
                           "{% macro m(a, b=2) %}{{ a }}{% endmacro %}{{ m(1) }}",
                           "{{ loop.cycle(1, 2) }}{{ loop.changed(t) }}",
                           "{% if strftime_now('%Z' * 200) %}{% endif %}",
                           "{% if t.replace('', 'x') %}{% endif %}",
                           "{% if t.replace(' ', '') %}{% endif %}",
                           "{% if t is filter %}{% endif %}",
                           "{% if t is test %}{% endif %}",
                           "{% if t in [u] %}{% endif %}",
                           "{% if t is in ([u]) %}{% endif %}",
                           "{% if xs | map(attribute='a.b.c') | list %}{% endif %}"})
    // A twentieth of the steps in a tenth of the time: all cost about what a step is meant to cost.
    expect_bounded(t + body + end, {.steps = 1'000'000, .bytes = uint64_t(128) << 20}, kMostSeconds / 10);
}

TEST(JinjaWork, LongListsOfNamesAreCounted) {
  std::string parameters, arguments, variables;
  for (int i = 0; i < 20000; ++i) {
    parameters += fmt::format("{}a{}=1", i ? "," : "", i);
    arguments += fmt::format("{}a{}=1", i ? "," : "", i);
    variables += fmt::format("{{% set a{} = 1 %}}", i);
  }
  variables.resize(variables.rfind("{%", 900000));
  for (const std::string& source : std::initializer_list<std::string>{
           "{{ namespace(" + arguments + ") }}", "{{ dict(" + arguments + ") }}", "{{ 'a' | join(" + arguments + ") }}",
           "{% macro m(" + parameters + ") %}{% endmacro %}{{ m() }}", variables,
           "{% macro m(x) %}{% endmacro %}{{ m(" + arguments + ") }}"})
    expect_bounded(source);
  EXPECT_EQ(ending("{{ " + std::string(300, 'a') + " }}"),
            "chat template: line 1, column 4: a name has more than 256 bytes");
}

TEST(JinjaWork, RecursionEndsWhereValuesAndTreesAreMade) {
  const auto repeated = [](const char* part, int n) {
    std::string text;
    for (int i = 0; i < n; ++i) text += part;
    return text;
  };
  // Each of these made a chain that something walked with the stack: parsing, evaluating, comparing, writing, or the
  // end.
  const std::string wrapped = "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = ";
  for (const std::string& source :
       std::initializer_list<std::string>{wrapped + "[ns.x] %}{% endfor %}",
                                          wrapped + "{'a': ns.x} %}{% endfor %}",
                                          wrapped + "(ns.x, 1) %}{% endfor %}",
                                          wrapped + "[ns.x.index] %}{% endfor %}",
                                          wrapped + "[ns.x.copy, ns.x.count] %}{% endfor %}",
                                          wrapped + "[ns.x] %}{% if ns.x == [ns.x] %}{% endif %}{% endfor %}",
                                          wrapped + "[ns.x] | list %}{{ ns.x | tojson }}{% endfor %}",
                                          "{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}",
                                          "{% macro m() %}{{ caller() }}{% endmacro %}{% macro n() %}{% call m() %}{{ "
                                          "n() }}{% endcall %}{% endmacro %}{{ n() }}",
                                          "{{ 'a' | map(" + repeated("'map',", 50000) + "'upper') | list }}",
                                          "{{ " + repeated("[", 50000) + " }}",
                                          "{{ " + repeated("(", 50000) + " }}",
                                          "{{ " + repeated("{1:", 50000) + " }}",
                                          "{{ " + repeated("not ", 50000) + "1 }}",
                                          "{{ " + repeated("-", 50000) + "1 }}",
                                          "{{ 1" + repeated("+1", 50000) + " }}",
                                          "{{ a" + repeated(".a", 50000) + " }}",
                                          "{{ a" + repeated("[0", 50000) + " }}",
                                          "{{ a" + repeated("|e", 50000) + " }}",
                                          "{{ a" + repeated("(", 50000) + " }}",
                                          "{{ 1" + repeated(" if 1 else 1", 50000) + " }}",
                                          "{{ 1" + repeated(" if 1", 50000) + " }}",
                                          "{{ 1" + repeated(" ~ 1", 50000) + " }}",
                                          "{{ 1" + repeated(" and 1", 50000) + " }}",
                                          repeated("{% if 1 %}", 50000),
                                          repeated("{% for a in b %}", 50000),
                                          repeated("{% macro m() %}", 50000),
                                          repeated("{% call m() %}", 50000),
                                          repeated("{% filter e %}", 50000),
                                          repeated("{% set a %}", 50000),
                                          repeated("{% with %}", 50000),
                                          "{% if 1 %}" + repeated("{% elif 1 %}", 50000) + "{% endif %}",
                                          "{% set " + repeated("(", 50000) + "a = 1 %}",
                                          "{{ 1" + repeated(" is defined", 50000) + " }}"})
    expect_bounded(source);
  EXPECT_EQ(ending(wrapped + "[ns.x.index] %}{% endfor %}"),
            "chat template: line 1, column 73: values nest deeper than 200 levels");
  EXPECT_EQ(ending("{{ 'a' | map(" + repeated("'map',", 1000) + "'upper') | list }}"),
            "chat template: line 1, column 10: the template nests deeper than 500 levels");
}

TEST(JinjaWork, MemoryIsBounded) {
  rusage before = {}, after = {};
  getrusage(RUSAGE_SELF, &before);
  for (const char* source :
       {"{{ ',' * 16000000 | length }}{% for p in (',' * 16000000).split(',') %}{% endfor %}",
        "{% for c in 'a' * 16000000 %}{% endfor %}", "{{ ('\\n' * 16000000).splitlines() | length }}",
        "{{ ('\\n' * 16000000) | indent | length }}", "{{ ('a ' * 8000000).split() | length }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% for i in range(100000) %}{% macro m() %}{% endmacro %}{% set a = 'x' * 1000 %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(100000) %}{% set ns.x = [ns.x, ns.x] | string %}{% endfor "
        "%}"})
    ending(source, {.bytes = uint64_t(64) << 20});
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 400 << 10) << "KiB";
}

TEST(Finder, FindsTheFirstAndTheLastPlace) {
  for (const std::string_view text : {"", "a", "ab", "aab", "abab", "ababac", "aaaaab", "xabababacy", "abcabcabd"})
    for (const std::string_view what : {"a", "b", "ab", "aab", "ababac", "aaab", "abcabd", "zz", "ba"}) {
      EXPECT_EQ(Finder(what).find(text), text.find(what)) << what << " in " << text;
      EXPECT_EQ(Finder(what, true).find(text), text.rfind(what)) << what << " in " << text;
    }
}

}  // namespace
}  // namespace ridge::text
