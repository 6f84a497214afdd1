"""Writes jinja.json beside it: what Python's Jinja2 gives for a table of tests, filters, operators, methods and blocks.

    python make.py        # jinja2 3.1.6

The environment is the one that transformers renders chat templates in. Each row is a template and its output; those that fail in
Python are left out. VALUES are the variables of all of them.
"""

import json
import pathlib

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

VALUES = {
    "text": "Hello",
    "blank": "",
    "lines": "  one\n two\n\nthree  ",
    "odd": "it's <b>\"bold\"</b> & é\t",
    "seven": 7,
    "zero": 0,
    "minus": -7,
    "half": 2.5,
    "whole": 2.0,
    "yes": True,
    "no": False,
    "list": [3, 1, 2],
    "words": ["pear", "Apple", "fig", "apple"],
    "mixed": [1, "a", None, 2.5, True, [], {"k": "v"}],
    "hollow": [],
    "map": {"b": 1, "a": [1, 2], "C": None},
    "none_map": {},
    "rows": [
        {"name": "x", "kind": "p", "n": 2},
        {"name": "y", "kind": "q", "n": 1},
        {"name": "z", "kind": "p", "n": None},
    ],
}

# Names that every test and many filters are tried on.
NAMES = [*VALUES, "none", "absent", "map.items()", "map.keys()", "range(3)", "(1, 2)", "'7'", "text | length"]

TESTS = """
    boolean callable defined even false float integer iterable lower mapping none number odd sequence string true undefined
    upper
""".split()

TESTS_OF_TWO = [
    "eq(7)", "ne(7)", "gt(1)", "ge(7)", "lt(1)", "le(7)", "equalto('Hello')", "sameas(none)", "sameas(true)", "in([7, 'Hello', none])",
    "divisibleby(7)",
]

FILTERS = """
    abs capitalize count d default('D') default('D',true) dictsort e escape first float forceescape int items join join(', ')
    last length list lower pprint reverse reverse|list replace('l','L') round safe sort string striptags sum title tojson trim
    unique|list upper urlencode wordcount xmlattr
""".split()

EXPRESSIONS = r"""
'%s' % text
'%s and %s' % (text, seven)
'%d' % seven
'%5d|' % seven
'%-5d|' % seven
'%05d' % seven
'%+d' % seven
'% d' % seven
'%.2f' % half
'%8.3f|' % half
'%e' % half
'%g' % half
'%g' % 1000000
'%g' % 1e-7
'%x %X %o' % (255, 255, 8)
'%#x' % 255
'%c' % 'a'
'%c' % 65
'%r' % text
'%r' % odd
'%s' % none
'%s' % true
'%s' % [1, 'a']
'%s' % (list,)
'%s' % map
'%%' % ()
'100%% %s' % text
'%(b)s' % map
'%(b)d %(a)s' % map
'%5s|%-5s|' % ('ab', 'cd')
'%.2s' % 'abcdef'
'%*d' % (5, seven)
'%s' % text | upper
'%s' % (text | upper)
'%s' % text ~ '!'
'%s' % seven + 'a'
'a' + '%s' % seven
'%s' % rows[0].name
'%s-%s' % (rows[0].name, rows[1]['name'])
'%s' % text.upper()
'%s' % 'a' == 'a'
'%s %s' % text
'%s' % (1, 2)
'%d' % text
'%q' % text
'%i' % half
'%s' % half
'%s' % 1.0
"%s" % text if yes else "no"
['%s' % w for w in words]
('a' ~ '%s') % text
(text ~ '%s') % (seven,) | string
yes % 2
half % -2
minus % 3.5
minus % -3
'%s'|format(text)
'%s %d'|format(text, seven)
'%(x)s'|format(x=text)
'{}'.format(text)
'{0} {1} {0}'.format(text, seven)
'{x}'.format(x=half)
'{:>5}|'.format('ab')
'{:05.1f}'.format(half)
text ~ seven
text ~ none
text ~ true
text ~ half
text ~ list
text ~ absent
text + seven
text + text
list + list
list + hollow
list + text
(1, 2) + (3,)
seven + half
seven + yes
seven - 10
seven * half
seven * 2
'ab' * 3
'ab' * 0
list * 2
3 * [0]
seven / 2
seven / 7
6 / 3
seven // 2
minus // 2
half // 1
seven % 2
minus % 3
seven % -3
half % 2
seven % 0
seven / 0
seven // 0
2 ** 10
2 ** -1
2 ** 0.5
-2 ** 2
2 ** 3 ** 2
-seven
+seven
- half
not seven
not blank
not none
not absent
seven and text
blank and text
blank or text
none or blank
absent or 'x'
text and absent
seven == 7.0
yes == 1
'7' == 7
none == false
none == none
absent == none
list == [3, 1, 2]
(1, 2) == [1, 2]
map == {'b': 1, 'a': [1, 2], 'C': none}
seven > half
'b' > 'a'
text > seven
none > 1
none < none
1 < 2 < 3
1 < 3 < 2
3 > 2 == 2
seven in list
3 in list
'ell' in text
'' in text
'b' in map
1 in map
none in list
3 in (1, 2, 3)
3 not in list
'x' in absent
'x' in none
1 in seven
seven if yes
seven if no
seven if no else text
(seven if no) is defined
text[0]
text[-1]
text[9]
text[1:3]
text[:-1]
text[::-1]
text[::2]
text[5:]
list[0]
list[-1]
list[9]
list[1:]
list[::-1]
list[-2:]
list[:1] + list[1:]
words[0][0]
map['b']
map.b
map.C
map['x']
map.x
map.x.y
map['x']['y']
map.get('b')
map.get('x')
map.get('x', 'd')
map.get('C', 'd')
map.items() | list
map.keys() | list
map.values() | list
map | length
map | list
map.a[0]
text.upper()
text.lower()
text.title()
text.capitalize()
text.strip()
lines.strip()
lines.lstrip()
lines.rstrip()
lines.strip('e ')
lines.split('\n')
lines.split()
lines.split(none, 1)
lines.split('\n', 1)
lines.rsplit('\n', 1)
lines.splitlines()
lines.splitlines(true)
text.startswith('He')
text.startswith(('x', 'He'))
text.endswith('lo')
text.endswith('x')
text.startswith('e', 1)
text.replace('l', 'L')
text.replace('l', 'L', 1)
text.find('l')
text.find('x')
text.rfind('l')
text.index('l')
text.count('l')
text.isdigit()
'7'.isdigit()
text.isalpha()
text.isalnum()
text.islower()
text.isupper()
' '.isspace()
'a b'.istitle()
text.center(9)
text.ljust(9) ~ '|'
text.rjust(9)
text.zfill(9)
'7'.zfill(3)
'-7'.zfill(4)
text.join(['a', 'b'])
', '.join(words)
', '.join(list)
text.partition('l')
text.rpartition('l')
text.partition('x')
text.removeprefix('He')
text.removesuffix('lo')
text.swapcase()
text.casefold()
text.format()
text.expandtabs()
list.index(1)
list.count(3)
list.append(4)
list.copy()
map.update({'x': 1})
map.copy()
map.pop('b')
text.absent
text.absent()
seven.absent
none.absent
list.absent
list.0
list | sort
list | sort(reverse=true)
words | sort
words | sort(case_sensitive=true)
rows | sort(attribute='n')
rows[:2] | sort(attribute='n') | map(attribute='name') | list
rows | map(attribute='name') | list
rows | map(attribute='name') | join(', ')
rows | map(attribute='x', default='D') | list
words | map('upper') | list
words | map('replace', 'p', 'P') | list
rows | selectattr('n') | map(attribute='name') | list
rows | selectattr('kind', 'equalto', 'p') | map(attribute='name') | list
rows | selectattr('kind', 'eq', 'p') | list | length
rows | selectattr('n', 'none') | map(attribute='name') | list
rows | selectattr('x', 'defined') | list
rows | rejectattr('kind', 'in', ['p']) | map(attribute='name') | list
rows | rejectattr('n') | list | length
mixed | select | list
mixed | select('string') | list
mixed | select('number') | list
mixed | reject('none') | list
list | select('odd') | list
list | select('>', 1) | list
list | reject('eq', 1) | list
rows | groupby('kind') | length
rows | groupby('kind') | map(attribute='grouper') | list
rows | groupby('kind') | first
words | unique | list
words | unique(case_sensitive=true) | list
words | join
words | join('/')
rows | join(',', attribute='name')
list | join('-')
mixed | join('|')
list | first
list | last
hollow | first
hollow | last
blank | first
text | first
text | last
list | min
list | max
words | min
words | max
hollow | min
list | sum
rows[:2] | sum(attribute='n')
list | sum(start=10)
[0.1, 0.2] | sum
list | batch(2) | list
list | batch(2, 'x') | list
list | slice(2) | list
map | dictsort
map | dictsort(by='value')
map | dictsort(reverse=true)
map | dictsort(true)
map | items | list
none | items | list
absent | items | list
text | list
map | list
seven | list
none | list
absent | list
text | length
none | length
absent | length
seven | length
range(4) | length
text | reverse
list | reverse | list
list | reverse
seven | string
half | string
none | string
yes | string
list | string
seven | float
'2.5' | float
'x' | float
'x' | float(1.5)
none | float
half | int
'7' | int
'x' | int
'x' | int(5)
'0x1f' | int(base=16)
'1010' | int(0, 2)
'7.9' | int
none | int
true | int
minus | abs
half | round
2.567 | round(2)
2.5 | round
3.5 | round
2.1 | round(0, 'ceil')
2.9 | round(method='floor')
7 | round
1234567 | filesizeformat
1000000 | filesizeformat(true)
text | upper | lower
text | capitalize
'hello wORLD' | capitalize
'hello wORLD it\'s' | title
text | trim
lines | trim
lines | trim('e ')
'xxaxx' | trim('x')
text | replace('l', 'L', 1)
text | default('x')
absent | default('x')
absent | default
blank | default('x')
blank | default('x', true)
none | default('x')
none | default('x', true)
none | default('x', boolean=true)
absent.a | default('x')
map.x | default('x')
absent | d('x')
lines | indent
lines | indent(2)
lines | indent(2, true)
lines | indent(2, first=true, blank=true)
lines | indent('> ')
'a\n' | indent(2)
'a\n\n b\r\nc\n' | indent
'a\n\nb\n' | indent('- ', true)
'a\n\nb\n' | indent(width=1, blank=true)
'a\nb' | indent(-1)
'' | indent(2, true)
text | center(11)
text | truncate(3)
'hello big world' | truncate(9)
'hello big world' | truncate(9, true)
'hello big world' | truncate(9, true, '..')
'hello big world' | truncate(9, false, '..', 0)
'hello big world' | wordwrap(9)
'hello big world' | wordcount
odd | e
odd | escape
odd | forceescape
odd | safe
odd | striptags
odd | urlencode
map | urlencode
'a b/c?' | urlencode
odd | tojson
map | tojson
map | tojson(indent=2)
mixed | tojson
half | tojson
whole | tojson
none | tojson
yes | tojson
absent | tojson
text | tojson
rows | tojson(indent=4)
list | tojson(separators=(',', ':'))
map | tojson(sort_keys=true)
1e20 | tojson
odd | tojson(ensure_ascii=true)
(1, 'a') | tojson
map.items() | list | tojson
map.keys() | list | tojson
mixed | pprint
text | attr('upper') is defined
map | attr('items') is defined
map | attr('b')
text is lower
'abc' is lower
'ABC' is upper
'a1' is lower
'1' is lower
text is string and text is not none
list is sequence and list is not mapping
map is mapping and map is iterable
seven is divisibleby 7
seven is in [7]
seven is not in [7]
text is filter
'upper' is filter
'nope' is filter
'odd' is test
'nope' is test
none is none
none is not none
absent is none
text is eq 'Hello'
text is sameas text
list is sameas list
text is callable
range is callable
text.upper is callable
raise_exception is defined
namespace is defined
1_000
0x1f
0b11
0o17
1e3
1.5e-3
'a' 'b'
'a\tb\n\\c\''
'\x41\u00e9'
"it's"
true
True
false
False
none
None
[]
{}
()
(1,)
[1, 'a', none, true, 2.5]
{'a': 1, 'b': [none, false]}
{'a': 'it\'s'}
['it\'s "x"']
['\n\t\\é']
[[1], {'a': (1, 2)}]
half
whole
1e100
1e16
123456789.0
0.1 + 0.2
1 / 3
10 ** 20
-0.0
seven | string | length
range(3) | list
range(1, 7, 2) | list
range(3, 0, -1) | list
range(0)
range(3)
dict(a=1, b=2)
dict(map, x=1)
dict([('a', 1)])
namespace(a=1).a
loop is defined
cycler('a', 'b').next()
joiner(', ')()
(list | first) + (list | last)
(text, seven)[0]
{'a': {'b': 1}}.a.b
{'items': 1}.items
{'items': 1}['items']
{1: 'x'}[1]
{none: 'x'}[none]
{true: 'x'}[true]
text.__class__
text['upper']
words.sort()
(words | sort)[0]
(absent | default({})).x
(absent | default([])) | length
absent[0]
absent.a
absent.a.b
absent()
absent + 1
absent ~ 'x'
absent * 2
absent | upper
absent | trim
none | upper
none | trim
none | join
seven | upper
seven | trim
list | trim
list | upper
yes | upper
text | abs
none + 1
none ~ 1
none | replace('n', 'N')
absent | replace('n', 'N')
absent | join(',')
absent | first
absent | map('upper') | list
absent | selectattr('x') | list
absent | sort
absent | reverse | list
absent | sum
none | list
none | first
seven | first
"a" in ["a", "b"] and "c" not in ["a", "b"]
not "a" in ["b"]
not (yes and no) or no
yes and not no
yes or no and no
1 + 2 * 3 - 4 / 2
(1 + 2) * 3
7 // 2 * 2 + 7 % 2
'a' ~ 1 + 2 ~ 'b'
'a' ~ 2 * 3
text | length > 3
text | length + 1
-1 | abs
(-1) | abs
list | length == 3 and text | length == 5
'a' if 1 > 2 else 'b' if 2 > 3 else 'c'
text.split('l') | length
text.split('l')[0] | upper
"\u2581" ~ 'x'
'<|' ~ 'x' ~ '|>'
5.5 % 2
5.5 % -2
-5.5 % 2
-5.5 % -2
6.0 % -3
-6.0 % 3
0.0 % -3
1.0 % 3
minus % 7
minus % 2
seven % 7
seven % -7
minus % -2
seven % yes
no % 3
7.0 % 2
7 % 2.5
'%s' % ((1, 2),)
'abc'.center(8) ~ '|'
'abc'.center(7) ~ '|'
'abcd'.center(7) ~ '|'
'abcd'.center(8) ~ '|'
'abcd'.center(9) ~ '|'
'abc'.center(3)
'abc'.center(0)
'ab'.center(7, '*')
'éa'.center(5, 'ü')
'abc' | center(8) ~ '|'
'abc' | center(7) ~ '|'
'abcd' | center(7) ~ '|'
'abcd' | center(8) ~ '|'
'é' | center(4) ~ '|'
'abc' | center(2)
'abc' | center | length
'é'.ljust(3, '-')
'é'.rjust(4, '.')
'abc'.ljust(2)
'+7'.zfill(4)
'-'.zfill(3)
'--7'.zfill(6)
'é'.zfill(3)
'abc'.zfill(2)
'a b  c '.rsplit()
' a b'.rsplit()
'   '.rsplit()
'a b  c '.rsplit(none, 0)
'a b  c '.rsplit(none, 1)
'a b  c '.rsplit(none, 2)
'a b  c '.rsplit(none, 3)
'a b  c '.rsplit(none, -1)
'a,b,c'.rsplit(',')
'a,b,c'.rsplit(',', 0)
'a,b,c'.rsplit(',', 1)
'a,b,c'.rsplit(',', 2)
'a,b,c'.rsplit(',', -1)
'a-b-c'.partition('-')
'a-b-c'.rpartition('-')
'a-b-c'.rpartition('x')
'abc'.removeprefix('c')
'abc'.removesuffix('a')
'ééab'.index('a')
'abab'.index('b')
'abab'.rindex('b')
'aBß1'.swapcase()
'Straße É'.casefold()
'A B'.istitle()
'A1b'.istitle()
'A1B'.istitle()
'ab\tc'.expandtabs()
'ab\tc\n\td'.expandtabs(4)
'ab\tc\r\td'.expandtabs(4)
'a\tb'.expandtabs(0)
'a\tb'.expandtabs(1)
'abcdefgh\tx'.expandtabs()
'a\tb\tc'.expandtabs(3)
'éabc'.startswith('a', 1)
'abc'.startswith('b', 1, 2)
'abc'.startswith('bc', 1, 2)
'abc'.startswith('a', 0, 0)
'abc'.startswith('c', -1)
'abc'.startswith('b', -1)
'abc'.startswith('a', -9)
'abc'.startswith('a', none)
'abc'.endswith('b', 0, 2)
'abc'.endswith('c', 0, 2)
'abc'.endswith('b', 0, -1)
'abc'.endswith('c', 1)
'abc'.endswith('abc', 1)
'abc'.endswith('c', 0, 9)
[1, 2, 3, 4][3:0:-1]
[1, 2, 3, 4][:0:-1]
[1, 2, 3, 4][2:1:-1]
[1, 2, 3, 4][1:2:-1]
[1, 2, 3, 4][:-3:-1]
[1, 2, 3, 4][:-9:-1]
[1, 2, 3, 4][-9::-1]
[1, 2, 3, 4][9:-9:-1]
[1, 2, 3, 4][::-2]
[1, 2, 3, 4][2::-2]
[1, 2, 3, 4][-1:-4:-2]
[1, 2, 3, 4][-3:3]
[1, 2, 3, 4][1::2]
[1, 2, 3, 4][-9:9:3]
[1, 2, 3, 4][3:1]
hollow[::-1]
(1, 2, 3)[:0:-1]
(1, 2, 3)[1:]
'éabc'[3:0:-1]
'éabc'[:0:-1]
'éabc'[:-9:-1]
'éabc'[-9:2]
''[::-1]
messages[:0:-1]
[1, 2, 1].index(2)
'a,b,c'.split(',', maxsplit=1)
'a,b,c'.split(sep=',')
'a,b,c'.split(sep=',', maxsplit=1)
'a b c'.split(maxsplit=1)
'a b c'.split(sep=none, maxsplit=1)
' a b '.split(none, 0)
' a  b '.split(' ')
'a,b,c'.rsplit(',', maxsplit=1)
'a,b,c'.rsplit(sep=',')
'a b c'.rsplit(maxsplit=1)
'a</think>b</think>'.split('</think>', maxsplit=1)
'a\x0bb\x1cc\x1d\x1e\x1fd\u00a0e'.split()
'a\x1cb\x1fc'.rsplit(none, 1)
'\x1ca\x1f'.strip()
'\x1ca\x1f'.lstrip() | length
'\x1ca\x1f'.rstrip() | length
'aba'.strip('a')
'\x1c\x1f \n'.isspace()
''.isspace()
"they're bill's".title()
'hELLO wORLD 3x a1b'.title()
'ǆ éa ß ﬁx ǅa'.title()
''.title()
'1'.isdecimal()
'١'.isdecimal()
'²'.isdecimal()
'½1'.isdecimal()
''.isdecimal()
'{:%}'.format(half)
'{!r}'.format(text)
[[3, 'a'], [1, 'b']] | sort(attribute=0)
[[3, 'a'], [1, 'b']] | sort(attribute=1, reverse=true)
[[3, 'a'], [1, 'b']] | join('-', attribute=1)
[[3, 'a'], [1, 'b']] | join('-', 0)
[[3, 'a'], [1, 'b']] | map(attribute=1) | list
[[3, 'a'], [1, 'b'], [3, 'c']] | groupby(0) | map('last') | list
[[3, 'a'], [1, 'b'], [3, 'c']] | groupby(attribute=0) | length
[[3, 'a'], [1, 'b'], [3, 'c']] | unique(attribute=0) | list
[[3, 'a'], [1, 'b']] | min(attribute=0)
[[3, 'a'], [1, 'b']] | max(attribute=0)
[[3, 'a'], [1, 'b']] | sum(attribute=0)
[[3, 'a'], [1, 'b']] | sum(0)
[[3, 'a'], [0, 'b']] | selectattr(0) | list
[[3, 'a'], [0, 'b']] | rejectattr(0, 'eq', 3) | list
words.copy()
map.copy().b
'hello big world' | truncate(10)
'hello big world' | truncate(15)
'hello big world' | truncate(9, leeway=6)
'hello big world' | truncate(length=9, killwords=true, end='>', leeway=0)
'hello big world' | truncate(8, false, '')
'hello big world' | truncate(3)
'hello big world' | truncate(14, leeway=0)
'hellobigworld' | truncate(7, leeway=0)
'é é é é é é' | truncate(5, leeway=2)
'a' * 300 | truncate | length
'a' * 256 | truncate | length
'a-b_c.d~e/f' | urlencode
'é ü' | urlencode
{'a/b': 'c d/', 'é': 1} | urlencode
'a_b c1-d  e' | wordcount
' _ ' | wordcount
'-' | wordcount
'&<>"\'' | e
'&<>"\'' | forceescape
('<' | e) | e
('<' | e) | forceescape
('<' | safe) | e
absent | default(default_value='x')
blank | default('x', boolean=false)
blank | default('x', boolean=true)
absent | default('x', false)
text | default('x', true)
map | last
map | first
'ab' | last
'x' | float(default=3)
'x' | int(default=3)
[1] | int
[1] | float
[1] | int(9)
[1] | float(9)
none | float(2)
'0b11' | int(0, 2)
true | float
'aaa' | replace('a', 'b', 2)
'aaa' | replace('a', 'b', 0)
121 | replace(1, 3)
true | abs
false | abs
-2.5 | abs
{'a': [], 'b': {}, 'c': [1, [2]]} | tojson(indent=2)
{'a': [], 'b': {}, 'c': [1, [2]]} | tojson
[1, {'a': 2}] | tojson(indent=0)
[1, {'a': 2}] | tojson(indent='--')
[1, {'a': 2}] | tojson(indent=none)
{'a': [1, 2]} | tojson(separators=('|', '='))
{'a': [1, 2]} | tojson(separators=('|', '='), indent=1)
{'b': {'d': 1, 'c': 2}, 'a': 3} | tojson(sort_keys=true)
['\x01\x1f\x7f', '\b\f\r\t\n', '"\\/', '😀é'] | tojson
['\x01\x1f\x7f', '\b\f\r\t\n', '"\\/', '😀é'] | tojson(ensure_ascii=true)
[0.0, -0.0, 1.5, -2.25, 123456.789, 0.0001, 0.00012] | tojson
[0.00001, 1.5e-7, 1e-10, 1e15, 1e16, 1.25e22, 1e100, -1e16, -1e-5] | tojson
[1, -1, 10000000000000000000] | tojson
[true, false, none] | tojson
""".strip("\n").split("\n")

BLOCKS = [
    "{% for x in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% for x in list %}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}",
    "{% for x in list %}{{ loop.previtem }},{{ loop.nextitem }};{% endfor %}",
    "{% for x in list %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for x in [1, 1, 2] %}{{ loop.changed(x) }} {% endfor %}",
    "{% for x in hollow %}x{% else %}none{% endfor %}",
    "{% for x in absent %}x{% else %}none{% endfor %}",
    "{% for x in none %}x{% endfor %}",
    "{% for x in seven %}x{% endfor %}",
    "{% for c in text %}{{ c }}.{% endfor %}",
    "{% for k in map %}{{ k }}{% endfor %}",
    "{% for k, v in map.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in map | items %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in map | dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in map %}{{ k }}{% endfor %}",
    "{% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ b }}{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for x in list if x > 1 %}{{ loop.index }}{{ x }} {% endfor %}",
    "{% for x in list | sort %}{{ x }}{% endfor %}",
    "{% for x in list %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in list %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for r in [[1, [2]]] recursive %}{% if r is iterable %}<{{ loop(r) }}>{% else %}{{ r }}{% endif %}{% endfor %}",
    "{% for x in list %}{% for y in words %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for r in rows | groupby('kind') %}{{ r.grouper }}:{{ r.list | length }} {% endfor %}",
    "{% for kind, items in rows | groupby('kind') %}{{ kind }}:{{ items | map(attribute='name') | join }} {% endfor %}",
    "{% set x = 1 %}{% for y in list %}{% set x = y %}{% endfor %}{{ x }}",
    "{% set ns = namespace(x=1) %}{% for y in list %}{% set ns.x = y %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace() %}{% set ns.a = [1] %}{% set ns.a = ns.a + [2] %}{{ ns.a }}",
    "{% set ns = namespace(a=1) %}{{ ns.b is defined }}{{ ns.a }}",
    "{% set x, y = 1, 2 %}{{ x }}{{ y }}",
    "{% set x = (1, 2) %}{{ x }}",
    "{% set x %} a {{ text }} {% endset %}[{{ x }}]",
    "{% set x | upper %}a{{ text }}{% endset %}{{ x }}",
    "{% set x = 1 if yes else 2 %}{{ x }}",
    "{% if no %}a{% elif yes %}b{% else %}c{% endif %}",
    "{% if none %}a{% endif %}{% if absent %}b{% endif %}{% if hollow %}c{% endif %}{% if none_map %}d{% endif %}{% if half %}e{% endif %}",
    "{% if tools is iterable and tools | length > 0 %}T{% else %}-{% endif %}",
    "{% if tools is not none and tools | length > 0 %}T{% else %}-{% endif %}",
    "{% if not tools is defined %}a{% else %}b{% endif %}",
    "{% if tools %}T{% endif %}{{ tools }}",
    "{% if x is not defined %}{% set x = 1 %}{% endif %}{{ x }}",
    "{% macro f(a, b='B') %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(b=3, a=4) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f() }}|{{ f(1, 2) }}",
    "{% macro f(a, b=true) %}{{ a }}{{ b }}{% endmacro %}{{ f(1, b=messages[0].flag) }}|{{ f(1, absent) }}|{{ f(1) }}",
    "{% macro f(a, b=a, c='C') %}[{{ b }}{{ c }}]{% endmacro %}{{ f(1, absent) }}{{ f(1, absent, absent) }}{{ f(1, c=absent) }}{{ f(1) }}",
    "{% macro f(a, b=a) %}{{ a is defined }}{{ b is defined }}{{ b | default('D') }}{% endmacro %}{{ f(absent) }}{{ f(1, absent) }}",
    "{% macro f(a=1) %}{{ a }}{% endmacro %}{% set g = f %}{{ g(absent) }}|{{ g(a=absent) }}|{{ g() }}",
    "{% macro f() %}{{ caller(absent) }}{% endmacro %}{% call(x='X') f() %}<{{ x }}>{% endcall %}",
    "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, x=2) }}",
    "{% macro f(a) %}{{ caller() }}{{ a }}{% endmacro %}{% call f(1) %}in{% endcall %}",
    "{% macro f() %}{{ caller('x') }}{% endmacro %}{% call(y) f() %}<{{ y }}>{% endcall %}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(text) | upper }}{{ f(text) ~ '!' }}{{ f.name }}",
    "{% macro f() %} a {% endmacro %}[{{ f() | trim }}][{{ f().strip() }}]{{ f() is string }}",
    "{% set x = 1 %}{% macro f() %}{{ x }}{% endmacro %}{{ f() }}",
    "{% set x = 1 %}{% macro f() %}{% set x = 2 %}{{ x }}{% endmacro %}{{ f() }}{{ x }}",
    "{% filter upper %}a{{ text }}{% endfilter %}",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}",
    "{% raw %}{{ x }}{% endraw %}",
    "a{# comment #}b",
    "a\n{# comment #}\nb",
    "a\n  {% if yes %}\nb\n  {% endif %}\nc",
    "a  {%- if yes -%}  b  {%- endif -%}  c",
    "a  {%+ if yes %}b{% endif +%}\nc",
    "a {{- text -}} b",
    "a\n{{ text }}\nb\n",
    "{{ text }}\n",
    "{% autoescape true %}{{ odd }}{% endautoescape %}",
    "{% do list %}",
    "{% block a %}x{% endblock %}{{ self.a() }}",
    "{{ '{{' }}{{ '%}' }}",
    "{% set d = {'a': 1} %}{% set d2 = dict(d, b=2) %}{{ d2 }}{{ d }}",
    "{% set d = {'a': 1, **map} %}{{ d }}",
    "{% for m in messages %}{{ m['role'] }}{{ m.content }}{{ m.absent is defined }}{{ m.get('absent', 'd') }}{% endfor %}",
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}x{% else %}y{% endif %}{% endfor %}",
    "{{ messages[1:] }}{{ messages[-1].role }}{{ messages | length }}",
    "{{ messages[0].content.split('l')[-1].lstrip('\\n') }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | last }}",
    "{{ messages | map(attribute='content') | join('\\n') | trim }}",
    "{% for m in messages[::-1] %}{{ m.role }}{% endfor %}",
    "{{ bos_token + messages[0].content + eos_token }}",
    "{{ raise_exception('x') if no else 'fine' }}",
    "{% include 'x' %}",
    "{% include 'x' ignore missing %}y",
    "{% import 'x' as y %}",
    "{% if text == 'Hello' and ( seven == 7 or absent.a.b ) %}x{% endif %}",
    "{{ [1, 2,] }}{{ {'a': 1,} }}",
    "{{ list[0:2][0] }}{{ text[1:][0] }}{{ 'abc'[1] }}",
    "{{ 'a' \n ~ 'b' }}",
    "{%- set x = 'a' -%}{{- x -}}  b",
    "{{ (rows | first).name }}{{ (rows | last)['name'] }}{{ rows[0]['name'].upper() }}",
    "{{ ('a', 'b') | join }}{{ ['x'] * 2 }}{{ 'a,b'.split(',') | join(';') }}",
]


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])

    def raised(message):
        raise ValueError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raised
    return env


def rows():
    for name in NAMES:
        yield from ("{{ %s is %s }}" % (name, test) for test in TESTS + TESTS_OF_TWO)
        yield from ("{{ %s | %s }}" % (name, filter) for filter in FILTERS)
        yield "{{ %s }}" % name
    yield from ("{{ %s }}" % expression for expression in EXPRESSIONS)
    yield from BLOCKS


def rendered(env, source):
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi <b>"}]
    given = json.loads(json.dumps(VALUES))
    given |= {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True}
    try:
        return env.from_string(source).render(**given, bos_token="<s>", eos_token="</s>")
    except Exception:
        return None


def main():
    env = environment()
    table = [[source, rendered(env, source)] for source in dict.fromkeys(rows())]
    # Addresses of objects differ from run to run.
    table = [[source, output] for source, output in table if output is not None and " at 0x" not in output]
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in table)
    text = '{"values": %s,\n"rows": [\n%s\n]}\n' % (json.dumps(VALUES, ensure_ascii=False), lines)
    pathlib.Path(__file__).with_name("jinja.json").write_text(text)


if __name__ == "__main__":
    main()
