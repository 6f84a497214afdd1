//! Templates that try to take all memory, all time or the stack: each ends with an error, soon.

use std::time::{Duration, Instant};

use serde_json::json;

use super::messages::{self, ArgumentForm, Form};
use super::{Inputs, Template};
use crate::Error;

/// Far above what the limits allow, since tests run beside each other.
const SOON: Duration = Duration::from_secs(20);

fn outcome(source: &str) -> Result<String, Error> {
    let start = Instant::now();
    let messages = [json!({ "role": "user", "content": "Hello, you.\nHow are you?" })];
    let done = Template::new("hostile", source).and_then(|it| it.render(&Inputs::new(&messages)));
    let took = start.elapsed();
    assert!(took < SOON, "{took:?}: {}", source.get(..80).unwrap_or(source));
    done
}

/// Loops over a body that changes `ns.x`, and writes it.
fn repeated(start: &str, body: &str) -> String {
    let head = format!("{{% set ns = namespace(x={start}) %}}");
    format!("{head}{{% for i in range(99999) %}}{body}{{% endfor %}}{{{{ ns.x }}}}")
}

#[test]
fn values_cannot_contain_themselves_or_nest_without_limit() {
    let nested = [
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}".to_owned(),
        "{% set ns = namespace() %}{% set ns.a = [{'b': ns}] %}{{ ns }}".to_owned(),
        "{% set ns = namespace() %}{% for ns.a in [ns] %}{{ ns }}{% endfor %}".to_owned(),
        "{% for i in [1] %}{% set ns = namespace() %}{% set ns.a = loop %}{% endfor %}".to_owned(),
        "{% for i in [1] %}{{ loop.changed(loop) }}{% endfor %}".to_owned(),
        "{% for i in [1] %}{{ loop.cycle() }}{% endfor %}".to_owned(),
        repeated("1", "{% set ns.x = [ns.x] %}"),
        repeated("1", "{% set ns.x = {'a': ns.x} %}"),
        repeated("1", "{% set ns.x = (ns.x, 1) %}"),
        repeated("1", "{% set ns.x = namespace(a=ns.x) %}"),
        repeated("[1]", "{% set ns.x = ns.x|batch(1) %}"),
        repeated("[1]", "{% set ns.x = dict(a=ns.x) %}"),
        format!("{{% set x = [1] %}}{}{{{{ x }}}}", "{% set x = [x] %}".repeat(10_000)),
    ];
    for source in nested {
        let found = outcome(&source);
        assert!(matches!(found, Err(Error::Template { .. })), "{source:.80}: {found:?}");
    }
    // Lazy sequences are lists once they are stored, so they do not nest.
    let flat = outcome(&repeated("[1, 2]", "{% set ns.x = ns.x[::-1] %}"));
    assert_eq!(flat.ok().as_deref(), Some("[2, 1]"));
}

#[test]
fn long_sources_do_not_overflow_the_stack() {
    let chains = [
        ("{{ 1", "+1", "}}"),
        ("{{ x", "+1", "}}"),
        ("{{ x", ".a", "}}"),
        ("{{ ", "not ", "x }}"),
        ("{{ ", "-", "1 }}"),
        ("{{ x", "|trim", "}}"),
        ("{{ x", "[0]", "}}"),
        ("{{ x", "()", "}}"),
        ("{{ x", " is string", "}}"),
        ("{{ x", "~x", "}}"),
        ("{{ x", " if x else x", "}}"),
        ("{{ ", "[", "}}"),
        ("{{ ", "(", "}}"),
        ("{% if x %}", "{% elif x %}", "{% endif %}"),
        ("{% if x %}", "{% if x %}", "{% endif %}"),
        ("", "{% for x in x %}", ""),
    ];
    for (start, link, end) in chains {
        for count in [150, 500, 1000, 2000, 21_000] {
            // Some are valid, and the longest ones are refused; none may overflow.
            let found = outcome(&format!("{start}{}{end}", link.repeat(count)));
            assert!(found.is_err() || count < 21_000, "{link}: {found:?}");
        }
    }
    assert!(outcome(&"a".repeat(300_000)).is_err());
}

#[test]
fn memory_and_time_are_bounded() {
    let sources = [
        r#"{{ "%99999999999d"|format(1) }}"#.to_owned(),
        r#"{{ "%*d"|format(99999999999, 1) }}"#.to_owned(),
        r#"{{ "{:>99999999999}".format(1) }}"#.to_owned(),
        r#"{{ "{:{w}}".format(1, w=99999999999) }}"#.to_owned(),
        "{{ 'a' * 100000000 }}".to_owned(),
        "{{ ('a' * 1000) * 100000 }}".to_owned(),
        "{{ (1, 2) * 50000000 }}".to_owned(),
        "{% set n = 100000000 %}{{ ('a' * n) * n }}".to_owned(),
        "{% set n = 90000000 %}{% set x = [1] * n %}{{ x }}".to_owned(),
        "{{ 'a\nb'|indent(1000000000) }}".to_owned(),
        "{{ 'a\nb'|indent(width=1000000000) }}".to_owned(),
        "{{ [1]|slice(10000000000)|list }}".to_owned(),
        "{{ [1]|batch(10000000000, 0)|list }}".to_owned(),
        repeated("'ab'", "{% set ns.x = ns.x ~ ns.x %}"),
        repeated("'ab'", "{% set ns.x = ns.x + ns.x %}"),
        repeated("'ab'", "{% set ns.x = ns.x * 2 %}"),
        repeated("['ab']", "{% set ns.x = ns.x + ns.x %}"),
        repeated("['ab']", "{% set ns.x = [ns.x, ns.x] %}"),
        repeated("'ab'", "{% set ns.x = ns.x|replace('', ns.x) %}"),
        repeated("'ab'", "{% set ns.x = ns.x.replace('a', ns.x) %}"),
        repeated("'ab'", "{% set ns.x = ns.x.join([ns.x, ns.x]) %}"),
        repeated("'ab'", "{% set ns.x = [ns.x, ns.x]|join(ns.x) %}"),
        repeated("'ab'", "{% set ns.x = '%s%s'|format(ns.x, ns.x) %}"),
        repeated("'ab'", "{% set ns.x = '{0}{0}'.format(ns.x) %}"),
        repeated("'\\n'", "{% set ns.x = [ns.x]|tojson %}"),
        repeated("'\\n'", "{% set ns.x = [ns.x]|pprint %}"),
        repeated("'ab'", "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
        repeated(
            "''",
            &format!("{{% set ns.x %}}{{{{ ns.x }}}}{}{{% endset %}}", "a".repeat(9999)),
        ),
        repeated("''", "{% set y = range(99999)|sort %}"),
        repeated("''", "{% set y = range(99999)|list %}"),
        repeated("''", "{% set y = range(99999)|map('string')|join %}"),
        repeated("''", "{{ [range(99999), range(99999)]|sum(start=[]) }}"),
        repeated("'a' * 9999999", "{% if ns.x == 'b' ~ ns.x %}{% endif %}"),
        repeated("'a' * 9999999", "{% if 'b' in ns.x %}{% endif %}"),
        repeated("'a' * 9999999", "{{ ns.x[0:1] }}"),
        repeated("'a' * 9999999", "{{ ns.x[-1] }}"),
        repeated("'a' * 9999999", "{{ {ns.x: 1}[ns.x] }}"),
        repeated("'a' * 9999999", "{{ loop.changed(ns.x) }}"),
        repeated("'a' * 9999999", "{% for c in ns.x %}{% break %}{% endfor %}"),
        repeated("'a' * 9999999", "{% if ns.x is eq 'b' ~ ns.x %}{% endif %}"),
        repeated("'a' * 9999999", "{{ ns.x.count('b') }}"),
        repeated("'a' * 9999999", "{{ ns.x.find('b') }}"),
        repeated("'a' * 9999999", "{{ ns.x|upper|length }}"),
        "{% macro m(x) %}{{ m(x ~ x) }}{{ m(x ~ x) }}{% endmacro %}{{ m('ab') }}".to_owned(),
        "{% macro m(x) %}{{ m([x, x]) }}{{ m([x, x]) }}{% endmacro %}{{ m('ab') }}".to_owned(),
        "{% for x in [1, 2] recursive %}{{ loop([x, x]) }}{% endfor %}".to_owned(),
        "{% block a %}{{ self.a() }}{% endblock %}".to_owned(),
        "{% include 'chat' %}".to_owned(),
        "{% extends 'chat' %}".to_owned(),
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}".to_owned(),
        "{{ messages|tojson(indent='a' * 1000000) }}".to_owned(),
    ];
    for source in sources {
        let found = outcome(&source);
        let is_bounded = matches!(
            found,
            Err(Error::Costly { .. }
                | Error::Endless { .. }
                | Error::TooLong { .. }
                | Error::Template { .. })
        );
        assert!(is_bounded, "{source:.100}: {:?}", found.map(|text| text.len()));
    }
}

#[test]
fn the_reason_of_a_refusal_is_short() {
    let found = outcome("{{ raise_exception('é' * 400000) }}");
    let Err(Error::Refused { reason, .. }) = found else { panic!("{found:?}") };
    assert_eq!(reason.len(), 4096);
}

/// Writing an integer of a call's arguments costs its digits, as a text costs its characters.
#[test]
fn digits_of_long_integers_are_paid_for() {
    let arguments = format!("{{\"n\": {}}}", "7".repeat(100_000));
    let call = json!({ "id": "a", "function": { "name": "f", "arguments": arguments } });
    let form = Form { arguments: ArgumentForm::Object, null_content: false };
    let messages =
        [messages::prepared(&json!({ "role": "assistant", "tool_calls": [call] }), form)];
    let written = |source: &str| {
        Template::new("digits", source).and_then(|it| it.render(&Inputs::new(&messages)))
    };
    let n = "messages[0].tool_calls[0].function.arguments.n";
    assert_eq!(written(&format!("{{{{ {n} }}}}")).map(|text| text.len()).ok(), Some(100_000));
    let start = Instant::now();
    for body in [format!("{{{{ {n} }}}}"), format!("{{% set x = {n}|string %}}")] {
        let found = written(&format!("{{% for i in range(99999) %}}{body}{{% endfor %}}"));
        assert!(found.is_err(), "{body}");
    }
    assert!(start.elapsed() < SOON);
}
