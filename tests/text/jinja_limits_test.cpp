// Hostile templates: each must end with an error, soon, and within the stack.

#include <gtest/gtest.h>

#include <string>

#include "text/chat_template.hpp"

namespace lockstep::text {
namespace {

std::string repeat(std::string_view part, std::size_t count) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i) all += part;
  return all;
}

/// The kind of error that a template ends with, when compiled or when run.
ErrorKind failure(const std::string& source, const TemplateLimits& limits = {}) {
  const auto compiled = ChatTemplate::compile(source, limits);
  if (!compiled) return compiled.error().kind;
  ChatOptions options;
  options.extra = OrderedJson{{"s", std::string(200'000, 'a')}, {"d", {{"k", 1}}}};
  const auto rendered = compiled->render(OrderedJson::array(), options);
  EXPECT_FALSE(rendered) << "rendered " << rendered->text.size() << " bytes";
  return rendered ? ErrorKind::Internal : rendered.error().kind;
}

TEST(JinjaLimits, NestingInTheSource) {
  const std::size_t many = 60'000;
  for (const std::string& source : {
           "{{ " + repeat("(", many) + "1" + repeat(")", many) + " }}",
           "{{ " + repeat("[", many) + repeat("]", many) + " }}",
           "{{ " + repeat("{'a':", many) + "1" + repeat("}", many) + " }}",
           "{{ " + repeat("not ", many) + "1 }}",
           "{{ " + repeat("- ", many) + "1 }}",
           "{{ x" + repeat(".a", many) + " }}",
           "{{ x" + repeat("[0]", many) + " }}",
           "{{ x" + repeat("()", many) + " }}",
           "{{ x" + repeat("|trim", many) + " }}",
           "{{ " + repeat("1 if 1 else ", many) + "1 }}",
           "{{ 1 " + repeat("if 1 ", many) + " }}",
           "{{ " + repeat("f(", many) + repeat(")", many) + " }}",
           "{{ " + repeat("x[", many) + "0" + repeat("]", many) + " }}",
           repeat("{% if 1 %}", many) + repeat("{% endif %}", many),
           repeat("{% for x in y %}", many) + repeat("{% endfor %}", many),
           repeat("{% macro m() %}", many) + repeat("{% endmacro %}", many),
           "{% for " + repeat("(", many) + "a" + repeat(")", many) + " in x %}{% endfor %}",
       }) {
    SCOPED_TRACE(source.substr(0, 40));
    EXPECT_EQ(failure(source), ErrorKind::Limit);
  }
  EXPECT_EQ(failure("{{ " + repeat("(", many)), ErrorKind::Invalid);
  EXPECT_EQ(failure("{{ " + repeat("x is not ", many) + "none }}"), ErrorKind::Invalid);
}

TEST(JinjaLimits, LongChainsAreNotNesting) {
  const std::string terms = repeat(" + 1", 5000);
  for (const std::string& source :
       {"{{ 0" + terms + " }}", "{{ ''" + repeat(" ~ 'x'", 5000) + " }}", "{{ 1" + repeat(" and 1", 5000) + " }}",
        "{{ 1" + repeat(" == 1", 5000) + " }}", "{% if 0 %}" + repeat("{% elif 0 %}", 5000) + "{% endif %}"}) {
    SCOPED_TRACE(source.substr(0, 40));
    const auto compiled = ChatTemplate::compile(source);
    ASSERT_TRUE(compiled) << compiled.error().message;
    const auto rendered = compiled->render(OrderedJson::array(), {});
    EXPECT_TRUE(rendered) << rendered.error().message;
  }
}

TEST(JinjaLimits, Steps) {
  TemplateLimits limits;
  limits.max_steps = 1'000'000;
  for (const std::string source : {
           "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
           "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
           "{% for a in range(99999) %}{{ s | replace('a', 'b') | length }}{% endfor %}",
           "{% for a in range(99999) %}{% set x = s * 9 == s * 9 %}{% endfor %}",
           "{% for a in range(99999) %}{{ ('b' in s) ~ s.find('aaab') ~ s.count('ab') }}{% endfor %}",
           "{% for a in range(99999) %}{{ s | upper | trim('b') | length }}{% endfor %}",
           "{{ s.rfind('a' * 100000 ~ 'b' ~ s) }}{{ s.rsplit('b' ~ 'a' * 100000) | length }}{{ s.rfind('b' ~ 'a' * "
           "99999) }}",
           "{% set t = range(99999) | list %}{% for a in t %}{{ t | sort | length }}{% endfor %}",
           "{% set t = range(99999) | list %}{{ t | unique | list | length }}",
           "{% set t = range(99999) | list %}{% for a in t %}{% if -1 in t %}{% endif %}{% endfor %}",
           "{% set ns = namespace(t=()) %}{% for a in range(200) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}{{ {ns.t: "
           "1} }}",
           "{% set ns = namespace(t=(), u=()) %}{% for a in range(200) %}{% set ns.t = (ns.t, ns.t) %}{% set ns.u = "
           "(ns.u, "
           "ns.u) %}{% endfor %}{{ ns.t == ns.u }}",
           "{% set ns = namespace(t=[], u=[]) %}{% for a in range(200) %}{% set ns.t = [ns.t, ns.t] %}{% set ns.u = "
           "[ns.u, "
           "ns.u] %}{% endfor %}{{ ns.t < ns.u }}",
       }) {
    SCOPED_TRACE(source);
    EXPECT_EQ(failure(source, limits), ErrorKind::Limit);
  }
}

TEST(JinjaLimits, Memory) {
  TemplateLimits limits;
  limits.max_memory_bytes = std::size_t{32} << 20;
  limits.max_steps = 2'000'000;
  for (const std::string source : {
           "{{ range(10 ** 9) | length }}",
           "{{ range(-(2 ** 62), 2 ** 62, 1) | length }}",
           "{{ 'a' * 10 ** 12 }}",
           "{{ [1] * 10 ** 12 }}",
           "{{ '' * 10 ** 18 }}{{ [] * 10 ** 18 }}{{ 10 ** 19 }}",
           "{{ 'a'.center(10 ** 15) }}",
           "{{ 'a'.zfill(10 ** 15) }}",
           "{{ '\t'.expandtabs(10 ** 15) }}",
           "{{ 'a' | indent(10 ** 15, true) }}",
           "{{ 'a' | center(10 ** 15) }}",
           "{{ '%1000000000d' % 1 }}",
           "{{ '%.1000000000f' % 1.0 }}",
           "{{ '{:>1000000000}'.format(1) }}",
           "{{ [1] | batch(10 ** 12, 'x') | list }}",
           "{{ [1] | tojson(indent=10 ** 12) }}",
           "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
           "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor "
           "%}",
           "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
           "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
           "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | "
           "tojson }}",
           "{% set ns = namespace(x=[1]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}",
           "{% set ns = namespace(x={}) %}{% for i in range(9999) %}{% set ns.x = {'a': ns.x} %}{% endfor %}",
           "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x].index %}{% endfor %}",
           "{% for i in range(99999) %}{% for j in range(99) %}{{ s }}{% endfor %}{% endfor %}",
           "{% set ns = namespace(x='') %}{% for i in range(99999) %}{% set x %}{{ s * 99 }}{% endset %}{% set ns.x = "
           "ns.x ~ x %}"
           "{% endfor %}",
           "{{ (s * 1000) | list | length }}",
           "{{ s | list | map('center', 100000) | list | length }}",
       }) {
    SCOPED_TRACE(source);
    EXPECT_EQ(failure(source, limits), ErrorKind::Limit);
  }
}

TEST(JinjaLimits, Recursion) {
  for (const std::string source : {
           "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
           "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
           "{% macro m(x) %}{{ m([x]) }}{% endmacro %}{{ m(1) }}",
           "{% macro m(x=m()) %}{% endmacro %}{{ m() }}",
           "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}",
           "{% macro m() %}{% filter upper %}{% for x in [1] %}{% if m() %}{% endif %}{% endfor %}{% endfilter %}{% "
           "endmacro %}{{ m() }}",
           "{% set ns = namespace() %}{% macro m() %}{{ ns.m() }}{% endmacro %}{% set ns.m = m %}{{ m() }}",
           "{% set ns = namespace(l=none) %}{% for x in range(9999) if ns.l is none or not ns.l.last %}{% set ns.l = "
           "loop %}{{ "
           "loop.last }}{% endfor %}{{ [] * (10 ** 19) }}",
       }) {
    SCOPED_TRACE(source);
    EXPECT_EQ(failure(source), ErrorKind::Limit);
  }
}

/// Things that point at each other; sanitizers see whether they are freed.
TEST(JinjaLimits, CyclesAreFreed) {
  for (const std::string source : {
           "{% set ns = namespace() %}{% set ns.me = ns %}{% set ns.list = [ns, [ns]] %}{{ ns.me.me is defined }}",
           "{% set ns = namespace() %}{% macro m() %}{% endmacro %}{% set ns.m = m %}{% set ns.f = [m] %}",
           "{% for x in [1, 2] %}{% set y = loop.changed(loop) %}{% set z = loop.changed([loop.cycle]) %}{% endfor %}",
           "{% set ns = namespace() %}{% for x in [1, 2] %}{% set ns.l = loop %}{% endfor %}{{ ns.l.changed(ns.l) }}{{ "
           "ns.l.nextitem }}"
           "{{ ns.l.length }}",
           "{% macro m() %}{% set ns = namespace(c=caller) %}{{ caller() }}{% endmacro %}{% call m() %}{% macro k() "
           "%}{% endmacro "
           "%}{% endcall %}",
           "{% set ns = namespace(p=none) %}{% for i in range(50000) %}{% set n = namespace(p=ns.p) %}{% set ns.p = n "
           "%}{% endfor %}",
           "{% for a in [1] %}{% for b in [loop] %}{% set x = loop.changed(b) %}{% set y = b.changed(loop) %}{% endfor "
           "%}{% endfor %}",
       }) {
    SCOPED_TRACE(source);
    const auto compiled = ChatTemplate::compile(source);
    ASSERT_TRUE(compiled) << compiled.error().message;
    const auto rendered = compiled->render(OrderedJson::array(), {});
    EXPECT_TRUE(rendered) << rendered.error().message;
  }
}

TEST(JinjaLimits, OutputAndOwnLimits) {
  TemplateLimits limits;
  limits.max_output_bytes = 10;
  EXPECT_EQ(failure("12345678901", limits), ErrorKind::Limit);
  EXPECT_EQ(failure("{% for i in range(11) %}x{% endfor %}", limits), ErrorKind::Limit);
  const auto fits = ChatTemplate::compile("1234567890", limits);
  ASSERT_TRUE(fits);
  EXPECT_EQ(fits->render(OrderedJson::array(), {})->text, "1234567890");
  limits = {};
  limits.max_source_bytes = 4;
  EXPECT_EQ(failure("12345", limits), ErrorKind::Limit);
  limits = {};
  limits.max_steps = 100;
  EXPECT_EQ(failure("{% for i in range(200) %}{% endfor %}", limits), ErrorKind::Limit);
  limits = {};
  limits.max_range = 5;
  EXPECT_EQ(failure("{{ range(6) }}", limits), ErrorKind::Limit);
  limits = {};
  limits.max_memory_bytes = 100'000;
  EXPECT_EQ(failure("{{ s }}", limits), ErrorKind::Limit);
}

TEST(JinjaLimits, DeepInput) {
  OrderedJson deep;
  for (int i = 0; i < 400; ++i) deep = OrderedJson::array({std::move(deep)});
  const auto compiled = ChatTemplate::compile("{{ messages | length }}");
  ASSERT_TRUE(compiled);
  const auto rendered = compiled->render(deep, {});
  ASSERT_FALSE(rendered);
  EXPECT_EQ(rendered.error().kind, ErrorKind::Limit);
}

TEST(JinjaLimits, SandboxedAttributes) {
  for (const std::string source : {
           "{{ ''.__class__.__mro__ }}",
           "{{ [].__class__.__base__.__subclasses__() }}",
           "{{ messages.append(1) }}",
           "{{ d.update({'a': 1}) }}",
           "{{ d.pop('k') }}",
           "{{ (s | attr('__class__')).x }}",
           "{{ d.__init__.__globals__ }}",
           "{{ raise_exception.__globals__['os'] }}",
           "{{ namespace.__init__() }}",
           "{{ cycler.__init__.__globals__ }}",
           "{{ lipsum() }}",
           "{% include 'x' %}",
           "{% import 'x' as y %}",
           "{% extends 'x' %}",
           "{{ self.x }}",
           "{% set messages.x = 1 %}",
           "{{ '{0.__class__}'.format(s) }}",
           "{{ '{0[k]}'.format(d) }}",
       }) {
    SCOPED_TRACE(source);
    const ErrorKind kind = failure(source);
    EXPECT_TRUE(kind == ErrorKind::Invalid || kind == ErrorKind::Unsupported);
  }
}

}  // namespace
}  // namespace lockstep::text
