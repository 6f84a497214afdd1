//! GBNF: well-known kinds of grammars, every piece of syntax, errors, and hostile grammars.

use std::time::{Duration, Instant};

use super::{constraint, matches, refusal};
use crate::{Constraint, Grammar, Limits, Token, Tokens};

fn check(grammar: &str, good: &[&str], bad: &[&str]) {
    let constraint = constraint(&Grammar::gbnf(grammar));
    for text in good {
        assert!(matches(&constraint, text), "{text:?} is in\n{grammar}");
    }
    for text in bad {
        assert!(!matches(&constraint, text), "{text:?} is not in\n{grammar}");
    }
}

#[test]
fn syntax() {
    check(r#"root ::= "a" | "b" # comment"#, &["a", "b"], &["", "ab", "c"]);
    check("root ::= [a-cX-]+ [^\\n\\]]?", &["a-X", "abz"], &["", "abzz", "a]"]);
    check("root ::= \"\\x41\\u00e9\\U0001F600\\n\\t\\\\\\\"\"", &["Aé😀\n\t\\\""], &["A"]);
    check("root ::= . .", &["ab", "é\n", "😀😀"], &["a", "abc"]);
    check("root ::= \"a\"{2} \"b\"{1,} \"c\"{0,2}", &["aab", "aabbcc"], &["ab", "aabccc"]);
    check("root ::= (\n \"a\" |\n \"b\"\n)+ | \"\"", &["", "abba"], &["c"]);
    check("root ::=\n  item\nitem ::= \"x\" |\n  \"y\"\r\n\r\n", &["x", "y"], &["xy"]);
    check("root ::= a-b\na-b ::= \"\" | \"q\" a-b", &["", "qqq"], &["p"]);
    check("root ::= \"a\"? \"b\"{0} \"c\"*+", &["", "acc"], &["b"]);
}

const JSON: &str = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( pair ("," ws pair)* )? "}" ws
pair   ::= string ":" ws value
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"#;

#[test]
fn json() {
    let good = ["{}", r#"{"a":[1,-2.5e3,"x\u00e9é\"",null,{"b":[]}]}"#, "{\n  \"a\": true\n} "];
    check(JSON, &good, &["", "[]", "{", r#"{"a"}"#, r#"{"a":01}"#, r#"{"a":"\x"}"#, "{}{}"]);
}

#[test]
fn arithmetic_whose_blanks_may_also_end_a_line() {
    let grammar = r#"
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"#;
    let good = ["x=1\n", "(a1 +22 )*x/3 = 7\n", "a=b\n \n(c)=1\n\n\n"];
    check(grammar, &good, &["x=1", "x=\n", "(x=1\n", "1a=2\n"]);
}

#[test]
fn a_list_and_moves_of_chess_are_regular() {
    check(
        "root ::= item+\nitem ::= \"- \" [^\\r\\n]+ \"\\n\"",
        &["- a b\n- c\n"],
        &["- \n", "a\n"],
    );
    let chess = r#"
root ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")*
move ::= (pawn | piece | castle) [+#]?
piece ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
"#;
    check(chess, &["1. e4 e5\n2. Nf3 O-O-O+\n"], &["1. e9 e5\n", "e4 e5\n", "1. e4\n"]);
}

#[test]
fn a_language_like_c() {
    let grammar = r#"
root ::= (declaration)*
declaration ::= type identifier "(" parameter? ")" "{" statement* "}"
type ::= "int" ws | "float" ws | "char" ws
identifier ::= [a-zA-Z_] [a-zA-Z_0-9]*
parameter ::= type identifier
statement ::=
    ( type identifier ws "=" ws expression ";" ) |
    ( identifier ws "=" ws expression ";" ) |
    ( identifier ws "(" argument? ")" ";" ) |
    ( "return" ws expression ";" ) |
    ( "while" "(" condition ")" "{" statement* "}" ) |
    ( "if" "(" condition ")" "{" statement* "}" ("else" "{" statement* "}")? )
condition ::= expression ("==" | "!=" | "<" | "<=") expression
expression ::= term (("+" | "-") term)*
term ::= factor (("*" | "/") factor)*
factor ::= identifier | number | "(" expression ")" | identifier "(" argument? ")"
argument ::= expression ("," ws expression)*
number ::= [0-9]+
ws ::= [ \t\n]+
"#;
    let good = [
        "",
        "int main(){return 1;}",
        "int f(int x){if(x<=1){return 1;}else{returned = f(x-1, 2)*x;}}float g(){}",
    ];
    check(grammar, &good, &["int (){}", "int f(){return1;}", "int f(){x = ;}", "int f(){"]);
}

/// Where the longest lexeme is the wrong one, so terminals must be split.
#[test]
fn texts_that_a_greedy_lexer_would_lose() {
    let nested = "root ::= \"(\" root \")\" | [a-z]+ \"b\" | \"ab\" [0-9] \"c\"";
    check(nested, &["ab", "(xyzb)", "((bb))", "ab7c"], &["a", "(b)", "ab7", "(ab"]);
    let blanks = "root ::= \"[\" ws root? ws \"]\" ws\nws ::= [ ]*";
    check(blanks, &["[]", "[ [ ]  ] ", "[  ]"], &["[", "] [", "[]]"]);
    let prefix = "root ::= \"i\" root \"e\" | \"if\" root | \"f\" | \"\"";
    check(prefix, &["", "f", "ife", "iff", "iifee", "ififf"], &["i", "e", "iif", "ifee"]);
    let left = "root ::= root \"+\" item | item\nitem ::= [0-9]+ | \"(\" root \")\"";
    check(left, &["1", "1+22+(3+4)", "(((1)))"], &["+1", "1+", "(1", ""]);
    let counted = "root ::= \"<\" root{2,3} \">\" | \"x\"{1,2}";
    check(counted, &["x", "xx", "<xx>", "<xxx<xx>>", "<xxxxxx>"], &["<x>", "xxx", "<xxxxxxx>"]);
}

/// llama.cpp's example: reasoning up to a token, and text behind it. Files give such tokens either type.
#[test]
fn tokens_are_named_by_spelling_or_id() {
    const THINK: u32 = 256;
    const CLOSE: u32 = 257;
    const OTHER: u32 = 258;
    const END: u32 = 259;
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let whether = |tokens: &Tokens, grammar: &str, ids: &[u32]| {
        let made = Constraint::new(tokens, &Grammar::gbnf(grammar), Limits::default());
        let mut made = made.unwrap_or_else(|error| panic!("{grammar}: {error}"));
        ids.iter().all(|&id| made.accept(id).is_ok()) && made.may_end()
    };
    for kind in [Token::Text, Token::Control] {
        let named =
            [kind(b"<think>"), kind(b"</think>"), kind(b"<other>"), Token::Control(b"<end>")];
        let tokens = Tokens::new(bytes.iter().map(|byte| Token::Text(byte)).chain(named), &[END]);
        let tokens = tokens.unwrap();
        let [a, b] = *b"ab";
        let (a, b) = (u32::from(a), u32::from(b));
        for grammar in [
            "root ::= <think> thought </think> [a]+\nthought ::= !</think>*",
            "root ::= <[256]> !<[257]>* <[257]> \"a\"{1,}",
        ] {
            for (ids, expected) in [
                (&[THINK, CLOSE, a][..], true),
                (&[THINK, b, OTHER, THINK, b, CLOSE, a, a], true),
                (&[THINK, b, CLOSE, b], false),
                (&[THINK, b], false),
                (&[a], false),
                (&[THINK, END], false),
                (&[THINK, CLOSE, a, OTHER], false),
            ] {
                assert_eq!(whether(&tokens, grammar, ids), expected, "{grammar}: {ids:?}");
            }
        }
        assert!(whether(&tokens, "root ::= \"a\" (<other> | \"b\")?", &[a, OTHER]));
        assert!(whether(&tokens, "root ::= <other> root | \"\"", &[OTHER, OTHER]));
    }
    for (part, column, reason) in [
        ("<nothing>", 10, "<nothing> is not one token of the vocabulary"),
        ("\"a\" !<[999]>", 14, "the vocabulary has no token 999"),
        ("<[x]>", 10, "the vocabulary has no token x"),
        ("!\"a\"", 10, "expected a token such as <name> or <[id]>"),
        ("<think", 10, "expected a token such as <name> or <[id]>"),
    ] {
        let expected = format!("the GBNF grammar, line 1, column {column}: {reason}");
        assert_eq!(refusal(&Grammar::gbnf(format!("root ::= {part}"))), expected);
    }
}

/// Each is read as a token and as text as long as both may be meant, as in llama.cpp.
#[test]
fn a_token_may_also_be_text() {
    const UNKNOWN: u32 = 256;
    const AB: u32 = 257;
    const UNUSED: u32 = 258;
    const END: u32 = 259;
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let longer =
        [Token::Control(b"<unk>"), Token::Text(b"ab"), Token::Unused, Token::Control(b"<end>")];
    let tokens = Tokens::new(bytes.iter().map(|byte| Token::Text(byte)).chain(longer), &[END]);
    let tokens = tokens.unwrap();
    let [a, b, x] = b"abx".map(u32::from);
    // Each grammar; tokens after which the text may end, and others after which it may not.
    type Texts<'a> = &'a [&'a [u32]];
    let cases: &[(&str, Texts, Texts)] = &[
        (
            r#"root ::= !<unk>* "a""#,
            &[&[a], &[b, x, a], &[a, a, a], &[AB, a]],
            &[&[], &[b], &[AB], &[a, b], &[UNKNOWN, a], &[UNUSED, a]],
        ),
        (r#"root ::= !<unk>+ "a""#, &[&[b, a], &[a, a], &[AB, a]], &[&[a], &[a, b], &[AB]]),
        (r#"root ::= (<[97]>)* "a""#, &[&[a], &[a, a, a]], &[&[], &[b], &[a, b], &[AB]]),
        (
            "x ::= !<unk> x | \"\"\nroot ::= x \"a\"",
            &[&[a], &[b, a], &[a, a]],
            &[&[], &[a, b], &[UNKNOWN, a]],
        ),
        (r#"root ::= "a" | <[97]> "b""#, &[&[a], &[a, b]], &[&[AB], &[b], &[a, a]]),
        (r#"root ::= "ab" | <[97]> "x""#, &[&[a, b], &[AB], &[a, x]], &[&[a], &[AB, x]]),
        (r#"root ::= "a" <[98]> | "abx""#, &[&[a, b], &[a, b, x], &[AB, x]], &[&[AB], &[a, x]]),
        (
            r#"root ::= <[97]> "x" | !<unk> "b" | !<[97]> "a""#,
            &[&[a, x], &[a, b], &[x, b], &[x, a], &[UNKNOWN, a]],
            &[&[a, a], &[x, x], &[UNKNOWN, b]],
        ),
        (r#"root ::= [a-z]* <[257]> [a-z]+"#, &[&[AB, AB], &[x, AB, AB, x]], &[&[AB], &[a, b, x]]),
        (r#"root ::= (!<unk> | "a")* "b""#, &[&[a, b], &[a, a, a, a, a, b], &[b]], &[&[a], &[]]),
    ];
    for (grammar, whole, partial) in cases {
        let made = Constraint::new(&tokens, &Grammar::gbnf(*grammar), Limits::default());
        let made = made.unwrap_or_else(|error| panic!("{grammar}: {error}"));
        for (ids, expected) in
            whole.iter().map(|ids| (ids, true)).chain(partial.iter().map(|ids| (ids, false)))
        {
            let mut made = made.clone();
            let is_read = ids.iter().all(|&id| made.accept(id).is_ok());
            assert_eq!(is_read && made.may_end(), expected, "{grammar}: {ids:?}");
            if is_read && let Ok(mask) = made.mask() {
                assert_eq!(mask.allows(END), expected, "{grammar}: {ids:?}");
            }
        }
    }
    // More ways to read a text than are followed; those that go on alike count as one.
    let many = Grammar::gbnf(r#"root ::= (!<unk> | [a-z])* <[257]> "x""#);
    let mut made = Constraint::new(&tokens, &many, Limits::default()).unwrap();
    [a, AB, b].repeat(50).iter().chain(&[AB, x]).for_each(|&id| made.accept(id).unwrap());
    assert!(made.may_end());
    let many: String = (0..256).map(|id| format!("<[{id}]> ")).collect();
    let error =
        Constraint::new(&tokens, &Grammar::gbnf(format!("root ::= {many}")), Limits::default());
    let expected = "the GBNF grammar, line 1, column 1940: the grammar names more than 255 tokens";
    assert_eq!(error.unwrap_err().to_string(), expected);
}

#[test]
fn errors_say_where() {
    let cases = [
        ("", "the GBNF grammar: it has no rule `root`"),
        ("a ::= \"x\"", "the GBNF grammar: it has no rule `root`"),
        ("root ::= \"a", "the GBNF grammar, line 1, column 10: unclosed literal"),
        ("root ::= b\n", "the GBNF grammar, line 1, column 10: the rule `b` is not defined"),
        ("root ::= (\n\"a\"", "the GBNF grammar, line 1, column 10: unclosed group"),
        ("root ::= \"a\" )", "the GBNF grammar, line 1, column 14: unexpected ')'"),
        ("root ::= [z-a]", "the GBNF grammar, line 1, column 11: the range 'z'-'a' is empty"),
        ("root ::= []", "the GBNF grammar, line 1, column 10: the set allows no character"),
        ("root ::= \"\\q\"", "the GBNF grammar, line 1, column 11: unknown escape \\q"),
        ("root ::= \"\\uD800\"", "the GBNF grammar, line 1, column 11: \\uD800 is no character"),
        ("root ::= *", "the GBNF grammar, line 1, column 10: nothing to repeat"),
        ("root : \"a\"", "the GBNF grammar, line 1, column 6: expected `::=` after `root`"),
        (
            "root ::= \"a\"{3,2}",
            "the GBNF grammar, line 1, column 13: at most is less than at least",
        ),
        (
            "root ::= \"a\" root",
            "the GBNF grammar: the rule `root` refers to itself without an end",
        ),
    ];
    for (grammar, expected) in cases {
        assert_eq!(refusal(&Grammar::gbnf(grammar)), expected, "{grammar}");
    }
}

/// Compiles or is refused, in any case soon.
fn soon(grammar: &Grammar) -> Result<(), String> {
    let start = Instant::now();
    let result = crate::Constraint::new(&super::bytes(), grammar, crate::Limits::default());
    let took = start.elapsed();
    // Generous, since the machine may be busy.
    assert!(took < Duration::from_secs(20), "{took:?}");
    result.map(|_| ()).map_err(|error| error.to_string())
}

#[test]
fn hostile_grammars_are_refused_soon() {
    let groups = format!("root ::= {}\"a\"{}", "(".repeat(60_000), ")".repeat(60_000));
    assert!(soon(&Grammar::gbnf(groups)).unwrap_err().contains("more than 64 deep"));
    let counts = "root ::= \"a\"{0,1000000000}";
    assert!(soon(&Grammar::gbnf(counts)).unwrap_err().contains("at most 2000"));
    let stars = format!("root ::= \"a\"{}", "*".repeat(100_000));
    assert!(soon(&Grammar::gbnf(stars)).is_err());
    let powers: String = (0..60).map(|i| format!("r{i} ::= r{} r{}\n", i + 1, i + 1)).collect();
    let _ = soon(&Grammar::gbnf(format!("root ::= r0\n{powers}r60 ::= \"a\"")));
    let nested = "root ::= ((((\"a\"{0,2000}){0,2000}){0,2000}){0,2000}){0,2000}";
    let _ = soon(&Grammar::gbnf(nested));
    let nested = "root ::= ((([a-b]{0,2000} root?){0,2000}){0,2000}){0,2000}";
    let _ = soon(&Grammar::gbnf(nested));
    let chain: String = (0..20_000).map(|i| format!("r{i} ::= r{}\n", i + 1)).collect();
    let _ = soon(&Grammar::gbnf(format!("root ::= r0\n{}r20000::=\"\"", &chain[..])));
    let chain: String = (0..9_000).map(|i| format!("r{i} ::= [a] r{} [b]\n", i + 1)).collect();
    let _ = soon(&Grammar::gbnf(format!("root ::= r0\n{chain}r9000 ::= \"\" | root")));
    let ambiguous = "root ::= root root | \"a\" | \"\"";
    let _ = soon(&Grammar::gbnf(ambiguous));
    let many: String = (0..3000).map(|i| format!("| \"x{i}\" root ")).collect();
    let _ = soon(&Grammar::gbnf(format!("root ::= \"\" {many}")));
    let long = format!("root ::= \"{}\"", "a".repeat(250_000));
    let _ = soon(&Grammar::gbnf(long));
    let too_long = "#".repeat(300_000);
    assert!(soon(&Grammar::gbnf(too_long)).unwrap_err().contains("at most 262144"));
}
