//! Python's methods of texts, lists and maps, each with what a call costs; minijinja's own compatibility has the others.

use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;
use unicode_categories::UnicodeCategories;

use super::budget::{entries, made, spend};
use super::cost::{formatting, joining, read, replacing, splitting, written};
use super::lists::List;
use super::text::{ended_lines, is_space, limited};

/// Python's methods of texts, lists and maps.
pub fn call(
    state: &mut State,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let all: Vec<Value> = [value].into_iter().chain(arguments).cloned().collect();
    spend(match (value.kind(), method) {
        (ValueKind::String, "replace") => replacing(&all)?,
        (ValueKind::String, "format") => formatting(&all)?,
        (ValueKind::String, "split" | "rsplit") => splitting(&all)?,
        (ValueKind::String, "splitlines") => entries(value),
        // The separator is the value, and the list the argument.
        (ValueKind::String, "join") if all.len() == 2 => {
            joining(&[all[1].clone(), all[0].clone()])?
        }
        (ValueKind::String, _) | (ValueKind::Seq, _) => written(&all)?,
        (ValueKind::Map, "get") => read(&all)?,
        _ => entries(value),
    })?;
    made(called(state, value, method, arguments)?)
}

/// Calls a method that the value itself does not have.
fn called(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let found = match (value.as_str(), value.kind()) {
        (Some(text), _) => of_text(text, method, args),
        (None, ValueKind::Seq) => of_list(value, method, args),
        (None, ValueKind::Map) => of_map(value, method, args),
        _ => None,
    };
    found.unwrap_or_else(|| pycompat::unknown_method_callback(state, value, method, args))
}

type Found = Option<Result<Value, Error>>;

/// A method of `str`.
fn of_text(text: &str, method: &str, args: &[Value]) -> Found {
    Some(match method {
        "center" | "ljust" | "rjust" | "zfill" => padded(text, method, args),
        "split" | "rsplit" => split(text, method, args),
        "strip" | "lstrip" | "rstrip" => stripped(text, method, args),
        "splitlines" => split_lines(text, args),
        "partition" | "rpartition" => partition(text, method, args),
        "removeprefix" => one(args).map(|prefix| text.strip_prefix(prefix).unwrap_or(text).into()),
        "removesuffix" => one(args).map(|suffix| text.strip_suffix(suffix).unwrap_or(text).into()),
        "index" | "rindex" => one(args).and_then(|part| index(text, part, method)),
        "swapcase" => {
            none(args).map(|()| text.chars().flat_map(swapped).collect::<String>().into())
        }
        "casefold" => none(args).map(|()| text.to_lowercase().replace('ß', "ss").into()),
        "title" => none(args).map(|()| title(text).into()),
        "isspace" => none(args).map(|()| (!text.is_empty() && text.chars().all(is_space)).into()),
        "isdecimal" => none(args).map(|()| {
            let is_decimal = text.chars().all(|c| c.is_number_decimal_digit());
            (!text.is_empty() && is_decimal).into()
        }),
        "istitle" => none(args).map(|()| is_title(text).into()),
        "expandtabs" => {
            from_args::<(Option<usize>,)>(args).and_then(|(size,)| expanded(text, size))
        }
        "startswith" | "endswith" if args.len() > 1 => within(text, method, args),
        _ => return None,
    })
}

/// A method of `list` that changes nothing.
fn of_list(list: &Value, method: &str, args: &[Value]) -> Found {
    let items = || list.try_iter();
    Some(match method {
        "copy" => none(args).and_then(|()| Ok(items()?.collect())),
        "index" => from_args::<(Value,)>(args).and_then(|(wanted,)| {
            let at = items()?.position(|item| item == wanted);
            at.map(Value::from).ok_or_else(|| failed("index: the value is not in the list"))
        }),
        "append" | "clear" | "extend" | "insert" | "pop" | "remove" | "reverse" | "sort" => {
            Err(match list.downcast_object_ref::<List>() {
                Some(_) => {
                    let reason =
                        "the methods that change a list of a namespace are append, extend and pop";
                    failed(&format!("`{method}` is not supported: {reason}"))
                }
                None => changes("list", method, "a sum such as `list + [item]`"),
            })
        }
        _ => return None,
    })
}

/// A method of `dict` that changes nothing.
fn of_map(map: &Value, method: &str, args: &[Value]) -> Found {
    Some(match method {
        "copy" => none(args).map(|()| map.clone()),
        "clear" | "pop" | "popitem" | "setdefault" | "update" => {
            Err(changes("dict", method, "`dict(map, key=value)`"))
        }
        _ => return None,
    })
}

/// The error of a method that changes its value, which values of templates cannot.
fn changes(kind: &str, method: &str, instead: &str) -> Error {
    let reason = format!(
        "`{method}` changes a {kind}, and those of templates are constant; assign {instead} to an attribute of a \
         namespace"
    );
    failed(&reason)
}

fn none(args: &[Value]) -> Result<(), Error> {
    from_args::<()>(args)
}

fn one(args: &[Value]) -> Result<&str, Error> {
    from_args::<(&str,)>(args).map(|(text,)| text)
}

fn failed(reason: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.to_owned())
}

fn padded(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill) = from_args::<(usize, Option<char>)>(args)?;
    let width = limited(width)?;
    let missing = width.saturating_sub(text.chars().count());
    let fill = |count: usize| fill.unwrap_or(' ').to_string().repeat(count);
    Ok(Value::from(match method {
        "ljust" => format!("{text}{}", fill(missing)),
        "rjust" => format!("{}{text}", fill(missing)),
        "zfill" => {
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            format!("{sign}{}{digits}", "0".repeat(missing))
        }
        _ => {
            // Python puts the odd one on the left if the width is odd.
            let left = missing / 2 + (missing & width & 1);
            format!("{}{text}{}", fill(left), fill(missing - left))
        }
    }))
}

fn stripped(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (chars,) = from_args::<(Option<&str>,)>(args)?;
    let is_edge = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    Ok(Value::from(match method {
        "lstrip" => text.trim_start_matches(is_edge),
        "rstrip" => text.trim_end_matches(is_edge),
        _ => text.trim_matches(is_edge),
    }))
}

/// `split` and `rsplit`, whose arguments may have names.
fn split(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, most, options) = from_args::<(Option<&str>, Option<i64>, Kwargs)>(args)?;
    let (named, named_most) = (options.get("sep")?, options.get("maxsplit")?);
    options.assert_all_used()?;
    let most = most.or(named_most).and_then(|most| usize::try_from(most).ok());
    let most = most.unwrap_or(usize::MAX - 1);
    let is_right = method == "rsplit";
    let mut parts: Vec<&str> = match separator.or(named) {
        Some("") => return Err(failed(&format!("{method}: the separator is empty"))),
        Some(separator) if is_right => text.rsplitn(most + 1, separator).collect(),
        Some(separator) => text.splitn(most + 1, separator).collect(),
        None => words(text, method, most),
    };
    if is_right {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// The words of a text in the order in which `split` or `rsplit` finds them. What is left after `most` is the last.
fn words<'t>(text: &'t str, method: &str, most: usize) -> Vec<&'t str> {
    let is_right = method == "rsplit";
    let trimmed = |text: &'t str| match is_right {
        true => text.trim_end_matches(is_space),
        false => text.trim_start_matches(is_space),
    };
    let parted = |text: &'t str| match is_right {
        true => text.rsplit_once(is_space).map(|(rest, word)| (word, rest)),
        false => text.split_once(is_space),
    };
    let (mut rest, mut words) = (trimmed(text), Vec::new());
    while words.len() < most
        && let Some((word, more)) = parted(rest)
    {
        words.push(word);
        rest = trimmed(more);
    }
    words.extend(Some(rest).filter(|rest| !rest.is_empty()));
    words
}

/// The lines of a text, with their ends if `keepends`. Python knows more ends than line feeds.
fn split_lines(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (keepends, options) = from_args::<(Option<bool>, Kwargs)>(args)?;
    let keepends = keepends.or(options.get("keepends")?).unwrap_or(false);
    options.assert_all_used()?;
    let lines = ended_lines(text).map(|(line, end)| match keepends {
        true => Value::from(format!("{line}{end}")),
        false => Value::from(line),
    });
    Ok(lines.collect::<Vec<_>>().into())
}

fn partition(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let separator = one(args)?;
    if separator.is_empty() {
        return Err(failed("partition: the separator is empty"));
    }
    let is_first = method == "partition";
    let found = if is_first { text.split_once(separator) } else { text.rsplit_once(separator) };
    let parts = match (found, is_first) {
        (Some((before, after)), _) => [before, separator, after],
        (None, true) => [text, "", ""],
        (None, false) => ["", "", text],
    };
    Ok(Tuple::from(parts.map(Value::from)).into())
}

/// The position in characters.
fn index(text: &str, part: &str, method: &str) -> Result<Value, Error> {
    let at = if method == "index" { text.find(part) } else { text.rfind(part) };
    let at = at.ok_or_else(|| failed("index: the text does not occur"))?;
    Ok(text[..at].chars().count().into())
}

fn swapped(c: char) -> impl Iterator<Item = char> {
    let text: String =
        if c.is_lowercase() { c.to_uppercase().collect() } else { c.to_lowercase().collect() };
    text.chars().collect::<Vec<_>>().into_iter()
}

/// The text with upper case at the beginning of each run of letters, and lower case within.
fn title(text: &str) -> String {
    let (mut out, mut follows) = (String::with_capacity(text.len()), false);
    for c in text.chars() {
        match c {
            _ if follows => out.extend(c.to_lowercase()),
            // Letters that are two in one have a title case of their own.
            'Ǆ'..='ǆ' => out.push('ǅ'),
            'Ǉ'..='ǉ' => out.push('ǈ'),
            'Ǌ'..='ǌ' => out.push('ǋ'),
            'Ǳ'..='ǳ' => out.push('ǲ'),
            _ => {
                let mut upper = c.to_uppercase();
                let first = upper.next().unwrap_or(c);
                out.push(first);
                let is_letter = first.is_uppercase();
                upper.for_each(|c| match is_letter {
                    true => out.extend(c.to_lowercase()),
                    false => out.push(c),
                });
            }
        }
        follows = c.is_uppercase() || c.is_lowercase() || c.is_letter_titlecase();
    }
    out
}

/// Whether upper case begins every word and occurs nowhere else.
fn is_title(text: &str) -> bool {
    let (mut follows, mut has_letters) = (false, false);
    for c in text.chars() {
        if c.is_uppercase() && follows || c.is_lowercase() && !follows {
            return false;
        }
        follows = c.is_uppercase() || c.is_lowercase();
        has_letters |= follows;
    }
    has_letters
}

fn expanded(text: &str, size: Option<usize>) -> Result<Value, Error> {
    let size = limited(size.unwrap_or(8))?;
    let (mut out, mut column) = (String::new(), 0);
    for c in text.chars() {
        match c {
            '\t' if size > 0 => {
                let spaces = size - column % size;
                out.push_str(&" ".repeat(spaces));
                column += spaces;
            }
            '\t' => {}
            '\n' | '\r' => {
                out.push(c);
                column = 0;
            }
            _ => {
                out.push(c);
                column += 1;
            }
        }
    }
    Ok(out.into())
}

/// `startswith` and `endswith` with positions in characters.
fn within(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (part, start, end) = from_args::<(&str, Option<i64>, Option<i64>)>(args)?;
    let len = text.chars().count() as i64;
    let place = |at: i64| if at < 0 { (at + len).max(0) } else { at.min(len) } as usize;
    let (start, end) = (place(start.unwrap_or(0)), place(end.unwrap_or(len)));
    let text: String = text.chars().skip(start).take(end.saturating_sub(start)).collect();
    Ok((if method == "startswith" { text.starts_with(part) } else { text.ends_with(part) }).into())
}

#[cfg(test)]
mod tests {
    use crate::chat::{Inputs, Template};

    use super::is_title;

    #[test]
    fn a_method_that_changes_a_value_says_what_to_write_instead() {
        for (call, part) in [("[1].append(2)", "list + [item]"), ("{'a': 1}.update(b=2)", "dict")] {
            let template = Template::new("changing", &format!("{{{{ {call} }}}}")).expect(call);
            let error = template.render(&Inputs::new(&[])).expect_err(call).to_string();
            assert!(error.contains("changes") && error.contains(part), "{error}");
        }
    }

    /// As Python's `str.splitlines`.
    #[test]
    fn lines_end_where_python_ends_them() {
        let text = "a\\nb\\r\\nc\\rd\\x0be\\x0cf\\x1cg\\x1dh\\x1ei\\u0085j\\u2028k\\u2029l\\n\\nm";
        let cases = [
            (format!("'{text}'.splitlines() | join(',')"), "a,b,c,d,e,f,g,h,i,j,k,l,,m"),
            ("'a\\n'.splitlines() | length".to_owned(), "1"),
            ("''.splitlines() | length".to_owned(), "0"),
            ("'a\\r\\nb\\n'.splitlines(true) | map('length') | join(',')".to_owned(), "3,2"),
            ("'a\\u2028b'.splitlines(keepends=true) | map('length') | join(',')".to_owned(), "2,1"),
        ];
        for (expression, expected) in cases {
            let template =
                Template::new("lines", &format!("{{{{ {expression} }}}}")).expect(&expression);
            assert_eq!(template.render(&Inputs::new(&[])).as_deref(), Ok(expected), "{expression}");
        }
    }

    /// As Python's `str.istitle`.
    #[test]
    fn titles_begin_each_word_with_upper_case() {
        for title in ["Hello World", "A", "They'Re", "3 Words"] {
            assert!(is_title(title), "{title}");
        }
        for other in ["", "123", "Hello world", "HELLO", "hello"] {
            assert!(!is_title(other), "{other}");
        }
    }
}
