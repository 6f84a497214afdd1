// Runs in the page: checks the Markdown renderer and returns what is wrong, one line each.
const { parse, render, Stream } = await import("./markdown.js");
const failures = [];

/** The structure of nodes, `p(one em(two))`, with addresses of links. */
function outline(node) {
  if (node.nodeType === Node.TEXT_NODE) return node.data;
  if (node.classList.contains("code")) return `code[${node.querySelector("span").textContent}](${node.querySelector("code").textContent})`;
  const name = node.localName;
  const about = name === "a" ? `[${node.getAttribute("href")}]` : node.className.match(/^(math|right|center)$/) ? `.${node.className}` : "";
  return `${name}${about}(${[...node.childNodes].map(outline).join("")})`.replace("()", "");
}

const rendered = (source) => parse(source).map((block) => outline(render(block))).join(" ");

function expect(source, wanted) {
  const found = rendered(source);
  if (found !== wanted) failures.push(`${JSON.stringify(source)}\n      gives ${found}\n      wants ${wanted}`);
}

expect("one\ntwo\n\nthree", "p(onebrtwo) p(three)");
expect("# Title #\n### C#", "h3(Title) h5(C#)");
expect("#hash", "p(#hash)");
expect("*a* **b** ***c*** _d_ __e__ ~~f~~", "p(em(a) strong(b) em(strong(c)) em(d) strong(e) del(f))");
expect("snake_case_name 2 * 3 * 4 **open", "p(snake_case_name 2 * 3 * 4 **open)");
expect("**a *b* c**", "p(strong(a em(b) c))");
expect("**中文**字", "p(strong(中文)字)");
expect("`a*b*` ``c`d`` \\*e\\* `open", "p(code(a*b*) code(c`d) *e* `open)");
expect("- a\n- b\n  - c\n    1. d", "ul(li(p(a))li(p(b)ul(li(p(c)ol(li(p(d)))))))");
expect("1. a\n   - b\n2. c", "ol(li(p(a)ul(li(p(b))))li(p(c)))");
expect("1. a\n\n```\nx\n```\n2. b", "ol(li(p(a))) code[text](x) ol(li(p(b)))");
expect("- a\n\n  ```py\n  x = 1\n    y\n  ```\n- b", "ul(li(p(a)code[py](x = 1\n  y))li(p(b)))");
expect("text\n- a", "p(text) ul(li(p(a)))");
expect("in\n1984. no list", "p(inbr1984. no list)");
expect("- [x] a\n- [ ] b", "ul(li(inputp(a))li(inputp(b)))");
expect("> a\n> - b\n>\n> c\n\nd", "blockquote(p(a)ul(li(p(b)))p(c)) p(d)");
expect("```rust\nfn main() {}\n\n```\nend", "code[rust](fn main() {}\n) p(end)");
expect("````\n```\n````", "code[text](```)");
expect("~~~\nopen", "code[text](open)");
expect("a\n\n---\n\n***", "p(a) hr hr");
expect("| a | b |\n|:-:|--:|\n| 1 | 2 |\n| x \\| y |", "div(table(thead(tr(th.center(a)th.right(b)))tbody(tr(td.center(1)td.right(2))tr(td.center(x | y)td.right))))");
expect("a | b\nno table", "p(a | bbrno table)");
expect("[a *b*](https://x.org/a_(b) \"t\") [c](<http://y.org>)", "p(a[https://x.org/a_(b)](a em(b)) a[http://y.org/](c))");
expect("see https://x.org/a(b)?c=1. Or <http://y.org/>.", "p(see a[https://x.org/a(b)?c=1](https://x.org/a(b)?c=1). Or a[http://y.org/](http://y.org/).)");
expect("[https://good.org](https://x.org)", "p(a[https://x.org/](https://good.org))");
expect("\\(a_1 * b_2 * c\\) $$x_1$$ costs $5 and $6", "p(span.math(a_1 * b_2 * c) span.math(x_1) costs $5 and $6)");
expect("a &amp; b &lt;i&gt; &nosuch;", "p(a & b <i> &nosuch;)");

// Hostile text stays text.
for (const address of ["javascript:alert(1)", "JaVaScRiPt:alert(1)", "java\tscript:alert(1)", "data:text/html,x", "vbscript:x", "file:///etc/passwd", "//x.org", "/local", "#a", " javascript:1", "blob:x"]) {
  const node = render(parse(`[text](${address}) [text](<${address}>)`)[0]);
  if (node.querySelector("a")) failures.push(`${address} became a link`);
}
const hostile = [
  "<script>window.hacked = 1</script>",
  "<img src=x onerror=window.hacked=2>",
  "```x\"><img src=x onerror=window.hacked=3>\ncode</code></pre><script>window.hacked=4</script>\n```",
  "| <img src=x onerror=window.hacked=5> |\n|---|\n| [a](javascript:window.hacked=6) |",
  "[a](https://x.org/\"onmouseover=window.hacked=7)",
  "[<img src=x onerror=window.hacked=8>](https://x.org)",
  "# <svg onload=window.hacked=9>\n- <iframe srcdoc='<script>1</script>'>\n> <style>*{display:none}</style>",
  "![x](https://x.org/x.png)",
];
const place = document.createElement("div");
document.body.append(place);
for (const source of hostile) place.append(...parse(source).map((block) => render(block)));
const known = "a,blockquote,br,button,code,del,div,em,h3,h4,h5,h6,hr,input,li,ol,p,path,pre,span,strong,svg,table,tbody,td,th,thead,tr,ul".split(",");
for (const node of place.querySelectorAll("*")) {
  if (!known.includes(node.localName)) failures.push(`hostile text made <${node.localName}>`);
  for (const { name } of node.attributes) if (name.startsWith("on") || name === "style" || name === "srcdoc") failures.push(`hostile text made the attribute ${name}`);
}
await new Promise((resolve) => setTimeout(resolve, 50));
if (window.hacked !== undefined) failures.push(`hostile text ran: ${window.hacked}`);
place.remove();

// Text that grows is shown as the whole text is, wherever it is cut.
const growing = "# T\n\npara *one*\nmore **two\nthree**\n\n- a\n- b\n\n  c\n  - d\n\n1. x\n2. y\n\n```js\nlet a;\n\nb\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> q\n> r\n\n#tag and\n-not a list\n***\nend [l](https://x.org) `code`\n";
for (let length = 1; length <= 7; length++) {
  const target = document.createElement("div");
  const finals = [];
  const stream = new Stream(target, (node) => finals.push(node));
  for (let end = length; end < growing.length; end += length) stream.update(growing.slice(0, end));
  stream.update(growing, true);
  const found = [...target.childNodes].map(outline).join(" ");
  if (found !== rendered(growing)) failures.push(`in pieces of ${length}:\n      gives ${found}\n      wants ${rendered(growing)}`);
  if (finals.length !== target.childNodes.length || finals.some((node, at) => node !== target.childNodes[at])) failures.push(`in pieces of ${length}: ${finals.length} final blocks of ${target.childNodes.length}`);
}

// An open code block is extended, not replaced.
const open = document.createElement("div");
const stream = new Stream(open);
stream.update("```\none\n");
const kept = open.firstChild;
stream.update("```\none\ntwo\n");
if (open.firstChild !== kept || open.textContent !== "textone\ntwo\n") failures.push(`an open code block was replaced, or has ${JSON.stringify(open.textContent)}`);

// Long hostile text takes little time and nests no deeper than a browser can lay out.
const long = ["*a ", "**", "[", "[a](", "![", "`", "``` ", "` `` ", "<", "http://", "http://a)", "> ", "- ", "  ", "\t", "| ", "|-", "a|b\n|-|-|\n", "# ", "#", "~~", "~~~ ", "_a_", "\\", "$$", "\\(", "&amp", "1. ", "*a*_b_", "\n", "***a", "> - "];
function timed(source) {
  const begun = performance.now();
  const target = document.createElement("div");
  target.append(...parse(source).map((block) => render(block)));
  return [performance.now() - begun, target];
}
for (const piece of long) {
  for (const source of [piece.repeat(Math.ceil(50_000 / piece.length)), `# ${piece.repeat(10_000)}x`, `a ${piece.repeat(10_000)}\``]) {
    let [took, target] = timed(source);
    // Other programs may have had the CPU.
    for (let again = 0; took > 1500 && again < 2; again += 1) took = Math.min(took, timed(source)[0]);
    if (took > 1500) failures.push(`${JSON.stringify(piece)} repeated takes ${Math.round(took)} ms`);
    let depth = 0;
    for (let node = target, level = 0; node; ) {
      depth = Math.max(depth, level);
      if (node.firstElementChild) [node, level] = [node.firstElementChild, level + 1];
      else {
        while (node && node !== target && !node.nextElementSibling) [node, level] = [node.parentElement, level - 1];
        node = node === target ? null : node?.nextElementSibling;
      }
    }
    if (depth > 400) failures.push(`${JSON.stringify(piece)} repeated nests ${depth} deep`);
  }
}
return failures;
