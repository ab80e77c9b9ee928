# ruff: noqa: E501 - a template is one line
"""Chat templates that need endless time or memory, and a program that renders each within limits.

The program renders each template in its own process, with limits on address space and CPU time. It
prints the templates that did not end in an error of vlmkit.
"""

import os
import resource
import sys
from pathlib import Path

import vlmkit_hf.templates.template
from vlmkit.errors import VlmkitError
from vlmkit_hf.templates.sandbox import budget
from vlmkit_hf.templates.template import ChatTemplate

MAX_BYTES = 2**30
"""Address space of one rendering, beyond that of the interpreter."""
MAX_CPU_S = 60


def doubled(first: str, expression: str) -> str:
    """Return a template that computes a variable from itself sixty times."""
    return (
        f"{{% set ns = namespace(x={first}) %}}{{% for i in range(60) %}}"
        f"{{% set ns.x = {expression} %}}{{% endfor %}}"
    )


TEMPLATES = {
    "loop": "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "loopif": "{% for i in range(100000) %}{% for j in range(100000) if false %}{% endfor %}{% endfor %}",
    "looprec": "{% for i in [1] recursive %}{{ loop(range(100000)) }}{% endfor %}",
    "macro2": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "macrorec": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "blockrec": "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "center": '{{ "x"|center(3000000000) }}',
    "centerm": '{{ "x".center(3000000000) }}',
    "ljust": '{{ "x".ljust(3000000000) }}',
    "rjust": '{{ "x".rjust(3000000000) }}',
    "zfill": '{{ "x".zfill(3000000000) }}',
    "filterblock": "{% filter center(3000000000) %}x{% endfilter %}",
    "autoescape": '{% autoescape "x"|center(3000000000) %}{% endautoescape %}',
    "setfold": '{% set x = "x"|center(3000000000) %}',
    "iffold": '{% if false %}{{ "x"|center(3000000000) }}{% endif %}{% if "x"|center(3000000000) == 1 %}{% endif %}',
    "expandtabs": '{{ "\\t".expandtabs(3000000000) }}',
    "expandtabs2": '{{ ("\\t"*100000).expandtabs(4000)|length }}{{ ("\\t"*1000000).expandtabs(4000)|length }}',
    "indent": '{{ "x"|indent(3000000000, true) }}',
    "indent2": '{{ ("\\n"*1000000)|indent(4000,true,true) }}',
    "indentk": '{{ "x"|indent(width=3000000000, first=true) }}',
    "indents": '{{ ("a\\n"*500000)|indent("x"*100000,true) }}',
    "batch": "{{ [1]|batch(3000000000, 0)|list }}",
    "slice": "{{ [1]|slice(3000000000)|list }}",
    "round": "{{ 5|round(1000000000, 'ceil') }}",
    "round2": "{{ 5|round(-1000000000) }}",
    "round3": "{{ 5|round(1000000000, 'floor') }}",
    "pow": "{{ 9**999999999 }}",
    "powpow": doubled("9", "ns.x ** 60"),
    "mulmul": doubled("9", "ns.x * ns.x"),
    "addadd": doubled("'x'", "ns.x + ns.x"),
    "catcat": doubled("'x'", "ns.x ~ ns.x"),
    "listadd": doubled("[1]", "ns.x + ns.x"),
    "listnest": doubled("[1]", "[ns.x, ns.x]") + "{{ ns.x }}",
    "tojsonnest": doubled("[1]", "[ns.x, ns.x]") + "{{ ns.x|tojson }}",
    "cmpnest": "{% set a = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set a.x = [a.x,a.x] %}{% set a.y = [a.y,a.y] %}{% endfor %}{{ a.x == a.y }}",
    "hashnest": doubled("(1,)", "(ns.x, ns.x)") + "{{ {ns.x: 1} }}",
    "hashget": doubled("(1,)", "(ns.x, ns.x)") + "{{ {}[ns.x] }}",
    "hashget2": doubled("(1,)", "(ns.x, ns.x)") + "{{ {}.get(ns.x) }}",
    "uniq": doubled("(1,)", "(ns.x, ns.x)") + "{{ [ns.x]|unique|list }}",
    "innest": doubled("(1,)", "(ns.x, ns.x)") + "{{ ns.x in [1] }}{{ ns.x in {} }}",
    "dictnest": doubled("{}", "{1: ns.x, 2: ns.x}") + "{{ ns.x }}",
    "nsnest": "{% set o = namespace(p=1) %}{% for i in range(60) %}{% set o.p = namespace(a=o.p, b=o.p) %}{% endfor %}{{ o.p }}",
    "strnest": doubled("[1]", "[ns.x, ns.x]") + "{{ ns.x|string }}",
    "pctnest": doubled("[1]", "[ns.x, ns.x]") + "{{ '%s' % ns.x }}",
    "fmtnest": doubled("[1]", "[ns.x, ns.x]") + "{{ '{}'.format(ns.x) }}",
    "fmtnestr": doubled("[1]", "[ns.x, ns.x]") + "{{ '{!r}'.format(ns.x) }}",
    "joinnest": doubled("[1]", "[ns.x, ns.x]") + "{{ [ns.x]|join }}",
    "catnest": doubled("[1]", "[ns.x, ns.x]") + "{{ '' ~ ns.x }}",
    "refusenest": doubled("[1]", "[ns.x, ns.x]") + "{{ raise_exception(ns.x) }}",
    "lowernest": doubled("[1]", "[ns.x, ns.x]") + "{{ ns.x|lower }}",
    "trimnest": doubled("[1]", "[ns.x, ns.x]") + "{{ ns.x|trim }}",
    "testlower": doubled("[1]", "[ns.x, ns.x]") + "{{ ns.x is lower }}",
    "sortnest": "{% set a = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set a.x = [a.x,a.x] %}{% set a.y = [a.y,a.y] %}{% endfor %}{{ [a.x, a.y]|sort }}",
    "pct": "{{ '%1000000000d' % 1 }}",
    "pctstar": "{{ '%*d' % (1000000000, 1) }}",
    "pctname": "{{ '%(a(b)c)1000000000d' % {'a(b)c': 1} }}",
    "fmtf": "{{ '%1000000000d'|format(1) }}",
    "pctmany": "{% set s='x'*100000 %}{{ ('%(a)s'*100000) % {'a': s} }}",
    "pctprec": "{{ '%.1000000000f' % 1 }}",
    "format": "{{ '{:>1000000000}'.format(1) }}",
    "formatn": "{{ '{:>{w}}'.format(1, w=1000000000) }}",
    "formatm": "{% set s='x'*100000 %}{{ ('{0}'*100000).format(s) }}",
    "formatmap": "{{ '{a:>1000000000}'.format_map({'a':1}) }}",
    "replace": "{{ ('a'*1000000)|replace('a', 'b'*1000000) }}",
    "replacem": "{{ ('a'*1000000).replace('a', 'b'*1000000) }}",
    "replacee": "{{ ('a'*1000000).replace('', 'b'*1000000) }}",
    "replacek": "{{ ('a'*1000000)|replace(new='b'*1000000, old='a') }}",
    "join": "{% set s='x'*1000000 %}{{ ([s]*100000)|join }}",
    "joind": "{{ ([1]*100000)|join('x'*1000000) }}",
    "joinm": "{{ ('x'*1000000).join(['a']*100000) }}",
    "joinattr": "{% set s='x'*1000000 %}{{ ([{'a': s}]*100000)|join(attribute='a') }}",
    "wordwrap": "{{ ('a '*400000)|wordwrap(1) }}",
    "urlize": "{{ ('http://a.b@c.d '*50000)|urlize }}",
    "striptags": "{{ ('<!-- -->'*100000)|striptags }}",
    "xmlattr": "{{ {'a': 'x'*1000000}|xmlattr }}",
    "pprint": "{{ ([[1,2]]*100000)|pprint }}",
    "strip": "{{ ('a'*1000000).strip('b'*1000000 ~ 'a') }}",
    "trim": "{{ ('a'*1000000)|trim('b'*1000000 ~ 'a') }}",
    "rfind": "{{ ('a'*1000000).rfind('b' ~ 'a'*500000) }}",
    "sumlist": "{{ ([[1]]*100000)|sum(start=[]) }}",
    "sumnest": doubled("[1]", "[ns.x,ns.x]|sum(start=[])"),
    "translate": "{{ 'x'.translate({120: 'y'*1000000}) }}",
    "tobytes": "{{ (1).to_bytes(1000000000,'big') }}",
    "encode": "{{ 'x'.encode().center(1000000000) }}",
    "tojsonindent": "{{ [[1]]|tojson(indent=1000000000) }}",
    "tojsonsep": "{{ ([1]*100000)|tojson(separators=('x'*100000,'y')) }}",
    "strftime2": "{{ strftime_now('%Y'*1000000) }}",
    "varargs": "{% macro f() %}{{ varargs|length }}{% endmacro %}{% for i in range(100000) %}{{ f(*range(100000)) }}{% endfor %}",
    "slices": "{% set ns = namespace(l=[], s='x'*1000000) %}{% for i in range(100000) %}{% set ns.l = ns.l + [ns.s[1:]] %}{% endfor %}",
    "retain": "{% set ns = namespace(l=[], s='x'*1000000) %}{% for i in range(100000) %}{% set ns.l = ns.l + [ns.s ~ i] %}{% endfor %}",
    "retainup": "{% set ns = namespace(l=[], s='x'*1000000) %}{% for i in range(100000) %}{% set ns.l = ns.l + [ns.s.upper()] %}{% endfor %}",
    "splits": "{% set ns = namespace(l=[], s='€ '*500000) %}{% for i in range(100000) %}{% set ns.l = ns.l + [ns.s.split(' ')] %}{% endfor %}",
    "chars": "{% set ns = namespace(l=[], s='€'*1000000) %}{% for i in range(100000) %}{% set ns.l = ns.l + [ns.s|list] %}{% endfor %}",
    "setblock2": "{% set ns = namespace(x='y') %}{% for i in range(60) %}{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}{% endfor %}",
    "macrodbl": "{% macro m(s) %}{{ s }}{{ s }}{% endmacro %}{% set ns = namespace(x='x') %}{% for i in range(60) %}{% set ns.x = m(ns.x) %}{% endfor %}",
    "count": "{% for i in range(100000) %}{{ range(100000).count(5) }}{% endfor %}",
    "inr": "{% for i in range(100000) %}{% if 'x' in range(100000) %}{% endif %}{% endfor %}",
    "lists": "{% for i in range(100000) %}{% set x = range(100000)|list %}{% endfor %}",
    "eqstr": "{% set a = 'a'*1000000 %}{% set b = 'a'*999999 ~ 'a' %}{% for i in range(100000) %}{% if a == b %}{% endif %}{% endfor %}",
    "sortstr": "{% set a = 'a'*1000000 %}{% set b = 'a'*999999 ~ 'a' %}{{ ([a,b]*100000)|sort|length }}",
    "changed": doubled("[1]", "[ns.x, ns.x]")
    + "{% for i in range(3) %}{{ loop.changed(ns.x) }}{% endfor %}",
    "attrs": "{{ [1]|map(attribute='a' ~ '.a'*1000000)|list }}",
    "sortattrs": "{{ ([1]*100000)|sort(attribute='a' ~ ',a'*1000000)|list }}",
    "intbase": "{{ ('f'*1000000)|int(0,16) }}",
    "int32": "{% for i in range(100000) %}{% set x = ('9'*4000)|int %}{% endfor %}",
    "float": "{% for i in range(100000) %}{% set x = ('9'*1000000)|float %}{% endfor %}",
    "safe": "{% set s = ('<'*1000000)|safe %}{{ s.striptags() }}{{ s.unescape() }}",
    "escape": "{% for i in range(100000) %}{% set x = ('<'*1000000)|e %}{% endfor %}",
    "safejoin": "{% set s = ('<'*1000000)|safe %}{{ s.join(['<'*1000000]*100) }}",
    "safemul": "{% set s = ('<'*1000)|safe %}{{ s * 1000000000 }}",
    "safefmt": "{% set s = ('{:>1000000000}')|safe %}{{ s.format(1) }}",
    "safepct": "{% set s = ('%1000000000d')|safe %}{{ s % 1 }}",
    "setblock": "{% for i in range(100000) %}{% set x %}"
    + "y" * 50000
    + "{% endset %}{% endfor %}",
    "callblock": "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    "{% for i in range(100000) %}{% call m() %}" + "y" * 50000 + "{% endcall %}{% endfor %}",
    "nested brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "nested conditions": "{% if x %}" * 3000 + "{% endif %}" * 3000,
    "nested loops": "{% for x in y %}" * 100 + "{% endfor %}" * 100,
    "nested attributes": "{{ a" + ".b" * 30000 + " }}",
    "nested sums": "{{ 1" + "+1" * 30000 + " }}",
    "nested filters": "{{ a" + "|list" * 10000 + " }}",
    "nested lists": "{{ " + "[" * 30000 + "]" * 30000 + " }}",
    "nested signs": "{{ " + "-" * 60000 + "1 }}",
    "long integers": "{{ 0x" + "f" * 60000 + " ** 60 }}",
    "many variables": "".join(
        f"{{% if x %}}{{% set a{i} = 1 %}}{{% endif %}}" for i in range(1500)
    ),
    "many characters": "x" * 2**20,
    "title": "{{ ('ab ' * 1000000)|title }}",
    "wordcount": "{{ ('ab ' * 1000000)|wordcount }}",
    "urlencode": "{{ ('€' * 1000000 ~ '€' * 1000000)|urlencode }}",
    "replace with counts": "{{ ('a' * 1000000)|replace('a', 'b' * 1000000, 1000000) }}",
    "format of attributes": "{{ '{0[0][0]}'.format([['x' * 1000000]]) * 1000000 }}",
    "unpacked": "{% macro m() %}{% endmacro %}{{ m(**{'a' * 1000000: 1}) }}{{ m(*('a' * 2000000)) }}",
    "format map": "{% for i in range(99999) %}{% set x = range(99999)|map('format', 1)|list %}{% endfor %}",
    "twenty loops": "{% for a in range(100) %}" * 19 + "{% endfor %}" * 19,
    "long body": "{% for i in range(100000) %}" + "{% if x %}{% endif %}" * 2000 + "{% endfor %}",
}


def outcome(source: str) -> str:
    """Return the problem of a template; an empty string if it was refused."""
    try:
        ChatTemplate(source, {}, "m").render([{"role": "user", "content": "hi"}] * 20)
    except VlmkitError as error:
        return "out of memory" if isinstance(error.__cause__, MemoryError) else ""
    except BaseException as error:  # noqa: BLE001 - of whatever kind: it is not ours
        return type(error).__name__
    return "rendered"


def main() -> None:
    """Render all templates."""
    vlmkit_hf.templates.template.MAX_STEPS = budget.MAX_ITEMS = (
        2**16
    )  # quicker, and enough for growing templates
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MAX_BYTES, size + MAX_BYTES))
    for name, source in TEMPLATES.items():
        pid = os.fork()
        if pid == 0:
            resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
            found = outcome(source)
            if found:
                print(name, found, flush=True)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if status:
            print(name, "ended with status", status, flush=True)


if __name__ == "__main__":
    sys.exit(main())
