//! Renders the templates of /shaders to WGSL.

use std::sync::OnceLock;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, UndefinedBehavior, Value};

/// All templates: path below /shaders without extension, and text.
static TEMPLATES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/shaders.rs"));

/// The text of a template, if it exists.
pub fn template(name: &str) -> Option<&'static str> {
    TEMPLATES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// Renders a template to WGSL. Deterministic.
///
/// # Panics
/// On mistakes in a template; all variants are rendered in crates/gpu/tests/shaders.rs.
pub fn render(name: &str, context: Value) -> String {
    static ENVIRONMENT: OnceLock<Environment<'static>> = OnceLock::new();
    let environment = ENVIRONMENT.get_or_init(|| {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_syntax(syntax());
        for (name, text) in TEMPLATES {
            environment.add_template(name, text).unwrap_or_else(|e| panic!("shaders/{name}: {e}"));
        }
        environment
    });
    let rendered = environment.get_template(name).and_then(|template| template.render(context));
    rendered.unwrap_or_else(|error| panic!("shaders/{name}.wgsl: {error:#}"))
}

/// What a line of a template sets `name` to, such as `{% set name = 1 %}`; nothing of the other templates is seen.
///
/// # Errors
/// It is no valid line or sets no such name.
pub(crate) fn declared(line: &str, name: &str) -> Result<Value, String> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax());
    let template = environment.template_from_str(line).map_err(|error| error.to_string())?;
    let captured = template.render_captured(()).map_err(|error| error.to_string())?;
    let found = captured.state().lookup(name).filter(|value| !value.is_undefined());
    found.ok_or_else(|| format!("its first line must be {{% set {name} = ... %}}"))
}

/// Block tags are on lines of their own, which are removed.
fn syntax() -> SyntaxConfig {
    let built = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    built.expect("the usual delimiters")
}
