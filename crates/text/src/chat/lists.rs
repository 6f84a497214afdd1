//! Lists that a template can change: those that it gives to `namespace`.
//!
//! Other lists are constant, since a list that is stored in two places would have to change in both. What is appended has
//! nothing in it that templates can change, and lazy sequences, which could refer to such a list, are turned into lists
//! where they are made ([`super::budget::made`]); so no list contains itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minijinja::value::{Enumerator, Object, ObjectRepr, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

use super::budget::{ENTRY, check_plain, entries, invalid, spend, visit};

/// A list with Python's methods `append`, `extend` and `pop`.
#[derive(Debug)]
pub struct List(Mutex<Vec<Value>>);

impl List {
    /// A copy of a list that can be changed; another value unchanged.
    pub fn of(value: Value) -> Result<Value, Error> {
        if value.kind() != ValueKind::Seq || value.downcast_object_ref::<Tuple>().is_some() {
            return Ok(value);
        }
        spend(entries(&value))?;
        Ok(Value::from_object(List(Mutex::new(value.try_iter()?.collect()))))
    }

    fn items(&self) -> MutexGuard<'_, Vec<Value>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, value: Value) -> Result<(), Error> {
        spend(ENTRY)?;
        check_constant(&value)?;
        self.items().push(value);
        Ok(())
    }

    fn pop(&self, index: Option<i64>) -> Result<Value, Error> {
        let mut items = self.items();
        spend(ENTRY.saturating_mul(items.len() as u64))?;
        let index = index.unwrap_or(-1);
        let from_start = if index < 0 { index + items.len() as i64 } else { index };
        let at = usize::try_from(from_start).ok().filter(|at| *at < items.len());
        let at = at.ok_or_else(|| {
            Error::new(ErrorKind::InvalidOperation, "pop: the list has no such entry")
        })?;
        Ok(items.remove(at))
    }
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.items().get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items().len())
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        match method {
            "append" => {
                let (value,) = from_args::<(Value,)>(args)?;
                self.push(value)?;
            }
            "extend" => {
                let (more,) = from_args::<(Value,)>(args)?;
                let more: Vec<Value> = more.try_iter()?.collect();
                more.into_iter().try_for_each(|value| self.push(value))?;
            }
            "pop" => {
                let (index,) = from_args::<(Option<i64>,)>(args)?;
                return self.pop(index);
            }
            _ => return Err(Error::from(ErrorKind::UnknownMethod)),
        }
        Ok(Value::from(()))
    }
}

/// Refuses a value that contains an object which templates can change, lists included.
fn check_constant(value: &Value) -> Result<(), Error> {
    check_plain(value)?;
    visit(value, 0, &mut |value, _| match value.downcast_object_ref::<List>() {
        Some(_) => Err(invalid("a list that changes cannot be stored in one that changes")),
        None => Ok(()),
    })
}

#[cfg(test)]
mod tests {
    use crate::Error;
    use crate::chat::{Inputs, Template};

    fn rendered(source: &str) -> Result<String, Error> {
        Template::new("lists", source).and_then(|template| template.render(&Inputs::new(&[])))
    }

    /// Expected are the texts of Jinja2 3.1.6, outside of its sandbox.
    #[test]
    fn lists_of_namespaces_can_be_changed() {
        let cases = [
            ("{{ n.l.append(1) }}{{ n.l }}", "None[1]"),
            (
                "{% for i in [1, 2, 3] %}{% set _ = n.l.append(i) %}{% endfor %}{{ n.l.pop(0) }}{{ n.l }}",
                "1[2, 3]",
            ),
            (
                "{% set _ = n.l.extend([1, 2, 3]) %}{{ n.l.pop() }}{{ n.l.pop(-2) }}{{ n.l }}",
                "31[2]",
            ),
            ("{% if n.l %}a{% endif %}{% set _ = n.l.append('b') %}{% if n.l %}b{% endif %}", "b"),
            (
                "{% set _ = n.l.extend('ab') %}{{ n.l | join('-') }}{{ n.l | length }}{{ 'a' in n.l }}",
                "a-b2True",
            ),
            (
                "{% set _ = n.l.append('a') %}{{ n.l[0] }}{{ n.l[-1] }}{{ n.l[:1] }}{{ n.l + [1] }}",
                "aa['a']['a', 1]",
            ),
            (
                "{% set _ = n.l.append({'a': [1e-5]}) %}{{ n.l | tojson }}{{ n.l }}",
                "[{\"a\": [1e-05]}][{'a': [1e-05]}]",
            ),
            ("{% set n.m = n.l %}{% set _ = n.m.append(1) %}{{ n.l }}{{ n.l == [1] }}", "[1]True"),
            ("{% set n.l = n.l + [1] %}{{ n.l }}{{ n.l.index(1) }}{{ n.l.count(1) }}", "[1]01"),
        ];
        for (source, expected) in cases {
            let source = format!("{{% set n = namespace(l=[]) %}}{source}");
            assert_eq!(rendered(&source).as_deref(), Ok(expected), "{source}");
        }
    }

    #[test]
    fn namespaces_take_a_mapping_and_names() {
        let source = "{% set n = namespace({'a': 1, 'b': 1}, b=2) %}{{ n.a }}{{ n.b }}";
        assert_eq!(rendered(source).as_deref(), Ok("12"));
        let source = "{% set n = namespace({'a': [1]}) %}{% set _ = n.a.append(2) %}{{ n.a }}";
        assert_eq!(rendered(source).as_deref(), Ok("[1, 2]"));
        assert!(
            rendered("{{ namespace(1) }}").is_err() && rendered("{{ namespace({}, {}) }}").is_err()
        );
    }

    #[test]
    fn lists_contain_neither_themselves_nor_a_namespace() {
        for (broken, reason) in [
            ("n.l.append(n.l)", "cannot be stored"),
            ("n.l.append([n.l])", "cannot be stored"),
            ("n.l.append(n)", "cannot be stored"),
            ("n.l.extend([{'a': n}])", "cannot be stored"),
            ("n.l.pop()", "no such entry"),
            ("n.l.pop(-1)", "no such entry"),
            ("n.l.sort()", "append, extend and pop"),
            ("n.l.insert(0, 1)", "append, extend and pop"),
            ("[].append(1)", "changes a list"),
        ] {
            let source = format!("{{% set n = namespace(l=[]) %}}{{{{ {broken} }}}}");
            let error = rendered(&source).expect_err(broken).to_string();
            assert!(error.contains(reason), "{broken}: {error}");
        }
        // A lazy sequence over the list would contain itself.
        let source =
            "{% set n = namespace(l=[1]) %}{% set _ = n.l.append(n.l | chain([2])) %}{{ n.l }}";
        assert_eq!(rendered(source).as_deref(), Ok("[1, [1, 2]]"));
        let endless = "{% set n = namespace(l=[1]) %}{% for i in range(9999) %}{% for x in n.l %}{% set _ = n.l.append(x) %}{% endfor %}{% endfor %}";
        assert!(matches!(rendered(endless), Err(Error::Costly { .. } | Error::Endless { .. })));
    }
}
